package native

// This file is y = mul x + add with constants.

// Affine computes y[n] = mul x + add; y may be x. The gradient of x is mul dy.
func Affine[T Float](y, x []T, n int, mul, add float64) {
	k := pick[affineArgs[T]](affine32, affine64)
	k.launch(ceilDiv(n, unitElements), affineArgs[T]{y, x, n, T(mul), T(add)})
}

type affineArgs[T Float] struct {
	y, x     []T
	n        int
	mul, add T
}

var (
	affine32 = newKernel(affineUnit[float32])
	affine64 = newKernel(affineUnit[float64])
)

func affineUnit[T Float](a *affineArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	y, mul, add := a.y[from:to], a.mul, a.add
	for i, x := range a.x[from:to] {
		y[i] = T(mul*x) + add // the product is rounded: no fused multiply-add on some machines
	}
}
