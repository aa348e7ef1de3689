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
