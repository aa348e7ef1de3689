package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

type kdaBench struct {
	k                KDA[float32]
	o, st, states, d []float32
	g                KDAGrads[float32]
}

func newKDABench(t, h, d, chunk int) *kdaBench {
	k := kdaCall[float32](kdaCase{cu: []int32{0, int32(t)}, h: h, hv: h, dk: d, dv: d, decay: .1, beta: 1})
	k.Chunk = chunk
	return &kdaBench{k: k, o: make([]float32, len(k.V)), st: make([]float32, len(k.S0)), d: normals[float32](rand.New(rand.NewPCG(1, 1)), len(k.V)),
		states: make([]float32, KDACheckpoints(1, t, chunk)*h*d*d), g: kdaGradBuffers(k)}
}

func (b *kdaBench) recurrent() {
	KDARecurrent(b.o, b.st, b.states, b.k)
	KDARecurrentGrad(b.g, b.d, nil, b.states, b.k)
}

func (b *kdaBench) chunked() {
	KDAChunked(b.o, b.st, b.states, b.k)
	KDAChunkedGrad(b.g, b.d, nil, b.states, b.k)
}

// BenchmarkKDAChunkedAndRecurrent runs forward and gradient of both forms in
// turn and reports the best time of each and their ratio (the goal: at least 5).
func BenchmarkKDAChunkedAndRecurrent(b *testing.B) {
	x := newKDABench(2048, 4, 64, 64)
	best := [2]float64{math.Inf(1), math.Inf(1)}
	for b.Loop() {
		for i, f := range []func(){x.recurrent, x.chunked} {
			start := time.Now()
			f()
			best[i] = min(best[i], time.Since(start).Seconds())
		}
	}
	b.ReportMetric(best[0]*1e3, "recurrent-ms")
	b.ReportMetric(best[1]*1e3, "chunked-ms")
	b.ReportMetric(best[0]/best[1], "ratio")
}

// BenchmarkKDA reports the best time of forward and of gradient.
func BenchmarkKDA(b *testing.B) {
	for _, c := range []struct{ t, h, d, chunk int }{
		{2048, 4, 64, 16}, {2048, 4, 64, 32}, {2048, 4, 64, 64},
		{4096, 8, 128, 16}, {4096, 8, 128, 32}, {4096, 8, 128, 64}, {4096, 8, 128, 128},
	} {
		b.Run(fmt.Sprintf("T%d_H%d_D%d_C%d", c.t, c.h, c.d, c.chunk), func(b *testing.B) {
			x := newKDABench(c.t, c.h, c.d, c.chunk)
			forward, gradient := math.Inf(1), math.Inf(1)
			for b.Loop() {
				start := time.Now()
				KDAChunked(x.o, x.st, x.states, x.k)
				mid := time.Now()
				KDAChunkedGrad(x.g, x.d, nil, x.states, x.k)
				forward, gradient = min(forward, mid.Sub(start).Seconds()), min(gradient, time.Since(mid).Seconds())
			}
			b.ReportMetric(forward*1e3, "forward-ms")
			b.ReportMetric(gradient*1e3, "gradient-ms")
		})
	}
}

// BenchmarkKDAParts times the pieces around the core at T 4096, 8 heads of 128.
func BenchmarkKDAParts(b *testing.B) {
	const n, h, d = 4096, 8, 128
	r := rand.New(rand.NewPCG(1, 1))
	x, y, z := normals[float32](r, n*h*d), make([]float32, n*h*d), make([]float32, n*h*d)
	p, dp := normals[float32](r, h*d*4), make([]float32, h*d*4)
	s := ShortConvShape{Seqs: 1, Tokens: n, Channels: h * d, Width: 4}
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"conv", func() { ShortConv(y, nil, x, p, nil, s) }},
		{"conv_gradient", func() { ShortConvGrad(y, dp, nil, x, nil, x, p, nil, s) }},
		{"gate", func() { KDAGate(y, x, p[:h], p[:h*d], n, h, d, 0) }},
		{"gate_gradient", func() { KDAGateGrad(y, dp[:h], dp[:h*d], x, x, p, p, n, h, d, 0) }},
		{"l2norm", func() { L2Norm(y, x, n*h, d, 1e-6) }},
		{"l2norm_gradient", func() { L2NormGrad(z, x, y, n*h, d, 1e-6) }},
		{"gated_norm", func() { GatedRMSNorm(y, x, x, p, n*h, d, 1e-6) }},
		{"gated_norm_gradient", func() { GatedRMSNormGrad(y, z, dp, x, x, x, p, n*h, d, 1e-6) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			best := math.Inf(1)
			for b.Loop() {
				start := time.Now()
				c.run()
				best = min(best, time.Since(start).Seconds())
			}
			b.ReportMetric(best*1e3, "best-ms")
		})
	}
}
