//go:build amd64 && !purego

#include "textflag.h"

// The AMX tiles of bf16: C = alpha A B + beta S for any rows and columns, 32 of
// each at a time, on words of two neighbours along k (gemm_bf16_amd64.s says how)
// and packed panels of B. With alpha 1 and no S sums begin at zero and are stored;
// where S is C and both factors are 1, a later pass, they begin with C: one chain
// through all of k. It changes its arguments.
//
// A tile register holds 16 rows of 64 bytes: of A 16 rows of 16 words, of a
// packed panel of B 16 words of k for 16 columns, of sums 16x16. TDPBF16PS adds
// to 16x16 sums the products of 16 words: for each sum those of the upper halves
// in one chain, those of the lower in another, both from zero in the order of k,
// then one to the other and that to the sum; every step is rounded to nearest,
// ties to even, and subnormal numbers count as zero.
//
// A has whole blocks of 16 rows (what is in the ones too many does not matter)
// and B 32 columns; k is a multiple of 16 words, zeros beyond the operands.
//
// Bound: 16 cycles a TDPBF16PS, 1024 flop a cycle; with 32 rows a step is four of
// them against four loads of 8 cycles from L1, and 4 KB where they come from L2,
// which gives 40 bytes a cycle. So 32 rows of A meet all panels of B one after the
// other, and B is loaded with the hint that it is not needed again, so that A stays.
// BF16x6 (gemm_bf16x6_amd64.s makes its words) takes 48 words a turn, 32 numbers
// of k, of which each operand has a first, a second and a third part. It adds the
// products of A's first by B's third part, first by second, second by second,
// second by first, third by first, first by first: 24 TDPBF16PS against 14 loads,
// of which the 6 of B take 6 KB. A later pass begins with zero too and is added.
//
// An end through the stack takes 70 ns, and the configuration with its release
// 85 ns: once a call, which is why a call takes all rows and columns of a unit.
//
//	tmm0..tmm3  sums: rows 0..15 of columns 0..15 and 16..31, then rows 16..31
//	tmm4, tmm5  A, rows 0..15 and 16..31
//	tmm6, tmm7  B, columns 0..15 and 16..31
//	DI args, whose rows, A, C and S move on with the rows; R10 rows left, R11 A,
//	R12 C, R13 S, cols-8(SP) columns left, b-16(SP) B, R14 0: C is alpha times sums
//	+ beta S, 1: it is the sums, 2: sums begin with it, R15 1: without a buffer between
//	in the loop over k: SI A, DX A at row 16, CX rsa, BX B, AX rsb, R9 16 rsb, R8
//	words left
//	at the end: SI sums, 128 bytes a row, CX rows left, AX ldc, R9 lds
//
// The assembler knows none of the instructions. Their bytes are a VEX prefix
// (C4 E2, then the second source inverted and the kind), an opcode and the
// operands; SIB bytes are base + index.

#define LDTILECFG_AX BYTE $0xC4; BYTE $0xE2; BYTE $0x78; BYTE $0x49; BYTE $0x00
#define TILERELEASE  BYTE $0xC4; BYTE $0xE2; BYTE $0x78; BYTE $0x49; BYTE $0xC0
#define TILEZERO(t)  BYTE $0xC4; BYTE $0xE2; BYTE $0x7B; BYTE $0x49; BYTE $(0xC0 + t*8)

// TILELOAD loads tile t from the bytes of a SIB operand with an 8-bit offset.
#define TILELOAD(t, sib, off) BYTE $0xC4; BYTE $0xE2; BYTE $0x7B; BYTE $0x4B; BYTE $(0x44 + t*8); BYTE $sib; BYTE $off
// TILESTREAM is TILELOAD of what is not needed again.
#define TILESTREAM(t, sib, off) BYTE $0xC4; BYTE $0xE2; BYTE $0x79; BYTE $0x4B; BYTE $(0x44 + t*8); BYTE $sib; BYTE $off
#define TILESTORE(t, sib, off) BYTE $0xC4; BYTE $0xE2; BYTE $0x7A; BYTE $0x4B; BYTE $(0x44 + t*8); BYTE $sib; BYTE $off

// TDPBF16(c, a, b) adds the products of tiles a and b to c.
#define TDPBF16(c, a, b) BYTE $0xC4; BYTE $0xE2; BYTE $(0x7A - b*8); BYTE $0x5C; BYTE $(0xC0 + c*8 + a)

// LOADB loads a part of 32 numbers along k of B and moves on to the part before.
#define LOADB TILESTREAM(6, BX_AX, 0); TILESTREAM(7, BX_AX, 64); SUBQ $2048, BX
// PART32 loads a part of 32 rows of A and adds its products with that of B,
// TIMES32 does with what is loaded; PART16 and TIMES16 of 16 rows.
#define PART16(off) TILELOAD(4, SI_CX, off); TIMES16
#define TIMES16 TDPBF16(0, 4, 6); TDPBF16(1, 4, 7)
#define PART32(off) TILELOAD(4, SI_CX, off); TILELOAD(5, DX_CX, off); TIMES32
#define TIMES32 TIMES16; TDPBF16(2, 5, 6); TDPBF16(3, 5, 7)

#define SI_CX 0x0E
#define DX_CX 0x0A
#define BX_AX 0x03
#define SI_AX 0x06
#define DX_AX 0x02

// func tileAMX(t *tileArgs)
TEXT ·tileAMX(SB), 0, $4176-8
	MOVQ t+0(FP), DI
	LEAQ amxConfig<>(SB), AX
	LDTILECFG_AX
	VBROADCASTSS 96(DI), Z30
	VBROADCASTSS 100(DI), Z31

	// How sums begin and end.
	XORL R14, R14
	CMPL 96(DI), $0x3f800000
	JNE  rows
	MOVQ 64(DI), R13
	INCQ R14
	TESTQ R13, R13
	JZ   rows
	DECQ R14
	CMPQ 120(DI), $0
	JNE  rows
	CMPL 100(DI), $0x3f800000
	JNE  rows
	CMPQ R13, 80(DI)
	JNE  rows
	MOVQ 72(DI), R13
	CMPQ R13, 88(DI)
	JNE  rows
	MOVQ $2, R14

rows:
	MOVQ 0(DI), R10
	MOVQ 24(DI), R11
	MOVQ 64(DI), R13
	MOVQ 80(DI), R12
	MOVQ 48(DI), AX
	MOVQ AX, b-16(SP)
	MOVQ 8(DI), R8
	MOVQ R8, cols-8(SP)

tile:
	// K1 and K2 from the columns left: the low 32 bits of (1 << cols) - 1.
	MOVQ  $32, CX
	CMPQ  R8, CX
	CMOVQLT R8, CX
	MOVQ  $1, AX
	SHLQ  CX, AX
	DECQ  AX
	KMOVW AX, K1
	SHRQ  $16, AX
	KMOVW AX, K2
	MOVQ  88(DI), AX
	CMPQ  R8, $64
	JLT   fetched

	// C of the next panel is fetched.
	MOVQ $32, CX
	CMPQ R10, CX
	CMOVQLT R10, CX
	MOVQ R12, SI

fetch:
	PREFETCHT0 128(SI)
	PREFETCHT0 192(SI)
	ADDQ AX, SI
	DECQ CX
	JNZ  fetch

fetched:
	// R15: the tile is whole, sums begin and end in C; else, and when they are not
	// only added, in the buffer.
	XORL R15, R15
	TESTQ R14, R14
	JZ   begin
	CMPQ R8, $32
	JLT  begin
	CMPQ R10, $32
	JGE  whole
	CMPQ R10, $16
	JNE  begin

whole:
	INCQ R15

begin:
	CMPQ R14, $2
	JEQ  more
	TILEZERO(0)
	TILEZERO(1)
	CMPQ R10, $16
	JLE  products
	TILEZERO(2)
	TILEZERO(3)
	JMP  products

more:
	MOVQ R12, SI
	TESTQ R15, R15
	JNZ  load
	LEAQ buf-4176(SP), SI
	ADDQ $63, SI
	ANDQ $~63, SI
	MOVQ SI, R9
	MOVQ R12, DX
	MOVQ $32, CX
	CMPQ R10, CX
	CMOVQLT R10, CX

gather:
	VMOVUPS.Z (DX), K1, Z0
	VMOVUPS.Z 64(DX), K2, Z1
	VMOVUPS   Z0, (R9)
	VMOVUPS   Z1, 64(R9)
	ADDQ      AX, DX
	ADDQ      $128, R9
	DECQ      CX
	JNZ       gather
	MOVQ      $128, AX

load:
	TILELOAD(0, SI_AX, 0)
	TILELOAD(1, SI_AX, 64)
	CMPQ R10, $16
	JLE  products
	MOVQ AX, DX
	SHLQ $4, DX
	ADDQ SI, DX
	TILELOAD(2, DX_AX, 0)
	TILELOAD(3, DX_AX, 64)

products:
	MOVQ R11, SI
	MOVQ 32(DI), CX
	MOVQ b-16(SP), BX
	MOVQ 56(DI), AX
	MOVQ AX, R9
	SHLQ $4, R9
	MOVQ 16(DI), R8
	MOVQ CX, DX
	SHLQ $4, DX
	ADDQ SI, DX
	CMPQ 120(DI), $0
	JNE  parts
	CMPQ R10, $16
	JLE  rows16
	SUBQ $16, R8
	JLT  end

loop32:
	TILESTREAM(6, BX_AX, 0)
	TILELOAD(4, SI_CX, 0)
	TDPBF16(0, 4, 6)
	TILESTREAM(7, BX_AX, 64)
	TDPBF16(1, 4, 7)
	TILELOAD(5, DX_CX, 0)
	TDPBF16(2, 5, 6)
	TDPBF16(3, 5, 7)
	ADDQ $64, SI
	ADDQ $64, DX
	ADDQ R9, BX
	SUBQ $16, R8
	JGE  loop32
	JMP  end

rows16:
	SUBQ $16, R8
	JLT  end

loop16:
	TILESTREAM(6, BX_AX, 0)
	TILELOAD(4, SI_CX, 0)
	TDPBF16(0, 4, 6)
	TILESTREAM(7, BX_AX, 64)
	TDPBF16(1, 4, 7)
	ADDQ $64, SI
	ADDQ R9, BX
	SUBQ $16, R8
	JGE  loop16
	JMP  end

parts:
	ADDQ $64, SI // the second part, so that offsets fit a byte
	ADDQ $64, DX
	ADDQ $4096, BX
	CMPQ R10, $16
	JLE  parts16
	SUBQ $48, R8
	JLT  end

loop96:
	LOADB
	PART32(0xC0)
	LOADB
	TIMES32
	PART32(0)
	LOADB
	TIMES32
	PART32(64)
	PART32(0xC0)
	ADDQ $192, SI
	ADDQ $192, DX
	ADDQ $12288, BX
	SUBQ $48, R8
	JGE  loop96
	JMP  end

parts16:
	SUBQ $48, R8
	JLT  end

loop48:
	LOADB
	PART16(0xC0)
	LOADB
	TIMES16
	PART16(0)
	LOADB
	TIMES16
	PART16(64)
	PART16(0xC0)
	ADDQ $192, SI
	ADDQ $12288, BX
	SUBQ $48, R8
	JGE  loop48

end:
	MOVQ R12, SI
	MOVQ 88(DI), AX
	TESTQ R15, R15
	JNZ  store
	LEAQ buf-4176(SP), SI
	ADDQ $63, SI
	ANDQ $~63, SI
	MOVQ $128, AX

store:
	TILESTORE(0, SI_AX, 0)
	TILESTORE(1, SI_AX, 64)
	CMPQ R10, $16
	JLE  stored
	MOVQ AX, DX
	SHLQ $4, DX
	ADDQ SI, DX
	TILESTORE(2, DX_AX, 0)
	TILESTORE(3, DX_AX, 64)

stored:
	MOVQ 88(DI), AX
	MOVQ 72(DI), R9
	TESTQ R15, R15
	JNZ  next

rest:
	MOVQ  R12, DX
	MOVQ  R13, R8
	MOVQ  $32, CX
	CMPQ  R10, CX
	CMOVQLT R10, CX
	TESTQ R14, R14
	JNZ   copy
	TESTQ R13, R13
	JZ    plain

add:
	VMULPS      (SI), Z30, Z0
	VMULPS      64(SI), Z30, Z1
	VMOVUPS.Z   (R8), K1, Z2
	VMOVUPS.Z   64(R8), K2, Z3
	VFMADD231PS Z2, Z31, Z0
	VFMADD231PS Z3, Z31, Z1
	VMOVUPS     Z0, K1, (DX)
	VMOVUPS     Z1, K2, 64(DX)
	ADDQ        $128, SI
	ADDQ        AX, DX
	ADDQ        R9, R8
	DECQ        CX
	JNZ         add
	JMP         next

plain:
	VMULPS  (SI), Z30, Z0
	VMULPS  64(SI), Z30, Z1
	VMOVUPS Z0, K1, (DX)
	VMOVUPS Z1, K2, 64(DX)
	ADDQ    $128, SI
	ADDQ    AX, DX
	DECQ    CX
	JNZ     plain
	JMP     next

copy:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	VMOVUPS Z0, K1, (DX)
	VMOVUPS Z1, K2, 64(DX)
	ADDQ    $128, SI
	ADDQ    AX, DX
	DECQ    CX
	JNZ     copy

next:
	// The next panel.
	ADDQ $128, R12
	TESTQ R13, R13
	JZ   unadded
	ADDQ $128, R13

unadded:
	MOVQ 112(DI), CX
	ADDQ CX, b-16(SP)
	MOVQ cols-8(SP), R8
	SUBQ $32, R8
	MOVQ R8, cols-8(SP)
	JG   tile

	// The next rows.
	MOVQ 32(DI), CX
	SHLQ $5, CX
	ADDQ CX, 24(DI)
	MOVQ 88(DI), CX
	SHLQ $5, CX
	ADDQ CX, 80(DI)
	CMPQ 64(DI), $0
	JEQ  below
	MOVQ 72(DI), CX
	SHLQ $5, CX
	ADDQ CX, 64(DI)

below:
	SUBQ $32, 0(DI)
	JG   rows

done:
	TILERELEASE
	VZEROUPPER
	RET

// amxConfig: palette 1, eight tiles of 16 rows of 64 bytes.
DATA amxConfig<>+0(SB)/8, $1
DATA amxConfig<>+8(SB)/8, $0
DATA amxConfig<>+16(SB)/8, $0x0040004000400040
DATA amxConfig<>+24(SB)/8, $0x0040004000400040
DATA amxConfig<>+32(SB)/8, $0
DATA amxConfig<>+40(SB)/8, $0
DATA amxConfig<>+48(SB)/8, $0x1010101010101010
DATA amxConfig<>+56(SB)/8, $0
GLOBL amxConfig<>(SB), RODATA, $64
