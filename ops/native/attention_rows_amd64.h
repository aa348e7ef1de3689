// What the row work of attention in words shares: sums in float64, and the numbers of
// keys.

// SUM adds the numbers of zx to the sums a and b in float64; zt is scratch.
#define SUM(zx, yx, a, b, zt, yt) \
	VCVTPS2PD     yx, zt     \
	VADDPD        zt, a, a   \
	VEXTRACTF64X4 $1, zx, yt \
	VCVTPS2PD     yt, zt     \
	VADDPD        zt, b, b

// TOTAL stores the sum of the lanes of a and b, in Za and Zb.
#define TOTAL(za, ya, xa, zb, yb, xb, to) \
	VADDPD        zb, za, za \
	VEXTRACTF64X4 $1, za, yb \
	VADDPD        yb, ya, ya \
	VEXTRACTF64X2 $1, ya, xb \
	VADDPD        xb, xa, xa \
	VPERMILPD     $1, xa, xb \
	VADDPD        xb, xa, xa \
	VMOVSD        xa, to

// EXPSUMS takes the exponentials of 32 scores less their base of two rows, Z2 Z3 and Z4
// Z5, and adds them to the sums, Z0 Z1 and Z8 Z31. R8 is at the bases.
#define EXPSUMS \
	VSUBPS.BCST (R8), Z2, Z2     \
	VSUBPS.BCST (R8), Z3, Z3     \
	VSUBPS.BCST 4(R8), Z4, Z4    \
	VSUBPS.BCST 4(R8), Z5, Z5    \
	EXP4                         \
	SUM(Z2, Y2, Z0, Z1, Z6, Y6)  \
	SUM(Z4, Y4, Z8, Z31, Z7, Y7) \
	SUM(Z3, Y3, Z0, Z1, Z9, Y9)  \
	SUM(Z5, Y5, Z8, Z31, Z10, Y10)

// NOSUMS clears the sums of two rows.
#define NOSUMS \
	VPXORQ Z0, Z0, Z0 \
	VPXORQ Z1, Z1, Z1 \
	VPXORQ Z8, Z8, Z8 \
	VPXORQ Z31, Z31, Z31

// NEXTROWS stores the sums at R9 and goes two rows on: scores SI by R10, words DI by
// R11; the flags are those of the rows left in DX.
#define NEXTROWS \
	TOTAL(Z0, Y0, X0, Z1, Y1, X1, (R9))  \
	VMOVAPS Z31, Z2                      \
	TOTAL(Z8, Y8, X8, Z2, Y2, X2, 8(R9)) \
	LEAQ (SI)(R10*2), SI                 \
	LEAQ (DI)(R11*2), DI                 \
	ADDQ $8, R8                          \
	ADDQ $16, R9                         \
	SUBQ $2, DX

// The numbers of 16 keys, and how many they are.
DATA keys<>+0(SB)/8, $0x0000000100000000
DATA keys<>+8(SB)/8, $0x0000000300000002
DATA keys<>+16(SB)/8, $0x0000000500000004
DATA keys<>+24(SB)/8, $0x0000000700000006
DATA keys<>+32(SB)/8, $0x0000000900000008
DATA keys<>+40(SB)/8, $0x0000000b0000000a
DATA keys<>+48(SB)/8, $0x0000000d0000000c
DATA keys<>+56(SB)/8, $0x0000000f0000000e
DATA keys<>+64(SB)/4, $16
GLOBL keys<>(SB), RODATA|NOPTR, $68
