// E4M3 codes with a step: value = step * code.
#pragma once
#include <cuda_fp8.h>
#include "element.cuh"

struct e4m3 {
  uint8_t code;
};

__device__ __forceinline__ float to_float(e4m3 x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.code, __NV_E4M3))); }

// Code of x / step: to nearest even, saturating; a NaN keeps the sign of x.
__device__ __forceinline__ e4m3 to_e4m3(float x, float step) {
  const float q = __fdiv_rn(x, step);
  e4m3 c{(uint8_t)__nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E4M3)};
  if (q != q) c.code = 0x7f | (__float_as_uint(x) >> 24 & 0x80);
  return c;
}
