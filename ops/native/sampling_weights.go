package native

import "math"

// This file computes the weights of the tokens that one is drawn from.

// weightPowers are the coefficients of 2^r on [-1/2,1/2], the constant first: the
// polynomial that has its values at the zeros of a Chebyshev polynomial, relative
// error 2.9e-16. The CUDA kernel has the same.
var weightPowers = [11]float64{1, 0.69314718055995, 0.24022650695910097, 0.05550410866444772, 0.009618129107606888, 0.0013333558230164974,
	0.0001540353044173605, 1.5252657260200837e-05, 1.321544258792169e-06, 1.0208690299958306e-07, 7.072585949269223e-09}

// weightOf is 2^((z - top) rate) for z up to top, 0 below 2^-1022.
func weightOf(z, top, rate float64) float64 {
	const round = 0x1.8p52
	y := (z - top) * rate
	if !(y >= -1022) {
		return 0
	}
	n := y + round
	r := y - (n - round)
	p := weightPowers[10]
	for k := 9; k >= 0; k-- {
		p = math.FMA(p, r, weightPowers[k])
	}
	return math.Float64frombits(math.Float64bits(p) + math.Float64bits(n)<<52)
}

// weights computes y = weightOf(x).
func weights[T Float](y []float64, x []T, top, rate float64) {
	full := 0
	if inAssembly[T]() {
		if full = len(x) &^ 15; full > 0 {
			vecWeights(&y[0], f32p(x), full, top, rate)
		}
	}
	for i := full; i < len(x); i++ {
		y[i] = weightOf(float64(x[i]), top, rate)
	}
}

// sumOf adds up in eight lanes.
func sumOf(x []float64) float64 {
	var a, b, c, d, e, f, g, h float64
	for ; len(x) >= 8; x = x[8:] {
		a, b, c, d, e, f, g, h = a+x[0], b+x[1], c+x[2], d+x[3], e+x[4], f+x[5], g+x[6], h+x[7]
	}
	sum := a + b + (c + d) + (e + f + (g + h))
	for _, v := range x {
		sum += v
	}
	return sum
}
