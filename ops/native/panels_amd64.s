//go:build amd64 && !purego

#include "textflag.h"
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
