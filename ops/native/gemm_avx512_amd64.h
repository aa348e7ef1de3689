// What AVX-512 tiles share: sums to zero, and the end of a tile of Gemm, where
// Z30 holds alpha, Z31 beta, DX C, AX ldc, R8 S, R9 lds, and K1, K2 the columns.

#define ZERO(c0, c1) \
	VPXORQ c0, c0, c0 \
	VPXORQ c1, c1, c1

// STORE writes one row of C and moves to the next; ADDSTORE adds beta S first.
#define STORE(c0, c1) \
	VMULPS  Z30, c0, c0      \
	VMULPS  Z30, c1, c1      \
	VMOVUPS c0, K1, (DX)     \
	VMOVUPS c1, K2, 64(DX)   \
	ADDQ    AX, DX

#define ADDSTORE(c0, c1) \
	VMOVUPS.Z   (R8), K1, Z24   \
	VMOVUPS.Z   64(R8), K2, Z25 \
	VMULPS      Z30, c0, c0     \
	VMULPS      Z30, c1, c1     \
	VFMADD231PS Z24, Z31, c0    \
	VFMADD231PS Z25, Z31, c1    \
	VMOVUPS     c0, K1, (DX)    \
	VMOVUPS     c1, K2, 64(DX)  \
	ADDQ        AX, DX          \
	ADDQ        R9, R8

// EPILOGUE loads what the stores need and branches when there is no S.
#define EPILOGUE(plain) \
	MOVQ 64(DI), R8           \
	MOVQ 72(DI), R9           \
	MOVQ 80(DI), DX           \
	MOVQ 88(DI), AX           \
	VBROADCASTSS 96(DI), Z30  \
	VBROADCASTSS 100(DI), Z31 \
	TESTQ R8, R8              \
	JZ plain
