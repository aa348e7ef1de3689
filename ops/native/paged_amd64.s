//go:build amd64 && !purego

#include "textflag.h"

// The vector steps between stored keys and values and float32, with AVX2 (on
// every CPU that runs assembly here). n is a positive multiple of 8; one vector
// of 8 floats a turn, bound by the cache.

// func widenBF16(y *float32, x *uint16, n int)
//
// y = x as the upper half of a float32.
//	DI y, SI x, CX floats left
TEXT ·widenBF16(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX

widen8:
	VPMOVZXWD (SI), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       widen8
	VZEROUPPER
	RET

// func scaleFloats(y *float32, s float32, n int)
//
// y = s y.
//	DI y, Y1 s, CX floats left
TEXT ·scaleFloats(SB), NOSPLIT, $0-24
	MOVQ         y+0(FP), DI
	VBROADCASTSS s+8(FP), Y1
	MOVQ         n+16(FP), CX

scale8:
	VMULPS  (DI), Y1, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     scale8
	VZEROUPPER
	RET
