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
	for r := i * normRows; r < min((i+1)*normRows, a.rows); r++ {
		x, y, gate := a.x[r*a.d:][:a.d], a.y[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		rstd := 1 / math.Sqrt(squares(x)/float64(a.d)+a.eps)
		for j, v := range x {
			y[j] = sigmoid(gate[j]) * T(float64(a.w[j])*float64(v)*rstd)
		}
	}
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
	for r := i * gatedNormRows; r < min((i+1)*gatedNormRows, a.rows); r++ {
		x, dy, gate := a.x[r*a.d:][:a.d], a.dy[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		dx, dgate := a.dx[r*a.d:][:a.d], a.dgate[r*a.d:][:a.d]
		rstd := 1 / math.Sqrt(squares(x)/float64(a.d)+a.eps)
		dot := 0.0
		for j, v := range x {
			s := sigmoid(float64(gate[j]))
			n, t := float64(v)*rstd, float64(dy[j])*s
			h := t * float64(a.w[j])
			dw[j] += T(t * n)
			dgate[j] = T(h * n * (1 - s))
			dot += h * n
		}
		mean := dot / float64(a.d)
		for j, v := range x {
			h := float64(dy[j]) * sigmoid(float64(gate[j])) * float64(a.w[j])
			dx[j] = T(rstd * (h - float64(v)*rstd*mean))
		}
	}
}
