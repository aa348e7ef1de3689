package optest

// Affine returns mul x + add, element by element.
func Affine(x []float64, mul, add float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = mul * x[i]
		y[i] += add
	}
	return y
}
