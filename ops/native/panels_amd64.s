//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "panels_amd64.h"

// The products of few rows with panels of weights stored in 16 bits.

#define WIDEN(z, y, lo, ylo) \
	VPSLLD $16, z, lo \
	VPANDD Z31, z, z

// func panelBF16(t *panelTile)
TEXT ·panelBF16(SB), NOSPLIT, $0-8
	VPTERNLOGD $0xff, Z31, Z31, Z31
	VPSLLD $16, Z31, Z31 // the upper half of a word
#include "panels_tile_amd64.h"

#undef WIDEN
#define WIDEN(z, y, lo, ylo) \
	VPMOVDW   z, ylo    \
	VPSRLD    $16, z, z \
	VPMOVDW   z, y      \
	VCVTPH2PS ylo, lo   \
	VCVTPH2PS y, z

// func panelF16(t *panelTile)
TEXT ·panelF16(SB), NOSPLIT, $0-8
#include "panels_tile_amd64.h"

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
