// y = mul x + add, by elementwise.cuh.
#include "elementwise.cuh"

template <class T> __device__ __forceinline__ void affine(T* y, const T* x, long n, float mul, float add) {
  elementwise(y, x, n, [=](float v) { return fmaf(mul, v, add); });
}

extern "C" __global__ void __launch_bounds__(256) affine_bf16(bf16* y, const bf16* x, long n, float mul, float add) { affine<bf16>(y, x, n, mul, add); }
extern "C" __global__ void __launch_bounds__(256) affine_f16(f16* y, const f16* x, long n, float mul, float add) { affine<f16>(y, x, n, mul, add); }
extern "C" __global__ void __launch_bounds__(256) affine_f32(f32* y, const f32* x, long n, float mul, float add) { affine<f32>(y, x, n, mul, add); }
