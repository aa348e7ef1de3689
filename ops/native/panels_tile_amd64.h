// The body of the product of 1 to 4 rows of x with a panel, for the file that
// includes it inside a TEXT with the argument t: y = x w^T + s, then + add, for 32
// rows of w, through all of k. WIDEN(z, y, lo, ylo), which the including file defines, turns 16
// words in z into the columns of the smaller k in z and of the other in lo; y and
// ylo are the lower halves of z and lo, and Z31 may hold what it needs. Every sum
// is one chain in the order of k, cut every 256 as Gemm's is.
//
//	Z0..Z7    sums of this cut: row i in Z(2i), Z(2i+1)
//	Z8..Z15   those of the cuts before it
//	Z16..Z19  words, Z20..Z23 elements of x
//	DI args, SI x, R10 its row stride, R11 3 times that, BX w, CX blocks of 32 k
//	left in this cut, R14 after it, R8 words left in the block, R9 0 before the
//	first cut
//
// Bound: two dependent multiply-adds a word, 16 bytes a cycle; from memory the
// read. A line is fetched, by the PANELFETCH of the including file, PANELAHEAD bytes
// ahead, which is in the next panels where this one ends.

	MOVQ t+0(FP), DI
	MOVQ 8(DI), R14
	MOVQ 16(DI), SI
	MOVQ 24(DI), R10
	LEAQ (R10)(R10*2), R11
	MOVQ 32(DI), BX
	XORL R9, R9
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)

cut:
	MOVQ $8, CX
	CMPQ R14, CX
	CMOVQLT R14, CX
	SUBQ CX, R14
	MOVQ CX, R8
	SHLQ $4, R8
	CMPQ 0(DI), $2
	JL   word1
	JEQ  word2
	CMPQ 0(DI), $3
	JEQ  word3

word4:
	PWORD4
	PNEXT
	JNZ word4
	JMP sum

word3:
	PWORD3
	PNEXT
	JNZ word3
	JMP sum

word2:
	PWORD2
	PNEXT
	JNZ word2
	JMP sum

word1:
	PWORD1
	PNEXT
	JNZ word1

sum:
	TESTQ R9, R9
	JNZ   add
	INCQ  R9
	MOVQ  40(DI), R8
	TESTQ R8, R8
	JZ    first
	VMOVUPS (R8), Z8
	VMOVUPS 64(R8), Z9
	VMOVAPS Z8, Z10
	VMOVAPS Z9, Z11
	VMOVAPS Z8, Z12
	VMOVAPS Z9, Z13
	VMOVAPS Z8, Z14
	VMOVAPS Z9, Z15

add:
	PADD(Z0, Z8)
	PADD(Z1, Z9)
	PADD(Z2, Z10)
	PADD(Z3, Z11)
	PADD(Z4, Z12)
	PADD(Z5, Z13)
	PADD(Z6, Z14)
	PADD(Z7, Z15)
	TESTQ R14, R14
	JNZ   cut
	JMP   store

first:
	// Without s the first sums are copied: -0 stays.
	VMOVAPS Z0, Z8
	VMOVAPS Z1, Z9
	VMOVAPS Z2, Z10
	VMOVAPS Z3, Z11
	VMOVAPS Z4, Z12
	VMOVAPS Z5, Z13
	VMOVAPS Z6, Z14
	VMOVAPS Z7, Z15
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	TESTQ R14, R14
	JNZ   cut

store:
	MOVQ 0(DI), CX
	MOVQ 48(DI), R8
	MOVQ 56(DI), R9
	MOVQ 64(DI), R12
	TESTQ R12, R12
	JZ   rows
	PTAIL(Z8, Z9)
	PTAIL(Z10, Z11)
	PTAIL(Z12, Z13)
	PTAIL(Z14, Z15)

added:
	MOVQ 0(DI), CX

rows:
	PSTORE(Z8, Z9)
	PSTORE(Z10, Z11)
	PSTORE(Z12, Z13)
	PSTORE(Z14, Z15)

stored:
	VZEROUPPER
	RET
