// The vector pieces of vec.go, once for both widths. A file that includes this
// defines V0..V15 (its vector registers), the names FN_* of the functions, and
//
//	EACH16(S)   S(offset) for the vectors that make 16 floats
//	PAIR16(S)   S(offset, a, b) for the same with two accumulators each
//	LANES16(S)  S(offset, acc) for the pieces of 16 floats that widen to one
//	            vector of float64 each
//	FOLD4       Y0 = lanes 0..3 + 8..11 + (4..7 + 12..15)
//
// Every loop takes 16 floats a turn, an exponential 64 while it can where EXP4 is
// defined; n is a positive multiple of 16. AX is the byte offset of the turn, CX
// its end. Sums hold lane i of lanes in order in V0, V1 (AVX-512) or V0..V3 (AVX2).
// Bounds: cache or memory, except the exponential: 22 to 30 instructions for a
// vector, nearly all of them on the two FMA ports.

#define LOOP(n) \
	SHLQ $2, n    \
	XORQ AX, AX

#define NEXT(label) \
	ADDQ $64, AX  \
	CMPQ AX, CX   \
	JB   label

// FETCH asks for a line a page ahead, for loops that compute while memory is slow.
#define FETCH(r) PREFETCHT0 4096(r)(AX*1)

#include "exp_amd64.h"

// func exp(y, x *float32, n int)
TEXT FN_EXP(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	LOOP(CX)

#define STEP_EXP(off) \
	VMOVUPS off(SI)(AX*1), V0 \
	EXP(V0, V1, V2, V3)       \
	VMOVUPS V0, off(DI)(AX*1)

#ifdef EXP4
	EXP4_CONSTANTS
	SUBQ $192, CX

exp4:
	CMPQ AX, CX
	JGE  exp1
	GET4(SI, Z2, Z3, Z4, Z5)
	EXP4
	PUT4(DI, Z2, Z3, Z4, Z5)
	ADDQ $256, AX
	JMP  exp4

exp1:
	ADDQ $192, CX
	CMPQ AX, CX
	JGE  expended
#endif

exp:
	EACH16(STEP_EXP)
	NEXT(exp)

expended:
	VZEROUPPER
	RET

#define STEP_ZERO_LANES(off, acc) \
	VXORPS acc, acc, acc
#define STEP_STORE_LANES(off, acc) \
	VMOVUPS acc, 2*off(DX)

// TOTAL stores the lanes at DX and leaves their sum in X0.
#define TOTAL \
	LANES16(STEP_STORE_LANES)   \
	FOLD4                       \
	VEXTRACTF128 $1, Y0, X1     \
	VADDPD       X1, X0, X0     \
	VUNPCKHPD    X0, X0, X1     \
	VADDSD       X1, X0, X0

// func expSubSum(l *lanes, y, x *float32, m float32, n int) float64
//
// The result is that of l.sum.
TEXT FN_EXPSUBSUM(SB), NOSPLIT, $0-48
	MOVQ l+0(FP), DX
	MOVQ y+8(FP), DI
	MOVQ x+16(FP), SI
	VBROADCASTSS m+24(FP), V8
	MOVQ n+32(FP), CX
	LOOP(CX)
	LANES16(STEP_ZERO_LANES)

#define STEP_EXPSUB(off) \
	VMOVUPS off(SI)(AX*1), V4 \
	VSUBPS  V8, V4, V4        \
	EXP(V4, V5, V6, V7)       \
	VMOVUPS V4, off(DI)(AX*1)

#define STEP_SUM(off, acc) \
	VCVTPS2PD off(DI)(AX*1), V5 \
	VADDPD    V5, acc, acc

#ifdef EXP4
	EXP4_CONSTANTS
	SUBQ $192, CX

expsub4:
	CMPQ AX, CX
	JGE  expsub1
	GET4(SI, Z2, Z3, Z4, Z5)
	BY4(VSUBPS, Z8, Z2, Z3, Z4, Z5)
	EXP4
	PUT4(DI, Z2, Z3, Z4, Z5)
	SUM8(0, Z0, Z6)
	SUM8(32, Z1, Z7)
	SUM8(64, Z0, Z9)
	SUM8(96, Z1, Z10)
	SUM8(128, Z0, Z11)
	SUM8(160, Z1, Z12)
	SUM8(192, Z0, Z13)
	SUM8(224, Z1, Z14)
	ADDQ $256, AX
	JMP  expsub4

expsub1:
	ADDQ $192, CX
	CMPQ AX, CX
	JGE  expsubbed
#endif

expsub:
	EACH16(STEP_EXPSUB)
	LANES16(STEP_SUM)
	NEXT(expsub)

expsubbed:
	TOTAL
	VMOVSD X0, ret+40(FP)
	VZEROUPPER
	RET

// func max(out *[32]float32, x *float32, n int)
//
// out[0] is the maximum, out[16] the largest |bits|, which tell a NaN.
TEXT FN_MAX(SB), NOSPLIT, $0-24
	MOVQ out+0(FP), DX
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	LOOP(CX)

#define STEP_MAX0(off, a, b) \
	VMOVUPS C_NEGINF, a \
	VXORPS  b, b, b

#define STEP_MAX(off, a, b) \
	VMOVUPS off(SI)(AX*1), V8 \
	VMAXPS  V8, a, a          \
	VANDPS  C_ABS, V8, V8     \
	VPMAXSD V8, b, b

#define STEP_MAX1(off, a, b) \
	VMOVUPS a, off(DX) \
	VMOVUPS b, 64+off(DX)

	PAIR16(STEP_MAX0)

max:
	PAIR16(STEP_MAX)
	NEXT(max)
	PAIR16(STEP_MAX1)
	VMOVUPS    (DX), X0
	VMOVUPS    64(DX), X1
	VMOVUPS    16(DX), X2
	VMOVUPS    80(DX), X3
	VMAXPS     32(DX), X0, X0
	VPMAXSD    96(DX), X1, X1
	VMAXPS     48(DX), X2, X2
	VPMAXSD    112(DX), X3, X3
	VMAXPS     X2, X0, X0
	VPMAXSD    X3, X1, X1
	VPERMILPS  $0x4e, X0, X2
	VPSHUFD    $0x4e, X1, X3
	VMAXPS     X2, X0, X0
	VPMAXSD    X3, X1, X1
	VPERMILPS  $0xb1, X0, X2
	VPSHUFD    $0xb1, X1, X3
	VMAXPS     X2, X0, X0
	VPMAXSD    X3, X1, X1
	VMOVUPS    X0, (DX)
	VMOVUPS    X1, 64(DX)
	VZEROUPPER
	RET

// func dot(l *lanes, x, y *float32, n int) float64
//
// The result is that of l.sum.
TEXT FN_DOT(SB), NOSPLIT, $0-40
	MOVQ l+0(FP), DX
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DI
	MOVQ n+24(FP), CX
	LOOP(CX)
	LANES16(STEP_ZERO_LANES)

#define STEP_DOT(off, acc) \
	VCVTPS2PD off(SI)(AX*1), V8 \
	VCVTPS2PD off(DI)(AX*1), V9 \
	VMULPD    V9, V8, V8        \
	VADDPD    V8, acc, acc

dot:
	LANES16(STEP_DOT)
	NEXT(dot)
	TOTAL
	VMOVSD X0, ret+32(FP)
	VZEROUPPER
	RET

// func dot3(l *lanes, x, y, z *float32, n int) float64
//
// The result is that of l.sum.
TEXT FN_DOT3(SB), NOSPLIT, $0-48
	MOVQ l+0(FP), DX
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DI
	MOVQ z+24(FP), R8
	MOVQ n+32(FP), CX
	LOOP(CX)
	LANES16(STEP_ZERO_LANES)

#define STEP_DOT3(off, acc) \
	VCVTPS2PD off(SI)(AX*1), V8  \
	VCVTPS2PD off(DI)(AX*1), V9  \
	VCVTPS2PD off(R8)(AX*1), V10 \
	VMULPD    V9, V8, V8         \
	VMULPD    V10, V8, V8        \
	VADDPD    V8, acc, acc

dot3:
	LANES16(STEP_DOT3)
	NEXT(dot3)
	TOTAL
	VMOVSD X0, ret+40(FP)
	VZEROUPPER
	RET

// func scaleMul(y, x, w *float32, s float32, n int)
TEXT FN_SCALEMUL(SB), NOSPLIT, $0-40
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R8
	VBROADCASTSS s+24(FP), V8
	MOVQ n+32(FP), CX
	LOOP(CX)

#define STEP_SCALEMUL(off) \
	VMULPS  off(SI)(AX*1), V8, V0 \
	VMULPS  off(R8)(AX*1), V0, V0 \
	VMOVUPS V0, off(DI)(AX*1)

scalemul:
	EACH16(STEP_SCALEMUL)
	NEXT(scalemul)
	VZEROUPPER
	RET

// func scale(y *float32, s float32, n int)
TEXT FN_SCALE(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	VBROADCASTSS s+8(FP), V8
	MOVQ n+16(FP), CX
	LOOP(CX)

#define STEP_SCALE(off) \
	VMULPS  off(DI)(AX*1), V8, V0 \
	VMOVUPS V0, off(DI)(AX*1)

scale:
	EACH16(STEP_SCALE)
	NEXT(scale)
	VZEROUPPER
	RET

// func addScaleMul(y, x, w *float32, s float32, n int)
TEXT FN_ADDSCALEMUL(SB), NOSPLIT, $0-40
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R8
	VBROADCASTSS s+24(FP), V8
	MOVQ n+32(FP), CX
	LOOP(CX)

#define STEP_ADDSCALEMUL(off) \
	VMULPS  off(SI)(AX*1), V8, V0 \
	VMULPS  off(R8)(AX*1), V0, V0 \
	VADDPS  off(DI)(AX*1), V0, V0 \
	VMOVUPS V0, off(DI)(AX*1)

addscalemul:
	EACH16(STEP_ADDSCALEMUL)
	NEXT(addscalemul)
	VZEROUPPER
	RET

// func scaleMulAdd(y, x, w, z *float32, s, t float32, n int)
TEXT FN_SCALEMULADD(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R8
	MOVQ z+24(FP), R9
	VBROADCASTSS s+32(FP), V8
	VBROADCASTSS t+36(FP), V9
	MOVQ n+40(FP), CX
	LOOP(CX)

#define STEP_SCALEMULADD(off) \
	VMULPS  off(SI)(AX*1), V8, V0 \
	VMULPS  off(R8)(AX*1), V0, V0 \
	VMULPS  off(R9)(AX*1), V9, V1 \
	VADDPS  V1, V0, V0            \
	VMOVUPS V0, off(DI)(AX*1)

scalemuladd:
	EACH16(STEP_SCALEMULADD)
	NEXT(scalemuladd)
	VZEROUPPER
	RET

// func addScaled(y, a, b *float32, s float32, n int)
TEXT FN_ADDSCALED(SB), NOSPLIT, $0-40
	MOVQ y+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), R8
	VBROADCASTSS s+24(FP), V8
	MOVQ n+32(FP), CX
	LOOP(CX)

#define STEP_ADDSCALED(off) \
	VMULPS  off(R8)(AX*1), V8, V0 \
	VADDPS  off(SI)(AX*1), V0, V0 \
	VMOVUPS V0, off(DI)(AX*1)

addscaled:
	EACH16(STEP_ADDSCALED)
	NEXT(addscaled)
	VZEROUPPER
	RET

// func swiGLU(y, gate, up *float32, n int)
TEXT FN_SWIGLU(SB), NOSPLIT, $0-32
	MOVQ y+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), R8
	MOVQ n+24(FP), CX
	LOOP(CX)

// SIGMOID_DIV leaves g in V4 and 1 + e^-g in V0.
#define SIGMOID_DIV(off) \
	VMOVUPS off(SI)(AX*1), V4 \
	VXORPS  V0, V0, V0        \
	VSUBPS  V4, V0, V0        \
	EXP(V0, V1, V2, V3)       \
	VADDPS  C_ONE, V0, V0

#define STEP_SWIGLU(off) \
	SIGMOID_DIV(off)              \
	VDIVPS  V0, V4, V4            \
	VMULPS  off(R8)(AX*1), V4, V4 \
	VMOVUPS V4, off(DI)(AX*1)

#ifdef EXP4
	EXP4_CONSTANTS
	SUBQ $192, CX

swiglu4:
	CMPQ AX, CX
	JGE  swiglu1
	FETCH4(SI)
	FETCH4(R8)
	FETCH4(DI)
	SIGMOID_DIV4
	VDIVPS Z2, Z6, Z6
	VDIVPS Z3, Z7, Z7
	VDIVPS Z4, Z9, Z9
	VDIVPS Z5, Z10, Z10
	MEM4(VMULPS, R8, Z6, Z7, Z9, Z10)
	PUT4(DI, Z6, Z7, Z9, Z10)
	ADDQ $256, AX
	JMP  swiglu4

swiglu1:
	ADDQ $192, CX
	CMPQ AX, CX
	JGE  gated
#endif

swiglu:
	FETCH(SI)
	FETCH(R8)
	FETCH(DI)
	EACH16(STEP_SWIGLU)
	NEXT(swiglu)

gated:
	VZEROUPPER
	RET

// func swiGLUGrad(dgate, dup, dy, gate, up *float32, n int)
TEXT FN_SWIGLUGRAD(SB), NOSPLIT, $0-48
	MOVQ dgate+0(FP), DI
	MOVQ dup+8(FP), R9
	MOVQ dy+16(FP), DX
	MOVQ gate+24(FP), SI
	MOVQ up+32(FP), R8
	MOVQ n+40(FP), CX
	LOOP(CX)

#define STEP_SWIGLUGRAD(off) \
	SIGMOID_DIV(off)              \
	VMOVUPS C_ONE, V5             \
	VDIVPS  V0, V5, V0            \
	VMOVUPS off(DX)(AX*1), V6     \
	VMULPS  V4, V6, V7            \
	VMULPS  V0, V7, V7            \
	VMULPS  off(R8)(AX*1), V6, V6 \
	VMULPS  V0, V6, V6            \
	VSUBPS  V0, V5, V1            \
	VMULPS  V4, V1, V1            \
	VADDPS  V5, V1, V1            \
	VMULPS  V1, V6, V6            \
	VMOVUPS V7, off(R9)(AX*1)     \
	VMOVUPS V6, off(DI)(AX*1)

#ifdef EXP4
	EXP4_CONSTANTS
	SUBQ $192, CX

swiglugrad4:
	CMPQ AX, CX
	JGE  swiglugrad1
	FETCH4(SI)
	FETCH4(R8)
	FETCH4(DX)
	FETCH4(DI)
	FETCH4(R9)
	SIGMOID_DIV4
	VDIVPS Z2, Z27, Z2
	VDIVPS Z3, Z27, Z3
	VDIVPS Z4, Z27, Z4
	VDIVPS Z5, Z27, Z5
	GET4(DX, Z11, Z12, Z13, Z14)
	VMULPS Z6, Z11, Z15
	VMULPS Z7, Z12, Z28
	VMULPS Z9, Z13, Z29
	VMULPS Z10, Z14, Z30
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z15, Z28, Z29, Z30)
	MEM4(VMULPS, R8, Z11, Z12, Z13, Z14)
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)
	VSUBPS Z2, Z27, Z2
	VSUBPS Z3, Z27, Z3
	VSUBPS Z4, Z27, Z4
	VSUBPS Z5, Z27, Z5
	EACH4(VMULPS, Z6, Z7, Z9, Z10, Z2, Z3, Z4, Z5)
	BY4(VADDPS, Z27, Z2, Z3, Z4, Z5)
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)
	PUT4(R9, Z15, Z28, Z29, Z30)
	PUT4(DI, Z11, Z12, Z13, Z14)
	ADDQ $256, AX
	JMP  swiglugrad4

swiglugrad1:
	ADDQ $192, CX
	CMPQ AX, CX
	JGE  gradded
#endif

swiglugrad:
	FETCH(SI)
	FETCH(R8)
	FETCH(DX)
	FETCH(DI)
	FETCH(R9)
	EACH16(STEP_SWIGLUGRAD)
	NEXT(swiglugrad)

gradded:
	VZEROUPPER
	RET

// func adamW(p, m, v, grad *float32, c *adamWFactors, n int, tops *[16]uint32)
//
// tops gets the largest |bits| of p by lanes, which tell a NaN.
TEXT FN_ADAMW(SB), NOSPLIT, $0-56
	MOVQ p+0(FP), DI
	MOVQ m+8(FP), SI
	MOVQ v+16(FP), R8
	MOVQ grad+24(FP), R9
	MOVQ c+32(FP), DX
	MOVQ n+40(FP), CX
	LOOP(CX)
	VBROADCASTSS 0(DX), V7
	VBROADCASTSS 4(DX), V8
	VBROADCASTSS 8(DX), V9
	VBROADCASTSS 12(DX), V10
	VBROADCASTSS 16(DX), V11
	VBROADCASTSS 20(DX), V12
	VBROADCASTSS 24(DX), V13
	VBROADCASTSS 28(DX), V14
	VBROADCASTSS 32(DX), V15
	VXORPS V4, V4, V4
	VMOVUPS C_ABS, V5

#define STEP_ADAMW(off) \
	VMULPS  off(R9)(AX*1), V7, V0  \
	VMULPS  off(SI)(AX*1), V8, V1  \
	VMULPS  V0, V9, V2             \
	VADDPS  V2, V1, V1             \
	VMOVUPS V1, off(SI)(AX*1)      \
	VMULPS  off(R8)(AX*1), V10, V3 \
	VMULPS  V0, V0, V2             \
	VMULPS  V2, V11, V2            \
	VADDPS  V2, V3, V3             \
	VMOVUPS V3, off(R8)(AX*1)      \
	VSQRTPS V3, V3                 \
	VMULPS  V3, V14, V3            \
	VADDPS  V3, V15, V3            \
	VMULPS  V1, V13, V1            \
	VDIVPS  V3, V1, V1             \
	VMULPS  off(DI)(AX*1), V12, V2 \
	VSUBPS  V1, V2, V2             \
	VMOVUPS V2, off(DI)(AX*1)      \
	VANDPS  V5, V2, V2             \
	VPMAXSD V2, V4, V4

adamw:
	EACH16(STEP_ADAMW)
	NEXT(adamw)
	MOVQ    tops+48(FP), DX
	VMOVUPS V4, (DX)
	VZEROUPPER
	RET


// func turn(y, x *float32, heads, stride, half int, cos, sin *float32, sign float32, n int)
//
// The first n pairs of each of heads > 0 heads, stride bytes apart, whose partners
// are half bytes on.
//	DI SI y, R8 R9 x, R10 cos, R11 sin, times the sign in V15, DX heads left, BX stride
TEXT FN_TURN(SB), NOSPLIT, $0-72
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), R8
	MOVQ heads+16(FP), DX
	MOVQ stride+24(FP), BX
	MOVQ half+32(FP), R9
	LEAQ (DI)(R9*1), SI
	ADDQ R8, R9
	MOVQ cos+40(FP), R10
	MOVQ sin+48(FP), R11
	VBROADCASTSS sign+56(FP), V15
	MOVQ n+64(FP), CX
	SHLQ $2, CX

head:
	XORQ AX, AX

#define STEP_TURN(off) \
	VMULPS  off(R11)(AX*1), V15, V0 \
	VMOVUPS off(R10)(AX*1), V1      \
	VMOVUPS off(R8)(AX*1), V2       \
	VMOVUPS off(R9)(AX*1), V3       \
	VMULPS  V1, V2, V4              \
	VMULPS  V0, V3, V5              \
	VSUBPS  V5, V4, V4              \
	VMULPS  V1, V3, V6              \
	VMULPS  V0, V2, V7              \
	VADDPS  V7, V6, V6              \
	VMOVUPS V4, off(DI)(AX*1)       \
	VMOVUPS V6, off(SI)(AX*1)

turn:
	EACH16(STEP_TURN)
	NEXT(turn)
	ADDQ BX, DI
	ADDQ BX, SI
	ADDQ BX, R8
	ADDQ BX, R9
	DECQ DX
	JNZ  head
	VZEROUPPER
	RET
