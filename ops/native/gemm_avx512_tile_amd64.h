// The body of an AVX-512 tile, for the file that includes it inside a TEXT with
// the argument t: C = alpha A B + beta S for 12, 8, 4, 2 or 1 rows and up to 32
// columns. For every k it loads 32 columns of B, broadcasts one element of A a
// row, and MULADD, which the including file defines, adds the product:
// MULADD(xn, x, cn, c0, c1) is c0 += Z24 x, c1 += Z25 x, with xn and cn the
// numbers of the registers x and c0. An element is 32 bits.
//
//	Z0..Z23    sums: row i is Z(2i) (columns 0..15) and Z(2i+1) (columns 16..31)
//	Z24, Z25   row k of B, or of S at the end
//	Z26..Z29   broadcast elements of A
//	Z30, Z31   alpha, beta at the end
//	K1, K2     columns that exist in each half
//	DI args, SI R8 R9 A at rows 0, 4, 8, R10 rsa, R11 3 rsa, R12 csa,
//	BX B, R13 rsb, CX k, DX C, AX ldc, R8 S, R9 lds at the end

#define LOADB \
	VMOVUPS.Z (BX), K1, Z24 \
	VMOVUPS.Z 64(BX), K2, Z25

// LOOP does STEP, which ends with DEC of k, for every k. A masked load takes one of
// the two ports of the multiply-adds on some CPUs, so whole rows go without.
#define LOOP(full, part, end, STEP) \
	TESTQ CX, CX                \
	JZ    end                   \
	CMPQ  8(DI), $32            \
	JLT   part                  \
full:                           \
	VMOVUPS (BX), Z24           \
	VMOVUPS 64(BX), Z25         \
	STEP                        \
	JNZ   full                  \
	JMP   end                   \
part:                           \
	LOADB                       \
	STEP                        \
	JNZ   part

// ROWS4 adds four rows of A that start at the register at, to the sums from
// register n on.
#define ROWS4(at, n, c0, c1, c2, c3, c4, c5, c6, c7) \
	VBROADCASTSS (at), Z26         \
	VBROADCASTSS (at)(R10*1), Z27  \
	VBROADCASTSS (at)(R10*2), Z28  \
	VBROADCASTSS (at)(R11*1), Z29  \
	MULADD(26, Z26, n, c0, c1)     \
	MULADD(27, Z27, n+2, c2, c3)   \
	MULADD(28, Z28, n+4, c4, c5)   \
	MULADD(29, Z29, n+6, c6, c7)

// STEP12, STEP8 and STEP4 are the steps of a tile of so many rows.
#define STEP12 \
	ROWS4(SI, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7) \
	ROWS4(R8, 8, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15) \
	ROWS4(R9, 16, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23) \
	ADDQ R12, SI \
	ADDQ R12, R8 \
	ADDQ R12, R9 \
	ADDQ R13, BX \
	DECQ CX

#define STEP8 \
	ROWS4(SI, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7) \
	ROWS4(R8, 8, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15) \
	ADDQ R12, SI \
	ADDQ R12, R8 \
	ADDQ R13, BX \
	DECQ CX

#define STEP4 \
	ROWS4(SI, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7) \
	ADDQ R12, SI \
	ADDQ R13, BX \
	DECQ CX

// FETCH4 asks for four rows of 32 columns at DX, AX apart (R14 three times that).
#define FETCH4 \
	PREFETCHT0 (DX)            \
	PREFETCHT0 64(DX)          \
	PREFETCHT0 (DX)(AX*1)      \
	PREFETCHT0 64(DX)(AX*1)    \
	PREFETCHT0 (DX)(AX*2)      \
	PREFETCHT0 64(DX)(AX*2)    \
	PREFETCHT0 (DX)(R14*1)     \
	PREFETCHT0 64(DX)(R14*1)   \
	LEAQ       (DX)(AX*4), DX

	MOVQ t+0(FP), DI

	// K1 and K2 from cols: the low 32 bits of (1 << cols) - 1.
	MOVQ  8(DI), CX
	MOVQ  $1, AX
	SHLQ  CX, AX
	DECQ  AX
	KMOVW AX, K1
	SHRQ  $16, AX
	KMOVW AX, K2

	MOVQ 16(DI), CX
	MOVQ 24(DI), SI
	MOVQ 32(DI), R10
	LEAQ (R10)(R10*2), R11
	LEAQ (SI)(R10*4), R8
	LEAQ (R8)(R10*4), R9
	MOVQ 40(DI), R12
	MOVQ 48(DI), BX
	MOVQ 56(DI), R13

	MOVQ 0(DI), AX
	CMPQ AX, $8
	JG   rows12
	JEQ  rows8
	CMPQ AX, $2
	JG   rows4
	JEQ  rows2
	JMP  rows1

rows12:
	MOVQ  104(DI), DX
	TESTQ DX, DX
	JZ    fetched
	MOVQ  88(DI), AX
	LEAQ  (AX)(AX*2), R14
	FETCH4
	FETCH4
	FETCH4

fetched:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	ZERO(Z8, Z9)
	ZERO(Z10, Z11)
	ZERO(Z12, Z13)
	ZERO(Z14, Z15)
	ZERO(Z16, Z17)
	ZERO(Z18, Z19)
	ZERO(Z20, Z21)
	ZERO(Z22, Z23)
	LOOP(full12, part12, end12, STEP12)

end12:
	EPILOGUE(plain12)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	ADDSTORE(Z8, Z9)
	ADDSTORE(Z10, Z11)
	ADDSTORE(Z12, Z13)
	ADDSTORE(Z14, Z15)
	ADDSTORE(Z16, Z17)
	ADDSTORE(Z18, Z19)
	ADDSTORE(Z20, Z21)
	ADDSTORE(Z22, Z23)
	VZEROUPPER
	RET

plain12:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	STORE(Z8, Z9)
	STORE(Z10, Z11)
	STORE(Z12, Z13)
	STORE(Z14, Z15)
	STORE(Z16, Z17)
	STORE(Z18, Z19)
	STORE(Z20, Z21)
	STORE(Z22, Z23)
	VZEROUPPER
	RET

rows8:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	ZERO(Z8, Z9)
	ZERO(Z10, Z11)
	ZERO(Z12, Z13)
	ZERO(Z14, Z15)
	LOOP(full8, part8, end8, STEP8)

end8:
	EPILOGUE(plain8)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	ADDSTORE(Z8, Z9)
	ADDSTORE(Z10, Z11)
	ADDSTORE(Z12, Z13)
	ADDSTORE(Z14, Z15)
	VZEROUPPER
	RET

plain8:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	STORE(Z8, Z9)
	STORE(Z10, Z11)
	STORE(Z12, Z13)
	STORE(Z14, Z15)
	VZEROUPPER
	RET

rows4:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	LOOP(full4, part4, end4, STEP4)

end4:
	EPILOGUE(plain4)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	ADDSTORE(Z4, Z5)
	ADDSTORE(Z6, Z7)
	VZEROUPPER
	RET

plain4:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	STORE(Z4, Z5)
	STORE(Z6, Z7)
	VZEROUPPER
	RET

rows2:
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	TESTQ CX, CX
	JZ    end2

loop2:
	LOADB
	VBROADCASTSS (SI), Z26
	VBROADCASTSS (SI)(R10*1), Z27
	MULADD(26, Z26, 0, Z0, Z1)
	MULADD(27, Z27, 2, Z2, Z3)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop2

end2:
	EPILOGUE(plain2)
	ADDSTORE(Z0, Z1)
	ADDSTORE(Z2, Z3)
	VZEROUPPER
	RET

plain2:
	STORE(Z0, Z1)
	STORE(Z2, Z3)
	VZEROUPPER
	RET

rows1:
	ZERO(Z0, Z1)
	TESTQ CX, CX
	JZ    end1

loop1:
	LOADB
	VBROADCASTSS (SI), Z26
	MULADD(26, Z26, 0, Z0, Z1)
	ADDQ R12, SI
	ADDQ R13, BX
	DECQ CX
	JNZ  loop1

end1:
	EPILOGUE(plain1)
	ADDSTORE(Z0, Z1)
	VZEROUPPER
	RET

plain1:
	STORE(Z0, Z1)
	VZEROUPPER
	RET
