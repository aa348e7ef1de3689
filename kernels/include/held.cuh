// Packs of 16-bit results that leave during the products of the next tile: stores of all blocks at once wait for L2, and the tensor
// cores for them.
#pragma once
#include "epilogue.cuh"

// Lane t of four has columns 2t, 2t+1 of every 8. Pack i is of the first row of two or the second, 8 rows on, i % 2, and columns
// 32 (i / 2) on.
template <class T, int PACKS> struct Held {
  uint32_t pack[PACKS][4];
  T* to = nullptr;    // where the lane's columns begin, as they leave: 8t to 8t+7 of every 32
  int left[2] = {};   // what remains of each row from there

  // Pack i; rows are `stride` apart.
  __device__ __forceinline__ void leave(int i, long stride) const {
    uint32_t v[4];
#pragma unroll
    for (int q = 0; q < 4; q++) v[q] = pack[i][q];
    transpose4(v, threadIdx.x % 4);
    if (i / 2 * 32 < (i % 2 ? left[1] : left[0])) *(uint4*)(to + i % 2 * 8 * stride + i / 2 * 32) = make_uint4(v[0], v[1], v[2], v[3]);
  }
  __device__ __forceinline__ void leave_all(long stride) const {
#pragma unroll
    for (int i = 0; i < PACKS; i++) leave(i, stride);
  }
};
