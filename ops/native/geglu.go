package native

import "math"

// This file is GeGLU and its gradient.

// GeGLU computes y[n] = gelu(gate) up, gelu(x) = x Phi(x) with Phi the normal
// distribution function, or with tanh its usual approximation
// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). y may be gate or up.
// Sources: Hendrycks and Gimpel, arXiv:1606.08415; Shazeer, arXiv:2002.05202.
func GeGLU[T Float](y, gate, up []T, n int, tanh bool) {
	k := pick[gluArgs[T]](geGLU32, geGLU64)
	k.launch(ceilDiv(n, unitElements), gluArgs[T]{y: y, gate: gate, up: up, n: n, tanh: tanh})
}

// GeGLUGrad computes dgate[n] = dy up gelu'(gate) and dup[n] = dy gelu(gate).
// dgate or dup may be dy, gate or up.
func GeGLUGrad[T Float](dgate, dup, dy, gate, up []T, n int, tanh bool) {
	k := pick[gluArgs[T]](geGLUGrad32, geGLUGrad64)
	k.launch(ceilDiv(n, unitElements), gluArgs[T]{y: dy, gate: gate, up: up, dgate: dgate, dup: dup, n: n, tanh: tanh})
}

var (
	geGLU32     = newKernel(geGLUUnit[float32])
	geGLU64     = newKernel(geGLUUnit[float64])
	geGLUGrad32 = newKernel(geGLUGradUnit[float32])
	geGLUGrad64 = newKernel(geGLUGradUnit[float64])
)

func geGLUUnit[T Float](a *gluArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	for i := from; i < to; i++ {
		p, _ := gelu(a.gate[i], a.tanh)
		a.y[i] = a.gate[i] * p * a.up[i]
	}
}

func geGLUGradUnit[T Float](a *gluArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	for i := from; i < to; i++ {
		g, u, dy := a.gate[i], a.up[i], a.y[i]
		p, slope := gelu(g, a.tanh)
		a.dgate[i] = dy * u * slope
		a.dup[i] = dy * (g * p)
	}
}

// gelu returns gelu(x)/x and the derivative of gelu. The approximation's
// (1 + tanh(v))/2 is the logistic function of 2v.
func gelu[T Float](x T, tanh bool) (p, slope T) {
	if !tanh {
		v := float64(x)
		phi := math.Erfc(-v/math.Sqrt2) / 2
		return T(phi), T(phi + v*math.Exp(-v*v/2)/math.Sqrt(2*math.Pi))
	}
	const c = 1.5957691216057308 // 2 sqrt(2/pi)
	square := x * x
	e := expOf(-c * x * (1 + 0.044715*square))
	s := 1 / (1 + e)
	rest := 1 - s
	if x > 0 {
		rest = e * s // 1 - s would cancel
	}
	return s, s + x*s*rest*c*(1+3*0.044715*square)
}
