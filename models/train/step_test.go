package train

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
)

// pairRows are two rows of 101 tokens over a vocabulary of 2: 11 labels of the
// first count, with a loss of 2 each, and all 101 of the second, with a loss
// of 1.
func pairRows() *rows {
	d := &rows{context: 101, digest: "pair"}
	for r, n := range []int{11, 101} {
		tok, lab := make([]int32, 101), make([]int32, 101)
		for i := range tok {
			tok[i], lab[i] = int32(r), 1
			if i >= n {
				lab[i] = ignored
			}
		}
		d.tokens, d.labels = append(d.tokens, tok), append(d.labels, lab)
	}
	return d
}

// pairModel gives label 1 the probabilities e^-2 after token 0 and e^-1 after
// token 1.
func pairModel(t *testing.T) *bigram {
	m := newBigram(t, 2)
	clear(graph.Data[float32](m.params.Get("bias").Tensor()))
	for i, nats := range []float64{2, 1} {
		w := graph.Data[float32](m.params.Get("table").Tensor())
		w[2*i], w[2*i+1] = 0, float32(-math.Log(math.Exp(nats)-1))
	}
	return m
}

func testOptions(batch, context int) Options {
	o := Defaults()
	o.Steps, o.Batch, o.Context = 20, batch, context
	o.LR, o.Warmup, o.EvalEvery, o.SaveEvery = 0.05, 4, 5, 3
	return o
}

func TestN01_AccumulationIsWeightedByTokens(t *testing.T) {
	one := func(batch, accumulate int) (Metric, *bigram, [][]float32) {
		m := pairModel(t)
		o := testOptions(batch, 101)
		o.Steps, o.Accumulate = 1, accumulate
		var got Metric
		tr, err := New(m, pairRows(), o, Each(func(x Metric) { got = x }))
		require.NoError(t, err)
		_, err = tr.Run(context.Background())
		require.NoError(t, err)
		if accumulate > 1 {
			for _, g := range tr.adam.sum {
				for i := range g {
					g[i] /= 112
				}
			}
			return got, m, tr.adam.sum
		}
		return got, m, tr.train.grads
	}
	parts, partModel, partGrads := one(1, 2)
	whole, wholeModel, wholeGrads := one(2, 1)
	require.EqualValues(t, 112, parts.Tokens)
	// Two float32 losses, 2 and 1, are rounded to 1e-7 of themselves.
	require.InDelta(t, (11*2.0+101)/112, parts.Loss, 3e-7)
	require.InDelta(t, 1.098214, parts.Loss, 1e-6)
	require.InDelta(t, parts.Loss, whole.Loss, 3e-7)
	require.InEpsilon(t, whole.GradNorm, parts.GradNorm, 1e-6)
	for i := range wholeGrads {
		for j, g := range wholeGrads[i] {
			require.InDelta(t, g, partGrads[i][j], 5e-7) // 8 units roundoff of 1; measured 4
		}
	}
	for name, w := range wholeModel.weights() {
		require.InDeltaSlice(t, w, partModel.weights()[name], 1e-5, name)
	}
}

func TestN02_StepWithoutCountedLabelIsSkipped(t *testing.T) {
	m := newBigram(t, 3)
	d := &rows{context: 2, digest: "d",
		tokens: [][]int32{{0, 1}, {1, 2}, {2, 0}},
		labels: [][]int32{{1, 2}, {ignored, ignored}, {0, 1}}}
	o := testOptions(1, 2)
	o.Steps = 3
	var lines []Metric
	var before, after map[string][]float32
	var moments []float32
	var tr *Trainer
	tr, err := New(m, d, o, Each(func(x Metric) {
		lines = append(lines, x)
		switch x.Step {
		case 1:
			before = m.weights()
			moments = append(moments, tr.adam.v[0]...)
		case 2:
			after = m.weights()
			require.Equal(t, moments, tr.adam.v[0])
		}
	}))
	require.NoError(t, err)
	sum, err := tr.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.True(t, lines[1].Skipped)
	require.Zero(t, lines[1].Loss)
	require.Zero(t, lines[1].GradNorm)
	require.False(t, lines[2].Skipped)
	require.Equal(t, 1, sum.Skipped)
	require.Equal(t, 3, sum.Steps)
	require.EqualValues(t, 4, sum.Tokens)
	require.Equal(t, 2, tr.state.Updates, "a skipped step does not count in the bias correction")
}

// TestUpdateMatchesTheDefinition holds 12 steps of clipping and AdamW against
// the formulas in float64, written for one number at a time.
func TestUpdateMatchesTheDefinition(t *testing.T) {
	for _, clip := range []float64{0, 0.05} {
		m := newBigram(t, 5)
		d := &rows{context: 4, digest: "d", tokens: [][]int32{{0, 1, 2, 3}, {4, 4, 0, 1}, {2, 3, 1, 0}}, labels: [][]int32{{1, 2, 3, 4}, {4, 0, 1, 3}, {3, 1, 0, 2}}}
		o := testOptions(2, 4)
		o.Steps, o.Clip = 12, clip

		type scalar struct{ p, m, v float64 }
		want := map[string][]scalar{}
		for name, w := range m.weights() {
			for _, x := range w {
				want[name] = append(want[name], scalar{p: float64(x)})
			}
		}
		var tr *Trainer
		tr, err := New(m, d, o, Each(func(x Metric) {
			square := 0.0
			for _, g := range tr.train.grads {
				for _, v := range g {
					square += float64(v) * float64(v)
				}
			}
			require.InEpsilon(t, math.Sqrt(square), x.GradNorm, 1e-6)
			factor := 1.0
			if clip > 0 && math.Sqrt(square) > clip {
				factor = clip / math.Sqrt(square)
			}
			for i, p := range tr.adam.params {
				for j, g := range tr.train.grads[i] {
					s, n := &want[p.Name][j], float64(x.Step)
					gc := factor * float64(g)
					s.m = 0.9*s.m + 0.1*gc
					s.v = 0.95*s.v + 0.05*gc*gc
					decay := 0.0
					if p.Name == "table" {
						decay = 0.1
					}
					s.p -= x.LR * decay * s.p
					s.p -= x.LR * (s.m / (1 - math.Pow(0.9, n))) / (math.Sqrt(s.v/(1-math.Pow(0.95, n))) + 1e-8)
				}
			}
		}))
		require.NoError(t, err)
		_, err = tr.Run(context.Background())
		require.NoError(t, err)
		// Twelve float32 roundings of numbers up to 1, and the 1e-6 that the
		// clipping adds to the norm: measured 1.2e-7 and 2.5e-7.
		for name, w := range m.weights() {
			for i, x := range w {
				require.InDelta(t, want[name][i].p, x, 1e-6, "%s[%d], clip %g", name, i, clip)
			}
		}
	}
}

func TestRate(t *testing.T) {
	o := Defaults()
	for _, c := range []struct {
		schedule Schedule
		step     int
		want     float64
	}{
		{Cosine, 0, 1e-5}, {Cosine, 49, 5e-4}, {Cosine, 99, 1e-3}, {Cosine, 100, 1e-3},
		// A third of the way is a cosine of 1/2, half of it 0.
		{Cosine, 400, 1e-4 + 0.75*9e-4}, {Cosine, 550, 5.5e-4}, {Cosine, 700, 1e-4 + 0.25*9e-4}, {Cosine, 1000, 1e-4}, {Cosine, 5000, 1e-4},
		{Linear, 0, 1e-5}, {Linear, 100, 1e-3}, {Linear, 325, 7.75e-4}, {Linear, 1000, 1e-4},
		{Constant, 9, 1e-4}, {Constant, 100, 1e-3}, {Constant, 999, 1e-3},
	} {
		o.Schedule = c.schedule
		require.InEpsilon(t, c.want, o.Rate(c.step), 1e-12, "%s at step %d", c.schedule, c.step)
	}
	o = Options{Steps: 3, LR: 1, Schedule: Cosine}
	require.Equal(t, 1.0, o.Rate(0), "no warm-up")
	o.Warmup = 10
	require.InEpsilon(t, 0.3, o.Rate(2), 1e-12, "a warm-up longer than the run")
}

func TestOptionsAreChecked(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		"train: option steps: must be at least 1, got 0":                                                              func(o *Options) { o.Steps = 0 },
		"train: option batch: must be at least 1, got -1":                                                             func(o *Options) { o.Batch = -1 },
		"train: option batch: must be at most 2^31 tokens a micro-batch, got 1048576":                                 func(o *Options) { o.Batch, o.Context = 1<<20, 1<<20 },
		"train: option context: must be below 2^31, got 1099511627776":                                                func(o *Options) { o.Context = 1 << 40 },
		`train: option schedule: must be cosine, linear or constant, got ""`:                                          func(o *Options) { o.Schedule = "" },
		"train: option context: must be at least 1, got 0":                                                            func(o *Options) { o.Context = 0 },
		"train: option accumulate: must be at least 1, got 0":                                                         func(o *Options) { o.Accumulate = 0 },
		"train: option dropout: must be in [0,1), got 1":                                                              func(o *Options) { o.Dropout = 1 },
		"train: option lr: must be above 0, got NaN":                                                                  func(o *Options) { o.LR = math.NaN() },
		"train: option min_lr: must be a fraction of lr, 0 to 1, got 2":                                               func(o *Options) { o.MinLR = 2 },
		"train: option warmup: must be 0 or more, got -3":                                                             func(o *Options) { o.Warmup = -3 },
		"train: option schedule: must be cosine, linear or constant, got cyclic":                                      func(o *Options) { o.Schedule = "cyclic" },
		"train: option compute: must be f32, bf16 or bf16x6, got f16":                                                 func(o *Options) { o.Compute = "f16" },
		"train: option beta1: must be in [0,1), got 1":                                                                func(o *Options) { o.Beta1 = 1 },
		"train: option beta2: must be in [0,1), got -1":                                                               func(o *Options) { o.Beta2 = -1 },
		"train: option eps: must be above 0, got 0":                                                                   func(o *Options) { o.Eps = 0 },
		"train: option decay: must be 0 or more, got +Inf":                                                            func(o *Options) { o.Decay = math.Inf(1) },
		"train: option clip: must be 0 or more, got -1":                                                               func(o *Options) { o.Clip = -1 },
		"train: option eval_every: must be 0 or more, got -1":                                                         func(o *Options) { o.EvalEvery = -1 },
		"train: option eval_rows: must be 0 or more, got -1":                                                          func(o *Options) { o.EvalRows = -1 },
		"train: option early_stop: must be 0 or more, got -1":                                                         func(o *Options) { o.EarlyStop = -1 },
		"train: option early_stop: must be 0 where eval_every is 0, which evaluates after the last step alone, got 2": func(o *Options) { o.EarlyStop, o.EvalEvery = 2, 0 },
		"train: option early_stop: must be 0 with data that hold out no rows to evaluate, got 2":                      func(o *Options) { o.EarlyStop = 2 },
		"train: option save_every: must be 0 or more, got -1":                                                         func(o *Options) { o.SaveEvery = -1 },
		"train: option keep: must be at least 1, got 0":                                                               func(o *Options) { o.Keep = 0 },
	} {
		o := Defaults()
		change(&o)
		_, err := New(newBigram(t, 2), pairRows(), o)
		require.EqualError(t, err, want)
		var oe *OptionError
		require.ErrorAs(t, err, &oe)
	}
}

func TestN08_OneCallForEveryBatchSize(t *testing.T) {
	m := newBigram(t, 6)
	text := &rows{context: 3, digest: "d"}
	for i := range int32(40) {
		text.tokens = append(text.tokens, []int32{i % 6, (i + 1) % 6, i * i % 6})
		text.labels = append(text.labels, []int32{(i + 1) % 6, i * i % 6, i % 5})
	}
	o := testOptions(32, 3)
	tr, err := New(m, text, o)
	require.NoError(t, err)
	_, err = tr.Run(context.Background())
	require.NoError(t, err)
	flat := func(x [][]int32) (out []int32) {
		for _, r := range x {
			out = append(out, r...)
		}
		return out
	}
	all, n, err := tr.Loss(context.Background(), flat(text.tokens[33:]), flat(text.labels[33:]))
	require.NoError(t, err)
	require.EqualValues(t, 21, n)
	var sum float64
	for i := 33; i < 40; i++ {
		one, n, err := tr.Loss(context.Background(), text.tokens[i], text.labels[i])
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
		sum += one
	}
	require.InDelta(t, sum/7, all, 3e-7, "7 batches of 1 and 1 of 7 with the weights that batches of 32 trained")
	_, _, err = tr.Loss(context.Background(), make([]int32, 4), make([]int32, 4))
	require.EqualError(t, err, "train: Loss: tokens and labels must be [rows,3], got 4 tokens and 4 labels")
}
