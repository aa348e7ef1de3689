package graph_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
)

// TestRecompute: two parts, a chain of pairs each (x -> x, x^2 -> their sum).
// The backward pass reads copies of what lies inside a part, and the value that
// the first part hands on itself.
func TestRecompute(t *testing.T) {
	params := graph.NewParams()
	run := func(segment func(string) string) (grad []float32, plan *graph.Plan) {
		b := graph.New(graph.Share(params))
		s := b.Scope("layers.0")
		x := s.Param("x", 64)
		h := x
		for i, name := range []string{"layers.0", "layers.1"} {
			h = graph.ApplyAs("in", graph.Add{}, h, b.Scope("%s", name).Param("bias", 64))
			for range 2 + i {
				ab := graph.ApplyAll("pair", pair{}, h)
				h = graph.ApplyAs("sum", graph.Add{}, ab[0], ab[1])
			}
		}
		loss := graph.Apply(total{}, h)
		grads, err := b.Grad(loss, x)
		require.NoError(t, err)
		outputs := []*graph.Node{loss, grads[0]}
		if segment != nil {
			outputs, err = graph.Recompute(segment, outputs...)
			require.NoError(t, err)
			require.True(t, outputs[0].Builder().Graded())
		}
		return second(t, params, 64, outputs)
	}
	copies := func(p *graph.Plan) (names []string) {
		for _, s := range p.Steps {
			if strings.Contains(s.Node.Name(), ".again") {
				names = append(names, s.Node.Name())
			}
		}
		return names
	}
	want, plain := run(nil)
	got, plan := run(func(scope string) string { return scope })
	require.Equal(t, want, got)
	require.Less(t, plan.Arena, plain.Arena)
	require.Equal(t, []string{
		"layers.1.in.again", "layers.1.pair.again", "layers.1.sum.again", "layers.1.pair#2.again", "layers.1.sum#2.again",
		"layers.0.in.again", "layers.0.pair.again", "layers.0.sum.again",
	}, copies(plan))
	got, plan = run(func(string) string { return "" })
	require.Equal(t, want, got)
	require.Equal(t, plain.Arena, plan.Arena)
	require.Empty(t, copies(plan))
}

// second fills the parameters with steps of 1/n from -0.3 on and runs the graph of
// outputs in poisoned memory; it is the second of them, and the plan.
func second(t *testing.T, params *graph.Params, n float32, outputs []*graph.Node) ([]float32, *graph.Plan) {
	b := outputs[0].Builder()
	require.NoError(t, graph.Verify(b))
	for _, p := range params.All() {
		for i, d := 0, graph.Data[float32](p.Tensor()); i < len(d); i++ {
			d[i] = float32(i)/n - 0.3
		}
		p.Touch()
	}
	plan, err := b.Plan(outputs...)
	require.NoError(t, err)
	exec, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, exec.Do(context.Background(), graph.Feeds{}))
	v, err := exec.Value(outputs[1])
	require.NoError(t, err)
	return append([]float32(nil), graph.Data[float32](v)...), plan
}

func TestRecomputeNeedsABackwardPass(t *testing.T) {
	none := func(string) string { return "" }
	_, err := graph.Recompute(none)
	require.EqualError(t, err, "graph: Recompute: no outputs")
	_, err = graph.Recompute(none, graph.New().Const("one", 1))
	require.EqualError(t, err, "graph: Recompute: there is no backward pass yet: take the gradient first")
	b, loss, grads, err := buildDiamond(graph.NewParams())
	require.NoError(t, err)
	require.True(t, b.Graded())
	_, err = graph.Recompute(none, loss, grads[0], graph.New().Const("one", 1))
	require.EqualError(t, err, "graph: Recompute: output 2 is not a node of this graph")
}

// TestRecomputeOneResultOfSeveral: the first result of a node is kept, since
// another part reads it, and the backward pass reads the second.
func TestRecomputeOneResultOfSeveral(t *testing.T) {
	params := graph.NewParams()
	run := func(recompute bool) []float32 {
		b := graph.New(graph.Share(params))
		x := b.Scope("a").Param("x", 8)
		ab := graph.ApplyAll("pair", pair{}, x)
		y := graph.ApplyAll("pair", pair{}, ab[1])[1]
		z := graph.ApplyAs("sum", graph.Add{}, b.Scope("b").Param("y", 8), ab[0])
		loss := graph.Apply(total{}, graph.Apply(graph.Add{}, y, graph.ApplyAll("pair", pair{}, z)[1]))
		grads, err := b.Grad(loss, x)
		require.NoError(t, err)
		outputs := []*graph.Node{loss, grads[0]}
		if recompute {
			outputs, err = graph.Recompute(func(scope string) string { return scope }, outputs...)
			require.NoError(t, err)
		}
		grad, _ := second(t, params, 8, outputs)
		return grad
	}
	require.Equal(t, run(false), run(true))
}
