package optest

import "math"

// SwiGLU returns silu(gate) * up with silu(x) = x / (1 + e^-x).
func SwiGLU(gate, up []float64) []float64 {
	y := make([]float64, len(gate))
	for i, g := range gate {
		y[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return y
}

// SwiGLUGrad uses the logistic function as (1 + tanh(x/2)) / 2, whose
// derivative is (1 - tanh(x/2)^2) / 4.
func SwiGLUGrad(dy, gate, up []float64) (dgate, dup []float64) {
	dgate, dup = make([]float64, len(gate)), make([]float64, len(gate))
	for i, g := range gate {
		t := math.Tanh(g / 2)
		dup[i] = dy[i] * g * (1 + t) / 2
		dgate[i] = dy[i] * up[i] * ((1+t)/2 + g*(1-t*t)/4)
	}
	return dgate, dup
}

// Sigmoid returns the logistic function of x.
func Sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
