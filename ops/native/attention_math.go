// Inner loops of attention: tile products, the exponential of a row of scores,
// and the gather of keys and values.

package native

import (
	"math"
	"unsafe"
)

// kvSource is where keys and values lie: rows of dense operands, or pages.
type kvSource[T Float] struct {
	k, v  kvRows[T]
	pages PageTable
}

// rows returns rows j0..j0+n of head hk of x, the keys or the values, with
// their stride. They are read where they lie, in the type of the call and at
// one stride: dense, or in pages that follow each other. Else they are gathered
// into buf; the numbers are the same.
func (kv *kvSource[T]) rows(x *kvRows[T], s attnSeq, hk, j0, n int, buf []T) ([]T, int) {
	at, there := s.k0+j0, n
	if kv.pages.PageSize > 0 {
		at, there = kv.pages.run(s.b, j0, n)
	}
	if there == n && !x.narrow.holds() {
		return x.full[(at*x.hkv+hk)*x.width:], x.hkv * x.width
	}
	for j := 0; j < n; j += there {
		at, there = kv.pages.run(s.b, j0+j, n-j)
		for i := range there {
			x.read(buf[(j+i)*x.width:][:x.width], at+i, hk)
		}
	}
	return buf, x.width
}

// dot is the product of x with as many elements of y.
func dot[T Float](x, y []T) T { return T(sumMul(x, y[:len(x)])) }

// axpy adds a x to y.
func axpy[T Float](y []T, a T, x []T) { addScaled(y, y, x, a) }

// scale multiplies y by a.
func scale[T Float](y []T, a T) {
	full := 0
	if inAssembly[T]() {
		if full = len(y) &^ 15; full > 0 {
			vecScale(f32p(y), float32(a), full)
		}
	}
	for i := full; i < len(y); i++ {
		y[i] *= a
	}
}

// finite says that x holds neither NaN nor Inf: then no square does. Of float64
// it may deny it for elements whose squares overflow.
func finite[T Float](x []T) bool {
	s := sumMul(x, x)
	return s-s == 0
}

// capScores applies a soft cap, 0 for none, to a row of scores.
func capScores[T Float](x []T, softcap T) {
	if softcap <= 0 {
		return
	}
	for i, v := range x {
		x[i] = softcap * tanhOf(v/softcap)
	}
}

// tanhOf is tanh. For float32 and |x| < 0.6 it is x + x^3 P(x^2), P the minimax
// polynomial of degree 4 of relative error 2.8e-9 (Remez), beyond that
// 1 - 2/(e^2x + 1): relative error below 2e-7 everywhere.
func tanhOf[T Float](x T) T {
	if unsafe.Sizeof(x) != 4 {
		return T(math.Tanh(float64(x)))
	}
	z := x * x
	if z < 0.36 {
		p := T(-0.005895728515)
		p = p*z + 0.0207964230445
		p = p*z - 0.0537839519442
		p = p*z + 0.133319253998
		p = p*z - 0.333332980427
		return x + x*z*p
	}
	t := 1 - 2/(expOf(2*max(x, -x))+1)
	if x < 0 {
		return -t
	}
	return t
}
