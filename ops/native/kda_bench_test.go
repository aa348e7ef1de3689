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
