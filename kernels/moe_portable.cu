// Grouped products of a mixture of experts on every GPU: y[rows of e] = x[rows of e] w[e]^T for the rows sorted by expert,
// w [E,N,K]. Row r of x is row order[r]/divide of it, or r itself when there is no order.
//
// A block owns 64 rows of one expert and 128 (mma.sync) or 64 (FMA) rows of its w. Block b along y belongs to the expert e
// with offsets[e]/64 + e <= b, so that an expert's blocks end with it; some of the M/64 + E blocks have no rows. mma.sync:
// 4 warps of 32 by 64, a ring of 4 stages of 32 k in lines of 80 bytes (see gemm_portable.cu), for bf16 and f16, K a
// multiple of 8, rows aligned to 16 bytes. FMA: 256 threads of 4 by 4, steps of 16 k, any type and any size.
// With DUAL there are two matrices of N rows, w and up, and y = silu(x w^T) * (x up^T): columns of the two are interleaved
// so that a thread holds both of a pair. f32 sums, one rounding.
#include "mma_ring.cuh"

namespace {
constexpr int ROWS = 64;

struct Params {
  void* y;
  const void* x;
  const void* w;
  const void* up;
  const int* offsets;  // [E+1]
  const int* order;    // [M] or null
  int n, k, experts, divide;
};

__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.f + expf(-gate)) * up; }

// The expert of this block and its rows; all threads of the block call it.
__device__ __forceinline__ bool rows_of(const Params& p, int& expert, int& from, int& to) {
  __shared__ int place[3];
  const int b = blockIdx.y;
  for (int e = threadIdx.x; e < p.experts; e += blockDim.x) {
    const int first = p.offsets[e] / ROWS + e, next = p.offsets[e + 1] / ROWS + e + 1;
    if (first <= b && b < next) {
      place[0] = e;
      place[1] = p.offsets[e] + (b - first) * ROWS;
      place[2] = min(place[1] + ROWS, p.offsets[e + 1]);
    }
  }
  if (threadIdx.x == 0 && b >= p.offsets[p.experts] / ROWS + p.experts) place[0] = place[1] = place[2] = 0;
  __syncthreads();
  expert = place[0], from = place[1], to = place[2];
  return from < to;
}
__device__ __forceinline__ long source(const Params& p, int r) { return p.order ? p.order[r] / p.divide : r; }
}  // namespace

template <class T, bool DUAL> __device__ __forceinline__ void grouped(const Params& p) {
  constexpr int COLS = 128, BK = 32, LINE = 80, STAGES = 4, STAGE = (ROWS + COLS) * LINE, THREADS = 128;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int col0 = blockIdx.x * (DUAL ? COLS / 2 : COLS), wr = warp % 2 * 32, wc = warp / 2 * 64;
  const int steps = (p.k + BK - 1) / BK;
  grid_wait();
  int expert, from, to;
  if (!rows_of(p, expert, from, to)) return;
  // A thread copies the same 16 bytes of the same lines in every stage: two of x, four of w.
  const T* src[6];
  bool live[6];
  const int chunk = threadIdx.x % 4 * 8;
#pragma unroll
  for (int i = 0; i < 6; i++) {
    const int line = (i * THREADS + threadIdx.x) / 4;
    if (line < ROWS) {
      live[i] = from + line < to;
      src[i] = (const T*)p.x + (live[i] ? source(p, from + line) * p.k : 0) + chunk;
    } else {
      const int j = line - ROWS, c = DUAL ? col0 + j / 16 * 8 + j % 8 : col0 + j;
      live[i] = c < p.n;
      src[i] = (const T*)(DUAL && j / 8 % 2 ? p.up : p.w) + (live[i] ? ((long)expert * p.n + c) * p.k : 0) + chunk;
    }
  }
  auto issue = [&](int s) {
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
#pragma unroll
    for (int i = 0; i < 6; i++) {
      const int line = (i * THREADS + threadIdx.x) / 4;
      const bool on = live[i] && s < steps && s * BK + chunk < p.k;
      copy_async16(stage + line * LINE + chunk * 2, on ? src[i] + s * BK : (const T*)p.x, on);
    }
  };
  float d[2][8][4] = {};
  ring_products<T, ROWS, STAGES, STAGE, 64>(d, shared, steps, wr, wc, issue);
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int r = from + wr + i * 16 + g + half * 8;
      if (r >= to) continue;
#pragma unroll
      for (int j = 0; j < 8; j += DUAL ? 2 : 1)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int c = col0 + (DUAL ? (wc + j * 8) / 2 : wc + j * 8) + 2 * t + e;
          if (c >= p.n) continue;
          const float u = d[i][j][2 * half + e];
          ((T*)p.y)[(long)r * p.n + c] = from_float<T>(DUAL ? swiglu(u, d[i][j + (DUAL ? 1 : 0)][2 * half + e]) : u);
        }
    }
}

template <class T, bool DUAL> __device__ __forceinline__ void grouped_any(const Params& p) {
  constexpr int BK = 16;
  __shared__ float xs[BK][68], ws[BK][68];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, col0 = blockIdx.x * (DUAL ? 32 : 64);
  grid_wait();
  int expert, from, to;
  if (!rows_of(p, expert, from, to)) return;
  const int line = threadIdx.x / 4, kk = threadIdx.x % 4 * 4;
  // With DUAL, lines 4i and 4i+1 are a pair of w, 4i+2 and 4i+3 the same columns of up.
  const int c = DUAL ? col0 + line / 4 * 2 + line % 2 : col0 + line;
  const bool row = from + line < to, column = c < p.n;
  const T* x = (const T*)p.x + (row ? source(p, from + line) * p.k : 0);
  const T* w = (const T*)(DUAL && line % 4 > 1 ? p.up : p.w) + (column ? ((long)expert * p.n + c) * p.k : 0);
  float d[4][4] = {};
  for (int k0 = 0; k0 < p.k; k0 += BK) {
    float u[4], v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int k = k0 + kk + j;
      u[j] = row && k < p.k ? to_float(x[k]) : 0.f;
      v[j] = column && k < p.k ? to_float(w[k]) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; j++) xs[kk + j][line] = u[j], ws[kk + j][line] = v[j];
    __syncthreads();
#pragma unroll
    for (int s = 0; s < BK; s++) {
      const float4 a = *(const float4*)&xs[s][ty * 4], b = *(const float4*)&ws[s][tx * 4];
      const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) d[i][j] += av[i] * bv[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = from + ty * 4 + i;
    if (r >= to) continue;
#pragma unroll
    for (int j = 0; j < (DUAL ? 2 : 4); j++) {
      const int c = DUAL ? col0 + tx * 2 + j : col0 + tx * 4 + j;
      if (c < p.n) ((T*)p.y)[(long)r * p.n + c] = from_float<T>(DUAL ? swiglu(d[i][j], d[i][j + 2 * DUAL]) : d[i][j]);
    }
  }
}

#define TILES(T)                                                                                                               \
  extern "C" __global__ void __launch_bounds__(128) moe_grouped_##T(const __grid_constant__ Params p) { grouped<T, false>(p); } \
  extern "C" __global__ void __launch_bounds__(128) moe_grouped_##T##_swiglu(const __grid_constant__ Params p) { grouped<T, true>(p); }
#define ANY(T)                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) moe_grouped_any_##T(const __grid_constant__ Params p) { grouped_any<T, false>(p); } \
  extern "C" __global__ void __launch_bounds__(256) moe_grouped_any_##T##_swiglu(const __grid_constant__ Params p) { grouped_any<T, true>(p); }
TILES(bf16)
TILES(f16)
ANY(bf16)
ANY(f16)
ANY(f32)
