// The instructions of bf16, and what words of two are made with.
//
// The assembler has no name for VDPBF16PS and VCVTNE2PS2BF16. EVEX(pp, op, d,
// s1, s2) is a 512-bit instruction of map 0F38 without W, mask or memory on
// the registers of these numbers; in its bytes the register bits above 2 are
// inverted:
//	62, ~d3 ~s2(4) ~s2(3) ~d4 0 010, 0 ~s1(3..0) 1 pp, 0 10 0 ~s1(4) 000, op, 11 d(2..0) s2(2..0)

#define BIT(x, n) (((x)>>n)&1)
#define EVEX(pp, op, d, s1, s2) \
	BYTE $0x62                                                                                \
	BYTE $(0xF2 - BIT(d, 3)*0x80 - BIT(s2, 4)*0x40 - BIT(s2, 3)*0x20 - BIT(d, 4)*0x10)        \
	BYTE $(0x7C + pp - ((s1)&15)*8)                                                           \
	BYTE $(0x48 - BIT(s1, 4)*8)                                                               \
	BYTE $op                                                                                  \
	BYTE $(0xC0 + ((d)&7)*8 + ((s2)&7))

// DPBF16 adds to Zd the products of Zs1 and Zs2.
#define DPBF16(d, s1, s2) EVEX(2, 0x52, d, s1, s2)

// CVT2 rounds Zs2 into the lower half of Zd, Zs1 into the upper, to nearest,
// ties to even; subnormal numbers become zero, a NaN quiet.
#define CVT2(d, s1, s2) EVEX(3, 0x72, d, s1, s2)

// MASK sets k to the low n bits, n from 0 to 32, of which 16 count in a KMOVW.
#define MASK(n, k) \
	MOVQ  n, CX   \
	MOVQ  $1, AX  \
	SHLQ  CX, AX  \
	DECQ  AX      \
	KMOVW AX, k

// interleave takes halves i and 16+i to word i.
DATA interleave<>+0(SB)/8, $0x0011000100100000
DATA interleave<>+8(SB)/8, $0x0013000300120002
DATA interleave<>+16(SB)/8, $0x0015000500140004
DATA interleave<>+24(SB)/8, $0x0017000700160006
DATA interleave<>+32(SB)/8, $0x0019000900180008
DATA interleave<>+40(SB)/8, $0x001b000b001a000a
DATA interleave<>+48(SB)/8, $0x001d000d001c000c
DATA interleave<>+56(SB)/8, $0x001f000f001e000e
GLOBL interleave<>(SB), RODATA, $64
