// y[M,N] = x[M,K] w[N,K]^T in bf16 and f16 on Hopper for M up to 64: see stream.cuh. A stage is 64 k.
//
// Epilogue: + bias[N], + residual[M,N], one rounding (or f32 out). K a multiple of 8, rows aligned to 16 bytes. Shared memory: the
// ring and 768 bytes a token. With _alone in the name, a block has rows of its own. sm_90a only; empty elsewhere.
#include "stream.cuh"

#ifdef SEAFAN_HOPPER
template <class T, int COLS> struct Plain {
  static constexpr int BK = 64, XTILES = 1, READERS = 1;
  static constexpr bool STEPS = false, BLOCK = false, LATE = false;
  typedef T Bias;
  template <class F> static __device__ __forceinline__ void dispatch(int out, F f) {
    if (out == 2) f(float(), T()); else f(T(), T());
  }
  template <class Release, class OfW, class OfX>
  static __device__ __forceinline__ void step(float (&d)[2][COLS / 2], uint32_t w, uint32_t x, uint32_t second, Release release, OfW, OfX) {
    wgmma_pin(d[0]);
    wgmma_pin(d[1]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (i && !second) break;
#pragma unroll
      for (int j = 0; j < 4; j++) Wgmma<T, COLS, 0>::shared(d[i], descriptor(w + i * second + j * 32), descriptor(x + j * 32), 1);
    }
    wgmma_commit();
    wgmma_pin(d[0]);
    wgmma_pin(d[1]);
    wgmma_wait<0>();
    wgmma_pin(d[0]);
    wgmma_pin(d[1]);
    release();
  }
};
#define BODY(T, COLS, DUAL, FORM) stream<Plain<T, COLS>, COLS, DUAL, FORM>(x, w, p)
#else
#define BODY(T, COLS, DUAL, FORM)
#endif

#define KERNEL(T, COLS, DUAL, FORM, NAME)                                                                               \
  extern "C" __global__ void __launch_bounds__(320, 1) gemm_stream_sm90_##T##_##COLS##NAME(                             \
      const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const __grid_constant__ Params p) { \
    BODY(T, COLS, DUAL, FORM);                                                                                          \
  }
#define STREAM(T, COLS)                  \
  KERNEL(T, COLS, false, Turns, )        \
  KERNEL(T, COLS, false, Alone, _alone)  \
  KERNEL(T, COLS, true, Turns, _swiglu)
#define STREAMS(T) \
  STREAM(T, 8)     \
  STREAM(T, 16)    \
  STREAM(T, 32)    \
  STREAM(T, 64)
STREAMS(bf16)
STREAMS(f16)
