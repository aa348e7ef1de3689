package native

import (
	"math"
	"slices"
	"unsafe"
)

// This file is what a trainer does with gradients: their norm and the AdamW step.

// AdamWStep are the settings of one step; Step counts from 1. GradScale
// multiplies the gradient first (clipping); it is 1 for none.
type AdamWStep struct {
	LR, Beta1, Beta2, Eps, Decay float64
	Step                         int
	GradScale                    float64
}

// AdamW updates parameters p[n] and moments m[n], v[n] by gradient g[n] in one
// pass:
//
//	g' = GradScale g      m = b1 m + (1-b1) g'      v = b2 v + (1-b2) g'^2
//	p  = p (1 - lr decay) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
//
// It returns FP8TensorAmax of the new p. Source: Loshchilov and Hutter,
// arXiv:1711.05101.
func AdamW[T Float](p, m, v, g []T, n int, h AdamWStep) (amax float32, nan int) {
	units := ceilDiv(n, unitElements)
	t := float64(h.Step)
	a := adamWArgs[T]{p: p, m: m, v: v, g: g, n: n, f: adamWFactors[T]{
		grad:  T(h.GradScale),
		beta1: T(h.Beta1), rest1: T(1 - h.Beta1),
		beta2: T(h.Beta2), rest2: T(1 - h.Beta2),
		keep: T(1 - h.LR*h.Decay),
		step: T(h.LR / (1 - math.Pow(h.Beta1, t))),
		root: T(1 / math.Sqrt(1-math.Pow(h.Beta2, t))),
		eps:  T(h.Eps),
	}}
	a.found = scratch32.take(2 * units)
	pick[adamWArgs[T]](adamW32, adamW64).launch(units, a)
	amax, nan = foundOf(a.found)
	scratch32.give(a.found)
	return amax, nan
}

// adamWFactors are the constants of a step; the assembly knows their order.
type adamWFactors[T Float] struct {
	grad, beta1, rest1, beta2, rest2, keep, step, root, eps T
}

type adamWArgs[T Float] struct {
	p, m, v, g []T
	n          int
	f          adamWFactors[T]
	found      []float32 // see foundOf
}

var (
	adamW32 = newKernel(adamWUnit[float32])
	adamW64 = newKernel(adamWUnit[float64])
)

func adamWUnit[T Float](a *adamWArgs[T], unit int) {
	from, end := unitRange(unit, a.n)
	i, f := from, &a.f
	var tops [16]uint32 // the largest magnitudes, in bits
	if full := (end - i) &^ 15; inAssembly[T]() && full > 0 {
		vecAdamW(f32p(a.p[i:]), f32p(a.m[i:]), f32p(a.v[i:]), f32p(a.g[i:]), (*adamWFactors[float32])(unsafe.Pointer(f)), full, &tops)
		i += full
	}
	rest := i
	for ; i < end; i++ {
		g := f.grad * a.g[i]
		m := f.beta1*a.m[i] + f.rest1*g
		v := f.beta2*a.v[i] + f.rest2*(g*g)
		a.m[i], a.v[i] = m, v
		a.p[i] = f.keep*a.p[i] - f.step*m/(f.root*T(math.Sqrt(float64(v)))+f.eps)
	}
	top := slices.Max(tops[:])
	if top > 0xFF<<23 { // a NaN
		rest, top = from, 0
	}
	amax, nan := amaxOf(a.p[rest:end])
	a.found[2*unit] = max(amax, math.Float32frombits(top))
	a.found[2*unit+1] = math.Float32frombits(uint32(nan))
}

// SumSquares returns the sum of x[n]^2 in float64, blocks in order.
func SumSquares[T Float](x []T, n int) float64 {
	blocks := ceilDiv(n, unitElements)
	sums := scratch64.take(blocks)
	k := pick[sumSquaresArgs[T]](sumSquares32, sumSquares64)
	k.launch(blocks, sumSquaresArgs[T]{sums, x, n})
	total := 0.0
	for _, s := range sums {
		total += s
	}
	scratch64.give(sums)
	return total
}

type sumSquaresArgs[T Float] struct {
	sums []float64
	x    []T
	n    int
}

var (
	sumSquares32 = newKernel(sumSquaresUnit[float32])
	sumSquares64 = newKernel(sumSquaresUnit[float64])
)

func sumSquaresUnit[T Float](a *sumSquaresArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	a.sums[unit] = sumMul(a.x[from:to], a.x[from:to])
}
