// The exponential of four AVX-512 vectors. It needs exp_amd64.h.

// EXP4 is EXP of Z2..Z5, each step for all four: the scheduler then holds steps of
// four chains, where one of 30 fills it. One instruction multiplies by 2^n and
// rounds once, as the second of EXP's two factors does. n is in Z6, Z7, Z9, Z10,
// Z11..Z15 and Z28..Z30 are scratch; the constants are in Z16..Z27.
#define EXP4_CONSTANTS \
	VMOVUPS C_LOW, Z16   \
	VMOVUPS C_HIGH, Z17  \
	VMOVUPS C_LOG2E, Z18 \
	VMOVUPS C_MAGIC, Z19 \
	VMOVUPS C_LN2HI, Z20 \
	VMOVUPS C_LN2LO, Z21 \
	VMOVUPS C_P4, Z22    \
	VMOVUPS C_P3, Z23    \
	VMOVUPS C_P2, Z24    \
	VMOVUPS C_P1, Z25    \
	VMOVUPS C_P0, Z26    \
	VMOVUPS C_ONE, Z27

// BY4 does op of c and each of four, TO4 leaves the results in four others, and
// EACH4 does op of each of four and its counterpart.
#define BY4(op, c, a0, a1, a2, a3) \
	op c, a0, a0 \
	op c, a1, a1 \
	op c, a2, a2 \
	op c, a3, a3
#define TO4(op, c, a0, a1, a2, a3, d0, d1, d2, d3) \
	op c, a0, d0 \
	op c, a1, d1 \
	op c, a2, d2 \
	op c, a3, d3
#define EACH4(op, a0, a1, a2, a3, d0, d1, d2, d3) \
	op a0, d0, d0 \
	op a1, d1, d1 \
	op a2, d2, d2 \
	op a3, d3, d3

#define EXP4 \
	VMAXPS Z2, Z16, Z2                                                  \
	VMAXPS Z3, Z16, Z3                                                  \
	VMAXPS Z4, Z16, Z4                                                  \
	VMAXPS Z5, Z16, Z5                                                  \
	VMINPS Z2, Z17, Z2                                                  \
	VMINPS Z3, Z17, Z3                                                  \
	VMINPS Z4, Z17, Z4                                                  \
	VMINPS Z5, Z17, Z5                                                  \
	TO4(VMULPS, Z18, Z2, Z3, Z4, Z5, Z6, Z7, Z9, Z10)                   \
	BY4(VADDPS, Z19, Z6, Z7, Z9, Z10)                                   \
	BY4(VSUBPS, Z19, Z6, Z7, Z9, Z10)                                   \
	TO4(VMULPS, Z20, Z6, Z7, Z9, Z10, Z11, Z12, Z13, Z14)               \
	EACH4(VSUBPS, Z11, Z12, Z13, Z14, Z2, Z3, Z4, Z5)                   \
	TO4(VMULPS, Z21, Z6, Z7, Z9, Z10, Z11, Z12, Z13, Z14)               \
	EACH4(VSUBPS, Z11, Z12, Z13, Z14, Z2, Z3, Z4, Z5)                   \
	TO4(VMULPS, Z22, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)                \
	BY4(VADDPS, Z23, Z11, Z12, Z13, Z14)                                \
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)                   \
	BY4(VADDPS, Z24, Z11, Z12, Z13, Z14)                                \
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)                   \
	BY4(VADDPS, Z25, Z11, Z12, Z13, Z14)                                \
	EACH4(VMULPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)                   \
	BY4(VADDPS, Z26, Z11, Z12, Z13, Z14)                                \
	VMULPS Z2, Z2, Z15                                                  \
	VMULPS Z3, Z3, Z28                                                  \
	VMULPS Z4, Z4, Z29                                                  \
	VMULPS Z5, Z5, Z30                                                  \
	EACH4(VMULPS, Z15, Z28, Z29, Z30, Z11, Z12, Z13, Z14)               \
	EACH4(VADDPS, Z2, Z3, Z4, Z5, Z11, Z12, Z13, Z14)                   \
	BY4(VADDPS, Z27, Z11, Z12, Z13, Z14)                                \
	VSCALEFPS Z6, Z11, Z2                                               \
	VSCALEFPS Z7, Z12, Z3                                               \
	VSCALEFPS Z9, Z13, Z4                                               \
	VSCALEFPS Z10, Z14, Z5
