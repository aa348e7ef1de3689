//go:build amd64 && !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "exp4_amd64.h"
#include "bf16_amd64.h"
#include "attention_rows_amd64.h"

// The row work of attention that multiplies in bf16: from scores in float32 to
// words of two bf16 (gemm_bf16_amd64.s), two rows of 32 keys a turn. Bound: the
// exponential, 22 instructions for 16 scores.

// SEEN sets k0 and k1 to which of the next 32 keys, whose numbers are in i0 and
// i1, are seen.
#define SEEN(i0, i1, from, to, k0, k1) \
	VPCMPD $1, to, i0, k0       \
	VPCMPD $5, from, i0, k0, k0 \
	VPCMPD $1, to, i1, k1       \
	VPCMPD $5, from, i1, k1, k1

// COUNT sets i0 and i1 to the numbers of the first 32 keys and step to 32; step
// and AX are scratch before.
#define COUNT(i0, i1, step) \
	VMOVDQU64    keys<>(SB), i0 \
	MOVL         $16, AX        \
	VPBROADCASTD AX, step       \
	VPADDD       step, i0, i1   \
	VPADDD       step, step, step

// func largestScores(largest, s *float32, rows, stride, blocks int)
//
// The largest of each of rows > 0 rows of 32*blocks scores, stride bytes apart.
//	DI largest, SI a row, R9 stride, DX rows left, R10 blocks
//	R8 scores, CX blocks left, Z0 Z1 largest
TEXT ·largestScores(SB), NOSPLIT, $0-40
	MOVQ largest+0(FP), DI
	MOVQ s+8(FP), SI
	MOVQ rows+16(FP), DX
	MOVQ stride+24(FP), R9
	MOVQ blocks+32(FP), R10
	VMOVUPS C_NEGINF, Z2

row:
	MOVQ    SI, R8
	MOVQ    R10, CX
	VMOVAPS Z2, Z0
	VMOVAPS Z2, Z1

largest:
	VMAXPS (R8), Z0, Z0
	VMAXPS 64(R8), Z1, Z1
	ADDQ   $128, R8
	DECQ   CX
	JNZ    largest

	VMAXPS        Z1, Z0, Z0
	VEXTRACTF64X4 $1, Z0, Y1
	VMAXPS        Y1, Y0, Y0
	VEXTRACTF128  $1, Y0, X1
	VMAXPS        X1, X0, X0
	VPERMILPS     $0x4E, X0, X1
	VMAXPS        X1, X0, X0
	VPERMILPS     $0xB1, X0, X1
	VMAXPS        X1, X0, X0
	VMOVSS        X0, (DI)
	ADDQ $4, DI
	ADDQ R9, SI
	DECQ DX
	JNZ  row
	VZEROUPPER
	RET

// func expPairsBF16(words, s *float32, rows, stride, blocks int, base *float32, sum *float64)
//
// words gets pairs of e^(s - base) of rows > 0 rows of 32*blocks scores, stride bytes
// apart, words half as much; sum gets their sum before they are rounded. Rows go by
// twos: an odd last one's partner, whatever it holds, is computed too.
//	DI words and SI s of the first row, R8 base, R9 sum, R10 stride, R11 half of it,
//	DX rows left, R12 blocks; R13 s, BX words, CX blocks left
//	Z0 Z1 sums of the first row, Z8 Z31 of the second
TEXT ·expPairsBF16(SB), NOSPLIT, $0-56
	MOVQ words+0(FP), DI
	MOVQ s+8(FP), SI
	MOVQ rows+16(FP), DX
	MOVQ stride+24(FP), R10
	MOVQ blocks+32(FP), R12
	MOVQ base+40(FP), R8
	MOVQ sum+48(FP), R9
	MOVQ R10, R11
	SHRQ $1, R11
	EXP4_CONSTANTS

rows:
	MOVQ   SI, R13
	MOVQ   DI, BX
	MOVQ   R12, CX
	NOSUMS

block:
	VMOVUPS (R13), Z2
	VMOVUPS 64(R13), Z3
	VMOVUPS (R13)(R10*1), Z4
	VMOVUPS 64(R13)(R10*1), Z5
	EXPSUMS
	CVT2(11, 3, 2)
	CVT2(12, 5, 4)
	VPROLD  $16, Z11, Z11
	VPROLD  $16, Z12, Z12
	VMOVUPS Z11, (BX)
	VMOVUPS Z12, (BX)(R11*1)
	ADDQ $128, R13
	ADDQ $64, BX
	DECQ CX
	JNZ  block

	NEXTROWS
	JGT  rows
	VZEROUPPER
	RET

// GRAD makes probabilities of the scores in Zp and scale times their gradient of
// dout.v in Zd, 0 but for the keys in k.
#define GRAD(zp, zd, lse, t, k) \
	VSUBPS   lse, zp, zp       \
	EXP(zp, Z16, Z17, Z18)     \
	VMOVAPS.Z zp, k, zp        \
	VMULPS   Z28, zd, zd       \
	VMULPS   zp, zd, zd        \
	VMULPS   t, zp, Z16        \
	VADDPS.Z Z16, zd, k, zd

// func softmaxGradBF16(rows *softmaxGradRows)
//
// Two rows, p and ds of softmaxGradRows: both as words that pair the rows, ds
// also as words along them.
//	DX the arguments, DI pairs of p, R10 pairs of ds, R11 R12 rows of ds,
//	SI scores, R13 dout.v, CX their stride, R9 blocks left
//	Z10 Z11 keys, Z12 their step, Z13 Z14 from and to of row 0, Z15 Z19 of row 1
//	Z24 Z25 lse, Z26 Z27 the factors of p, Z28 scale, Z31 interleaves
TEXT ·softmaxGradBF16(SB), NOSPLIT, $0-8
	MOVQ rows+0(FP), DX
	MOVQ 0(DX), DI
	MOVQ 8(DX), R10
	MOVQ 16(DX), R11
	MOVQ 24(DX), R12
	MOVQ 32(DX), SI
	MOVQ 40(DX), R13
	MOVQ 48(DX), CX
	MOVQ 56(DX), R9
	VPBROADCASTD 64(DX), Z13
	VPBROADCASTD 72(DX), Z14
	VPBROADCASTD 80(DX), Z15
	VPBROADCASTD 88(DX), Z19
	VBROADCASTSS 96(DX), Z24
	VBROADCASTSS 100(DX), Z25
	VBROADCASTSS 104(DX), Z26
	VBROADCASTSS 108(DX), Z27
	VBROADCASTSS 112(DX), Z28
	VMOVDQU64    interleave<>(SB), Z31
	COUNT(Z10, Z11, Z12)

block:
	SEEN(Z10, Z11, Z13, Z14, K1, K2)
	SEEN(Z10, Z11, Z15, Z19, K3, K4)
	VPADDD Z12, Z10, Z10
	VPADDD Z12, Z11, Z11
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	VMOVUPS (SI)(CX*1), Z2
	VMOVUPS 64(SI)(CX*1), Z3
	VMOVUPS (R13), Z4
	VMOVUPS 64(R13), Z5
	VMOVUPS (R13)(CX*1), Z6
	VMOVUPS 64(R13)(CX*1), Z7
	GRAD(Z0, Z4, Z24, Z26, K1)
	GRAD(Z1, Z5, Z24, Z26, K2)
	GRAD(Z2, Z6, Z25, Z27, K3)
	GRAD(Z3, Z7, Z25, Z27, K4)
	CVT2(8, 0, 2)
	CVT2(9, 1, 3)
	VPERMW  Z8, Z31, Z8
	VPERMW  Z9, Z31, Z9
	VMOVUPS Z8, (DI)
	VMOVUPS Z9, 64(DI)
	CVT2(8, 4, 6)
	CVT2(9, 5, 7)
	VPERMW  Z8, Z31, Z8
	VPERMW  Z9, Z31, Z9
	VMOVUPS Z8, (R10)
	VMOVUPS Z9, 64(R10)
	CVT2(8, 5, 4)
	CVT2(9, 7, 6)
	VPROLD  $16, Z8, Z8
	VPROLD  $16, Z9, Z9
	VMOVUPS Z8, (R11)
	VMOVUPS Z9, (R12)
	ADDQ $128, DI
	ADDQ $128, R10
	ADDQ $64, R11
	ADDQ $64, R12
	ADDQ $128, SI
	ADDQ $128, R13
	DECQ R9
	JNZ  block
	VZEROUPPER
	RET

// PAIRBOTH is a turn of pairBothBF16: rows in Z0 Z1 and Z2 Z3.
#define PAIRBOTH \
	LEAQ    (SI)(R9*2), SI       \
	CVT2(4, 0, 2)                \
	CVT2(5, 1, 3)                \
	CVT2(6, 1, 0)                \
	CVT2(7, 3, 2)                \
	VPANDD  Z29, Z4, Z8          \
	VPANDD  Z29, Z5, Z9          \
	VPMAXUW Z8, Z30, Z30         \
	VPMAXUW Z9, Z30, Z30         \
	VPERMW  Z4, Z31, Z4          \
	VPERMW  Z5, Z31, Z5          \
	VPROLD  $16, Z6, Z6          \
	VPROLD  $16, Z7, Z7          \
	VMOVUPS Z4, (DI)             \
	VMOVUPS Z5, 64(DI)           \
	ADDQ    R8, DI               \
	VMOVUPS Z6, K3, (R10)        \
	VMOVUPS Z7, K3, (R10)(R11*1) \
	LEAQ    (R10)(R11*2), R10    \
	SUBQ    $2, DX

// func pairBothBF16(cols *float32, ldc int, rows *float32, ldr int, src *float32, lds, n, width int) (top uint16)
//
// Words of n > 0 rows of 1 to 32 columns, rounded: cols pairs rows as
// pairRowsBF16 does, rows pairs columns as pairRowBF16 does. cols is written 32
// columns wide, rows (width+1)/2 words wide; strides are in bytes. Whole rows go
// without masks, as a masked load is not fetched ahead. top is the
// largest exponent field, 0x7F80 where a number is not finite in bf16.
//	DI cols, R8 ldc, R10 rows, R11 ldr, SI src, R9 lds, DX rows left
//	K1 K2 columns, K3 words of a row, Z29 exponents, Z30 their largest, Z31 interleaves
TEXT ·pairBothBF16(SB), NOSPLIT, $0-66
	MOVQ cols+0(FP), DI
	MOVQ ldc+8(FP), R8
	MOVQ rows+16(FP), R10
	MOVQ ldr+24(FP), R11
	MOVQ src+32(FP), SI
	MOVQ lds+40(FP), R9
	MOVQ n+48(FP), DX
	MOVQ width+56(FP), R12
	MASK(R12, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	INCQ  R12
	SHRQ  $1, R12
	MASK(R12, K3)
	VMOVDQU64    interleave<>(SB), Z31
	MOVL         $0x7F807F80, AX
	VPBROADCASTD AX, Z29
	VPXORQ       Z30, Z30, Z30
	SUBQ $2, DX
	JLT  odd
	CMPQ width+56(FP), $32
	JLT  pair

full:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	VMOVUPS (SI)(R9*1), Z2
	VMOVUPS 64(SI)(R9*1), Z3
	PAIRBOTH
	JGE  full
	JMP  odd

pair:
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	VMOVUPS.Z (SI)(R9*1), K1, Z2
	VMOVUPS.Z 64(SI)(R9*1), K2, Z3
	PAIRBOTH
	JGE  pair

odd:
	ADDQ $2, DX
	JZ   end
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	VPXORQ Z2, Z2, Z2
	CVT2(4, 0, 2)
	CVT2(5, 1, 2)
	CVT2(6, 1, 0)
	VPANDD   Z29, Z6, Z8
	VPMAXUW  Z8, Z30, Z30
	VPERMW   Z4, Z31, Z4
	VPERMW   Z5, Z31, Z5
	VPROLD   $16, Z6, Z6
	VMOVUPS  Z4, (DI)
	VMOVUPS  Z5, 64(DI)
	VMOVUPS  Z6, K3, (R10)

end:
	VEXTRACTI64X4 $1, Z30, Y0
	VPMAXUW       Y0, Y30, Y0
	VEXTRACTI128  $1, Y0, X1
	VPMAXUW       X1, X0, X0
	VPSRLDQ       $8, X0, X1
	VPMAXUW       X1, X0, X0
	VPSRLDQ       $4, X0, X1
	VPMAXUW       X1, X0, X0
	VPSRLDQ       $2, X0, X1
	VPMAXUW       X1, X0, X0
	VMOVD         X0, AX
	MOVW          AX, top+64(FP)
	VZEROUPPER
	RET

// func roundRowBF16(y, x *float32, n int)
//
// y is x rounded to bf16, n > 0 numbers; y may be x.
//	DI y, SI x, DX numbers left, less 32
TEXT ·roundRowBF16(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), DX
	KXNORW K1, K1, K1
	KXNORW K2, K2, K2
	SUBQ $32, DX
	JLT  part

full:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1

round:
	CVT2(2, 1, 0)
	VPMOVZXWD     Y2, Z0
	VEXTRACTI64X4 $1, Z2, Y1
	VPMOVZXWD     Y1, Z1
	VPSLLD  $16, Z0, Z0
	VPSLLD  $16, Z1, Z1
	VMOVUPS Z0, K1, (DI)
	VMOVUPS Z1, K2, 64(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	SUBQ $32, DX
	JGE  full
	CMPQ DX, $-32
	JLE  done

part:
	ADDQ $32, DX
	MASK(DX, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	XORL DX, DX
	JMP  round

done:
	VZEROUPPER
	RET
