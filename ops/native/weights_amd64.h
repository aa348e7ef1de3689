// The weights of a draw, for either width: weightOf of sampling_weights.go. It needs LANES16, and
//
//	DROP(y, w, t)   w = 0 where y is below C_TINY; t is scratch

// EIGHT fills the 64 bytes at off with one float64.
#define EIGHT(off, x) \
	DATA weightc<>+off+0(SB)/8, x \
	DATA weightc<>+off+8(SB)/8, x \
	DATA weightc<>+off+16(SB)/8, x \
	DATA weightc<>+off+24(SB)/8, x \
	DATA weightc<>+off+32(SB)/8, x \
	DATA weightc<>+off+40(SB)/8, x \
	DATA weightc<>+off+48(SB)/8, x \
	DATA weightc<>+off+56(SB)/8, x

EIGHT(0, $7.072585949269223e-09)
EIGHT(64, $1.0208690299958306e-07)
EIGHT(128, $1.321544258792169e-06)
EIGHT(192, $1.5252657260200837e-05)
EIGHT(256, $0.0001540353044173605)
EIGHT(320, $0.0013333558230164974)
EIGHT(384, $0.009618129107606888)
EIGHT(448, $0.05550410866444772)
EIGHT(512, $0.24022650695910097)
EIGHT(576, $0.69314718055995)
EIGHT(640, $1.0)
EIGHT(704, $6755399441055744.0)
EIGHT(768, $-1022.0)
GLOBL weightc<>(SB), RODATA|NOPTR, $832

#define C_POWER(k) weightc<>+640-64*k(SB) // of the term of degree k
#define C_ROUND weightc<>+704(SB)
#define C_TINY weightc<>+768(SB)

// func weights(y *float64, x *float32, n int, top, rate float64)
TEXT FN_WEIGHTS(SB), NOSPLIT, $0-40
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSD top+24(FP), V8
	VBROADCASTSD rate+32(FP), V9
	VMOVUPS C_ROUND, V10
	VMOVUPS C_POWER(10), V11
	LOOP(CX)

// V0 becomes what 2 is raised to, V1 its nearest whole number, V2 the rest.
#define STEP_WEIGHT(off, acc) \
	VCVTPS2PD off(SI)(AX*1), V4   \
	VSUBPD V8, V4, V4             \
	VMULPD V9, V4, V4             \
	VADDPD V10, V4, V5            \
	VSUBPD V10, V5, V6            \
	VSUBPD V6, V4, V6             \
	VMOVAPD V11, V7               \
	VFMADD213PD C_POWER(9), V6, V7 \
	VFMADD213PD C_POWER(8), V6, V7 \
	VFMADD213PD C_POWER(7), V6, V7 \
	VFMADD213PD C_POWER(6), V6, V7 \
	VFMADD213PD C_POWER(5), V6, V7 \
	VFMADD213PD C_POWER(4), V6, V7 \
	VFMADD213PD C_POWER(3), V6, V7 \
	VFMADD213PD C_POWER(2), V6, V7 \
	VFMADD213PD C_POWER(1), V6, V7 \
	VFMADD213PD C_POWER(0), V6, V7 \
	VPSLLQ $52, V5, V5            \
	VPADDQ V5, V7, V7             \
	DROP(V4, V7, V5)              \
	VMOVUPS V7, 2*off(DI)(AX*2)

weights:
	LANES16(STEP_WEIGHT)
	NEXT(weights)
	VZEROUPPER
	RET
