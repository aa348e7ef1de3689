// The body of attnScores*; attention_decode_amd64.s says what it computes.

	MOVQ         t+0(FP), R15
	MOVQ         8(R15), R8
	MOVQ         48(R15), R9
	LEAQ         (R9)(R9*2), R10
	MOVQ         88(R15), R11
	SHLQ         $2, R11
	LEAQ         (R11)(R11*2), R12
	VBROADCASTSS 96(R15), Z31
	MOVQ         72(R15), R14
	MOVQ         56(R15), AX
	OPEN

head:
	MOVQ 0(R15), R13
	MOVQ 40(R15), BX
	MOVQ 80(R15), CX

four:
	MOVQ 24(R15), SI
	MOVQ R11, DX
	CLEARED

step:
	STORED((BX), Z16, Y16)
	STORED((BX)(R9*1), Z17, Y17)
	STORED((BX)(R9*2), Z18, Y18)
	STORED((BX)(R10*1), Z19, Y19)
	FETCH
	DOT((SI), Z0, Z1, Z2, Z3)
	CMPQ R14, $2
	JL   next
	DOT((SI)(R11*1), Z4, Z5, Z6, Z7)
	JEQ  next
	DOT((SI)(R11*2), Z8, Z9, Z10, Z11)
	CMPQ R14, $3
	JEQ  next
	DOT((SI)(R12*1), Z12, Z13, Z14, Z15)

next:
	ADDQ $(16*SIZE), BX
	ADDQ $64, SI
	SUBQ $64, DX
	JNZ  step

	MOVQ R13, DI
	EACHROW(SCORES, stored)

stored:
	ADDQ  $16, R13
	MOVQ  88(R15), DX
	LEAQ  (BX)(R9*4), BX
	IMULQ $SIZE, DX
	SUBQ  DX, BX
	SUBQ  $4, CX
	JNZ   four
	NEXTHEAD(DX, done)
	JMP head

done:
	VZEROUPPER
	RET
