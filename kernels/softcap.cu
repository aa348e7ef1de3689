// y = cap tanh(x / cap), by elementwise.cuh.
#include "elementwise.cuh"

template <class T> __device__ __forceinline__ void softcap(T* y, const T* x, long n, float cap) {
  elementwise(y, x, n, [=](float v) { return cap * tanhf(v / cap); });
}

extern "C" __global__ void __launch_bounds__(256) softcap_bf16(bf16* y, const bf16* x, long n, float cap) { softcap<bf16>(y, x, n, cap); }
extern "C" __global__ void __launch_bounds__(256) softcap_f16(f16* y, const f16* x, long n, float cap) { softcap<f16>(y, x, n, cap); }
extern "C" __global__ void __launch_bounds__(256) softcap_f32(f32* y, const f32* x, long n, float cap) { softcap<f32>(y, x, n, cap); }
