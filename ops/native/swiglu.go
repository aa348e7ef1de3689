package native

// This file is SwiGLU and its gradient.

// SwiGLU computes y[n] = silu(gate) up, silu(x) = x / (1 + e^-x). y may be gate
// or up. In float32 a result below 2^-126 may be flushed to 0.
// Source: Shazeer, arXiv:2002.05202.
func SwiGLU[T Float](y, gate, up []T, n int) {
	k := pick[gluArgs[T]](swiGLU32, swiGLU64)
	k.launch(ceilDiv(n, unitElements), gluArgs[T]{y: y, gate: gate, up: up, n: n})
}

// SwiGLUGrad computes, with s = 1 / (1 + e^-gate),
//
//	dgate[n] = dy up s (1 + gate (1 - s))      dup[n] = dy gate s
//
// dgate or dup may be dy, gate or up.
func SwiGLUGrad[T Float](dgate, dup, dy, gate, up []T, n int) {
	k := pick[gluArgs[T]](swiGLUGrad32, swiGLUGrad64)
	k.launch(ceilDiv(n, unitElements), gluArgs[T]{y: dy, gate: gate, up: up, dgate: dgate, dup: dup, n: n})
}

// gluArgs are the arguments of a gated unit; y is dy in a gradient.
type gluArgs[T Float] struct {
	y, gate, up, dgate, dup []T
	n                       int
	tanh                    bool
}

var (
	swiGLU32     = newKernel(swiGLUUnit[float32])
	swiGLU64     = newKernel(swiGLUUnit[float64])
	swiGLUGrad32 = newKernel(swiGLUGradUnit[float32])
	swiGLUGrad64 = newKernel(swiGLUGradUnit[float64])
)

// unitRange is the part of n elements that a unit works on.
func unitRange(unit, n int) (from, to int) {
	return unit * unitElements, min((unit+1)*unitElements, n)
}

func swiGLUUnit[T Float](a *gluArgs[T], unit int) {
	i, end := unitRange(unit, a.n)
	if full := (end - i) &^ 15; inAssembly[T]() && full > 0 {
		vecSwiGLU(f32p(a.y[i:]), f32p(a.gate[i:]), f32p(a.up[i:]), full)
		i += full
	}
	for ; i < end; i++ {
		g := a.gate[i]
		a.y[i] = g / (1 + expOf(-g)) * a.up[i]
	}
}

func swiGLUGradUnit[T Float](a *gluArgs[T], unit int) {
	i, end := unitRange(unit, a.n)
	if full := (end - i) &^ 15; inAssembly[T]() && full > 0 {
		vecSwiGLUGrad(f32p(a.dgate[i:]), f32p(a.dup[i:]), f32p(a.y[i:]), f32p(a.gate[i:]), f32p(a.up[i:]), full)
		i += full
	}
	for ; i < end; i++ {
		g, u, dy := a.gate[i], a.up[i], a.y[i]
		s := 1 / (1 + expOf(-g))
		a.dgate[i] = dy * u * s * (1 + g*(1-s))
		a.dup[i] = dy * g * s
	}
}
