// y = f(x), element by element, in f32, rounded once. y may be x.
//
// A thread owns 16 bytes where both addresses are aligned to them, else one element; blocks of 256 threads. No shared memory.
// Any arch.
#pragma once
#include "element.cuh"

template <class T, class F> __device__ __forceinline__ void elementwise(T* y, const T* x, long n, F f) {
  constexpr int N = Pack<T>::N;
  const bool packed = ((uint64_t)x | (uint64_t)y) % 16 == 0;
  const long at = (long)blockIdx.x * blockDim.x + threadIdx.x, packs = packed ? n / N : 0;
  grid_wait();
  if (at < packs) {
    Pack<T> a = load16(x + at * N);
#pragma unroll
    for (int j = 0; j < N; j++) a.v[j] = from_float<T>(f(to_float(a.v[j])));
    store16(y + at * N, a);
  }
  const long rest = packs * N + at;  // behind the last pack, or all
  if (rest < n) y[rest] = from_float<T>(f(to_float(x[rest])));
}
