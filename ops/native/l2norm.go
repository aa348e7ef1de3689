// L2 normalisation of rows, as KDA applies it to its queries and keys.

package native

import "math"

// normRows is how many rows one unit of a row norm takes.
const normRows = 64

type l2NormArgs[T Float] struct {
	y, x, dx, dy []T
	rows, d      int
	eps          float64
}

var (
	l2Norm32     = newKernel(l2NormUnit[float32])
	l2Norm64     = newKernel(l2NormUnit[float64])
	l2NormGrad32 = newKernel(l2NormGradUnit[float32])
	l2NormGrad64 = newKernel(l2NormGradUnit[float64])
)

// L2Norm writes y = x / sqrt(sum x^2 + eps) for every row of x [rows,d]. eps is
// inside the root and added to the sum: a zero row gives zeros.
func L2Norm[T Float](y, x []T, rows, d int, eps float64) {
	units := ceilDiv(rows, normRows)
	pick[l2NormArgs[T]](l2Norm32, l2Norm64).launch(units, l2NormArgs[T]{y: y, x: x, rows: rows, d: d, eps: eps})
}

func l2NormUnit[T Float](a *l2NormArgs[T], i int) {
	for r := i * normRows; r < min((i+1)*normRows, a.rows); r++ {
		x, y := a.x[r*a.d:][:a.d], a.y[r*a.d:][:a.d]
		rstd := 1 / math.Sqrt(sumMul(x, x)+a.eps)
		for j, v := range x {
			y[j] = T(float64(v) * rstd)
		}
	}
}

// L2NormGrad writes dx = r (dy - y (y . dy)) with r = 1 / sqrt(sum x^2 + eps) and
// y = x r, which is exact, eps included. r and y are recomputed in float64: the
// difference cancels where dy lies along x.
func L2NormGrad[T Float](dx, dy, x []T, rows, d int, eps float64) {
	units := ceilDiv(rows, normRows)
	pick[l2NormArgs[T]](l2NormGrad32, l2NormGrad64).launch(units, l2NormArgs[T]{dx: dx, dy: dy, x: x, rows: rows, d: d, eps: eps})
}

func l2NormGradUnit[T Float](a *l2NormArgs[T], i int) {
	for r := i * normRows; r < min((i+1)*normRows, a.rows); r++ {
		dx, dy, x := a.dx[r*a.d:][:a.d], a.dy[r*a.d:][:a.d], a.x[r*a.d:][:a.d]
		rstd := 1 / math.Sqrt(sumMul(x, x)+a.eps)
		along := sumMul(dy, x) * rstd * rstd
		for j, v := range dy {
			dx[j] = T(rstd * (float64(v) - float64(x[j])*along))
		}
	}
}
