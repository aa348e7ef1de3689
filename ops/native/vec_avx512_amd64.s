//go:build amd64 && !purego

#include "textflag.h"

// The vector pieces in AVX-512, 16 floats a register.

#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define V6 Z6
#define V7 Z7
#define V8 Z8
#define V9 Z9
#define V10 Z10
#define V11 Z11
#define V12 Z12
#define V13 Z13
#define V14 Z14
#define V15 Z15

#define EACH16(S) S(0)
#define PAIR16(S) S(0, V0, V1)
#define LANES16(S) \
	S(0, V0) \
	S(32, V1)

#define FN_EXP ·expAVX512
#define FN_EXPSUBSUM ·expSubSumAVX512
#define FN_MAX ·maxAVX512
#define FN_DOT ·dotAVX512
#define FN_DOT3 ·dot3AVX512
#define FN_SCALE ·scaleAVX512
#define FN_SCALEMUL ·scaleMulAVX512
#define FN_ADDSCALEMUL ·addScaleMulAVX512
#define FN_SCALEMULADD ·scaleMulAddAVX512
#define FN_ADDSCALED ·addScaledAVX512
#define FN_SWIGLU ·swiGLUAVX512
#define FN_SWIGLUGRAD ·swiGLUGradAVX512
#define FN_ADAMW ·adamWAVX512
#define FN_TURN ·turnAVX512

#include "vec_amd64.h"
