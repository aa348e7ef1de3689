package optest

import "math"

// GELU is x times the normal distribution function of x; with tanh the usual
// approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
func GELU(x float64, tanh bool) float64 {
	if tanh {
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return x / 2 * (1 + math.Erf(x/math.Sqrt2))
}

// GELUDerivative is the derivative of GELU: the distribution function plus x
// times the density, and for the approximation, with u the argument of the
// tanh as a logistic function of 2u: s + x s (1 - s) 2u'.
func GELUDerivative(x float64, tanh bool) float64 {
	if tanh {
		c := math.Sqrt(2 / math.Pi)
		s := Sigmoid(2 * c * (x + 0.044715*math.Pow(x, 3)))
		return s + x*s*(1-s)*2*c*(1+3*0.044715*x*x)
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
