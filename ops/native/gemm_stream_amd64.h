// What the tiles that read few rows of A against a B stored [n,k] share: 16 rows
// of B by 16 words of 32 bits are transposed in registers and used once.
//
//	Z0..Z16    16 rows of B, then its columns, and one register free
//	SI A, AX row stride of B, DX 3 times that,
//	BX R8 R9 R12 B at rows 0, 4, 8, 12 and R13 16 rows, CX blocks of 16 words left

// TRANSPOSE turns 16 rows of B into columns. One register is free at a time and
// each pair of results takes it, so the columns end in the order that MULADD16
// reads them in.
#define TRANSPOSE(at) \
	VMOVUPS at(BX), Z0 \
	VMOVUPS at(BX)(AX*1), Z1 \
	VMOVUPS at(BX)(AX*2), Z2 \
	VMOVUPS at(BX)(DX*1), Z3 \
	VMOVUPS at(R8), Z4 \
	VMOVUPS at(R8)(AX*1), Z5 \
	VMOVUPS at(R8)(AX*2), Z6 \
	VMOVUPS at(R8)(DX*1), Z7 \
	VMOVUPS at(R9), Z8 \
	VMOVUPS at(R9)(AX*1), Z9 \
	VMOVUPS at(R9)(AX*2), Z10 \
	VMOVUPS at(R9)(DX*1), Z11 \
	VMOVUPS at(R12), Z12 \
	VMOVUPS at(R12)(AX*1), Z13 \
	VMOVUPS at(R12)(AX*2), Z14 \
	VMOVUPS at(R12)(DX*1), Z15 \
	VUNPCKLPS Z1, Z0, Z16 \
	VUNPCKHPS Z1, Z0, Z0 \
	VUNPCKLPS Z3, Z2, Z1 \
	VUNPCKHPS Z3, Z2, Z2 \
	VUNPCKLPS Z5, Z4, Z3 \
	VUNPCKHPS Z5, Z4, Z4 \
	VUNPCKLPS Z7, Z6, Z5 \
	VUNPCKHPS Z7, Z6, Z6 \
	VUNPCKLPS Z9, Z8, Z7 \
	VUNPCKHPS Z9, Z8, Z8 \
	VUNPCKLPS Z11, Z10, Z9 \
	VUNPCKHPS Z11, Z10, Z10 \
	VUNPCKLPS Z13, Z12, Z11 \
	VUNPCKHPS Z13, Z12, Z12 \
	VUNPCKLPS Z15, Z14, Z13 \
	VUNPCKHPS Z15, Z14, Z14 \
	VUNPCKLPD Z1, Z16, Z15 \
	VUNPCKHPD Z1, Z16, Z16 \
	VUNPCKLPD Z2, Z0, Z1 \
	VUNPCKHPD Z2, Z0, Z0 \
	VUNPCKLPD Z5, Z3, Z2 \
	VUNPCKHPD Z5, Z3, Z3 \
	VUNPCKLPD Z6, Z4, Z5 \
	VUNPCKHPD Z6, Z4, Z4 \
	VUNPCKLPD Z9, Z7, Z6 \
	VUNPCKHPD Z9, Z7, Z7 \
	VUNPCKLPD Z10, Z8, Z9 \
	VUNPCKHPD Z10, Z8, Z8 \
	VUNPCKLPD Z13, Z11, Z10 \
	VUNPCKHPD Z13, Z11, Z11 \
	VUNPCKLPD Z14, Z12, Z13 \
	VUNPCKHPD Z14, Z12, Z12 \
	VSHUFF32X4 $0x88, Z2, Z15, Z14 \
	VSHUFF32X4 $0xdd, Z2, Z15, Z15 \
	VSHUFF32X4 $0x88, Z10, Z6, Z2 \
	VSHUFF32X4 $0xdd, Z10, Z6, Z6 \
	VSHUFF32X4 $0x88, Z3, Z16, Z10 \
	VSHUFF32X4 $0xdd, Z3, Z16, Z16 \
	VSHUFF32X4 $0x88, Z11, Z7, Z3 \
	VSHUFF32X4 $0xdd, Z11, Z7, Z7 \
	VSHUFF32X4 $0x88, Z5, Z1, Z11 \
	VSHUFF32X4 $0xdd, Z5, Z1, Z1 \
	VSHUFF32X4 $0x88, Z13, Z9, Z5 \
	VSHUFF32X4 $0xdd, Z13, Z9, Z9 \
	VSHUFF32X4 $0x88, Z4, Z0, Z13 \
	VSHUFF32X4 $0xdd, Z4, Z0, Z0 \
	VSHUFF32X4 $0x88, Z12, Z8, Z4 \
	VSHUFF32X4 $0xdd, Z12, Z8, Z8 \
	VSHUFF32X4 $0x88, Z2, Z14, Z12 \
	VSHUFF32X4 $0xdd, Z2, Z14, Z14 \
	VSHUFF32X4 $0x88, Z6, Z15, Z2 \
	VSHUFF32X4 $0xdd, Z6, Z15, Z15 \
	VSHUFF32X4 $0x88, Z3, Z10, Z6 \
	VSHUFF32X4 $0xdd, Z3, Z10, Z10 \
	VSHUFF32X4 $0x88, Z7, Z16, Z3 \
	VSHUFF32X4 $0xdd, Z7, Z16, Z16 \
	VSHUFF32X4 $0x88, Z5, Z11, Z7 \
	VSHUFF32X4 $0xdd, Z5, Z11, Z11 \
	VSHUFF32X4 $0x88, Z9, Z1, Z5 \
	VSHUFF32X4 $0xdd, Z9, Z1, Z1 \
	VSHUFF32X4 $0x88, Z4, Z13, Z9 \
	VSHUFF32X4 $0xdd, Z4, Z13, Z13 \
	VSHUFF32X4 $0x88, Z8, Z0, Z4 \
	VSHUFF32X4 $0xdd, Z8, Z0, Z0

#define NEXT16ROWS \
	ADDQ R13, BX \
	ADDQ R13, R8 \
	ADDQ R13, R9 \
	ADDQ R13, R12

// NEXT16K goes back to the first rows and on to the next 16 of k.
#define NEXT16K \
	SUBQ R13, BX  \
	SUBQ R13, R8  \
	SUBQ R13, R9  \
	SUBQ R13, R12 \
	ADDQ $64, BX  \
	ADDQ $64, R8  \
	ADDQ $64, R9  \
	ADDQ $64, R12 \
	ADDQ $64, SI  \
	DECQ CX
