// 128 by 128 codes that leave transposed: words of four codes of a row in shared memory, swizzled so that neither the threads of a
// row nor those of a column meet in a bank.
#pragma once
#include <stdint.h>

// The bytes of four words as the words of four bytes: r[i] byte j becomes r[j] byte i.
__device__ __forceinline__ void turn4(uint32_t (&r)[4]) {
  const uint32_t a = __byte_perm(r[0], r[1], 0x5140), b = __byte_perm(r[2], r[3], 0x5140), c = __byte_perm(r[0], r[1], 0x7362), d = __byte_perm(r[2], r[3], 0x7362);
  r[0] = __byte_perm(a, b, 0x5410), r[1] = __byte_perm(a, b, 0x7632), r[2] = __byte_perm(c, d, 0x5410), r[3] = __byte_perm(c, d, 0x7632);
}

struct CodeTile {
  uint32_t words[128 * 32];

  __device__ __forceinline__ void put(int row, int word, uint32_t codes) { words[row * 32 + (word ^ (row / 4))] = codes; }

  // To y[cols, stride] from row c0 and column r0 of it, by THREADS threads of a block that have met.
  template <int THREADS> __device__ __forceinline__ void leave(uint8_t* y, long stride, long r0, long c0, long rows, long cols) const {
    if (stride % 4 || r0 + 128 > rows || c0 + 128 > cols) {
#pragma unroll 1
      for (int i = threadIdx.x; i < 128 * 128; i += THREADS) {
        const int r = i % 128, c = i / 128;
        if (r0 + r < rows && c0 + c < cols) y[(c0 + c) * stride + r0 + r] = words[r * 32 + (c / 4 ^ r / 4)] >> (c % 4 * 8);
      }
      return;
    }
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32;
    uint8_t* to = y + (c0 + first * 4) * stride + r0 + lane * 4;
#pragma unroll
    for (int i = 0; i < 1024 / THREADS; i++, to += (THREADS / 32 - 1) * 4 * stride) {
      const int word = first + i * (THREADS / 32);
      uint32_t q[4];
#pragma unroll
      for (int j = 0; j < 4; j++) q[j] = words[(lane * 4 + j) * 32 + (word ^ lane)];
      turn4(q);
#pragma unroll
      for (int j = 0; j < 4; j++, to += stride) *(uint32_t*)to = q[j];
    }
  }
};
