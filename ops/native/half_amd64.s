//go:build amd64 && !purego

#include "textflag.h"

// func widenF16(y *float32, x *uint16, n int)
//
// y = x, IEEE binary16 to float32 with F16C (on every CPU with AVX2). n is a
// positive multiple of 8; one vector of 8 floats a turn, bound by the cache.
//	DI y, SI x, CX floats left
TEXT ·widenF16(SB), NOSPLIT, $0-24
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
