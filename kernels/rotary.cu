// Rotary embedding of q and k in one launch, with the RMSNorm of their heads in front of it (optional) and the write of k
// and v into the KV pages behind it (each optional), there also as E4M3 codes with a step a head.
//
// A block owns one token, or a part of its items. A thread owns the same 8 pairs (16 elements) of two heads, all in flight at once: pairs (x[2i], x[2i+1])
// when interleaved, (x[i], x[i+rot/2]) when half. The heads of q come first, then those of k. The D - rot elements behind
// the rotated width are copied in packs by the same threads, v by further ones. f32 arithmetic, one rounding; codes are those of the
// rounded values. The _any kernels take a pair a thread: every D, even rot and alignment, without head norms.
// positions [T]; cos and sin f32 [max_positions, rot/2]. slots [T] is page*page_size + offset of each token in the pool
// [slots, Hk, D], negative for a token that writes nothing. A position outside the table writes NaN rather than reading
// past it. When early, positions, slots and the table are read before the launch in front has ended; when stream, more is
// written than L2 holds and the writes are the first to leave it.
// Rows aligned to 16 bytes, D a multiple of 8, rot a multiple of 16; with head norms rot = D, D/16 a power of
// two up to 32. No shared memory. Any arch. Paper: Su et al. 2021.
#include "e4m3.cuh"
#include "grid.cuh"

namespace {
struct Params {
  void* q_out;
  void* k_out;  // or null
  const void* q;
  const void* k;
  const void* q_weight;  // [D], with k_weight, or null
  const void* k_weight;
  const float* cos;
  const float* sin;
  const int* positions;
  void* k_pool;
  void* v_pool;
  const void* v;
  const int* slots;
  const float* k_steps;  // [Hk], of pools of E4M3
  const float* v_steps;
  long q_stride, k_stride, v_stride, q_out_stride, k_out_stride;  // elements
  int hq, hk, d, rot, max_positions, early, stream;
  float eps;
};

template <class T> __device__ __forceinline__ void write16(T* to, const Pack<T>& x, bool stream) {
  const uint4& u = *reinterpret_cast<const uint4*>(&x);
  if (stream) asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w) : "memory");
  else store16(to, x);
}
// A pack into a pool of its own type, or as codes.
template <class T> __device__ __forceinline__ void put(T* to, const Pack<T>& x, float) { store16(to, x); }
template <class T> __device__ __forceinline__ void put(e4m3* to, const Pack<T>& x, float step) {
  constexpr int N = Pack<T>::N;
  struct alignas(N) {
    e4m3 v[N];
  } c;
#pragma unroll
  for (int i = 0; i < N; i++) c.v[i] = to_e4m3(to_float(x.v[i]), step);
  *reinterpret_cast<decltype(c)*>(to) = c;
}
template <class T> __device__ __forceinline__ void put(T* to, T x, float) { *to = x; }
template <class T> __device__ __forceinline__ void put(e4m3* to, T x, float step) { *to = to_e4m3(to_float(x), step); }
// Eight pairs turned and rounded: (u[i], v[i]) by halves, neighbours of u and of v when interleaved; NaN when not known.
template <class T, bool HALF>
__device__ __forceinline__ void turn(Pack<T>* a, Pack<T>* b, const float* u, const float* v, const float* c, const float* s, bool known) {
  auto set = [&](Pack<T>* p, int e, float x) { p[e / Pack<T>::N].v[e % Pack<T>::N] = from_float<T>(known ? x : NAN); };
  if (HALF) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      set(a, e, u[e] * c[e] - v[e] * s[e]);
      set(b, e, u[e] * s[e] + v[e] * c[e]);
    }
  } else {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      set(a, e, u[e] * c[e / 2] - u[e + 1] * s[e / 2]);
      set(a, e + 1, u[e] * s[e / 2] + u[e + 1] * c[e / 2]);
      set(b, e, v[e] * c[4 + e / 2] - v[e + 1] * s[4 + e / 2]);
      set(b, e + 1, v[e] * s[4 + e / 2] + v[e + 1] * c[4 + e / 2]);
    }
  }
}
}  // namespace

template <class T, class P, bool HALF>
__device__ __forceinline__ void rotary(const Params& p) {
  constexpr int N = 8, HEADS = 2, PACKS = N / Pack<T>::N;
  const long t = blockIdx.x;
  const int hq = p.hq, hk = p.hk, d = p.d, rot = p.rot;
  const int lanes = rot / 16, heads = hq + hk, groups = (heads + HEADS - 1) / HEADS;
  T* k_out = (T*)p.k_out;
  grid_launch();
  if (!p.early) grid_block();
  const int position = p.positions[t];
  const int slot = p.slots ? p.slots[t] : -1;
  const bool known = position >= 0 && position < p.max_positions;
  const float* cos = p.cos + (long)(known ? position : 0) * (rot / 2);
  const float* sin = p.sin + (long)(known ? position : 0) * (rot / 2);
  const int start = blockIdx.y * blockDim.x + threadIdx.x, stride = gridDim.y * blockDim.x;
  // Padded to whole warps so that the shuffles of the head norm are complete; behind them v, two packs a thread.
  const int rotated = (groups * lanes + 31) / 32 * 32;
  int item = start;
  for (; item < rotated; item += stride) {
    const int group = item / lanes, j = item % lanes;
    const int first = HALF ? 8 * j : 16 * j, second = HALF ? first + rot / 2 : first + 8;
    float ct[N], st[N];
    auto table = [&]() {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<float4*>(ct + i) = *reinterpret_cast<const float4*>(cos + 8 * j + i);
        *reinterpret_cast<float4*>(st + i) = *reinterpret_cast<const float4*>(sin + 8 * j + i);
      }
    };
    if (p.early) {
      table();
      if (item == start) grid_block();
    }
    Pack<T> a[HEADS][PACKS], b[HEADS][PACKS];
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
      const int head = i * groups + group;
      const T* x = head < hq ? (const T*)p.q + t * p.q_stride + (long)head * d : (const T*)p.k + t * p.k_stride + (long)(head - hq) * d;
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
    if (!p.early) table();
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
      if (p.q_weight) {
        float squares = 0;
#pragma unroll
        for (int e = 0; e < N; e++) squares += u[e] * u[e] + v[e] * v[e];
        for (int o = lanes / 2; o; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
        const float scale = rsqrtf(squares / d + p.eps);
        const T* weight = (const T*)(is_q ? p.q_weight : p.k_weight);
        // The norm's result is rounded as it would be in memory.
        auto weigh = [&](float(&x)[N], const T* w) {
#pragma unroll
          for (int c = 0; c < PACKS; c++) {
            const Pack<T> g = load16(w + c * Pack<T>::N);
#pragma unroll
            for (int e = 0; e < Pack<T>::N; e++) x[c * Pack<T>::N + e] = to_float(from_float<T>(x[c * Pack<T>::N + e] * scale * to_float(g.v[e])));
          }
        };
        weigh(u, weight + first);
        weigh(v, weight + second);
      }
      if (!live) continue;
      Pack<T> pa[PACKS], pb[PACKS];
      turn<T, HALF>(pa, pb, u, v, ct, st, known);
      T* out = is_q ? (T*)p.q_out + t * p.q_out_stride + (long)h * d : (k_out ? k_out + t * p.k_out_stride + (long)h * d : nullptr);
      P* pool = !is_q && slot >= 0 ? (P*)p.k_pool + ((long)slot * hk + h) * d : nullptr;
      const float step = pool && p.k_steps ? p.k_steps[h] : 1.f;
#pragma unroll
      for (int e = 0; e < PACKS; e++) {
        if (out) write16(out + first + e * Pack<T>::N, pa[e], p.stream), write16(out + second + e * Pack<T>::N, pb[e], p.stream);
        if (pool) put(pool + first + e * Pack<T>::N, pa[e], step), put(pool + second + e * Pack<T>::N, pb[e], step);
      }
    }
  }
  if (p.early) grid_block();  // threads without an item
  if (slot >= 0 && p.v) {
    const int packs = hk * d / Pack<T>::N;
    for (int at = 2 * (item - rotated); at < packs; at += 2 * stride) {
      const T* from = (const T*)p.v + t * p.v_stride + (long)at * Pack<T>::N;
      const bool two = at + 1 < packs;
      const Pack<T> x = load16(from), y = load16(from + two * Pack<T>::N);
      P* to = (P*)p.v_pool + (long)slot * hk * d + (long)at * Pack<T>::N;
      put(to, x, p.v_steps ? p.v_steps[at * Pack<T>::N / d] : 1.f);
      if (two) put(to + Pack<T>::N, y, p.v_steps ? p.v_steps[(at + 1) * Pack<T>::N / d] : 1.f);
    }
  }
  const int tail = (d - rot) / Pack<T>::N;
  for (item = start; item < heads * tail; item += stride) {
    const int head = item / tail, i = rot + item % tail * Pack<T>::N;
    const bool is_q = head < hq;
    const int h = is_q ? head : head - hq;
    const Pack<T> x = load16((is_q ? (const T*)p.q + t * p.q_stride : (const T*)p.k + t * p.k_stride) + (long)h * d + i);
    if (is_q) store16((T*)p.q_out + t * p.q_out_stride + (long)h * d + i, x);
    if (!is_q && k_out) store16(k_out + t * p.k_out_stride + (long)h * d + i, x);
    if (!is_q && slot >= 0) put((P*)p.k_pool + ((long)slot * hk + h) * d + i, x, p.k_steps ? p.k_steps[h] : 1.f);
  }
}

// The same for few tokens and rot = D: a thread owns one item, 8 pairs of one head or two packs of v, and has its addresses and
// everything that does not depend on the launch in front before it waits.
template <class T, class P, bool HALF> __device__ __forceinline__ void rotary_few(const Params& p) {
  constexpr int N = 8, PACKS = N / Pack<T>::N;
  const long t = blockIdx.x;
  const int hq = p.hq, hk = p.hk, d = p.d, lanes = d / 16, heads = hq + hk, rotated = (heads * lanes + 31) / 32 * 32;
  const int item = blockIdx.y * blockDim.x + threadIdx.x;
  grid_launch();
  if (!p.early) grid_block();
  const int position = p.positions[t], slot = p.slots ? p.slots[t] : -1;
  if (item >= rotated) {
    const int at = 2 * (item - rotated), packs = slot >= 0 && p.v ? hk * d / Pack<T>::N : 0;
    const T* from = (const T*)p.v + t * p.v_stride + (long)at * Pack<T>::N;
    P* to = (P*)p.v_pool + (long)slot * hk * d + (long)at * Pack<T>::N;
    const bool two = at + 1 < packs;
    float first = 1, second = 1;
    if (at < packs && p.v_steps) first = p.v_steps[at * Pack<T>::N / d], second = p.v_steps[(at + two) * Pack<T>::N / d];
    if (p.early) grid_block();
    if (at >= packs) return;
    const Pack<T> x = load16(from), y = load16(from + two * Pack<T>::N);
    put(to, x, first);
    if (two) put(to + Pack<T>::N, y, second);
    return;
  }
  const int head = item / lanes, j = item % lanes, first = HALF ? 8 * j : 16 * j, second = HALF ? first + d / 2 : first + 8;
  const bool live = head < heads, is_q = head < hq, known = position >= 0 && position < p.max_positions;
  const int h = is_q ? head : head - hq;
  const T* x = (is_q ? (const T*)p.q + t * p.q_stride : (const T*)p.k + t * p.k_stride) + (long)h * d;
  T* out = is_q ? (T*)p.q_out + t * p.q_out_stride + (long)h * d : (p.k_out ? (T*)p.k_out + t * p.k_out_stride + (long)h * d : nullptr);
  P* pool = live && !is_q && slot >= 0 ? (P*)p.k_pool + ((long)slot * hk + h) * d : nullptr;
  const float step = pool && p.k_steps ? p.k_steps[h] : 1.f;
  float ct[N], st[N];
  const long row = (long)(known ? position : 0) * (d / 2) + 8 * j;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    *reinterpret_cast<float4*>(ct + i) = *reinterpret_cast<const float4*>(p.cos + row + i);
    *reinterpret_cast<float4*>(st + i) = *reinterpret_cast<const float4*>(p.sin + row + i);
  }
  Pack<T> wa[PACKS], wb[PACKS];
  const T* weight = (const T*)(is_q ? p.q_weight : p.k_weight);
  if (weight) {
#pragma unroll
    for (int c = 0; c < PACKS; c++) wa[c] = load16(weight + first + c * Pack<T>::N), wb[c] = load16(weight + second + c * Pack<T>::N);
  }
  if (p.early) grid_block();
  Pack<T> a[PACKS], b[PACKS];
#pragma unroll
  for (int c = 0; c < PACKS; c++) {
    *(uint4*)&a[c] = *(uint4*)&b[c] = make_uint4(0, 0, 0, 0);
    if (live) a[c] = load16(x + first + c * Pack<T>::N), b[c] = load16(x + second + c * Pack<T>::N);
  }
  float u[N], v[N];
#pragma unroll
  for (int e = 0; e < N; e++) u[e] = to_float(a[e / Pack<T>::N].v[e % Pack<T>::N]), v[e] = to_float(b[e / Pack<T>::N].v[e % Pack<T>::N]);
  if (weight) {
    float squares = 0;
#pragma unroll
    for (int e = 0; e < N; e++) squares += u[e] * u[e] + v[e] * v[e];
    for (int o = lanes / 2; o; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
    const float scale = rsqrtf(squares / d + p.eps);
    // The norm's result is rounded as it would be in memory.
#pragma unroll
    for (int e = 0; e < N; e++) {
      u[e] = to_float(from_float<T>(u[e] * scale * to_float(wa[e / Pack<T>::N].v[e % Pack<T>::N])));
      v[e] = to_float(from_float<T>(v[e] * scale * to_float(wb[e / Pack<T>::N].v[e % Pack<T>::N])));
    }
  }
  if (!live) return;
  turn<T, HALF>(a, b, u, v, ct, st, known);
#pragma unroll
  for (int e = 0; e < PACKS; e++) {
    if (out) store16(out + first + e * Pack<T>::N, a[e]), store16(out + second + e * Pack<T>::N, b[e]);
    if (pool) put(pool + first + e * Pack<T>::N, a[e], step), put(pool + second + e * Pack<T>::N, b[e], step);
  }
}

template <class T, class P, bool HALF> __device__ __forceinline__ void rotary_any(const Params& p) {
  const long t = blockIdx.x;
  const int hq = p.hq, hk = p.hk, d = p.d, half = p.rot / 2, heads = hq + hk;
  grid_wait();
  const int position = p.positions[t];
  const int slot = p.slots ? p.slots[t] : -1;
  const bool known = position >= 0 && position < p.max_positions;
  auto from = [&](int head) { return head < hq ? (const T*)p.q + t * p.q_stride + (long)head * d : (const T*)p.k + t * p.k_stride + (long)(head - hq) * d; };
  auto write = [&](int head, int i, T x) {
    if (head < hq) {
      ((T*)p.q_out)[t * p.q_out_stride + (long)head * d + i] = x;
      return;
    }
    const int h = head - hq;
    if (p.k_out) ((T*)p.k_out)[t * p.k_out_stride + (long)h * d + i] = x;
    if (slot >= 0) put((P*)p.k_pool + ((long)slot * hk + h) * d + i, x, p.k_steps ? p.k_steps[h] : 1.f);
  };
  for (int item = threadIdx.x; item < heads * half; item += blockDim.x) {
    const int head = item / half, j = item % half, first = HALF ? j : 2 * j, second = HALF ? j + half : 2 * j + 1;
    const float u = to_float(from(head)[first]), v = to_float(from(head)[second]);
    const float c = known ? p.cos[(long)position * half + j] : NAN, s = known ? p.sin[(long)position * half + j] : NAN;
    write(head, first, from_float<T>(u * c - v * s));
    write(head, second, from_float<T>(u * s + v * c));
  }
  const int tail = d - p.rot;
  for (int item = threadIdx.x; item < heads * tail; item += blockDim.x) write(item / tail, p.rot + item % tail, from(item / tail)[p.rot + item % tail]);
  if (slot >= 0 && p.v) {
    for (int i = threadIdx.x; i < hk * d; i += blockDim.x)
      put((P*)p.v_pool + (long)slot * hk * d + i, ((const T*)p.v)[t * p.v_stride + i], p.v_steps ? p.v_steps[i / d] : 1.f);
  }
}

#define ROTARY(T, SUFFIX, P, NAME, HALF)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256, sizeof(T) == 4 ? 1 : sizeof(P) == 2 ? 4 : 3) rotary_##NAME##_##SUFFIX(const __grid_constant__ Params p) { \
    rotary<T, P, HALF>(p);                                                                                                     \
  }                                                                                                                            \
  extern "C" __global__ void __launch_bounds__(256) rotary_##NAME##_##SUFFIX##_few(const __grid_constant__ Params p) { rotary_few<T, P, HALF>(p); } \
  extern "C" __global__ void __launch_bounds__(256) rotary_##NAME##_##SUFFIX##_any(const __grid_constant__ Params p) { rotary_any<T, P, HALF>(p); }
#define ROTARIES(T)                              \
  ROTARY(T, T, T, half, true)                    \
  ROTARY(T, T, T, interleaved, false)            \
  ROTARY(T, T##_e4m3, e4m3, half, true)          \
  ROTARY(T, T##_e4m3, e4m3, interleaved, false)
ROTARIES(bf16)
ROTARIES(f16)
ROTARIES(f32)
