package models_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
)

// TestAdaptersAreTrained trains adapters with the trainer, on a base in 16
// bits: the base keeps its bits, the checkpoint is a PEFT folder, and a resumed
// run has the bits of one that was not stopped.
func TestAdaptersAreTrained(t *testing.T) {
	o := train.Defaults()
	o.Steps, o.Batch, o.Context, o.Warmup, o.LR, o.SaveEvery = 6, 2, 16, 0, 1e-2, 3
	run := func(dir string, steps int) *models.Adapted {
		base, err := models.Open("testdata/golden/qwen3") // 256 tokens, float16
		require.NoError(t, err)
		var bits [][]byte
		for _, p := range base.Params().All() {
			bits = append(bits, append([]byte(nil), p.Tensor().Bytes()...))
		}
		n := len(bits)
		ad, err := base.Adapt(models.LoRA{Rank: 2, Alpha: 4}, 1)
		require.NoError(t, err)
		trainUntil(t, ad, 256, o, dir, steps)
		for i, p := range base.Params().All()[:n] {
			require.Equal(t, bits[i], p.Tensor().Bytes(), p.Name)
		}
		return ad
	}
	whole := filepath.Join(t.TempDir(), "whole")
	want := run(whole, o.Steps)
	cut := filepath.Join(t.TempDir(), "cut")
	run(cut, 3)
	got := run(cut, o.Steps)
	for i, p := range want.Params().All() {
		require.Equal(t, p.Tensor().Bytes(), got.Params().All()[i].Tensor().Bytes(), p.Name)
	}
	last := filepath.Join(whole, train.LastName)
	require.True(t, models.IsAdapter(last))
	fresh, err := models.Open("testdata/golden/qwen3")
	require.NoError(t, err)
	back, err := fresh.OpenAdapter(last)
	require.NoError(t, err)
	ids := []int32{1, 2, 3}
	require.Equal(t, adaptedLogits(t, want, ids), adaptedLogits(t, back, ids))
}

// TestMixturesAreTrainedAndResumed: stacks of experts are saved one by one and
// come back, the bias of the choice among them, in FP8 and under adapters too.
func TestMixturesAreTrainedAndResumed(t *testing.T) {
	o := train.Defaults()
	o.Steps, o.Batch, o.Context, o.Warmup, o.LR, o.SaveEvery = 4, 2, 16, 0, 1e-3, 2
	plain := func(m *models.Transformer) train.Model { return m }
	fp8 := func(m *models.Transformer) train.Model {
		return autocast.Train(m, autocast.Options{Recipe: autocast.Delayed{History: 2}, Filter: autocast.Filter{MinSize: 1}})
	}
	adapted := func(m *models.Transformer) train.Model {
		ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 4}, 1)
		require.NoError(t, err)
		return ad
	}
	for _, x := range []struct {
		name, dir string
		wrap      func(*models.Transformer) train.Model
	}{
		{"deepseek_v3", "deepseek_v3", plain}, {"deepseek_v3 in FP8", "deepseek_v3", fp8}, {"qwen3_moe in FP8", "qwen3_moe", fp8},
		{"kimi_linear", "kimi_linear", plain}, {"kimi_linear in FP8", "kimi_linear", fp8}, {"kimi_linear with adapters", "kimi_linear", adapted},
	} {
		t.Run(x.name, func(t *testing.T) {
			run := func(dir string, steps int) *models.Transformer {
				m, _, err := models.Load("testdata/golden/" + x.dir)
				require.NoError(t, err)
				trainUntil(t, x.wrap(m), m.Config.Vocab, o, dir, steps)
				return m
			}
			want := run(filepath.Join(t.TempDir(), "whole"), o.Steps)
			cut := filepath.Join(t.TempDir(), "cut")
			run(cut, 2)
			got := run(cut, o.Steps)
			for i, p := range want.Params().All() {
				require.Equal(t, p.Tensor().Bytes(), got.Params().All()[i].Tensor().Bytes(), p.Name)
			}
		})
	}
}

// TestResumeTellsModelsOfOneShapeApart: numbers that a model computes with, beside
// its weights, are those of the run too. Nothing is read where they differ.
func TestResumeTellsModelsOfOneShapeApart(t *testing.T) {
	o := train.Defaults()
	o.Steps, o.Batch, o.Context = 2, 2, 16
	whole := func(edit func(c *models.Config)) train.Model {
		m, _, err := models.Load("testdata/golden/llama3")
		require.NoError(t, err)
		edit(&m.Config)
		return m
	}
	adapt := func(m *models.Transformer, alpha float64, base string) train.Model {
		ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: alpha, Targets: []string{"q_proj"}}, 1)
		require.NoError(t, err)
		ad.Base = base
		return ad
	}
	adapted := func(alpha float64, edit func(m *models.Transformer)) train.Model {
		m, _, err := models.Load("testdata/golden/llama3")
		require.NoError(t, err)
		edit(m)
		return adapt(m, alpha, "its base")
	}
	asIs := func(*models.Transformer) {}
	tuned := func(weight string) func(m *models.Transformer) {
		return func(m *models.Transformer) {
			p := m.Params().Get(weight)
			w := graph.Data[float32](p.Tensor())
			for i := range w {
				w[i] += 1e-3 * w[i]
			}
			p.Touch()
		}
	}
	narrow, err := models.Open("testdata/golden/qwen3") // float16
	require.NoError(t, err)
	defer narrow.Close()
	wide, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	const digests = `models: the base under the adapters must have the weights of that of the checkpoint, "its base" (digest `
	same, small := func(*models.Config) {}, autocast.Options{Filter: autocast.Filter{MinSize: 1}}
	for _, x := range []struct {
		want      string
		was, is   train.Model
		otherwise bool
	}{
		{"Config.RopeTheta must be 500000 as in the checkpoint, got 10000", whole(same), whole(func(c *models.Config) { c.RopeTheta = 1e4 }), true},
		{"Config.NormEps must be 0.00001 as in the checkpoint, got 0.001", whole(same), whole(func(c *models.Config) { c.NormEps = 1e-3 }), true},
		{"Config.NormEps must be 0.00001 as in the checkpoint, got 0.001", autocast.Train(whole(same), small), autocast.Train(whole(func(c *models.Config) { c.NormEps = 1e-3 }), small), true},
		{"the adapter of model.layers.0.self_attn.q_proj must be scaled by 2 as in the checkpoint, got 4 (Alpha 8)", adapted(4, asIs), adapted(8, asIs), true},
		{"Config.RopeTheta must be 500000 as in the checkpoint, got 10000", adapted(4, asIs), adapted(4, func(m *models.Transformer) { m.Config.RopeTheta = 1e4 }), true},
		{digests, adapted(4, asIs), adapted(4, tuned("model.norm.weight")), true},
		{digests, adapted(4, asIs), adapted(4, tuned("model.layers.1.mlp.down_proj.weight")), true},
		{digests, autocast.Train(adapted(4, asIs), small), autocast.Train(adapted(4, tuned("model.embed_tokens.weight")), small), true},
		{"", adapted(4, asIs), adapted(4, asIs), false},
		{"", adapt(narrow.Transformer, 4, "narrow"), adapt(wide, 4, "wide"), false},
		{"holds an adapter, which goes on top of a model", adapted(4, asIs), whole(same), true},
		{"", whole(same), whole(func(c *models.Config) { c.EOS = []int32{3} }), false},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		trainUntil(t, x.was, 256, o, dir, o.Steps)
		var before [][]byte
		for _, p := range x.is.Params().All() {
			before = append(before, append([]byte(nil), p.Tensor().Bytes()...))
		}
		tr := trainerOf(t, x.is, 256, o, train.Dir(dir))
		err := tr.Resume()
		if !x.otherwise {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, x.want)
		for i, p := range before {
			require.Equal(t, p, x.is.Params().All()[i].Tensor().Bytes())
		}
	}
}

// trainUntil trains a model in a folder from its newest checkpoint, if there is one, to a step.
func trainUntil(t *testing.T, m train.Model, vocab int, o train.Options, dir string, step int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tr := trainerOf(t, m, vocab, o, train.Dir(dir), train.Each(func(m train.Metric) {
		if m.Step == step && step < o.Steps {
			cancel()
		}
	}))
	if _, err := train.Latest(dir); err == nil {
		require.NoError(t, tr.Resume())
	}
	_, err := tr.Run(ctx)
	require.Equal(t, step < o.Steps, err != nil, "%v", err)
}

// trainerOf is a trainer of a model on a short text.
func trainerOf(t *testing.T, m train.Model, vocab int, o train.Options, settings ...train.Setting) *train.Trainer {
	text := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("one fish, two fish. ", 50)), 0o666))
	tokens, err := train.Open(train.OpenOptions{}, text)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tokens.Close()) })
	data, err := train.NewWindows(tokens, vocab, train.WindowOptions{Context: o.Context, Order: train.Epochs, Validation: 0.1})
	require.NoError(t, err)
	tr, err := train.New(m, data, o, settings...)
	require.NoError(t, err)
	return tr
}
