//go:build amd64 && !purego

#include "textflag.h"
#include "bf16_amd64.h"

// What makes the operands of BF16x6: a float32 is the sum of three bf16, each the
// rest of it rounded to nearest, ties to even; the third is exact. 32 numbers along
// k are 16 words of first parts, 16 of second, 16 of third ones; word i holds
// numbers i (below) and 16+i. What is below 2^-126 of a part becomes zero later.
//
// Bound: 26 vector instructions for 32 numbers, which are 128 bytes read and 192
// written.

// PART takes the first part of Z0 and Z1 off them into words z, register n, and
// changes Z5, Z6; Z30 is the upper half of each lane, Z31 the order of halves.
#define PART(n, z) \
	CVT2(n, 1, 0)                    \
	VPERMW     z, Z31, z             \
	VPSLLD     $16, z, Z5            \
	VPANDD     z, Z30, Z6            \
	VSUBPS     Z5, Z0, Z0            \
	VSUBPS     Z6, Z1, Z1

// SPLIT makes words Z2, Z3, Z4 of the parts of Z0 and Z1.
#define SPLIT \
	PART(2, Z2)                      \
	PART(3, Z3)                      \
	VPSRLD     $16, Z0, Z4           \
	VPTERNLOGD $0xF8, Z1, Z30, Z4

// TOP raises a vector of magnitudes to those of Z0 and Z1; Z29 is all but the sign.
#define TOP(top) \
	VPANDD  Z0, Z29, Z5   \
	VPANDD  Z1, Z29, Z6   \
	VPMAXUD Z5, top, top  \
	VPMAXUD Z6, top, top

#define CONSTANTS \
	VMOVDQU64    interleave<>(SB), Z31 \
	MOVL         $0xFFFF0000, AX       \
	VPBROADCASTD AX, Z30               \
	MOVL         $0x7FFFFFFF, AX       \
	VPBROADCASTD AX, Z29

#define STORE(at) \
	VMOVUPS Z2, at(DI)      \
	VMOVUPS Z3, 2048+at(DI) \
	VMOVUPS Z4, 4096+at(DI)

// func splitRow(dst, src *float32, n int) (top uint32)
//
// dst holds the words of n > 0 numbers of a row, 48 for each 32, zeros beyond n;
// top is the largest magnitude, as bits.
//	DI dst, SI src, DX numbers left, Z28 magnitudes
TEXT ·splitRow(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	CONSTANTS
	VPXORQ Z28, Z28, Z28
	SUBQ $32, DX
	JLT  rest

full:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	ADDQ $128, SI

step:
	TOP(Z28)
	SPLIT
	VMOVUPS Z2, (DI)
	VMOVUPS Z3, 64(DI)
	VMOVUPS Z4, 128(DI)
	ADDQ $192, DI
	SUBQ $32, DX
	JGE  full

rest:
	ADDQ $32, DX
	JLE  done
	MASK(DX, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	XORL DX, DX
	JMP  step

done:
	VEXTRACTI64X4 $1, Z28, Y0
	VPMAXUD Y0, Y28, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4E, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xB1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD X0, AX
	MOVL AX, top+24(FP)
	VZEROUPPER
	RET

// func splitRows(dst, src *float32, lds, rows, cols int, tops *float32)
//
// dst holds the words of rows > 0 rows of 1 to 32 columns, down the columns: 48
// rows of 32 words for each 32 rows, zeros beyond; lds is in bytes. tops, 32 of
// them, are raised to the magnitudes of the columns.
//	DI dst, SI src, R8 src 16 rows on, R9 lds, DX rows left, K1 K2 columns,
//	CX words left of a step, Z27 Z28 magnitudes, K3 to K6 what is read of a word's
//	two rows
TEXT ·splitRows(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lds+16(FP), R9
	MOVQ rows+24(FP), DX
	MOVQ cols+32(FP), R10
	MOVQ tops+40(FP), R11
	MASK(R10, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	CONSTANTS
	VMOVDQU32 (R11), Z27
	VMOVDQU32 64(R11), Z28

step:
	MOVQ R9, R8
	SHLQ $4, R8
	ADDQ SI, R8
	MOVQ $16, CX
	CMPQ R10, $32
	JLT  part
	CMPQ DX, $32
	JLT  part

full:
	VMOVUPS (SI), Z0
	VMOVUPS (R8), Z1
	TOP(Z27)
	SPLIT
	STORE(0)
	VMOVUPS 64(SI), Z0
	VMOVUPS 64(R8), Z1
	TOP(Z28)
	SPLIT
	STORE(64)
	ADDQ R9, SI
	ADDQ R9, R8
	ADDQ $128, DI
	DECQ CX
	JNZ  full
	SUBQ $32, DX
	JMP  next

part:
	KMOVW K1, K3
	KMOVW K2, K4
	KMOVW K1, K5
	KMOVW K2, K6
	CMPQ  DX, $16
	JGT   read
	KXORW K5, K5, K5
	KXORW K6, K6, K6
	TESTQ DX, DX
	JGT   read
	KXORW K3, K3, K3
	KXORW K4, K4, K4

read:
	VMOVUPS.Z (SI), K3, Z0
	VMOVUPS.Z (R8), K5, Z1
	TOP(Z27)
	SPLIT
	STORE(0)
	VMOVUPS.Z 64(SI), K4, Z0
	VMOVUPS.Z 64(R8), K6, Z1
	TOP(Z28)
	SPLIT
	STORE(64)
	ADDQ R9, SI
	ADDQ R9, R8
	ADDQ $128, DI
	DECQ DX
	DECQ CX
	JNZ  part
	SUBQ $16, DX

next:
	MOVQ R8, SI
	ADDQ $4096, DI
	TESTQ DX, DX
	JGT  step
	VMOVDQU32 Z27, (R11)
	VMOVDQU32 Z28, 64(R11)
	VZEROUPPER
	RET
