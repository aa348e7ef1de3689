//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"

// The AVX-512 tile of bf16, and what makes its operands. An element of A or B is
// a word of 32 bits that holds two neighbours along k: the one with the smaller
// k above, the other below. VDPBF16PS adds to a lane first the product of the
// upper halves, then that of the lower ones, each sum rounded once to nearest,
// ties to even, as a fused multiply-add does; subnormal numbers count as zero,
// in operands and results. So an element of C is one chain in the order of k.
//
// Bound: with 12 rows a step is 24 VDPBF16PS on two ports = 12 cycles, 128 flop
// a cycle. The chain's latency is 6 cycles: with 4 rows or fewer it is the bound.
//
// The assembler has no name for VDPBF16PS and VCVTNE2PS2BF16. EVEX(pp, op, d,
// s1, s2) is a 512-bit instruction of map 0F38 without W, mask or memory on
// the registers of these numbers; in its bytes the register bits above 2 are
// inverted:
//	62, ~d3 ~s2(4) ~s2(3) ~d4 0 010, 0 ~s1(3..0) 1 pp, 0 10 0 ~s1(4) 000, op, 11 d(2..0) s2(2..0)

#define BIT(x, n) (((x)>>n)&1)
#define EVEX(pp, op, d, s1, s2) \
	BYTE $0x62                                                                                \
	BYTE $(0xF2 - BIT(d, 3)*0x80 - BIT(s2, 4)*0x40 - BIT(s2, 3)*0x20 - BIT(d, 4)*0x10)        \
	BYTE $(0x7C + pp - ((s1)&15)*8)                                                           \
	BYTE $(0x48 - BIT(s1, 4)*8)                                                               \
	BYTE $op                                                                                  \
	BYTE $(0xC0 + ((d)&7)*8 + ((s2)&7))

// DPBF16 adds to Zd the products of Zs1 and Zs2.
#define DPBF16(d, s1, s2) EVEX(2, 0x52, d, s1, s2)

// CVT2 rounds Zs2 into the lower half of Zd, Zs1 into the upper, to nearest,
// ties to even; subnormal numbers become zero, a NaN quiet.
#define CVT2(d, s1, s2) EVEX(3, 0x72, d, s1, s2)

#define MULADD(xn, x, cn, c0, c1) \
	DPBF16(cn, 24, xn)   \
	DPBF16(cn+1, 25, xn)

// func tileBF16(t *tileArgs)
TEXT ·tileBF16(SB), NOSPLIT, $0-8
#include "gemm_avx512_tile_amd64.h"

// MASK sets k to the low n bits, n from 0 to 32, of which 16 count in a KMOVW.
#define MASK(n, k) \
	MOVQ  n, CX   \
	MOVQ  $1, AX  \
	SHLQ  CX, AX  \
	DECQ  AX      \
	KMOVW AX, k

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

// interleave takes halves i and 16+i to word i.
DATA interleave<>+0(SB)/8, $0x0011000100100000
DATA interleave<>+8(SB)/8, $0x0013000300120002
DATA interleave<>+16(SB)/8, $0x0015000500140004
DATA interleave<>+24(SB)/8, $0x0017000700160006
DATA interleave<>+32(SB)/8, $0x0019000900180008
DATA interleave<>+40(SB)/8, $0x001b000b001a000a
DATA interleave<>+48(SB)/8, $0x001d000d001c000c
DATA interleave<>+56(SB)/8, $0x001f000f001e000e
GLOBL interleave<>(SB), RODATA, $64
