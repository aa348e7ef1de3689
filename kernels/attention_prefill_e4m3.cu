// Prefill attention over pages of E4M3 codes, with a step for each kv head of the keys and of the values: value = step * code.
//
// As attention_prefill.cu, with codes in the ring: a block turns each tile into the type of q, which holds every value of E4M3,
// before the products. The step of the keys is a factor of the scores, that of the values one of the result.
// Heads of d elements, a multiple of 16, take the kernel of the next D.
// Shared memory: (64 + 2*64) rows of 2D + 16 bytes and 4*64 of D + 16. Any arch (sm_80 turns codes in software).
#include "prefill.cuh"

#define PREFILL(T, D)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(128, 1) attention_prefill_paged_e4m3_##T##_##D(const __grid_constant__ Params p) { \
    prefill<T, e4m3, D, true>(p);                                                                                                 \
  }
#define PREFILLS(T) \
  PREFILL(T, 32)    \
  PREFILL(T, 64)    \
  PREFILL(T, 96)    \
  PREFILL(T, 128)   \
  PREFILL(T, 192)   \
  PREFILL(T, 256)
PREFILLS(bf16)
PREFILLS(f16)
