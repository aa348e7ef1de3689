//go:build amd64 && !purego

#include "textflag.h"

// The AVX-512 tile: C = alpha A B + beta S for 12, 8, 4, 2 or 1 rows and up to
// 32 columns of float32. For every k it loads 32 columns of B, broadcasts one
// element of A a row and adds the product, so each element of C is one chain of
// fused multiply-adds in the order of k.
//
//	Z0..Z23    sums: row i is Z(2i) (columns 0..15) and Z(2i+1) (columns 16..31)
//	Z24, Z25   row k of B, or of S at the end
//	Z26..Z29   broadcast elements of A
//	Z30, Z31   alpha, beta at the end
//	K1, K2     columns that exist in each half
//	DI args, SI R8 R9 A at rows 0, 4, 8, R10 rsa, R11 3 rsa, R12 csa,
//	BX B, R13 rsb, CX k, DX C, AX ldc, R8 S, R9 lds at the end
//
// Bound: with 12 rows a step of k is 24 FMA of 512 bits on two ports = 12
// cycles, 64 flop a cycle, against 14 loads = 7 cycles; so the FMA ports are
// the bound. With 4 rows or fewer the latency of the chain (4 cycles) is.

#define ZERO(c0, c1) \
	VPXORQ c0, c0, c0 \
	VPXORQ c1, c1, c1

#define LOADB \
	VMOVUPS.Z (BX), K1, Z24 \
	VMOVUPS.Z 64(BX), K2, Z25

#define MULADD(x, c0, c1) \
	VFMADD231PS Z24, x, c0 \
	VFMADD231PS Z25, x, c1

// ROWS4 adds four rows of A that start at the register at.
#define ROWS4(at, c0, c1, c2, c3, c4, c5, c6, c7) \
	VBROADCASTSS (at), Z26         \
	VBROADCASTSS (at)(R10*1), Z27  \
	VBROADCASTSS (at)(R10*2), Z28  \
	VBROADCASTSS (at)(R11*1), Z29  \
	MULADD(Z26, c0, c1)            \
	MULADD(Z27, c2, c3)            \
	MULADD(Z28, c4, c5)            \
	MULADD(Z29, c6, c7)

// STORE writes one row of C and moves to the next; ADDSTORE adds beta S first.
#define STORE(c0, c1) \
	VMULPS  Z30, c0, c0      \
	VMULPS  Z30, c1, c1      \
	VMOVUPS c0, K1, (DX)     \
	VMOVUPS c1, K2, 64(DX)   \
	ADDQ    AX, DX

#define ADDSTORE(c0, c1) \
	VMOVUPS.Z   (R8), K1, Z24   \
	VMOVUPS.Z   64(R8), K2, Z25 \
	VMULPS      Z30, c0, c0     \
	VMULPS      Z30, c1, c1     \
	VFMADD231PS Z24, Z31, c0    \
	VFMADD231PS Z25, Z31, c1    \
	VMOVUPS     c0, K1, (DX)    \
	VMOVUPS     c1, K2, 64(DX)  \
	ADDQ        AX, DX          \
	ADDQ        R9, R8

// EPILOGUE loads what the stores need and branches when there is no S.
#define EPILOGUE(plain) \
	MOVQ 64(DI), R8           \
	MOVQ 72(DI), R9           \
	MOVQ 80(DI), DX           \
	MOVQ 88(DI), AX           \
	VBROADCASTSS 96(DI), Z30  \
	VBROADCASTSS 100(DI), Z31 \
	TESTQ R8, R8              \
	JZ plain

// func tileAVX512(t *tileArgs)
TEXT ·tileAVX512(SB), NOSPLIT, $0-8
	MOVQ t+0(FP), DI

	// K1 and K2 from cols: the low 32 bits of (1 << cols) - 1.
	MOVQ  8(DI), CX
	MOVQ  $1, AX
	SHLQ  CX, AX
	DECQ  AX
	KMOVW AX, K1
	SHRQ  $16, AX
	KMOVW AX, K2

	MOVQ 16(DI), CX
	MOVQ 24(DI), SI
	MOVQ 32(DI), R10
	LEAQ (R10)(R10*2), R11
	LEAQ (SI)(R10*4), R8
	LEAQ (R8)(R10*4), R9
	MOVQ 40(DI), R12
	MOVQ 48(DI), BX
	MOVQ 56(DI), R13

	MOVQ 0(DI), AX
	CMPQ AX, $8
	JG   rows12
	JEQ  rows8
	CMPQ AX, $2
	JG   rows4
	JEQ  rows2
	JMP  rows1

rows12:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	ZERO(Z8, Z9)
	ZERO(Z10, Z11)
	ZERO(Z12, Z13)
	ZERO(Z14, Z15)
	ZERO(Z16, Z17)
	ZERO(Z18, Z19)
	ZERO(Z20, Z21)
	ZERO(Z22, Z23)
	TESTQ CX, CX
	JZ    end12

loop12:
	LOADB
	ROWS4(SI, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
	ROWS4(R8, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
	ROWS4(R9, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23)
	ADDQ R12, SI
	ADDQ R12, R8
	ADDQ R12, R9
	ADDQ R13, BX
	DECQ CX
	JNZ  loop12

end12:
	EPILOGUE(plain12)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	ADDSTORE(Z8, Z9)
	ADDSTORE(Z10, Z11)
	ADDSTORE(Z12, Z13)
	ADDSTORE(Z14, Z15)
	ADDSTORE(Z16, Z17)
	ADDSTORE(Z18, Z19)
	ADDSTORE(Z20, Z21)
	ADDSTORE(Z22, Z23)
	VZEROUPPER
	RET

plain12:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	STORE(Z8, Z9)
	STORE(Z10, Z11)
	STORE(Z12, Z13)
	STORE(Z14, Z15)
	STORE(Z16, Z17)
	STORE(Z18, Z19)
	STORE(Z20, Z21)
	STORE(Z22, Z23)
	VZEROUPPER
	RET

rows8:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	ZERO(Z8, Z9)
	ZERO(Z10, Z11)
	ZERO(Z12, Z13)
	ZERO(Z14, Z15)
	TESTQ CX, CX
	JZ    end8

loop8:
	LOADB
	ROWS4(SI, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
	ROWS4(R8, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
	ADDQ R12, SI
	ADDQ R12, R8
	ADDQ R13, BX
	DECQ CX
	JNZ  loop8

end8:
	EPILOGUE(plain8)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	ADDSTORE(Z8, Z9)
	ADDSTORE(Z10, Z11)
	ADDSTORE(Z12, Z13)
	ADDSTORE(Z14, Z15)
	VZEROUPPER
	RET

plain8:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	STORE(Z8, Z9)
	STORE(Z10, Z11)
	STORE(Z12, Z13)
	STORE(Z14, Z15)
	VZEROUPPER
	RET

rows4:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	TESTQ CX, CX
	JZ    end4

loop4:
	LOADB
	ROWS4(SI, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop4

end4:
	EPILOGUE(plain4)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	VZEROUPPER
	RET

plain4:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	VZEROUPPER
	RET

rows2:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	TESTQ CX, CX
	JZ    end2

loop2:
	LOADB
	VBROADCASTSS (SI), Z26
	VBROADCASTSS (SI)(R10*1), Z27
	MULADD(Z26, Z0, Z1)
	MULADD(Z27, Z2, Z3)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop2

end2:
	EPILOGUE(plain2)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	VZEROUPPER
	RET

plain2:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	VZEROUPPER
	RET

rows1:
	ZERO(Z0, Z1)
	TESTQ CX, CX
	JZ    end1

loop1:
	LOADB
	VBROADCASTSS (SI), Z26
	MULADD(Z26, Z0, Z1)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop1

end1:
	EPILOGUE(plain1)
	ADDSTORE(Z0, Z1)
	VZEROUPPER
	RET

plain1:
	STORE(Z0, Z1)
	VZEROUPPER
	RET

// The streaming tile: C = alpha A B + beta S for 1 to 4 rows and 32 columns, B
// stored [n,k]. Few rows do not pay for a packed copy of B: 16 rows of B by 16
// of k are transposed in registers and used once. The order of the sums is that
// of the tile above.
//
//	Z0..Z15    16 rows of B, then its columns; Z16, Z17 scratch
//	Z24..Z31   sums: row i is Z(24+2i) (columns 0..15) and Z(25+2i) (16..31)
//	DI args, SI A, R10 rsa, R11 3 rsa, AX row stride of B, DX 3 times that,
//	BX R8 R9 R12 B at rows 0, 4, 8, 12 and R13 16 rows, CX blocks of 16 k left
//
// Bound: 64 shuffles for 1 KB of B, two a cycle = 32 bytes a cycle; beyond the
// second level cache the read of B.

// TRANSPOSE turns 16 rows of B into columns. One register is free at a time and
// each pair of results takes it, so the columns end in the order that MULADD16
// reads them in.
#define TRANSPOSE \
	VMOVUPS (BX), Z0 \
	VMOVUPS (BX)(AX*1), Z1 \
	VMOVUPS (BX)(AX*2), Z2 \
	VMOVUPS (BX)(DX*1), Z3 \
	VMOVUPS (R8), Z4 \
	VMOVUPS (R8)(AX*1), Z5 \
	VMOVUPS (R8)(AX*2), Z6 \
	VMOVUPS (R8)(DX*1), Z7 \
	VMOVUPS (R9), Z8 \
	VMOVUPS (R9)(AX*1), Z9 \
	VMOVUPS (R9)(AX*2), Z10 \
	VMOVUPS (R9)(DX*1), Z11 \
	VMOVUPS (R12), Z12 \
	VMOVUPS (R12)(AX*1), Z13 \
	VMOVUPS (R12)(AX*2), Z14 \
	VMOVUPS (R12)(DX*1), Z15 \
	VUNPCKLPS Z1, Z0, Z16 \
	VUNPCKHPS Z1, Z0, Z0 \
	VUNPCKLPS Z3, Z2, Z1 \
	VUNPCKHPS Z3, Z2, Z2 \
	VUNPCKLPS Z5, Z4, Z3 \
	VUNPCKHPS Z5, Z4, Z4 \
	VUNPCKLPS Z7, Z6, Z5 \
	VUNPCKHPS Z7, Z6, Z6 \
	VUNPCKLPS Z9, Z8, Z7 \
	VUNPCKHPS Z9, Z8, Z8 \
	VUNPCKLPS Z11, Z10, Z9 \
	VUNPCKHPS Z11, Z10, Z10 \
	VUNPCKLPS Z13, Z12, Z11 \
	VUNPCKHPS Z13, Z12, Z12 \
	VUNPCKLPS Z15, Z14, Z13 \
	VUNPCKHPS Z15, Z14, Z14 \
	VUNPCKLPD Z1, Z16, Z15 \
	VUNPCKHPD Z1, Z16, Z16 \
	VUNPCKLPD Z2, Z0, Z1 \
	VUNPCKHPD Z2, Z0, Z0 \
	VUNPCKLPD Z5, Z3, Z2 \
	VUNPCKHPD Z5, Z3, Z3 \
	VUNPCKLPD Z6, Z4, Z5 \
	VUNPCKHPD Z6, Z4, Z4 \
	VUNPCKLPD Z9, Z7, Z6 \
	VUNPCKHPD Z9, Z7, Z7 \
	VUNPCKLPD Z10, Z8, Z9 \
	VUNPCKHPD Z10, Z8, Z8 \
	VUNPCKLPD Z13, Z11, Z10 \
	VUNPCKHPD Z13, Z11, Z11 \
	VUNPCKLPD Z14, Z12, Z13 \
	VUNPCKHPD Z14, Z12, Z12 \
	VSHUFF32X4 $0x88, Z2, Z15, Z14 \
	VSHUFF32X4 $0xdd, Z2, Z15, Z15 \
	VSHUFF32X4 $0x88, Z10, Z6, Z2 \
	VSHUFF32X4 $0xdd, Z10, Z6, Z6 \
	VSHUFF32X4 $0x88, Z3, Z16, Z10 \
	VSHUFF32X4 $0xdd, Z3, Z16, Z16 \
	VSHUFF32X4 $0x88, Z11, Z7, Z3 \
	VSHUFF32X4 $0xdd, Z11, Z7, Z7 \
	VSHUFF32X4 $0x88, Z5, Z1, Z11 \
	VSHUFF32X4 $0xdd, Z5, Z1, Z1 \
	VSHUFF32X4 $0x88, Z13, Z9, Z5 \
	VSHUFF32X4 $0xdd, Z13, Z9, Z9 \
	VSHUFF32X4 $0x88, Z4, Z0, Z13 \
	VSHUFF32X4 $0xdd, Z4, Z0, Z0 \
	VSHUFF32X4 $0x88, Z12, Z8, Z4 \
	VSHUFF32X4 $0xdd, Z12, Z8, Z8 \
	VSHUFF32X4 $0x88, Z2, Z14, Z12 \
	VSHUFF32X4 $0xdd, Z2, Z14, Z14 \
	VSHUFF32X4 $0x88, Z6, Z15, Z2 \
	VSHUFF32X4 $0xdd, Z6, Z15, Z15 \
	VSHUFF32X4 $0x88, Z3, Z10, Z6 \
	VSHUFF32X4 $0xdd, Z3, Z10, Z10 \
	VSHUFF32X4 $0x88, Z7, Z16, Z3 \
	VSHUFF32X4 $0xdd, Z7, Z16, Z16 \
	VSHUFF32X4 $0x88, Z5, Z11, Z7 \
	VSHUFF32X4 $0xdd, Z5, Z11, Z11 \
	VSHUFF32X4 $0x88, Z9, Z1, Z5 \
	VSHUFF32X4 $0xdd, Z9, Z1, Z1 \
	VSHUFF32X4 $0x88, Z4, Z13, Z9 \
	VSHUFF32X4 $0xdd, Z4, Z13, Z13 \
	VSHUFF32X4 $0x88, Z8, Z0, Z4 \
	VSHUFF32X4 $0xdd, Z8, Z0, Z0

// MULADD16_i adds the products of 16 of k with row i of A to acc.
#define MULADD16_0(acc) \
	VFMADD231PS.BCST 0(SI), Z12, acc \
	VFMADD231PS.BCST 4(SI), Z6, acc \
	VFMADD231PS.BCST 8(SI), Z7, acc \
	VFMADD231PS.BCST 12(SI), Z9, acc \
	VFMADD231PS.BCST 16(SI), Z2, acc \
	VFMADD231PS.BCST 20(SI), Z3, acc \
	VFMADD231PS.BCST 24(SI), Z5, acc \
	VFMADD231PS.BCST 28(SI), Z4, acc \
	VFMADD231PS.BCST 32(SI), Z14, acc \
	VFMADD231PS.BCST 36(SI), Z10, acc \
	VFMADD231PS.BCST 40(SI), Z11, acc \
	VFMADD231PS.BCST 44(SI), Z13, acc \
	VFMADD231PS.BCST 48(SI), Z15, acc \
	VFMADD231PS.BCST 52(SI), Z16, acc \
	VFMADD231PS.BCST 56(SI), Z1, acc \
	VFMADD231PS.BCST 60(SI), Z0, acc

#define MULADD16_1(acc) \
	VFMADD231PS.BCST 0(SI)(R10*1), Z12, acc \
	VFMADD231PS.BCST 4(SI)(R10*1), Z6, acc \
	VFMADD231PS.BCST 8(SI)(R10*1), Z7, acc \
	VFMADD231PS.BCST 12(SI)(R10*1), Z9, acc \
	VFMADD231PS.BCST 16(SI)(R10*1), Z2, acc \
	VFMADD231PS.BCST 20(SI)(R10*1), Z3, acc \
	VFMADD231PS.BCST 24(SI)(R10*1), Z5, acc \
	VFMADD231PS.BCST 28(SI)(R10*1), Z4, acc \
	VFMADD231PS.BCST 32(SI)(R10*1), Z14, acc \
	VFMADD231PS.BCST 36(SI)(R10*1), Z10, acc \
	VFMADD231PS.BCST 40(SI)(R10*1), Z11, acc \
	VFMADD231PS.BCST 44(SI)(R10*1), Z13, acc \
	VFMADD231PS.BCST 48(SI)(R10*1), Z15, acc \
	VFMADD231PS.BCST 52(SI)(R10*1), Z16, acc \
	VFMADD231PS.BCST 56(SI)(R10*1), Z1, acc \
	VFMADD231PS.BCST 60(SI)(R10*1), Z0, acc

#define MULADD16_2(acc) \
	VFMADD231PS.BCST 0(SI)(R10*2), Z12, acc \
	VFMADD231PS.BCST 4(SI)(R10*2), Z6, acc \
	VFMADD231PS.BCST 8(SI)(R10*2), Z7, acc \
	VFMADD231PS.BCST 12(SI)(R10*2), Z9, acc \
	VFMADD231PS.BCST 16(SI)(R10*2), Z2, acc \
	VFMADD231PS.BCST 20(SI)(R10*2), Z3, acc \
	VFMADD231PS.BCST 24(SI)(R10*2), Z5, acc \
	VFMADD231PS.BCST 28(SI)(R10*2), Z4, acc \
	VFMADD231PS.BCST 32(SI)(R10*2), Z14, acc \
	VFMADD231PS.BCST 36(SI)(R10*2), Z10, acc \
	VFMADD231PS.BCST 40(SI)(R10*2), Z11, acc \
	VFMADD231PS.BCST 44(SI)(R10*2), Z13, acc \
	VFMADD231PS.BCST 48(SI)(R10*2), Z15, acc \
	VFMADD231PS.BCST 52(SI)(R10*2), Z16, acc \
	VFMADD231PS.BCST 56(SI)(R10*2), Z1, acc \
	VFMADD231PS.BCST 60(SI)(R10*2), Z0, acc

#define MULADD16_3(acc) \
	VFMADD231PS.BCST 0(SI)(R11*1), Z12, acc \
	VFMADD231PS.BCST 4(SI)(R11*1), Z6, acc \
	VFMADD231PS.BCST 8(SI)(R11*1), Z7, acc \
	VFMADD231PS.BCST 12(SI)(R11*1), Z9, acc \
	VFMADD231PS.BCST 16(SI)(R11*1), Z2, acc \
	VFMADD231PS.BCST 20(SI)(R11*1), Z3, acc \
	VFMADD231PS.BCST 24(SI)(R11*1), Z5, acc \
	VFMADD231PS.BCST 28(SI)(R11*1), Z4, acc \
	VFMADD231PS.BCST 32(SI)(R11*1), Z14, acc \
	VFMADD231PS.BCST 36(SI)(R11*1), Z10, acc \
	VFMADD231PS.BCST 40(SI)(R11*1), Z11, acc \
	VFMADD231PS.BCST 44(SI)(R11*1), Z13, acc \
	VFMADD231PS.BCST 48(SI)(R11*1), Z15, acc \
	VFMADD231PS.BCST 52(SI)(R11*1), Z16, acc \
	VFMADD231PS.BCST 56(SI)(R11*1), Z1, acc \
	VFMADD231PS.BCST 60(SI)(R11*1), Z0, acc

#define NEXT16ROWS \
	ADDQ R13, BX \
	ADDQ R13, R8 \
	ADDQ R13, R9 \
	ADDQ R13, R12

// NEXT16K goes back to the first rows and on to the next 16 of k.
#define NEXT16K \
	SUBQ R13, BX  \
	SUBQ R13, R8  \
	SUBQ R13, R9  \
	SUBQ R13, R12 \
	ADDQ $64, BX  \
	ADDQ $64, R8  \
	ADDQ $64, R9  \
	ADDQ $64, R12 \
	ADDQ $64, SI  \
	DECQ CX

// func streamAVX512(t *tileArgs)
//
// b is B's first row and rsb the stride of its rows; k is a positive multiple of
// 16, cols is 32 and csa is 4.
TEXT ·streamAVX512(SB), NOSPLIT, $0-8
	MOVQ   t+0(FP), DI
	KXNORW K1, K1, K1
	KXNORW K2, K2, K2
	MOVQ   16(DI), CX
	SHRQ   $4, CX
	MOVQ   24(DI), SI
	MOVQ   32(DI), R10
	LEAQ   (R10)(R10*2), R11
	MOVQ   48(DI), BX
	MOVQ   56(DI), AX
	LEAQ   (AX)(AX*2), DX
	LEAQ   (BX)(AX*4), R8
	LEAQ   (R8)(AX*4), R9
	LEAQ   (R9)(AX*4), R12
	MOVQ   AX, R13
	SHLQ   $4, R13
	ZERO(Z24, Z25)
	ZERO(Z26, Z27)
	ZERO(Z28, Z29)
	ZERO(Z30, Z31)
	CMPQ   0(DI), $2
	JL     stream1
	JEQ    stream2
	CMPQ   0(DI), $3
	JEQ    stream3

stream4:
	TRANSPOSE
	MULADD16_0(Z24)
	MULADD16_1(Z26)
	MULADD16_2(Z28)
	MULADD16_3(Z30)
	NEXT16ROWS
	TRANSPOSE
	MULADD16_0(Z25)
	MULADD16_1(Z27)
	MULADD16_2(Z29)
	MULADD16_3(Z31)
	NEXT16K
	JNZ stream4
	VMOVAPS Z24, Z0
	VMOVAPS Z25, Z1
	VMOVAPS Z26, Z2
	VMOVAPS Z27, Z3
	VMOVAPS Z28, Z4
	VMOVAPS Z29, Z5
	VMOVAPS Z30, Z6
	VMOVAPS Z31, Z7
	EPILOGUE(streamplain4)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	VZEROUPPER
	RET

streamplain4:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	VZEROUPPER
	RET

stream3:
	TRANSPOSE
	MULADD16_0(Z24)
	MULADD16_1(Z26)
	MULADD16_2(Z28)
	NEXT16ROWS
	TRANSPOSE
	MULADD16_0(Z25)
	MULADD16_1(Z27)
	MULADD16_2(Z29)
	NEXT16K
	JNZ stream3
	VMOVAPS Z24, Z0
	VMOVAPS Z25, Z1
	VMOVAPS Z26, Z2
	VMOVAPS Z27, Z3
	VMOVAPS Z28, Z4
	VMOVAPS Z29, Z5
	EPILOGUE(streamplain3)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	VZEROUPPER
	RET

streamplain3:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	VZEROUPPER
	RET

stream2:
	TRANSPOSE
	MULADD16_0(Z24)
	MULADD16_1(Z26)
	NEXT16ROWS
	TRANSPOSE
	MULADD16_0(Z25)
	MULADD16_1(Z27)
	NEXT16K
	JNZ stream2
	VMOVAPS Z24, Z0
	VMOVAPS Z25, Z1
	VMOVAPS Z26, Z2
	VMOVAPS Z27, Z3
	EPILOGUE(streamplain2)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	VZEROUPPER
	RET

streamplain2:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	VZEROUPPER
	RET

stream1:
	TRANSPOSE
	MULADD16_0(Z24)
	NEXT16ROWS
	TRANSPOSE
	MULADD16_0(Z25)
	NEXT16K
	JNZ stream1
	VMOVAPS Z24, Z0
	VMOVAPS Z25, Z1
	EPILOGUE(streamplain1)
	ADDSTORE(Z0, Z1)
	VZEROUPPER
	RET

streamplain1:
	STORE(Z0, Z1)
	VZEROUPPER
	RET
