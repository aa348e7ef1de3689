// 8-bit floats: rounding to E4M3 and E5M2 as the native bodies do, and where the products of codes put their results.
//
// A code is that of x / step, one float division rounded to nearest, then rounded to nearest even with magnitudes beyond the
// largest finite value becoming that value; a NaN keeps its sign, and in E5M2 the top of its payload.
#pragma once
#include "element.cuh"

// Division by a step that many elements share. With r = 1/step rounded, one correction of x r gives the rounded quotient of every x
// of up to 11 bits, two that of every float (Markstein 1990), while nothing leaves the normal range; a zero keeps its sign. Magnitudes
// below the limit, which is 0 for steps at the ends of the range, are ordinary; infinite x and quotients become NaN.
template <class T> struct Divisor {
  float step, reciprocal, limit;
  __device__ __forceinline__ explicit Divisor(float s) : step(s), reciprocal(__frcp_rn(s)) {
    limit = s >= 0x1p-60f && s <= 0x1p60f ? 0x1p127f * fminf(s, 2.f) : 0.f;
  }
  __device__ __forceinline__ bool ordinary(float largest) const { return largest < limit; }
  __device__ __forceinline__ float divide(float x) const {
    float q = __fmul_rn(x, reciprocal);
    q = __fmaf_rn(-__fmaf_rn(q, step, -x), reciprocal, q);
    if (sizeof(T) == 4) q = __fmaf_rn(-__fmaf_rn(q, step, -x), reciprocal, q);
    return q;
  }
};

// Largest finite value, exponent field of the smallest normal, mantissa bits of a float that the format lacks.
template <bool E5M2> struct Fp8 {
  static constexpr float MAX = E5M2 ? 57344.f : 448.f;
  static constexpr uint32_t MIN_EXPONENT = (E5M2 ? 127 - 14 : 127 - 6) << 23, DROP = E5M2 ? 21 : 20, REBIAS = E5M2 ? (127 - 14) << 2 : (127 - 6) << 3;
};

template <bool E5M2> __device__ __forceinline__ uint32_t fp8_nan(float q) {
  const uint32_t u = __float_as_uint(q), sign = u >> 24 & 0x80;
  if (!E5M2) return sign | 0x7f;
  const uint32_t c = 0x7c | (u >> 21 & 3);
  return sign | (c == 0x7c ? 0x7e : c);
}

// The code of a quotient by bit arithmetic: adding 2^(e + DROP), e the exponent of |q| or that of the smallest normal, rounds
// it to units of the format.
template <bool E5M2> __device__ __forceinline__ uint32_t fp8_code(float q) {
  typedef Fp8<E5M2> F;
  const uint32_t u = __float_as_uint(q);
  uint32_t a = u & 0x7fffffff;
  if (a > 0x7f800000) return fp8_nan<E5M2>(q);
  a = min(a, __float_as_uint(F::MAX));
  const uint32_t e = max(a & 0x7f800000, F::MIN_EXPONENT), magic = e + (F::DROP << 23);
  const uint32_t units = __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(magic))) - magic;
  return (u >> 24 & 0x80) | ((e >> F::DROP) - F::REBIAS + units);
}

// Two codes, that of a in the low byte. The conversion of the hardware drops the sign and payload of a NaN: callers test with
// fp8_has_nan and code such elements by fp8_code.
template <bool E5M2> __device__ __forceinline__ uint32_t fp8_pair(float a, float b) {
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  if (E5M2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
  else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(b), "f"(a));
  return r;
#else
  return fp8_code<E5M2>(a) | fp8_code<E5M2>(b) << 8;
#endif
}
// Whether one of four codes of fp8_pair is a NaN: 0x7f in E4M3, above infinity's 0x7c in E5M2.
template <bool E5M2> __device__ __forceinline__ bool fp8_has_nan(uint32_t codes) { return ((codes & 0x7f7f7f7f) + (E5M2 ? 0x03030303 : 0x01010101)) & 0x80808080; }

// Four codes of x / step. What is rare is a call: unrolled copies of it would fill the instruction cache.
template <bool E5M2> __device__ __noinline__ uint32_t fp8_quad_any(float a, float b, float c, float d, float step) {
  const float x[4] = {a, b, c, d};
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) codes |= (x[i] != x[i] ? fp8_nan<E5M2>(x[i]) : fp8_code<E5M2>(__fdiv_rn(x[i], step))) << (8 * i);
  return codes;
}
template <bool E5M2> __device__ __forceinline__ uint32_t fp8_quad(const float* x, const Divisor<float>& d) {
  const uint32_t codes = fp8_pair<E5M2>(d.divide(x[0]), d.divide(x[1])) | fp8_pair<E5M2>(d.divide(x[2]), d.divide(x[3])) << 16;
  return d.limit == 0.f || fp8_has_nan<E5M2>(codes) ? fp8_quad_any<E5M2>(x[0], x[1], x[2], x[3], d.step) : codes;
}

// amax / max * 2^margin with native.FP8Step's bits, 1 where amax is 0, infinite or NaN. A quotient by 7 lies far from the middle of
// two floats, so one correction gives it; with a margin small ones are scaled up first.
template <bool E5M2> __device__ __forceinline__ float step_of(float amax, int margin) {
  if (!(amax > 0.f) || amax == __uint_as_float(0x7f800000)) return 1.f;
  const bool tiny = margin && amax < 0x1p-60f;
  if (tiny) amax *= 0x1p64f;
  constexpr float MOST = Fp8<E5M2>::MAX, PART = 1.f / MOST;
  float q = __fmul_rn(amax, PART);
  q = __fmaf_rn(-__fmaf_rn(q, MOST, -amax), PART, q);
  if (margin) q = scalbnf(q, margin - (tiny ? 64 : 0));
  return fminf(fmaxf(q, 0x1p-126f), 3.402823466e38f);
}

#if __CUDA_ARCH__ >= 890
// Two values of E4M3 codes, exact in either type; the low byte first.
template <class T> __device__ __forceinline__ uint32_t fp8_widen(uint16_t codes);
template <> __device__ __forceinline__ uint32_t fp8_widen<f16>(uint16_t codes) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(codes));
  return r;
}
template <> __device__ __forceinline__ uint32_t fp8_widen<bf16>(uint16_t codes) {
  const uint32_t h = fp8_widen<f16>(codes);
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&h));
  return pack2<bf16>(f.x, f.y);
}
#endif

// Steps of the operands of a product, x by rows and w by columns of the result. Those of row and column (or of the tensor:
// stride 0) multiply the finished sum; those that change along k multiply the partial sum of 128 k: of each row of x, and of
// each 128 rows of w. Nil pointers stand for 1.
struct Steps {
  const float *x, *w;    // x[r * x_row], w[c * w_row]
  const float *xk, *wk;  // xk[r * xk_row + k / 128], wk[c / 128 * wk_row + k / 128]
  int x_row, w_row, xk_row, wk_row;
};

// Where results go: + bias[N], + residual[M,N], then one rounding.
struct Sink {
  void* y;
  const void* bias;
  const void* residual;
  const float* step;  // of codes
  unsigned* amax;     // of codes, optional: the largest magnitude's bits, zero before
  long stride, residual_stride;
  int out;  // 0 bf16, 1 f16, 2 f32, 3 E4M3 codes
};

struct Codes {};
// A residual has the type of the result; codes take none.
template <class Out> struct Residual { typedef Out T; };
template <> struct Residual<Codes> { typedef bf16 T; };
template <class Out> __device__ __forceinline__ void put(const Sink& s, long i, float u) { ((Out*)s.y)[i] = from_float<Out>(u); }
template <> __device__ __forceinline__ void put<Codes>(const Sink& s, long i, float u) { ((uint8_t*)s.y)[i] = fp8_code<false>(__fdiv_rn(u, *s.step)); }
// Two neighbours to memory aligned to both.
template <class Out> __device__ __forceinline__ void put2(const Sink&, void* to, float u, float v) { *(uint32_t*)to = pack2<Out>(u, v); }
template <> __device__ __forceinline__ void put2<float>(const Sink&, void* to, float u, float v) { *(float2*)to = make_float2(u, v); }
template <> __device__ __forceinline__ void put2<Codes>(const Sink& s, void* to, float u, float v) {
  *(uint16_t*)to = fp8_code<false>(__fdiv_rn(u, *s.step)) | fp8_code<false>(__fdiv_rn(v, *s.step)) << 8;
}

// What every thread met, for the amax of codes.
__device__ __forceinline__ void put_amax(const Sink& s, float amax) {
  if (!s.amax) return;
  amax = warp_max(amax);
  if (threadIdx.x % 32 == 0) atomicMax(s.amax, __float_as_uint(amax));
}
