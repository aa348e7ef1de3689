//go:build amd64 && !purego

#include "textflag.h"

// Words of two bf16 (gemm_bf16_amd64.s says what they are) from the codes of
// 8-bit floats, whose values bf16 holds exactly.
//
// A code without its sign is v, 7 bits. Where v is a normal number its bf16 is v
// moved to the place of the fields plus the difference of the biases; the others
// (subnormal numbers below, infinities and NaN above) come from a table by the
// low 5 bits of v. 32 codes a turn, ten instructions.
//
//	BX the fp8Words, Z20 7F, X21 the move, Z22 the biases, Z23 the least normal v,
//	Z24 how many are normal, Z25 the table, Z26 the sign

#define CONSTANTS \
	VMOVDQU64    (BX), Z25      \
	VPBROADCASTW 64(BX), Z22    \
	VPBROADCASTW 66(BX), Z23    \
	VPBROADCASTW 68(BX), Z24    \
	VMOVQ        72(BX), X21    \
	VPBROADCASTW 80(BX), Z20    \
	VPBROADCASTW 82(BX), Z26

// DECODE turns the codes in the words of c into bf16 in d; v and t are free.
#define DECODE(c, d, v, t) \
	VPANDQ     Z20, c, v          \
	VPSLLW     X21, v, d          \
	VPADDW     Z22, d, d          \
	VPSUBW     Z23, v, t          \
	VPCMPUW    $5, Z24, t, K3     \
	VPERMW     Z25, v, K3, d      \
	VPSLLW     $8, c, t           \
	VPTERNLOGD $0xF8, Z26, t, d

// BITS sets AX to the low n bits, n from 0 to 32.
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
	CONSTANTS
	SUBQ $32, DX
	JLT  rest

full:
	VPMOVZXBW (SI), Z0
	DECODE(Z0, Z1, Z2, Z3)
	VPROLD  $16, Z1, Z1
	VMOVUPS Z1, (DI)
	ADDQ    $32, SI
	ADDQ    $64, DI
	SUBQ    $32, DX
	JGE     full

rest:
	ADDQ $32, DX
	JZ   done
	BITS(DX)
	KMOVD AX, K1
	VPMOVZXBW.Z (SI), K1, Z0
	DECODE(Z0, Z1, Z2, Z3)
	VPROLD $16, Z1, Z1
	INCQ DX
	SHRQ $1, DX
	BITS(DX)
	KMOVW AX, K1
	VMOVUPS Z1, K1, (DI)

done:
	VZEROUPPER
	RET

// func pairRowsCodes(dst *float32, ldd int, src *byte, lds, rows, cols int, f *fp8Words)
//
// pairRowsBF16 of codes. Rows are far apart, where nothing fetches the next one:
// it is asked for 16 rows ahead.
//	DI dst, R8 ldd, SI src, R9 lds, R12 16 lds, DX rows left, K1 columns,
//	Z30 Z31 interleave
TEXT ·pairRowsCodes(SB), NOSPLIT, $0-56
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R9
	MOVQ rows+32(FP), DX
	MOVQ cols+40(FP), R10
	MOVQ f+48(FP), BX
	CONSTANTS
	BITS(R10)
	KMOVD AX, K1
	VMOVDQU64 words<>(SB), Z30
	VMOVDQU64 words<>+64(SB), Z31
	MOVQ R9, R12
	SHLQ $4, R12
	SUBQ $2, DX
	JLT  odd

pair:
	PREFETCHT0 (SI)(R12*1)
	VPMOVZXBW.Z (SI), K1, Z0
	ADDQ R9, SI
	PREFETCHT0 (SI)(R12*1)
	VPMOVZXBW.Z (SI), K1, Z4
	ADDQ R9, SI
	DECODE(Z0, Z1, Z2, Z3)
	DECODE(Z4, Z5, Z6, Z7)
	VMOVDQA64 Z30, Z8
	VMOVDQA64 Z31, Z9
	VPERMI2W  Z1, Z5, Z8
	VPERMI2W  Z1, Z5, Z9
	VMOVUPS   Z8, (DI)
	VMOVUPS   Z9, 64(DI)
	ADDQ R8, DI
	SUBQ $2, DX
	JGE  pair

odd:
	ADDQ $2, DX
	JZ   end
	VPMOVZXBW.Z (SI), K1, Z0
	DECODE(Z0, Z1, Z2, Z3)
	VPXORQ    Z5, Z5, Z5
	VMOVDQA64 Z30, Z8
	VMOVDQA64 Z31, Z9
	VPERMI2W  Z1, Z5, Z8
	VPERMI2W  Z1, Z5, Z9
	VMOVUPS   Z8, (DI)
	VMOVUPS   Z9, 64(DI)

end:
	VZEROUPPER
	RET

// words takes half i of the first operand below half i of the second.
DATA words<>+0(SB)/8, $0x0021000100200000
DATA words<>+8(SB)/8, $0x0023000300220002
DATA words<>+16(SB)/8, $0x0025000500240004
DATA words<>+24(SB)/8, $0x0027000700260006
DATA words<>+32(SB)/8, $0x0029000900280008
DATA words<>+40(SB)/8, $0x002b000b002a000a
DATA words<>+48(SB)/8, $0x002d000d002c000c
DATA words<>+56(SB)/8, $0x002f000f002e000e
DATA words<>+64(SB)/8, $0x0031001100300010
DATA words<>+72(SB)/8, $0x0033001300320012
DATA words<>+80(SB)/8, $0x0035001500340014
DATA words<>+88(SB)/8, $0x0037001700360016
DATA words<>+96(SB)/8, $0x0039001900380018
DATA words<>+104(SB)/8, $0x003b001b003a001a
DATA words<>+112(SB)/8, $0x003d001d003c001c
DATA words<>+120(SB)/8, $0x003f001f003e001e
GLOBL words<>(SB), RODATA, $128
