// Decode attention: one query token a request against its KV cache, split over the cache; a second kernel merges.
//
// The work is cut into items (request, split, kv head, tile of up to 8 query heads). How a request is split depends on its
// own length alone, never on the batch: chunks of clamp(ceil(length/12) rounded up to 64, 64, 1024) tokens. So a request
// gives the same bits in every batch. A fixed grid of blocks takes the items: the first of a block by its number, then, where
// there are more items than blocks, the next that nobody has, by tickets drawn an item ahead. Every block draws one ticket that
// no item is left for, so who draws the last of all puts the tickets back. Each block finds the items by a prefix sum over the
// lengths, which it takes from device memory, so a captured graph serves every length.
// A block of 4 warps owns an item; a warp owns every fourth tile of 16 tokens of it (at multiples of 16), with its own ring
// of cp.async stages, running maximum, denominator and output (registers), so the main loop has no block barrier. The ring
// runs ahead across items. The warps' results meet in shared memory and go to the scratch in f32 or, when the request has
// one split, to the output. The merge kernel owns a (request, query head) a block and sums the splits in their order.
// Both products are transposed, so that the 16 rows of mma m16n8k16 are tokens (K Q^T) and elements (V^T P^T) and only the 8
// columns are query heads, padded with zeros; movmatrix turns the scores into the second operand. Tokens outside the
// length, the window or the mask are read as zeros and scored -inf, so what memory holds there never enters. The cache is
// read with evict-first and the scratch written with evict-last, so that it stays in L2, in whole sectors, which L2 need not
// read before.
// Heads of d elements, a multiple of 8, take the kernel of the next D.
// Variants: dense; paged, a tile within one page (page of 16 tokens or more); gather, a page id a token (smaller pages).
// Append: with new_k/new_v the last token of each request comes from there and is also written to its page.
// Shared memory: stages * 4 warps * 2 * 16 rows of 2D bytes (swizzled; padded by 16 at D 96), plus 4 * rows * (D + 4)
// floats and 3B + 2 ints. The body is in include/decode.cuh.
// Rows aligned to 16 bytes. Any arch. Papers: Dao 2023 (FlashDecoding), Ye et al. 2025 (FlashInfer).
#include "decode.cuh"

#define DECODE(T, D, STAGES, NAME, LAYOUT)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, D <= 128 ? 3 : 2) attention_decode_##NAME##_##T##_##D(const __grid_constant__ Params p) { \
    decode<T, T, D, STAGES, LAYOUT>(p);                                                                                       \
  }
#define DECODE_D(T, D, STAGES)                                                                                                \
  DECODE(T, D, STAGES, dense, DENSE)                                                                                          \
  DECODE(T, D, STAGES, paged, PAGED)                                                                                          \
  DECODE(T, D, STAGES, gather, GATHER)                                                                                        \
  extern "C" __global__ void __launch_bounds__(D) attention_decode_merge_dense_##T##_##D(const __grid_constant__ Params p) {  \
    merge<T, D, DENSE>(p);                                                                                                    \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(D) attention_decode_merge_paged_##T##_##D(const __grid_constant__ Params p) {  \
    merge<T, D, PAGED>(p);                                                                                                    \
  }
#define DECODES(T)                                                                                                            \
  DECODE_D(T, 32, 4)                                                                                                          \
  DECODE_D(T, 64, 4)                                                                                                          \
  DECODE_D(T, 96, 3)                                                                                                          \
  DECODE_D(T, 128, 2)                                                                                                         \
  DECODE_D(T, 192, 2)                                                                                                         \
  DECODE_D(T, 256, 2)
DECODES(bf16)
DECODES(f16)
