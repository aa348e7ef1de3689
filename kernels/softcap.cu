// y = cap tanh(x / cap), element by element, in f32, rounded once. y may be x.
//
// A thread owns 16 bytes where both addresses are aligned to them, else one element; blocks of 256 threads. No shared memory.
// Any arch.
#include "element.cuh"

template <class T> __device__ __forceinline__ void softcap(T* y, const T* x, long n, float cap) {
  constexpr int N = Pack<T>::N;
  const bool packed = ((uint64_t)x | (uint64_t)y) % 16 == 0;
  const long at = (long)blockIdx.x * blockDim.x + threadIdx.x, packs = packed ? n / N : 0;
  grid_wait();
  if (at < packs) {
    Pack<T> a = load16(x + at * N);
#pragma unroll
    for (int j = 0; j < N; j++) a.v[j] = from_float<T>(cap * tanhf(to_float(a.v[j]) / cap));
    store16(y + at * N, a);
  }
  const long rest = packs * N + at;  // behind the last pack, or all
  if (rest < n) y[rest] = from_float<T>(cap * tanhf(to_float(x[rest]) / cap));
}

extern "C" __global__ void __launch_bounds__(256) softcap_bf16(bf16* y, const bf16* x, long n, float cap) { softcap<bf16>(y, x, n, cap); }
extern "C" __global__ void __launch_bounds__(256) softcap_f16(f16* y, const f16* x, long n, float cap) { softcap<f16>(y, x, n, cap); }
extern "C" __global__ void __launch_bounds__(256) softcap_f32(f32* y, const f32* x, long n, float cap) { softcap<f32>(y, x, n, cap); }
