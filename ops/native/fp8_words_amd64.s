//go:build amd64 && !purego

#include "textflag.h"

// Words of two bf16 (gemm_bf16_amd64.s says what they are) from the codes of
// 8-bit floats, whose values bf16 holds exactly.
//
// 64 codes a turn: the lower and the upper byte of a magnitude's bf16 come from
// tables of 128 bytes each, by the code without its sign, which the lookup does
// not see; then the bytes of words are put in their places. Five instructions
// besides loads and stores.
//
//	BX the fp8Words, Z20 Z21 the lower bytes, Z22 Z23 the upper ones, Z24 the sign,
//	Z30 Z31 the places of the first 16 words and of the others

#define CONSTANTS(places, apart) \
	VMOVDQU64    (BX), Z20         \
	VMOVDQU64    64(BX), Z21       \
	VMOVDQU64    128(BX), Z22      \
	VMOVDQU64    192(BX), Z23      \
	MOVL         $0x80808080, AX   \
	VPBROADCASTD AX, Z24           \
	VMOVDQU64    places<>(SB), Z30 \
	MOVL         $apart, AX        \
	VPBROADCASTD AX, Z31           \
	VPADDB       Z30, Z31, Z31

// WORDS makes words Z3, Z4 of the codes in Z0; Z1 and Z2 hold the two bytes.
#define WORDS \
	VMOVDQA64  Z0, Z1            \
	VMOVDQA64  Z0, Z2            \
	VPERMI2B   Z21, Z20, Z1      \
	VPERMI2B   Z23, Z22, Z2      \
	VPTERNLOGD $0xF8, Z24, Z0, Z2 \
	VMOVDQA64  Z30, Z3           \
	VMOVDQA64  Z31, Z4           \
	VPERMI2B   Z2, Z1, Z3        \
	VPERMI2B   Z2, Z1, Z4

// BITS sets AX to the low n bits, n from 0 to 63.
#define BITS(n) \
	MOVQ n, CX  \
	MOVQ $1, AX \
	SHLQ CX, AX \
	DECQ AX

// func pairRowCodes(dst *float32, src *byte, n int, f *fp8Words)
//
// pairRowBF16 of codes.
//	DI dst, SI src, DX codes left
TEXT ·pairRowCodes(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), DX
	MOVQ f+24(FP), BX
	CONSTANTS(along, 0x20202020)
	SUBQ $64, DX
	JLT  rest

full:
	VMOVDQU64 (SI), Z0
	WORDS
	VMOVUPS Z3, (DI)
	VMOVUPS Z4, 64(DI)
	ADDQ    $64, SI
	ADDQ    $128, DI
	SUBQ    $64, DX
	JGE     full

rest:
	ADDQ $64, DX
	JZ   done
	BITS(DX)
	KMOVQ AX, K1
	VMOVDQU8.Z (SI), K1, Z0
	WORDS
	INCQ DX
	SHRQ $1, DX
	BITS(DX)
	KMOVW AX, K1
	SHRQ  $16, AX
	KMOVW AX, K2
	VMOVUPS Z3, K1, (DI)
	VMOVUPS Z4, K2, 64(DI)

done:
	VZEROUPPER
	RET

// func pairRowsCodes(dst *float32, ldd int, src *byte, lds, rows, cols int, f *fp8Words)
//
// pairRowsBF16 of codes. Rows are far apart, where nothing fetches the next one:
// it is asked for 16 rows ahead.
//	DI dst, R8 ldd, SI src, R9 lds, R12 16 lds, DX rows left, K1 columns
TEXT ·pairRowsCodes(SB), NOSPLIT, $0-56
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R9
	MOVQ rows+32(FP), DX
	MOVQ cols+40(FP), R10
	MOVQ f+48(FP), BX
	CONSTANTS(down, 0x10101010)
	BITS(R10)
	KMOVD AX, K1
	MOVQ R9, R12
	SHLQ $4, R12
	SUBQ $2, DX
	JLT  odd

pair:
	PREFETCHT0 (SI)(R12*1)
	VMOVDQU8.Z (SI), K1, Y0
	ADDQ R9, SI
	PREFETCHT0 (SI)(R12*1)
	VMOVDQU8.Z (SI), K1, Y5
	ADDQ R9, SI
	VINSERTI64X4 $1, Y5, Z0, Z0
	WORDS
	VMOVUPS Z3, (DI)
	VMOVUPS Z4, 64(DI)
	ADDQ R8, DI
	SUBQ $2, DX
	JGE  pair

odd:
	ADDQ $2, DX
	JZ   end
	VMOVDQU8.Z (SI), K1, Y0
	WORDS
	VMOVUPS Z3, (DI)
	VMOVUPS Z4, 64(DI)

end:
	VZEROUPPER
	RET

// func pairQuads(dst, src *float32, rows int, f *fp8Words)
//
// dst holds two rows of 32 words for each of rows > 0 rows of src, which are 32 times
// four codes along k: words of the first two of each, then those of the others.
//	DI dst, SI src, DX rows left
TEXT ·pairQuads(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ rows+16(FP), DX
	MOVQ f+24(FP), BX
	CONSTANTS(quads, 0x02020202)

quad:
	VMOVDQU64 (SI), Z0
	WORDS
	VMOVUPS Z3, (DI)
	VMOVUPS Z4, 128(DI)
	VMOVDQU64 64(SI), Z0
	WORDS
	VMOVUPS Z3, 64(DI)
	VMOVUPS Z4, 192(DI)
	ADDQ $128, SI
	ADDQ $256, DI
	DECQ DX
	JNZ  quad
	VZEROUPPER
	RET

// The places of the first 16 words, in the lower bytes from 0 on and the upper ones
// from 64 on: along takes numbers 2i+1 and 2i for word i, down numbers 32+i and i,
// quads numbers 4i+1 and 4i.
DATA along<>+0(SB)/8, $0x4202430340004101
DATA along<>+8(SB)/8, $0x4606470744044505
DATA along<>+16(SB)/8, $0x4a0a4b0b48084909
DATA along<>+24(SB)/8, $0x4e0e4f0f4c0c4d0d
DATA along<>+32(SB)/8, $0x5212531350105111
DATA along<>+40(SB)/8, $0x5616571754145515
DATA along<>+48(SB)/8, $0x5a1a5b1b58185919
DATA along<>+56(SB)/8, $0x5e1e5f1f5c1c5d1d
GLOBL along<>(SB), RODATA|NOPTR, $64

DATA down<>+0(SB)/8, $0x4101612140006020
DATA down<>+8(SB)/8, $0x4303632342026222
DATA down<>+16(SB)/8, $0x4505652544046424
DATA down<>+24(SB)/8, $0x4707672746066626
DATA down<>+32(SB)/8, $0x4909692948086828
DATA down<>+40(SB)/8, $0x4b0b6b2b4a0a6a2a
DATA down<>+48(SB)/8, $0x4d0d6d2d4c0c6c2c
DATA down<>+56(SB)/8, $0x4f0f6f2f4e0e6e2e
GLOBL down<>(SB), RODATA|NOPTR, $64

DATA quads<>+0(SB)/8, $0x4404450540004101
DATA quads<>+8(SB)/8, $0x4c0c4d0d48084909
DATA quads<>+16(SB)/8, $0x5414551550105111
DATA quads<>+24(SB)/8, $0x5c1c5d1d58185919
DATA quads<>+32(SB)/8, $0x6424652560206121
DATA quads<>+40(SB)/8, $0x6c2c6d2d68286929
DATA quads<>+48(SB)/8, $0x7434753570307131
DATA quads<>+56(SB)/8, $0x7c3c7d3d78387939
GLOBL quads<>(SB), RODATA|NOPTR, $64
