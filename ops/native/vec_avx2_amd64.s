//go:build amd64 && !purego

#include "textflag.h"

// The vector pieces in AVX2, 8 floats a register.

#define V0 Y0
#define V1 Y1
#define V2 Y2
#define V3 Y3
#define V4 Y4
#define V5 Y5
#define V6 Y6
#define V7 Y7
#define V8 Y8
#define V9 Y9
#define V10 Y10
#define V11 Y11
#define V12 Y12
#define V13 Y13
#define V14 Y14
#define V15 Y15

#define EACH16(S) \
	S(0) \
	S(32)
#define PAIR16(S) \
	S(0, V0, V1) \
	S(32, V2, V3)
#define LANES16(S) \
	S(0, V0) \
	S(16, V1) \
	S(32, V2) \
	S(48, V3)

#define FOLD4 \
	VADDPD V2, V0, V0 \
	VADDPD V3, V1, V1 \
	VADDPD V1, V0, V0

#define FN_EXP ·expAVX2
#define FN_EXPSUBSUM ·expSubSumAVX2
#define FN_MAX ·maxAVX2
#define FN_DOT ·dotAVX2
#define FN_DOT3 ·dot3AVX2
#define FN_SCALE ·scaleAVX2
#define FN_SCALEMUL ·scaleMulAVX2
#define FN_ADDSCALEMUL ·addScaleMulAVX2
#define FN_SCALEMULADD ·scaleMulAddAVX2
#define FN_ADDSCALED ·addScaledAVX2
#define FN_SWIGLU ·swiGLUAVX2
#define FN_SWIGLUGRAD ·swiGLUGradAVX2
#define FN_ADAMW ·adamWAVX2
#define FN_TURN ·turnAVX2
#define FN_WEIGHTS ·weightsAVX2

#include "vec_amd64.h"

#define DROP(y, w, t) \
	VCMPPD $13, C_TINY, y, t \
	VANDPD t, w, w

#include "weights_amd64.h"
