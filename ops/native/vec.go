package native

import (
	"math"
	"unsafe"
)

// This file holds the vector pieces that row ops are made of. Each has an
// AVX-512, an AVX2 and a portable form with the same order of the same IEEE
// operations (no fused multiply-add), so on amd64 the forms agree bit for bit.
//
// A sum runs in float64 over 16 lanes, lane i taking the elements whose index
// is i modulo 16, and the lanes are added in a fixed tree.

// lanes are the partial sums of one vector sum.
type lanes [16]float64

func (l *lanes) sum() float64 {
	a := (l[0] + l[8]) + (l[4] + l[12])
	b := (l[1] + l[9]) + (l[5] + l[13])
	c := (l[2] + l[10]) + (l[6] + l[14])
	d := (l[3] + l[11]) + (l[7] + l[15])
	return (a + c) + (b + d)
}

// inAssembly says whether T runs in assembly.
func inAssembly[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel != portableKernel
}

// The float32 exponential: n = round(x / ln 2), r = x - n ln 2 in two parts,
// e^r = 1 + r + r^2 P(r) with P of degree 4, the minimax polynomial of relative
// error 3.1e-9 on |r| <= ln 2 / 2 (Remez); the result is scaled by 2^n in two
// factors so that it may be subnormal.
const (
	expLow   = -104.0 // below this the result rounds to 0
	expHigh  = 89.0   // above this it overflows
	expLog2E = 1.44269504088896341
	expMagic = 12582912.0  // 1.5 * 2^23: adding it rounds to an integer
	expLn2Hi = 0.693359375 // 9 bits: n times this is exact
	expLn2Lo = -2.12194440e-4
	expP0    = 0.4999999344381247
	expP1    = 0.16666520574132557
	expP2    = 0.041668388760343684
	expP3    = 0.008368723894636512
	expP4    = 0.0013814582009463216
)

// exp32 is e^x with relative error below 8.2e-8 where the result is a normal
// number (measured on every float32), correct to one step where it is subnormal.
// exp(-Inf) = 0, exp(Inf) = Inf, exp(NaN) = NaN.
func exp32(x float32) float32 {
	if x < expLow {
		x = expLow
	}
	if x > expHigh {
		x = expHigh
	}
	t := x*float32(expLog2E) + expMagic
	n := t - expMagic
	r := x - n*expLn2Hi
	r -= n * float32(expLn2Lo)
	q := float32(expP4)
	q = q*r + float32(expP3)
	q = q*r + float32(expP2)
	q = q*r + float32(expP1)
	q = q*r + float32(expP0)
	y := (r*r)*q + r + 1
	e := int32(math.Float32bits(t)) - int32(math.Float32bits(expMagic))
	half := e >> 1
	y *= math.Float32frombits(uint32(half+127) << 23)
	return y * math.Float32frombits(uint32(e-half+127)<<23)
}

// expOf is exp32 or math.Exp by type.
func expOf[T Float](x T) T {
	if unsafe.Sizeof(x) == 4 {
		return T(exp32(float32(x)))
	}
	return T(math.Exp(float64(x)))
}

// expSlice computes y = e^x; y may be x.
func expSlice[T Float](y, x []T) {
	n := len(x)
	y = y[:n]
	if inAssembly[T]() {
		full := n &^ 15
		if full > 0 {
			vecExp(f32p(y), f32p(x), full)
		}
		if full < n {
			var b [16]T
			copy(b[:], x[full:])
			vecExp(f32p(b[:]), f32p(b[:]), 16)
			copy(y[full:], b[:])
		}
		return
	}
	for i, v := range x {
		y[i] = expOf(v)
	}
}

// expSubSum computes y = e^(x - m) and returns the sum of y; y may be x. It is
// the inner step of a softmax: m is the maximum of the row. A masked element
// is x = -Inf, for a finite m: its y is 0.
func expSubSum[T Float](y, x []T, m T) float64 {
	n := len(x)
	y = y[:n]
	var l lanes
	if inAssembly[T]() {
		full := n &^ 15
		if full > 0 {
			if sum := vecExpSubSum(&l, f32p(y), f32p(x), float32(m), full); full == n {
				return sum
			}
		}
		if full < n {
			var b [16]T
			for i, v := range x[full:] {
				b[i] = v - m
			}
			vecExp(f32p(b[:]), f32p(b[:]), 16)
			for i := range copy(y[full:], b[:]) {
				l[i] += float64(b[i])
			}
		}
		return l.sum()
	}
	for i, v := range x {
		e := expOf(v - m)
		y[i] = e
		l[i&15] += float64(e)
	}
	return l.sum()
}

// maxOf returns the largest element, NaN if there is one, -Inf of no elements.
func maxOf[T Float](x []T) T {
	m := T(math.Inf(-1))
	if full := len(x) &^ 15; inAssembly[T]() && full > 0 {
		m = T(vecMax(f32p(x), full))
		x = x[full:]
	}
	for _, v := range x {
		if v > m || v != v {
			m = v
		}
		if m != m {
			return m
		}
	}
	return m
}

// sumMul returns the sum of x y.
func sumMul[T Float](x, y []T) float64 {
	n := len(x)
	y = y[:n]
	var l lanes
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			if sum := vecDot(&l, f32p(x), f32p(y), full); full == n {
				return sum
			}
		}
	}
	for i := full; i < n; i++ {
		l[i&15] += float64(x[i]) * float64(y[i])
	}
	return l.sum()
}

// sumMul3 returns the sum of x y z.
func sumMul3[T Float](x, y, z []T) float64 {
	n := len(x)
	y, z = y[:n], z[:n]
	var l lanes
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			if sum := vecDot3(&l, f32p(x), f32p(y), f32p(z), full); full == n {
				return sum
			}
		}
	}
	for i := full; i < n; i++ {
		l[i&15] += float64(x[i]) * float64(y[i]) * float64(z[i])
	}
	return l.sum()
}

// scaleMul computes y = s x w.
func scaleMul[T Float](y, x, w []T, s T) {
	n := len(y)
	x, w = x[:n], w[:n]
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			vecScaleMul(f32p(y), f32p(x), f32p(w), float32(s), full)
		}
	}
	for i := full; i < n; i++ {
		y[i] = s * x[i] * w[i]
	}
}

// addScaleMul adds s x w to y.
func addScaleMul[T Float](y, x, w []T, s T) {
	n := len(y)
	x, w = x[:n], w[:n]
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			vecAddScaleMul(f32p(y), f32p(x), f32p(w), float32(s), full)
		}
	}
	for i := full; i < n; i++ {
		y[i] += s * x[i] * w[i]
	}
}

// scaleMulAdd computes y = s x w + t z.
func scaleMulAdd[T Float](y, x, w []T, s T, z []T, t T) {
	n := len(y)
	x, w, z = x[:n], w[:n], z[:n]
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			vecScaleMulAdd(f32p(y), f32p(x), f32p(w), f32p(z), float32(s), float32(t), full)
		}
	}
	for i := full; i < n; i++ {
		y[i] = s*x[i]*w[i] + t*z[i]
	}
}

// addScaled computes y = a + s b; y may be a or b.
func addScaled[T Float](y, a, b []T, s T) {
	n := len(y)
	a, b = a[:n], b[:n]
	full := 0
	if inAssembly[T]() {
		if full = n &^ 15; full > 0 {
			vecAddScaled(f32p(y), f32p(a), f32p(b), float32(s), full)
		}
	}
	for i := full; i < n; i++ {
		y[i] = a[i] + s*b[i]
	}
}

// f32p is the address of the first element of a slice of float32.
func f32p[T Float](x []T) *float32 { return (*float32)(unsafe.Pointer(unsafe.SliceData(x))) }
