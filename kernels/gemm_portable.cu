// y[M,N] = x[M,K] w[N,K]^T on every GPU from sm_80: mma.sync fed by cp.async for bf16 and f16, FMA for f32.
//
// mma.sync: a block owns ROWS rows of x and 128 rows of w; 4 or 8 warps, each a part of 32 rows by 64 columns (ROWS 128) or
// 32 by 32 (ROWS 32). A ring of stages of 32 k in shared memory, rows of 64 bytes padded to 80, so that ldmatrix meets no
// bank conflict. FMA: a block of 256 threads owns 64 by 64, a thread 4 by 4, in steps of 16 k.
// With DUAL, w is [2F,K], the block's columns are half of its first half and half of its second, interleaved by 8 so that a
// thread holds both of a pair: y[M,F] = silu(first) * second. Epilogue: + bias[N], + residual[M,N], one rounding or f32.
// K a multiple of 8 (f32: 4), rows aligned to 16 bytes.
#include "mma_ring.cuh"

namespace {
struct Params {
  void* y;
  const void* x;
  const void* w;
  const void* bias;
  const void* residual;
  long x_stride, w_stride, y_stride, residual_stride;  // elements
  int m, n, k;                                         // n counts columns of y
  int f32_out;
};

template <class T> __device__ __forceinline__ void put(const Params& p, long r, int c, float u) {
  if (p.bias) u += to_float(((const T*)p.bias)[c]);
  if (p.residual) u += to_float(((const T*)p.residual)[r * p.residual_stride + c]);
  if (p.f32_out) ((float*)p.y)[r * p.y_stride + c] = u;
  else ((T*)p.y)[r * p.y_stride + c] = from_float<T>(u);
}
__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.f + __expf(-gate)) * up; }
}  // namespace

template <class T, int ROWS, int THREADS, int STAGES, bool DUAL> __device__ __forceinline__ void gemm(const Params& p) {
  constexpr int COLS = 128, BK = 32, LINE = 80, STAGE = (ROWS + COLS) * LINE, WARPS = THREADS / 32;
  constexpr int WARP_ROWS = 32, WARPS_M = ROWS / WARP_ROWS, WARPS_N = WARPS / WARPS_M, WARP_COLS = COLS / WARPS_N;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row0 = blockIdx.y * ROWS, col0 = blockIdx.x * (DUAL ? COLS / 2 : COLS);
  const int wr = warp % WARPS_M * WARP_ROWS, wc = warp / WARPS_M * WARP_COLS;
  const int steps = (p.k + BK - 1) / BK;
  grid_wait();
  // The row of w behind line i of the tile.
  auto w_row = [&](int i) { return DUAL ? (i / 8 % 2 ? p.n : 0) + col0 + i / 16 * 8 + i % 8 : col0 + i; };
  auto issue = [&](int s) {
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
    const int k0 = s * BK;
#pragma unroll
    for (int i = 0; i < (ROWS + COLS) * 4 / THREADS; i++) {
      const int part = i * THREADS + threadIdx.x, line = part / 4, chunk = part % 4, k = k0 + chunk * 8;
      const T* src;
      bool live = k < p.k && s < steps;
      if (line < ROWS) {
        live = live && row0 + line < p.m;
        src = (const T*)p.x + (long)(row0 + line) * p.x_stride + k;
      } else {
        const int c = DUAL ? col0 + (line - ROWS) / 16 * 8 + (line - ROWS) % 8 : col0 + line - ROWS;
        live = live && c < p.n;
        src = (const T*)p.w + (long)w_row(line - ROWS) * p.w_stride + k;
      }
      copy_async16(stage + line * LINE + chunk * 16, live ? src : (const T*)p.x, live);
    }
  };
  float d[2][WARP_COLS / 8][4] = {};
  ring_products<T, ROWS, STAGES, STAGE, WARP_COLS>(d, shared, steps, wr, wc, issue);
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int r = row0 + wr + i * 16 + g + half * 8;
      if (r >= p.m) continue;
#pragma unroll
      for (int j = 0; j < WARP_COLS / 8; j += DUAL ? 2 : 1)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int c = col0 + (DUAL ? (wc + j * 8) / 2 : wc + j * 8) + 2 * t + e;
          if (c >= p.n) continue;
          const float u = d[i][j][2 * half + e];
          put<T>(p, r, c, DUAL ? swiglu(u, d[i][j + (DUAL ? 1 : 0)][2 * half + e]) : u);
        }
    }
}

template <bool DUAL> __device__ __forceinline__ void gemm_f32(const Params& p) {
  constexpr int BK = 16;
  __shared__ float xs[BK][68], ws[BK][68];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, row0 = blockIdx.y * 64, col0 = blockIdx.x * (DUAL ? 32 : 64);
  const float* x = (const float*)p.x;
  const float* w = (const float*)p.w;
  float d[4][4] = {};
  grid_wait();
  for (int k0 = 0; k0 < p.k; k0 += BK) {
    const int line = threadIdx.x / 4, k = k0 + threadIdx.x % 4 * 4;
    float4 u = make_float4(0, 0, 0, 0), v = u;
    if (k < p.k && row0 + line < p.m) u = *(const float4*)(x + (long)(row0 + line) * p.x_stride + k);
    // With DUAL, lines 4i and 4i+1 are a pair of the first half, 4i+2 and 4i+3 the same columns of the second.
    const int c = DUAL ? col0 + line / 4 * 2 + line % 2 : col0 + line, wr = DUAL && line % 4 > 1 ? p.n + c : c;
    if (k < p.k && c < p.n) v = *(const float4*)(w + (long)wr * p.w_stride + k);
    __syncthreads();
    const int kk = threadIdx.x % 4 * 4;
    xs[kk][line] = u.x, xs[kk + 1][line] = u.y, xs[kk + 2][line] = u.z, xs[kk + 3][line] = u.w;
    ws[kk][line] = v.x, ws[kk + 1][line] = v.y, ws[kk + 2][line] = v.z, ws[kk + 3][line] = v.w;
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
    const int r = row0 + ty * 4 + i;
    if (r >= p.m) continue;
#pragma unroll
    for (int j = 0; j < (DUAL ? 2 : 4); j++) {
      const int c = DUAL ? col0 + tx * 2 + j : col0 + tx * 4 + j;
      if (c < p.n) put<float>(p, r, c, DUAL ? swiglu(d[i][j], d[i][j + 2 * DUAL]) : d[i][j]);
    }
  }
}

#define PORTABLE(T, ROWS, THREADS, STAGES)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) gemm_portable_##T##_##ROWS(const __grid_constant__ Params p) {        \
    gemm<T, ROWS, THREADS, STAGES, false>(p);                                                                                 \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS) gemm_portable_##T##_##ROWS##_swiglu(const __grid_constant__ Params p) { \
    gemm<T, ROWS, THREADS, STAGES, true>(p);                                                                                  \
  }
PORTABLE(bf16, 128, 256, 4)
PORTABLE(bf16, 32, 128, 6)
PORTABLE(f16, 128, 256, 4)
PORTABLE(f16, 32, 128, 6)
extern "C" __global__ void __launch_bounds__(256) gemm_portable_f32(const __grid_constant__ Params p) { gemm_f32<false>(p); }
extern "C" __global__ void __launch_bounds__(256) gemm_portable_f32_swiglu(const __grid_constant__ Params p) { gemm_f32<true>(p); }
