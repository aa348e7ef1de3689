//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "gemm_stream_amd64.h"
#include "coded_stream_amd64.h"

// The tiles of few rows on weights in blocks.

// HEADS loads the first word of a block of 16 rows and leaves the lower halves in
// Z8 and the upper ones in Z9, as float32.
#define HEADS \
	VMOVD   (BX), X8                     \
	VPINSRD $1, (BX)(AX*1), X8, X8       \
	VPINSRD $2, (BX)(AX*2), X8, X8       \
	VPINSRD $3, (BX)(DX*1), X8, X8       \
	VMOVD   (R8), X9                     \
	VPINSRD $1, (R8)(AX*1), X9, X9       \
	VPINSRD $2, (R8)(AX*2), X9, X9       \
	VPINSRD $3, (R8)(DX*1), X9, X9       \
	VINSERTI128 $1, X9, Y8, Y8           \
	VMOVD   (R9), X9                     \
	VPINSRD $1, (R9)(AX*1), X9, X9       \
	VPINSRD $2, (R9)(AX*2), X9, X9       \
	VPINSRD $3, (R9)(DX*1), X9, X9       \
	VMOVD   (R12), X12                   \
	VPINSRD $1, (R12)(AX*1), X12, X12    \
	VPINSRD $2, (R12)(AX*2), X12, X12    \
	VPINSRD $3, (R12)(DX*1), X12, X12    \
	VINSERTI128 $1, X12, Y9, Y9          \
	VINSERTI64X4 $1, Y9, Z8, Z8          \
	VPSRLD    $16, Z8, Z9                \
	VPMOVDW   Z8, Y8                     \
	VCVTPH2PS Y8, Z8                     \
	VPMOVDW   Z9, Y9                     \
	VCVTPH2PS Y9, Z9

// NUMBERn adds the products of the column in Z12 with n rows of x.
#define NUMBER1(at) \
	VFMADD231PS.BCST at(SI), Z12, Z24

#define NUMBER2(at) \
	NUMBER1(at)                               \
	VFMADD231PS.BCST at(SI)(R10*1), Z12, Z26

#define NUMBER3(at) \
	NUMBER2(at)                               \
	VFMADD231PS.BCST at(SI)(R10*2), Z12, Z28

#define NUMBER4(at) \
	NUMBER3(at)                               \
	VFMADD231PS.BCST at(SI)(R11*1), Z12, Z30

// NEXTBLOCK goes on by a block of that many bytes.
#define NEXTBLOCK(bytes) \
	ADDQ $bytes, BX       \
	ADDQ $bytes, R8       \
	ADDQ $bytes, R9       \
	ADDQ $bytes, R12      \
	ADDQ $(16*bytes), R15 \
	ADDQ $128, SI         \
	DECQ CX

// AHEAD4 fetches the lines that a block of 4 bits has.
#define AHEAD4 \
	PREFETCHT0 (R15)    \
	PREFETCHT0 64(R15)  \
	PREFETCHT0 128(R15) \
	PREFETCHT0 192(R15) \
	PREFETCHT0 256(R15)

// SIGNED is a signed byte of a word, with left bits above it, times the step.
#define SIGNED(left, word) \
	VPSLLD    $left, word, Z12 \
	VPSRAD    $24, Z12, Z12    \
	VCVTDQ2PS Z12, Z12         \
	VMULPS    Z8, Z12, Z12

#define BYTES(N, at, word) \
	SIGNED(24, word) \
	N(at)            \
	SIGNED(16, word) \
	N(at+4)          \
	SIGNED(8, word)  \
	N(at+8)          \
	SIGNED(0, word)  \
	N(at+12)

#define BLOCKQ(N) \
	PREFETCHT0 320(R15) \
	PREFETCHT0 384(R15) \
	PREFETCHT0 448(R15) \
	PREFETCHT0 512(R15) \
	AHEAD4              \
	HEADS               \
	FOURS(2, Z0, Z1, Z2, Z3)  \
	FOURS(18, Z4, Z5, Z6, Z7) \
	BYTES(N, 0, Z0)     \
	BYTES(N, 16, Z1)    \
	BYTES(N, 32, Z2)    \
	BYTES(N, 48, Z3)    \
	BYTES(N, 64, Z4)    \
	BYTES(N, 80, Z5)    \
	BYTES(N, 96, Z6)    \
	BYTES(N, 112, Z7)   \
	NEXTBLOCK(34)

// func streamQ8_0(t *codedTile)
TEXT ·streamQ8_0(SB), NOSPLIT, $0-8
#include "coded_blocks_tile_amd64.h"

// QUARTER is a number of 4 bits, the lowest of the word after a shift to the
// right: WIDEN4 makes a number of the value that the table Z10 has for it.
#define QUARTER(N, at, right, word) \
	VPSRLD  $right, word, Z12 \
	VPERMPS Z10, Z12, Z12     \
	WIDEN4                    \
	N(at)

#define QUARTERS(N, at, half, word) \
	QUARTER(N, at, half, word)          \
	QUARTER(N, at+4, (half+8), word)    \
	QUARTER(N, at+8, (half+16), word)   \
	QUARTER(N, at+12, (half+24), word)

#define BLOCK4(N, off) \
	AHEAD4                 \
	HEADS                  \
	FOURS(off, Z0, Z1, Z2, Z3) \
	QUARTERS(N, 0, 0, Z0)  \
	QUARTERS(N, 16, 0, Z1) \
	QUARTERS(N, 32, 0, Z2) \
	QUARTERS(N, 48, 0, Z3) \
	QUARTERS(N, 64, 4, Z0) \
	QUARTERS(N, 80, 4, Z1) \
	QUARTERS(N, 96, 4, Z2) \
	QUARTERS(N, 112, 4, Z3)

#undef BLOCKQ
#define BLOCKQ(N) \
	BLOCK4(N, 2) \
	NEXTBLOCK(18)

#define WIDEN4 VMULPS Z8, Z12, Z12

// func streamQ4_0(t *codedTile)
TEXT ·streamQ4_0(SB), NOSPLIT, $0-8
	VPMOVSXBD quarters<>+16(SB), Z10
	VCVTDQ2PS Z10, Z10
#include "coded_blocks_tile_amd64.h"

#undef BLOCKQ
#define BLOCKQ(N) \
	BLOCK4(N, 4) \
	NEXTBLOCK(20)

// The product is exact, so a fused step rounds the sum once, as two steps do.
#undef WIDEN4
#define WIDEN4 VFMADD213PS Z9, Z8, Z12

// func streamQ4_1(t *codedTile)
TEXT ·streamQ4_1(SB), NOSPLIT, $0-8
	VPMOVSXBD quarters<>+0(SB), Z10
	VCVTDQ2PS Z10, Z10
#include "coded_blocks_tile_amd64.h"

// quarters are 0 to 15, then -8 to 7.
DATA quarters<>+0(SB)/8, $0x0706050403020100
DATA quarters<>+8(SB)/8, $0x0f0e0d0c0b0a0908
DATA quarters<>+16(SB)/8, $0xfffefdfcfbfaf9f8
DATA quarters<>+24(SB)/8, $0x0706050403020100
GLOBL quarters<>(SB), RODATA|NOPTR, $32
