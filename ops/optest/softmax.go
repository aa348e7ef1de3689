package optest

import "math"

// Softmax returns p = exp(x) / sum(exp(x)) and lse = log(sum(exp(x))) of one
// row. Without elements, or with all of them -Inf, lse is -Inf.
func Softmax(x []float64) (p []float64, lse float64) {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}
	p, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		p[i] = math.Exp(v - top)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	if math.IsInf(top, -1) {
		return p, top
	}
	return p, top + math.Log(sum)
}
