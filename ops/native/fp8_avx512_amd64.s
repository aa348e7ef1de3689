//go:build amd64 && !purego

#include "textflag.h"

// The 8-bit floats in AVX-512, 16 elements a turn; the last turn is masked by
// K1. Formulas and constants are those of fp8.go. Whole turns load without a
// mask: the processor does not fetch ahead for masked loads, which read from
// memory at a third of the rate.

DATA fp8Abs<>+0(SB)/4, $0x7FFFFFFF
GLOBL fp8Abs<>(SB), RODATA|NOPTR, $4
DATA fp8Exp<>+0(SB)/4, $0x7F800000
GLOBL fp8Exp<>(SB), RODATA|NOPTR, $4
DATA fp8Sign<>+0(SB)/4, $0x80
GLOBL fp8Sign<>(SB), RODATA|NOPTR, $4
DATA fp8Half<>+0(SB)/4, $0xBFFFBFFF
GLOBL fp8Half<>(SB), RODATA|NOPTR, $4
DATA fp8Widen<>+0(SB)/4, $0x43800000 // 256
GLOBL fp8Widen<>(SB), RODATA|NOPTR, $4
DATA fp8NaN<>+0(SB)/4, $0x7FC00000
GLOBL fp8NaN<>(SB), RODATA|NOPTR, $4
DATA fp8Beyond<>+0(SB)/4, $0x43F00000 // 480, where E4M3's NaN lands
GLOBL fp8Beyond<>(SB), RODATA|NOPTR, $4

// MASK sets K1 to the elements of this turn out of CX that are left.
#define MASK \
	MOVQ $-1, AX \
	CMPQ CX, $16 \
	JGE  2(PC) \
	BZHIQ CX, AX, AX \
	KMOVW AX, K1

// AMAX adds Z1 to the maxima Z0 and the count of NaN DX. The maximum is its
// second source, Z0, where Z1 is NaN.
#define AMAX \
	VCMPPS  $3, Z1, Z1, K2 \
	VPANDD  Z2, Z1, Z1     \
	VMAXPS  Z0, Z1, Z0     \
	KMOVW   K2, AX         \
	POPCNTL AX, AX         \
	ADDQ    AX, DX

// func fp8AmaxAVX512(x *float32, n int) (amax float32, nan int)
//
// Magnitudes go by fours of vectors as integers, of which a NaN is beyond infinity;
// where there is one, all begins anew and counts. Bound: the cache, as one chain of
// VMAXPS took three cycles a vector.
TEXT ·fp8AmaxAVX512(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VPBROADCASTD fp8Abs<>(SB), Z2
	VPXORD Z0, Z0, Z0
	VPXORD Z4, Z4, Z4
	VPXORD Z5, Z5, Z5
	VPXORD Z6, Z6, Z6
	XORQ DX, DX
	SUBQ $64, CX
	JLT  amaxFew

amaxFour:
	PREFETCHT0 4096(SI)
	PREFETCHT0 4160(SI)
	PREFETCHT0 4224(SI)
	PREFETCHT0 4288(SI)
	VPANDD  (SI), Z2, Z1
	VPANDD  64(SI), Z2, Z3
	VPANDD  128(SI), Z2, Z7
	VPANDD  192(SI), Z2, Z8
	VPMAXUD Z1, Z0, Z0
	VPMAXUD Z3, Z4, Z4
	VPMAXUD Z7, Z5, Z5
	VPMAXUD Z8, Z6, Z6
	ADDQ $256, SI
	SUBQ $64, CX
	JGE  amaxFour

	VPMAXUD Z4, Z0, Z0
	VPMAXUD Z6, Z5, Z5
	VPMAXUD Z5, Z0, Z0
	VPCMPUD.BCST $6, fp8Exp<>(SB), Z0, K2
	KORTESTW K2, K2
	JEQ  amaxFew
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VPXORD Z0, Z0, Z0
	SUBQ $64, CX

amaxFew:
	ADDQ $48, CX // 16 less than are left
	JLT amaxRest

amaxFull:
	PREFETCHT0 4096(SI)
	VMOVUPS (SI), Z1
	AMAX
	ADDQ $64, SI
	SUBQ $16, CX
	JGE amaxFull

amaxRest:
	ADDQ $16, CX
	JZ amaxDone
	MASK
	VMOVUPS.Z (SI), K1, Z1
	AMAX

amaxDone:
	VEXTRACTF64X4 $1, Z0, Y1
	VMAXPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPSHUFD $0x4E, X0, X1
	VMAXPS X1, X0, X0
	VPSHUFD $0xB1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, amax+16(FP)
	MOVQ DX, nan+24(FP)
	VZEROUPPER
	RET

// ENCODE makes codes, in the low bytes of Z1, of x in Z0: Z0 q, Z1 a and then
// the units, Z2 e, Z3 2^(e+drop). Bits above a byte do not count. Those of
// 2^(e+drop) below are 0, so that Z14, magic, can hold what rebias takes away:
// it is even and leaves ties as they are.
#define ENCODE \
	VDIVPS     Z10, Z0, Z0         \
	VPANDD     Z16, Z0, Z1         \
	VPMAXUD    Z1, Z19, Z19        \
	VMINPS     Z11, Z1, Z1         \
	VPANDD     Z17, Z1, Z2         \
	VPMAXUD    Z12, Z2, Z2         \
	VPADDD     Z14, Z2, Z3         \
	VADDPS     Z3, Z1, Z1          \
	VPSRLD     X13, Z2, Z2         \
	VPADDD     Z2, Z1, Z1          \
	VPSRLD     $24, Z0, Z0         \
	VPTERNLOGD $0xF8, Z18, Z0, Z1 // Z1 | Z0 & sign

// func fp8EncodeAVX512(codes *byte, x *float32, step float32, n int, f *fp8Format) bool
//
// 15 vector instructions a turn, 5 cycles.
TEXT ·fp8EncodeAVX512(SB), NOSPLIT, $0-41
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS step+16(FP), Z10
	MOVQ n+24(FP), CX
	MOVQ f+32(FP), BX
	VBROADCASTSS 0(BX), Z11 // max
	VPBROADCASTD 4(BX), Z12 // minExp
	VMOVD 8(BX), X13        // drop
	MOVL 16(BX), AX         // rebias
	NEGL AX
	ANDL $0xFF, AX
	ADDL 12(BX), AX         // magic
	VPBROADCASTD AX, Z14
	VPBROADCASTD fp8Abs<>(SB), Z16
	VPBROADCASTD fp8Exp<>(SB), Z17
	VPBROADCASTD fp8Sign<>(SB), Z18
	VPXORD Z19, Z19, Z19    // the largest magnitude, in bits
	SUBQ $16, CX
	JLT encodeRest

encodeFull:
	VMOVUPS (SI), Z0
	ENCODE
	VPMOVDB Z1, (DI)
	ADDQ $64, SI
	ADDQ $16, DI
	SUBQ $16, CX
	JGE encodeFull

encodeRest:
	ADDQ $16, CX
	JZ encodeDone
	MASK
	VMOVUPS.Z (SI), K1, Z0
	ENCODE
	VPMOVDB Z1, K1, (DI)

encodeDone:
	VPCMPUD $6, Z17, Z19, K3 // beyond infinity: a NaN
	KORTESTW K3, K3
	SETEQ ret+40(FP)
	VZEROUPPER
	RET

// func fp8DecodeAVX512(x *float32, codes *byte, n, format int, step float32)
//
// E5M2 is the upper half of a float16. An E4M3 moved to the place of a
// float16's fields is 2^8 too small there; its NaN becomes 480 times the sign.
TEXT ·fp8DecodeAVX512(SB), NOSPLIT, $0-36
	MOVQ x+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ format+24(FP), BX
	VBROADCASTSS step+32(FP), Z15
	TESTQ BX, BX
	JNE decode52
	VPBROADCASTD fp8Half<>(SB), Y10
	VPBROADCASTD fp8Widen<>(SB), Z11
	VPBROADCASTD fp8Abs<>(SB), Z12
	VPBROADCASTD fp8Beyond<>(SB), Z13
	VPBROADCASTD fp8NaN<>(SB), Z14

decode43Loop:
	MASK
	VMOVDQU8.Z (SI), K1, X0
	VPMOVSXBW X0, Y0
	VPSLLW $7, Y0, Y0
	VPAND Y10, Y0, Y0
	VCVTPH2PS Y0, Z0
	VMULPS Z11, Z0, Z0
	VPANDD Z12, Z0, Z1
	VCMPPS $0, Z13, Z1, K2
	VPORD Z14, Z0, K2, Z0
	VMULPS Z15, Z0, Z0
	VMOVUPS Z0, K1, (DI)
	ADDQ $16, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JG decode43Loop
	VZEROUPPER
	RET

decode52:
decode52Loop:
	MASK
	VMOVDQU8.Z (SI), K1, X0
	VPMOVZXBW X0, Y0
	VPSLLW $8, Y0, Y0
	VCVTPH2PS Y0, Z0
	VMULPS Z15, Z0, Z0
	VMOVUPS Z0, K1, (DI)
	ADDQ $16, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JG decode52Loop
	VZEROUPPER
	RET
