package graph_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// TestRewriteOutputs keeps what the outputs need, in place of which a substitute
// may stand, and names what it cannot rewrite.
func TestRewriteOutputs(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 2, 3)
	sum := graph.Apply(graph.Add{}, x, x)
	other := graph.Apply(graph.Add{}, sum, x)
	var seen []string
	out, err := graph.RewriteOutputs(func(n *graph.Node, in []*graph.Node) []*graph.Node {
		seen = append(seen, n.Name())
		return nil
	}, sum)
	require.NoError(t, err)
	require.Len(t, out, 1)
	require.Equal(t, []string{sum.Name()}, seen, "%s is not needed", other.Name())
	require.Equal(t, sum.Name(), out[0].Name())
	require.NotSame(t, sum.Builder(), out[0].Builder())

	packed := graph.ApplyAll("two", twoResults{}, x)
	for i, r := range packed {
		of, k, ok := r.ResultOf()
		require.True(t, ok)
		require.Equal(t, i, k)
		require.Equal(t, []*graph.Node{x}, of.In())
	}
	_, _, ok := sum.ResultOf()
	require.False(t, ok)

	_, err = graph.RewriteOutputs(nil)
	require.EqualError(t, err, "rewrite: no outputs")
	_, err = graph.RewriteOutputs(nil, sum, graph.New().Input("x", dtype.Float32, 1))
	require.EqualError(t, err, "rewrite: output 1 is not a node of this graph")
	_, err = graph.RewriteOutputs(func(*graph.Node, []*graph.Node) []*graph.Node { return []*graph.Node{x} }, sum)
	require.ErrorContains(t, err, "belongs to another graph")
}

type twoResults struct{}

func (twoResults) Name() string { return "test_two_results" }
func (twoResults) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{in[0], in[0]}, nil
}

func init() { graph.Register(graph.Def{Name: "test_two_results"}) }
