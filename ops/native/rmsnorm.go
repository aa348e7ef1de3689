package native

import "math"

// This file is RMSNorm and its gradient.

// Row ops give a unit about unitElements elements, and sums over rows are cut
// in blocks of gradRows rows.
const (
	unitElements = 1 << 14
	gradRows     = 32
)

// rowsPerUnit is how many rows of d elements a unit takes.
func rowsPerUnit(d int) int { return max(unitElements/max(d, 1), 1) }

// RMSNorm computes y = x r w over rows of D elements, r = 1/sqrt(mean(x^2) + eps),
// and keeps r of every row in rstd[rows]. w[D] may be nil for no weight; y may be x.
// Source: Zhang and Sennrich, arXiv:1910.07467.
func RMSNorm[T Float](y, rstd, x, w []T, rows, d int, eps float64) {
	per := rowsPerUnit(d)
	k := pick[rmsNormArgs[T]](rmsNorm32, rmsNorm64)
	k.launch(ceilDiv(rows, per), rmsNormArgs[T]{y: y, rstd: rstd, x: x, w: w, rows: rows, d: d, per: per, eps: eps})
}

// RMSNormGrad computes, with c = sum(dy w x) of the row,
//
//	dx = r (dy w - x r^2 c / D)       dw = sum over rows of dy x r
//
// from the rstd that RMSNorm kept. dw is not written where w is nil. dx may be dy.
func RMSNormGrad[T Float](dx, dw, dy, x, w, rstd []T, rows, d int) {
	blocks := ceilDiv(rows, gradRows)
	a := rmsNormArgs[T]{y: dx, dy: dy, x: x, w: w, rstd: rstd, rows: rows, d: d, per: gradRows}
	k := pick[rmsNormArgs[T]](rmsNormGrad32, rmsNormGrad64)
	if w == nil {
		k.launch(blocks, a)
		return
	}
	a.dw = takeScratch[T](blocks * d)
	k.launch(blocks, a)
	columnSums(dw, a.dw, blocks, d)
	giveScratch(a.dw)
}

type rmsNormArgs[T Float] struct {
	y, rstd, x, w, dy []T
	dw                []T // [blocks, D], a partial sum a block of rows
	rows, d, per      int
	eps               float64
}

var (
	rmsNorm32     = newKernel(rmsNormUnit[float32])
	rmsNorm64     = newKernel(rmsNormUnit[float64])
	rmsNormGrad32 = newKernel(rmsNormGradUnit[float32])
	rmsNormGrad64 = newKernel(rmsNormGradUnit[float64])
)

func rmsNormUnit[T Float](a *rmsNormArgs[T], unit int) {
	d := a.d
	for i := unit * a.per; i < min((unit+1)*a.per, a.rows); i++ {
		a.rstd[i] = rmsNormRow(a.y[i*d:][:d], a.x[i*d:][:d], a.w, a.eps)
	}
}

// rmsNormRow is RMSNorm of one row.
func rmsNormRow[T Float](y, x, w []T, eps float64) (r T) {
	r = T(1 / math.Sqrt(sumMul(x, x)/float64(len(x))+eps))
	if w != nil {
		scaleMul(y, x, w, r)
		return r
	}
	for j, v := range x {
		y[j] = r * v
	}
	return r
}

func rmsNormGradUnit[T Float](a *rmsNormArgs[T], unit int) {
	d := a.d
	var dw []T
	if a.w != nil {
		dw = a.dw[unit*d:][:d]
		clear(dw)
	}
	for i := unit * a.per; i < min((unit+1)*a.per, a.rows); i++ {
		dx, dy, x := a.y[i*d:][:d], a.dy[i*d:][:d], a.x[i*d:][:d]
		r := a.rstd[i]
		if a.w == nil {
			t := rmsSlope(r, sumMul(dy, x), d)
			for j, v := range dy {
				dx[j] = r*v + t*x[j]
			}
			continue
		}
		addScaleMul(dw, dy, x, r)
		scaleMulAdd(dx, dy, a.w, r, x, rmsSlope(r, sumMul3(dy, a.w, x), d))
	}
}

// rmsSlope is the factor of x in dx: -r^3 c / D.
func rmsSlope[T Float](r T, c float64, d int) T {
	s := float64(r)
	return T(-s * s * s * c / float64(d))
}
