// The body of a tile of few rows on a weight stored in 16 or 8 bits, for the file
// that includes it inside a TEXT with the argument t: y = x w^T + s for 1 to 4
// rows of x and 16 rows of w, through all of k. The including file defines BLOCK
// and BLOCKS, which take 16 rows of w by 64 bytes, CUT, the blocks of 256 k, SHIFT,
// the binary logarithm of a block's k, XBYTES, the bytes of x for a byte of w, and
// LAST, what is done at the end. Every sum is one chain in the order of k, cut
// every 256 as Gemm's is; two cuts go side by side, or the chain would be the
// bound.
//
//	Z24..Z31   sums: row i is Z(24+2i) of the first cut, Z(25+2i) of the second
//	DI args, SI x, R10 its row stride, R11 3 times that, AX row stride of w,
//	DX 3 times that, BX R8 R9 R12 w at rows 0, 4, 8, 12, R14 blocks left, CX
//	those of this loop, R15 what is fetched ahead
//
// Bound in 16 bits: for the 1 KB of a block 64 shuffles and 64 other steps on the
// vector ports, 32 cycles or more; from memory the read. While a block is
// computed, 1 KB of what comes next is fetched, a line a word: all at once, or
// fetched beyond the first level cache, they hold up the loads (27 and 29 GB/s,
// not 34).

	MOVQ t+0(FP), DI
	MOVQ 8(DI), R14
	SHRQ $SHIFT, R14
	MOVQ 16(DI), SI
	MOVQ 24(DI), R10
	LEAQ (R10)(R10*2), R11
	MOVQ 32(DI), BX
	MOVQ 40(DI), AX
	LEAQ (AX)(AX*2), DX
	LEAQ (BX)(AX*4), R8
	LEAQ (R8)(AX*4), R9
	LEAQ (R9)(AX*4), R12
	MOVQ 80(DI), R15

cut:
	ZERO(Z24, Z25)
	ZERO(Z26, Z27)
	ZERO(Z28, Z29)
	ZERO(Z30, Z31)
	MOVQ $CUT, R13
	MOVQ R14, CX
	SUBQ R13, CX
	JGT  two
	MOVQ R14, R13
	XORL CX, CX

two:
	CMPQ CX, R13
	CMOVQGT R13, CX
	SUBQ R13, R14
	SUBQ CX, R14
	SUBQ CX, R13
	MOVQ CX, 104(DI) // blocks of the second cut
	MOVQ R13, 112(DI) // that the first has more
	TESTQ CX, CX
	JZ   rest
	CMPQ 0(DI), $2
	JL   pair1
	JEQ  pair2
	CMPQ 0(DI), $3
	JEQ  pair3

pair4:
	BLOCKS(WORD4)
	JNZ pair4
	JMP rest

pair3:
	BLOCKS(WORD3)
	JNZ pair3
	JMP rest

pair2:
	BLOCKS(WORD2)
	JNZ pair2
	JMP rest

pair1:
	BLOCKS(WORD1)
	JNZ pair1

rest:
	MOVQ 112(DI), CX
	TESTQ CX, CX
	JZ   keep
	CMPQ 0(DI), $2
	JL   rows1
	JEQ  rows2
	CMPQ 0(DI), $3
	JEQ  rows3

rows4:
	BLOCK(WORD4)
	JNZ rows4
	JMP keep

rows3:
	BLOCK(WORD3)
	JNZ rows3
	JMP keep

rows2:
	BLOCK(WORD2)
	JNZ rows2
	JMP keep

rows1:
	BLOCK(WORD1)
	JNZ rows1

keep:
	MOVQ  0(DI), CX
	MOVQ  48(DI), R10
	MOVQ  64(DI), R11
	MOVQ  104(DI), R13
	TESTQ R13, R13
	JZ    keep1
	SHLQ  $6, R13 // the second cut's, which no pointer has passed
	ADDQ  R13, BX
	ADDQ  R13, R8
	ADDQ  R13, R9
	ADDQ  R13, R12
	LEAQ  (SI)(R13*XBYTES), SI
	TESTQ R10, R10
	JZ    plain
	KEEP(Z24, Z25)
	KEEP(Z26, Z27)
	KEEP(Z28, Z29)
	KEEP(Z30, Z31)

plain:
	PLAIN(Z24, Z25)
	PLAIN(Z26, Z27)
	PLAIN(Z28, Z29)
	PLAIN(Z30, Z31)

keep1:
	TESTQ R10, R10
	JZ    plain1
	KEEP1(Z24)
	KEEP1(Z26)
	KEEP1(Z28)
	KEEP1(Z30)

plain1:
	PLAIN1(Z24)
	PLAIN1(Z26)
	PLAIN1(Z28)
	PLAIN1(Z30)

kept:
	// What follows is added to this.
	MOVQ  64(DI), R10
	MOVQ  R10, 48(DI)
	MOVQ  72(DI), R10
	MOVQ  R10, 56(DI)
	MOVQ  24(DI), R10
	LEAQ  (R10)(R10*2), R11
	TESTQ R14, R14
	JZ    done
	CMPQ  88(DI), $1024
	JEQ   cut
	LEAQ  (CUT*128)(BX), R15
	CMPQ  R14, $(2*CUT)
	JGT   cut
	MOVQ  96(DI), R15
	JMP   cut

done:
	LAST
	VZEROUPPER
	RET
