package native

// This file is the product of two values, element by element.

// Mul computes z[n] = x y; z may be x or y. The gradients are dz y and dz x.
func Mul[T Float](z, x, y []T, n int) {
	k := pick[mulArgs[T]](mul32, mul64)
	k.launch(ceilDiv(n, unitElements), mulArgs[T]{z, x, y, n})
}

type mulArgs[T Float] struct {
	z, x, y []T
	n       int
}

var (
	mul32 = newKernel(mulUnit[float32])
	mul64 = newKernel(mulUnit[float64])
)

func mulUnit[T Float](a *mulArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	z, x, y := a.z[from:to], a.x[from:to], a.y[from:to]
	for i := range z {
		z[i] = x[i] * y[i]
	}
}
