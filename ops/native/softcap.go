package native

import "math"

// This file is y = cap tanh(x / cap), which keeps logits within the cap.

// Softcap computes y[n] = bound tanh(x / bound); y may be x.
func Softcap[T Float](y, x []T, n int, bound float64) {
	k := pick[softcapArgs[T]](softcap32, softcap64)
	k.launch(ceilDiv(n, unitElements), softcapArgs[T]{y: y, x: x, n: n, bound: bound})
}

// SoftcapGrad computes dx = dy (1 - tanh(x / bound)^2); dx may be dy or x.
func SoftcapGrad[T Float](dx, dy, x []T, n int, bound float64) {
	k := pick[softcapArgs[T]](softcapGrad32, softcapGrad64)
	k.launch(ceilDiv(n, unitElements), softcapArgs[T]{y: dx, dy: dy, x: x, n: n, bound: bound})
}

type softcapArgs[T Float] struct {
	y, dy, x []T
	n        int
	bound    float64
}

var (
	softcap32     = newKernel(softcapUnit[float32])
	softcap64     = newKernel(softcapUnit[float64])
	softcapGrad32 = newKernel(softcapGradUnit[float32])
	softcapGrad64 = newKernel(softcapGradUnit[float64])
)

func softcapUnit[T Float](a *softcapArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	y := a.y[from:to]
	for i, x := range a.x[from:to] {
		y[i] = T(a.bound * math.Tanh(float64(x)/a.bound))
	}
}

func softcapGradUnit[T Float](a *softcapArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	dx, dy := a.y[from:to], a.dy[from:to]
	for i, x := range a.x[from:to] {
		// 1 - tanh^2 is 1/cosh^2, without the difference.
		c := math.Cosh(float64(x) / a.bound)
		dx[i] = T(float64(dy[i]) / c / c)
	}
}
