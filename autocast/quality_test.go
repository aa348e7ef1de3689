package autocast_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
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
				require.Less(t, d, 5e-2) // measured 0.037
				require.Greater(t, cos, 0.995)
				continue
			}
			require.Greater(t, cos, 0.99) // measured 0.998, of gradients in E5M2
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
