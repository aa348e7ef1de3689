//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "bf16_amd64.h"

// The AVX-512 tile of bf16, and what makes its operands. An element of A or B is
// a word of 32 bits that holds two neighbours along k: the one with the smaller
// k above, the other below. VDPBF16PS adds to a lane first the product of the
// upper halves, then that of the lower ones, each sum rounded once to nearest,
// ties to even, as a fused multiply-add does; subnormal numbers count as zero,
// in operands and results. So an element of C is one chain in the order of k.
//
// Bound: with 12 rows a step is 24 VDPBF16PS on two ports = 12 cycles, 128 flop
// a cycle. The chain's latency is 6 cycles: with 4 rows or fewer it is the bound.

#define MULADD(xn, x, cn, c0, c1) \
	DPBF16(cn, 24, xn)   \
	DPBF16(cn+1, 25, xn)

// func tileBF16(t *tileArgs)
TEXT ·tileBF16(SB), NOSPLIT, $0-8
#include "gemm_avx512_tile_amd64.h"

// func pairRowBF16(dst, src *float32, n int)
//
// dst holds words of n > 0 numbers of a row, rounded: (n+1)/2 words, an odd
// number's partner is 0. 32 numbers a turn, one conversion and one rotation:
// bound by the cache.
//	DI dst, SI src, DX numbers left
TEXT ·pairRowBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	SUBQ $32, DX
	JLT  rest

full:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	CVT2(2, 1, 0)
	VPROLD  $16, Z2, Z2
	VMOVUPS Z2, (DI)
	ADDQ    $128, SI
	ADDQ    $64, DI
	SUBQ    $32, DX
	JGE     full

rest:
	ADDQ $32, DX
	JZ   done
	MASK(DX, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	CVT2(2, 1, 0)
	VPROLD $16, Z2, Z2
	INCQ DX
	SHRQ $1, DX
	MASK(DX, K1)
	VMOVUPS Z2, K1, (DI)

done:
	VZEROUPPER
	RET

// func pairRowsBF16(dst *float32, ldd int, src *float32, lds, rows, cols int)
//
// dst holds words of rows > 0 rows of 1 to 32 columns, rounded: word j of row p
// pairs rows 2p and 2p+1 of src, an odd row's partner is 0. dst is written 32
// columns wide, strides are in bytes. Two rows a turn: two conversions and two
// permutations, bound by the cache.
//	DI dst, R8 ldd, SI src, R9 lds, DX rows left, K1 K2 columns, Z31 interleaves
TEXT ·pairRowsBF16(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R9
	MOVQ rows+32(FP), DX
	MOVQ cols+40(FP), R10
	MASK(R10, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	VMOVDQU64 interleave<>(SB), Z31
	SUBQ $2, DX
	JLT  odd

pair:
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	ADDQ R9, SI
	VMOVUPS.Z (SI), K1, Z2
	VMOVUPS.Z 64(SI), K2, Z3
	ADDQ R9, SI
	CVT2(4, 0, 2)
	CVT2(5, 1, 3)
	VPERMW  Z4, Z31, Z4
	VPERMW  Z5, Z31, Z5
	VMOVUPS Z4, (DI)
	VMOVUPS Z5, 64(DI)
	ADDQ R8, DI
	SUBQ $2, DX
	JGE  pair

odd:
	ADDQ $2, DX
	JZ   end
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	VPXORQ Z2, Z2, Z2
	CVT2(4, 0, 2)
	CVT2(5, 1, 2)
	VPERMW  Z4, Z31, Z4
	VPERMW  Z5, Z31, Z5
	VMOVUPS Z4, (DI)
	VMOVUPS Z5, 64(DI)

end:
	VZEROUPPER
	RET

// func pairRowStored(dst *float32, src *uint16, n int)
//
// pairRowBF16 of stored bf16.
//	DI dst, SI src, DX numbers left
TEXT ·pairRowStored(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	SUBQ $32, DX
	JLT  rest

full:
	VPROLD  $16, (SI), Z0
	VMOVUPS Z0, (DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $32, DX
	JGE     full

rest:
	ADDQ $32, DX
	JZ   done
	MASK(DX, K1)
	KMOVD AX, K1
	VMOVDQU16.Z (SI), K1, Z0
	VPROLD $16, Z0, Z0
	INCQ DX
	SHRQ $1, DX
	MASK(DX, K1)
	VMOVUPS Z0, K1, (DI)

done:
	VZEROUPPER
	RET

// func pairRowsStored(dst *float32, ldd int, src *uint16, lds, rows, cols int)
//
// pairRowsBF16 of stored bf16.
//	DI dst, R8 ldd, SI src, R9 lds, DX rows left, K1 K2 columns
TEXT ·pairRowsStored(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R9
	MOVQ rows+32(FP), DX
	MOVQ cols+40(FP), R10
	MASK(R10, K1)
	SHRQ  $16, AX
	KMOVW AX, K2
	SUBQ  $2, DX
	JLT   odd

pair:
	VPMOVZXWD.Z (SI), K1, Z0
	VPMOVZXWD.Z 32(SI), K2, Z1
	ADDQ R9, SI
	VPMOVZXWD.Z (SI), K1, Z2
	VPMOVZXWD.Z 32(SI), K2, Z3
	ADDQ R9, SI
	VPSLLD $16, Z0, Z0
	VPSLLD $16, Z1, Z1
	VPORD  Z2, Z0, Z0
	VPORD  Z3, Z1, Z1
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)
	ADDQ R8, DI
	SUBQ $2, DX
	JGE  pair

odd:
	ADDQ $2, DX
	JZ   end
	VPMOVZXWD.Z (SI), K1, Z0
	VPMOVZXWD.Z 32(SI), K2, Z1
	VPSLLD $16, Z0, Z0
	VPSLLD $16, Z1, Z1
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)

end:
	VZEROUPPER
	RET
