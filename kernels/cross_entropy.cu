// Cross-entropy of rows of logits, for evaluation: loss[t] = lse - x[t, label[t]] + zloss lse^2 with lse = log(sum(exp(x[t,:]))),
// 0 for the ignored label (every one below 0 where that is), NaN for another one outside [0,V); and the mean of the rows
// that count.
//
// A block of 512 threads owns a row and reads it once, a running maximum and sum a thread, merged in a fixed order, in f32.
// Rows of any stride; packs of 16 bytes where rows are aligned to them. Shared memory: 64 floats. The mean: one block of 1024
// threads, float64, in a fixed order; shared memory: 384 bytes. Any arch.
#include "element.cuh"

template <class T> __device__ __forceinline__ void cross_entropy(float* loss, float* lse, const T* x, const int* labels, int v, long stride, int ignore, float zloss) {
  __shared__ float scratch[64];
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long t = blockIdx.x;
  const int label = labels[t];
  const T* row = x + t * stride;
  float m = -INFINITY, l = 0;
  auto add = [&](float u) {
    if (u > m) {
      l = m == -INFINITY ? 1.f : l * expf(m - u) + 1.f;
      m = u;
    } else if (u > -INFINITY || u != u) {
      l += expf(u - m);
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
    if (x > -INFINITY) l = l * expf(m - x) + l2 * expf(m2 - x);
    else l += l2;
    m = x;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = m, scratch[32 + threadIdx.x / 32] = l;
  __syncthreads();
  if (threadIdx.x > 0) return;
  m = -INFINITY, l = 0;
  for (int i = 0; i < blockDim.x / 32; i++) m = fmaxf(m, scratch[i]);
  for (int i = 0; i < blockDim.x / 32; i++) l += scratch[32 + i] * (m > -INFINITY ? expf(scratch[i] - m) : 1.f);
  const float sum = isinf(m) ? 0.f : logf(l), z = m + sum;
  if (lse) lse[t] = z;
  float y = 0;
  if (label != ignore && !(ignore < 0 && label < 0)) {
    y = label < 0 || label >= v ? NAN : m - to_float(row[label]) + sum;
    if (zloss != 0) y += zloss * z * z;
  }
  loss[t] = y;
}

#define CROSS_ENTROPY(T)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(512)                                                                                  \
      cross_entropy_##T(float* loss, float* lse, const T* x, const int* labels, int v, long stride, int ignore, float zloss) {       \
    cross_entropy<T>(loss, lse, x, labels, v, stride, ignore, zloss);                                                                \
  }
CROSS_ENTROPY(bf16)
CROSS_ENTROPY(f16)
CROSS_ENTROPY(f32)

// mean and count of the rows whose label is not the ignored one; 0 when there is none.
extern "C" __global__ void __launch_bounds__(1024) cross_entropy_mean(float* mean, float* count, const float* loss, const int* labels, int rows, int ignore) {
  __shared__ double sums[32];
  __shared__ int counts[32];
  grid_wait();
  double sum = 0;
  int n = 0;
  for (int i = threadIdx.x; i < rows; i += blockDim.x)
    if (labels[i] != ignore) sum += loss[i], n++;
#pragma unroll
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o), n += __shfl_xor_sync(~0u, n, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum, counts[threadIdx.x / 32] = n;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0, n = 0;
  for (int i = 0; i < blockDim.x / 32; i++) sum += sums[i], n += counts[i];
  mean[0] = (float)(sum / max(n, 1));
  if (count) count[0] = (float)n;
}
