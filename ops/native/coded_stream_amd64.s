//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "gemm_stream_amd64.h"
#include "coded_stream_amd64.h"

// The tiles of few rows on weights stored in 16 bits.

#define WIDEN(z, y) \
	VPSLLD $16, z, Z17 \
	VPANDD Z18, z, z

// func streamBF16(t *codedTile)
TEXT ·streamBF16(SB), NOSPLIT, $0-8
	VPTERNLOGD $0xff, Z18, Z18, Z18
	VPSLLD $16, Z18, Z18 // the upper half of a word
#include "coded_stream_tile_amd64.h"

#undef WIDEN
#define WIDEN(z, y) \
	VPMOVDW   z, Y17   \
	VPSRLD    $16, z, z \
	VPMOVDW   z, y     \
	VCVTPH2PS Y17, Z17 \
	VCVTPH2PS y, z

// func streamF16(t *codedTile)
TEXT ·streamF16(SB), NOSPLIT, $0-8
#include "coded_stream_tile_amd64.h"
