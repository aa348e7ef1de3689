package optest

// Mul returns x y, element by element.
func Mul(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range z {
		z[i] = x[i] * y[i]
	}
	return z
}

// MulRows returns the rows x [len(y),D] times y, and MulRowsGrad the gradient of y.
func MulRows(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range z {
		z[i] = x[i] * y[i*len(y)/len(x)]
	}
	return z
}

func MulRowsGrad(dz, x []float64, rows int) []float64 {
	dy := make([]float64, rows)
	for i := range x {
		dy[i*rows/len(x)] += dz[i] * x[i]
	}
	return dy
}
