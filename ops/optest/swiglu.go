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

// SwiGLUGrad is the product rule on gate * sigmoid(gate); the derivative of the
// sigmoid is sigmoid(x) sigmoid(-x), in which nothing cancels.
func SwiGLUGrad(dy, gate, up []float64) (dgate, dup []float64) {
	dgate, dup = make([]float64, len(gate)), make([]float64, len(gate))
	for i, g := range gate {
		dup[i] = dy[i] * g * Sigmoid(g)
		dgate[i] = dy[i] * up[i] * (Sigmoid(g) + g*Sigmoid(g)*Sigmoid(-g))
	}
	return dgate, dup
}

// Sigmoid is the logistic function 1 / (1 + e^-x), to full accuracy also where
// it is tiny.
func Sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}
