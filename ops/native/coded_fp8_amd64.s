//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "gemm_stream_amd64.h"
#include "coded_stream_amd64.h"

// The tile of few rows on a weight in E4M3 with steps. Words are four codes that
// follow each other along k. A code in the place of a float32's fields is 2^120
// too small, subnormal ones among them, so the product of that with its step
// times 2^120 is rounded as code times step is. What a NaN gives is not a NaN: the
// largest magnitude of all codes tells, and then the caller computes the tile.
//
// Bound: 13 steps on the vector ports for a word of 16 rows, and a multiply-add for
// each of its codes and rows of x: 30 GB/s of a core from L2 with one row, 16 with
// four. Where many codes are subnormal numbers it is two thirds of that.
//
//	Z0 to Z7   words of the first cut and of the second, with Z12 to Z15
//	Z8, Z17    codes on their way
//	Z16, Z20   steps of the second cut and of the first
//	Z18, Z19   a magnitude and its sign in each half of a word, the upper half
//	Z21, Z22   magnitudes of bytes, the largest so far
//	Z23, K1    where a row finds its step, and the steps that are read
//	R13        from the start of what is fetched to its other half

#undef CUT
#undef SHIFT
#undef XBYTES
#undef LAST
#undef BLOCK
#undef BLOCKS
#define CUT 4
#define SHIFT 6
#define XBYTES 4

DATA fp8Moved<>+0(SB)/4, $0x7B800000 // 2^120
GLOBL fp8Moved<>(SB), RODATA|NOPTR, $4

DATA fp8Lanes<>+0(SB)/8, $0x0000000100000000
DATA fp8Lanes<>+8(SB)/8, $0x0000000300000002
DATA fp8Lanes<>+16(SB)/8, $0x0000000500000004
DATA fp8Lanes<>+24(SB)/8, $0x0000000700000006
DATA fp8Lanes<>+32(SB)/8, $0x0000000900000008
DATA fp8Lanes<>+40(SB)/8, $0x0000000B0000000A
DATA fp8Lanes<>+48(SB)/8, $0x0000000D0000000C
DATA fp8Lanes<>+56(SB)/8, $0x0000000F0000000E
GLOBL fp8Lanes<>(SB), RODATA|NOPTR, $64

// WORDn adds the products of the column z times its steps s with n rows of x.
#undef WORD1
#undef WORD2
#undef WORD3
#undef WORD4
#define WORD1(s, at, z, a, b, c, d) \
	VMULPS s, z, z                        \
	VFMADD231PS.BCST (at)(SI), z, a

#define WORD2(s, at, z, a, b, c, d) \
	WORD1(s, at, z, a, b, c, d)           \
	VFMADD231PS.BCST (at)(SI)(R10*1), z, b

#define WORD3(s, at, z, a, b, c, d) \
	WORD2(s, at, z, a, b, c, d)           \
	VFMADD231PS.BCST (at)(SI)(R10*2), z, c

#define WORD4(s, at, z, a, b, c, d) \
	WORD3(s, at, z, a, b, c, d)           \
	VFMADD231PS.BCST (at)(SI)(R11*1), z, d

// CODES makes four columns of a word and calls W for each.
#define CODES(W, s, at, z, a, b, c, d) \
	VPANDD  Z21, z, Z8               \
	VPMAXUB Z8, Z22, Z22             \
	VPSLLW  $8, z, Z17               \
	VPSRAW  $4, Z17, Z17             \
	VPANDD  Z18, Z17, Z17            \
	VPSRAW  $4, z, z                 \
	VPANDD  Z18, z, z                \
	VPSLLD  $16, Z17, Z8             \
	W(s, at, Z8, a, b, c, d)         \
	VPSLLD  $16, z, Z8               \
	W(s, at+4, Z8, a, b, c, d)       \
	VPANDD  Z19, Z17, Z17            \
	W(s, at+8, Z17, a, b, c, d)      \
	VPANDD  Z19, z, z                \
	W(s, at+12, z, a, b, c, d)

// NEAR and FAR fetch two lines of the one half of what comes next, and of the
// other; NONE does not.
#define NEAR(at) \
	PREFETCHT0 (at)(R15) \
	PREFETCHT0 (at+64)(R15)

#define FAR(at) \
	PREFETCHT0 (at)(R15)(R13*1) \
	PREFETCHT0 (at+64)(R15)(R13*1)

#define NONE(at)

#define FIRST(W, at, z) CODES(W, Z20, at, z, Z24, Z26, Z28, Z30)
#define SECOND(W, at, z) CODES(W, Z16, at+1024, z, Z25, Z27, Z29, Z31)

// ONE is 16 k of the first cut, at a byte of each row; BOTH that and 16 of the
// second, a word of the one after one of the other: each waits for its own sums.
#define ONE(W, F, at) \
	FOURS(at, Z0, Z1, Z2, Z3)  \
	F(0)                       \
	FIRST(W, 4*at, Z0)         \
	F(128)                     \
	FIRST(W, 4*at+16, Z1)      \
	F(256)                     \
	FIRST(W, 4*at+32, Z2)      \
	F(384)                     \
	FIRST(W, 4*at+48, Z3)

#define BOTH(W, F, at) \
	FOURS(at, Z0, Z1, Z2, Z3)      \
	FOURS(at+256, Z4, Z5, Z6, Z7)  \
	F(0)                           \
	FIRST(W, 4*at, Z0)             \
	SECOND(W, 4*at, Z4)            \
	F(128)                         \
	FIRST(W, 4*at+16, Z1)          \
	SECOND(W, 4*at+16, Z5)         \
	F(256)                         \
	FIRST(W, 4*at+32, Z2)          \
	SECOND(W, 4*at+32, Z6)         \
	F(384)                         \
	FIRST(W, 4*at+48, Z3)          \
	SECOND(W, 4*at+48, Z7)

// STEPS loads the steps of this block of the first cut, a step for each 128 of k,
// and leaves in R13 where they are.
#define STEPS \
	MOVQ SI, R13                          \
	SUBQ 16(DI), R13                      \
	SHRQ $7, R13                          \
	ANDQ 128(DI), R13                     \
	ADDQ 120(DI), R13                     \
	SPREAD(Z20)

#define SPREAD(s) \
	VMOVUPS.Z   (R13), K1, s              \
	VPERMPS     s, Z23, s                 \
	VMULPS.BCST fp8Moved<>(SB), s, s

// BLOCK is 16 rows of w by 64 of k of the first cut; BLOCKS that and 64 of the
// second.
#define BLOCK(W) \
	STEPS                 \
	MOVQ 144(DI), R13     \
	ONE(W, NEAR, 0)       \
	ONE(W, FAR, 16)       \
	ONE(W, NONE, 32)      \
	ONE(W, NONE, 48)      \
	FORTH

#define BLOCKS(W) \
	STEPS                 \
	ADDQ 136(DI), R13     \
	SPREAD(Z16)           \
	MOVQ 144(DI), R13     \
	BOTH(W, NEAR, 0)      \
	BOTH(W, FAR, 16)      \
	ADDQ 88(DI), R15      \
	BOTH(W, NEAR, 32)     \
	BOTH(W, FAR, 48)      \
	FORTH

#define FORTH \
	ADDQ 88(DI), R15      \
	ADDQ $64, BX          \
	ADDQ $64, R8          \
	ADDQ $64, R9          \
	ADDQ $64, R12         \
	ADDQ $256, SI         \
	DECQ CX

// LAST tells of a NaN: a bit for each byte that had one.
#define LAST \
	VPCMPEQB Z21, Z22, K2 \
	KMOVQ    K2, R13      \
	MOVQ     R13, 160(DI)

// func streamE4M3(t *fp8Tile)
TEXT ·streamE4M3(SB), NOSPLIT, $0-8
	MOVQ  t+0(FP), DI
	MOVQ  152(DI), R13
	KMOVW R13, K1
	VMOVDQU32.Z fp8Lanes<>(SB), K1, Z23
	MOVL  $0x87F087F0, R13
	VPBROADCASTD R13, Z18
	VPTERNLOGD $0xff, Z19, Z19, Z19
	VPSLLD $16, Z19, Z19
	MOVL  $0x7F7F7F7F, R13
	VPBROADCASTD R13, Z21
	VPXORQ Z22, Z22, Z22
#include "coded_stream_tile_amd64.h"
