// RMS normalisation with a sigmoid gate behind it: the output norm of KDA.

package native

import "math"

type gatedNormArgs[T Float] struct {
	y, x, gate, w       []T
	dx, dgate, part, dy []T
	rows, d             int
	eps                 float64
}

// gatedNormRows is how many rows one partial sum of dw takes.
const gatedNormRows = 256

var (
	gatedNorm32     = newKernel(gatedNormUnit[float32])
	gatedNorm64     = newKernel(gatedNormUnit[float64])
	gatedNormGrad32 = newKernel(gatedNormGradUnit[float32])
	gatedNormGrad64 = newKernel(gatedNormGradUnit[float64])
)

// GatedRMSNorm writes, for every row of x [rows,d],
//
//	y = sigmoid(gate) w x rstd,  rstd = 1 / sqrt(mean x^2 + eps)
//
// with w [d] shared by the rows: the norm first, the gate last.
func GatedRMSNorm[T Float](y, x, gate, w []T, rows, d int, eps float64) {
	units := ceilDiv(rows, normRows)
	pick[gatedNormArgs[T]](gatedNorm32, gatedNorm64).launch(units, gatedNormArgs[T]{
		y: y, x: x, gate: gate, w: w, rows: rows, d: d, eps: eps})
}

func gatedNormUnit[T Float](a *gatedNormArgs[T], i int) {
	e := takeScratch[T](a.d)
	for r := i * normRows; r < min((i+1)*normRows, a.rows); r++ {
		x, y, gate := a.x[r*a.d:][:a.d], a.y[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		rstd := T(1 / math.Sqrt(sumMul(x, x)/float64(a.d)+a.eps))
		expNeg(e, gate)
		scaleMul(y, x, a.w, rstd)
		for j, t := range e {
			s, _ := sigmoids(t)
			y[j] *= s
		}
	}
	giveScratch(e)
}

// GatedRMSNormGrad writes dx [rows,d], dgate [rows,d] and dw [d] from dy and the
// inputs of GatedRMSNorm. With n = x rstd and s = sigmoid(gate):
//
//	dgate = dy w n s (1 - s),  dw = sum dy s n,  h = dy s w,
//	dx = rstd (h - n mean(h n))
func GatedRMSNormGrad[T Float](dx, dgate, dw, dy, x, gate, w []T, rows, d int, eps float64) {
	units := ceilDiv(rows, gatedNormRows)
	part := takeScratch[T](units * d)
	pick[gatedNormArgs[T]](gatedNormGrad32, gatedNormGrad64).launch(units, gatedNormArgs[T]{
		dx: dx, dgate: dgate, part: part, dy: dy, x: x, gate: gate, w: w, rows: rows, d: d, eps: eps})
	addRows(dw, part, units, d)
	giveScratch(part)
}

func gatedNormGradUnit[T Float](a *gatedNormArgs[T], i int) {
	dw := a.part[i*a.d:][:a.d]
	clear(dw)
	buf := takeScratch[T](2 * a.d)
	e, h := buf[:a.d], buf[a.d:]
	for r := i * gatedNormRows; r < min((i+1)*gatedNormRows, a.rows); r++ {
		x, dy, gate := a.x[r*a.d:][:a.d], a.dy[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		dx, dgate := a.dx[r*a.d:][:a.d], a.dgate[r*a.d:][:a.d]
		square := sumMul(x, x)/float64(a.d) + a.eps
		rstd := T(1 / math.Sqrt(square))
		expNeg(e, gate)
		for j, v := range x {
			s, rest := sigmoids(e[j])
			n, t := v*rstd, dy[j]*s
			h[j] = t * a.w[j]
			dw[j] += t * n
			dgate[j] = h[j] * n * rest
		}
		// In float64: the difference cancels where h lies along x.
		along := sumMul(h, x) / float64(a.d) / square
		for j, v := range x {
			dx[j] = T((float64(h[j]) - float64(v)*along) * float64(rstd))
		}
	}
	giveScratch(buf)
}
