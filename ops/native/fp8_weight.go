package native

// This file is the linear whose weight is stored in 8 bits and whose
// activations are not.

// FP8WeightLinear computes y[M,N] = x[M,K] w[N,K]^T + b[N] with w the values of
// its codes times their steps, each product rounded once; b may be nil. It has
// the bits of Linear on the widened weight, which in float32 is never stored as a
// whole: every code is read once and nothing else of w is.
func FP8WeightLinear[T Float](y, x []T, w FP8Matrix, b []T, m, n, k int) {
	if m <= 0 || n <= 0 {
		return
	}
	if y, ok := any(y).([]float32); ok {
		a := codedArgs{y: y, x: any(x).([]float32), w: w.Codes, fp8: w, bias: any(b).([]float32), coding: codedFP8, m: m, n: n, k: k}
		a.linear()
		return
	}
	wide := takeScratch[T](n * k)
	FP8Dequantize(wide, w.Codes, w.Steps, w.FP8Blocks, w.Format)
	Linear(y, x, wide[:n*k], b, m, n, k)
	giveScratch(wide)
}
