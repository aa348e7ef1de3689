//go:build amd64 && !purego

package native

import "math"

// This file binds the vector assembly. n is a positive multiple of 16.

//go:noescape
func expAVX512(y, x *float32, n int)

//go:noescape
func expAVX2(y, x *float32, n int)

func vecExp(y, x *float32, n int) {
	if gemmKernel >= avx512Kernel {
		expAVX512(y, x, n)
	} else {
		expAVX2(y, x, n)
	}
}

//go:noescape
func expSubSumAVX512(l *lanes, y, x *float32, m float32, n int) float64

//go:noescape
func expSubSumAVX2(l *lanes, y, x *float32, m float32, n int) float64

func vecExpSubSum(l *lanes, y, x *float32, m float32, n int) float64 {
	if gemmKernel >= avx512Kernel {
		return expSubSumAVX512(l, y, x, m, n)
	}
	return expSubSumAVX2(l, y, x, m, n)
}

//go:noescape
func dotAVX512(l *lanes, x, y *float32, n int) float64

//go:noescape
func dotAVX2(l *lanes, x, y *float32, n int) float64

func vecDot(l *lanes, x, y *float32, n int) float64 {
	if gemmKernel >= avx512Kernel {
		return dotAVX512(l, x, y, n)
	}
	return dotAVX2(l, x, y, n)
}

//go:noescape
func dot3AVX512(l *lanes, x, y, z *float32, n int) float64

//go:noescape
func dot3AVX2(l *lanes, x, y, z *float32, n int) float64

func vecDot3(l *lanes, x, y, z *float32, n int) float64 {
	if gemmKernel >= avx512Kernel {
		return dot3AVX512(l, x, y, z, n)
	}
	return dot3AVX2(l, x, y, z, n)
}

//go:noescape
func scaleAVX512(y *float32, s float32, n int)

//go:noescape
func scaleAVX2(y *float32, s float32, n int)

func vecScale(y *float32, s float32, n int) {
	if gemmKernel >= avx512Kernel {
		scaleAVX512(y, s, n)
	} else {
		scaleAVX2(y, s, n)
	}
}

//go:noescape
func scaleMulAVX512(y, x, w *float32, s float32, n int)

//go:noescape
func scaleMulAVX2(y, x, w *float32, s float32, n int)

func vecScaleMul(y, x, w *float32, s float32, n int) {
	if gemmKernel >= avx512Kernel {
		scaleMulAVX512(y, x, w, s, n)
	} else {
		scaleMulAVX2(y, x, w, s, n)
	}
}

//go:noescape
func addScaleMulAVX512(y, x, w *float32, s float32, n int)

//go:noescape
func addScaleMulAVX2(y, x, w *float32, s float32, n int)

func vecAddScaleMul(y, x, w *float32, s float32, n int) {
	if gemmKernel >= avx512Kernel {
		addScaleMulAVX512(y, x, w, s, n)
	} else {
		addScaleMulAVX2(y, x, w, s, n)
	}
}

//go:noescape
func scaleMulAddAVX512(y, x, w, z *float32, s, t float32, n int)

//go:noescape
func scaleMulAddAVX2(y, x, w, z *float32, s, t float32, n int)

func vecScaleMulAdd(y, x, w, z *float32, s, t float32, n int) {
	if gemmKernel >= avx512Kernel {
		scaleMulAddAVX512(y, x, w, z, s, t, n)
	} else {
		scaleMulAddAVX2(y, x, w, z, s, t, n)
	}
}

//go:noescape
func addScaledAVX512(y, a, b *float32, s float32, n int)

//go:noescape
func addScaledAVX2(y, a, b *float32, s float32, n int)

func vecAddScaled(y, a, b *float32, s float32, n int) {
	if gemmKernel >= avx512Kernel {
		addScaledAVX512(y, a, b, s, n)
	} else {
		addScaledAVX2(y, a, b, s, n)
	}
}

//go:noescape
func swiGLUAVX512(y, gate, up *float32, n int)

//go:noescape
func swiGLUAVX2(y, gate, up *float32, n int)

func vecSwiGLU(y, gate, up *float32, n int) {
	if gemmKernel >= avx512Kernel {
		swiGLUAVX512(y, gate, up, n)
	} else {
		swiGLUAVX2(y, gate, up, n)
	}
}

//go:noescape
func swiGLUGradAVX512(dgate, dup, dy, gate, up *float32, n int)

//go:noescape
func swiGLUGradAVX2(dgate, dup, dy, gate, up *float32, n int)

func vecSwiGLUGrad(dgate, dup, dy, gate, up *float32, n int) {
	if gemmKernel >= avx512Kernel {
		swiGLUGradAVX512(dgate, dup, dy, gate, up, n)
	} else {
		swiGLUGradAVX2(dgate, dup, dy, gate, up, n)
	}
}

//go:noescape
func adamWAVX512(p, m, v, grad *float32, c *adamWFactors[float32], n int, tops *[16]uint32)

//go:noescape
func adamWAVX2(p, m, v, grad *float32, c *adamWFactors[float32], n int, tops *[16]uint32)

func vecAdamW(p, m, v, grad *float32, c *adamWFactors[float32], n int, tops *[16]uint32) {
	if gemmKernel >= avx512Kernel {
		adamWAVX512(p, m, v, grad, c, n, tops)
	} else {
		adamWAVX2(p, m, v, grad, c, n, tops)
	}
}

//go:noescape
func maxAVX512(out *[32]float32, x *float32, n int)

//go:noescape
func maxAVX2(out *[32]float32, x *float32, n int)

func vecMax(x *float32, n int) float32 {
	var out [32]float32
	if gemmKernel >= avx512Kernel {
		maxAVX512(&out, x, n)
	} else {
		maxAVX2(&out, x, n)
	}
	if math.Float32bits(out[16]) > 0x7f800000 {
		return float32(math.NaN())
	}
	return out[0]
}

//go:noescape
func turnAVX512(y, x *float32, heads, stride, half int, cos, sin *float32, sign float32, n int)

//go:noescape
func turnAVX2(y, x *float32, heads, stride, half int, cos, sin *float32, sign float32, n int)

func vecTurn(y, x *float32, heads, stride, half int, cos, sin *float32, sign float32, n int) {
	if gemmKernel >= avx512Kernel {
		turnAVX512(y, x, heads, stride, half, cos, sin, sign, n)
	} else {
		turnAVX2(y, x, heads, stride, half, cos, sin, sign, n)
	}
}

//go:noescape
func weightsAVX512(y *float64, x *float32, n int, top, rate float64)

//go:noescape
func weightsAVX2(y *float64, x *float32, n int, top, rate float64)

func vecWeights(y *float64, x *float32, n int, top, rate float64) {
	if gemmKernel >= avx512Kernel {
		weightsAVX512(y, x, n, top, rate)
	} else {
		weightsAVX2(y, x, n, top, rate)
	}
}
