// The steps of panels_tile_amd64.h.

#define PANELAHEAD 6144

// PWORDS loads 32 words; PWORDn adds their products with n rows.
#define PWORDS \
	VMOVDQU32   (BX), Z16         \
	VMOVDQU32   64(BX), Z18       \
	PANELFETCH(PANELAHEAD(BX))    \
	PANELFETCH(PANELAHEAD+64(BX)) \
	WIDEN(Z16, Y16, Z17, Y17)     \
	WIDEN(Z18, Y18, Z19, Y19)

#define PROW(x0, x1, c0, c1, t0, t1) \
	VBROADCASTSS x0, t0     \
	VBROADCASTSS x1, t1     \
	VFMADD231PS t0, Z16, c0 \
	VFMADD231PS t0, Z18, c1 \
	VFMADD231PS t1, Z17, c0 \
	VFMADD231PS t1, Z19, c1

#define PWORD1 \
	PWORDS     \
	PROW((SI), 4(SI), Z0, Z1, Z20, Z21)

#define PWORD2 \
	PWORD1     \
	PROW((SI)(R10*1), 4(SI)(R10*1), Z2, Z3, Z22, Z23)

#define PWORD3 \
	PWORD2     \
	PROW((SI)(R10*2), 4(SI)(R10*2), Z4, Z5, Z20, Z21)

#define PWORD4 \
	PWORD3     \
	PROW((SI)(R11*1), 4(SI)(R11*1), Z6, Z7, Z22, Z23)

#define PNEXT \
	ADDQ $128, BX \
	ADDQ $8, SI   \
	DECQ R8

// PADD adds the sums of a cut to those before it and clears them.
#define PADD(c, sum) \
	VADDPS c, sum, sum \
	VPXORQ c, c, c

// PTAIL adds what R12 points to to a row; CX rows are left.
#define PTAIL(c0, c1) \
	VADDPS (R12), c0, c0   \
	VADDPS 64(R12), c1, c1 \
	ADDQ   R9, R12         \
	DECQ   CX              \
	JZ     added

// PSTORE stores a row; CX rows are left.
#define PSTORE(c0, c1) \
	VMOVUPS c0, (R8)   \
	VMOVUPS c1, 64(R8) \
	ADDQ    R9, R8     \
	DECQ    CX         \
	JZ      stored
