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

// MulRows computes z[r,d] = x[r,d] y[r]; z may be x.
func MulRows[T Float](z, x, y []T, rows, d int) {
	pick[mulRowsArgs[T]](mulRows32, mulRows64).launch(ceilDiv(rows, normRows), mulRowsArgs[T]{z, x, y, rows, d})
}

// MulRowsGrad computes the gradient of y of MulRows, dy[r] = sum over d of dz x.
func MulRowsGrad[T Float](dy, dz, x []T, rows, d int) {
	pick[mulRowsArgs[T]](mulRowsGrad32, mulRowsGrad64).launch(ceilDiv(rows, normRows), mulRowsArgs[T]{dz, x, dy, rows, d})
}

type mulRowsArgs[T Float] struct {
	z, x, y []T
	rows, d int
}

var (
	mulRows32     = newKernel(mulRowsUnit[float32])
	mulRows64     = newKernel(mulRowsUnit[float64])
	mulRowsGrad32 = newKernel(mulRowsGradUnit[float32])
	mulRowsGrad64 = newKernel(mulRowsGradUnit[float64])
)

func mulRowsUnit[T Float](a *mulRowsArgs[T], unit int) {
	for r := unit * normRows; r < min((unit+1)*normRows, a.rows); r++ {
		y, z := a.y[r], a.z[r*a.d:][:a.d]
		for i, x := range a.x[r*a.d:][:a.d] {
			z[i] = x * y
		}
	}
}

func mulRowsGradUnit[T Float](a *mulRowsArgs[T], unit int) {
	for r := unit * normRows; r < min((unit+1)*normRows, a.rows); r++ {
		a.y[r] = T(sumMul(a.z[r*a.d:][:a.d], a.x[r*a.d:][:a.d]))
	}
}
