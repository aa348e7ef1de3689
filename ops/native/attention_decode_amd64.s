//go:build amd64 && !purego

#include "textflag.h"

// The two products of one decoded token with keys and values, in AVX-512: 1 to 4
// query heads of a key head share what is read. Bound by the read of keys and
// values: a head of 64 numbers is 4 loads for 12 to 16 multiply-adds.

// DOT adds 16 of d of a query, at q, to its sums with four keys.
#define DOT(q, c0, c1, c2, c3) \
	VMOVUPS     q, Z20       \
	VFMADD231PS Z16, Z20, c0 \
	VFMADD231PS Z17, Z20, c1 \
	VFMADD231PS Z18, Z20, c2 \
	VFMADD231PS Z19, Z20, c3

// SCORES sums the lanes of four sums and stores the four, times Z31, at (DI)
// of a row of p; the order of the additions is that of a tree.
#define SCORES(c0, c1, c2, c3) \
	VUNPCKLPS     c1, c0, Z20    \
	VUNPCKHPS     c1, c0, Z21    \
	VADDPS        Z21, Z20, Z20  \
	VUNPCKLPS     c3, c2, Z21    \
	VUNPCKHPS     c3, c2, Z22    \
	VADDPS        Z22, Z21, Z21  \
	VUNPCKLPD     Z21, Z20, Z22  \
	VUNPCKHPD     Z21, Z20, Z23  \
	VADDPS        Z23, Z22, Z22  \
	VEXTRACTF64X4 $1, Z22, Y23   \
	VADDPS        Y23, Y22, Y22  \
	VEXTRACTF32X4 $1, Y22, X23   \
	VADDPS        X23, X22, X22  \
	VMULPS        X31, X22, X22  \
	VMOVUPS       X22, (DI)      \
	ADDQ          R8, DI

// func attnScores(p *float32, ldp int, q, k *float32, ldk, ahead, rows, keys, d int, scale float32)
//
// p[r,j] = scale q[r] . k[j] for 1 to 4 rows of q [rows,d] and keys, a multiple
// of 4, d of 16; ldp and ldk are in bytes.
//	Z0..Z15 sums of row r with keys j: Z(4r+j), Z16..Z19 keys
//	BX keys, R9 their stride, R10 3 times that, SI q, R11 its stride, R12 3 times
//	that, DI p, R8 its stride, CX keys left, DX bytes of d left
TEXT ·attnScores(SB), NOSPLIT, $0-76
	MOVQ         ldp+8(FP), R8
	MOVQ         k+24(FP), BX
	MOVQ         ldk+32(FP), R9
	LEAQ         (R9)(R9*2), R10
	MOVQ         keys+56(FP), CX
	MOVQ         d+64(FP), R11
	SHLQ         $2, R11
	LEAQ         (R11)(R11*2), R12
	VBROADCASTSS scale+72(FP), Z31
	MOVQ         p+0(FP), R13
	MOVQ         ahead+40(FP), AX

four:
	MOVQ   q+16(FP), SI
	MOVQ   R11, DX
	VPXORQ Z0, Z0, Z0
	VPXORQ Z1, Z1, Z1
	VPXORQ Z2, Z2, Z2
	VPXORQ Z3, Z3, Z3
	VPXORQ Z4, Z4, Z4
	VPXORQ Z5, Z5, Z5
	VPXORQ Z6, Z6, Z6
	VPXORQ Z7, Z7, Z7
	VPXORQ Z8, Z8, Z8
	VPXORQ Z9, Z9, Z9
	VPXORQ Z10, Z10, Z10
	VPXORQ Z11, Z11, Z11
	VPXORQ Z12, Z12, Z12
	VPXORQ Z13, Z13, Z13
	VPXORQ Z14, Z14, Z14
	VPXORQ Z15, Z15, Z15

step:
	LEAQ (BX)(AX*1), R15
	VMOVUPS (BX), Z16
	VMOVUPS (BX)(R9*1), Z17
	VMOVUPS (BX)(R9*2), Z18
	VMOVUPS (BX)(R10*1), Z19
	PREFETCHT0 (R15)
	PREFETCHT0 (R15)(R9*1)
	PREFETCHT0 (R15)(R9*2)
	PREFETCHT0 (R15)(R10*1)
	DOT((SI), Z0, Z1, Z2, Z3)
	CMPQ rows+48(FP), $2
	JL   next
	DOT((SI)(R11*1), Z4, Z5, Z6, Z7)
	JEQ  next
	DOT((SI)(R11*2), Z8, Z9, Z10, Z11)
	CMPQ rows+48(FP), $3
	JEQ  next
	DOT((SI)(R12*1), Z12, Z13, Z14, Z15)

next:
	ADDQ $64, BX
	ADDQ $64, SI
	SUBQ $64, DX
	JNZ  step

	MOVQ R13, DI
	SCORES(Z0, Z1, Z2, Z3)
	CMPQ rows+48(FP), $2
	JL   stored
	SCORES(Z4, Z5, Z6, Z7)
	CMPQ rows+48(FP), $3
	JL   stored
	SCORES(Z8, Z9, Z10, Z11)
	CMPQ rows+48(FP), $4
	JL   stored
	SCORES(Z12, Z13, Z14, Z15)

stored:
	ADDQ $16, R13
	SUBQ R11, BX
	LEAQ (BX)(R9*4), BX
	SUBQ $4, CX
	JNZ  four
	VZEROUPPER
	RET

// ROW adds a value times the probability at p to the sums of a row.
#define ROW(p, c0, c1, c2, c3) \
	VBROADCASTSS p, Z20      \
	VFMADD231PS  Z16, Z20, c0 \
	VFMADD231PS  Z17, Z20, c1 \
	VFMADD231PS  Z18, Z20, c2 \
	VFMADD231PS  Z19, Z20, c3

#define LOADROW(c0, c1, c2, c3) \
	VMOVUPS (DI), c0    \
	VMOVUPS 64(DI), c1  \
	VMOVUPS 128(DI), c2 \
	VMOVUPS 192(DI), c3 \
	ADDQ R8, DI

#define STOREROW(c0, c1, c2, c3) \
	VMOVUPS c0, (DI)    \
	VMOVUPS c1, 64(DI)  \
	VMOVUPS c2, 128(DI) \
	VMOVUPS c3, 192(DI) \
	ADDQ R8, DI

// func attnValues(o *float32, ldo int, p *float32, ldp int, v *float32, ldv, ahead, rows, keys, d int)
//
// o[r] += p[r,j] v[j], one chain in the order of j, for 1 to 4 rows of o [rows,d]
// and keys > 0; d is a multiple of 64; ldo, ldp and ldv are in bytes.
//	Z0..Z15 64 numbers of row r: Z(4r).., Z16..Z19 of a value
//	DI o, R8 its stride, SI p, R9 its stride, R10 3 times that, BX v, R11 its
//	stride, CX keys left, DX numbers of d left, R12 bytes of d done
TEXT ·attnValues(SB), NOSPLIT, $0-80
	MOVQ ldo+8(FP), R8
	MOVQ ldp+24(FP), R9
	LEAQ (R9)(R9*2), R10
	MOVQ ldv+40(FP), R11
	MOVQ d+72(FP), DX
	MOVQ ahead+48(FP), AX
	XORQ R12, R12

part:
	MOVQ o+0(FP), DI
	ADDQ R12, DI
	LOADROW(Z0, Z1, Z2, Z3)
	CMPQ rows+56(FP), $2
	JL   loaded
	LOADROW(Z4, Z5, Z6, Z7)
	CMPQ rows+56(FP), $3
	JL   loaded
	LOADROW(Z8, Z9, Z10, Z11)
	CMPQ rows+56(FP), $4
	JL   loaded
	LOADROW(Z12, Z13, Z14, Z15)

loaded:
	MOVQ p+16(FP), SI
	MOVQ v+32(FP), BX
	ADDQ R12, BX
	MOVQ keys+64(FP), CX

key:
	VMOVUPS (BX), Z16
	VMOVUPS 64(BX), Z17
	VMOVUPS 128(BX), Z18
	VMOVUPS 192(BX), Z19
	PREFETCHT0 (BX)(AX*1)
	PREFETCHT0 64(BX)(AX*1)
	PREFETCHT0 128(BX)(AX*1)
	PREFETCHT0 192(BX)(AX*1)
	ROW((SI), Z0, Z1, Z2, Z3)
	CMPQ rows+56(FP), $2
	JL   nextkey
	ROW((SI)(R9*1), Z4, Z5, Z6, Z7)
	JEQ  nextkey
	ROW((SI)(R9*2), Z8, Z9, Z10, Z11)
	CMPQ rows+56(FP), $3
	JEQ  nextkey
	ROW((SI)(R10*1), Z12, Z13, Z14, Z15)

nextkey:
	ADDQ R11, BX
	ADDQ $4, SI
	DECQ CX
	JNZ  key

	MOVQ o+0(FP), DI
	ADDQ R12, DI
	STOREROW(Z0, Z1, Z2, Z3)
	CMPQ rows+56(FP), $2
	JL   kept
	STOREROW(Z4, Z5, Z6, Z7)
	CMPQ rows+56(FP), $3
	JL   kept
	STOREROW(Z8, Z9, Z10, Z11)
	CMPQ rows+56(FP), $4
	JL   kept
	STOREROW(Z12, Z13, Z14, Z15)

kept:
	ADDQ $256, R12
	SUBQ $64, DX
	JNZ  part
	VZEROUPPER
	RET
