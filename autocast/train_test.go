package autocast_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// TestASmallModelTrainsInFP8: the trainer runs the model through the pass, and
// the held-out loss is within 2 % of float32's.
func TestASmallModelTrainsInFP8(t *testing.T) {
	loss := func(wrap func(train.Model) train.Model) (float64, train.Model) {
		m := wrap(newModel(t, learner))
		o := train.Defaults()
		o.Steps, o.Batch, o.Context, o.Warmup, o.LR, o.EvalEvery = 120, 8, 32, 10, 3e-3, 0
		tr, err := train.New(m, newChain(), o)
		require.NoError(t, err)
		sum, err := tr.Run(context.Background())
		require.NoError(t, err)
		return *sum.ValLoss, m
	}
	plain, _ := loss(func(m train.Model) train.Model { return m })
	for _, r := range []autocast.Recipe{autocast.Dynamic{}, autocast.Delayed{History: 16}} {
		got, m := loss(func(m train.Model) train.Model {
			return autocast.Train(m, autocast.Options{Recipe: r, Filter: small})
		})
		require.Len(t, m.(*autocast.Model).Report().Cast(), 14)
		t.Logf("%T: %.4f, float32 %.4f (%+.2f %%)", r, got, plain, 100*(got/plain-1))
		require.Less(t, plain, 1.5, "float32 has learnt something")
		require.InEpsilon(t, plain, got, 0.02) // measured 0.12 %
		sum := m.(*autocast.Model).Summary()
		require.Zero(t, sum.Skipped+sum.NaN)
		for _, r := range [][2]float32{sum.AmaxX, sum.AmaxW, sum.AmaxG} {
			require.True(t, 0 < r[0] && r[0] < r[1], fmt.Sprint(sum))
		}
		for _, s := range ops.FP8Stats(m.Params()) {
			require.True(t, s.Recorded && s.Step > 0, fmt.Sprint(s))
		}
	}
}

// learner is a model that the chain teaches in some seconds.
var learner = models.Config{Type: "llama", Vocab: 16, Hidden: 64, FFN: 128, Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 32,
	Context: 32, NormEps: 1e-6, RopeTheta: 1e4}

// newChain is a text whose tokens follow from the one before, but for some
// noise.
func newChain() chain {
	text := make([]int32, 20000)
	noise := optest.Ints("noise", len(text), 64)
	for i := 1; i < len(text); i++ {
		text[i] = (5*text[i-1] + 3 + noise[i]/60) % 16
	}
	return chain{text, 32, 8}
}

// chain is training data from one text, its last rows held out.
type chain struct {
	text    []int32
	context int
	held    int
}

func (c chain) at(i int, tokens, labels []int32) {
	copy(tokens, c.text[i:i+c.context])
	copy(labels, c.text[i+1:i+1+c.context])
}

func (c chain) Batch(i int64, rows int, tokens, labels []int32) error {
	for r := range rows {
		at := int((i*int64(rows)+int64(r))*7919) % (len(c.text) - (c.held+1)*c.context)
		c.at(at, tokens[r*c.context:][:c.context], labels[r*c.context:][:c.context])
	}
	return nil
}

func (c chain) Held() int { return c.held }

func (c chain) HeldRow(i int, tokens, labels []int32) error {
	c.at(len(c.text)-1-(i+1)*c.context, tokens, labels)
	return nil
}

func (c chain) Digest() string { return "chain" }

// countdown ends at a question, as a context may between any two nodes.
type countdown struct {
	context.Context
	asked, end int
}

func (c *countdown) Err() error {
	if c.asked++; c.asked >= c.end {
		return context.Canceled
	}
	return nil
}

// TestF04_ARunIsInterruptedInAnyNode: what a step had recorded of its operands
// is taken back, so that the run goes on with the bits of one that was not.
func TestF04_ARunIsInterruptedInAnyNode(t *testing.T) {
	for _, r := range []autocast.Recipe{autocast.Dynamic{}, autocast.Delayed{History: 2}} {
		start := func(dir string) (*train.Trainer, *autocast.Model) {
			m := autocast.Train(newModel(t, learner), autocast.Options{Recipe: r, Filter: small})
			o := train.Defaults()
			o.Steps, o.Batch, o.Context, o.Warmup, o.EvalEvery, o.Accumulate = 4, 1, 32, 2, 2, 2
			tr, err := train.New(m, newChain(), o, train.Dir(dir))
			require.NoError(t, err)
			return tr, m
		}
		whole, a := start(t.TempDir())
		all := &countdown{Context: context.Background(), end: math.MaxInt}
		_, err := whole.Run(all)
		require.NoError(t, err)
		for i, part := range []float64{0.2, 0.45, 0.7, 0.95} {
			dir := t.TempDir()
			cut, b := start(dir)
			_, err := cut.Run(&countdown{Context: context.Background(), end: int(part * float64(all.asked))})
			require.ErrorContains(t, err, "resume to go on")
			if i%2 == 0 { // else the same trainer goes on
				cut, b = start(dir)
				require.NoError(t, cut.Resume())
			}
			_, err = cut.Run(context.Background())
			require.NoError(t, err)
			require.Equal(t, a.Stats(), b.Stats())
			for _, p := range a.Params().All() {
				require.Equal(t, p.Tensor().Bytes(), b.Params().Get(p.Name).Tensor().Bytes(), p.Name)
			}
		}
	}
}

// TestF04_ATrainedRunResumes through a checkpoint of the trainer: six steps
// equal three, a new process, and three; an evaluation in between moves nothing.
func TestF04_ATrainedRunResumes(t *testing.T) {
	for _, r := range []autocast.Recipe{autocast.Dynamic{}, autocast.Delayed{History: 2}} {
		trainer := func(m train.Model, dir string, steps int) *train.Trainer {
			o := train.Defaults()
			o.Steps, o.Batch, o.Context, o.Warmup, o.EvalEvery, o.Accumulate, o.Schedule = steps, 4, 32, 2, 2, 2, train.Constant
			tr, err := train.New(m, newChain(), o, train.Dir(dir))
			require.NoError(t, err)
			return tr
		}
		start := func(dir string, steps int) (*train.Trainer, *autocast.Model) {
			m := autocast.Train(newModel(t, learner), autocast.Options{Recipe: r, Filter: small})
			return trainer(m, dir, steps), m
		}
		run := func(tr *train.Trainer) train.Summary {
			sum, err := tr.Run(context.Background())
			require.NoError(t, err)
			return sum
		}
		whole, a := start(t.TempDir(), 6)
		want := run(whole)
		dir := t.TempDir()
		half, _ := start(dir, 3)
		run(half)
		require.EqualError(t, trainer(newModel(t, learner), dir, 6).Resume(), "train: resume: "+filepath.Join(dir, "step-00000003")+
			": the model must multiply in FP8 as in the run so far (autocast.Train), it has no states for fp8.json")
		rest, b := start(dir, 6)
		require.NoError(t, rest.Resume())
		got := run(rest)
		require.Equal(t, *want.ValLoss, *got.ValLoss)
		require.Equal(t, a.Stats(), b.Stats())
		for _, p := range a.Params().All() {
			require.Equal(t, p.Tensor().Bytes(), b.Params().Get(p.Name).Tensor().Bytes(), p.Name)
		}
	}
}

// keeping is a model with a file of its own.
type keeping struct {
	*models.Transformer
	kept string
}

func (k *keeping) WriteFiles(dir string) error {
	if err := k.Transformer.WriteFiles(dir); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kept"), []byte(k.kept), 0o666)
}

func (k *keeping) ReadFiles(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "kept"))
	k.kept = string(raw)
	return err
}

// TestAModelInFP8ReadsItsOwnFiles, as it does without FP8.
func TestAModelInFP8ReadsItsOwnFiles(t *testing.T) {
	o := train.Defaults()
	o.Steps, o.Batch, o.Context = 1, 2, 32
	wrap := map[string]func(m train.Model) train.Model{
		"plain": func(m train.Model) train.Model { return m },
		"fp8":   func(m train.Model) train.Model { return autocast.Train(m, autocast.Options{Filter: small}) },
	}
	for name, wrap := range wrap {
		dir := filepath.Join(t.TempDir(), name)
		tr, err := train.New(wrap(&keeping{newModel(t, learner), "mine"}), newChain(), o, train.Dir(dir))
		require.NoError(t, err)
		_, err = tr.Run(context.Background())
		require.NoError(t, err)
		again := &keeping{newModel(t, learner), ""}
		tr, err = train.New(wrap(again), newChain(), o, train.Dir(dir))
		require.NoError(t, err)
		require.NoError(t, tr.Resume())
		require.Equal(t, "mine", again.kept, name)
	}
}

func TestStatesOfAnotherCheckpointAreRefused(t *testing.T) {
	start := func(o autocast.Options) *autocast.Model {
		o.Filter.MinSize = 1
		m := autocast.Train(newModel(t, learner), o)
		opts := train.Defaults()
		opts.Context = 32
		_, err := train.New(m, newChain(), opts)
		require.NoError(t, err)
		return m
	}
	m := start(autocast.Options{Recipe: autocast.Delayed{History: 16}})
	dir := t.TempDir()
	path := filepath.Join(dir, autocast.StatesName)
	require.EqualError(t, m.ReadFiles(dir), "autocast: "+path+" is missing: the checkpoint was written without FP8, the model has the recipe delayed (history 16, max), hybrid")
	require.NoError(t, m.WriteFiles(dir))
	require.NoError(t, m.ReadFiles(dir))
	require.EqualError(t, start(autocast.Options{}).ReadFiles(dir), "autocast: "+path+": the states are of the recipe delayed (history 16, max), hybrid, the model has dynamic, hybrid")
	require.EqualError(t, start(autocast.Options{Recipe: autocast.Delayed{History: 16}, Filter: autocast.Filter{Exclude: []string{"*.q_proj.weight"}}}).ReadFiles(dir),
		"autocast: "+path+": the state model.layers.0.self_attn.q_proj.weight.fp8.g is of no linear that the model has in FP8")
	edit := func(f func(states map[string][]float32)) {
		require.NoError(t, m.WriteFiles(dir))
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		var file struct {
			Recipe string               `json:"recipe"`
			States map[string][]float32 `json:"states"`
		}
		require.NoError(t, json.Unmarshal(raw, &file))
		f(file.States)
		raw, err = json.Marshal(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, raw, 0o666))
	}
	name := "model.layers.1.mlp.up_proj.weight.fp8.w"
	edit(func(s map[string][]float32) { delete(s, name) })
	require.EqualError(t, m.ReadFiles(dir), "autocast: "+path+": the state "+name+" is missing")
	edit(func(s map[string][]float32) { s[name] = s[name][:3] })
	require.EqualError(t, m.ReadFiles(dir), "autocast: "+path+": the state "+name+" must have 24 numbers, it has 3")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o666))
	require.ErrorContains(t, m.ReadFiles(dir), path+": unexpected EOF")
}
