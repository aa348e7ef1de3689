package optest

// Mul returns x y, element by element.
func Mul(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range z {
		z[i] = x[i] * y[i]
	}
	return z
}
