package native

// This file is the linear whose weight is stored in 8 bits and whose
// activations are not.

// FP8WeightLinear computes y[M,N] = x[M,K] w[N,K]^T + b[N] with w the values of
// its codes times their steps, each product rounded once; b may be nil. It has
// the bits of Linear on the widened weight, which in float32 is never stored as a
// whole.
func FP8WeightLinear[T Float](y, x []T, w FP8Matrix, b []T, m, n, k int) {
	if m <= 0 || n <= 0 {
		return
	}
	if y, ok := any(y).([]float32); ok {
		FP8WeightLinears(any(x).([]float32), m, k, []FP8LinearOf{{Y: y, W: w, B: any(b).([]float32)}})
		return
	}
	wide := takeScratch[T](n * k)
	FP8Dequantize(wide, w.Codes, w.Steps, w.FP8Blocks, w.Format)
	Linear(y, x, wide[:n*k], b, m, n, k)
	giveScratch(wide)
}

// FP8LinearOf is one of several linears of one x: y[M,N] = x w[N,K]^T + b[N].
type FP8LinearOf struct {
	Y []float32
	W FP8Matrix
	B []float32
}

// FP8WeightLinears is FP8WeightLinear of x[M,K] for each of ls, few rows in one
// launch.
func FP8WeightLinears(x []float32, m, k int, ls []FP8LinearOf) {
	var g streamArgs
	for i := range ls {
		l := &ls[i]
		g.add(&codedArgs{y: l.Y, x: x, w: l.W.Codes, fp8: l.W, bias: l.B, coding: codedFP8, m: m, n: l.W.Rows, k: k})
	}
	g.launch()
}
