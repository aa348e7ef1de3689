// y[M,N] = x[M,K] w[N,K]^T with w in E4M3 on Hopper for M up to 64: see stream.cuh. A stage is 128 k, w 32 KB.
//
// fp8_stream_TYPE: x in bf16 or f16. w is widened in registers, which is exact, and multiplied from there as the rows of a
// 16-bit wgmma, or for few columns of mma.sync, with the same bits. So that one ldmatrix gives a thread what its fragment needs,
// the codes of every 16 k lie in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
// fp8_stream_e4m3: x in E4M3 too, w in its natural order; the partial sum of each 128 k is added up in f32 registers.
// fp8_stream_coding_TYPE: the same for M up to 8 with x in bf16 or f16, which each block codes for itself, a step for each row.
// With _alone in the name, a block has rows of its own; with _halves, for many rows, each warpgroup has of what two blocks share.
// With _block, w has a step for each 128 rows by 128 k, and partial sums of 128 k are scaled and added up. Epilogue: steps of rows and
// columns, + bias[N] (of the type of a 16-bit x, else f32), + residual[M,N] of the result's type, one rounding to bf16, f16 or f32; or
// to E4M3 codes with a step of their own and the amax of what was rounded. Rows aligned to 16 bytes. Shared memory: the ring. sm_90a
// only; empty elsewhere. It needs local memory: 40 bytes.
#include "stream.cuh"

#ifdef SEAFAN_HOPPER
template <int N> struct Count { static constexpr int value = N; };

// What the ways to multiply widened weights share. The codes of 16 rows by 32 k are one ldmatrix.
template <class T, bool BLOCKED> struct Widened {
  static constexpr int BK = 128, XTILES = 2;
  static constexpr bool STEPS = true, BLOCK = BLOCKED;
  typedef T Bias;
  template <class F> static __device__ __forceinline__ void dispatch(int out, F f) {
    if (out == 2) f(float(), float());
    else if (out == 3) f(Codes(), T());
    else f(T(), T());
  }
  // 64 k of a wgmma tile's rows of a warp, the first or the second.
  static __device__ __forceinline__ void read(uint32_t (&codes)[2][4], uint32_t tile, int half) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) ldmatrix4(codes[h], tile + (warp * 16 + lane % 16) * 128 + ((half * 4 + h * 2 + lane / 16) ^ (lane % 8)) * 16);
  }
  // The fragment of the first or the second 16 k of 32.
  static __device__ __forceinline__ void widen(uint32_t (&f)[4], const uint32_t (&codes)[4], int second) {
    const uint32_t upper = codes[2 * second], lower = codes[2 * second + 1];
    f[0] = fp8_widen<T>(upper), f[1] = fp8_widen<T>(lower), f[2] = fp8_widen<T>(upper >> 16), f[3] = fp8_widen<T>(lower >> 16);
  }
};

template <class T, int COLS, bool BLOCK> struct ByGroups : Widened<T, BLOCK> {
  typedef Widened<T, BLOCK> Base;
  static constexpr int READERS = 1;
  static constexpr bool LATE = !BLOCK && COLS < 64;            // 64 columns leave no registers for it
  static constexpr int AHEAD = BLOCK && COLS == 64 ? 1 : 4;     // quarters of a stage whose codes are read before the first is widened
  template <class Release, class OfW, class OfX>
  static __device__ __forceinline__ void step(float (&d)[2][COLS / 2], uint32_t w, uint32_t x, uint32_t second, Release release, OfW of_w, OfX) {
    uint32_t a[2][4][4], codes[AHEAD][2][4];
    auto read = [&](int n) { Base::read(codes[n % AHEAD], w + n / 2 * second, n % 2); };
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
        for (int j = 0; j < 4; j++) Base::widen(a[q][j], codes[(i * 2 + q) % AHEAD][j / 2], j % 2);
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

// By mma.sync, with the bits of wgmma. A warp waits for no other one, nor for its products before it widens what follows, but reads x
// itself.
template <class T, int COLS, bool BLOCK> struct ByWarps : Widened<T, BLOCK> {
  typedef Widened<T, BLOCK> Base;
  static constexpr int READERS = 4;
  static constexpr bool LATE = false;
  template <class Release, class OfW, class OfX>
  static __device__ __forceinline__ void step(float (&d)[2][COLS / 2], uint32_t w, uint32_t x, uint32_t second, Release release, OfW of_w, OfX) {
    const int lane = threadIdx.x % 32;
    auto multiply = [&](auto tiles) {
      constexpr int TILES = decltype(tiles)::value, EIGHTS = COLS / 8;
      float part[TILES][EIGHTS * 4];
      uint32_t codes[TILES * 2][2][4], b[2][EIGHTS][4];
      auto read_x = [&](int q) {  // 32 k
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) ldmatrix4(b[q % 2][j], x + q / 2 * COLS * 128 + (j * 8 + lane % 8) * 128 + ((q % 2 * 4 + lane / 8) ^ (lane % 8)) * 16);
      };
      read_x(0);
#pragma unroll
      for (int n = 0; n < 2 * TILES; n++) Base::read(codes[n], w + n / 2 * second, n % 2);
      if (BLOCK)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
          for (int j = 0; j < EIGHTS * 4; j++) part[i][j] = 0.f;
#pragma unroll
      for (int q = 0; q < 4; q++) {
        if (q < 3) read_x(q + 1);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
          for (int i = 0; i < TILES; i++) {
            uint32_t a[4];
            Base::widen(a, codes[i * 2 + q / 2][q % 2], e);
            float* const to = BLOCK ? part[i] : d[i];
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) mma16816<T>(*(float(*)[4])(to + 4 * j), a, b[q % 2][j][2 * e], b[q % 2][j][2 * e + 1]);
          }
      }
      __syncwarp();
      release();
      if (BLOCK)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
          for (int j = 0; j < EIGHTS * 4; j++) d[i][j] += of_w(i, j / 2 % 2) * part[i][j];
    };
    if (second) multiply(Count<2>());
    else multiply(Count<1>());
  }
};

template <int COLS, bool BLOCKED> struct Both {
  static constexpr bool BLOCK = BLOCKED;
  static constexpr int BK = 128, XTILES = 1, READERS = 1;
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
#pragma unroll
      for (int j = 0; j < COLS / 4; j++) {
        const int at = j / 2 * 4 + j % 2;
        d[i][at] += BLOCK ? of_x(j) * of_w(i, 0) * part[i][at] : part[i][at];
        d[i][at + 2] += BLOCK ? of_x(j) * of_w(i, 1) * part[i][at + 2] : part[i][at + 2];
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
#define WEIGHTS(T, COLS, FORM, NAME, ROWS, BLOCKS)                                \
  KERNEL(T##_##COLS##NAME, COLS, false, FORM, ROWS<T, COLS, false>)               \
  KERNEL(T##_##COLS##NAME##_swiglu, COLS, true, FORM, ROWS<T, COLS, false>)       \
  KERNEL(T##_##COLS##NAME##_block, COLS, false, FORM, BLOCKS<T, COLS, true>)      \
  KERNEL(T##_##COLS##NAME##_block_swiglu, COLS, true, FORM, BLOCKS<T, COLS, true>)
#define WEIGHTS_IN(T)                                  \
  WEIGHTS(T, 16, Turns, , ByWarps, ByWarps)            \
  WEIGHTS(T, 32, Turns, , ByGroups, ByWarps)           \
  WEIGHTS(T, 64, Turns, , ByGroups, ByGroups)          \
  WEIGHTS(T, 16, Halves, _halves, ByGroups, ByWarps)   \
  WEIGHTS(T, 32, Halves, _halves, ByGroups, ByWarps)   \
  WEIGHTS(T, 64, Halves, _halves, ByGroups, ByGroups)
#define BOTH(COLS)                                                          \
  KERNEL(e4m3_##COLS, COLS, false, Turns, Both<COLS, false>)                \
  KERNEL(e4m3_##COLS##_swiglu, COLS, true, Turns, Both<COLS, false>)        \
  KERNEL(e4m3_##COLS##_alone, COLS, false, Alone, Both<COLS, false>)        \
  KERNEL(e4m3_##COLS##_alone_swiglu, COLS, true, Alone, Both<COLS, false>)  \
  KERNEL(e4m3_##COLS##_block, COLS, false, Turns, Both<COLS, true>)         \
  KERNEL(e4m3_##COLS##_block_swiglu, COLS, true, Turns, Both<COLS, true>)   \
  KERNEL(e4m3_##COLS##_halves_block, COLS, false, Halves, Both<COLS, true>) \
  KERNEL(e4m3_##COLS##_halves_block_swiglu, COLS, true, Halves, Both<COLS, true>)
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
WEIGHTS_IN(bf16)
WEIGHTS_IN(f16)
BOTH(16)
BOTH(32)
BOTH(64)
CODINGS(bf16)
CODINGS(f16)
