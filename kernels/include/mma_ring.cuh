// The loop of the portable products on 16-bit operands: a ring of stages of 32 k in shared memory, each ROWS lines of x and then
// the block's lines of w, 80 bytes apart.
#pragma once
#include "mma.cuh"

// Adds to d, a warp's part of 32 rows from wr on and WARP_COLS columns from wc on. issue(s) copies stage s, or nothing when
// s is not below steps.
template <class T, int ROWS, int STAGES, int STAGE, int WARP_COLS, class Issue>
__device__ __forceinline__ void ring_products(float (&d)[2][WARP_COLS / 8][4], const unsigned char* shared, int steps, int wr, int wc, Issue issue) {
  constexpr int LINE = 80;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    issue(s);
    copy_commit();
  }
  for (int s = 0; s < steps; s++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (s + STAGES - 1 < steps) issue(s + STAGES - 1);
    copy_commit();
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) ldmatrix4(a[i], stage + (wr + i * 16 + lane % 16) * LINE + kk * 32 + lane / 16 * 16);
#pragma unroll
      for (int j = 0; j < WARP_COLS / 16; j++) {
        uint32_t b[4];
        ldmatrix4(b, stage + (ROWS + wc + j * 16 + (lane & 7) + (lane >> 4) * 8) * LINE + kk * 32 + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          mma16816<T>(d[i][2 * j], a[i], b[0], b[1]);
          mma16816<T>(d[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  copy_wait<0>();
}
