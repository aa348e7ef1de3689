//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "panels_amd64.h"

// The products of few rows with panels of weights stored in 16 bits, and what
// makes rows of float32 of them. Lines are fetched past the second level cache, where
// keys and values stay; those of the functions whose names end in L2 into it, as an
// Intel core has few lines on their way to the first level: there a token takes 11.3
// ms so and 25.3 past it, where the read of its weights takes 10.7.
#define PANELFETCH(at) PREFETCHNTA at

// SPREAD is the body of a function that makes two rows of 32 numbers of each of n
// rows of words.
//	DI dst, SI src, CX rows of words left
#define SPREAD \
	MOVQ dst+0(FP), DI        \
	MOVQ src+8(FP), SI        \
	MOVQ n+16(FP), CX         \
row:                          \
	VMOVDQU32 (SI), Z16       \
	VMOVDQU32 64(SI), Z18     \
	WIDEN(Z16, Y16, Z17, Y17) \
	WIDEN(Z18, Y18, Z19, Y19) \
	VMOVUPS Z16, (DI)         \
	VMOVUPS Z18, 64(DI)       \
	VMOVUPS Z17, 128(DI)      \
	VMOVUPS Z19, 192(DI)      \
	ADDQ $128, SI             \
	ADDQ $256, DI             \
	DECQ CX                   \
	JNZ  row                  \
	VZEROUPPER                \
	RET

#define WIDEN(z, y, lo, ylo) \
	VPSLLD $16, z, lo \
	VPANDD Z31, z, z

// func panelBF16(t *panelTile)
TEXT ·panelBF16(SB), NOSPLIT, $0-8
	VPTERNLOGD $0xff, Z31, Z31, Z31
	VPSLLD $16, Z31, Z31 // the upper half of a word
#include "panels_tile_amd64.h"

#undef PANELFETCH
#define PANELFETCH(at) PREFETCHT1 at
// func panelBF16L2(t *panelTile)
TEXT ·panelBF16L2(SB), NOSPLIT, $0-8
	VPTERNLOGD $0xff, Z31, Z31, Z31
	VPSLLD $16, Z31, Z31
#include "panels_tile_amd64.h"

// func panelRowsBF16(dst *float32, src *byte, n int)
TEXT ·panelRowsBF16(SB), NOSPLIT, $0-24
	VPTERNLOGD $0xff, Z31, Z31, Z31
	VPSLLD $16, Z31, Z31
	SPREAD

#undef WIDEN
#define WIDEN(z, y, lo, ylo) \
	VPMOVDW   z, ylo    \
	VPSRLD    $16, z, z \
	VPMOVDW   z, y      \
	VCVTPH2PS ylo, lo   \
	VCVTPH2PS y, z

// func panelF16L2(t *panelTile)
TEXT ·panelF16L2(SB), NOSPLIT, $0-8
#include "panels_tile_amd64.h"

#undef PANELFETCH
#define PANELFETCH(at) PREFETCHNTA at
// func panelF16(t *panelTile)
TEXT ·panelF16(SB), NOSPLIT, $0-8
#include "panels_tile_amd64.h"

// func panelRowsF16(dst *float32, src *byte, n int)
TEXT ·panelRowsF16(SB), NOSPLIT, $0-24
	SPREAD

// func cpuMaker() uint32
//
// The first four letters of who made the CPU, the lowest byte first.
TEXT ·cpuMaker(SB), NOSPLIT, $0-4
	XORL AX, AX
	XORL CX, CX
	CPUID
	MOVL BX, ret+0(FP)
	RET

// func fetchLines(p unsafe.Pointer, n int)
//
// It asks for the cache lines of n > 0 bytes.
TEXT ·fetchLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX

line:
	PREFETCHT0 (SI)
	ADDQ $64, SI
	SUBQ $64, CX
	JG   line
	RET
