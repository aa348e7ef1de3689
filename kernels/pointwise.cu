// Pointwise steps: gated activations, add, mul, embedding rows.
//
//   swiglu     y[t,i] = silu(gate[t,i]) * up[t,i]          geglu_tanh / geglu_erf the same with gelu
//   add        y = a + b                                   mul  y[t,i] = x[t,i] * b[t], rows of d; b may be f32
//   embedding  y[t,:] = table[ids[t],:]; an id outside the table gives NaN rather than a read past it
//   append     pool[slots[t],:] = x[t,:]; a negative slot writes nothing; also rounded to a pool of bf16, or as E4M3 codes
//              of x / steps[head]
//
// A thread owns packs of 16 bytes; blocks cover the rows along y and the columns along x. Gate and up may be the two
// halves of one row (stride 2f). Rows aligned to 16 bytes, columns a multiple of 8 (4 for f32); the _any kernels take
// every width. f32 arithmetic, one rounding. No shared memory. Any arch. Paper: Shazeer 2020.
#include "e4m3.cuh"
#include "gates.cuh"

template <class T, class F>
__device__ __forceinline__ void gated(T* y, const T* gate, const T* up, int columns, long stride, long y_stride, int rows) {
  constexpr int N = Pack<T>::N, V = 2;
  const int packs = columns / N;
  const int p0 = blockIdx.x * blockDim.x * V + threadIdx.x;
  grid_wait();
  for (long t = blockIdx.y; t < rows; t += gridDim.y) {
    Pack<T> g[V], u[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
      const int p = p0 + i * blockDim.x;
      if (p < packs) g[i] = stream16(gate + t * stride + (long)p * N), u[i] = stream16(up + t * stride + (long)p * N);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
      const int p = p0 + i * blockDim.x;
      if (p < packs) {
        Pack<T> o;
#pragma unroll
        for (int j = 0; j < N; j++) o.v[j] = from_float<T>(F::of(to_float(g[i].v[j])) * to_float(u[i].v[j]));
        store16(y + t * y_stride + (long)p * N, o);
      }
    }
  }
}

template <class T, class F>
__device__ __forceinline__ void gated_any(T* y, const T* gate, const T* up, int columns, long stride, long y_stride, int rows) {
  grid_wait();
  for (long t = blockIdx.y; t < rows; t += gridDim.y)
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < columns; i += gridDim.x * blockDim.x)
      y[t * y_stride + i] = from_float<T>(F::of(to_float(gate[t * stride + i])) * to_float(up[t * stride + i]));
}

template <class T> __device__ __forceinline__ void add_flat(T* y, const T* a, const T* b, long n) {
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long packs = n / N, step = (long)gridDim.x * blockDim.x;
  const long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long p = at; p < packs; p += step) {
    Pack<T> u = load16(a + p * N), v = load16(b + p * N);
#pragma unroll
    for (int j = 0; j < N; j++) u.v[j] = from_float<T>(to_float(u.v[j]) + to_float(v.v[j]));
    store16(y + p * N, u);
  }
  const long i = packs * N + at;
  if (i < n) y[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

// Factor i / d for element i: of d 1, one for each.
template <class T, class B> __device__ __forceinline__ void mul_rows(T* y, const T* x, const B* b, long n, int d) {
  constexpr int N = Pack<T>::N;
  grid_wait();
  const long packs = n / N, step = (long)gridDim.x * blockDim.x, first = (long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long p = first; p < packs; p += step) {
    Pack<T> u = load16(x + p * N);
    long row = p * N / d;
    int at = (int)(p * N - row * d);
#pragma unroll
    for (int j = 0; j < N; j++) {
      u.v[j] = from_float<T>(to_float(u.v[j]) * to_float(b[row]));
      if (++at == d) at = 0, row++;
    }
    store16(y + p * N, u);
  }
  const long i = packs * N + first;
  if (i < n) y[i] = from_float<T>(to_float(x[i]) * to_float(b[i / d]));
}

template <class T> __device__ __forceinline__ void embedding_rows(T* y, const T* table, const int* ids, int d, int vocabulary, float scale) {
  grid_wait();
  const long t = blockIdx.x;
  const int id = ids[t];
  const bool known = id >= 0 && id < vocabulary;
  const T* row = table + (long)(known ? id : 0) * d;
  if (known && scale == 1.f && d % Pack<T>::N == 0) {
    for (int i = threadIdx.x; i < d / Pack<T>::N; i += blockDim.x)
      store16(y + t * d + (long)i * Pack<T>::N, load16(row + (long)i * Pack<T>::N));
    return;
  }
  for (int i = threadIdx.x; i < d; i += blockDim.x) y[t * d + i] = from_float<T>(known ? to_float(row[i]) * scale : NAN);
}

template <class T> __device__ __forceinline__ void append_rows(T* pool, const T* x, const int* slots, int columns) {
  grid_wait();
  const long t = blockIdx.x;
  const int slot = slots[t];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < columns / Pack<T>::N; i += blockDim.x)
    store16(pool + (long)slot * columns + (long)i * Pack<T>::N, load16(x + t * columns + (long)i * Pack<T>::N));
}

// Element by element, into a pool of another type too; width elements have one step.
template <class T, class P> __device__ __forceinline__ void append_any(P* pool, const T* x, const int* slots, const float* steps, int columns, int width) {
  grid_wait();
  const long t = blockIdx.x;
  const int slot = slots[t];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float v = to_float(x[t * columns + i]);
    P* to = pool + (long)slot * columns + i;
    if constexpr (sizeof(P) == 1) *to = to_e4m3(v, steps[i / width]);
    else *to = from_float<P>(v);
  }
}

#define GATED(T, NAME, F)                                                                                                      \
  extern "C" __global__ void pointwise_##NAME##_##T(T* y, const T* gate, const T* up, int columns, long stride, long y_stride, int rows) { \
    gated<T, F>(y, gate, up, columns, stride, y_stride, rows);                                                                 \
  }                                                                                                                            \
  extern "C" __global__ void pointwise_##NAME##_##T##_any(T* y, const T* gate, const T* up, int columns, long stride, long y_stride, int rows) { \
    gated_any<T, F>(y, gate, up, columns, stride, y_stride, rows);                                                             \
  }
#define APPEND(T)                                                                                                              \
  extern "C" __global__ void pointwise_append_##T(T* pool, const T* x, const int* slots, int columns) {                        \
    append_rows<T>(pool, x, slots, columns);                                                                                   \
  }
#define MUL(T, B)                                                                                                              \
  extern "C" __global__ void pointwise_mul_##T##_##B(T* y, const T* x, const B* b, long n, int d) { mul_rows<T, B>(y, x, b, n, d); }
MUL(bf16, bf16)
MUL(bf16, f32)
MUL(f16, f16)
MUL(f16, f32)
MUL(f32, f32)
#define APPEND_ANY(T, P)                                                                                                       \
  extern "C" __global__ void pointwise_append_##T##_##P(P* pool, const T* x, const int* slots, const float* steps, int columns, int width) { \
    append_any<T, P>(pool, x, slots, steps, columns, width);                                                                   \
  }
APPEND_ANY(bf16, bf16)
APPEND_ANY(bf16, e4m3)
APPEND_ANY(f16, f16)
APPEND_ANY(f16, bf16)
APPEND_ANY(f16, e4m3)
APPEND_ANY(f32, f32)
APPEND_ANY(f32, bf16)
APPEND_ANY(f32, e4m3)
APPEND(bf16)
APPEND(f16)
APPEND(f32)

#define POINTWISE(T)                                                                                                           \
  GATED(T, swiglu, Silu)                                                                                                       \
  GATED(T, geglu_tanh, GeluTanh)                                                                                               \
  GATED(T, geglu_erf, GeluErf)                                                                                                 \
  extern "C" __global__ void pointwise_add_##T(T* y, const T* a, const T* b, long n) { add_flat<T>(y, a, b, n); }              \
  extern "C" __global__ void pointwise_embedding_##T(T* y, const T* table, const int* ids, int d, int vocabulary, float scale) { \
    embedding_rows<T>(y, table, ids, d, vocabulary, scale);                                                                    \
  }
POINTWISE(bf16)
POINTWISE(f16)
POINTWISE(f32)
