// RMSNorm whose result leaves as E4M3 codes with a step for each row, or one that is given:
//
//   y = round(x / sqrt(mean(x^2) + eps) * (w + unit)) in the type of x,  codes = round(y / step),  step = max|y| / 448 of the row
//
// A block owns one row of d elements and a thread up to V times 8 of it, which stay in registers from the read to the codes, so
// that nothing but x is read and nothing but codes and steps is written. In 16-bit types codes and steps have the bits that norm.cu
// and fp8_quantize.cu give one after the other; in f32 sums run in another order. Shared memory: 32 floats. d a multiple of 8, rows
// of x and weights aligned to 16 bytes, of codes to 8. Any arch.
#include "quantize.cuh"

template <class T, int V, bool EARLY>
__device__ __forceinline__ void norm_codes(uint8_t* codes, float* made, const float* given, const T* x, const T* w, int d, long stride, float eps, float unit) {
  __shared__ float scratch[32];
  constexpr int N = Pack<T>::N, PACKS = 8 / N;
  const T* row = x + (size_t)blockIdx.x * d;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  float h[V][8];
  float squares = 0;
  Eight<T> g[V];
  auto weights = [&](int i, int c) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) g[i].p[k] = load16(w + c + k * N);
  };
  // Weights do not depend on the launch in front.
  if (EARLY) {
#pragma unroll
    for (int i = 0; i < V; i++)
      if ((threadIdx.x + i * blockDim.x) * 8 < d) weights(i, (threadIdx.x + i * blockDim.x) * 8);
  }
  grid_wait();
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int c = (threadIdx.x + i * blockDim.x) * 8;
    if (c < d) {
#pragma unroll
      for (int k = 0; k < PACKS; k++) {
        const Pack<T> a = load16(row + c + k * N);
#pragma unroll
        for (int j = 0; j < N; j++) {
          const float v = to_float(a.v[j]);
          h[i][k * N + j] = v;
          squares += v * v;
        }
      }
    }
  }
  squares = warp_sum(squares);
  if (lane == 0) scratch[warp] = squares;
  __syncthreads();
  squares = warp_sum(lane < warps ? scratch[lane] : 0.f);
  const float scale = rsqrtf(squares / d + eps);
  Largest<T> largest;
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int c = (threadIdx.x + i * blockDim.x) * 8;
    if (c < d) {
      if (!EARLY) weights(i, c);
#pragma unroll
      for (int j = 0; j < 8; j++) g[i].p[j / N].v[j % N] = from_float<T>(h[i][j] * scale * (to_float(g[i].p[j / N].v[j % N]) + unit));
      largest.meet(g[i]);
    }
  }
  const float mine = largest.value();
  float step;
  if (given) {
    step = *given;
  } else {
    float amax = mine;
    if (mine != mine) {
      amax = 0.f;
#pragma unroll
      for (int i = 0; i < V; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
          if ((threadIdx.x + i * blockDim.x) * 8 < d) amax = fmaxf(amax, fabsf(to_float(g[i].p[j / N].v[j % N])));
    }
    amax = warp_largest(amax);
    __syncthreads();
    if (lane == 0) scratch[warp] = amax;
    __syncthreads();
    step = step_of<false>(warp_largest(lane < warps ? scratch[lane] : 0.f), 0);
    if (threadIdx.x == 0) made[blockIdx.x] = step;
  }
  const Coder<T, false> coder(step);
#pragma unroll
  for (int i = 0; i < V; i++) {
    const int c = (threadIdx.x + i * blockDim.x) * 8;
    if (c >= d) continue;
    uint2 q = coder.encode(g[i]);
    if (!coder.ordinary(mine)) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = wide(g[i].p[j / N].v[j % N]);
      q = make_uint2(fp8_quad_any<false>(v[0], v[1], v[2], v[3], step), fp8_quad_any<false>(v[4], v[5], v[6], v[7], step));
    }
    *(uint2*)(codes + blockIdx.x * stride + c) = q;
  }
}

#define KERNEL(T, V, EARLY, NAME)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024) norm_fp8_##T##_##NAME(uint8_t* codes, float* made, const float* given, const T* x, \
                                                                           const T* w, int d, long stride, float eps, float unit) {     \
    norm_codes<T, V, EARLY>(codes, made, given, x, w, d, stride, eps, unit);                                                          \
  }
#define NORM(T)               \
  KERNEL(T, 1, true, 1)       \
  KERNEL(T, 2, false, 2)      \
  KERNEL(T, 2, true, 2_early) \
  KERNEL(T, 4, false, 4)
NORM(bf16)
NORM(f16)
NORM(f32)
