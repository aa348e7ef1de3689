package autocast_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// sumOfProducts is sum(y dy), the loss whose gradient of y is dy.
type sumOfProducts struct{}

func (sumOfProducts) Name() string { return "test_sum_of_products" }
func (sumOfProducts) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType)}, nil
}

func init() {
	graph.Register(graph.Def{
		Name:   "test_sum_of_products",
		NoGrad: []int{1},
		Native: func(c *graph.Call) error {
			var s float64
			for i, v := range graph.Data[float32](c.In[0]) {
				s += float64(v) * float64(graph.Data[float32](c.In[1])[i])
			}
			graph.Data[float32](c.Out[0])[0] = float32(s)
			return nil
		},
		// The seed of a gradient is 1, so dy is the gradient as it stands.
		Grad: func(g *graph.GradCall) []*graph.Node { return []*graph.Node{g.In[1], nil} },
	})
}

// TestQualityGates holds output and gradients on 1536x1536, M 2048, normal data,
// to their distance from those of float32.
func TestQualityGates(t *testing.T) {
	const m, n, k = 2048, 1536, 1536
	if testing.Short() {
		t.Skip("29 GFLOP a run")
	}
	values := map[string][]float32{}
	for name, size := range map[string]int{"x": m * k, "w.weight": n * k, "dy": m * n} {
		values[name] = optest.Cast[float32](optest.Normals(name, size, 1))
	}
	build := func() *graph.Builder {
		b := graph.New()
		y := ops.Linear(b.Param("x", m, k), b.Param("w.weight", n, k))
		b.Output("y", y)
		b.Output("loss", graph.Apply(sumOfProducts{}, y, b.Input("dy", dtype.Float32, m, n)))
		require.NoError(t, b.Err())
		for _, p := range b.Store().All() {
			copy(graph.Data[float32](p.Tensor()), values[p.Name])
			p.Touch()
		}
		return b
	}
	run := func(b *graph.Builder) (outs [][]float32) {
		grads, err := b.Grad(b.Out("loss"), b.Params()...)
		require.NoError(t, err)
		nodes := append([]*graph.Node{b.Out("y")}, grads...)
		plan, err := b.Plan(nodes...)
		require.NoError(t, err)
		exec, err := plan.Native()
		require.NoError(t, err)
		require.NoError(t, exec.Do(context.Background(), graph.Feeds{"dy": values["dy"]}))
		for _, o := range nodes {
			v, err := exec.Value(o)
			require.NoError(t, err)
			outs = append(outs, graph.Data[float32](v))
		}
		return outs
	}
	b := build()
	_, err := b.Plan(b.Out("loss"))
	require.NoError(t, err)
	want := run(b)
	for _, o := range []autocast.Options{{}, {Format: autocast.E4M3}, {Recipe: autocast.Delayed{History: 16, Margin: 1}}} {
		nb, _, err := autocast.FP8(build(), o)
		require.NoError(t, err)
		got := run(nb)
		for i, name := range []string{"y", "dx", "dw"} {
			d, cos, ratio := distance(got[i], want[i])
			t.Logf("%+v %s: relative error %.4f, cosine %.5f, norm ratio %.4f", o, name, d, cos, ratio)
			if name == "y" {
				require.Less(t, d, 5e-2)
				require.Greater(t, cos, 0.995)
				continue
			}
			require.Greater(t, cos, 0.99)
			require.InDelta(t, 1, ratio, 0.05)
		}
	}
}

// distance is the relative Frobenius error, the cosine, and the ratio of norms.
func distance(got, want []float32) (d, cos, ratio float64) {
	var dd, gg, ww, gw float64
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		dd += (g - w) * (g - w)
		gg += g * g
		ww += w * w
		gw += g * w
	}
	return math.Sqrt(dd / ww), gw / math.Sqrt(gg*ww), math.Sqrt(gg / ww)
}

// TestASmallModelTrainsInFP8: the trainer runs the model through the pass, and
// the held-out loss is within 2 % of float32's.
func TestASmallModelTrainsInFP8(t *testing.T) {
	c := models.Config{Type: "llama", Vocab: 16, Hidden: 64, FFN: 128, Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 32,
		Context: 32, NormEps: 1e-6, RopeTheta: 1e4}
	text := make([]int32, 20000)
	noise := optest.Ints("noise", len(text), 64)
	for i := 2; i < len(text); i++ { // each follows from the one before it, but for some noise
		text[i] = (5*text[i-1] + 3 + noise[i]/60) % 16
	}
	loss := func(wrap func(train.Model) train.Model) (float64, train.Model) {
		m := wrap(newModel(t, c))
		o := train.Defaults()
		o.Steps, o.Batch, o.Context, o.Warmup, o.LR, o.EvalEvery = 120, 8, 32, 10, 3e-3, 0
		tr, err := train.New(m, chain{text, 32, 8}, o)
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
		require.InEpsilon(t, plain, got, 0.02)
		for _, s := range ops.FP8Stats(m.Params()) {
			require.True(t, s.Recorded && s.Step > 0, fmt.Sprint(s))
		}
	}
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
