// Prefill attention on every GPU from sm_80: many query tokens a request, dense or as a ragged batch over KV pages.
//
// A block of 4 warps owns 64 query rows of one head; a warp owns 16 of them, with running maximum, denominator and output
// in registers. It walks the keys in tiles of 64, from a ring of two cp.async stages. Causal is bottom-right: query i of Lq
// sees key j when j <= i + Lk - Lq; tiles that no row of the block sees are skipped. Scores by mma m16n8k16 in f32, softmax
// in f32 base 2, P rounded to the element type for the second product, the denominator from unrounded f32.
// Keys outside the length are read as zeros. In a tile where some row must not see some key, values that are not finite are
// zeroed first and the rows that do see them are set to NaN, so a masked NaN never enters.
// Heads of d elements, a multiple of 8, take the kernel of the next D.
// Ragged: tile_batch and tile_index map blockIdx.x to a request (negative: nothing to do) and a tile of its queries.
// Shared memory: (64 + 4*64) rows of 2D + 16 bytes. Rows aligned to 16 bytes. The body is in include/prefill.cuh. Any arch.
// Paper: Dao 2023 (FlashAttention-2).
#include "prefill.cuh"

#define PREFILL(T, D)                                                                                                         \
  extern "C" __global__ void __launch_bounds__(128, 1) attention_prefill_dense_##T##_##D(const __grid_constant__ Params p) {     \
    prefill<T, T, D, false>(p);                                                                                                \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(128, 1) attention_prefill_paged_##T##_##D(const __grid_constant__ Params p) {     \
    prefill<T, T, D, true>(p);                                                                                                  \
  }
#define PREFILLS(T)                                                                                                           \
  PREFILL(T, 32)                                                                                                              \
  PREFILL(T, 64)                                                                                                              \
  PREFILL(T, 96)                                                                                                              \
  PREFILL(T, 128)                                                                                                             \
  PREFILL(T, 192)                                                                                                             \
  PREFILL(T, 256)
PREFILLS(bf16)
PREFILLS(f16)
