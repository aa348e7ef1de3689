// What the persistent products on Hopper share: their ring of stages in shared memory, and the tiles of a dense product.
#pragma once
#include "hopper.cuh"

#ifdef SEAFAN_HOPPER
// The barriers of a ring that one thread fills, freed by two warpgroups of each block of the cluster. One thread calls it.
template <int STAGES> __device__ __forceinline__ void ring_init(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES], int cluster) {
  for (int i = 0; i < STAGES; i++) {
    barrier_init(full + i, 1);
    barrier_init(empty + i, 2 * cluster);
  }
  barrier_init_fence();
}

// The tiles of y[M,N], 128 rows by OUT columns, for clusters of CLUSTER row tiles of one column tile. They go in groups of 16 row
// tiles so that the blocks in flight share rows and columns in L2. With DUAL a tile has BN/2 rows of w for its columns, and as
// many N rows further on. A stage is BK of k, 128 bytes, of the rows of x and then of w.
template <int BN, int BK, int CLUSTER, bool DUAL> struct Tiles {
  static constexpr int BM = 128, X = BM * 128, W = BN * 128, STAGE = X + W, OUT = DUAL ? BN / 2 : BN, GROUPED = 16 / CLUSTER;
  int n, rank, row_tiles, columns;

  __device__ __forceinline__ Tiles(int m, int n, int rank) : n(n), rank(rank), row_tiles((m + BM * CLUSTER - 1) / (BM * CLUSTER)), columns((n + OUT - 1) / OUT) {}
  __device__ __forceinline__ int count() const { return row_tiles * columns; }
  __device__ __forceinline__ void place(int tile, int& row, int& column) const {
    const int per = GROUPED * columns, first = tile / per * GROUPED, size = min(GROUPED, row_tiles - first);
    row = ((first + tile % per % size) * CLUSTER + rank) * BM;
    column = tile % per / size * OUT;
  }
  // Fills a stage with step s: the rows of w as two halves, of which each block of a pair loads one for both.
  __device__ __forceinline__ void load(unsigned char* x, unsigned char* w, uint64_t* full, const CUtensorMap& xmap, const CUtensorMap& wmap, int s, int row, int column) const {
    barrier_expect(full, STAGE);
    copy_tensor2(x, &xmap, full, s * BK, row);
    const int half0 = column, half1 = DUAL ? n + column : column + BN / 2;
    if (CLUSTER > 1) {
      copy_tensor2_multicast(w + rank * (W / 2), &wmap, full, s * BK, rank ? half1 : half0, 3);
    } else {
      copy_tensor2(w, &wmap, full, s * BK, half0);
      copy_tensor2(w + W / 2, &wmap, full, s * BK, half1);
    }
  }
};
#endif
