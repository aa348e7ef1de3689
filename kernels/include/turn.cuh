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
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 1024 / THREADS; i++) {
      const int word = threadIdx.x / 32 + i * (THREADS / 32);
      uint32_t q[4];
#pragma unroll
      for (int j = 0; j < 4; j++) q[j] = words[(lane * 4 + j) * 32 + (word ^ lane)];
      turn4(q);
      const long r = r0 + lane * 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const long c = c0 + word * 4 + j;
        if (c >= cols || r >= rows) continue;
        uint8_t* to = y + c * stride + r;
        if (stride % 4 == 0 && r + 4 <= rows) {
          *(uint32_t*)to = q[j];
        } else {
          for (int k = 0; k < 4 && r + k < rows; k++) to[k] = q[j] >> (k * 8);
        }
      }
    }
  }
};
