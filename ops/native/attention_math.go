// Inner loops of attention: tile products, the exponential of a row of scores,
// and the gather of keys and values.
package native

import (
	"math"
	"unsafe"
)

// kvSource is where keys and values lie: rows of dense operands, or pages.
type kvSource[T Float] struct {
	k, v       []T
	hkv, d, dv int
	pages      PageTable
}

// keys returns keys j0..j0+n of head hk as rows with their stride, gathered
// into buf where they do not lie in such rows.
func (kv *kvSource[T]) keys(s attnSeq, hk, j0, n int, buf []T) ([]T, int) {
	return kv.rows(kv.k, kv.d, s, hk, j0, n, buf)
}

func (kv *kvSource[T]) values(s attnSeq, hk, j0, n int, buf []T) ([]T, int) {
	return kv.rows(kv.v, kv.dv, s, hk, j0, n, buf)
}

func (kv *kvSource[T]) rows(x []T, d int, s attnSeq, hk, j0, n int, buf []T) ([]T, int) {
	if kv.pages.PageSize == 0 {
		return x[((s.k0+j0)*kv.hkv+hk)*d:], kv.hkv * d
	}
	for j := range n {
		at := (kv.pages.Slot(s.b, j0+j)*kv.hkv + hk) * d
		copy(buf[j*d:(j+1)*d], x[at:at+d])
	}
	return buf, d
}

// dot is the product of x with as many elements of y.
func dot[T Float](x, y []T) T { return T(sumMul(x, y[:len(x)])) }

// axpy adds a x to y.
func axpy[T Float](y []T, a T, x []T) { addScaled(y, y, x, a) }

func scale[T Float](y []T, a T) {
	for i := range y {
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
