// The body of attnValues*; attention_decode_amd64.s says what it computes.

	MOVQ t+0(FP), R15
	MOVQ 8(R15), R9
	LEAQ (R9)(R9*2), R10
	MOVQ 48(R15), R11
	MOVQ 72(R15), R14
	MOVQ 56(R15), AX
	OPEN

head:
	MOVQ 88(R15), DX
	LEAQ (DX*4), R8
	XORQ R12, R12

part:
	CLEARED
	MOVQ  24(R15), DI
	ADDQ  R12, DI
	TESTB $1, 100(R15)
	JZ    loaded
	EACHROW(LOADROW, loaded)

loaded:
	MOVQ 0(R15), SI
	MOVQ R12, BX
	SHRQ $(2-SIZE/2), BX
	ADDQ 40(R15), BX
	MOVQ 80(R15), CX

key:
	STORED((BX), Z16, Y16)
	STORED((16*SIZE)(BX), Z17, Y17)
	STORED((32*SIZE)(BX), Z18, Y18)
	STORED((48*SIZE)(BX), Z19, Y19)
	FETCH
	ROW((SI), Z0, Z1, Z2, Z3)
	CMPQ R14, $2
	JL   nextkey
	ROW((SI)(R9*1), Z4, Z5, Z6, Z7)
	JEQ  nextkey
	ROW((SI)(R9*2), Z8, Z9, Z10, Z11)
	CMPQ R14, $3
	JEQ  nextkey
	ROW((SI)(R10*1), Z12, Z13, Z14, Z15)

nextkey:
	ADDQ R11, BX
	ADDQ $4, SI
	DECQ CX
	JNZ  key

	MOVQ 24(R15), DI
	ADDQ R12, DI
	EACHROW(STOREROW, kept)

kept:
	ADDQ $256, R12
	SUBQ $64, DX
	JNZ  part
	NEXTHEAD(DX, done)
	JMP head

done:
	VZEROUPPER
	RET
