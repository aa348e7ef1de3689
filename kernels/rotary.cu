// Rotary embedding of q and k in one launch, with the RMSNorm of their heads in front of it (optional) and the write of k
// and v into the KV pages behind it (each optional).
//
// A block owns one token. A thread owns the same 8 pairs (16 elements) of two heads, all in flight at once: pairs (x[2i], x[2i+1])
// when interleaved, (x[i], x[i+rot/2]) when half. The heads of q come first, then those of k. The D - rot elements behind
// the rotated width, and v, are copied in packs by the same threads. f32 arithmetic, one rounding.
// positions [T]; cos and sin f32 [max_positions, rot/2]. slots [T] is page*page_size + offset of each token in the pool
// [slots, Hk, D], negative for a token that writes nothing. A position outside the table writes NaN rather than reading
// past it. Rows aligned to 16 bytes, D a multiple of 8, rot a multiple of 16; with head norms rot = D, D/16 a power of
// two up to 32. No shared memory; local memory: 16 bytes (f16 on
// sm_89, so that four blocks fit). Any arch. Paper: Su et al. 2021.
#include "element.cuh"

template <class T, bool HALF>
__device__ __forceinline__ void rotary(T* q_out, T* k_out, const T* q, const T* k, const T* q_weight, const T* k_weight, const float* cos,
                                       const float* sin, const int* positions, int hq, int hk, int d, int rot, int max_positions,
                                       long q_stride, long k_stride, long v_stride, long q_out_stride, long k_out_stride, float eps,
                                       T* k_pool, T* v_pool, const T* v, const int* slots) {
  constexpr int N = 8, HEADS = 2, PACKS = N / Pack<T>::N;
  const long t = blockIdx.x;
  const int lanes = rot / 16, heads = hq + hk, groups = (heads + HEADS - 1) / HEADS;
  grid_wait();
  const int position = positions[t];
  const bool known = position >= 0 && position < max_positions;
  const int slot = slots ? slots[t] : -1;
  // Padded to whole warps so that the shuffles of the head norm are complete.
  for (int item = threadIdx.x; item < (groups * lanes + 31) / 32 * 32; item += blockDim.x) {
    const int group = item / lanes, j = item % lanes;
    const int first = HALF ? 8 * j : 16 * j, second = HALF ? first + rot / 2 : first + 8;
    Pack<T> a[HEADS][PACKS], b[HEADS][PACKS];
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
      const int head = i * groups + group;
      const T* x = head < hq ? q + t * q_stride + (long)head * d : k + t * k_stride + (long)(head - hq) * d;
#pragma unroll
      for (int c = 0; c < PACKS; c++) {
        if (group < groups && head < heads) {
          a[i][c] = load16(x + first + c * Pack<T>::N);
          b[i][c] = load16(x + second + c * Pack<T>::N);
        } else {
          *(uint4*)&a[i][c] = *(uint4*)&b[i][c] = make_uint4(0, 0, 0, 0);
        }
      }
    }
    const float* c = cos + (long)(known ? position : 0) * (rot / 2) + 8 * j;
    const float* s = sin + (long)(known ? position : 0) * (rot / 2) + 8 * j;
    float ct[N], st[N];
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4*>(ct + i) = *reinterpret_cast<const float4*>(c + i);
      *reinterpret_cast<float4*>(st + i) = *reinterpret_cast<const float4*>(s + i);
    }
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
      const int head = i * groups + group;
      const bool live = group < groups && head < heads, is_q = head < hq;
      const int h = is_q ? head : head - hq;
      float u[N], v[N];
#pragma unroll
      for (int e = 0; e < N; e++) {
        u[e] = to_float(a[i][e / Pack<T>::N].v[e % Pack<T>::N]);
        v[e] = to_float(b[i][e / Pack<T>::N].v[e % Pack<T>::N]);
      }
      if (q_weight) {
        float squares = 0;
#pragma unroll
        for (int e = 0; e < N; e++) squares += u[e] * u[e] + v[e] * v[e];
        for (int o = lanes / 2; o; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
        const float scale = rsqrtf(squares / d + eps);
        const T* weight = is_q ? q_weight : k_weight;
        // The norm's result is rounded as it would be in memory.
#pragma unroll
        for (int e = 0; e < N; e++) {
          u[e] = to_float(from_float<T>(u[e] * scale * to_float(weight[first + e])));
          v[e] = to_float(from_float<T>(v[e] * scale * to_float(weight[second + e])));
        }
      }
      if (!live) continue;
      Pack<T> pa[PACKS], pb[PACKS];
      auto put = [&](Pack<T>(&p)[PACKS], int e, float x) { p[e / Pack<T>::N].v[e % Pack<T>::N] = from_float<T>(known ? x : NAN); };
      if (HALF) {
#pragma unroll
        for (int e = 0; e < N; e++) {
          put(pa, e, u[e] * ct[e] - v[e] * st[e]);
          put(pb, e, u[e] * st[e] + v[e] * ct[e]);
        }
      } else {
#pragma unroll
        for (int e = 0; e < N; e += 2) {
          put(pa, e, u[e] * ct[e / 2] - u[e + 1] * st[e / 2]);
          put(pa, e + 1, u[e] * st[e / 2] + u[e + 1] * ct[e / 2]);
          put(pb, e, v[e] * ct[4 + e / 2] - v[e + 1] * st[4 + e / 2]);
          put(pb, e + 1, v[e] * st[4 + e / 2] + v[e + 1] * ct[4 + e / 2]);
        }
      }
      T* out = is_q ? q_out + t * q_out_stride + (long)h * d : (k_out ? k_out + t * k_out_stride + (long)h * d : nullptr);
      T* pool = !is_q && slot >= 0 ? k_pool + ((long)slot * hk + h) * d : nullptr;
#pragma unroll
      for (int e = 0; e < PACKS; e++) {
        if (out) store16(out + first + e * Pack<T>::N, pa[e]), store16(out + second + e * Pack<T>::N, pb[e]);
        if (pool) store16(pool + first + e * Pack<T>::N, pa[e]), store16(pool + second + e * Pack<T>::N, pb[e]);
      }
    }
  }
  const int tail = (d - rot) / Pack<T>::N;
  for (int item = threadIdx.x; item < heads * tail; item += blockDim.x) {
    const int head = item / tail, i = rot + item % tail * Pack<T>::N;
    const bool is_q = head < hq;
    const int h = is_q ? head : head - hq;
    const Pack<T> p = load16((is_q ? q + t * q_stride : k + t * k_stride) + (long)h * d + i);
    if (is_q) store16(q_out + t * q_out_stride + (long)h * d + i, p);
    if (!is_q && k_out) store16(k_out + t * k_out_stride + (long)h * d + i, p);
    if (!is_q && slot >= 0) store16(k_pool + ((long)slot * hk + h) * d + i, p);
  }
  if (slot >= 0 && v) {
    const int packs = hk * d / Pack<T>::N;
    for (int i = threadIdx.x; i < packs; i += blockDim.x)
      store16(v_pool + (long)slot * hk * d + (long)i * Pack<T>::N, load16(v + t * v_stride + (long)i * Pack<T>::N));
  }
}

#define ROTARY(T, NAME, HALF)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 2 ? 4 : 1) rotary_##NAME##_##T(T* q_out, T* k_out, const T* q, const T* k, const T* q_weight, const T* k_weight, \
                                                const float* cos, const float* sin, const int* positions, int hq, int hk, int d, int rot, \
                                                int max_positions, long q_stride, long k_stride, long v_stride, long q_out_stride,        \
                                                long k_out_stride, float eps, T* k_pool, T* v_pool, const T* v, const int* slots) {       \
    rotary<T, HALF>(q_out, k_out, q, k, q_weight, k_weight, cos, sin, positions, hq, hk, d, rot, max_positions, q_stride, k_stride,      \
                    v_stride, q_out_stride, k_out_stride, eps, k_pool, v_pool, v, slots);                                                \
  }
ROTARY(bf16, half, true)
ROTARY(f16, half, true)
ROTARY(f32, half, true)
ROTARY(bf16, interleaved, false)
ROTARY(f16, interleaved, false)
ROTARY(f32, interleaved, false)
