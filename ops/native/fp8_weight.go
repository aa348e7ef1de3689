package native

// This file is the linear whose weight is stored in 8 bits and whose
// activations are not.

// FP8WeightLinear computes y[M,N] = x[M,K] w[N,K]^T + b[N] with w the values of
// its codes times their steps, each product rounded once; b may be nil. It has
// the bits of Linear on the widened weight, which is never stored as a whole
// where M is small: then every code is read once and nothing else of w is.
func FP8WeightLinear[T Float](y, x []T, w FP8Matrix, b []T, m, n, k int) {
	if m <= 0 || n <= 0 {
		return
	}
	if m <= fp8WeightRows {
		pick[fp8WeightArgs[T]](fp8Weight32, fp8Weight64).launch(ceilDiv(n, fp8WeightCols), fp8WeightArgs[T]{y, x, b, w, m, n, k})
		return
	}
	wide := takeScratch[T](n * k)
	FP8Dequantize(wide, w.Codes, w.Steps, w.FP8Blocks, w.Format)
	Linear(y, x, wide[:n*k], b, m, n, k)
	giveScratch(wide)
}

const (
	fp8WeightRows = 32 // rows of x up to which a strip of w is widened for them alone
	fp8WeightCols = 32 // rows of w in a strip
)

type fp8WeightArgs[T Float] struct {
	y, x, b []T
	w       FP8Matrix
	m, n, k int
}

var (
	fp8Weight32 = newKernel(fp8WeightUnit[float32])
	fp8Weight64 = newKernel(fp8WeightUnit[float64])
)

func fp8WeightUnit[T Float](g *fp8WeightArgs[T], i int) {
	lo := i * fp8WeightCols
	hi := min(lo+fp8WeightCols, g.n)
	wide := takeScratch[T]((hi - lo) * g.k)
	g.w.segments(lo, hi, func(at, n, step int) {
		fp8DecodeTimes(wide[at-lo*g.k:][:n], g.w.Codes[at:][:n], g.w.Steps[step], g.w.Format)
	})
	beta := T(0)
	if g.b != nil {
		beta = 1
		for r := range g.m {
			copy(g.y[r*g.n+lo:][:hi-lo], g.b[lo:hi])
		}
	}
	gemmSerial(false, true, g.m, hi-lo, g.k, 1, g.x, g.k, wide, g.k, beta, g.y[lo:], g.n)
	giveScratch(wide)
}
