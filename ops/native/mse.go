package native

// This file is the mean of squared differences, as a loss.

// MeanSquaredError computes loss[1], the mean of (x - y)^2 over x[n] and y[n]; 0 of
// none. Differences are rounded as T, their squares are summed in float64.
func MeanSquaredError[T Float](loss, x, y []T, n int) {
	blocks := ceilDiv(n, unitElements)
	sums := scratch64.take(blocks)
	k := pick[mseArgs[T]](mse32, mse64)
	k.launch(blocks, mseArgs[T]{sums: sums, x: x, y: y, n: n})
	total := 0.0
	for _, s := range sums {
		total += s
	}
	scratch64.give(sums)
	loss[0] = T(total / float64(max(n, 1)))
}

// MeanSquaredErrorGrad computes dx[n] = 2 dloss/n (x - y) for dloss[1]; the gradient
// of y is its negative. dx may be x or y.
func MeanSquaredErrorGrad[T Float](dx, dloss, x, y []T, n int) {
	k := pick[mseArgs[T]](mseGrad32, mseGrad64)
	k.launch(ceilDiv(n, unitElements), mseArgs[T]{dx: dx, x: x, y: y, n: n, scale: T(2 * float64(dloss[0]) / float64(max(n, 1)))})
}

type mseArgs[T Float] struct {
	dx, x, y []T
	n        int
	scale    T
	sums     []float64 // of each unit
}

var (
	mse32     = newKernel(mseUnit[float32])
	mse64     = newKernel(mseUnit[float64])
	mseGrad32 = newKernel(mseGradUnit[float32])
	mseGrad64 = newKernel(mseGradUnit[float64])
)

func mseUnit[T Float](a *mseArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	const piece = 1 << 10
	d, sum := takeScratch[T](min(to-from, piece)), 0.0
	for ; from < to; from += piece {
		x := a.x[from:min(from+piece, to)]
		y := a.y[from:][:len(x)]
		for i := range x {
			d[i] = x[i] - y[i]
		}
		sum += sumMul(d[:len(x)], d)
	}
	giveScratch(d)
	a.sums[unit] = sum
}

func mseGradUnit[T Float](a *mseArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	dx, x, y := a.dx[from:to], a.x[from:to], a.y[from:to]
	for i := range dx {
		dx[i] = a.scale * (x[i] - y[i])
	}
}
