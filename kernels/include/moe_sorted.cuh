// The work list of grouped products on Hopper: rows sorted by expert in tiles of 128, taken by clusters of two blocks.
#pragma once
#include "epilogue.cuh"
#include "tiles.cuh"

#ifdef SEAFAN_HOPPER
// A cluster's item is two row tiles of one column tile of an expert, or two column tiles of its last row tile where their number
// is odd. In shared memory. A tile has BN rows of weights, with DUAL half of them of each of two matrices; a stage is 128 bytes of k
// of its 128 rows of x and then of those of the weights.
template <bool DUAL> struct SortedRows {
  static constexpr int BM = 128, BN = 256, A = BM * 128, B = BN * 128, STAGE = A + B, OUT = DUAL ? BN / 2 : BN;
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

  // One thread of a block: fills the ring with the stages of its items, BK of k each. The blocks of a cluster share the loads of what
  // they have in common. second has the other half of the weights.
  template <int BK, int STAGES>
  __device__ __forceinline__ void produce(unsigned char* ring, uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], const CUtensorMap& xmap,
                                          const CUtensorMap& wmap, const CUtensorMap& second, int n, int experts, int total, int steps) const {
    const int rank = cluster_rank(), columns = (n + OUT - 1) / OUT, workers = gridDim.x / 2;
    int at = 0;
    for (int i = blockIdx.x / 2; i < total; i += workers) {
      int expert, row, end, column;
      bool odd;
      place(i, experts, columns, rank, expert, row, end, column, odd);
      const int w0 = expert * n + column, w1 = DUAL ? w0 : w0 + BN / 2;
      for (int s = 0; s < steps; s++, at++) {
        const int slot = at % STAGES;
        barrier_wait(empty + slot, (at / STAGES & 1) ^ 1);
        unsigned char* a = ring + slot * STAGE;
        unsigned char* b = a + A;
        barrier_expect(full + slot, STAGE);
        if (odd) {
          copy_tensor2_multicast(a + rank * (A / 2), &xmap, full + slot, s * BK, row + rank * 64, 3);
          copy_tensor2(b, &wmap, full + slot, s * BK, w0);
          copy_tensor2(b + B / 2, &second, full + slot, s * BK, w1);
        } else {
          copy_tensor2(a, &xmap, full + slot, s * BK, row);
          copy_tensor2(a + A / 2, &xmap, full + slot, s * BK, row + 64);
          copy_tensor2_multicast(b + rank * (B / 2), rank ? &second : &wmap, full + slot, s * BK, rank ? w1 : w0, 3);
        }
      }
    }
    // The last stages must be consumed before a block of the cluster may go: its partner still writes to it.
    for (int i = 0; i < STAGES; i++, at++) barrier_wait(empty + at % STAGES, (at / STAGES & 1) ^ 1);
  }
};
#endif
