//go:build amd64 && !purego

#include "textflag.h"

// A block of 256 numbers to float32, with AVX2: 8 numbers at a time, of which the
// bytes that hold their bits are widened to 8 words.
//	DI y, SI x, BX the runs: 16 steps, 16 least numbers

DATA superc<>+0(SB)/4, $15 // the low half of a byte
DATA superc<>+4(SB)/4, $16 // a fifth bit
DATA superc<>+8(SB)/4, $48 // the upper two of six
DATA superc<>+12(SB)/4, $32 // the middle of six
GLOBL superc<>(SB), RODATA|NOPTR, $16

// NUMBER is y = Y times the step S, without the least number L.
#define NUMBER(Y, S, L, off) \
	VCVTDQ2PS Y, Y          \
	VMULPS    S, Y, Y       \
	VSUBPS    L, Y, Y       \
	VMOVUPS   Y, off(DI)

// PAIR widens the halves of 8 bytes at off, which belong to two runs.
#define PAIR(off) \
	VPMOVZXBD off(SI), Y0                    \
	VPSRLD    $4, Y0, Y1                     \
	VPAND     Y15, Y0, Y0                    \
	NUMBER(Y0, Y2, Y3, (off*4))              \
	NUMBER(Y1, Y4, Y5, (off*4+128))

// STEPS reads those of the next two runs.
#define STEPS \
	VBROADCASTSS 0(BX), Y2  \
	VBROADCASTSS 64(BX), Y3 \
	VBROADCASTSS 4(BX), Y4  \
	VBROADCASTSS 68(BX), Y5

// func superQ4_K(y *float32, x *byte, r *superRuns)
TEXT ·superQ4_K(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ r+16(FP), BX
	MOVQ $4, CX
	VPBROADCASTD superc<>+0(SB), Y15

q4:
	STEPS
	PAIR(0)
	PAIR(8)
	PAIR(16)
	PAIR(24)
	ADDQ $32, SI
	ADDQ $256, DI
	ADDQ $8, BX
	DECQ CX
	JNZ  q4
	VZEROUPPER
	RET

// PAIR5 is PAIR with fifth bits: those of the run at bit 4 of the words F.
#define PAIR5(off, F) \
	VPMOVZXBD (off+32)(SI), Y0               \
	VPSRLD    $4, Y0, Y1                     \
	VPAND     Y15, Y0, Y0                    \
	VPAND     Y14, F, Y6                     \
	VPOR      Y6, Y0, Y0                     \
	VPSRLD    $1, F, F                       \
	VPAND     Y14, F, Y6                     \
	VPOR      Y6, Y1, Y1                     \
	VPSRLD    $1, F, F                       \
	NUMBER(Y0, Y2, Y3, (off*4))              \
	NUMBER(Y1, Y4, Y5, (off*4+128))

// func superQ5_K(y *float32, x *byte, r *superRuns)
TEXT ·superQ5_K(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ r+16(FP), BX
	MOVQ $4, CX
	VPBROADCASTD superc<>+0(SB), Y15
	VPBROADCASTD superc<>+4(SB), Y14
	VPMOVZXBD 0(SI), Y8
	VPMOVZXBD 8(SI), Y9
	VPMOVZXBD 16(SI), Y10
	VPMOVZXBD 24(SI), Y11
	VPSLLD $4, Y8, Y8
	VPSLLD $4, Y9, Y9
	VPSLLD $4, Y10, Y10
	VPSLLD $4, Y11, Y11

q5:
	STEPS
	PAIR5(0, Y8)
	PAIR5(8, Y9)
	PAIR5(16, Y10)
	PAIR5(24, Y11)
	ADDQ $32, SI
	ADDQ $256, DI
	ADDQ $8, BX
	DECQ CX
	JNZ  q5
	VZEROUPPER
	RET

// SIXTH is 8 numbers of low bits L and upper bits U times the step at s.
#define SIXTH(L, U, s, off) \
	VPAND        Y14, U, U     \
	VPOR         U, L, L       \
	VPSUBD       Y13, L, L     \
	VCVTDQ2PS    L, L          \
	VBROADCASTSS s(BX), Y6     \
	VMULPS       Y6, L, L      \
	VMOVUPS      L, off(DI)

// FOUR6 is the numbers of 8 places in four runs of a half: low bits at off and
// off+32 of SI, upper ones at off of DX, steps from s on.
#define FOUR6(off, s) \
	VPMOVZXBD off(SI), Y0           \
	VPMOVZXBD (off+32)(SI), Y1      \
	VPMOVZXBD off(DX), Y2           \
	VPSRLD    $4, Y0, Y3            \
	VPSRLD    $4, Y1, Y4            \
	VPAND     Y15, Y0, Y0           \
	VPAND     Y15, Y1, Y1           \
	VPSLLD    $4, Y2, Y5            \
	SIXTH(Y0, Y5, s, (off*4))       \
	VPSLLD    $2, Y2, Y5            \
	SIXTH(Y1, Y5, (s+8), (off*4+128)) \
	VPSRLD    $2, Y2, Y5            \
	SIXTH(Y3, Y2, (s+16), (off*4+256)) \
	SIXTH(Y4, Y5, (s+24), (off*4+384))

// func superQ6_K(y *float32, x *byte, r *superRuns)
TEXT ·superQ6_K(SB), NOSPLIT, $0-24
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ r+16(FP), BX
	MOVQ $2, CX
	LEAQ 128(SI), DX
	VPBROADCASTD superc<>+0(SB), Y15
	VPBROADCASTD superc<>+8(SB), Y14
	VPBROADCASTD superc<>+12(SB), Y13

q6:
	FOUR6(0, 0)
	FOUR6(8, 0)
	FOUR6(16, 4)
	FOUR6(24, 4)
	ADDQ $64, SI
	ADDQ $32, DX
	ADDQ $512, DI
	ADDQ $32, BX
	DECQ CX
	JNZ  q6
	VZEROUPPER
	RET
