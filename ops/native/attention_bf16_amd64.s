//go:build amd64 && !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "exp4_amd64.h"
#include "bf16_amd64.h"
#include "attention_rows_amd64.h"

// The row work of attention that multiplies in bf16: from scores in float32 to
// words of two bf16 (gemm_bf16_amd64.s), two rows of 32 keys a turn. Bound: the
// exponential, 22 instructions for 16 scores.

// SEEN sets k0 and k1 to which of 32 keys, whose numbers are in i0 and i1, are seen:
// those from one number in memory to another.
#define SEEN(i0, i1, from, to, k0, k1) \
	VPCMPD.BCST $1, to, i0, k0       \
	VPCMPD.BCST $5, from, i0, k0, k0 \
	VPCMPD.BCST $1, to, i1, k1       \
	VPCMPD.BCST $5, from, i1, k1, k1

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

// func softmaxGradBF16(rows *softmaxGradRows)
//
// Two rows, p and ds of softmaxGradRows: both as words that pair the rows, ds
// also as words along them. Keys that a row does not see get 0.
//	DX the arguments, DI pairs of p, R10 pairs of ds, R11 R12 rows of ds,
//	SI scores, R13 dout.v, CX their stride, R9 blocks left
//	Z8 Z31 keys, K1..K4 which are seen, Z0 interleaves, Z1 scale
//	Z2..Z5 scores, then p, Z6 Z7 Z9 Z10 ds, of row 0 and of row 1
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
	VBROADCASTSS 112(DX), Z1
	VMOVDQU64    interleave<>(SB), Z0
	VMOVDQU64    keys<>(SB), Z8
	EXP4_CONSTANTS

block:
	VPADDD.BCST keys<>+64(SB), Z8, Z31
	SEEN(Z8, Z31, 64(DX), 72(DX), K1, K2)
	SEEN(Z8, Z31, 80(DX), 88(DX), K3, K4)
	VPADDD.BCST keys<>+64(SB), Z31, Z8
	VMOVUPS     (SI), Z2
	VMOVUPS     64(SI), Z3
	VMOVUPS     (SI)(CX*1), Z4
	VMOVUPS     64(SI)(CX*1), Z5
	VSUBPS.BCST 96(DX), Z2, Z2
	VSUBPS.BCST 96(DX), Z3, Z3
	VSUBPS.BCST 100(DX), Z4, Z4
	VSUBPS.BCST 100(DX), Z5, Z5
	EXP4
	VMOVAPS.Z   Z2, K1, Z2
	VMOVAPS.Z   Z3, K2, Z3
	VMOVAPS.Z   Z4, K3, Z4
	VMOVAPS.Z   Z5, K4, Z5
	VMULPS      (R13), Z1, Z6
	VMULPS      64(R13), Z1, Z7
	VMULPS      (R13)(CX*1), Z1, Z9
	VMULPS      64(R13)(CX*1), Z1, Z10
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z6, Z7, Z9, Z10)
	VMULPS.BCST 104(DX), Z2, Z11
	VMULPS.BCST 104(DX), Z3, Z12
	VMULPS.BCST 108(DX), Z4, Z13
	VMULPS.BCST 108(DX), Z5, Z14
	VADDPS.Z    Z11, Z6, K1, Z6
	VADDPS.Z    Z12, Z7, K2, Z7
	VADDPS.Z    Z13, Z9, K3, Z9
	VADDPS.Z    Z14, Z10, K4, Z10
	CVT2(11, 2, 4)
	CVT2(12, 3, 5)
	VPERMW  Z11, Z0, Z11
	VPERMW  Z12, Z0, Z12
	VMOVUPS Z11, (DI)
	VMOVUPS Z12, 64(DI)
	CVT2(11, 6, 9)
	CVT2(12, 7, 10)
	VPERMW  Z11, Z0, Z11
	VPERMW  Z12, Z0, Z12
	VMOVUPS Z11, (R10)
	VMOVUPS Z12, 64(R10)
	CVT2(11, 7, 6)
	CVT2(12, 10, 9)
	VPROLD  $16, Z11, Z11
	VPROLD  $16, Z12, Z12
	VMOVUPS Z11, (R11)
	VMOVUPS Z12, (R12)
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
