//go:build amd64 && !purego

#include "textflag.h"

// Codes of 8-bit floats, 64 a turn, where bytes can be looked up (VBMI). Formulas
// and constants are those of fp8.go.
//
// The quotient is x hi + x lo, hi + lo the reciprocal of the step, neither negative, so
// that a zero keeps its sign: one rounding of what differs from x / step by 2^-46 of
// it, which suffices for the codes (TestFP8QuotientsAtTies; every mantissa of a step was
// tried at every tie). A sum of zeros times the quotients shows whether one is
// infinite or NaN. The number whose addition rounds has the sign of the quotient, so
// that a sum holds all of a code: its sign, above, the exponent, and the units, below.
// Turned by one bit, the last byte is the exponent and the first one the units and
// the sign; these bytes of four vectors are put side by side. Bits of the exponent
// beyond the code's do not count, as the sign takes their place.
//
// 46 vector instructions a turn, where the loop of fp8_avx512_amd64.s has 52, divisions
// among them: 1.03 and 1.32 ns for 16 numbers in L1, on Zen 5.

// SUM makes the turned sum s of 16 numbers; t is the quotient, zeros the sum of zeros.
// VRANGEPS takes the lesser or greater magnitude, with the sign of t or s.
#define SUM(at, t, s, zeros) \
	VMULPS      at(SI), Z11, t     \
	VFMADD231PS at(SI), Z10, t     \
	VFMADD231PS Z19, t, zeros      \
	VRANGEPS    $2, Z12, t, t      \
	VPANDD      Z13, t, s          \
	VRANGEPS    $3, Z14, s, s      \
	VPADDD      Z15, s, s          \
	VADDPS      s, t, s            \
	VPROLD      $1, s, s

// func fp8EncodeVBMI(codes *byte, x *float32, hi, lo float32, n int, f *fp8Format) bool
TEXT ·fp8EncodeVBMI(SB), NOSPLIT, $0-41
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS hi+16(FP), Z10
	VBROADCASTSS lo+20(FP), Z11
	MOVQ n+24(FP), DX
	MOVQ f+32(FP), BX
	VBROADCASTSS 0(BX), Z12 // max
	MOVL $0xFF800000, AX
	VPBROADCASTD AX, Z13    // sign and exponent
	VBROADCASTSS 4(BX), Z14 // minExp
	MOVL $23, CX
	MOVL 8(BX), AX          // drop
	SUBL AX, CX             // mantissa bits of a code
	VMOVD CX, X16
	SHLL CX, AX
	ADDL 16(BX), AX         // rebias, of an exponent that drop was added to
	NEGL AX
	ANDL $0x7F, AX
	ADDL 12(BX), AX         // magic
	VPBROADCASTD AX, Z15
	MOVL $0xFF, AX
	SHLL CX, AX
	VPBROADCASTB AX, Z17    // an exponent's place
	MOVL $0x80, AX
	VPBROADCASTB AX, Z18
	VPXORD Z19, Z19, Z19
	VMOVDQU64 fp8Ends<>(SB), Z20
	VPXORD Z21, Z21, Z21
	VPXORD Z22, Z22, Z22
	VPXORD Z23, Z23, Z23
	VPXORD Z24, Z24, Z24

turn:
	SUM(0, Z0, Z1, Z21)
	SUM(64, Z2, Z3, Z22)
	SUM(128, Z4, Z5, Z23)
	SUM(192, Z6, Z7, Z24)
	VPERMT2B     Z3, Z20, Z1
	VPERMT2B     Z7, Z20, Z5
	VINSERTI64X4 $1, Y5, Z1, Z0     // units and sign
	VSHUFI64X2   $0xEE, Z5, Z1, Z1  // exponents
	VPSLLW       X16, Z1, Z1
	VPANDD       Z17, Z1, Z1
	VPSRLW       $1, Z0, Z2
	VPADDB       Z1, Z2, Z2
	VPSLLW       $7, Z0, Z0
	VPTERNLOGD   $0xE4, Z18, Z2, Z0 // the sign of Z0, the others of Z2
	VMOVDQU64    Z0, (DI)
	ADDQ $256, SI
	ADDQ $64, DI
	SUBQ $64, DX
	JNZ  turn

	VADDPS Z22, Z21, Z21
	VADDPS Z24, Z23, Z23
	VADDPS Z23, Z21, Z21
	VCMPPS $3, Z21, Z21, K1
	KORTESTW K1, K1
	SETEQ ret+40(FP)
	VZEROUPPER
	RET

// The first bytes of the 32-bit numbers of two registers, then the last ones.
DATA fp8Ends<>+0(SB)/8, $0x1c1814100c080400
DATA fp8Ends<>+8(SB)/8, $0x3c3834302c282420
DATA fp8Ends<>+16(SB)/8, $0x5c5854504c484440
DATA fp8Ends<>+24(SB)/8, $0x7c7874706c686460
DATA fp8Ends<>+32(SB)/8, $0x1f1b17130f0b0703
DATA fp8Ends<>+40(SB)/8, $0x3f3b37332f2b2723
DATA fp8Ends<>+48(SB)/8, $0x5f5b57534f4b4743
DATA fp8Ends<>+56(SB)/8, $0x7f7b77736f6b6763
GLOBL fp8Ends<>(SB), RODATA|NOPTR, $64
