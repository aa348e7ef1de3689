// The body of attnScores*; attention_decode_amd64.s says what it computes.

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
	ZERO(Z0, Z1)
	ZERO(Z2, Z3)
	ZERO(Z4, Z5)
	ZERO(Z6, Z7)
	ZERO(Z8, Z9)
	ZERO(Z10, Z11)
	ZERO(Z12, Z13)
	ZERO(Z14, Z15)

step:
	STORED((BX), Z16)
	STORED((BX)(R9*1), Z17)
	STORED((BX)(R9*2), Z18)
	STORED((BX)(R10*1), Z19)
	FETCH
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
	ADDQ $(16*SIZE), BX
	ADDQ $64, SI
	SUBQ $64, DX
	JNZ  step

	MOVQ R13, DI
	EACHROW(rows+48(FP), SCORES, stored)

stored:
	ADDQ $16, R13
	MOVQ d+64(FP), DX
	LEAQ (BX)(R9*4), BX
	IMULQ $SIZE, DX
	SUBQ DX, BX
	SUBQ $4, CX
	JNZ  four
	VZEROUPPER
	RET
