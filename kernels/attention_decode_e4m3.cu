// Decode attention over pages of E4M3 codes, with a step for each kv head of the keys and of the values: value = step * code.
//
// As attention_decode.cu, whose merge kernels serve these too, with codes in the ring (rows of D bytes) that turn into f16 on
// their way to mma.sync: f16 holds every value of E4M3, and a query of bf16 is scaled by a power of two into its range. The
// step of the keys is a factor of the scores, that of the values a factor of each split. No append: codes are written first.
// Heads of d elements, a multiple of 16, take the kernel of the next D.
// Shared memory: stages * 4 warps * 2 * 16 rows of D bytes (padded by 16 at D 32, 96 and 192), and the rest as there. Any
// arch (sm_80 widens codes in software).
#include "decode.cuh"

#define DECODE(T, D, STAGES, NAME, LAYOUT)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, D <= 128 ? 3 : 2) attention_decode_##NAME##_e4m3_##T##_##D(const __grid_constant__ Params p) { \
    decode<T, e4m3, D, STAGES, LAYOUT>(p);                                                                                    \
  }
#define DECODE_D(T, D, STAGES)         \
  DECODE(T, D, STAGES, paged, PAGED)   \
  DECODE(T, D, STAGES, gather, GATHER)
#define DECODES(T)   \
  DECODE_D(T, 32, 4) \
  DECODE_D(T, 64, 4) \
  DECODE_D(T, 96, 4) \
  DECODE_D(T, 128, 4) \
  DECODE_D(T, 192, 4) \
  DECODE_D(T, 256, 4)
DECODES(bf16)
DECODES(f16)
