package native

import (
	"testing"

	"github.com/seafan/seafan/ops/optest"
)

// BenchmarkRowOps runs the row ops at the sizes of one layer of the demo model:
// 1024 tokens, width 256, inner width 1024, 256 logits. GB/s counts every
// operand once. go test runs the tests of the ops first and times nothing when
// one fails.
func BenchmarkRowOps(b *testing.B) {
	const rows, d, ffn, params = 1024, 256, 1024, 1 << 22
	in := func(n int) []float32 { return optest.Cast[float32](optest.Normals("bench", n, 1)) }
	x, w, dw, rstd, mean := in(rows*ffn), in(d), make([]float32, d), make([]float32, rows), make([]float32, rows)
	y, z, u := make([]float32, rows*ffn), make([]float32, rows*ffn), in(rows*ffn)
	labels := optest.Ints("labels", rows, d)
	p, m, v, g := in(params), make([]float32, params), make([]float32, params), in(params)
	one := []float32{1}
	for _, c := range []struct {
		name  string
		words int // float32 words moved
		run   func()
	}{
		{"RMSNorm", 2 * rows * d, func() { RMSNorm(y, rstd, x, w, rows, d, 1e-5) }},
		{"RMSNormGrad", 3 * rows * d, func() { RMSNormGrad(y, dw, u, x, w, rstd, rows, d) }},
		{"LayerNorm", 2 * rows * d, func() { LayerNorm(y, mean, rstd, x, w, w, rows, d, 1e-5) }},
		{"LayerNormGrad", 3 * rows * d, func() { LayerNormGrad(y, dw, mean[:d], u, x, w, mean, rstd, rows, d) }},
		{"SwiGLU", 3 * rows * ffn, func() { SwiGLU(y, x, u, rows*ffn) }},
		{"SwiGLUGrad", 5 * rows * ffn, func() { SwiGLUGrad(y, z, u, x, u, rows*ffn) }},
		{"GeGLUTanh", 3 * rows * ffn, func() { GeGLU(y, x, u, rows*ffn, true) }},
		{"GeGLUTanhGrad", 5 * rows * ffn, func() { GeGLUGrad(y, z, u, x, u, rows*ffn, true) }},
		{"Add", 3 * rows * d, func() { Add(y, x, u, rows*d) }},
		{"Embedding", 2 * rows * d, func() { must(Embedding(y, x, labels, rows, d, d)) }},
		{"EmbeddingGrad", 2 * rows * d, func() { must(EmbeddingGrad(y, x, labels, rows, d, d)) }},
		{"CrossEntropy", rows * d, func() {
			_, err := CrossEntropy(mean, rstd, x, labels, rows, d, -1, 0)
			must(err)
		}},
		{"CrossEntropyGrad", 2 * rows * d, func() { must(CrossEntropyGrad(y, one, x, rstd, labels, rows, d, -1, 0)) }},
		{"LinearGradBias", rows * ffn, func() { LinearGradBias(y, x, rows, ffn) }},
		{"Dropout", 2 * rows * d, func() { Dropout(y, x, rows*d, 0.1, 1, 2) }},
		{"AdamW", 7 * params, func() {
			AdamW(p, m, v, g, params, AdamWStep{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Step: 9, GradScale: 1})
		}},
		{"SumSquares", params, func() { SumSquares(g, params) }},
		{"Accumulate", 3 * params, func() { Accumulate(m, g, params, 1) }},
	} {
		b.Run(GemmKernel()+"/"+c.name, func(b *testing.B) {
			s := fastest(b, c.run)
			b.ReportMetric(4*float64(c.words)/s/1e9, "GB/s")
		})
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
