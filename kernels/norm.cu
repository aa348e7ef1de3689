// RMSNorm, with the residual add in front of it, and LayerNorm.
//
//   RMSNorm    y = h / sqrt(mean(h^2) + eps) * (w + unit),  h = x + residual rounded to the element type, or h = x
//   LayerNorm  y = (x - mean) / sqrt(var + eps) * w + b,  var from the centred values
//
// A block owns one row of d elements and a thread up to V packs of 16 bytes of it, kept in registers between the sum and
// the write, so a row is read once. Shared memory: 32 floats. Rows and weights aligned to 16 bytes and d a multiple of
// 8 (4 for f32) in the packed kernels; the _any kernels take every d and alignment and read the row again. Any arch.
// Paper: Zhang and Sennrich 2019 (RMSNorm), Ba et al. 2016 (LayerNorm).
#include "element.cuh"
#include "grid.cuh"

template <class T, int V>
__device__ __forceinline__ void rmsnorm_rows(T* y, T* sum, const T* x, const T* residual, const T* w, int d, float eps, float unit) {
  __shared__ float scratch[32];
  constexpr int N = Pack<T>::N;
  const size_t row = (size_t)blockIdx.x * d;
  const int packs = d / N;
  float h[V][N];
  float squares = 0;
  grid_wait();
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      Pack<T> a = load16(x + row + p * N);
      if (residual) {
        Pack<T> r = load16(residual + row + p * N);
#pragma unroll
        for (int j = 0; j < N; j++) a.v[j] = from_float<T>(to_float(a.v[j]) + to_float(r.v[j]));
        store16(sum + row + p * N, a);
      }
#pragma unroll
      for (int j = 0; j < N; j++) {
        h[i][j] = to_float(a.v[j]);
        squares += h[i][j] * h[i][j];
      }
    }
  }
  // As block_sum, with one barrier: scratch is not used again.
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.f);
  const float scale = rsqrtf(squares / d + eps);
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      Pack<T> g = load16(w + p * N), o;
#pragma unroll
      for (int j = 0; j < N; j++) o.v[j] = from_float<T>(h[i][j] * scale * (to_float(g.v[j]) + unit));
      store16(y + row + p * N, o);
    }
  }
}

// The sum of what the warps of a block left in 32 floats, zero behind them: the tree of warp_sum, without its shuffles.
__device__ __forceinline__ float sum_warps(const float* scratch, int warps) {
  auto at = [&](int i) { return reinterpret_cast<const float4*>(scratch)[i]; };
  auto add = [](float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); };
  const float4 s = warps <= 8 ? add(at(0), at(1)) : add(add(add(at(0), at(4)), add(at(2), at(6))), add(add(at(1), at(5)), add(at(3), at(7))));
  return (s.x + s.z) + (s.y + s.w);
}

// The same numbers for few rows, where latency counts: weights, which do not depend on the launch in front, come before the
// wait for it, and every load behind it is under way before the first is used. sum may be residual, so the compiler cannot see to it.
template <class T, int V>
__device__ __forceinline__ void rmsnorm_few(T* y, T* sum, const T* x, const T* residual, const T* w, int d, float eps, float unit) {
  __shared__ alignas(16) float scratch[32];
  constexpr int N = Pack<T>::N;
  const size_t row = (size_t)blockIdx.x * d;
  const int packs = d / N;
  Pack<T> g[V], a[V], r[V];
  grid_launch();
  if (threadIdx.x < 32) scratch[threadIdx.x] = 0;
#pragma unroll
  for (int i = 0; i < V; i++)
    if (threadIdx.x + i * blockDim.x < packs) g[i] = load16(w + (threadIdx.x + i * blockDim.x) * N);
  __syncthreads();
  grid_block();
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      a[i] = load16(x + row + p * N);
      if (residual) r[i] = load16(residual + row + p * N);
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      if (residual) {
#pragma unroll
        for (int j = 0; j < N; j++) a[i].v[j] = from_float<T>(to_float(a[i].v[j]) + to_float(r[i].v[j]));
        store16(sum + row + p * N, a[i]);
      }
#pragma unroll
      for (int j = 0; j < N; j++) squares += to_float(a[i].v[j]) * to_float(a[i].v[j]);
    }
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
  __syncthreads();
  const float scale = rsqrtf(sum_warps(scratch, blockDim.x / 32) / d + eps);
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
#pragma unroll
      for (int j = 0; j < N; j++) a[i].v[j] = from_float<T>(to_float(a[i].v[j]) * scale * (to_float(g[i].v[j]) + unit));
      store16(y + row + p * N, a[i]);
    }
  }
}

template <class T>
__device__ __forceinline__ void rmsnorm_any(T* y, T* sum, const T* x, const T* residual, const T* w, int d, float eps, float unit) {
  __shared__ float scratch[32];
  const size_t row = (size_t)blockIdx.x * d;
  float squares = 0;
  grid_wait();
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    T a = x[row + i];
    if (residual) sum[row + i] = a = from_float<T>(to_float(a) + to_float(residual[row + i]));
    squares += to_float(a) * to_float(a);
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / d + eps);
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    const T a = residual ? sum[row + i] : x[row + i];
    y[row + i] = from_float<T>(to_float(a) * scale * (to_float(w[i]) + unit));
  }
}

template <class T, int V>
__device__ __forceinline__ void layernorm_rows(T* y, const T* x, const T* w, const T* b, int d, float eps) {
  __shared__ float scratch[32];
  constexpr int N = Pack<T>::N;
  const size_t row = (size_t)blockIdx.x * d;
  const int packs = d / N;
  float h[V][N];
  float sum = 0, squares = 0;
  grid_wait();
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      Pack<T> a = load16(x + row + p * N);
#pragma unroll
      for (int j = 0; j < N; j++) sum += h[i][j] = to_float(a.v[j]);
    }
  }
  const float mean = block_sum(sum, scratch) / d;
#pragma unroll
  for (int i = 0; i < V; i++) {
    if (threadIdx.x + i * blockDim.x < packs) {
#pragma unroll
      for (int j = 0; j < N; j++) {
        h[i][j] -= mean;
        squares += h[i][j] * h[i][j];
      }
    }
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / d + eps);
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int p = threadIdx.x + i * blockDim.x;
    if (p < packs) {
      Pack<T> g = load16(w + p * N), c, o;
      if (b) c = load16(b + p * N);
#pragma unroll
      for (int j = 0; j < N; j++) o.v[j] = from_float<T>(h[i][j] * scale * to_float(g.v[j]) + (b ? to_float(c.v[j]) : 0.f));
      store16(y + row + p * N, o);
    }
  }
}

template <class T>
__device__ __forceinline__ void layernorm_any(T* y, const T* x, const T* w, const T* b, int d, float eps) {
  __shared__ float scratch[32];
  const size_t row = (size_t)blockIdx.x * d;
  float sum = 0, squares = 0;
  grid_wait();
  for (int i = threadIdx.x; i < d; i += blockDim.x) sum += to_float(x[row + i]);
  const float mean = block_sum(sum, scratch) / d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    const float c = to_float(x[row + i]) - mean;
    squares += c * c;
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / d + eps);
  for (int i = threadIdx.x; i < d; i += blockDim.x)
    y[row + i] = from_float<T>((to_float(x[row + i]) - mean) * scale * to_float(w[i]) + (b ? to_float(b[i]) : 0.f));
}

#define RMSNORM(T, V, NAME, BODY)                                                                                             \
  extern "C" __global__ void __launch_bounds__(1024) norm_rms_##T##_##NAME(T* y, T* sum, const T* x, const T* residual, const T* w, int d, float eps, float unit) { \
    BODY<T, V>(y, sum, x, residual, w, d, eps, unit);                                                                        \
  }
#define LAYERNORM(T, V)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(1024) norm_layer_##T##_##V(T* y, const T* x, const T* w, const T* b, int d, float eps) { \
    layernorm_rows<T, V>(y, x, w, b, d, eps);                                                                                \
  }
#define NORM(T)                                                                                                              \
  RMSNORM(T, 1, 1, rmsnorm_few)                                                                                              \
  RMSNORM(T, 2, 2_few, rmsnorm_few)                                                                                          \
  RMSNORM(T, 2, 2, rmsnorm_rows)                                                                                             \
  RMSNORM(T, 4, 4, rmsnorm_rows)                                                                                             \
  LAYERNORM(T, 1)                                                                                                            \
  LAYERNORM(T, 2)                                                                                                            \
  LAYERNORM(T, 4)                                                                                                            \
  extern "C" __global__ void norm_rms_##T##_any(T* y, T* sum, const T* x, const T* residual, const T* w, int d, float eps, float unit) { \
    rmsnorm_any<T>(y, sum, x, residual, w, d, eps, unit);                                                                    \
  }                                                                                                                          \
  extern "C" __global__ void norm_layer_##T##_any(T* y, const T* x, const T* w, const T* b, int d, float eps) {               \
    layernorm_any<T>(y, x, w, b, d, eps);                                                                                    \
  }
NORM(bf16)
NORM(f16)
NORM(f32)
