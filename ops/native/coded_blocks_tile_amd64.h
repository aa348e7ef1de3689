// The body of a tile of few rows on a weight in blocks of 32 numbers, for the file
// that includes it inside a TEXT with the argument t: y = x w^T + s for 1 to 4
// rows of x and 16 rows of w, through all of k. The bytes of a block of 16 rows
// are transposed as words of four, and NUMBERS(N), which the including file
// defines, makes of them one column of float32 after the other, in Z12, and calls
// N(at) for each in the order of k, at its place in x in bytes. Every sum is one
// chain in the order of k, cut every 256 as Gemm's is.
//
//	Z0..Z7     words, Z8 to Z11 steps, least numbers and what NUMBERS needs
//	Z24 Z26 Z28 Z30 sums of a row each
//	DI args, SI x, R10 its row stride, R11 3 times that, AX row stride of w,
//	DX 3 times that, BX R8 R9 R12 w at rows 0, 4, 8, 12, R14 blocks left, CX
//	those of this cut, R15 what is fetched ahead, the tile that follows
//
// Bound: the chain, 32 fused multiply-adds of 4 cycles for a block of 16 rows.

	MOVQ t+0(FP), DI
	MOVQ 8(DI), R14
	SHRQ $5, R14
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
	ZERO(Z24, Z26)
	ZERO(Z28, Z30)
	MOVQ $8, CX
	CMPQ R14, CX
	CMOVQLT R14, CX
	SUBQ CX, R14
	CMPQ 0(DI), $2
	JL   rows1
	JEQ  rows2
	CMPQ 0(DI), $3
	JEQ  rows3

rows4:
	BLOCKQ(NUMBER4)
	JNZ rows4
	JMP keep

rows3:
	BLOCKQ(NUMBER3)
	JNZ rows3
	JMP keep

rows2:
	BLOCKQ(NUMBER2)
	JNZ rows2
	JMP keep

rows1:
	BLOCKQ(NUMBER1)
	JNZ rows1

keep:
	MOVQ  0(DI), CX
	MOVQ  48(DI), R10
	MOVQ  64(DI), R11
	TESTQ R10, R10
	JZ    plain
	KEEP1(Z24)
	KEEP1(Z26)
	KEEP1(Z28)
	KEEP1(Z30)

plain:
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
	JNZ   cut
	VZEROUPPER
	RET
