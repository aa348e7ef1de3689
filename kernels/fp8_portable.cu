// y[M,N] = x[M,K] w[N,K]^T of 8-bit floats in any mix on every GPU from sm_89: mma.sync fed by cp.async.
//
// A block owns ROWS rows of x and 128 rows of w; 4 or 8 warps, each a part of 32 rows by 64 columns (ROWS 128) or 32 by 32
// (ROWS 32). A ring of stages of 64 k in shared memory, rows of 64 bytes padded to 80, so that ldmatrix meets no bank
// conflict. Sums of 128 k are added up in f32 registers, scaled with BLOCK by the steps of 1 x 128 of x and 128 x 128 of w.
// With DUAL, w is [2F,K], the block's columns are half of its first half and half of its second, interleaved by 8:
// y[M,F] = silu(first) * second. Epilogue as in fp8_gemm_sm90.cu, by one loop over sums that lie where the stages lay. Rows
// aligned to 16 bytes. Empty on sm_80. It needs local memory: 40 bytes.
// fp8_portable_exact: codes become f16 in registers, whose products and sums keep what those of codes drop (the tensor cores add
// 8-bit floats up in 14 bits), and the gate takes an exact exponential: for results in f32.
#include "fp8.cuh"
#include "mma.cuh"

namespace {
struct Params {
  Sink sink;
  Steps steps;
  const uint8_t* x;
  const uint8_t* w;
  long x_stride, w_stride;  // bytes
  int m, n, k;              // n counts columns of y
};

struct e4m3 {};
struct e5m2 {};
#if __CUDA_ARCH__ >= 890
// The first `bytes` of 16 to shared memory, zeros behind them.
__device__ __forceinline__ void copy_async(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
template <class A, class B> struct Mma {
  static __device__ __forceinline__ void codes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
};
#define MMA(A, B)                                                                                                                             \
  template <> __device__ __forceinline__ void Mma<A, B>::codes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {             \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." #A "." #B ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"              \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                                             \
  }
MMA(e4m3, e4m3)
MMA(e4m3, e5m2)
MMA(e5m2, e4m3)
MMA(e5m2, e5m2)
template <class A> __device__ __forceinline__ uint32_t half2_of(uint32_t codes);
template <> __device__ __forceinline__ uint32_t half2_of<e4m3>(uint32_t codes) { return fp8_widen<f16>(codes); }
template <> __device__ __forceinline__ uint32_t half2_of<e5m2>(uint32_t codes) {
  uint32_t r;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"((uint16_t)codes));
  return r;
}
// The same product by halves of the fragments: the first two of each four codes are k 0..7 of the f16 product and the others 8..15.
template <class A, class B> __device__ __forceinline__ void exact(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t lo = a[2 * i], hi = a[2 * i + 1], b = i ? b1 : b0;
    const uint32_t f[4] = {half2_of<A>(lo), half2_of<A>(hi), half2_of<A>(lo >> 16), half2_of<A>(hi >> 16)};
    mma16816<f16>(c, f, half2_of<B>(b), half2_of<B>(b >> 16));
  }
}
#endif
}  // namespace

template <class A, class B, int ROWS, int THREADS, int STAGES, bool DUAL, bool BLOCK, bool EXACT> __device__ __forceinline__ void gemm(const Params& p) {
#if __CUDA_ARCH__ >= 890
  constexpr int COLS = 128, BK = 64, LINE = 80, STAGE = (ROWS + COLS) * LINE, WARPS = THREADS / 32;
  constexpr int WARP_ROWS = 32, WARPS_M = ROWS / WARP_ROWS, WARPS_N = WARPS / WARPS_M, WARP_COLS = COLS / WARPS_N, TILES = WARP_COLS / 8;
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
      const int part = i * THREADS + threadIdx.x, line = part / 4, chunk = part % 4, k = k0 + chunk * 16;
      const uint8_t* src;
      bool live = k < p.k && s < steps;
      if (line < ROWS) {
        live = live && row0 + line < p.m;
        src = p.x + (long)(row0 + line) * p.x_stride + k;
      } else {
        const int c = DUAL ? col0 + (line - ROWS) / 16 * 8 + (line - ROWS) % 8 : col0 + line - ROWS;
        live = live && c < p.n;
        src = p.w + (long)w_row(line - ROWS) * p.w_stride + k;
      }
      copy_async(stage + line * LINE + chunk * 16, live ? src : p.x, live ? min(16, p.k - k) : 0);
    }
  };
  float d[2][TILES][4] = {}, sum[2][TILES][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    issue(s);
    copy_commit();
  }
  for (int s = 0; s < steps; s++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (s + STAGES - 1 < steps) issue(s + STAGES - 1);
    copy_commit();
    const uint32_t stage = shared_address(shared) + s % STAGES * STAGE;
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) ldmatrix4(a[i], stage + (wr + i * 16 + lane % 16) * LINE + kk * 32 + lane / 16 * 16);
#pragma unroll
      for (int j = 0; j < WARP_COLS / 16; j++) {
        uint32_t b[4];
        ldmatrix4(b, stage + (ROWS + wc + j * 16 + (lane & 7) + (lane >> 4) * 8) * LINE + kk * 32 + (lane >> 3 & 1) * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if (EXACT) {
            exact<A, B>(d[i][2 * j], a[i], b[0], b[1]);
            exact<A, B>(d[i][2 * j + 1], a[i], b[2], b[3]);
          } else {
            Mma<A, B>::codes(d[i][2 * j], a[i], b[0], b[1]);
            Mma<A, B>::codes(d[i][2 * j + 1], a[i], b[2], b[3]);
          }
        }
      }
    }
    if (s % 2 == 0 && s + 1 < steps) continue;
    const int block = s / 2;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
      float fw = 1.f;
      if (BLOCK && p.steps.wk) {
        const int c = DUAL ? col0 + (wc + j * 8) / 16 * 8 : col0 + wc + j * 8;
        fw = c < p.n ? p.steps.wk[(long)((c + (DUAL && j % 2 ? p.n : 0)) / 128) * p.steps.wk_row + block] : 0.f;
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float f = fw;
          if (BLOCK && p.steps.xk) f *= p.steps.xk[(long)min(row0 + wr + i * 16 + g + e / 2 * 8, p.m - 1) * p.steps.xk_row + block];
          sum[i][j][e] += BLOCK ? f * d[i][j][e] : d[i][j][e];
          d[i][j][e] = 0.f;
        }
    }
  }
  copy_wait<0>();
  __syncthreads();
  // The sums take the place of the stages, so that one loop ends a tile whatever it writes: unrolled for each type, ends were most of 12
  // MB of PTX, a minute for a driver that compiles it.
  constexpr int ACROSS = COLS + 4, WIDTH = DUAL ? COLS / 2 : COLS;
  static_assert(ROWS * ACROSS * (int)sizeof(float) <= STAGES * STAGE, "sums fit");
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < TILES; j++)
        *reinterpret_cast<float2*>(sums + (wr + i * 16 + g + half * 8) * ACROSS + wc + j * 8 + 2 * t) = make_float2(sum[i][j][2 * half], sum[i][j][2 * half + 1]);
  __syncthreads();
  const int c = threadIdx.x % WIDTH, n = col0 + c;
  float amax = 0.f;
  auto finish = [&](auto out) {
    typedef decltype(out) Out;
    if (n >= p.n) return;
    const float fw = p.steps.w ? p.steps.w[(long)n * p.steps.w_row] : 1.f, fv = DUAL && p.steps.w ? p.steps.w[(long)(p.n + n) * p.steps.w_row] : 1.f;
#pragma unroll 2
    for (int i = threadIdx.x / WIDTH; i < min(ROWS, p.m - row0); i += THREADS / WIDTH) {
      const long r = row0 + i;
      const float fx = p.steps.x ? p.steps.x[r * p.steps.x_row] : 1.f;
      const float* at = sums + i * ACROSS + (DUAL ? c / 8 * 16 + c % 8 : c);
      float u = at[0] * (fx * fw);
      if (DUAL) u = u / (1.f + (EXACT ? expf(-u) : __expf(-u))) * (at[8] * (fx * fv));
      if (p.sink.bias) u += ((const float*)p.sink.bias)[n];
      if (p.sink.residual) u += to_float(((const typename Residual<Out>::T*)p.sink.residual)[r * p.sink.residual_stride + n]);
      amax = fmaxf(amax, fabsf(u));
      put<Out>(p.sink, r * p.sink.stride + n, u);
    }
  };
  if (p.sink.out == 0) finish(bf16());
  else if (p.sink.out == 1) finish(f16());
  else if (p.sink.out == 2) finish(float());
  else finish(Codes());
  put_amax(p.sink, amax);
#endif
}

#define KERNEL(A, B, ROWS, THREADS, STAGES, DUAL, BLOCK, NAME)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS) fp8_portable_##A##_##B##_##NAME(const __grid_constant__ Params p) {         \
    gemm<A, B, ROWS, THREADS, STAGES, DUAL, BLOCK, false>(p);                                                                       \
  }                                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS) fp8_portable_exact_##A##_##B##_##NAME(const __grid_constant__ Params p) {   \
    gemm<A, B, ROWS, THREADS, STAGES, DUAL, BLOCK, true>(p);                                                                        \
  }
#define PORTABLE(A, B)                                      \
  KERNEL(A, B, 128, 256, 4, false, false, 128)              \
  KERNEL(A, B, 128, 256, 4, false, true, 128_block)         \
  KERNEL(A, B, 32, 128, 6, false, false, 32)                \
  KERNEL(A, B, 32, 128, 6, false, true, 32_block)
PORTABLE(e4m3, e4m3)
PORTABLE(e4m3, e5m2)
PORTABLE(e5m2, e4m3)
PORTABLE(e5m2, e5m2)
KERNEL(e4m3, e4m3, 128, 256, 4, true, false, 128_swiglu)
KERNEL(e4m3, e4m3, 128, 256, 4, true, true, 128_block_swiglu)
KERNEL(e4m3, e4m3, 32, 128, 6, true, false, 32_swiglu)
KERNEL(e4m3, e4m3, 32, 128, 6, true, true, 32_block_swiglu)
