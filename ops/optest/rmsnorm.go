package optest

import "math"

// RMSNorm returns y = x / sqrt(mean(x^2) + eps) * w over rows of D elements.
// w may be nil for no weight.
func RMSNorm(x, w []float64, rows, d int, eps float64) []float64 {
	y := make([]float64, rows*d)
	for r := range rows {
		mean := 0.0
		for j := range d {
			mean += x[r*d+j] * x[r*d+j] / float64(d)
		}
		for j := range d {
			y[r*d+j] = x[r*d+j] / math.Sqrt(mean+eps)
			if w != nil {
				y[r*d+j] *= w[j]
			}
		}
	}
	return y
}

// RMSNormGrad contracts dy with the whole Jacobian of each row,
// dy_i/dx_j = w_i (s [i=j] - x_i x_j s^3 / D) with s = 1/sqrt(mean(x^2) + eps).
// dw is nil where w is.
func RMSNormGrad(dy, x, w []float64, rows, d int, eps float64) (dx, dw []float64) {
	dx = make([]float64, rows*d)
	if w != nil {
		dw = make([]float64, d)
	}
	for r := range rows {
		row := x[r*d : (r+1)*d]
		square := 0.0
		for _, v := range row {
			square += v * v
		}
		s := math.Pow(square/float64(d)+eps, -0.5)
		for i := range d {
			wi := 1.0
			if w != nil {
				wi = w[i]
				dw[i] += dy[r*d+i] * row[i] * s
			}
			for j := range d {
				jacobian := -row[i] * row[j] * s * s * s / float64(d)
				if i == j {
					jacobian += s
				}
				dx[r*d+j] += dy[r*d+i] * wi * jacobian
			}
		}
	}
	return dx, dw
}
