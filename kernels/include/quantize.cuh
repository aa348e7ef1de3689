// Eight neighbours at a time to codes of 8-bit floats, by a step that many share: what every kernel that gives codes does.
//
// Ordinary elements take the quick way: a product with the reciprocal, corrected to the rounded quotient. NaN, infinities, steps at
// the ends of the range and quotients beyond it are found by the largest magnitude of all that a thread holds, and take another way.
#pragma once
#include "fp8.cuh"

template <class T> struct Eight {
  Pack<T> p[sizeof(T) / 2];
};

// Elements 2 j and 2 j + 1.
__device__ __forceinline__ float2 two(const Eight<float>& e, int j) { return make_float2(e.p[j / 2].v[j % 2 * 2], e.p[j / 2].v[j % 2 * 2 + 1]); }
__device__ __forceinline__ float2 two(const Eight<f16>& e, int j) { return __half22float2(reinterpret_cast<const __half2*>(&e.p[0])[j]); }
__device__ __forceinline__ float2 two(const Eight<bf16>& e, int j) {
  const uint32_t w = reinterpret_cast<const uint32_t*>(&e.p[0])[j];
  return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000));
}

template <class T> __device__ __forceinline__ void set_two(Eight<T>& e, int j, float a, float b) {
  if constexpr (sizeof(T) == 4) e.p[j / 2].v[j % 2 * 2] = a, e.p[j / 2].v[j % 2 * 2 + 1] = b;
  else reinterpret_cast<uint32_t*>(&e.p[0])[j] = pack2<T>(a, b);
}

// Elements stay packed up to here, for the sake of registers.
template <class T> __device__ __forceinline__ void keep_packed(Eight<T>& e) {
  uint32_t* w = (uint32_t*)&e.p[0];
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) * 2; i++) asm volatile("" : "+r"(w[i]));
}

// The conversion of the hardware drops sign and payload of an f16 NaN.
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(bf16 x) { return to_float(x); }
__device__ __forceinline__ float wide(f16 x) {
  const uint32_t u = __half_as_ushort(x);
  return (u & 0x7fff) > 0x7c00 ? __uint_as_float((u & 0x8000) << 16 | 0x7f800000 | (u & 0x3ff) << 13) : to_float(x);
}

// The first `left` of eight elements, zeros behind them. Whole: there are none or eight, aligned to 16 bytes.
template <class T> __device__ __forceinline__ Eight<T> load8(const T* p, int left, bool whole) {
  Eight<T> e = {};
  if (whole) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++)
      if (left > 0) e.p[i] = load16(p + i * Pack<T>::N);
    return e;
  }
  if constexpr (sizeof(T) == 2) {
    uint64_t half[2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll 1
      for (int j = 0; j < 4 && 4 * h + j < left; j++) half[h] |= (uint64_t)((const uint16_t*)p)[4 * h + j] << (16 * j);
    *(ulonglong2*)&e.p[0] = make_ulonglong2(half[0], half[1]);
  } else {
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (j < left) e.p[j / Pack<T>::N].v[j % Pack<T>::N] = p[j];
  }
  return e;
}

// The same to shared memory, without registers on the way where that is whole; there when fetched() returns.
template <class T> __device__ __forceinline__ void fetch8(Eight<T>* to, const T* p, int left, bool whole) {
  if (!whole) {
    *to = load8(p, left, false);
    return;
  }
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) / 2; i++)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to->p + i)), "l"(p + i * Pack<T>::N), "r"(left > 0 ? 16 : 0) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// In groups: what is fetched up to here is one, and all but the last N are there.
__device__ __forceinline__ void fetches_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void fetched_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void store8(uint8_t* row, long c, long cols, bool aligned, uint2 codes) {
  if (aligned && c + 8 <= cols) {
    *(uint2*)(row + c) = codes;
    return;
  }
  const uint64_t all = codes.x | (uint64_t)codes.y << 32;
#pragma unroll 1
  for (int j = 0; j < 8 && c + j < cols; j++) row[c + j] = all >> (8 * j);
}

// The largest of a warp of floats that are 0 or more: their bits are in the same order.
__device__ __forceinline__ float warp_largest(float x) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x))); }
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// The largest magnitude that was met, NaN when a NaN was. Of 16 bits two at a time.
template <class T> struct Largest {
  uint32_t two = 0;
  __device__ __forceinline__ void meet(const Eight<T>& e) {
    const uint32_t* w = (const uint32_t*)&e.p[0];
#pragma unroll
    for (int i = 0; i < 4; i++) two = max2(two, w[i]);
  }
  __device__ __forceinline__ float value() const {
    const T* t = (const T*)&two;
    return max_nan(to_float(t[0]), to_float(t[1]));
  }
  static __device__ __forceinline__ uint32_t max2(uint32_t m, uint32_t x);
};
template <> __device__ __forceinline__ uint32_t Largest<bf16>::max2(uint32_t m, uint32_t x) {
  uint32_t r;
  asm("{\n\t.reg .b32 t;\n\tabs.bf16x2 t, %2;\n\tmax.NaN.bf16x2 %0, %1, t;\n\t}" : "=r"(r) : "r"(m), "r"(x));
  return r;
}
template <> __device__ __forceinline__ uint32_t Largest<f16>::max2(uint32_t m, uint32_t x) {
  uint32_t r;
  asm("{\n\t.reg .b32 t;\n\tabs.f16x2 t, %2;\n\tmax.NaN.f16x2 %0, %1, t;\n\t}" : "=r"(r) : "r"(m), "r"(x));
  return r;
}
template <> struct Largest<float> {
  float one = 0.f;
  __device__ __forceinline__ void meet(const Eight<float>& e) {
#pragma unroll
    for (int j = 0; j < 8; j++) one = max_nan(one, fabsf(e.p[j / 4].v[j % 4]));
  }
  __device__ __forceinline__ float value() const { return one; }
};

// Elements c .. c+7 of a row one by one: small code for what is rare. What is met where some are NaN, which take no part in the
// largest magnitude but are counted; and codes by plain division.
template <class T> __device__ __forceinline__ void meet_any(const T* row, long c, long cols, float& amax, int& nan) {
#pragma unroll 1
  for (int j = 0; j < 8 && c + j < cols; j++) {
    const float v = to_float(row[c + j]);
    amax = fmaxf(amax, fabsf(v));
    nan += v != v;
  }
}
template <class T, bool E5M2> __device__ __forceinline__ uint2 encode_any(const T* row, long c, long cols, float step) {
  uint64_t codes = 0;
#pragma unroll 1
  for (int j = 0; j < 8 && c + j < cols; j++) {
    const float v = wide(row[c + j]);
    codes |= (uint64_t)(v != v ? fp8_nan<E5M2>(v) : fp8_code<E5M2>(__fdiv_rn(v, step))) << (8 * j);
  }
  return make_uint2((uint32_t)codes, (uint32_t)(codes >> 32));
}

// Codes by a step.
template <class T, bool E5M2> struct Coder : Divisor<T> {
  using Divisor<T>::Divisor;
  __device__ __forceinline__ uint2 encode(const Eight<T>& e) const {
    uint32_t pair[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 v = two(e, j);
      pair[j] = fp8_pair<E5M2>(this->divide(v.x), this->divide(v.y));
    }
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
  }
};
