//go:build amd64 && !purego

#include "textflag.h"

// The vector pieces in AVX-512, 16 floats a register.

#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define V6 Z6
#define V7 Z7
#define V8 Z8
#define V9 Z9
#define V10 Z10
#define V11 Z11
#define V12 Z12
#define V13 Z13
#define V14 Z14
#define V15 Z15

#define EACH16(S) S(0)
#define PAIR16(S) S(0, V0, V1)
#define LANES16(S) \
	S(0, V0) \
	S(32, V1)

#define FOLD4 \
	VADDPD        V1, V0, V0 \
	VEXTRACTF64X4 $1, Z0, Y1 \
	VADDPD        Y1, Y0, Y0

#define FN_EXP ·expAVX512
#define FN_EXPSUBSUM ·expSubSumAVX512
#define FN_MAX ·maxAVX512
#define FN_DOT ·dotAVX512
#define FN_DOT3 ·dot3AVX512
#define FN_SCALE ·scaleAVX512
#define FN_SCALEMUL ·scaleMulAVX512
#define FN_ADDSCALEMUL ·addScaleMulAVX512
#define FN_SCALEMULADD ·scaleMulAddAVX512
#define FN_ADDSCALED ·addScaledAVX512
#define FN_SWIGLU ·swiGLUAVX512
#define FN_SWIGLUGRAD ·swiGLUGradAVX512
#define FN_ADAMW ·adamWAVX512
#define FN_TURN ·turnAVX512
#define FN_WEIGHTS ·weightsAVX512

#include "exp4_amd64.h"

// GET4 and PUT4 load and store four vectors, MEM4 does op of each in memory and one
// of four, FETCH4 is FETCH of four.
#define GET4(r, a0, a1, a2, a3) \
	VMOVUPS (r)(AX*1), a0    \
	VMOVUPS 64(r)(AX*1), a1  \
	VMOVUPS 128(r)(AX*1), a2 \
	VMOVUPS 192(r)(AX*1), a3
#define PUT4(r, a0, a1, a2, a3) \
	VMOVUPS a0, (r)(AX*1)    \
	VMOVUPS a1, 64(r)(AX*1)  \
	VMOVUPS a2, 128(r)(AX*1) \
	VMOVUPS a3, 192(r)(AX*1)
#define MEM4(op, r, a0, a1, a2, a3) \
	op (r)(AX*1), a0, a0    \
	op 64(r)(AX*1), a1, a1  \
	op 128(r)(AX*1), a2, a2 \
	op 192(r)(AX*1), a3, a3
#define FETCH4(r) \
	PREFETCHT0 4096(r)(AX*1) \
	PREFETCHT0 4160(r)(AX*1) \
	PREFETCHT0 4224(r)(AX*1) \
	PREFETCHT0 4288(r)(AX*1)

// SIGMOID_DIV4 leaves g in Z6, Z7, Z9, Z10 and 1 + e^-g in Z2..Z5.
#define SIGMOID_DIV4 \
	VPXORQ Z31, Z31, Z31                   \
	VSUBPS (SI)(AX*1), Z31, Z2             \
	VSUBPS 64(SI)(AX*1), Z31, Z3           \
	VSUBPS 128(SI)(AX*1), Z31, Z4          \
	VSUBPS 192(SI)(AX*1), Z31, Z5          \
	EXP4                                   \
	BY4(VADDPS, Z27, Z2, Z3, Z4, Z5)       \
	GET4(SI, Z6, Z7, Z9, Z10)

// SUM8 adds 8 floats at off, widened, to a sum; t is scratch.
#define SUM8(off, acc, t) \
	VCVTPS2PD off(DI)(AX*1), t \
	VADDPD    t, acc, acc

#include "vec_amd64.h"

#define DROP(y, w, t) \
	VCMPPD    $13, C_TINY, y, K1 \
	VMOVAPD.Z w, K1, w

#include "weights_amd64.h"
