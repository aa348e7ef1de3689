// Heads of one's own on the features of a model, whole and under adapters.

package models_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
)

const scoreName = "score.weight"

// scores is a head of three classes on the features of a sequence.
func scores(m *models.Transformer, b *graph.Builder, batch, context int) *graph.Node {
	h := m.Features(b, b.Input("tokens", dtype.Int32, batch, context), models.Dropout{})
	return ops.Linear(h, b.Param(scoreName, 3, m.Config.Hidden))
}

// valueOf runs a graph of one output on tokens.
func valueOf(t *testing.T, b *graph.Builder, out *graph.Node, ids []int32) []float32 {
	t.Helper()
	plan, err := b.Plan(out)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids}))
	v, err := run.Value(out)
	require.NoError(t, err)
	return slices.Clone(graph.Data[float32](v))
}

func fill(p *graph.Param, at float64) {
	w := graph.Data[float32](p.Tensor())
	for i := range w {
		w[i] = float32(math.Sin(float64(i)+at)) / 4
	}
	p.Touch()
}

// TestAHeadIsSavedAndOpened: Save writes a head of one's own beside the model, and
// Extra opens it, also where the file has no lm_head or has the names of a model
// without any head.
func TestAHeadIsSavedAndOpened(t *testing.T) {
	const from = "testdata/golden/llama_untied_bias"
	ids := []int32{1, 5, 9, 2, 7}
	m, _, err := models.Load(from)
	require.NoError(t, err)
	b := graph.New(graph.Share(m.Params()))
	h := m.Features(b, b.Input("tokens", dtype.Int32, 1, len(ids)), models.Dropout{})
	require.Equal(t, runLogits(t, m, ids), valueOf(t, b, m.Head(b, h), ids))
	features := valueOf(t, b, h, ids)

	b = graph.New(graph.Share(m.Params()))
	y := scores(m, b, 1, len(ids))
	fill(m.Params().Get(scoreName), 1)
	want := valueOf(t, b, y, ids)
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, m.Save(dir))

	rewrite := func(change func(name string) string) string { // "" leaves a tensor out
		to := filepath.Join(t.TempDir(), "model")
		ck, err := checkpoint.Open(dir)
		require.NoError(t, err)
		defer ck.Close()
		var entries []checkpoint.Entry
		for _, x := range ck.Tensors() {
			if name := change(x.Name()); name != "" {
				values := make([]float32, x.Len())
				require.NoError(t, x.Float32(values))
				entries = append(entries, checkpoint.Values(name, values, x.Shape()...))
			}
		}
		require.NoError(t, checkpoint.Save(to, slices.Values(entries), checkpoint.SaveOptions{}))
		raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, "config.json"), raw, 0o666))
		return to
	}
	headless := rewrite(func(name string) string {
		if name == "lm_head.weight" {
			return ""
		}
		return name
	})
	bare := rewrite(func(name string) string {
		if name == "lm_head.weight" || name == scoreName {
			return ""
		}
		return strings.TrimPrefix(name, "model.")
	})

	for _, from := range []string{dir, headless} {
		back, err := models.Open(from, models.Widen(), models.Extra(scoreName))
		require.NoError(t, err)
		require.True(t, back.Params().Get(scoreName).Trainable())
		b = graph.New(graph.Share(back.Params()))
		require.Equal(t, want, valueOf(t, b, scores(back.Transformer, b, 1, len(ids)), ids))
	}
	body, err := models.Open(bare)
	require.NoError(t, err)
	b = graph.New(graph.Share(body.Params()))
	h = body.Features(b, b.Input("tokens", dtype.Int32, 1, len(ids)), models.Dropout{})
	require.Equal(t, features, valueOf(t, b, h, ids))
	plan, err := b.Plan(body.Head(b, h))
	require.NoError(t, err)
	_, err = plan.Native()
	require.ErrorContains(t, err, "parameter lm_head.weight has no value")

	for from, want := range map[string]string{
		dir:      "unexpected tensors: score.weight (a head of one's own is opened with Extra: score.weight)",
		headless: "missing tensors: lm_head.weight (a head of one's own is opened with Extra: score.weight)",
	} {
		_, _, err = models.Load(from)
		require.EqualError(t, err, "models: "+from+": "+want)
	}
	for name, want := range map[string]string{
		"value.weight":   `Extra names "value.weight", the checkpoint has no tensor of that name`,
		"lm_head.weight": `Extra names "lm_head.weight" twice, or a tensor of the model's own`,
	} {
		_, err = models.Open(dir, models.Extra(name))
		require.EqualError(t, err, "models: "+dir+": "+want)
	}
}

// classifier trains a head and what adapters leave trainable.
type classifier struct{ *models.Adapted }

func (c classifier) Loss(b *graph.Builder, batch, context int, _ float64, _ uint64) (loss, tokens *graph.Node) {
	outs := c.Apply(b, func(b *graph.Builder) []*graph.Node {
		loss, n := ops.CrossEntropy(scores(c.Transformer, b, batch, context), b.Input("labels", dtype.Int32, batch, context))
		return []*graph.Node{loss, n}
	})
	return outs[0], outs[1]
}

// thirds are rows whose class is in their tokens.
type thirds struct{}

func (thirds) Batch(i int64, _ int, tokens, labels []int32) error {
	for j := range tokens {
		tokens[j] = int32(i+int64(j)*7) % 96
		labels[j] = tokens[j] % 3
	}
	return nil
}
func (thirds) Held() int                           { return 0 }
func (thirds) HeldRow(int, []int32, []int32) error { return nil }
func (thirds) Digest() string                      { return "thirds" }

// TestWhatIsTrainedBesideAdapters: a head of one's own and a norm are trained, saved
// in the PEFT folder, resumed, opened, and merged.
func TestWhatIsTrainedBesideAdapters(t *testing.T) {
	const from, norm = "testdata/golden/llama_untied_bias", "model.norm.weight"
	ids := []int32{1, 5, 9, 2, 7}
	open := func() *models.Opened {
		m, err := models.Open(from) // frozen
		require.NoError(t, err)
		return m
	}
	o := train.Defaults()
	o.Steps, o.Batch, o.Context, o.Warmup, o.LR, o.SaveEvery, o.Schedule = 4, 2, 8, 0, 1e-2, 2, train.Constant
	run := func(dir string, steps int) classifier {
		m := open()
		ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 4, Targets: []string{"q_proj"}}, 1)
		require.NoError(t, err)
		c := classifier{ad}
		_, err = m.Params().Add(scoreName, graph.T(dtype.Float32, 3, m.Config.Hidden), false)
		require.NoError(t, err)
		fill(m.Params().Get(scoreName), 1)
		m.Params().Get(norm).Frozen = false
		o := o
		o.Steps = steps
		trainer, err := train.New(c, thirds{}, o, train.Dir(dir))
		require.NoError(t, err)
		if _, err := train.Latest(dir); err == nil {
			require.NoError(t, trainer.Resume())
		}
		_, err = trainer.Run(context.Background())
		require.NoError(t, err)
		return c
	}
	outputs := func(ad *models.Adapted) []float32 {
		b := graph.New(graph.Share(ad.Params()))
		y := ad.Apply(b, func(b *graph.Builder) []*graph.Node { return []*graph.Node{scores(ad.Transformer, b, 1, len(ids))} })[0]
		return valueOf(t, b, y, ids)
	}
	whole, cut := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "cut")
	c := run(whole, o.Steps)
	run(cut, 2)
	want := outputs(c.Adapted)
	require.Equal(t, want, outputs(run(cut, o.Steps).Adapted))
	require.NotEqual(t, graph.Data[float32](open().Params().Get(norm).Tensor()), graph.Data[float32](c.Params().Get(norm).Tensor()))

	m := open()
	back, err := m.OpenAdapter(filepath.Join(whole, train.LastName))
	require.NoError(t, err)
	require.Equal(t, want, outputs(back))
	require.True(t, m.Params().Get(norm).Trainable())
	require.True(t, m.Params().Get(scoreName).Trainable())
	require.False(t, m.Params().Get("lm_head.weight").Trainable())
	merged, err := back.Merge()
	require.NoError(t, err)
	b := graph.New(graph.Share(merged.Params()))
	var sums []float64
	for _, x := range want {
		sums = append(sums, float64(x))
	}
	requireNear(t, sums, valueOf(t, b, scores(merged, b, 1, len(ids)), ids))
	require.Equal(t, graph.Data[float32](c.Params().Get(norm).Tensor()), graph.Data[float32](merged.Params().Get(norm).Tensor()))

	tied, _, err := models.Load("testdata/golden/gemma3")
	require.NoError(t, err)
	ad, err := tied.Adapt(models.LoRA{Rank: 2, Alpha: 4}, 1)
	require.NoError(t, err)
	tied.Params().Get("model.embed_tokens.weight").Frozen = false
	b = graph.New(graph.Share(tied.Params()))
	ad.Loss(b, 1, 4, 0, 0)
	require.ErrorContains(t, b.Err(), "model.embed_tokens.weight cannot be trained beside adapters: a PEFT folder holds neither stacks of experts nor a table that is the head too; freeze it")
}

// TestAdaptersOfAModelThatIsGone: the graph has the error, and as many nodes as are
// asked for.
func TestAdaptersOfAModelThatIsGone(t *testing.T) {
	m, err := models.Open("testdata/golden/llama3")
	require.NoError(t, err)
	closed, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 4}, 1)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	for _, x := range []train.Model{closed, classifier{closed}} {
		b := graph.New()
		loss, tokens := x.Loss(b, 1, 4, 0, 0)
		require.ErrorContains(t, b.Err(), "models: the model is closed")
		require.NotNil(t, loss)
		require.NotNil(t, tokens)
	}
	for want, none := range map[string]*models.Adapted{"the adapters are missing (nil)": nil, "the model has no parameters": {}} {
		b := graph.New()
		none.Loss(b, 1, 4, 0, 0)
		require.ErrorContains(t, b.Err(), want)
	}
}
