package models_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// lossGraph is the loss that a model builds, with its gradients.
type lossGraph struct {
	names []string
	mean  float64
	count float64
	grads [][]float64
}

type lossOf func(b *graph.Builder, batch, context int) (mean, count *graph.Node)

// runLoss computes loss and gradients on rows of tokens; packed, they hold the
// sequences of the given lengths.
func runLoss(t *testing.T, params *graph.Params, dt dtype.DType, build lossOf, rows int, tokens, labels []int32, lengths []int, sequences int) lossGraph {
	t.Helper()
	b := graph.New(graph.Share(params), graph.Float(dt))
	mean, count := build(b, rows, len(tokens)/rows)
	require.NoError(t, b.Err())
	outs := []*graph.Node{mean, count}
	feeds := graph.Feeds{"tokens": tokens, "labels": labels}
	if sequences > 0 {
		var err error
		outs, err = models.Pack(sequences, outs...)
		require.NoError(t, err)
		b = outs[0].Builder()
		cu := make([]int32, 1, sequences+1)
		var positions []int32
		for _, n := range lengths {
			for i := range n {
				positions = append(positions, int32(i))
			}
			cu = append(cu, int32(len(positions)))
		}
		for len(cu) <= sequences {
			cu = append(cu, int32(len(positions)))
		}
		for _, n := range b.Nodes() {
			switch n.Name() {
			case models.PackedPositions:
				feeds[n.Name()] = positions
			case models.PackedSeqlens:
				feeds[n.Name()] = cu
			}
		}
	}
	ps := b.Params()
	grads, err := b.Grad(outs[0], ps...)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(b))
	plan, err := b.Plan(append(outs, grads...)...)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), feeds))
	wide := func(n *graph.Node) []float64 {
		v, err := run.Value(n)
		require.NoError(t, err)
		if dt == dtype.Float64 {
			return slices.Clone(graph.Data[float64](v))
		}
		var w []float64
		for _, x := range graph.Data[float32](v) {
			w = append(w, float64(x))
		}
		return w
	}
	g := lossGraph{mean: wide(outs[0])[0], count: wide(outs[1])[0]}
	for i, p := range ps {
		g.names = append(g.names, p.Param().Name)
		g.grads = append(g.grads, wide(grads[i]))
	}
	return g
}

// relative is rms(got-want)/rms(want).
func relative(got, want []float64) float64 {
	var d, w float64
	for i, x := range want {
		d += (got[i] - x) * (got[i] - x)
		w += x * x
	}
	if w == 0 {
		return math.Sqrt(d)
	}
	return math.Sqrt(d / w)
}

// packedRows are two rows of 24 tokens and the lengths of their documents, some
// of one token, with the last label of each ignored; there is room for more.
var packedRows = struct {
	lengths   []int
	sequences int
}{[]int{9, 1, 14, 2, 1, 21}, 9}

func packedTokens(vocab int) (tokens, labels []int32) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range packedRows.lengths {
		for i := range n {
			tokens = append(tokens, int32(r.IntN(vocab)))
			label := int32(r.IntN(vocab))
			if i == n-1 {
				label = ops.IgnoreIndex
			}
			labels = append(labels, label)
		}
	}
	return tokens, labels
}

// checkPacked holds the packed loss and its gradients to those of the
// documents in graphs of their own, weighted by their counted tokens. It
// returns the largest errors.
func checkPacked(t *testing.T, params *graph.Params, dt dtype.DType, build lossOf, vocab int) (loss, grad float64) {
	t.Helper()
	tokens, labels := packedTokens(vocab)
	got := runLoss(t, params, dt, build, 2, tokens, labels, packedRows.lengths, packedRows.sequences)
	var mean, count float64
	want := make([][]float64, len(got.grads))
	at := 0
	for _, n := range packedRows.lengths {
		one := runLoss(t, params, dt, build, 1, tokens[at:at+n], labels[at:at+n], nil, 0)
		require.Equal(t, got.names, one.names)
		require.EqualValues(t, n-1, one.count)
		mean += one.count * one.mean
		count += one.count
		for i, g := range one.grads {
			if want[i] == nil {
				want[i] = make([]float64, len(g))
			}
			for k, x := range g {
				want[i][k] += one.count * x
			}
		}
		at += n
	}
	require.Equal(t, count, got.count)
	for i := range want {
		for k := range want[i] {
			want[i][k] /= count
		}
		grad = max(grad, relative(got.grads[i], want[i]))
	}
	// A check that sees something: the rows as whole sequences differ.
	whole := runLoss(t, params, dt, build, 2, tokens, labels, nil, 0)
	require.Greater(t, math.Abs(whole.mean-got.mean), 1e-6*got.mean)
	return math.Abs(got.mean-mean/count) / (mean / count), grad
}

func TestPackedDocumentsEqualDocumentsApart(t *testing.T) {
	base := models.Config{Type: "llama", Vocab: 17, Hidden: 16, FFN: 24, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6, Context: 24, NormEps: 1e-5, RopeTheta: 1e4}
	for name, change := range map[string]func(c *models.Config){
		"llama":   func(*models.Config) {},
		"qwen3":   func(c *models.Config) { c.Type, c.QKNorm, c.QKVBias = "qwen3", true, true },
		"window":  func(c *models.Config) { c.Type, c.Window = "mistral", 5 },
		"no rope": func(c *models.Config) { c.Type, c.NoRope = "smollm3", []bool{false, true} },
	} {
		c := base
		change(&c)
		m, err := models.New(c)
		require.NoError(t, err)
		require.NoError(t, m.Init(1))
		r := rand.New(rand.NewPCG(5, 6))
		for _, p := range m.Params().All() { // far enough from 0 that attention matters
			for i, w := 0, graph.Data[float32](p.Tensor()); i < len(w); i++ {
				w[i] = float32(0.5 * r.NormFloat64())
			}
			p.Touch()
		}
		wide, err := m.Float64()
		require.NoError(t, err)
		for dt, m := range map[dtype.DType]*models.Transformer{dtype.Float64: wide, dtype.Float32: m} {
			build := func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
				return m.Loss(b, batch, context, 0, 0)
			}
			loss, grad := checkPacked(t, m.Params(), dt, build, c.Vocab)
			// Measured: at most 3e-16 and 3e-15 in float64, 3e-8 and 9e-7 in
			// float32, where sums of 48 terms run in other orders.
			t.Logf("%s %s: loss %.2g, gradients %.2g", name, dt, loss, grad)
			u := 0x1p-53
			if dt == dtype.Float32 {
				u = 0x1p-24
			}
			require.LessOrEqual(t, loss, 8*u, "%s %s", name, dt)
			require.LessOrEqual(t, grad, 32*u, "%s %s", name, dt)
		}
	}
}

// TestPackedGoldensEqualDocumentsApart covers every type of model that there
// is a golden checkpoint of.
func TestPackedGoldensEqualDocumentsApart(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		m, _, err := models.Load(dir)
		require.NoError(t, err)
		if m, err = m.Float64(); err != nil {
			t.Fatal(err)
		}
		loss, grad := checkPacked(t, m.Params(), dtype.Float64, func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
			return m.Loss(b, batch, context, 0, 0)
		}, m.Config.Vocab)
		// Measured: at most 3e-16 and 3e-15.
		t.Logf("%s: loss %.2g, gradients %.2g", filepath.Base(dir), loss, grad)
		require.LessOrEqual(t, loss, 1e-14, dir)
		require.LessOrEqual(t, grad, 1e-13, dir)
	}
}

// TestPackedDeltaAttention packs the ops of a hybrid.
func TestPackedDeltaAttention(t *testing.T) {
	const vocab, h, d = 11, 2, 4
	params := graph.NewParams()
	build := func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
		in, labels := b.Input("tokens", dtype.Int32, batch, context), b.Input("labels", dtype.Int32, batch, context)
		x := ops.Embedding(in, b.Param("embed", vocab, h*d))
		heads := func(name string) *graph.Node {
			y, _ := ops.ShortConv(ops.Linear(x, b.Param(name, h*d, h*d)), b.Param(name+"_conv", h*d, 3), nil, nil)
			return ops.Reshape(y, batch, context, h, d)
		}
		v := heads("v")
		g := ops.KDAGate(heads("f"), b.Param("a_log", h), b.Param("dt_bias", h*d), 0)
		o, _ := ops.KDA(ops.L2Norm(heads("q"), 1e-6), ops.L2Norm(heads("k"), 1e-6), v, g, ops.KDABeta(ops.Linear(x, b.Param("beta", h, h*d)), false), ops.KDAOptions{})
		return ops.CrossEntropy(ops.Linear(ops.Reshape(o, batch, context, h*d), b.Param("head", vocab, h*d)), labels)
	}
	b := graph.New(graph.Share(params), graph.Float(dtype.Float64))
	build(b, 1, 1)
	require.NoError(t, b.Err())
	r := rand.New(rand.NewPCG(7, 8))
	for _, p := range params.All() {
		for i, w := 0, graph.Data[float64](p.Tensor()); i < len(w); i++ {
			w[i] = r.NormFloat64()
		}
		p.Touch()
	}
	loss, grad := checkPacked(t, params, dtype.Float64, build, vocab)
	// Measured 2e-16 and 3e-14: the decays make sums of very unlike terms.
	t.Logf("loss %.2g, gradients %.2g", loss, grad)
	require.LessOrEqual(t, loss, 1e-14)
	require.LessOrEqual(t, grad, 1e-13)
}

// TestPackComposesWithOtherPasses packs adapters, and a loss in 8 bits.
func TestPackComposesWithOtherPasses(t *testing.T) {
	m, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	square, err := models.New(models.Config{Type: "llama", Vocab: 17, Hidden: 32, FFN: 64, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 16, Context: 24, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, square.Init(1))
	eight := autocast.Train(square, autocast.Options{Recipe: autocast.Delayed{History: 4}, Filter: autocast.Filter{MinSize: 1}})
	tokens, labels := packedTokens(17)
	got := runLoss(t, square.Params(), dtype.Float32, func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
		return eight.Loss(b, batch, context, 0, 0)
	}, 2, tokens, labels, packedRows.lengths, packedRows.sequences)
	plain := runLoss(t, square.Params(), dtype.Float32, func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
		return square.Loss(b, batch, context, 0, 0)
	}, 2, tokens, labels, packedRows.lengths, packedRows.sequences)
	require.NotEqual(t, plain.mean, got.mean)
	require.InEpsilon(t, plain.mean, got.mean, 1e-3) // measured 2e-5
	require.Len(t, eight.Stats(), 3*7)
	for _, s := range eight.Stats() {
		require.Positive(t, s.Amax, "the states of the recipe see the packed step: %s", s.State)
	}

	ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 4}, 1)
	require.NoError(t, err)
	for _, p := range m.Params().All() {
		if !p.Frozen { // the second matrices start as zeros
			for i, w := 0, graph.Data[float32](p.Tensor()); i < len(w); i++ {
				w[i] = float32(math.Sin(float64(i))) / 4
			}
			p.Touch()
		}
	}
	loss, grad := checkPacked(t, m.Params(), dtype.Float32, func(b *graph.Builder, batch, context int) (mean, count *graph.Node) {
		return ad.Loss(b, batch, context, 0, 0)
	}, m.Config.Vocab)
	t.Logf("adapters: loss %.2g, gradients %.2g", loss, grad)
	require.LessOrEqual(t, loss, 8*0x1p-24)
	require.LessOrEqual(t, grad, 64*0x1p-24)
}

// TestPackedMemoryIsLinear plans a training step of one packed row: twice the
// tokens take twice the memory, so nothing of T x T is kept.
func TestPackedMemoryIsLinear(t *testing.T) {
	m, err := models.New(models.Config{Type: "llama", Vocab: 16, Hidden: 8, FFN: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 4, Context: 8192, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	arena := func(context int) float64 {
		b := graph.New(graph.Share(m.Params()))
		mean, count := m.Loss(b, 1, context, 0, 0)
		outs, err := models.Pack(64, mean, count)
		require.NoError(t, err)
		b = outs[0].Builder()
		grads, err := b.Grad(outs[0], b.Params()...)
		require.NoError(t, err)
		plan, err := b.Plan(append(outs, grads...)...)
		require.NoError(t, err)
		return float64(plan.Arena)
	}
	short, long := arena(4096), arena(8192)
	t.Logf("arena %.0f bytes at 4096 tokens, %.0f at 8192: %.3f times", short, long, long/short)
	require.InDelta(t, 2, long/short, 0.001) // measured 1.9998
}

func TestPackRefuses(t *testing.T) {
	x := func(b *graph.Builder) *graph.Node {
		return ops.Reshape(ops.Embedding(b.Input("tokens", dtype.Int32, 2, 3), b.Param("w", 5, 4)), 2, 3, 1, 4)
	}
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: 4, Base: 1e4, Positions: 3})
	require.NoError(t, err)
	for want, build := range map[string]func(b *graph.Builder) (int, *graph.Node){
		"the number of sequences must be at least 1, got 0": func(b *graph.Builder) (int, *graph.Node) { return 0, x(b) },
		`the graph must have an input "tokens" [B,T]`:       func(b *graph.Builder) (int, *graph.Node) { return 1, b.Input("x", dtype.Float32, 2, 3) },
		"rotary: rotary has positions of its own: it cannot": func(b *graph.Builder) (int, *graph.Node) {
			return 1, ops.Rotary(x(b), b.Input("p", dtype.Int32, 3), table, ops.Half)
		},
		"attention: attention has a mask or lengths of its own": func(b *graph.Builder) (int, *graph.Node) {
			y := x(b)
			return 1, ops.Attention(y, y, y, ops.AttentionOptions{KVLen: b.Input("len", dtype.Int32, 2)})
		},
		"attention: attention is on [6,1,1,4], not on the 2 rows of 3 tokens": func(b *graph.Builder) (int, *graph.Node) {
			y := ops.Reshape(x(b), 6, 1, 1, 4)
			return 1, ops.Attention(y, y, y, ops.AttentionOptions{})
		},
		"attention: all results of attention but the first, and the ops of generation, have no packed form": func(b *graph.Builder) (int, *graph.Node) {
			y := x(b)
			_, lse := ops.AttentionLSE(y, y, y, ops.AttentionOptions{})
			return 1, lse
		},
	} {
		b := graph.New()
		n, out := build(b)
		require.NoError(t, b.Err())
		_, err := models.Pack(n, out)
		require.ErrorContains(t, err, "models: pack: ")
		require.ErrorContains(t, err, want)
	}
	_, err = models.Pack(1)
	require.EqualError(t, err, "models: pack: at least one output is required")
	b := graph.New()
	b.Fail(fmt.Errorf("broken"))
	_, err = models.Pack(1, b.Input("tokens", dtype.Int32, 1, 1))
	require.ErrorContains(t, err, "broken")
}
