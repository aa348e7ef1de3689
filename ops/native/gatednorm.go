// RMS normalisation with a sigmoid gate behind it: the output norm of KDA.

package native

import "math"

type gatedNormArgs[T Float] struct {
	y, rstd, x, gate, w []T
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
// with w [d] shared by the rows: the norm first, the gate last. rstd [rows] is
// kept for the gradient (nil where not wanted).
func GatedRMSNorm[T Float](y, rstd, x, gate, w []T, rows, d int, eps float64) {
	units := (rows + normRows - 1) / normRows
	switch a := any(gatedNormArgs[T]{y: y, rstd: rstd, x: x, gate: gate, w: w, rows: rows, d: d, eps: eps}).(type) {
	case gatedNormArgs[float32]:
		gatedNorm32.launch(units, a)
	case gatedNormArgs[float64]:
		gatedNorm64.launch(units, a)
	}
}

func gatedNormUnit[T Float](a *gatedNormArgs[T], i int) {
	for r := i * normRows; r < min((i+1)*normRows, a.rows); r++ {
		x, y, gate := a.x[r*a.d:][:a.d], a.y[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		rstd := 1 / math.Sqrt(squares(x)/float64(a.d)+a.eps)
		for j, v := range x {
			y[j] = sigmoid(gate[j]) * T(float64(a.w[j])*float64(v)*rstd)
		}
		if a.rstd != nil {
			a.rstd[r] = T(rstd)
		}
	}
}

// GatedRMSNormGrad writes dx [rows,d], dgate [rows,d] and dw [d] from dy, the
// inputs and the rstd of GatedRMSNorm. With n = x rstd and s = sigmoid(gate):
//
//	dgate = dy w n s (1 - s),  dw = sum dy s n,  h = dy s w,
//	dx = rstd (h - n mean(h n))
func GatedRMSNormGrad[T Float](dx, dgate, dw, dy, x, gate, w, rstd []T, rows, d int) {
	units := (rows + gatedNormRows - 1) / gatedNormRows
	part := takeScratch[T](units * d)
	switch a := any(gatedNormArgs[T]{dx: dx, dgate: dgate, part: part, dy: dy, x: x, gate: gate, w: w, rstd: rstd, rows: rows, d: d}).(type) {
	case gatedNormArgs[float32]:
		gatedNormGrad32.launch(units, a)
	case gatedNormArgs[float64]:
		gatedNormGrad64.launch(units, a)
	}
	clear(dw[:d])
	for u := range units {
		for j, v := range part[u*d:][:d] {
			dw[j] += v
		}
	}
	giveScratch(part)
}

func gatedNormGradUnit[T Float](a *gatedNormArgs[T], i int) {
	dw := a.part[i*a.d:][:a.d]
	clear(dw)
	for r := i * gatedNormRows; r < min((i+1)*gatedNormRows, a.rows); r++ {
		x, dy, gate := a.x[r*a.d:][:a.d], a.dy[r*a.d:][:a.d], a.gate[r*a.d:][:a.d]
		dx, dgate := a.dx[r*a.d:][:a.d], a.dgate[r*a.d:][:a.d]
		rstd := a.rstd[r]
		dot := 0.0
		for j, v := range x {
			s := sigmoid(gate[j])
			n, t := v*rstd, dy[j]*s
			dw[j] += t * n
			h := t * a.w[j]
			dgate[j] = h * n * (1 - s)
			dx[j] = h
			dot += float64(h) * float64(n)
		}
		mean := T(dot / float64(a.d))
		for j, v := range x {
			dx[j] = rstd * (dx[j] - v*rstd*mean)
		}
	}
}
