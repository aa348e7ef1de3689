package main

import (
	"context"
	"iter"
	"math/rand/v2"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops/native"
)

// This file measures ours: the steps of the demo's model and the two bodies
// that decide them.

// measure adds one round; beside are our steps beside that in f32.
func measure(ctx context.Context, text string, t times, beside turns) error {
	products(t)
	attention(t)
	return steps(ctx, text, t, beside)
}

// products are square ones: float32; float32 operands multiplied as bf16, which
// are rounded in that time; with B stored as bf16; and with both, as the peer's
// are, whose result is bf16 too.
func products(t times) {
	const n = 1024
	a, b, c := normals(n*n), normals(n*n), make([]float32, n*n)
	t.add("sgemm 1024^3", fastest(20, func() { native.Gemm(false, false, n, n, n, 1, a, n, b, n, 0, c, n) }))
	if native.GemmKernel() == "amx" {
		t.add("sgemm 1024^3 by bf16x6", fastest(20, func() { native.BF16x6LinearGradInput(c, a, b, n, n, n) }))
	}
	t.add("bf16 gemm 1024^3", fastest(20, func() { native.BF16LinearGradInput(c, a, b, n, n, n) }))
	sa, sb := make([]uint16, n*n), make([]uint16, n*n)
	for i := range sa {
		sa[i], sb[i] = uint16(dtype.ToBF16(a[i])), uint16(dtype.ToBF16(b[i]))
	}
	t.add("bf16 gemm 1024^3, B stored", fastest(20, func() { native.BF16LinearStoredGradInput(c, a, sb, n, n, n) }))
	t.add("bf16 gemm 1024^3, both stored", fastest(20, func() { native.BF16MatMul(c, sa, sb, n, n, n, false, false) }))
}

// attention is causal, B1 H8 T2048 D64.
func attention(t times) {
	const l, h, d = 2048, 8, 64
	const n = l * h * d
	buffer := func() []float32 { return make([]float32, n) }
	a := native.AttentionGradArgs[float32]{
		AttentionArgs: native.AttentionArgs[float32]{
			Out: buffer(), LSE: make([]float32, h*l), Q: normals(n), K: normals(n), V: normals(n),
			B: 1, Lq: l, Lk: l, Hq: h, Hkv: h, D: d, Dv: d, Causal: true,
		},
		DQ: buffer(), DK: buffer(), DV: buffer(), DOut: normals(n),
	}
	for _, kind := range []string{"", " by bf16x6"} {
		a.BF16x6 = kind != ""
		if a.BF16x6 && native.GemmKernel() != "amx" {
			break
		}
		t.add("attention forward"+kind, fastest(10, func() { native.Attention(a.AttentionArgs) }))
		t.add("attention forward and backward"+kind, fastest(10, func() {
			native.Attention(a.AttentionArgs)
			native.AttentionGrad(a)
		}))
	}
}

func normals(n int) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// steps trains the demo's model for a moment in each way, a step of each in turns,
// and adds every step after the first five, as cpu_train.py does.
func steps(ctx context.Context, text string, t times, beside turns) error {
	var works []string
	var next []func() (float64, error, bool)
	for _, x := range []struct {
		work    string
		compute train.Compute
		fp8     bool
	}{{"step f32", train.F32, false}, {"step f32 by bf16x6", train.BF16x6, false}, {"step bf16", train.BF16, false}, {"step fp8", train.BF16, true}} { // what FP8 leaves multiplies in bf16
		if x.compute == train.BF16x6 && native.GemmKernel() != "amx" {
			continue // it is f32
		}
		n, stop := iter.Pull2(stepsOf(ctx, text, x.compute, x.fp8))
		defer stop()
		works, next = append(works, x.work), append(next, n)
	}
	for {
		var f32 float64
		for i, work := range works {
			seconds, err, ok := next[i]()
			if err != nil || !ok {
				return err
			}
			t.add(work, seconds)
			if i == 0 {
				f32 = seconds
			} else {
				beside.add(work, seconds, f32)
			}
		}
	}
}

// stepsOf are the seconds of the steps of a training.
func stepsOf(ctx context.Context, text string, compute train.Compute, fp8 bool) iter.Seq2[float64, error] {
	return func(yield func(float64, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		stopped := false
		err := trainFor(ctx, text, compute, fp8, func(seconds float64) {
			if !stopped && !yield(seconds, nil) {
				stopped = true
				stop()
			}
		})
		if err != nil && !stopped {
			yield(0, err)
		}
	}
}

// trainFor trains and reports the seconds of every step after the first five.
func trainFor(ctx context.Context, text string, compute train.Compute, fp8 bool, each func(seconds float64)) error {
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 256, FFN: 1024, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 64,
		Context: 128, NormEps: 1e-5, RopeTheta: 1e4,
	})
	if err != nil {
		return err
	}
	if err := m.Init(0); err != nil {
		return err
	}
	tokens, err := train.Open(train.OpenOptions{}, text)
	if err != nil {
		return err
	}
	defer tokens.Close()
	o := train.Defaults()
	o.Steps, o.Compute, o.EvalEvery, o.EvalRows = 25, compute, 0, 1
	data, err := train.NewWindows(tokens, 256, train.WindowOptions{Context: o.Context, Order: train.Random, Validation: 0.1})
	if err != nil {
		return err
	}
	var trained train.Model = m
	if fp8 {
		trained = autocast.Train(m, autocast.Options{})
	}
	t, err := train.New(trained, data, o, train.Each(func(x train.Metric) {
		if x.Step > 5 {
			each(x.StepMS / 1e3)
		}
	}))
	if err != nil {
		return err
	}
	_, err = t.Run(ctx)
	return err
}
