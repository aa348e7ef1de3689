// The steps of the two bodies that attention_decode_amd64.s includes. R15 is at the
// arguments, a decodeTile.

// DOT adds 16 of d of a query, at q, to its sums with four keys.
#define DOT(q, c0, c1, c2, c3) \
	VMOVUPS     q, Z20       \
	VFMADD231PS Z16, Z20, c0 \
	VFMADD231PS Z17, Z20, c1 \
	VFMADD231PS Z18, Z20, c2 \
	VFMADD231PS Z19, Z20, c3

// SCORES sums the lanes of four sums and stores the four, times Z31, at (DI)
// of a row of p; the order of the additions is that of a tree.
#define SCORES(c0, c1, c2, c3) \
	VUNPCKLPS     c1, c0, Z20    \
	VUNPCKHPS     c1, c0, Z21    \
	VADDPS        Z21, Z20, Z20  \
	VUNPCKLPS     c3, c2, Z21    \
	VUNPCKHPS     c3, c2, Z22    \
	VADDPS        Z22, Z21, Z21  \
	VUNPCKLPD     Z21, Z20, Z22  \
	VUNPCKHPD     Z21, Z20, Z23  \
	VADDPS        Z23, Z22, Z22  \
	VEXTRACTF64X4 $1, Z22, Y23   \
	VADDPS        Y23, Y22, Y22  \
	VEXTRACTF32X4 $1, Y22, X23   \
	VADDPS        X23, X22, X22  \
	VMULPS        X31, X22, X22  \
	VMOVUPS       X22, (DI)      \
	ADDQ          R8, DI

// EACHROW takes a step with the sums of each of R14 rows, then there is the label.
#define EACHROW(STEP, end) \
	STEP(Z0, Z1, Z2, Z3)   \
	CMPQ R14, $2           \
	JL   end               \
	STEP(Z4, Z5, Z6, Z7)   \
	CMPQ R14, $3           \
	JL   end               \
	STEP(Z8, Z9, Z10, Z11) \
	CMPQ R14, $4           \
	JL   end               \
	STEP(Z12, Z13, Z14, Z15)

// CLEARED clears the sums of all rows.
#define CLEARED \
	ZERO(Z0, Z1)   \
	ZERO(Z2, Z3)   \
	ZERO(Z4, Z5)   \
	ZERO(Z6, Z7)   \
	ZERO(Z8, Z9)   \
	ZERO(Z10, Z11) \
	ZERO(Z12, Z13) \
	ZERO(Z14, Z15)

// NEXTHEAD goes on to the next head, with r to change, or jumps to the label.
#define NEXTHEAD(r, end) \
	DECQ  64(R15)    \
	JZ    end        \
	MOVQ  16(R15), r \
	ADDQ  r, 0(R15)  \
	MOVQ  32(R15), r \
	ADDQ  r, 24(R15) \
	MOVQ  88(R15), r \
	IMULQ $SIZE, r   \
	ADDQ  r, 40(R15)

// ROW adds a value times the probability at p to the sums of a row.
#define ROW(p, c0, c1, c2, c3) \
	VBROADCASTSS p, Z20      \
	VFMADD231PS  Z16, Z20, c0 \
	VFMADD231PS  Z17, Z20, c1 \
	VFMADD231PS  Z18, Z20, c2 \
	VFMADD231PS  Z19, Z20, c3

#define LOADROW(c0, c1, c2, c3) \
	VMOVUPS (DI), c0    \
	VMOVUPS 64(DI), c1  \
	VMOVUPS 128(DI), c2 \
	VMOVUPS 192(DI), c3 \
	ADDQ R8, DI

#define STOREROW(c0, c1, c2, c3) \
	VMOVUPS c0, (DI)    \
	VMOVUPS c1, 64(DI)  \
	VMOVUPS c2, 128(DI) \
	VMOVUPS c3, 192(DI) \
	ADDQ R8, DI

// TOP stores the largest lane of z, and as base the same, or 0 for -Inf, at off.
#define TOP(z, y, x, yt, xt, off) \
	VEXTRACTF64X4 $1, z, yt       \
	VMAXPS        yt, y, y        \
	VEXTRACTF32X4 $1, y, xt       \
	VMAXPS        xt, x, x        \
	VPERMILPS     $0x4e, x, xt    \
	VMAXPS        xt, x, x        \
	VPERMILPS     $0xb1, x, xt    \
	VMAXPS        xt, x, x        \
	VMOVSS        x, off(R12)     \
	VCMPPS        $4, C_NEGINF, x, K5 \
	VMOVAPS.Z     x, K5, x        \
	VMOVSS        x, off(R8)
