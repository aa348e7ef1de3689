// Inner loops of attention: tile products, the exponential of a row of scores,
// and the gather of keys and values.
package native

import "math"

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

// dotRows sets y[j] to the dot product of x with row j of b.
func dotRows[T Float](y, x, b []T, ldb int) {
	for j := range y {
		y[j] = dot(x, b[j*ldb:])
	}
}

func dot[T Float](x, y []T) T {
	y = y[:len(x)]
	var s0, s1, s2, s3 T
	i := 0
	for ; i+4 <= len(x); i += 4 {
		s0 += x[i] * y[i]
		s1 += x[i+1] * y[i+1]
		s2 += x[i+2] * y[i+2]
		s3 += x[i+3] * y[i+3]
	}
	for ; i < len(x); i++ {
		s0 += x[i] * y[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func axpy[T Float](y []T, a T, x []T) {
	x = x[:len(y)]
	for i := range y {
		y[i] += a * x[i]
	}
}

// finite says whether x holds neither NaN nor Inf.
func finite[T Float](x []T) bool {
	var s T
	for _, v := range x {
		s += v * 0
	}
	return s == 0
}

// scaleScores applies scale and soft cap to a row of products and returns the
// largest score.
func scaleScores[T Float](x []T, scale, softcap T) T {
	if softcap > 0 {
		for i, v := range x {
			x[i] = softcap * T(math.Tanh(float64(v*scale/softcap)))
		}
		scale = 1
	}
	m := T(math.Inf(-1))
	for i, v := range x {
		v *= scale
		x[i] = v
		m = max(m, v)
	}
	return m
}

// expSum sets x to exp(x - base) and returns its sum.
func expSum[T Float](x []T, base T) T {
	var s0, s1, s2, s3 T
	i := 0
	for ; i+4 <= len(x); i += 4 {
		e0, e1, e2, e3 := expOne(x[i]-base), expOne(x[i+1]-base), expOne(x[i+2]-base), expOne(x[i+3]-base)
		x[i], x[i+1], x[i+2], x[i+3] = e0, e1, e2, e3
		s0 += e0
		s1 += e1
		s2 += e2
		s3 += e3
	}
	for ; i < len(x); i++ {
		x[i] = expOne(x[i] - base)
		s0 += x[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func expOne[T Float](x T) T { return T(math.Exp(float64(x))) }
