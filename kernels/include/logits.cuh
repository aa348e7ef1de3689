// Rows of logits for the draw of a token: keys that order them, weights, a row as the warps of a cluster of blocks of 1024
// threads read it, and sums and sorts of such a block.
#pragma once
#include "element.cuh"

namespace {
typedef unsigned long long u64;
constexpr int THREADS = 1024, WARPS = 32, SEGMENT = 512;
constexpr uint32_t LOWEST = 0x00800000;  // the key of the lowest finite logit
constexpr float MOST = 3.4028235e38f;

// Order-preserving: a larger float has a larger key, zeros of both signs the same; NaN has the largest.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t u = __float_as_uint(x + 0.f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
__device__ __forceinline__ float larger(float a, float b) {  // NaN where one is
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// exp((z - top) / temperature) with rate = log2(e) / temperature, 0 below 2^-1022: 2^r by a polynomial on [-1/2, 1/2] that
// interpolates it at the zeros of a Chebyshev polynomial, relative error 2.9e-16.
__device__ __forceinline__ double weight(float z, double top, double rate) {
  const double magic = 6755399441055744., y = ((double)z - top) * rate, n = y + magic, r = y - (n - magic);
  double p = 7.072585949269223e-09;
  p = fma(p, r, 1.0208690299958306e-07);
  p = fma(p, r, 1.321544258792169e-06);
  p = fma(p, r, 1.5252657260200837e-05);
  p = fma(p, r, 0.0001540353044173605);
  p = fma(p, r, 0.0013333558230164974);
  p = fma(p, r, 0.009618129107606888);
  p = fma(p, r, 0.05550410866444772);
  p = fma(p, r, 0.24022650695910097);
  p = fma(p, r, 0.69314718055995);
  p = fma(p, r, 1.);
  const bool tiny = (uint32_t)__double2hiint(y) > 0xc08ff000u;  // below -1022
  return tiny ? 0. : __hiloint2double(__double2hiint(p) + (__double2loint(n) << 20), __double2loint(p));
}

// Four logits from i on.
__device__ __forceinline__ float4 unpack4(const float* p) { return *(const float4*)p; }
template <class T> __device__ __forceinline__ float4 unpack4(const T* p) {
  const uint2 u = *(const uint2*)p;
  const T* v = (const T*)&u;
  return make_float4(to_float(v[0]), to_float(v[1]), to_float(v[2]), to_float(v[3]));
}

template <class T> struct Row {
  const T* logits;
  const uint32_t* seen;
  float penalty;
  int V, span, rank, blocks;  // span: tokens of a segment
  // The id of logit j of a lane of the 512 from first on.
  static __device__ __forceinline__ int id(int first, int j) { return first + j / 4 * 128 + 4 * (threadIdx.x % 32) + j % 4; }
  // Four logits from i on, -Inf behind the end.
  __device__ __forceinline__ float4 four(int i) const {
    if ((uint64_t)logits % (4 * sizeof(T)) == 0 && i + 4 <= V) return unpack4(logits + i);
    return make_float4(i < V ? to_float(logits[i]) : -INFINITY, i + 1 < V ? to_float(logits[i + 1]) : -INFINITY, i + 2 < V ? to_float(logits[i + 2]) : -INFINITY,
                       i + 3 < V ? to_float(logits[i + 3]) : -INFINITY);
  }
  __device__ __forceinline__ void punish(int i, float* x) const {
    if (!seen) return;
    const uint32_t bits = i < V ? seen[i / 32] >> (i % 32) : 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (bits >> k & 1) x[k] = x[k] > 0 ? x[k] / penalty : x[k] * penalty;
  }
  // A lane's logits of the 512 from first on.
  __device__ __forceinline__ void load(int first, float (&x)[16]) const {
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      const float4 v = four(id(first, j));
      x[j] = v.x, x[j + 1] = v.y, x[j + 2] = v.z, x[j + 3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < 16; j += 4) punish(id(first, j), x + j);
  }
  __device__ __forceinline__ int segments() const { return (V + span - 1) / span; }
  // f(segment, first) for every 512 tokens of this warp's segments.
  template <class F> __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int s = rank + blocks * (threadIdx.x / 32); s < segments(); s += blocks * WARPS)
#pragma unroll 1
      for (int first = s * span; first < min(V, (s + 1) * span); first += SEGMENT) f(s, first);
  }
  // f(segment, i, x) for the four logits x of a lane from token i on, 128 tokens of a warp at a time. The loop is not unrolled: a
  // body that runs once or twice waits for its instructions.
  template <class F> __device__ __forceinline__ void each4(F f) const {
    each([&](int s, int first) {
      float4 v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = four(id(first, 4 * j));
#pragma unroll 1
      for (int j = 0; j < 4; j++) {
        float x[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
        v[0] = v[1], v[1] = v[2], v[2] = v[3];
        const int i = id(first, 0) + 128 * j;
        punish(i, x);
        f(s, i, x);
      }
    });
  }
};

// The sum of the threads up to this one, in a fixed order, and of all.
template <class N> __device__ __forceinline__ N scan(N x, N* warps, N& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto upto = [&](N v) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const N y = __shfl_up_sync(~0u, v, o);
      if (lane >= o) v += y;
    }
    return v;
  };
  x = upto(x);
  if (lane == 31) warps[warp] = x;
  __syncthreads();
  const N sums = upto(warps[lane]), before = __shfl_sync(~0u, sums, max(warp - 1, 0));
  total = __shfl_sync(~0u, sums, 31);
  __syncthreads();
  return warp ? before + x : x;
}

// Descending; size is a power of two, at least 64.
__device__ __noinline__ void sort(u64* list, int size) {
  auto exchange = [](u64 x, int i, int k, int j) {
    const u64 y = __shfl_xor_sync(~0u, x, j);
    return ((i & k) == 0) == ((i & j) == 0) ? max(x, y) : min(x, y);
  };
  for (int i = threadIdx.x; i < size; i += THREADS) {
    u64 x = list[i];
    for (int k = 2; k <= 32; k *= 2)
      for (int j = k / 2; j; j /= 2) x = exchange(x, i, k, j);
    list[i] = x;
  }
  __syncthreads();
  for (int k = 64; k <= size; k *= 2) {
    for (int j = k / 2; j >= 32; j /= 2) {
      for (int i = threadIdx.x; i < size; i += THREADS) {
        const u64 a = list[i], b = list[i ^ j];
        if ((i & j) == 0 && ((i & k) == 0 ? a < b : a > b)) list[i] = b, list[i ^ j] = a;
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < size; i += THREADS) {
      u64 x = list[i];
      for (int j = 16; j; j /= 2) x = exchange(x, i, k, j);
      list[i] = x;
    }
    __syncthreads();
  }
}
}  // namespace
