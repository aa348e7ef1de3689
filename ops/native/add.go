package native

// This file is the sum of two tensors and the accumulation of gradients.

// Add computes y[n] = a + b; y may be a or b. The gradient of both is dy.
func Add[T Float](y, a, b []T, n int) {
	k := pick[addScaledArgs[T]](addScaled32, addScaled64)
	k.launch(ceilDiv(n, unitElements), addScaledArgs[T]{y, a, b, n, 1})
}

// Accumulate adds s g[n] to acc[n].
func Accumulate[T Float](acc, g []T, n int, s float64) {
	k := pick[addScaledArgs[T]](addScaled32, addScaled64)
	k.launch(ceilDiv(n, unitElements), addScaledArgs[T]{acc, acc, g, n, T(s)})
}

type addScaledArgs[T Float] struct {
	y, a, b []T
	n       int
	s       T
}

var (
	addScaled32 = newKernel(addScaledUnit[float32])
	addScaled64 = newKernel(addScaledUnit[float64])
)

func addScaledUnit[T Float](a *addScaledArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	addScaled(a.y[from:to], a.a[from:to], a.b[from:to], a.s)
}
