// Prefill attention on Hopper over pages of E4M3 codes of any size, with a step for each kv head of the keys and of the values.
//
// As attention_prefill_sm90.cu, but for its producer, whose four warps gather codes by cp.async, a lane 16 of a token, and widen
// them to f16, which holds every value of E4M3, into the tiles of K and V. Products are in f16 also for q in bf16: its rows are
// multiplied by powers of two first. The step of the keys is a factor of the scores, that of the values one of the result.
// Shared memory: (128 + 4*KEYS) * 2D bytes, codes of 4*KEYS rows (2*KEYS at D 256) and barriers. sm_90a only; empty elsewhere.
#include "prefill_sm90.cuh"

#define PREFILL(T, D, KEYS)                                                                                       \
  extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_sm90_paged_e4m3_##T##_##D(               \
      const __grid_constant__ CUtensorMap q, const __grid_constant__ Pools pools, const __grid_constant__ Params p) { \
    prefill<T, D, KEYS, true>(q, pools, p);                                                                       \
  }
#define PREFILLS(T)   \
  PREFILL(T, 64, 128)  \
  PREFILL(T, 128, 128) \
  PREFILL(T, 256, 64)
PREFILLS(bf16)
PREFILLS(f16)
