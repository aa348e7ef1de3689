package optest

// Add returns a + b, element by element.
func Add(a, b []float64) []float64 {
	y := make([]float64, len(a))
	for i := range a {
		y[i] = a[i] + b[i]
	}
	return y
}

// AddGrad hands dy to both sides.
func AddGrad(dy []float64) (da, db []float64) {
	return append([]float64(nil), dy...), append([]float64(nil), dy...)
}
