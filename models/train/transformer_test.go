package train_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// newTransformer is a run of a real decoder on a short text.
func newTransformer(t testing.TB, o train.Options, settings ...train.Setting) (*train.Trainer, *models.Transformer) {
	t.Helper()
	m := smallTransformer(t, o.Seed)
	tr, err := train.New(m, smallWindows(t, o), o, settings...)
	require.NoError(t, err)
	return tr, m
}

func smallTransformer(t testing.TB, seed uint64) *models.Transformer {
	t.Helper()
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 24, FFN: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6,
		Context: 320, NormEps: 1e-5, RopeTheta: 1e4,
	})
	require.NoError(t, err)
	require.NoError(t, m.Init(seed))
	return m
}

func smallWindows(t testing.TB, o train.Options) *train.Windows {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	var text []byte
	for i := range 3000 {
		text = append(text, "the sea fan grows in the sea "[(i*i/7)%29])
	}
	require.NoError(t, os.WriteFile(path, text, 0o666))
	tok, err := train.Open(train.OpenOptions{}, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	w, err := train.NewWindows(tok, 256, train.WindowOptions{Context: o.Context, Seed: o.Seed, Order: train.Epochs, Validation: 0.1})
	require.NoError(t, err)
	return w
}

func transformerOptions() train.Options {
	o := train.Defaults()
	o.Steps, o.Batch, o.Context, o.LR, o.Warmup, o.Dropout = 30, 3, 33, 1e-2, 5, 0.1
	o.EvalEvery, o.SaveEvery = 10, 10
	return o
}

func bits(m *models.Transformer) map[string][]float32 {
	w := map[string][]float32{}
	for _, p := range m.Params().All() {
		w[p.Name] = append([]float32(nil), graph.Data[float32](p.Tensor())...)
	}
	return w
}

func TestN11_WorkersAndSeeds(t *testing.T) {
	defer native.SetWorkers(0)
	results := map[string][]float32{}
	var losses []float64
	for i, workers := range []int{1, 2, 2, 7} {
		native.SetWorkers(workers)
		o := transformerOptions()
		n := 0
		tr, m := newTransformer(t, o, train.Each(func(x train.Metric) {
			if i == 0 {
				losses = append(losses, x.Loss)
			}
			require.Equal(t, losses[n], x.Loss, "step %d with %d workers", x.Step, workers)
			n++
		}))
		_, err := tr.Run(context.Background())
		require.NoError(t, err)
		if i == 0 {
			results = bits(m)
			require.Less(t, losses[29], losses[0]-1, "it learns")
		}
		require.Equal(t, results, bits(m))
	}
	o := transformerOptions()
	o.Seed = 1
	tr, m := newTransformer(t, o)
	_, err := tr.Run(context.Background())
	require.NoError(t, err)
	require.NotEqual(t, results, bits(m))
}

// TestComputeBF16 learns as float32 does, with the same bits for any number of
// workers.
func TestComputeBF16(t *testing.T) {
	first, last, w := computed(t, train.F32, 1, 33, 60)
	first16, last16, w16 := computed(t, train.BF16, 1, 33, 60)
	_, again, wAgain := computed(t, train.BF16, 7, 33, 60)
	require.Equal(t, last16, again)
	require.Equal(t, w16, wAgain)
	require.NotEqual(t, w, w16)
	require.Less(t, last, first-1, "it learns")
	t.Logf("loss of step 1: %.6f, bf16 %.6f; of step 60: %.4f, bf16 %.4f", first, first16, last, last16)
	require.InDelta(t, first, first16, 1e-4) // measured 2e-6
	require.InDelta(t, last, last16, 0.02)   // measured 0.0011
}

// computed is a run with products of c on rows of so many tokens.
func computed(t *testing.T, c train.Compute, workers, length, steps int) (first, last float64, w map[string][]float32) {
	native.SetWorkers(workers)
	defer native.SetWorkers(0)
	o := transformerOptions()
	o.Dropout, o.Compute, o.Context, o.Steps = 0, c, length, steps
	tr, m := newTransformer(t, o, train.Each(func(x train.Metric) {
		if x.Step == 1 {
			first = x.Loss
		}
		last = x.Loss
	}))
	_, err := tr.Run(context.Background())
	require.NoError(t, err)
	return first, last, bits(m)
}

// TestComputeBF16x6 is float32 within its error, with the same bits for any number
// of workers, and what is chosen where the CPU has AMX; elsewhere it is float32. Rows
// of 290 tokens have three key tiles, whose attention goes by BF16x6 too.
func TestComputeBF16x6(t *testing.T) {
	for _, c := range []struct{ context, steps int }{{33, 60}, {290, 10}} {
		first, last, w := computed(t, train.F32, 1, c.context, c.steps)
		first6, last6, w6 := computed(t, train.BF16x6, 1, c.context, c.steps)
		_, again, wAgain := computed(t, train.BF16x6, 7, c.context, c.steps)
		require.Equal(t, last6, again)
		require.Equal(t, w6, wAgain)
		_, _, chosen := computed(t, "", 1, c.context, c.steps)
		require.Equal(t, w6, chosen)
		if native.GemmKernel() == "amx" {
			require.NotEqual(t, w, w6)
		} else {
			require.Equal(t, w, w6)
		}
		t.Logf("%d tokens: loss of step 1: %.7f, bf16x6 %.7f; of step %d: %.5f, bf16x6 %.5f", c.context, first, first6, c.steps, last, last6)
		require.InDelta(t, first, first6, 1e-6) // measured below 1e-7
		require.InDelta(t, last, last6, 1e-4)   // measured below 1e-5
	}
}

// TestResumeKeepsWhatWasChosen: a run begun with products of float32 goes on so,
// and so does one by BF16x6, where the options leave it to the trainer.
func TestResumeKeepsWhatWasChosen(t *testing.T) {
	for _, c := range []train.Compute{train.F32, train.BF16x6, train.BF16} {
		o := transformerOptions()
		o.Steps, o.Compute = 3, c
		dir := t.TempDir()
		tr, _ := newTransformer(t, o, train.Dir(dir))
		_, err := tr.Run(context.Background())
		require.NoError(t, err)
		o.Steps = 6
		run := func(c train.Compute) map[string][]float32 {
			again := t.TempDir()
			require.NoError(t, os.CopyFS(again, os.DirFS(dir)))
			o := o
			o.Compute = c
			tr, m := newTransformer(t, o, train.Dir(again))
			require.NoError(t, tr.Resume())
			_, err := tr.Run(context.Background())
			require.NoError(t, err)
			require.Equal(t, cmp.Or(c, tr.Compute()), tr.Compute())
			return bits(m)
		}
		require.Equal(t, run(c), run(""), c)

		o.Compute, o.Seed = "", o.Seed+1
		other, _ := newTransformer(t, o, train.Dir(dir))
		chosen := other.Compute()
		require.ErrorContains(t, other.Resume(), "option seed must be")
		require.Equal(t, chosen, other.Compute(), "a run that is not taken up changes nothing")
	}
}

// TestRecomputeHasTheSameBits: with dropout, in float32, in bf16 and in FP8, a
// run that keeps no activations of its layers is the run that keeps them, and
// needs less memory.
func TestRecomputeHasTheSameBits(t *testing.T) {
	for name, c := range map[string]struct {
		compute train.Compute
		fp8     autocast.Recipe
	}{"f32": {train.F32, nil}, "bf16": {train.BF16, nil}, "fp8 dynamic": {train.F32, autocast.Dynamic{}}, "fp8 delayed": {train.BF16, autocast.Delayed{History: 3}}} {
		t.Run(name, func(t *testing.T) {
			var want map[string][]float32
			var arena, steps int
			for _, recompute := range []bool{false, true} {
				o := transformerOptions()
				o.Steps, o.Compute, o.Recompute, o.Accumulate = 6, c.compute, recompute, 2
				m := smallTransformer(t, o.Seed)
				var trained train.Model = m
				if c.fp8 != nil {
					trained = autocast.Train(m, autocast.Options{Recipe: c.fp8, Filter: autocast.Filter{MinSize: 1}})
				}
				tr, err := train.New(trained, smallWindows(t, o), o)
				require.NoError(t, err)
				_, err = tr.Run(context.Background())
				require.NoError(t, err)
				if !recompute {
					want, arena, steps = bits(m), tr.Plan().Arena, len(tr.Plan().Steps)
					continue
				}
				require.Equal(t, want, bits(m))
				// Measured: 0.65 of the memory, with two layers.
				require.Less(t, float64(tr.Plan().Arena), 0.8*float64(arena))
				require.Greater(t, len(tr.Plan().Steps), steps)
				t.Logf("arena %d -> %d, steps %d -> %d", arena, tr.Plan().Arena, steps, len(tr.Plan().Steps))
			}
		})
	}
}

func TestN03_TransformerWithDropoutResumes(t *testing.T) {
	o := transformerOptions()
	o.Accumulate = 2
	straight, want := newTransformer(t, o)
	sum, err := straight.Run(context.Background())
	require.NoError(t, err)
	dir := t.TempDir()
	ctx, stop := context.WithCancel(context.Background())
	part, _ := newTransformer(t, o, train.Dir(dir), train.Each(func(m train.Metric) {
		if m.Step == 17 {
			stop()
		}
	}))
	_, err = part.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	rest, got := newTransformer(t, o, train.Dir(dir))
	require.NoError(t, rest.Resume())
	again, err := rest.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, bits(want), bits(got))
	require.Equal(t, sum.BestLoss, again.BestLoss)

	// What was written is a model folder.
	m, _, err := models.Load(filepath.Join(dir, train.LastName))
	require.NoError(t, err)
	require.Equal(t, bits(got), bits(m))
}

// TestJoinedStacksResume: weights that the files have in another order come back with
// their bits, in FP8 too.
func TestJoinedStacksResume(t *testing.T) {
	o := transformerOptions()
	o.Steps, o.Context, o.EvalEvery, o.SaveEvery = 4, 17, 0, 2
	for _, fp8 := range []bool{false, true} {
		dir := t.TempDir()
		start := func(settings ...train.Setting) (*train.Trainer, *models.Transformer) {
			m, err := models.New(models.Config{
				Type: "gpt_oss", Vocab: 256, Hidden: 24, FFN: 20, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 6, Context: 64, NormEps: 1e-5, RopeTheta: 1e4, Sinks: true,
				Experts: &models.Experts{FFN: 20, Dense: []bool{false}, Router: ops.Router{Experts: 3, TopK: 2, Renormalize: true}, Clamp: ops.ClampedExpertsOp{Alpha: 1.702, Limit: 7}},
			})
			require.NoError(t, err)
			require.NoError(t, m.Init(o.Seed))
			var trained train.Model = m
			if fp8 {
				trained = autocast.Train(m, autocast.Options{Filter: autocast.Filter{MinSize: 1}})
			}
			tr, err := train.New(trained, smallWindows(t, o), o, settings...)
			require.NoError(t, err)
			return tr, m
		}
		straight, want := start()
		_, err := straight.Run(context.Background())
		require.NoError(t, err)
		ctx, stop := context.WithCancel(context.Background())
		part, _ := start(train.Dir(dir), train.Each(func(m train.Metric) {
			if m.Step == 2 {
				stop()
			}
		}))
		_, err = part.Run(ctx)
		require.ErrorIs(t, err, context.Canceled)
		again, got := start(train.Dir(dir))
		require.NoError(t, again.Resume())
		require.EqualValues(t, 2, again.Step())
		_, err = again.Run(context.Background())
		require.NoError(t, err)
		require.Equal(t, bits(want), bits(got))
	}
}

func TestN01_TransformerInMicroBatches(t *testing.T) {
	one := func(batch, accumulate int) (train.Metric, map[string][]float32) {
		o := transformerOptions()
		o.Steps, o.Batch, o.Accumulate, o.Dropout = 1, batch, accumulate, 0
		var x train.Metric
		tr, m := newTransformer(t, o, train.Each(func(m train.Metric) { x = m }))
		_, err := tr.Run(context.Background())
		require.NoError(t, err)
		return x, bits(m)
	}
	a, _ := one(4, 1)
	b, _ := one(1, 4)
	require.Equal(t, a.Tokens, b.Tokens)
	require.InEpsilon(t, a.Loss, b.Loss, 1e-6)
	require.InEpsilon(t, a.GradNorm, b.GradNorm, 1e-5)
}

func TestN09_TransformerMemoryIsFlat(t *testing.T) {
	o := transformerOptions()
	o.Steps, o.Batch, o.Context, o.EvalEvery, o.SaveEvery = 2000, 1, 4, 0, 1000
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	var at200, at2000 float64
	tr, _ := newTransformer(t, o, train.Dir(t.TempDir()), train.Each(func(m train.Metric) {
		switch m.Step {
		case 200:
			at200 = heap()
		case 2000:
			at2000 = heap()
		}
	}))
	_, err := tr.Run(context.Background())
	require.NoError(t, err)
	t.Logf("heap after 200 steps %.0f, after 2000 %.0f", at200, at2000)
	require.InEpsilon(t, at200, at2000, 0.05)
}

func TestParametersWithoutValuesAreRefused(t *testing.T) {
	m, err := models.New(models.Config{Type: "llama", Vocab: 8, Hidden: 4, FFN: 4, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 4, Context: 8, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	_, err = train.New(m, nothing{}, transformerOptions())
	require.ErrorContains(t, err, "parameter model.embed_tokens.weight has no value: initialise it (models have Init; else write its Tensor, then Touch), load a checkpoint, or build the graph on the parameters of the model that has it (graph.Share)")
	require.NoError(t, m.Init(0))
	_, err = train.New(m, nothing{}, transformerOptions())
	require.EqualError(t, err, "train: the first micro-batch: nothing there")
}

type nothing struct{}

func (nothing) Batch(int64, int, []int32, []int32) error { return errors.New("nothing there") }
func (nothing) Held() int                                { return 0 }
func (nothing) HeldRow(int, []int32, []int32) error      { return nil }
func (nothing) Digest() string                           { return "" }
