package optest

import "math"

// LayerNorm returns y = (x - mean) / sqrt(variance + eps) * w + b over rows of
// D elements, with the variance that divides by D. w and b may be nil.
func LayerNorm(x, w, b []float64, rows, d int, eps float64) []float64 {
	y := make([]float64, rows*d)
	for r := range rows {
		mean, variance := moments(x[r*d : (r+1)*d])
		for j := range d {
			y[r*d+j] = (x[r*d+j] - mean) / math.Sqrt(variance+eps)
			if w != nil {
				y[r*d+j] *= w[j]
			}
			if b != nil {
				y[r*d+j] += b[j]
			}
		}
	}
	return y
}

func moments(row []float64) (mean, variance float64) {
	for _, v := range row {
		mean += v / float64(len(row))
	}
	for _, v := range row {
		variance += (v - mean) * (v - mean) / float64(len(row))
	}
	return mean, variance
}

// LayerNormGrad contracts dy with the whole Jacobian of each row,
// dy_i/dx_j = w_i s ([i=j] - 1/D - n_i n_j / D) with n the normalised row and
// s = 1/sqrt(variance + eps). dw is nil where w is; db does not depend on b.
func LayerNormGrad(dy, x, w []float64, rows, d int, eps float64) (dx, dw, db []float64) {
	dx, db = make([]float64, rows*d), make([]float64, d)
	if w != nil {
		dw = make([]float64, d)
	}
	for r := range rows {
		mean, variance := moments(x[r*d : (r+1)*d])
		s := math.Pow(variance+eps, -0.5)
		for i := range d {
			ni := (x[r*d+i] - mean) * s
			wi := 1.0
			if w != nil {
				wi = w[i]
				dw[i] += dy[r*d+i] * ni
			}
			db[i] += dy[r*d+i]
			for j := range d {
				nj := (x[r*d+j] - mean) * s
				jacobian := -(1 + ni*nj) / float64(d)
				if i == j {
					jacobian++
				}
				dx[r*d+j] += dy[r*d+i] * wi * s * jacobian
			}
		}
	}
	return dx, dw, db
}
