// wgmma for the shapes that the kernels use, as templates over the element type. See hopper.cuh for the layouts.
#pragma once
#include "element.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The accumulators of an asm statement, in its text and as operands from d[i] on.
#define WGMMA_TEXT4 "%0,%1,%2,%3"
#define WGMMA_TEXT8 WGMMA_TEXT4 ",%4,%5,%6,%7"
#define WGMMA_TEXT16 WGMMA_TEXT8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_TEXT32 WGMMA_TEXT16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_TEXT64 \
  WGMMA_TEXT32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_TEXT128                                                                                                                              \
  WGMMA_TEXT64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
               ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121" \
               ",%122,%123,%124,%125,%126,%127"
#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(i) WGMMA_D4(i), WGMMA_D4(i + 4)
#define WGMMA_D16(i) WGMMA_D8(i), WGMMA_D8(i + 8)
#define WGMMA_D32(i) WGMMA_D16(i), WGMMA_D16(i + 16)
#define WGMMA_D64(i) WGMMA_D32(i), WGMMA_D32(i + 32)
#define WGMMA_D128(i) WGMMA_D64(i), WGMMA_D64(i + 64)

// d = a b + (accumulate ? d : 0) with D accumulators a thread, a from shared memory or from four registers. Operands have numbers
// alone: those behind the accumulators start with D, here called A, B and P. MAJOR ends the immediates: which operands are MN-major.
#define WGMMA_ASM(SHAPE, TYPES, D, A, B, P, MAJOR, ...)                                                                                    \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #P ", 0;\n\twgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES " {" WGMMA_TEXT##D "}, " A \
               ", %" #B ", p, 1, 1" MAJOR ";\n\t}"                                                                                         \
               : WGMMA_D##D(0)                                                                                                             \
               : __VA_ARGS__, "l"(b), "r"(accumulate))
#define WGMMA_SHARED(SHAPE, TYPES, D, B, P, MAJOR)                                                                   \
  static __device__ __forceinline__ void shared(float (&d)[D], uint64_t a, uint64_t b, int accumulate) {             \
    WGMMA_ASM(SHAPE, TYPES, D, "%" #D, B, P, MAJOR, "l"(a));                                                         \
  }
#define WGMMA_MIXED(SHAPE, TYPES, D, A1, A2, A3, B, P, MAJOR)                                                        \
  static __device__ __forceinline__ void mixed(float (&d)[D], const uint32_t (&a)[4], uint64_t b, int accumulate) {  \
    WGMMA_ASM(SHAPE, TYPES, D, "{%" #D ",%" #A1 ",%" #A2 ",%" #A3 "}", B, P, MAJOR, "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])); \
  }

// 64 rows, N columns, 16 of k. Wgmma<T, N, TB>: both operands from shared memory (TB = 0, b K-major), or a from registers in the
// A fragment layout of mma.sync and b MN-major (TB = 1).
template <class T, int N, int TB> struct Wgmma;
#define WGMMA_0(T, N, D, B, P) \
  template <> struct Wgmma<T, N, 0> { WGMMA_SHARED("m64n" #N "k16", #T "." #T, D, B, P, ", 0, 0") };
#define WGMMA_1(T, N, D, A1, A2, A3, B, P) \
  template <> struct Wgmma<T, N, 1> { WGMMA_MIXED("m64n" #N "k16", #T "." #T, D, A1, A2, A3, B, P, ", 1") };
#define WGMMAS(T)                                   \
  WGMMA_0(T, 8, 4, 5, 6)                            \
  WGMMA_0(T, 16, 8, 9, 10)                          \
  WGMMA_0(T, 32, 16, 17, 18)                        \
  WGMMA_0(T, 64, 32, 33, 34)                        \
  WGMMA_0(T, 128, 64, 65, 66)                       \
  WGMMA_0(T, 256, 128, 129, 130)                    \
  WGMMA_1(T, 64, 32, 33, 34, 35, 36, 37)            \
  WGMMA_1(T, 128, 64, 65, 66, 67, 68, 69)           \
  WGMMA_1(T, 256, 128, 129, 130, 131, 132, 133)
WGMMAS(bf16)
WGMMAS(f16)
#endif
