//go:build amd64 && !purego

#include "textflag.h"

// The 8-bit floats in AVX2, 16 elements a turn; n is a positive multiple of 16.
// Formulas and constants are those of fp8.go.

DATA fp8Abs2<>+0(SB)/4, $0x7FFFFFFF
GLOBL fp8Abs2<>(SB), RODATA|NOPTR, $4
DATA fp8Exp2<>+0(SB)/4, $0x7F800000
GLOBL fp8Exp2<>(SB), RODATA|NOPTR, $4
DATA fp8Sign2<>+0(SB)/4, $0x80
GLOBL fp8Sign2<>(SB), RODATA|NOPTR, $4
DATA fp8Low2<>+0(SB)/4, $0x7F
GLOBL fp8Low2<>(SB), RODATA|NOPTR, $4

// The order of the double words that packing two registers leaves.
DATA fp8Order2<>+0(SB)/8, $0x0000000400000000
DATA fp8Order2<>+8(SB)/8, $0x0000000500000001
DATA fp8Order2<>+16(SB)/8, $0x0000000400000000
DATA fp8Order2<>+24(SB)/8, $0x0000000500000001
GLOBL fp8Order2<>(SB), RODATA|NOPTR, $32

// func fp8AmaxAVX2(x *float32, n int) (bits uint32, nan int)
TEXT ·fp8AmaxAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VPBROADCASTD fp8Abs2<>(SB), Y6
	VPBROADCASTD fp8Exp2<>(SB), Y7
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1

// A NaN's bits are above those of infinity: it is counted and left out.
#define AMAX(at) \
	VPAND at(SI), Y6, Y2 \
	VPCMPGTD Y7, Y2, Y3 \
	VPSUBD Y3, Y1, Y1 \
	VPANDN Y2, Y3, Y2 \
	VPMAXUD Y2, Y0, Y0

amaxLoop:
	AMAX(0)
	AMAX(32)
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ amaxLoop

	VEXTRACTI128 $1, Y0, X2
	VPMAXUD X2, X0, X0
	VPSHUFD $0x4E, X0, X2
	VPMAXUD X2, X0, X0
	VPSHUFD $0xB1, X0, X2
	VPMAXUD X2, X0, X0
	VMOVD X0, AX
	MOVL AX, bits+16(FP)
	VEXTRACTI128 $1, Y1, X2
	VPADDD X2, X1, X1
	VPSHUFD $0x4E, X1, X2
	VPADDD X2, X1, X1
	VPSHUFD $0xB1, X1, X2
	VPADDD X2, X1, X1
	VMOVD X1, AX
	MOVQ AX, nan+24(FP)
	VZEROUPPER
	RET

// func fp8EncodeAVX2(codes *byte, x *float32, step float32, n int, f *fp8Format) bool
TEXT ·fp8EncodeAVX2(SB), NOSPLIT, $0-41
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS step+16(FP), Y10
	MOVQ n+24(FP), CX
	MOVQ f+32(FP), BX
	VBROADCASTSS 0(BX), Y11  // max
	VPBROADCASTD 4(BX), Y12  // minExp
	VMOVD 8(BX), X13         // drop
	VPBROADCASTD 12(BX), Y14 // magic
	VPBROADCASTD 16(BX), Y15 // rebias
	VPBROADCASTD fp8Abs2<>(SB), Y9
	VPBROADCASTD fp8Exp2<>(SB), Y8
	VPBROADCASTD fp8Sign2<>(SB), Y7
	VXORPS Y6, Y6, Y6

// c: the quotient, then the codes; t: its magnitude, then the units; e: the
// exponent.
#define ENCODE(at, c, t, e) \
	VMOVUPS at(SI), c \
	VDIVPS Y10, c, c \
	VCMPPS $3, c, c, t \
	VORPS t, Y6, Y6 \
	VPAND Y9, c, t \
	VMINPS Y11, t, t \
	VPAND Y8, t, e \
	VPMAXUD Y12, e, e \
	VPADDD Y14, e, Y5 \
	VADDPS Y5, t, t \
	VPSUBD Y5, t, t \
	VPSRLD X13, e, e \
	VPSUBD Y15, e, e \
	VPADDD e, t, t \
	VPSRLD $24, c, c \
	VPAND Y7, c, c \
	VPOR t, c, c

encodeLoop:
	ENCODE(0, Y0, Y2, Y3)
	ENCODE(32, Y1, Y2, Y3)
	VPACKUSDW Y1, Y0, Y0
	VPACKUSWB Y0, Y0, Y0
	VMOVDQU fp8Order2<>(SB), Y4
	VPERMD Y0, Y4, Y0
	VMOVDQU X0, (DI)
	ADDQ $64, SI
	ADDQ $16, DI
	SUBQ $16, CX
	JNZ encodeLoop

	VMOVMSKPS Y6, AX
	TESTQ AX, AX
	SETEQ ret+40(FP)
	VZEROUPPER
	RET

// func fp8DecodeAVX2(x *float32, codes *byte, n, shift int, widen float32, last uint32, step float32)
//
// The code's magnitude, moved by shift to the place of a float32's fields, is
// 1/widen too small. Above last it is an infinity or NaN: there the exponent is
// all ones.
TEXT ·fp8DecodeAVX2(SB), NOSPLIT, $0-44
	MOVQ x+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ n+16(FP), CX
	VMOVQ shift+24(FP), X13
	VBROADCASTSS widen+32(FP), Y10
	MOVL last+36(FP), AX
	VMOVD AX, X11
	VPBROADCASTD X11, Y11
	VBROADCASTSS step+40(FP), Y12
	VPBROADCASTD fp8Low2<>(SB), Y9
	VPBROADCASTD fp8Exp2<>(SB), Y8

#define DECODE(from, at) \
	VPMOVZXBD from(SI), Y0 \
	VPAND Y9, Y0, Y1 \
	VPXOR Y1, Y0, Y0 \
	VPSLLD $24, Y0, Y0 \
	VPCMPGTD Y11, Y1, Y2 \
	VPAND Y8, Y2, Y2 \
	VPSLLD X13, Y1, Y1 \
	VMULPS Y10, Y1, Y1 \
	VPOR Y2, Y1, Y1 \
	VPOR Y0, Y1, Y1 \
	VMULPS Y12, Y1, Y1 \
	VMOVUPS Y1, at(DI)

decodeLoop:
	DECODE(0, 0)
	DECODE(8, 32)
	ADDQ $16, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ decodeLoop
	VZEROUPPER
	RET
