//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "exp_amd64.h"
#include "exp4_amd64.h"
#include "attention_rows_amd64.h"
#include "attention_decode_amd64.h"

// The two products of one decoded token with keys and values, in AVX-512: 1 to 4
// query heads of each key head share what is read. Bound by the read of keys and
// values: a head of 64 numbers is 4 loads for 12 to 16 multiply-adds. Keys and
// values lie as float32, bf16 or f16.

// The words of 16 bits that become the upper halves of 16 numbers.
DATA uppers<>+0(SB)/8, $0x0001000000000000
DATA uppers<>+8(SB)/8, $0x0003000000020000
DATA uppers<>+16(SB)/8, $0x0005000000040000
DATA uppers<>+24(SB)/8, $0x0007000000060000
DATA uppers<>+32(SB)/8, $0x0009000000080000
DATA uppers<>+40(SB)/8, $0x000b0000000a0000
DATA uppers<>+48(SB)/8, $0x000d0000000c0000
DATA uppers<>+56(SB)/8, $0x000f0000000e0000
GLOBL uppers<>(SB), RODATA|NOPTR, $64

// SIZE is the bytes of a stored number, STORED loads 16 of them, y being the lower
// half of z, with what OPEN has made, FETCH fetches as much memory from AX on as is
// read meanwhile, line by line.
#define SIZE 4
#define OPEN
#define STORED(m, z, y) VMOVUPS m, z
#define FETCH           \
	PREFETCHT0 (AX)     \
	PREFETCHT0 64(AX)   \
	PREFETCHT0 128(AX)  \
	PREFETCHT0 192(AX)  \
	ADDQ       $256, AX

// func attnScores*(t *decodeTile)
//
// p[r,j] = scale x[r] . k[j] for 1 to 4 rows of the queries x [rows,d] of each head
// and keys, a multiple of 4, d of 16.
//	Z0..Z15 sums of row r with keys j: Z(4r+j), Z16..Z19 keys
//	BX keys, R9 their stride, R10 3 times that, SI q, R11 its stride, R12 3 times
//	that, R13 p, DI of a row, R8 its stride, R14 rows, CX keys left, DX bytes of d left
TEXT ·attnScoresF32(SB), NOSPLIT, $0-8
#include "attention_scores_amd64.h"

// func attnValues*(t *decodeTile)
//
// o[r] = p[r,j] v[j] summed over j, one chain in their order that goes on from x[r]
// where there is more, for 1 to 4 rows of the sums x [rows,d] of each head and keys
// > 0; d is a multiple of 64.
//	Z0..Z15 64 numbers of row r: Z(4r).., Z16..Z19 of a value
//	DI x, R8 its stride, SI p, R9 its stride, R10 3 times that, BX v, R11 its
//	stride, R14 rows, CX keys left, DX numbers of d left, R12 bytes of d done
TEXT ·attnValuesF32(SB), NOSPLIT, $0-8
#include "attention_values_amd64.h"

#undef SIZE
#undef OPEN
#undef STORED
#undef FETCH
#define SIZE 2
#define FETCH           \
	PREFETCHT0 (AX)     \
	PREFETCHT0 64(AX)   \
	ADDQ       $128, AX
#define OPEN \
	MOVL         $0xaaaaaaaa, BX   \
	KMOVD        BX, K1            \
	VMOVDQU32    uppers<>(SB), Z30
#define STORED(m, z, y) \
	VMOVDQU32  m, y     \
	VPERMW.Z   z, Z30, K1, z

TEXT ·attnScoresBF16(SB), NOSPLIT, $0-8
#include "attention_scores_amd64.h"

TEXT ·attnValuesBF16(SB), NOSPLIT, $0-8
#include "attention_values_amd64.h"

#undef OPEN
#define OPEN
#undef STORED
#define STORED(m, z, y) VCVTPH2PS m, z

TEXT ·attnScoresF16(SB), NOSPLIT, $0-8
#include "attention_scores_amd64.h"

TEXT ·attnValuesF16(SB), NOSPLIT, $0-8
#include "attention_values_amd64.h"

// func attnSoftmax(p *float32, ldp, rows, n int, tops, bases *float32, sums *float64)
//
// p[r,j] = e^(p[r,j] - top of row r) for rows, an even number, of n > 0 scores, with
// the sums of a row as expSubSum has them; what lies behind n, up to a multiple of
// 32, becomes 0. A base is the top, or 0 where that is -Inf. ldp is in bytes.
//	SI, DI two rows, R10, R11 their stride, DX rows left, R12 tops, R8 bases, R9
//	sums, AX offset in a row, R13 that of the last turn, K3, K4 its scores, K1, K2
//	those of a turn
TEXT ·attnSoftmax(SB), NOSPLIT, $0-56
	MOVQ  p+0(FP), SI
	MOVQ  ldp+8(FP), R10
	MOVQ  R10, R11
	LEAQ  (SI)(R10*1), DI
	MOVQ  rows+16(FP), DX
	MOVQ  n+24(FP), R13
	MOVQ  tops+32(FP), R12
	MOVQ  bases+40(FP), R8
	MOVQ  sums+48(FP), R9
	DECQ  R13
	MOVQ  R13, CX
	ANDQ  $31, CX
	INCQ  CX
	MOVL  $-1, BX
	BZHIL CX, BX, BX
	KMOVW BX, K3
	SHRL  $16, BX
	KMOVW BX, K4
	ANDQ  $~31, R13
	SHLQ  $2, R13
	EXP4_CONSTANTS

pair:
	VMOVUPS C_NEGINF, Z0
	VMOVAPS Z0, Z1
	VMOVAPS Z0, Z8
	VMOVAPS Z0, Z31
	XORQ    AX, AX
	KXNORW  K1, K1, K1
	KXNORW  K2, K2, K2

top:
	CMPQ  AX, R13
	JNE   whole
	KMOVW K3, K1
	KMOVW K4, K2

whole:
	VMAXPS (SI)(AX*1), Z0, K1, Z0
	VMAXPS 64(SI)(AX*1), Z1, K2, Z1
	VMAXPS (DI)(AX*1), Z8, K1, Z8
	VMAXPS 64(DI)(AX*1), Z31, K2, Z31
	ADDQ   $128, AX
	CMPQ   AX, R13
	JLE    top
	VMAXPS Z1, Z0, Z0
	VMAXPS Z31, Z8, Z8
	TOP(Z0, Y0, X0, Y1, X1, 0)
	TOP(Z8, Y8, X8, Y31, X31, 4)
	NOSUMS
	XORQ   AX, AX
	KXNORW K1, K1, K1
	KXNORW K2, K2, K2

exps:
	CMPQ  AX, R13
	JNE   full
	KMOVW K3, K1
	KMOVW K4, K2

full:
	VMOVUPS C_NEGINF, Z2
	VMOVAPS Z2, Z3
	VMOVAPS Z2, Z4
	VMOVAPS Z2, Z5
	VMOVUPS (SI)(AX*1), K1, Z2
	VMOVUPS 64(SI)(AX*1), K2, Z3
	VMOVUPS (DI)(AX*1), K1, Z4
	VMOVUPS 64(DI)(AX*1), K2, Z5
	EXPSUMS
	VMOVUPS Z2, (SI)(AX*1)
	VMOVUPS Z3, 64(SI)(AX*1)
	VMOVUPS Z4, (DI)(AX*1)
	VMOVUPS Z5, 64(DI)(AX*1)
	ADDQ    $128, AX
	CMPQ    AX, R13
	JLE     exps
	ADDQ    $8, R12
	NEXTROWS
	JG      pair
	VZEROUPPER
	RET

// func attnJoin(x, y, wx, wy *float32, rows, d int)
//
// x[r] = wx[r] x[r] + wy[r] y[r] for rows > 0 of d, a multiple of 64.
TEXT ·attnJoin(SB), NOSPLIT, $0-48
	MOVQ x+0(FP), DI
	MOVQ y+8(FP), SI
	MOVQ wx+16(FP), R8
	MOVQ wy+24(FP), R9
	MOVQ rows+32(FP), DX
	MOVQ d+40(FP), R10

row:
	VBROADCASTSS (R8), Z30
	VBROADCASTSS (R9), Z31
	MOVQ         R10, CX

join:
	VMULPS  (DI), Z30, Z0
	VMULPS  64(DI), Z30, Z1
	VMULPS  128(DI), Z30, Z2
	VMULPS  192(DI), Z30, Z3
	VMULPS  (SI), Z31, Z4
	VMULPS  64(SI), Z31, Z5
	VMULPS  128(SI), Z31, Z6
	VMULPS  192(SI), Z31, Z7
	VADDPS  Z4, Z0, Z0
	VADDPS  Z5, Z1, Z1
	VADDPS  Z6, Z2, Z2
	VADDPS  Z7, Z3, Z3
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)
	VMOVUPS Z2, 128(DI)
	VMOVUPS Z3, 192(DI)
	ADDQ    $256, DI
	ADDQ    $256, SI
	SUBQ    $64, CX
	JNZ     join
	ADDQ    $4, R8
	ADDQ    $4, R9
	DECQ    DX
	JNZ     row
	VZEROUPPER
	RET

// func fetchToWrite(p unsafe.Pointer, n int)
//
// It asks for the cache lines of n > 0 bytes, to write to them.
TEXT ·fetchToWrite(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX

line:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0e // PREFETCHW (SI)
	ADDQ $64, SI
	SUBQ $64, CX
	JG   line
	RET

// func storeBF16(y *uint16, x *float32, n int)
//
// y = x rounded as bf16Of does it, for n > 0, a multiple of 16.
TEXT ·storeBF16(SB), NOSPLIT, $0-24
	MOVQ         y+0(FP), DI
	MOVQ         x+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL         $1, AX
	VPBROADCASTD AX, Z4
	MOVL         $0x7fff, AX
	VPBROADCASTD AX, Z5
	MOVL         $0x400000, AX
	VPBROADCASTD AX, Z6

store:
	VMOVUPS  (SI), Z0
	VPSRLD   $16, Z0, Z1
	VPANDD   Z4, Z1, Z1
	VPADDD   Z5, Z1, Z1
	VPADDD   Z0, Z1, Z1
	VCMPPS   $3, Z0, Z0, K1  // NaN
	VPORD    Z6, Z0, K1, Z1
	VPSRLD   $16, Z1, Z1
	VPMOVDW  Z1, (DI)
	ADDQ     $64, SI
	ADDQ     $32, DI
	SUBQ     $16, CX
	JNZ      store
	VZEROUPPER
	RET
