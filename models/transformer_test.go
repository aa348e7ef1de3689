package models_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops/native"
)

// demo is the model of the demo: byte vocabulary, 4 layers of 256.
var demo = models.Config{Type: "llama", Vocab: 256, Hidden: 256, FFN: 1024, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 64, Context: 128, NormEps: 1e-6, RopeTheta: 1e4}

// trainStep builds loss and gradients of a training step.
func trainStep(t testing.TB, c models.Config, batch, context int, dropout float64, opts ...graph.NativeOption) (*graph.Builder, []*graph.Node, *graph.Native, graph.Feeds) {
	t.Helper()
	m, err := models.New(c)
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	b := graph.New(graph.Share(m.Params()))
	loss, _ := m.Loss(b, batch, context, dropout, 3)
	require.NoError(t, b.Err())
	grads, err := b.Grad(loss, b.Params()...)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(b))
	outs := append([]*graph.Node{loss}, grads...)
	plan, err := b.Plan(outs...)
	require.NoError(t, err)
	run, err := plan.Native(opts...)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	tokens, labels := make([]int32, batch*context), make([]int32, batch*context)
	for i := range tokens {
		tokens[i], labels[i] = int32(r.IntN(c.Vocab)), int32(r.IntN(c.Vocab))
	}
	feeds := graph.Feeds{"tokens": tokens, "labels": labels}
	if dropout > 0 {
		feeds["step"] = []int64{5}
	}
	return b, outs, run, feeds
}

// TestPlanEqualsTapeMachine holds the two ways to run a training step bit-equal.
func TestPlanEqualsTapeMachine(t *testing.T) {
	c := demo
	c.Layers, c.Hidden, c.FFN, c.HeadDim, c.KVHeads, c.QKVBias, c.QKNorm, c.Type = 2, 32, 48, 8, 2, true, true, "qwen3"
	for _, tied := range []bool{false, true} {
		c.Tied = tied
		planEqualsTape(t, c, 3, 17)
	}
}

// planEqualsTape holds two training steps of a plan, on batch sequences of length
// tokens, to the bits of gorgonia's TapeMachine.
func planEqualsTape(t *testing.T, c models.Config, batch, length int) {
	b, outs, run, feeds := trainStep(t, c, batch, length, 0.1, graph.Poison())
	tape, err := b.Tape(outs...)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, run.Do(context.Background(), feeds))
		require.NoError(t, tape.Do(feeds))
		for _, o := range outs {
			x, err := run.Value(o)
			require.NoError(t, err)
			y, err := tape.Value(o)
			require.NoError(t, err)
			require.Equal(t, x.Bytes(), y.Bytes(), o.Name())
		}
	}
	require.NoError(t, tape.Close())
}

// TestTrainingStepDoesNotAllocate also holds it to one result for any number
// of workers.
func TestTrainingStepDoesNotAllocate(t *testing.T) {
	defer native.SetWorkers(0)
	_, outs, run, feeds := trainStep(t, demo, 2, 64, 0.1)
	ctx := context.Background()
	var want [][]byte
	for _, w := range []int{1, 2, 5} {
		native.SetWorkers(w)
		require.NoError(t, run.Do(ctx, feeds))
		var got [][]byte
		for _, o := range outs {
			v, err := run.Value(o)
			require.NoError(t, err)
			got = append(got, append([]byte(nil), v.Bytes()...))
		}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got, "%d workers", w)
	}
	// Alone, nothing allocates. Helpers that come late to a call hold it back from
	// reuse, so with more workers the free lists still grow for a while.
	native.SetWorkers(1)
	for range 3 {
		require.NoError(t, run.Do(ctx, feeds))
	}
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if err := run.Do(ctx, feeds); err != nil {
			panic(err)
		}
	}))
}

// BenchmarkTrainStep is forward and backward of the demo's step (28 GFLOP).
func BenchmarkTrainStep(b *testing.B) {
	_, _, run, feeds := trainStep(b, demo, 8, 128, 0, graph.Timing())
	ctx := context.Background()
	require.NoError(b, run.Do(ctx, feeds))
	for b.Loop() {
		require.NoError(b, run.Do(ctx, feeds))
	}
	b.ReportMetric(float64(run.Plan().FLOPs())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	if testing.Verbose() {
		b.Logf("arena %d bytes\n%s", run.Plan().Arena, run.Profile())
	}
}

// TestModelsSayWhatIsWrong: every type gives the builder's first error for sizes
// that no graph has, and does not panic on the nodes that could not be built.
func TestModelsSayWhatIsWrong(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		m, _, err := models.Load(dir)
		require.NoError(t, err)
		for want, build := range map[string]func(b *graph.Builder){
			"dimension 0 of [0,8] is 0":              func(b *graph.Builder) { m.Loss(b, 0, 8, 0, 0) },
			"dimension 1 of [1,-1] is -1":            func(b *graph.Builder) { m.Loss(b, 1, -1, 0, 0) },
			"p must be in [0,1), got 2":              func(b *graph.Builder) { m.Loss(b, 1, 8, 2, 0) },
			"is 0, every dimension must be at least": func(b *graph.Builder) { m.Packed(b, models.Packed{}) },
			"Hidden: the mixer is missing (nil)":     func(b *graph.Builder) { m.Hidden(b, nil, models.Dropout{}, nil) },
		} {
			b := graph.New(graph.Share(m.Params()))
			build(b)
			require.ErrorContains(t, b.Err(), want, dir)
		}
	}
}

// TestAModelWithoutValuesIsNotCopied: what reads all weights says which has none, and
// makes nothing.
func TestAModelWithoutValuesIsNotCopied(t *testing.T) {
	c := models.Config{Type: "llama", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4}
	m, err := models.New(c)
	require.NoError(t, err)
	for _, want := range []string{
		"models: the model has no weights: Init gives a new one some, and Load and Open those of files",
		"models: model.embed_tokens.weight has no value: Init gives the weights of a new model values, and Load and Open those of files",
	} {
		dir := filepath.Join(t.TempDir(), "m")
		require.ErrorContains(t, m.Save(dir), want)
		require.NoDirExists(t, dir)
		_, err = m.Float64()
		require.EqualError(t, err, want)
		require.NoError(t, m.Declare())
	}
	ad, err := m.Adapt(models.LoRA{Rank: 1, Alpha: 1}, 1)
	require.NoError(t, err)
	_, err = ad.Merge()
	require.ErrorContains(t, err, "model.embed_tokens.weight has no value")
	require.NoError(t, m.Init(1))
	require.EqualError(t, m.Save("m", models.Shards(-1)), "models: Save: Shards takes 0 (one file) or a number of bytes, not -1")
	require.NoError(t, m.Save(filepath.Join(t.TempDir(), "m")))
}
