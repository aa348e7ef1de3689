// The exponential of a vector and its constants, for either width.

// WIDE fills the 64 bytes at off with one 32-bit constant, given twice.
#define WIDE(off, twice) \
	DATA vecc<>+off+0(SB)/8, twice \
	DATA vecc<>+off+8(SB)/8, twice \
	DATA vecc<>+off+16(SB)/8, twice \
	DATA vecc<>+off+24(SB)/8, twice \
	DATA vecc<>+off+32(SB)/8, twice \
	DATA vecc<>+off+40(SB)/8, twice \
	DATA vecc<>+off+48(SB)/8, twice \
	DATA vecc<>+off+56(SB)/8, twice

// The constants of vec.go.
#define C_LOW    vecc<>+0(SB)
#define C_HIGH   vecc<>+64(SB)
#define C_LOG2E  vecc<>+128(SB)
#define C_MAGIC  vecc<>+192(SB)
#define C_LN2HI  vecc<>+256(SB)
#define C_LN2LO  vecc<>+320(SB)
#define C_P4     vecc<>+384(SB)
#define C_P3     vecc<>+448(SB)
#define C_P2     vecc<>+512(SB)
#define C_P1     vecc<>+576(SB)
#define C_P0     vecc<>+640(SB)
#define C_ONE    vecc<>+704(SB)
#define C_127    vecc<>+768(SB)
#define C_ABS    vecc<>+832(SB)
#define C_NEGINF vecc<>+896(SB)

WIDE(0, $0xc2d00000c2d00000) // -104
WIDE(64, $0x42b2000042b20000) // 89
WIDE(128, $0x3fb8aa3b3fb8aa3b) // 1/ln 2
WIDE(192, $0x4b4000004b400000) // 1.5 * 2^23
WIDE(256, $0x3f3180003f318000) // ln 2, high part
WIDE(320, $0xb95e8083b95e8083) // ln 2, low part
WIDE(384, $0x3ab5120c3ab5120c) // P4
WIDE(448, $0x3c091cf93c091cf9) // P3
WIDE(512, $0x3d2aac793d2aac79) // P2
WIDE(576, $0x3e2aaa493e2aaa49) // P1
WIDE(640, $0x3efffffe3efffffe) // P0
WIDE(704, $0x3f8000003f800000) // 1
WIDE(768, $0x0000007f0000007f) // 127
WIDE(832, $0x7fffffff7fffffff) // the bits of |x|
WIDE(896, $0xff800000ff800000) // -Inf
GLOBL vecc<>(SB), RODATA|NOPTR, $960

// EXP replaces x by e^x as exp32 does; t, n, q are scratch. The maximum and the
// minimum return their first operand (x) when it is NaN.
#define EXP(x, t, n, q) \
	VMOVUPS C_LOW, t      \
	VMAXPS  x, t, x       \
	VMOVUPS C_HIGH, t     \
	VMINPS  x, t, x       \
	VMULPS  C_LOG2E, x, t \
	VADDPS  C_MAGIC, t, t \
	VSUBPS  C_MAGIC, t, n \
	VMULPS  C_LN2HI, n, q \
	VSUBPS  q, x, x       \
	VMULPS  C_LN2LO, n, q \
	VSUBPS  q, x, x       \
	VMOVUPS C_P4, q       \
	VMULPS  x, q, q       \
	VADDPS  C_P3, q, q    \
	VMULPS  x, q, q       \
	VADDPS  C_P2, q, q    \
	VMULPS  x, q, q       \
	VADDPS  C_P1, q, q    \
	VMULPS  x, q, q       \
	VADDPS  C_P0, q, q    \
	VMULPS  x, x, n       \
	VMULPS  q, n, q       \
	VADDPS  x, q, q       \
	VADDPS  C_ONE, q, q   \
	VPSUBD  C_MAGIC, t, t \
	VPSRAD  $1, t, n      \
	VPSUBD  n, t, t       \
	VPADDD  C_127, n, n   \
	VPSLLD  $23, n, n     \
	VMULPS  n, q, q       \
	VPADDD  C_127, t, t   \
	VPSLLD  $23, t, t     \
	VMULPS  t, q, x
