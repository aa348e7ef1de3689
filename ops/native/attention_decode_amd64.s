//go:build amd64 && !purego

#include "textflag.h"
#include "gemm_avx512_amd64.h"
#include "attention_decode_amd64.h"

// The two products of one decoded token with keys and values, in AVX-512: 1 to 4
// query heads of a key head share what is read. Bound by the read of keys and
// values: a head of 64 numbers is 4 loads for 12 to 16 multiply-adds. Keys and
// values lie as float32, bf16 or f16.

// SIZE is the bytes of a stored number, STORED loads 16 of them, FETCH fetches as
// much memory from AX on as is read meanwhile, line by line: the keys of one head
// lie apart, and memory read in steps comes at half the rate of a stream.
#define SIZE 4
#define STORED(m, z) VMOVUPS m, z
#define FETCH           \
	PREFETCHT0 (AX)     \
	PREFETCHT0 64(AX)   \
	PREFETCHT0 128(AX)  \
	PREFETCHT0 192(AX)  \
	ADDQ       $256, AX

// func attnScores*(p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32)
//
// p[r,j] = scale q[r] . k[j] for 1 to 4 rows of q [rows,d] and keys, a multiple
// of 4, d of 16; ldp and ldk are in bytes.
//	Z0..Z15 sums of row r with keys j: Z(4r+j), Z16..Z19 keys
//	BX keys, R9 their stride, R10 3 times that, SI q, R11 its stride, R12 3 times
//	that, DI p, R8 its stride, CX keys left, DX bytes of d left
TEXT ·attnScoresF32(SB), NOSPLIT, $0-76
#include "attention_scores_amd64.h"

// func attnValues*(o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int)
//
// o[r] += p[r,j] v[j], one chain in the order of j, for 1 to 4 rows of o [rows,d]
// and keys > 0; d is a multiple of 64; ldo, ldp and ldv are in bytes.
//	Z0..Z15 64 numbers of row r: Z(4r).., Z16..Z19 of a value
//	DI o, R8 its stride, SI p, R9 its stride, R10 3 times that, BX v, R11 its
//	stride, CX keys left, DX numbers of d left, R12 bytes of d done
TEXT ·attnValuesF32(SB), NOSPLIT, $0-80
#include "attention_values_amd64.h"

#undef SIZE
#undef STORED
#undef FETCH
#define SIZE 2
#define FETCH           \
	PREFETCHT0 (AX)     \
	PREFETCHT0 64(AX)   \
	ADDQ       $128, AX
#define STORED(m, z) \
	VPMOVZXWD m, z     \
	VPSLLD    $16, z, z

TEXT ·attnScoresBF16(SB), NOSPLIT, $0-76
#include "attention_scores_amd64.h"

TEXT ·attnValuesBF16(SB), NOSPLIT, $0-80
#include "attention_values_amd64.h"

#undef STORED
#define STORED(m, z) VCVTPH2PS m, z

TEXT ·attnScoresF16(SB), NOSPLIT, $0-76
#include "attention_scores_amd64.h"

TEXT ·attnValuesF16(SB), NOSPLIT, $0-80
#include "attention_values_amd64.h"
