// Grouped products of a mixture of experts for few tokens: the time is that of reading the weights of the chosen experts
// once, so they stream from memory to registers and meet the tokens there, without a sort. y[i] = x[i/divide] w[ids[i]]^T
// for the M choices i, or x[i] when divide is 0, w [E,N,K].
//
// A block owns 8*WC (DUAL) or 16*WC rows of one expert's w; its 8 warps are WC parts of those rows by WK parts of K. The
// expert of block y is expert y, or that of choice y when there are fewer choices than experts, and then the first choice
// of an expert does the work of all. The block lists the choices of its expert in order and takes them 8 (up to 8
// tokens) or 32 at a time. A lane
// holds 16 bytes of rows g and g+8 (mma.sync m16n8k16, w as A); lane 4g+t reads k = 8t..8t+7 of a step and the same of the
// tokens, which is the same sum in another order. With DUAL, row g is one of w and row g+8 the same of up, so that
// y = silu(x w^T) * (x up^T) lies in one thread. The WK partial sums meet in shared memory, in order. The cuts depend on N
// and K alone, so a token's sums do not depend on how many share the launch.
// A launch lets the next start when it has waited itself, so that the second product (not DUAL), which must follow the first,
// knows that ids are written: it reads them and its first weights before the first product has ended.
// bf16 and f16, f32 sums, one rounding. K a multiple of 8, rows aligned to 16 bytes, M up to 1024.
#include "moe_stream.cuh"

namespace {
constexpr int CHOICES = 1024;

struct Params {
  void* y;
  const void* x;
  const void* w;
  const void* up;
  const int* ids;
  const void* shared_w;   // [N,K] of the shared expert, or null
  const void* shared_up;
  int m, n, k, experts, divide, by_expert, top_k, pad;
};
}  // namespace

// w and up are those of the expert.
template <class T, class Out, int WC, int WK, bool DUAL, int NT>
__device__ __forceinline__ void pass(const Params& p, const T* w, const T* up, const int* list, int count, bool wait, float (*partial)[WC][16][32]) {
  constexpr int UNROLL = NT > 2 ? 2 : 4;  // steps whose loads are in flight together
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, wc = warp % WC, wk = warp / WC;
  const int column = blockIdx.x * (DUAL ? 8 : 16) * WC + wc * (DUAL ? 8 : 16) + g;
  const T* w0 = w + (long)min(column, p.n - 1) * p.k + t * 8;
  const T* w1 = DUAL ? up + (long)min(column, p.n - 1) * p.k + t * 8 : w + (long)min(column + 8, p.n - 1) * p.k + t * 8;
  const T* x[NT];
  bool live[NT];
#pragma unroll
  for (int i = 0; i < NT; i++) {
    live[i] = i * 8 + g < count;
    x[i] = (const T*)p.x + (live[i] ? (long)row_of(list[i * 8 + g], p.divide, p.m) * p.k : 0) + t * 8;
  }
  float d[NT][4] = {};
  const int steps = (p.k + 31) / 32, first = steps * wk / WK, end = steps * (wk + 1) / WK;
  for (int s = first; s < end; s += UNROLL) {
    Pack<T> a0[UNROLL], a1[UNROLL];
#pragma unroll
    for (int j = 0; j < UNROLL; j++) {
      const bool on = s + j < end && (s + j) * 32 + t * 8 < p.k;
      a0[j] = Pack<T>{}, a1[j] = Pack<T>{};
      if (on) {
        a0[j] = stream16(w0 + (s + j) * 32);
        a1[j] = stream16(w1 + (s + j) * 32);
      }
    }
    if (wait) {
      wait_first();
      wait = false;
    }
#pragma unroll
    for (int j = 0; j < UNROLL; j++) {
      const bool on = s + j < end && (s + j) * 32 + t * 8 < p.k;
      const uint4 u = *(const uint4*)&a0[j], v = *(const uint4*)&a1[j];
      const uint32_t low[4] = {u.x, v.x, u.y, v.y}, high[4] = {u.z, v.z, u.w, v.w};
#pragma unroll
      for (int i = 0; i < NT; i++) {
        uint4 b = make_uint4(0, 0, 0, 0);
        if (on && live[i]) b = *(const uint4*)(x[i] + (s + j) * 32);
        mma16816<T>(d[i], low, b.x, b.y);
        mma16816<T>(d[i], high, b.z, b.w);
      }
    }
  }
  if (wait) wait_first();  // a part of K without steps
  meet<Out, WC, WK, DUAL, NT>((Out*)p.y, p.n, d, column, list, count, partial);
}

// MOST is 1 for launches of up to 8 tokens: fewer registers, so one block more on a multiprocessor.
template <class T, int WC, int WK, bool DUAL, int MOST> __device__ __forceinline__ void stream(const Params& p) {
  __shared__ float partial[WK - 1][WC][16][32];
  __shared__ int list[CHOICES], counts[8];
  if (DUAL) wait_first();
  const bool shared = p.shared_w && blockIdx.y == gridDim.y - 1;
  const int expert = shared ? 0 : p.by_expert ? blockIdx.y : p.ids[blockIdx.y];
  if (expert < 0 || expert >= p.experts) return;
  int count = 0;
  if (shared) {
    count = p.m / p.top_k;
    for (int i = threadIdx.x; i < count; i += 256) list[i] = p.m + i;
    __syncthreads();
  }
  choices_of(count, expert, p.ids, shared ? 0 : p.m, list, counts);
  if (count == 0 || (!shared && !p.by_expert && list[0] != blockIdx.y)) return;
  const T* w = shared ? (const T*)p.shared_w : (const T*)p.w + (long)expert * p.n * p.k;
  const T* up = shared ? (const T*)p.shared_up : (const T*)p.up + (long)expert * p.n * p.k;
  for (int c = 0; c < count; c += 8 * MOST) {
    const int left = min(8 * MOST, count - c);
    if (MOST == 1 || left <= 8) pass<T, T, WC, WK, DUAL, 1>(p, w, up, list + c, left, !DUAL && c == 0, partial);
    else if (left <= 16) pass<T, T, WC, WK, DUAL, 2>(p, w, up, list + c, left, !DUAL && c == 0, partial);
    else pass<T, T, WC, WK, DUAL, 4>(p, w, up, list + c, left, !DUAL && c == 0, partial);
  }
}

// The logits of a router: one matrix [N,K] of few rows for all M tokens, f32 out. A block owns 16 rows, its warps parts of K.
template <class T> __device__ __forceinline__ void logits(const Params& p) {
  __shared__ float partial[7][1][16][32];
  __shared__ int list[64];
  if (threadIdx.x < 64) list[threadIdx.x] = threadIdx.x;
  __syncthreads();
  for (int c = 0; c < p.m; c += 32) {
    const int left = min(32, p.m - c);
    if (left <= 8) pass<T, float, 1, 8, false, 1>(p, (const T*)p.w, nullptr, list + c, left, c == 0, partial);
    else if (left <= 16) pass<T, float, 1, 8, false, 2>(p, (const T*)p.w, nullptr, list + c, left, c == 0, partial);
    else pass<T, float, 1, 8, false, 4>(p, (const T*)p.w, nullptr, list + c, left, c == 0, partial);
  }
}
extern "C" __global__ void __launch_bounds__(256, 2) moe_logits_bf16(const __grid_constant__ Params p) { logits<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) moe_logits_f16(const __grid_constant__ Params p) { logits<f16>(p); }

#define STREAM(T, WC, WK)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(256, 2) moe_stream_##T##_##WK(const __grid_constant__ Params p) { stream<T, WC, WK, false, 4>(p); } \
  extern "C" __global__ void __launch_bounds__(256, 2) moe_stream_##T##_##WK##_swiglu(const __grid_constant__ Params p) { stream<T, WC, WK, true, 4>(p); } \
  extern "C" __global__ void __launch_bounds__(256, 3) moe_stream_##T##_##WK##_8(const __grid_constant__ Params p) { stream<T, WC, WK, false, 1>(p); } \
  extern "C" __global__ void __launch_bounds__(256, 3) moe_stream_##T##_##WK##_8_swiglu(const __grid_constant__ Params p) { stream<T, WC, WK, true, 1>(p); }
STREAM(bf16, 2, 4)
STREAM(bf16, 4, 2)
STREAM(f16, 2, 4)
STREAM(f16, 4, 2)
