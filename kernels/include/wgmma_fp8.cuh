// wgmma for FP8 operands from shared memory, and for a 16-bit A from registers with a K-major B. See hopper.cuh for the layouts:
// a K-major FP8 tile is rows of 128 bytes, 128 of k, and a step of 32 k is 32 bytes, as one of 16 k is in 16-bit types.
#pragma once
#include "hopper.cuh"

struct e4m3 {};
struct e5m2 {};

#ifdef SEAFAN_HOPPER
// d = a b + (accumulate ? d : 0), 64 rows, N columns, 32 of k, both operands K-major in shared memory.
template <class A, class B, int N> struct Wgmma8;
#define WGMMA_TEXT56 \
  WGMMA_TEXT32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_D56(i) WGMMA_D32(i), WGMMA_D16(i + 32), WGMMA_D8(i + 48)
#define WGMMA8(TA, TB, N, D, B, P) \
  template <> struct Wgmma8<TA, TB, N> { WGMMA_SHARED("m64n" #N "k32", #TA "." #TB, D, B, P, "") };
WGMMA8(e4m3, e4m3, 16, 8, 9, 10)
WGMMA8(e4m3, e4m3, 32, 16, 17, 18)
WGMMA8(e4m3, e4m3, 64, 32, 33, 34)
WGMMA8(e4m3, e4m3, 112, 56, 57, 58)
WGMMA8(e4m3, e4m3, 128, 64, 65, 66)
WGMMA8(e4m3, e5m2, 112, 56, 57, 58)
WGMMA8(e4m3, e5m2, 128, 64, 65, 66)
WGMMA8(e5m2, e4m3, 112, 56, 57, 58)
WGMMA8(e5m2, e4m3, 128, 64, 65, 66)
WGMMA8(e5m2, e5m2, 112, 56, 57, 58)
WGMMA8(e5m2, e5m2, 128, 64, 65, 66)

// The same with 16 of k: a in the A fragment layout of mma.sync, b K-major in shared memory.
template <class T, int N> struct WgmmaRegister;
#define WGMMA_REGISTER(T, N, D, A1, A2, A3, B, P) \
  template <> struct WgmmaRegister<T, N> { WGMMA_MIXED("m64n" #N "k16", #T "." #T, D, A1, A2, A3, B, P, ", 0") };
#define WGMMA_REGISTERS(T)                         \
  WGMMA_REGISTER(T, 16, 8, 9, 10, 11, 12, 13)      \
  WGMMA_REGISTER(T, 32, 16, 17, 18, 19, 20, 21)    \
  WGMMA_REGISTER(T, 64, 32, 33, 34, 35, 36, 37)
WGMMA_REGISTERS(bf16)
WGMMA_REGISTERS(f16)
#endif
