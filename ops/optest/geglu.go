package optest

import "math"

// GELU is x times the normal distribution function of x, x/2 (1 + erf(x/sqrt 2));
// with tanh the usual approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
// Both are written without the sum, which cancels for negative x.
func GELU(x float64, tanh bool) float64 {
	if tanh {
		return x * Sigmoid(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
	}
	return x / 2 * math.Erfc(-x/math.Sqrt2)
}

// GELUDerivative is the derivative of GELU: the distribution function plus x
// times the density. For the approximation, with u the argument of the tanh and
// s the sigmoid of 2u, it is s + x 2u' s (1 - s).
func GELUDerivative(x float64, tanh bool) float64 {
	if tanh {
		u := math.Sqrt(2/math.Pi) * (x + 0.044715*math.Pow(x, 3))
		slope := math.Sqrt(2/math.Pi) * (1 + 3*0.044715*x*x)
		return Sigmoid(2*u) + x*2*slope*Sigmoid(2*u)*Sigmoid(-2*u)
	}
	return math.Erfc(-x/math.Sqrt2)/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}

// GeGLU returns gelu(gate) * up.
func GeGLU(gate, up []float64, tanh bool) []float64 {
	y := make([]float64, len(gate))
	for i, g := range gate {
		y[i] = GELU(g, tanh) * up[i]
	}
	return y
}

// GeGLUGrad returns the gradients of gate and up.
func GeGLUGrad(dy, gate, up []float64, tanh bool) (dgate, dup []float64) {
	dgate, dup = make([]float64, len(gate)), make([]float64, len(gate))
	for i, g := range gate {
		dgate[i] = dy[i] * up[i] * GELUDerivative(g, tanh)
		dup[i] = dy[i] * GELU(g, tanh)
	}
	return dgate, dup
}
