// y[M,N] = x[M,K] w[N,K]^T with w in E4M3 on Hopper for M up to 64: see stream.cuh. A stage is 128 k, w 32 KB.
//
// fp8_stream_TYPE: x in bf16 or f16. w is widened in registers, which is exact, and multiplied from there as the rows of a
// 16-bit wgmma. So that one ldmatrix gives a thread what its fragment needs, the codes of every 16 k lie in the order 0 1 8 9
// 2 3 10 11 4 5 12 13 6 7 14 15.
// fp8_stream_e4m3: x in E4M3 too, w in its natural order; the partial sum of each 128 k is added up in f32 registers.
// fp8_stream_coding_TYPE: the same for M up to 8 with x in bf16 or f16, which each block codes for itself, a step for each row.
// With _alone in the name, a block has rows of its own; with _halves, for many rows, each warpgroup has of what two blocks share.
// With _block, w has a step for each 128 rows by 128 k, and partial sums of 128 k are scaled and added up. Epilogue: steps of rows and
// columns, + bias[N] (of the type of a 16-bit x, else f32), + residual[M,N] of the result's type, one rounding to bf16, f16 or f32; or
// to E4M3 codes with a step of their own and the amax of what was rounded. Rows aligned to 16 bytes. Shared memory: the ring. sm_90a
// only; empty elsewhere. It needs local memory: 40 bytes.
#include "stream.cuh"

#ifdef SEAFAN_HOPPER
template <class T, int COLS, bool BLOCK> struct Weights {
  static constexpr int BK = 128, XTILES = 2;
  static constexpr bool STEPS = true, LATE = !BLOCK && COLS < 64;  // 64 columns leave no registers for it
  static constexpr int AHEAD = BLOCK && COLS == 64 ? 1 : 4;     // quarters of a stage whose codes are read before the first is widened
  typedef T Bias;
  template <class F> static __device__ __forceinline__ void dispatch(int out, F f) {
    if (out == 2) f(float(), float());
    else if (out == 3) f(Codes(), T());
    else f(T(), T());
  }
  template <class Release, class OfW, class OfX>
  static __device__ __forceinline__ void step(float (&d)[2][COLS / 2], uint32_t w, uint32_t x, uint32_t second, Release release, OfW of_w, OfX of_x) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    uint32_t a[2][4][4], codes[AHEAD][2][4];
    auto read = [&](int n) {  // 64 k of wgmma tile n / 2
      const uint32_t row = w + n / 2 * second + (warp * 16 + lane % 16) * 128;
#pragma unroll
      for (int h = 0; h < 2; h++) ldmatrix4(codes[n % AHEAD][h], row + ((n % 2 * 4 + h * 2 + lane / 16) ^ (lane % 8)) * 16);
    };
    if (AHEAD > 1)
#pragma unroll
      for (int n = 0; n < AHEAD; n++)
        if (n < 2 || second) read(n);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (i && !second) break;
      float part[COLS / 2];
#pragma unroll
      for (int q = 0; q < 2; q++) {
        if (LATE || !BLOCK && i) wgmma_wait<1>();  // the fragments of two groups ago are free
        if (LATE && i == 0 && q == 1) release();
        if (AHEAD == 1) read(i * 2 + q);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const uint32_t(&from)[4] = codes[(i * 2 + q) % AHEAD][h];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            uint32_t(&f)[4] = a[q][2 * h + e];
            f[0] = fp8_widen<T>(from[2 * e]), f[1] = fp8_widen<T>(from[2 * e + 1]);
            f[2] = fp8_widen<T>(from[2 * e] >> 16), f[3] = fp8_widen<T>(from[2 * e + 1] >> 16);
          }
        }
        float(&to)[COLS / 2] = BLOCK ? part : d[i];
        wgmma_pin(a[q]);
        wgmma_pin(to);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) WgmmaRegister<T, COLS>::mixed(to, a[q][j], descriptor(x + q * COLS * 128 + j * 32), BLOCK ? q | j : 1);
        wgmma_commit();
        wgmma_pin(to);
        wgmma_pin(a[q]);
      }
      if (BLOCK) {
        wgmma_wait<0>();
        wgmma_pin(part);
        if (i == 1 || !second) release();
        const float f[2] = {of_w(i, 0), of_w(i, 1)};
#pragma unroll
        for (int j = 0; j < COLS / 2; j++) d[i][j] += f[j / 2 % 2] * part[j];
      }
    }
    if (!BLOCK && !LATE) {
      wgmma_wait<0>();
      wgmma_pin(d[0]);
      wgmma_pin(d[1]);
      release();
    }
  }
};

template <int COLS, bool BLOCK> struct Both {
  static constexpr int BK = 128, XTILES = 1;
  static constexpr bool STEPS = true, LATE = false;
  typedef float Bias;
  template <class F> static __device__ __forceinline__ void dispatch(int out, F f) {
    if (out == 0) f(bf16(), bf16());
    else if (out == 1) f(f16(), f16());
    else if (out == 2) f(float(), float());
    else f(Codes(), bf16());
  }
  template <class Release, class OfW, class OfX>
  static __device__ __forceinline__ void step(float (&d)[2][COLS / 2], uint32_t w, uint32_t x, uint32_t second, Release release, OfW of_w, OfX of_x) {
    float part[2][COLS / 2];
    auto multiply = [&](int i) {
#pragma unroll
      for (int j = 0; j < 4; j++) Wgmma8<e4m3, e4m3, COLS>::shared(part[i], descriptor(w + i * second + j * 32), descriptor(x + j * 32), j);
      wgmma_commit();
      wgmma_pin(part[i]);
    };
    auto add = [&](int i) {
      const float f[2] = {BLOCK ? of_w(i, 0) : 1.f, BLOCK ? of_w(i, 1) : 1.f};
#pragma unroll
      for (int j = 0; j < COLS / 4; j++) {
        const float fx = BLOCK ? of_x(j) : 1.f;
        const int at = j / 2 * 4 + j % 2;
        d[i][at] += BLOCK ? fx * f[0] * part[i][at] : part[i][at];
        d[i][at + 2] += BLOCK ? fx * f[1] * part[i][at + 2] : part[i][at + 2];
      }
    };
    wgmma_fence();
    multiply(0);
    if (second) {
      multiply(1);
      if (!BLOCK) {
        wgmma_wait<1>();
        wgmma_pin(part[0]);
        add(0);
      }
      wgmma_wait<0>();
      wgmma_pin(part[1]);
      release();
      if (BLOCK) {
        wgmma_pin(part[0]);
        add(0);
      }
      add(1);
    } else {
      wgmma_wait<0>();
      wgmma_pin(part[0]);
      release();
      add(0);
    }
  }
};
#define BODY(COLS, DUAL, FORM, ...) stream<__VA_ARGS__, COLS, DUAL, FORM>(x, w, p)
#else
#define BODY(COLS, DUAL, FORM, ...)
#endif

#define KERNEL(NAME, COLS, DUAL, FORM, ...)                                                                     \
  extern "C" __global__ void __launch_bounds__(320, 1) fp8_stream_##NAME(const __grid_constant__ CUtensorMap x, \
                                                                         const __grid_constant__ CUtensorMap w, \
                                                                         const __grid_constant__ Params p) {    \
    BODY(COLS, DUAL, FORM, __VA_ARGS__);                                                                        \
  }
#define WEIGHTS_IN(T, COLS, FORM, NAME)                                             \
  KERNEL(T##_##COLS##NAME, COLS, false, FORM, Weights<T, COLS, false>)              \
  KERNEL(T##_##COLS##NAME##_swiglu, COLS, true, FORM, Weights<T, COLS, false>)      \
  KERNEL(T##_##COLS##NAME##_block, COLS, false, FORM, Weights<T, COLS, true>)       \
  KERNEL(T##_##COLS##NAME##_block_swiglu, COLS, true, FORM, Weights<T, COLS, true>)
#define WEIGHTS(T, COLS)               \
  WEIGHTS_IN(T, COLS, Turns, )         \
  WEIGHTS_IN(T, COLS, Halves, _halves)
#define BOTH(COLS)                                                         \
  KERNEL(e4m3_##COLS, COLS, false, Turns, Both<COLS, false>)               \
  KERNEL(e4m3_##COLS##_swiglu, COLS, true, Turns, Both<COLS, false>)       \
  KERNEL(e4m3_##COLS##_alone, COLS, false, Alone, Both<COLS, false>)       \
  KERNEL(e4m3_##COLS##_alone_swiglu, COLS, true, Alone, Both<COLS, false>) \
  KERNEL(e4m3_##COLS##_block, COLS, false, Turns, Both<COLS, true>)        \
  KERNEL(e4m3_##COLS##_block_swiglu, COLS, true, Turns, Both<COLS, true>)
#define CODING(T, NAME, DUAL, FORM)                                                                                    \
  extern "C" __global__ void __launch_bounds__(320, 1) fp8_stream_coding_##NAME(const __grid_constant__ CUtensorMap w, \
                                                                                const __grid_constant__ Rows<T> x,     \
                                                                                const __grid_constant__ Params p) {    \
    BODY(16, DUAL, FORM, Both<16, false>);                                                                             \
  }
#define CODINGS(T)                            \
  CODING(T, T##_16, false, Turns)             \
  CODING(T, T##_16_swiglu, true, Turns)       \
  CODING(T, T##_16_alone, false, Alone)       \
  CODING(T, T##_16_alone_swiglu, true, Alone)
WEIGHTS(bf16, 16)
WEIGHTS(bf16, 32)
WEIGHTS(bf16, 64)
WEIGHTS(f16, 16)
WEIGHTS(f16, 32)
WEIGHTS(f16, 64)
BOTH(16)
BOTH(32)
BOTH(64)
CODINGS(bf16)
CODINGS(f16)
