//go:build amd64 && !purego

#include "textflag.h"

// The AVX2 tile: C = alpha A B + beta S for 6, 4, 2 or 1 rows and exactly 16
// columns of float32 (narrower tiles go through a buffer). Each element of C is
// one chain of fused multiply-adds in the order of k, as in the AVX-512 tile.
//
//	Y0..Y11    sums: row i is Y(2i) (columns 0..7) and Y(2i+1) (columns 8..15)
//	Y12, Y13   row k of B; alpha, beta at the end
//	Y14, Y15   broadcast elements of A; a row of S at the end
//	DI args, SI R8 A at rows 0 and 3, R10 rsa, R12 csa, BX B, R13 rsb, CX k,
//	DX C, AX ldc, R8 S, R9 lds at the end
//
// Bound: with 6 rows a step of k is 12 FMA of 256 bits on two ports = 6 cycles,
// 32 flop a cycle, against 8 loads = 4 cycles; so the FMA ports are the bound.

#define ZERO(c0, c1) \
	VXORPS c0, c0, c0 \
	VXORPS c1, c1, c1

#define LOADB \
	VMOVUPS (BX), Y12 \
	VMOVUPS 32(BX), Y13

#define MULADD(x, c0, c1) \
	VFMADD231PS Y12, x, c0 \
	VFMADD231PS Y13, x, c1

#define STORE(c0, c1) \
	VMULPS  Y12, c0, c0  \
	VMULPS  Y12, c1, c1  \
	VMOVUPS c0, (DX)     \
	VMOVUPS c1, 32(DX)   \
	ADDQ    AX, DX

#define ADDSTORE(c0, c1) \
	VMOVUPS     (R8), Y14     \
	VMOVUPS     32(R8), Y15   \
	VMULPS      Y12, c0, c0   \
	VMULPS      Y12, c1, c1   \
	VFMADD231PS Y14, Y13, c0  \
	VFMADD231PS Y15, Y13, c1  \
	VMOVUPS     c0, (DX)      \
	VMOVUPS     c1, 32(DX)    \
	ADDQ        AX, DX        \
	ADDQ        R9, R8

#define EPILOGUE(plain) \
	MOVQ 64(DI), R8           \
	MOVQ 72(DI), R9           \
	MOVQ 80(DI), DX           \
	MOVQ 88(DI), AX           \
	VBROADCASTSS 96(DI), Y12  \
	VBROADCASTSS 100(DI), Y13 \
	TESTQ R8, R8              \
	JZ plain

// func tileAVX2(t *tileArgs)
TEXT ·tileAVX2(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI
	MOVQ 16(DI), CX
	MOVQ 24(DI), SI
	MOVQ 32(DI), R10
	LEAQ (SI)(R10*2), R8
	ADDQ R10, R8
	MOVQ 40(DI), R12
	MOVQ 48(DI), BX
	MOVQ 56(DI), R13

	MOVQ 0(DI), AX
	CMPQ AX, $4
	JG   rows6
	JEQ  rows4
	CMPQ AX, $2
	JEQ  rows2
	JMP  rows1

rows6:
	ZERO(Y0, Y1)
	ZERO(Y2, Y3)
	ZERO(Y4, Y5)
	ZERO(Y6, Y7)
	ZERO(Y8, Y9)
	ZERO(Y10, Y11)
	TESTQ CX, CX
	JZ    end6

loop6:
	LOADB
	VBROADCASTSS (SI), Y14
	VBROADCASTSS (SI)(R10*1), Y15
	MULADD(Y14, Y0, Y1)
	MULADD(Y15, Y2, Y3)
	VBROADCASTSS (SI)(R10*2), Y14
	VBROADCASTSS (R8), Y15
	MULADD(Y14, Y4, Y5)
	MULADD(Y15, Y6, Y7)
	VBROADCASTSS (R8)(R10*1), Y14
	VBROADCASTSS (R8)(R10*2), Y15
	MULADD(Y14, Y8, Y9)
	MULADD(Y15, Y10, Y11)
	ADDQ R12, SI
	ADDQ R12, R8
	ADDQ R13, BX
	DECQ CX
	JNZ  loop6

end6:
	EPILOGUE(plain6)
	ADDSTORE(Y0, Y1)
	ADDSTORE(Y2, Y3)
	ADDSTORE(Y4, Y5)
	ADDSTORE(Y6, Y7)
	ADDSTORE(Y8, Y9)
	ADDSTORE(Y10, Y11)
	VZEROUPPER
	RET

plain6:
	STORE(Y0, Y1)
	STORE(Y2, Y3)
	STORE(Y4, Y5)
	STORE(Y6, Y7)
	STORE(Y8, Y9)
	STORE(Y10, Y11)
	VZEROUPPER
	RET

rows4:
	ZERO(Y0, Y1)
	ZERO(Y2, Y3)
	ZERO(Y4, Y5)
	ZERO(Y6, Y7)
	TESTQ CX, CX
	JZ    end4

loop4:
	LOADB
	VBROADCASTSS (SI), Y14
	VBROADCASTSS (SI)(R10*1), Y15
	MULADD(Y14, Y0, Y1)
	MULADD(Y15, Y2, Y3)
	VBROADCASTSS (SI)(R10*2), Y14
	VBROADCASTSS (R8), Y15
	MULADD(Y14, Y4, Y5)
	MULADD(Y15, Y6, Y7)
	ADDQ R12, SI
	ADDQ R12, R8
	ADDQ R13, BX
	DECQ CX
	JNZ  loop4

end4:
	EPILOGUE(plain4)
	ADDSTORE(Y0, Y1)
	ADDSTORE(Y2, Y3)
	ADDSTORE(Y4, Y5)
	ADDSTORE(Y6, Y7)
	VZEROUPPER
	RET

plain4:
	STORE(Y0, Y1)
	STORE(Y2, Y3)
	STORE(Y4, Y5)
	STORE(Y6, Y7)
	VZEROUPPER
	RET

rows2:
	ZERO(Y0, Y1)
	ZERO(Y2, Y3)
	TESTQ CX, CX
	JZ    end2

loop2:
	LOADB
	VBROADCASTSS (SI), Y14
	VBROADCASTSS (SI)(R10*1), Y15
	MULADD(Y14, Y0, Y1)
	MULADD(Y15, Y2, Y3)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop2

end2:
	EPILOGUE(plain2)
	ADDSTORE(Y0, Y1)
	ADDSTORE(Y2, Y3)
	VZEROUPPER
	RET

plain2:
	STORE(Y0, Y1)
	STORE(Y2, Y3)
	VZEROUPPER
	RET

rows1:
	ZERO(Y0, Y1)
	TESTQ CX, CX
	JZ    end1

loop1:
	LOADB
	VBROADCASTSS (SI), Y14
	MULADD(Y14, Y0, Y1)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop1

end1:
	EPILOGUE(plain1)
	ADDSTORE(Y0, Y1)
	VZEROUPPER
	RET

plain1:
	STORE(Y0, Y1)
	VZEROUPPER
	RET
