//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"

// The AVX-512 tile of float32: each element of C is one chain of fused
// multiply-adds in the order of k.
//
// Bound: with 12 rows a step of k is 24 FMA of 512 bits on two ports = 12
// cycles, 64 flop a cycle, against 14 loads = 7 cycles; so the FMA ports are
// the bound. With 4 rows or fewer the latency of the chain (4 cycles) is.

#define MULADD(xn, x, cn, c0, c1) \
	VFMADD231PS Z24, x, c0 \
	VFMADD231PS Z25, x, c1

// func tileAVX512(t *tileArgs)
TEXT ·tileAVX512(SB), NOSPLIT, $0-8
#include "gemm_avx512_tile_amd64.h"
