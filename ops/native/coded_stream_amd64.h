// The steps of the tiles in coded_stream_tile_amd64.h.

// WORDS calls W for the columns of a block in the order of k.
#define WORDS(W, at, a, b, c, d) \
	W(at+0, Z12, Y12, a, b, c, d)   \
	W(at+8, Z6, Y6, a, b, c, d)     \
	W(at+16, Z7, Y7, a, b, c, d)    \
	W(at+24, Z9, Y9, a, b, c, d)    \
	W(at+32, Z2, Y2, a, b, c, d)    \
	W(at+40, Z3, Y3, a, b, c, d)    \
	W(at+48, Z5, Y5, a, b, c, d)    \
	W(at+56, Z4, Y4, a, b, c, d)    \
	W(at+64, Z14, Y14, a, b, c, d)  \
	W(at+72, Z10, Y10, a, b, c, d)  \
	W(at+80, Z11, Y11, a, b, c, d)  \
	W(at+88, Z13, Y13, a, b, c, d)  \
	W(at+96, Z15, Y15, a, b, c, d)  \
	W(at+104, Z16, Y16, a, b, c, d) \
	W(at+112, Z1, Y1, a, b, c, d)   \
	W(at+120, Z0, Y0, a, b, c, d)

// WORDn adds the products of a word's two k with n rows of x. WIDEN(z, y), which
// the including file defines, turns a word (y is the lower half of z) into two
// columns of float32: that of the smaller k in Z17, the other in z. Z18 may hold
// what WIDEN needs.
#define WORD1(at, z, y, a, b, c, d) \
	WIDEN(z, y)                           \
	PREFETCHT0 (((at)&127)*8)(R15)        \
	VFMADD231PS.BCST (at)(SI), Z17, a       \
	VFMADD231PS.BCST (at+4)(SI), z, a

#define WORD2(at, z, y, a, b, c, d) \
	WORD1(at, z, y, a, b, c, d)               \
	VFMADD231PS.BCST (at)(SI)(R10*1), Z17, b    \
	VFMADD231PS.BCST (at+4)(SI)(R10*1), z, b

#define WORD3(at, z, y, a, b, c, d) \
	WORD2(at, z, y, a, b, c, d)               \
	VFMADD231PS.BCST (at)(SI)(R10*2), Z17, c    \
	VFMADD231PS.BCST (at+4)(SI)(R10*2), z, c

#define WORD4(at, z, y, a, b, c, d) \
	WORD3(at, z, y, a, b, c, d)               \
	VFMADD231PS.BCST (at)(SI)(R11*1), Z17, d    \
	VFMADD231PS.BCST (at+4)(SI)(R11*1), z, d

// BLOCK is 16 rows of w by 32 of k of the first cut; BLOCKS that and 32 of the
// second.
#define CUT 8
#define SHIFT 5
#define XBYTES 2
#define LAST
#define BLOCK(W) \
	TRANSPOSE(0)                    \
	WORDS(W, 0, Z24, Z26, Z28, Z30) \
	ADDQ 88(DI), R15                \
	ADDQ $64, BX                    \
	ADDQ $64, R8                    \
	ADDQ $64, R9                    \
	ADDQ $64, R12                   \
	ADDQ $128, SI                   \
	DECQ CX

#define BLOCKS(W) \
	TRANSPOSE(512)                     \
	WORDS(W, 1024, Z25, Z27, Z29, Z31) \
	ADDQ 88(DI), R15                   \
	BLOCK(W)

// KEEP adds s to a row of sums and stores it, and goes to the next row where
// there is one; R10 is s, R11 y, CX rows left. PLAIN is KEEP without s; the
// second cut is added in any case, and KEEP1 and PLAIN1 know no second.
#define PLAIN1(c0) \
	VMOVUPS c0, (R11)    \
	ADDQ 72(DI), R11     \
	DECQ CX              \
	JZ   kept

#define KEEP1(c0) \
	VADDPS (R10), c0, c0   \
	ADDQ   56(DI), R10     \
	PLAIN1(c0)

#define PLAIN(c0, c1) \
	VADDPS c0, c1, c0 \
	PLAIN1(c0)

#define KEEP(c0, c1) \
	VADDPS (R10), c0, c0   \
	ADDQ   56(DI), R10     \
	PLAIN(c0, c1)

// FOURS transposes 16 bytes of 16 rows, at off: word i of all rows is in the
// register i of its results. Z12 to Z15 are free.
#define FOURS(off, c0, c1, c2, c3) \
	VMOVDQU off(BX), X12                              \
	VINSERTI32X4 $1, off(R8), Z12, Z12                \
	VINSERTI32X4 $2, off(R9), Z12, Z12                \
	VINSERTI32X4 $3, off(R12), Z12, Z12               \
	VMOVDQU off(BX)(AX*1), X13                        \
	VINSERTI32X4 $1, off(R8)(AX*1), Z13, Z13          \
	VINSERTI32X4 $2, off(R9)(AX*1), Z13, Z13          \
	VINSERTI32X4 $3, off(R12)(AX*1), Z13, Z13         \
	VMOVDQU off(BX)(AX*2), X14                        \
	VINSERTI32X4 $1, off(R8)(AX*2), Z14, Z14          \
	VINSERTI32X4 $2, off(R9)(AX*2), Z14, Z14          \
	VINSERTI32X4 $3, off(R12)(AX*2), Z14, Z14         \
	VMOVDQU off(BX)(DX*1), X15                        \
	VINSERTI32X4 $1, off(R8)(DX*1), Z15, Z15          \
	VINSERTI32X4 $2, off(R9)(DX*1), Z15, Z15          \
	VINSERTI32X4 $3, off(R12)(DX*1), Z15, Z15         \
	VUNPCKLPS Z13, Z12, c0  \
	VUNPCKHPS Z13, Z12, c2  \
	VUNPCKLPS Z15, Z14, c1  \
	VUNPCKHPS Z15, Z14, c3  \
	VUNPCKHPD c1, c0, Z12   \
	VUNPCKLPD c1, c0, c0    \
	VUNPCKHPD c3, c2, Z13   \
	VUNPCKLPD c3, c2, c2    \
	VMOVAPS   Z12, c1       \
	VMOVAPS   Z13, c3
