// wgmma for FP8 operands from shared memory, and for a 16-bit A from registers with a K-major B. See hopper.cuh for the layouts:
// a K-major FP8 tile is rows of 128 bytes, 128 of k, and a step of 32 k is 32 bytes, as one of 16 k is in 16-bit types.
#pragma once
#include "hopper.cuh"

struct e4m3 {};
struct e5m2 {};

#ifdef SEAFAN_HOPPER
// d = a b + (accumulate ? d : 0), 64 rows, N columns, 32 of k, both operands K-major in shared memory.
template <class A, class B, int N> struct Wgmma8;
// The same with 16 of k: a in the A fragment layout of mma.sync, b K-major in shared memory.
template <class T, int N> struct WgmmaRegister;

#define WGMMA8_16(A, B) \
  template <> struct Wgmma8<A, B, 16> { \
    static __device__ __forceinline__ void shared(float (&d)[8], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %10, 0;\n\twgmma.mma_async.sync.aligned.m64n16k32.f32." #A "." #B " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7" \
        "}, %8, %9, p, 1, 1;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]) \
        : "l"(a), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA8_16(e4m3, e4m3)

#define WGMMA8_32(A, B) \
  template <> struct Wgmma8<A, B, 32> { \
    static __device__ __forceinline__ void shared(float (&d)[16], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\twgmma.mma_async.sync.aligned.m64n32k32.f32." #A "." #B " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
        "}, %16, %17, p, 1, 1;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]), \
          "+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]) \
        : "l"(a), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA8_32(e4m3, e4m3)

#define WGMMA8_64(A, B) \
  template <> struct Wgmma8<A, B, 64> { \
    static __device__ __forceinline__ void shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\twgmma.mma_async.sync.aligned.m64n64k32.f32." #A "." #B " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
        "%29,%30,%31" \
        "}, %32, %33, p, 1, 1;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]), \
          "+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]), \
          "+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]), \
          "+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) \
        : "l"(a), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA8_64(e4m3, e4m3)
WGMMA8_64(e4m3, e5m2)
WGMMA8_64(e5m2, e4m3)
WGMMA8_64(e5m2, e5m2)

#define WGMMA8_128(A, B) \
  template <> struct Wgmma8<A, B, 128> { \
    static __device__ __forceinline__ void shared(float (&d)[64], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\twgmma.mma_async.sync.aligned.m64n128k32.f32." #A "." #B " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
        "%55,%56,%57,%58,%59,%60,%61,%62,%63" \
        "}, %64, %65, p, 1, 1;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]), \
          "+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]), \
          "+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]), \
          "+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]), \
          "+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]), \
          "+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]), \
          "+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]), \
          "+f"(d[63]) \
        : "l"(a), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA8_128(e4m3, e4m3)
WGMMA8_128(e4m3, e5m2)
WGMMA8_128(e5m2, e4m3)
WGMMA8_128(e5m2, e5m2)

#define WGMMA_REGISTER_16(T) \
  template <> struct WgmmaRegister<T, 16> { \
    static __device__ __forceinline__ void mixed(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %13, 0;\n\twgmma.mma_async.sync.aligned.m64n16k16.f32." #T "." #T " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7" \
        "}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA_REGISTER_16(bf16)
WGMMA_REGISTER_16(f16)

#define WGMMA_REGISTER_32(T) \
  template <> struct WgmmaRegister<T, 32> { \
    static __device__ __forceinline__ void mixed(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\twgmma.mma_async.sync.aligned.m64n32k16.f32." #T "." #T " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
        "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]), \
          "+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA_REGISTER_32(bf16)
WGMMA_REGISTER_32(f16)

#define WGMMA_REGISTER_64(T) \
  template <> struct WgmmaRegister<T, 64> { \
    static __device__ __forceinline__ void mixed(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) { \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32." #T "." #T " {" \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
        "%29,%30,%31" \
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n\t}" \
        : \
          "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]), \
          "+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]), \
          "+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]), \
          "+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); \
    } \
  };
WGMMA_REGISTER_64(bf16)
WGMMA_REGISTER_64(f16)

#endif
