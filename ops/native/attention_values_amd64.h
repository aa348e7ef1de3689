// The body of attnValues*; attention_decode_amd64.s says what it computes.

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
	EACHROW(rows+56(FP), LOADROW, loaded)

loaded:
	MOVQ p+16(FP), SI
	MOVQ R12, BX
	SHRQ $(2-SIZE/2), BX
	ADDQ v+32(FP), BX
	MOVQ keys+64(FP), CX

key:
	STORED((BX), Z16)
	STORED((16*SIZE)(BX), Z17)
	STORED((32*SIZE)(BX), Z18)
	STORED((48*SIZE)(BX), Z19)
	FETCH
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
	EACHROW(rows+56(FP), STOREROW, kept)

kept:
	ADDQ $256, R12
	SUBQ $64, DX
	JNZ  part
	VZEROUPPER
	RET
