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
	if !a.tanh {
		for i := from; i < to; i++ {
			p, _ := normalGate(a.gate[i])
			a.y[i] = a.gate[i] * p * a.up[i]
		}
		return
	}
	e := takeScratch[T](tanhPiece)
	for ; from < to; from += tanhPiece {
		end := min(from+tanhPiece, to)
		gate, up, y := a.gate[from:end], a.up[from:end], a.y[from:end]
		tanhExp(e[:end-from], gate)
		for i, g := range gate {
			y[i] = g / (1 + e[i]) * up[i]
		}
	}
	giveScratch(e)
}

func geGLUGradUnit[T Float](a *gluArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	if !a.tanh {
		for i := from; i < to; i++ {
			g, u, dy := a.gate[i], a.up[i], a.y[i]
			p, slope := normalGate(g)
			a.dgate[i] = dy * u * slope
			a.dup[i] = dy * (g * p)
		}
		return
	}
	e := takeScratch[T](tanhPiece)
	for ; from < to; from += tanhPiece {
		end := min(from+tanhPiece, to)
		gate := a.gate[from:end]
		tanhExp(e[:end-from], gate)
		for i, g := range gate {
			u, dy := a.up[from+i], a.y[from+i]
			s := 1 / (1 + e[i])
			rest := min(e[i], math.MaxFloat32) * s // 1 - s, which would cancel; finite where s is 0
			a.dgate[from+i] = dy * u * (s + g*s*rest*tanhFactor*(1+3*tanhCube*(g*g)))
			a.dup[from+i] = dy * (g * s)
		}
	}
	giveScratch(e)
}

// normalGate returns Phi(x) and the derivative of x Phi(x).
func normalGate[T Float](x T) (p, slope T) {
	v := float64(x)
	phi := math.Erfc(-v/math.Sqrt2) / 2
	return T(phi), T(phi + v*math.Exp(-v*v/2)/math.Sqrt(2*math.Pi))
}

const (
	tanhPiece  = 512                // elements of one call of the exponential
	tanhFactor = 1.5957691216057308 // 2 sqrt(2/pi)
	tanhCube   = 0.044715
)

// tanhExp computes e^(-2v) for the v of the approximation, whose
// (1 + tanh(v))/2 is 1 / (1 + e^(-2v)).
func tanhExp[T Float](e, x []T) {
	for i, v := range x {
		e[i] = -tanhFactor * v * (1 + tanhCube*(v*v))
	}
	expSlice(e, e)
}
