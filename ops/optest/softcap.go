package optest

import "math"

// Softcap returns c tanh(x/c), from e = exp(2x/c) - 1.
func Softcap(x []float64, c float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		e := math.Expm1(2 * v / c)
		y[i] = c * e / (e + 2)
	}
	return y
}

// SoftcapGrad returns the gradient of x from that of y.
func SoftcapGrad(dy, x []float64, c float64) []float64 {
	dx := make([]float64, len(x))
	for i, v := range x {
		e := math.Exp(2 * v / c)
		dx[i] = dy[i] * 4 * e / ((e + 1) * (e + 1))
	}
	return dx
}
