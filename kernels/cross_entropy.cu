// Cross-entropy of rows of logits, for evaluation: loss[t] = log(sum(exp(x[t,:]))) - x[t, label[t]], 0 for a negative label
// (ignored). A label at or above V gives NaN.
//
// A block of 512 threads owns a row and reads it once, a running maximum and sum a thread, merged in a fixed order. f32
// arithmetic. Rows of any stride; packs of 16 bytes where rows are aligned to them. Shared memory: 64 floats. Any arch.
#include "element.cuh"

template <class T> __device__ __forceinline__ void cross_entropy(float* loss, const T* x, const int* labels, int v, long stride) {
  __shared__ float scratch[64];
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long t = blockIdx.x;
  const int label = labels[t];
  const T* row = x + t * stride;
  float m = -INFINITY, l = 0;
  auto add = [&](float u) {
    if (u > m) {
      l = m == -INFINITY ? 1.f : l * __expf(m - u) + 1.f;
      m = u;
    } else if (u > -INFINITY || u != u) {
      l += __expf(u - m);
    }
  };
  int done = 0;
  if ((uint64_t)row % 16 == 0) {
    done = v / N * N;
    for (int p = threadIdx.x; p < v / N; p += blockDim.x) {
      const Pack<T> a = stream16(row + (long)p * N);
#pragma unroll
      for (int j = 0; j < N; j++) add(to_float(a.v[j]));
    }
  }
  for (int i = done + threadIdx.x; i < v; i += blockDim.x) add(to_float(row[i]));
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const float m2 = __shfl_xor_sync(~0u, m, o), l2 = __shfl_xor_sync(~0u, l, o), x = fmaxf(m, m2);
    if (x > -INFINITY) l = l * __expf(m - x) + l2 * __expf(m2 - x);
    else l += l2;
    m = x;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = m, scratch[32 + threadIdx.x / 32] = l;
  __syncthreads();
  if (threadIdx.x > 0) return;
  m = -INFINITY, l = 0;
  for (int i = 0; i < blockDim.x / 32; i++) m = fmaxf(m, scratch[i]);
  for (int i = 0; i < blockDim.x / 32; i++) l += scratch[32 + i] * (m > -INFINITY ? __expf(scratch[i] - m) : 1.f);
  loss[t] = label < 0 ? 0.f : label >= v ? NAN : m + logf(l) - to_float(row[label]);
}

extern "C" __global__ void __launch_bounds__(512) cross_entropy_bf16(float* loss, const bf16* x, const int* labels, int v, long stride) {
  cross_entropy<bf16>(loss, x, labels, v, stride);
}
extern "C" __global__ void __launch_bounds__(512) cross_entropy_f16(float* loss, const f16* x, const int* labels, int v, long stride) {
  cross_entropy<f16>(loss, x, labels, v, stride);
}
extern "C" __global__ void __launch_bounds__(512) cross_entropy_f32(float* loss, const f32* x, const int* labels, int v, long stride) {
  cross_entropy<f32>(loss, x, labels, v, stride);
}
