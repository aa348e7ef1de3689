package native

import "math"

// This file is LayerNorm and its gradient.

// LayerNorm computes y = (x - mean) r w + b over rows of D elements,
// r = 1/sqrt(variance + eps) with the variance that divides by D, and keeps mean
// and r of every row in mean[rows] and rstd[rows]. w[D] and b[D] may be nil.
// Source: Ba, Kiros, Hinton, arXiv:1607.06450.
func LayerNorm[T Float](y, mean, rstd, x, w, b []T, rows, d int, eps float64) {
	per := rowsPerUnit(d)
	k := pick[layerNormArgs[T]](layerNorm32, layerNorm64)
	k.launch(ceilDiv(rows, per), layerNormArgs[T]{y: y, mean: mean, rstd: rstd, x: x, w: w, b: b, rows: rows, d: d, per: per, eps: eps})
}

// LayerNormGrad computes, with n = (x - mean) r and means over the row,
//
//	dx = r (dy w - mean(dy w) - n mean(dy w n))
//	dw = sum over rows of dy n        db = sum over rows of dy
//
// from what LayerNorm kept. dw and db may be nil and are then not computed.
func LayerNormGrad[T Float](dx, dw, db, dy, x, w, mean, rstd []T, rows, d int) {
	blocks := ceilDiv(rows, gradRows)
	a := layerNormArgs[T]{y: dx, dy: dy, x: x, w: w, mean: mean, rstd: rstd, rows: rows, d: d, per: gradRows}
	if dw != nil {
		a.dw = takeScratch[T](blocks * d)
	}
	if db != nil {
		a.b = takeScratch[T](blocks * d)
	}
	k := pick[layerNormArgs[T]](layerNormGrad32, layerNormGrad64)
	k.launch(blocks, a)
	if dw != nil {
		columnSums(dw, a.dw, blocks, d)
		giveScratch(a.dw)
	}
	if db != nil {
		columnSums(db, a.b, blocks, d)
		giveScratch(a.b)
	}
}

type layerNormArgs[T Float] struct {
	y, mean, rstd, x, w, b, dy []T // in the gradient b is [blocks, D], like dw
	dw                         []T // [blocks, D], a partial sum a block of rows
	rows, d, per               int
	eps                        float64
}

var (
	layerNorm32     = newKernel(layerNormUnit[float32])
	layerNorm64     = newKernel(layerNormUnit[float64])
	layerNormGrad32 = newKernel(layerNormGradUnit[float32])
	layerNormGrad64 = newKernel(layerNormGradUnit[float64])
)

func layerNormUnit[T Float](a *layerNormArgs[T], unit int) {
	d := a.d
	for i := unit * a.per; i < min((unit+1)*a.per, a.rows); i++ {
		x, y := a.x[i*d:][:d], a.y[i*d:][:d]
		sum := 0.0
		for _, v := range x {
			sum += float64(v)
		}
		mean := sum / float64(d)
		square := 0.0
		for _, v := range x {
			e := float64(v) - mean
			square += e * e
		}
		r := 1 / math.Sqrt(square/float64(d)+a.eps)
		a.mean[i], a.rstd[i] = T(mean), T(r)
		for j, v := range x {
			n := T((float64(v) - mean) * r)
			if a.w != nil {
				n *= a.w[j]
			}
			if a.b != nil {
				n += a.b[j]
			}
			y[j] = n
		}
	}
}

func layerNormGradUnit[T Float](a *layerNormArgs[T], unit int) {
	d := a.d
	var dw, db []T
	if a.dw != nil {
		dw = a.dw[unit*d:][:d]
		clear(dw)
	}
	if a.b != nil {
		db = a.b[unit*d:][:d]
		clear(db)
	}
	for i := unit * a.per; i < min((unit+1)*a.per, a.rows); i++ {
		dx, dy, x := a.y[i*d:][:d], a.dy[i*d:][:d], a.x[i*d:][:d]
		mean, r := float64(a.mean[i]), float64(a.rstd[i])
		var sum, sumN float64
		for j, v := range dy {
			n := (float64(x[j]) - mean) * r
			if dw != nil {
				dw[j] += T(float64(v) * n)
			}
			if db != nil {
				db[j] += v
			}
			g := float64(v)
			if a.w != nil {
				g *= float64(a.w[j])
			}
			sum += g
			sumN += g * n
		}
		sum /= float64(d)
		sumN /= float64(d)
		for j, v := range dy {
			n := (float64(x[j]) - mean) * r
			g := float64(v)
			if a.w != nil {
				g *= float64(a.w[j])
			}
			dx[j] = T(r * (g - sum - n*sumN))
		}
	}
}
