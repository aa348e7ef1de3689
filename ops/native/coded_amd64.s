//go:build amd64 && !purego

#include "textflag.h"

// Stored numbers to float32, with AVX2 and F16C (on every CPU that runs assembly
// here). n is a positive multiple of 8 for the 16-bit floats and of 32 for the
// blocks; bound by the cache.
//	DI y, SI x, CX numbers left

DATA codedc<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f // the low half of every byte
DATA codedc<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA codedc<>+16(SB)/8, $0x0808080808080808 // 8 in every byte
DATA codedc<>+24(SB)/8, $0x0808080808080808
GLOBL codedc<>(SB), RODATA|NOPTR, $32

// func codedBF16(y *float32, x *byte, n int)
TEXT ·codedBF16(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

bf16:
	VPMOVZXWD (SI), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       bf16
	VZEROUPPER
	RET

// func codedF16(y *float32, x *byte, n int)
TEXT ·codedF16(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

f16:
	VCVTPH2PS (SI), Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       f16
	VZEROUPPER
	RET

// HALF broadcasts the binary16 at off(SI) as float32 to Y; X is its low part.
#define HALF(off, X, Y) \
	MOVWLZX      off(SI), AX \
	VMOVD        AX, X       \
	VCVTPH2PS    X, X        \
	VBROADCASTSS X, Y

// EIGHT is 8 int8 in the low half of X as float32 times Y1, to off(DI).
#define EIGHT(X, off) \
	VPMOVSXBD X, Y4      \
	VCVTDQ2PS Y4, Y4     \
	VMULPS    Y1, Y4, Y4 \
	VMOVUPS   Y4, off(DI)

// func codedQ8_0(y *float32, x *byte, n int)
TEXT ·codedQ8_0(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

q80:
	HALF(0, X1, Y1)
	VMOVQ 2(SI), X2
	EIGHT(X2, 0)
	VMOVQ 10(SI), X2
	EIGHT(X2, 32)
	VMOVQ 18(SI), X2
	EIGHT(X2, 64)
	VMOVQ 26(SI), X2
	EIGHT(X2, 96)
	ADDQ  $34, SI
	ADDQ  $128, DI
	SUBQ  $32, CX
	JNZ   q80
	VZEROUPPER
	RET

// HALVES takes the 16 bytes at off(SI) apart: low halves to X2, high to X3.
#define HALVES(off) \
	VMOVDQU off(SI), X2        \
	VPSRLW  $4, X2, X3         \
	VPAND   codedc<>+0(SB), X2, X2 \
	VPAND   codedc<>+0(SB), X3, X3

// func codedQ4_0(y *float32, x *byte, n int)
TEXT ·codedQ4_0(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

q40:
	HALF(0, X1, Y1)
	HALVES(2)
	VPSUBB  codedc<>+16(SB), X2, X2
	VPSUBB  codedc<>+16(SB), X3, X3
	EIGHT(X2, 0)
	VPSRLDQ $8, X2, X2
	EIGHT(X2, 32)
	EIGHT(X3, 64)
	VPSRLDQ $8, X3, X3
	EIGHT(X3, 96)
	ADDQ    $18, SI
	ADDQ    $128, DI
	SUBQ    $32, CX
	JNZ     q40
	VZEROUPPER
	RET

// EIGHTM is EIGHT plus Y5.
#define EIGHTM(X, off) \
	VPMOVSXBD X, Y4      \
	VCVTDQ2PS Y4, Y4     \
	VMULPS    Y1, Y4, Y4 \
	VADDPS    Y5, Y4, Y4 \
	VMOVUPS   Y4, off(DI)

// func codedQ4_1(y *float32, x *byte, n int)
TEXT ·codedQ4_1(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

q41:
	HALF(0, X1, Y1)
	HALF(2, X5, Y5)
	HALVES(4)
	EIGHTM(X2, 0)
	VPSRLDQ $8, X2, X2
	EIGHTM(X2, 32)
	EIGHTM(X3, 64)
	VPSRLDQ $8, X3, X3
	EIGHTM(X3, 96)
	ADDQ    $20, SI
	ADDQ    $128, DI
	SUBQ    $32, CX
	JNZ     q41
	VZEROUPPER
	RET
