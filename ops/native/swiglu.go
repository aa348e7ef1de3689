package native

import "math"

// This file is SwiGLU and its gradient.

// SwiGLU computes y[n] = silu(gate) up, silu(x) = x / (1 + e^-x). y may be gate
// or up. In float32 silu's relative error is at most 2e-7, and what is below 2^-121
// may be flushed to 0.
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

// SwiGLUMeasured is SwiGLU of all of gate, and FP8TensorAmax of y.
func SwiGLUMeasured(y, gate, up []float32) (amax float32, nan int) {
	units := ceilDiv(len(gate), unitElements)
	a := gluMeasuredArgs{gluArgs: gluArgs[float32]{y: y, gate: gate, up: up, n: len(gate)}, found: scratch32.take(2 * units)}
	swiGLUMeasured.launch(units, a)
	amax, nan = foundOf(a.found)
	scratch32.give(a.found)
	return amax, nan
}

// SwiGLUGradMeasured is SwiGLUGrad of all of gate, and FP8TensorAmax of dgate and
// of dup.
func SwiGLUGradMeasured(dgate, dup, dy, gate, up []float32) (amax [2]float32, nan [2]int) {
	units := ceilDiv(len(gate), unitElements)
	a := gluMeasuredArgs{
		gluArgs: gluArgs[float32]{y: dy, gate: gate, up: up, dgate: dgate, dup: dup, n: len(gate)},
		found:   scratch32.take(4 * units),
	}
	swiGLUMeasured.launch(units, a)
	amax[0], nan[0] = foundOf(a.found[:2*units])
	amax[1], nan[1] = foundOf(a.found[2*units:])
	scratch32.give(a.found)
	return amax, nan
}

// gluMeasuredArgs add what each unit finds: the largest magnitude and the number
// of NaN, in bits, of each result.
type gluMeasuredArgs struct {
	gluArgs[float32]
	found []float32
}

var swiGLUMeasured = newKernel(swiGLUMeasuredUnit)

func swiGLUMeasuredUnit(a *gluMeasuredArgs, unit int) {
	from, to := unitRange(unit, a.n)
	keep := func(at int, x []float32) {
		m, nan := amaxOf(x[from:to])
		a.found[at], a.found[at+1] = m, math.Float32frombits(uint32(nan))
	}
	if a.dgate == nil {
		swiGLUUnit(&a.gluArgs, unit)
		keep(2*unit, a.y)
		return
	}
	swiGLUGradUnit(&a.gluArgs, unit)
	keep(2*unit, a.dgate)
	keep(len(a.found)/2+2*unit, a.dup)
}

// foundOf combines what units found.
func foundOf(found []float32) (amax float32, nan int) {
	for i := 0; i < len(found); i += 2 {
		amax = max(amax, found[i])
		nan += int(math.Float32bits(found[i+1]))
	}
	return amax, nan
}
