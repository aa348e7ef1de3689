package native

import "math"

// This file is the linear layer with products in bf16: operands are rounded to
// bf16, products of two such numbers are exact in float32, sums are those of
// Linear.

// BF16Round computes y = x rounded to the nearest bf16, ties to even; x passes
// through float32. A NaN stays one.
func BF16Round[T Float](y, x []T) {
	pick[bf16Args[T]](bf16Round32, bf16Round64).launch(ceilDiv(len(x), bf16Unit), bf16Args[T]{y, x})
}

const bf16Unit = 1 << 14

type bf16Args[T Float] struct{ y, x []T }

var (
	bf16Round32 = newKernel(bf16RoundUnit[float32])
	bf16Round64 = newKernel(bf16RoundUnit[float64])
)

func bf16RoundUnit[T Float](a *bf16Args[T], i int) {
	lo, hi := i*bf16Unit, min((i+1)*bf16Unit, len(a.x))
	y, x := a.y[lo:hi], a.x[lo:hi]
	for j, v := range x {
		f := float32(v)
		u := math.Float32bits(f)
		if f == f {
			u += 0x7FFF + u>>16&1
		} else {
			u |= 1 << 22
		}
		y[j] = T(math.Float32frombits(u &^ 0xFFFF))
	}
}

// BF16Linear computes y[M,N] = x[M,K] w[N,K]^T + b[N] on rounded x and w; b may
// be nil.
func BF16Linear[T Float](y, x, w, b []T, m, n, k int) {
	bf16Operands(x[:m*k], w[:n*k], func(x, w []T) { Linear(y, x, w, b, m, n, k) })
}

// BF16LinearGradInput computes dx[M,K] = dy[M,N] w[N,K] on rounded dy and w.
func BF16LinearGradInput[T Float](dx, dy, w []T, m, n, k int) {
	bf16Operands(dy[:m*n], w[:n*k], func(dy, w []T) { LinearGradInput(dx, dy, w, m, n, k) })
}

// BF16LinearGradWeight computes dw[N,K] = dy[M,N]^T x[M,K] on rounded dy and x.
func BF16LinearGradWeight[T Float](dw, dy, x []T, m, n, k int) {
	bf16Operands(dy[:m*n], x[:m*k], func(dy, x []T) { LinearGradWeight(dw, dy, x, m, n, k) })
}

// bf16Operands calls f with rounded copies.
func bf16Operands[T Float](a, b []T, f func(a, b []T)) {
	ra, rb := takeScratch[T](len(a)), takeScratch[T](len(b))
	BF16Round(ra, a)
	BF16Round(rb, b)
	f(ra, rb)
	giveScratch(ra)
	giveScratch(rb)
}
