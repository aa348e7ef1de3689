//go:build amd64 && !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "exp4_amd64.h"
#include "bf16_amd64.h"
#include "attention_rows_amd64.h"

// The row work of attention by BF16x6: from scores in float32 to words of three
// parts (gemm_bf16x6_amd64.s), two rows of 32 keys a turn. Bound: the exponential, 22
// instructions for 16 scores, where the parts take 14 for 32.

// HALVES sets Z29 to the order of halves and Z30 to the upper half of each lane.
#define HALVES \
	VMOVDQU64    interleave<>(SB), Z29 \
	VBROADCASTSS upper<>(SB), Z30

DATA upper<>+0(SB)/4, $0xFFFF0000
GLOBL upper<>(SB), RODATA|NOPTR, $4

// SPLITOF makes words Zn1, Zn2 (z1, z2) and z3 of the parts of Zna below and Znb
// above (za, zb, which change); t1 and t2 are scratch, Z29 and Z30 those of HALVES.
#define SPLITOF(na, nb, za, zb, n1, n2, z1, z2, z3, t1, t2) \
	CVT2(n1, nb, na)         \
	VPERMW z1, Z29, z1       \
	VPSLLD $16, z1, t1       \
	VPANDD z1, Z30, t2       \
	VSUBPS t1, za, za        \
	VSUBPS t2, zb, zb        \
	CVT2(n2, nb, na)         \
	VPERMW z2, Z29, z2       \
	VPSLLD $16, z2, t1       \
	VPANDD z2, Z30, t2       \
	VSUBPS t1, za, za        \
	VSUBPS t2, zb, zb        \
	VPSRLD $16, za, z3       \
	VPTERNLOGD $0xF8, zb, Z30, z3

// ACROSS stores, at off in R10, pairs of the two rows whose keys x and y pair along
// them; t and u are scratch.
#define ACROSS(x, y, t, u, off) \
	VPSLLD     $16, y, t        \
	VPTERNLOGD $0xF2, x, Z30, t \
	VPSRLD     $16, x, u        \
	VPTERNLOGD $0xF8, y, Z30, u \
	VMOVUPS    t, off(R10)      \
	VMOVUPS    u, 64+off(R10)

// STORE3 stores three words of 32 numbers that follow each other.
#define STORE3(z1, z2, z3, at1, at2, at3) \
	VMOVUPS z1, at1 \
	VMOVUPS z2, at2 \
	VMOVUPS z3, at3

// func expSplit(words *float32, ld int, s *float32, rows, stride, blocks int, scale float32, base *float32, sum *float64)
//
// words gets the parts of e^(scale s - base) of rows > 0 rows of 32*blocks scores, 48
// words for 32 of them; rows of s are stride bytes apart, those of words ld. sum gets
// their sums. Rows go by twos: an odd last one's partner, whatever it holds, is
// computed too.
//	DI words and SI s of the first row, R8 base, R9 sum, R10 stride, R11 ld,
//	DX rows left, R12 blocks; R13 s, BX words, CX blocks left
//	Z0 Z1 sums of the first row, Z8 Z31 of the second
TEXT ·expSplit(SB), NOSPLIT, $0-72
	MOVQ words+0(FP), DI
	MOVQ ld+8(FP), R11
	MOVQ s+16(FP), SI
	MOVQ rows+24(FP), DX
	MOVQ stride+32(FP), R10
	MOVQ blocks+40(FP), R12
	MOVQ base+56(FP), R8
	MOVQ sum+64(FP), R9
	EXP4_CONSTANTS

rows:
	MOVQ   SI, R13
	MOVQ   DI, BX
	MOVQ   R12, CX
	NOSUMS

block:
	VBROADCASTSS scale+48(FP), Z28
	VMULPS (R13), Z28, Z2
	VMULPS 64(R13), Z28, Z3
	VMULPS (R13)(R10*1), Z28, Z4
	VMULPS 64(R13)(R10*1), Z28, Z5
	EXPSUMS
	HALVES
	SPLITOF(2, 3, Z2, Z3, 6, 7, Z6, Z7, Z9, Z10, Z11)
	SPLITOF(4, 5, Z4, Z5, 12, 13, Z12, Z13, Z14, Z15, Z28)
	STORE3(Z6, Z7, Z9, (BX), 64(BX), 128(BX))
	STORE3(Z12, Z13, Z14, (BX)(R11*1), 64(BX)(R11*1), 128(BX)(R11*1))
	ADDQ $128, R13
	ADDQ $192, BX
	DECQ CX
	JNZ  block

	NEXTROWS
	JGT  rows
	VZEROUPPER
	RET

// GRADOF makes the probabilities of seen keys in p into their gradient of scaled
// dout.v in d, both 0 for the others; t is the row's factor, u scratch.
#define GRADOF(p, d, t, k, u) \
	VMOVAPS.Z   p, k, p \
	VMULPS      p, d, d \
	VMULPS.BCST t, p, u \
	VADDPS.Z    u, d, k, d

// SEEN sets k to which of 16 keys, whose numbers are in z, are from..to.
#define SEEN(z, from, to, k) \
	VPCMPD.BCST $1, to, z, k \
	VPCMPD.BCST $5, from, z, k, k

// func softmaxGradSplit(step *splitGradStep)
//
// Row i and row 16+i of a step by turns, 32 keys: the parts of p and ds as words that
// pair the rows, those of ds also as words along them. Rows of scores and of dout.v
// are 512 bytes apart, those of words 832, panels 24576. Scores above lse, of which
// rounding leaves whole numbers beyond 1e7, become lse: p is at most 1. NaN stays.
//	DX the arguments, AX those of a row, DI pairs of p, R10 pairs of ds, R11 rows of
//	ds, SI scores, R13 dout.v, R9 blocks left, CX rows left, BX the key,
//	K1 K2 of row i, K3 K4 of row 16+i what is seen
TEXT ·softmaxGradSplit(SB), NOSPLIT, $0-8
	MOVQ step+0(FP), DX
	MOVQ 0(DX), DI
	MOVQ 8(DX), R10
	MOVQ 16(DX), R11
	MOVQ 24(DX), SI
	MOVQ 32(DX), R13
	MOVQ 40(DX), R9
	EXP4_CONSTANTS
	XORL   BX, BX
	KXNORW K1, K1, K1
	KXNORW K2, K2, K2
	KXNORW K3, K3, K3
	KXNORW K4, K4, K4

block:
	MOVQ DX, AX
	MOVQ $16, CX

pair:
	CMPL 52(DX), $0
	JEQ  seen
	VPBROADCASTD BX, Z6
	VPADDD       keys<>(SB), Z6, Z6
	VPADDD.BCST  keys<>+64(SB), Z6, Z7
	SEEN(Z6, 312(AX), 440(AX), K1)
	SEEN(Z7, 312(AX), 440(AX), K2)
	SEEN(Z6, 376(AX), 504(AX), K3)
	SEEN(Z7, 376(AX), 504(AX), K4)

seen:
	VBROADCASTSS 48(DX), Z28
	VMULPS (SI), Z28, Z2
	VMULPS 64(SI), Z28, Z3
	VMULPS 8192(SI), Z28, Z4
	VMULPS 8256(SI), Z28, Z5
	VSUBPS.BCST 56(AX), Z2, Z2
	VSUBPS.BCST 56(AX), Z3, Z3
	VSUBPS.BCST 120(AX), Z4, Z4
	VSUBPS.BCST 120(AX), Z5, Z5
	VPXORD Z28, Z28, Z28
	VMINPS Z2, Z28, Z2
	VMINPS Z3, Z28, Z3
	VMINPS Z4, Z28, Z4
	VMINPS Z5, Z28, Z5
	EXP4
	VBROADCASTSS 48(DX), Z28
	VMULPS (R13), Z28, Z11
	VMULPS 64(R13), Z28, Z12
	VMULPS 8192(R13), Z28, Z13
	VMULPS 8256(R13), Z28, Z14
	GRADOF(Z2, Z11, 184(AX), K1, Z6)
	GRADOF(Z3, Z12, 184(AX), K2, Z7)
	GRADOF(Z4, Z13, 248(AX), K3, Z9)
	GRADOF(Z5, Z14, 248(AX), K4, Z10)
	HALVES
	SPLITOF(2, 4, Z2, Z4, 6, 7, Z6, Z7, Z9, Z10, Z15)
	STORE3(Z6, Z7, Z9, (DI), 2048(DI), 4096(DI))
	SPLITOF(3, 5, Z3, Z5, 0, 1, Z0, Z1, Z8, Z28, Z31)
	STORE3(Z0, Z1, Z8, 64(DI), 2112(DI), 4160(DI))
	SPLITOF(11, 12, Z11, Z12, 2, 3, Z2, Z3, Z4, Z10, Z15)
	STORE3(Z2, Z3, Z4, (R11), 64(R11), 128(R11))
	SPLITOF(13, 14, Z13, Z14, 5, 6, Z5, Z6, Z7, Z28, Z31)
	STORE3(Z5, Z6, Z7, 13312(R11), 13376(R11), 13440(R11))
	ACROSS(Z2, Z5, Z9, Z10, 0)
	ACROSS(Z3, Z6, Z0, Z1, 2048)
	ACROSS(Z4, Z7, Z8, Z15, 4096)
	ADDQ $4, AX
	ADDQ $128, DI
	ADDQ $128, R10
	ADDQ $832, R11
	ADDQ $512, SI
	ADDQ $512, R13
	DECQ CX
	JNZ  pair

	// The next 32 keys.
	ADDQ $32, BX
	ADDQ $(24576-2048), DI
	ADDQ $(24576-2048), R10
	SUBQ $(16*832-192), R11
	SUBQ $(16*512-128), SI
	SUBQ $(16*512-128), R13
	DECQ R9
	JNZ  block
	VZEROUPPER
	RET

// TOP raises a vector of magnitudes to those of x and y; Z31 is all but the sign.
#define TOP(x, y, top) \
	VPANDD  x, Z31, Z9    \
	VPANDD  y, Z31, Z10   \
	VPMAXUD Z9, top, top  \
	VPMAXUD Z10, top, top

// func splitBoth(rows *float32, ld int, panels, src *float32, lds, blocks int, tops *[splitRun]float32)
//
// Words of three parts of 32 rows of 32*blocks numbers, both ways: along each row, ld
// bytes apart, and, in a panel of 48 rows of 32 words for each 32 columns, down the
// columns. Rows of src are lds bytes apart. tops gets the largest magnitude of each row.
//	SI row i of src, R13 row 16+i, DI and BX their words, R10 pairs of both, R8 lds,
//	R11 ld, R12 blocks, R9 tops, DX rows left, CX blocks left, AX bytes of src done
//	Z27, Z28 magnitudes
TEXT ·splitBoth(SB), NOSPLIT, $0-56
	MOVQ rows+0(FP), DI
	MOVQ ld+8(FP), R11
	MOVQ src+24(FP), SI
	MOVQ lds+32(FP), R8
	MOVQ blocks+40(FP), R12
	MOVQ tops+48(FP), R9
	MOVQ R8, R13
	SHLQ $4, R13
	ADDQ SI, R13
	MOVQ R11, BX
	SHLQ $4, BX
	ADDQ DI, BX
	HALVES
	VPTERNLOGD $0xFF, Z31, Z31, Z31
	VPSRLD $1, Z31, Z31
	MOVQ $16, DX
	MOVQ panels+16(FP), R10

pair:
	VPXORQ Z27, Z27, Z27
	VPXORQ Z28, Z28, Z28
	MOVQ   R12, CX
	XORL   AX, AX
	PUSHQ  R10
	PUSHQ  DI
	PUSHQ  BX

block:
	VMOVUPS (SI)(AX*1), Z0
	VMOVUPS 64(SI)(AX*1), Z1
	VMOVUPS (R13)(AX*1), Z2
	VMOVUPS 64(R13)(AX*1), Z3
	TOP(Z0, Z1, Z27)
	TOP(Z2, Z3, Z28)
	SPLITOF(0, 1, Z0, Z1, 6, 7, Z6, Z7, Z8, Z9, Z10)
	STORE3(Z6, Z7, Z8, (DI), 64(DI), 128(DI))
	SPLITOF(2, 3, Z2, Z3, 11, 12, Z11, Z12, Z13, Z14, Z15)
	STORE3(Z11, Z12, Z13, (BX), 64(BX), 128(BX))
	ACROSS(Z6, Z11, Z0, Z1, 0)
	ACROSS(Z7, Z12, Z2, Z3, 2048)
	ACROSS(Z8, Z13, Z9, Z10, 4096)
	ADDQ $128, AX
	ADDQ $192, DI
	ADDQ $192, BX
	ADDQ $6144, R10
	DECQ CX
	JNZ  block

	POPQ BX
	POPQ DI
	POPQ R10
	ADDQ R11, BX
	ADDQ R11, DI
	ADDQ $128, R10
	ADDQ R8, SI
	ADDQ R8, R13

	// The magnitudes of both rows, each in half a vector.
	VSHUFI64X2 $0x44, Z28, Z27, Z0
	VSHUFI64X2 $0xEE, Z28, Z27, Z1
	VPMAXUD    Z1, Z0, Z0
	VSHUFI64X2 $0xB1, Z0, Z0, Z1
	VPMAXUD    Z1, Z0, Z0
	VPSHUFD    $0x4E, Z0, Z1
	VPMAXUD    Z1, Z0, Z0
	VPSHUFD    $0xB1, Z0, Z1
	VPMAXUD    Z1, Z0, Z0
	VMOVD      X0, (R9)
	VEXTRACTI64X4 $1, Z0, Y1
	VMOVD      X1, 64(R9)
	ADDQ $4, R9
	DECQ DX
	JNZ  pair
	VZEROUPPER
	RET

// func fetchRows(p unsafe.Pointer, stride, rows, n int)
//
// It asks for n bytes of each of rows > 0 rows, into the second level cache.
TEXT ·fetchRows(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ stride+8(FP), R8
	MOVQ rows+16(FP), DX
	MOVQ n+24(FP), R9

row:
	MOVQ SI, DI
	MOVQ R9, CX

line:
	PREFETCHT1 (DI)
	ADDQ $64, DI
	SUBQ $64, CX
	JG   line
	ADDQ R8, SI
	DECQ DX
	JNZ  row
	RET
