// The work list of grouped products on Hopper: rows sorted by expert in tiles of 128, taken by clusters of two blocks.
#pragma once
#include "epilogue.cuh"
#include "hopper.cuh"

#ifdef SEAFAN_HOPPER
// A cluster's item is two row tiles of one column tile of an expert, or two column tiles of its last row tile where their number
// is odd. In shared memory; OUT columns a tile.
template <int OUT> struct SortedRows {
  static constexpr int BM = 128;
  int offsets[1025], items[1025], sums[32];  // items: work of the experts before each

  // All threads, with two barriers; returns how many items there are.
  __device__ __forceinline__ int list(const int* from_offsets, int experts, int columns) {
    for (int e = threadIdx.x; e <= experts; e += blockDim.x) offsets[e] = from_offsets[e];
    __syncthreads();
    // Thread i sums the work of a run of experts; a scan over the threads in order gives where each run starts.
    const int each = (experts + blockDim.x - 1) / blockDim.x, from = min(experts, (int)threadIdx.x * each), to = min(experts, from + each);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto work = [&](int e) {
      const int tiles = (offsets[e + 1] - offsets[e] + BM - 1) / BM;
      return tiles / 2 * columns + tiles % 2 * ((columns + 1) / 2);
    };
    int own = 0;
    for (int e = from; e < to; e++) own += work(e);
    int scan = own;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int v = __shfl_up_sync(~0u, scan, o);
      if (lane >= o) scan += v;
    }
    if (lane == 31) sums[warp] = scan;
    __syncthreads();
    int at = scan - own;
    for (int w = 0; w < warp; w++) at += sums[w];
    for (int e = from; e < to; e++) {
      items[e] = at;
      at += work(e);
    }
    if (from < to && to == experts) items[to] = at;
    __syncthreads();
    return items[experts];
  }

  // Item i: its expert, this block's row (end behind it) and column, and whether the two blocks share the rows.
  __device__ __forceinline__ void place(int i, int experts, int columns, int rank, int& expert, int& row, int& end, int& column, bool& odd) const {
    int lo = 0, hi = experts;
    while (hi - lo > 1) {
      const int mid = (lo + hi) / 2;
      if (items[mid] <= i) lo = mid; else hi = mid;
    }
    expert = lo;
    end = offsets[lo + 1];
    const int at = i - items[lo], pairs = (end - offsets[lo] + BM - 1) / BM / 2;
    odd = at >= pairs * columns;
    if (odd) {
      row = offsets[lo] + pairs * 2 * BM;
      column = ((at - pairs * columns) * 2 + rank) * OUT;
    } else {
      row = offsets[lo] + (at % pairs * 2 + rank) * BM;
      column = at / pairs * OUT;
    }
  }
};
#endif
