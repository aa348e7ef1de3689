// What the ends of products on the tensor cores share: the turn of a quad's columns in front of a store, and the gate.
#pragma once
#include <stdint.h>

// Four lanes hold rows of a 4 by 4 matrix of words: afterwards lane t holds column t.
__device__ __forceinline__ void transpose4(uint32_t (&v)[4], int t) {
  const bool odd = t & 1, high = t & 2;
  uint32_t a = odd ? v[0] : v[1], b = odd ? v[2] : v[3];
  a = __shfl_xor_sync(~0u, a, 1), b = __shfl_xor_sync(~0u, b, 1);
  if (odd) v[0] = a, v[2] = b;
  else v[1] = a, v[3] = b;
  uint32_t c = high ? v[0] : v[2], d = high ? v[1] : v[3];
  c = __shfl_xor_sync(~0u, c, 2), d = __shfl_xor_sync(~0u, d, 2);
  if (high) v[0] = c, v[1] = d;
  else v[2] = c, v[3] = d;
}

// u / (1 + exp(-u)), the quotient to 2 roundoffs of f32.
__device__ __forceinline__ float silu(float u) { return __fdividef(u, 1.f + __expf(-u)); }
