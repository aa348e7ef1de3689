// Prefill attention on Hopper: wgmma fed by the copy engine, dense or as a ragged batch over KV pages of 8 tokens or more.
//
// Blocks stay: a block takes items of 128 query rows of one head, 192 with heads of 64, the first by its number, others by
// ticket, those of a request with the most keys first; the heads of a group are neighbours and share K and V in L2, where a
// request that is not causal leaves room by taking a section of its heads after the other. Warpgroup 0
// is the producer: one warp looks items up and fetches their queries, another keeps two stages of K and of V filled (KEYS rows
// each; with pages, a lane a page) and runs ahead into the next item. The others own 64 rows each: scores S = Q K^T in registers,
// softmax in f32 base 2, P in registers as the A operand of O += P V. The S of the next tile and the P V of this one run on the
// tensor cores while the softmax of the next runs beside them, and the warpgroups take turns at the products. A thread has two
// rows: the exponentials of one, then, with P V done, those of the other beside the sum and the packing of the first. Keys are
// walked from the last tile back, so that the tiles of the diagonal come first.
// Semantics, NaN included, are those of attention_prefill.cu; a tile that needs a mask is checked for values that are not
// finite by these warpgroups together. No mask tensor. Every launch leaves the ticket as it was, 0.
// KEYS is 128 up to D 128, 64 at D 256. Shared memory: (rows + 4*KEYS) * 2D bytes and barriers. sm_90a only; empty elsewhere.
// Paper: Shah et al. 2024 (FlashAttention-3).
#include "prefill_sm90.cuh"

#define PREFILL(T, D, KEYS)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(128 + 128 * prefill_groups(D, false), 1) attention_prefill_sm90_dense_##T##_##D( \
      const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) { \
    prefill<T, D, KEYS, false>(q, Maps{k, v}, p);                                                                                     \
  }                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(128 + 128 * prefill_groups(D, false), 1) attention_prefill_sm90_paged_##T##_##D( \
      const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) { \
    prefill<T, D, KEYS, true>(q, Maps{k, v}, p);                                                                                       \
  }
#define PREFILLS(T)                                                                                                             \
  PREFILL(T, 64, 128)                                                                                                           \
  PREFILL(T, 128, 128)                                                                                                          \
  PREFILL(T, 256, 64)
PREFILLS(bf16)
PREFILLS(f16)
