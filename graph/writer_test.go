package graph_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// running is the sum of all x so far, this run's included, kept in a state:
// an op that writes beside computing its result.
type running struct{}

func (running) Name() string                                { return "test_running" }
func (running) Writes() []int                               { return []int{1} }
func (running) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

// versions counts in its result how often it found the parameter changed.
type versions struct{}

func (versions) Name() string                                { return "test_versions" }
func (versions) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

type seen struct {
	version uint64
	changes float32
}

func init() {
	graph.Register(graph.Def{Name: "test_running", NoGrad: []int{0, 1}, Native: func(c *graph.Call) error {
		x, s, y := graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), graph.Data[float32](c.Out[0])
		for i := range x {
			s[i] += x[i]
			y[i] = s[i]
		}
		return nil
	}})
	graph.Register(graph.Def{Name: "test_versions", Native: func(c *graph.Call) error {
		if c.Param(1) != nil || c.Param(2) != nil {
			panic("an input is no parameter")
		}
		s := c.Param(0).Attach("seen", func() any { return &seen{} }).(*seen)
		if v := c.Param(0).Version(); v != s.version {
			s.version = v
			s.changes++
		}
		graph.Data[float32](c.Out[0])[0] = s.changes
		return nil
	}})
}

func TestWriterKeepsAStateBesideItsResult(t *testing.T) {
	params := graph.NewParams()
	b := graph.New(graph.Share(params))
	x := b.Input("x", dtype.Float32, 2)
	s := b.State("s", dtype.Float32, 2)
	y := graph.Apply(running{}, x, s)
	require.NoError(t, b.Err())
	require.NoError(t, graph.Verify(b))
	plan, err := b.Plan(y)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	tape, err := b.Tape(y)
	require.NoError(t, err)
	feeds := graph.Feeds{"x": []float32{1, 2}}
	for i := range 3 {
		require.NoError(t, run.Do(context.Background(), feeds))
		v, err := run.Value(y)
		require.NoError(t, err)
		require.Equal(t, []float32{float32(2*i + 1), float32(4*i + 2)}, graph.Data[float32](v))
		require.NoError(t, tape.Do(feeds)) // the tape goes on with the same state
		v, err = tape.Value(y)
		require.NoError(t, err)
		require.Equal(t, []float32{float32(2*i + 2), float32(4*i + 4)}, graph.Data[float32](v))
	}
	require.NoError(t, tape.Close())
	require.Equal(t, []float32{6, 12}, graph.Data[float32](params.Get("s").Tensor()))

	late := graph.Apply(scale{2}, s)
	_, err = b.Plan(y, late)
	require.EqualError(t, err, "graph: test_scale reads s after test_running has written it: the new content is for the next run")
	_, err = b.Plan(late)
	require.NoError(t, err, "a plan without the writer has no conflict")
	b2 := graph.New()
	z := b2.Input("x", dtype.Float32, 2)
	_, err = b2.Plan(graph.Apply(running{}, z, z))
	require.EqualError(t, err, "graph: test_running: test_running writes to x, which is not a state")
}

func TestABodySeesItsParameterAndWhatItKeepsThere(t *testing.T) {
	params := graph.NewParams()
	build := func() *graph.Native {
		b := graph.New(graph.Share(params))
		w := b.Param("w", 1)
		plan, err := b.Plan(graph.Apply(versions{}, w, b.Input("x", dtype.Float32, 1)))
		require.NoError(t, err)
		w.Param().Touch()
		run, err := plan.Native()
		require.NoError(t, err)
		return run
	}
	first, second := build(), build()
	changes := func(r *graph.Native) float32 {
		require.NoError(t, r.Do(context.Background(), graph.Feeds{"x": []float32{0}}))
		v, err := r.Value(r.Plan().Outputs[0])
		require.NoError(t, err)
		return graph.Data[float32](v)[0]
	}
	require.EqualValues(t, 1, changes(first))
	require.EqualValues(t, 1, changes(second), "graphs of one model share what is kept")
	params.Get("w").Touch()
	require.EqualValues(t, 2, changes(second))
	require.EqualValues(t, 2, changes(first))
}

func TestRewriteIntoAnEmptyGraph(t *testing.T) {
	src := graph.New()
	s := src.Scope("layers.%d", 1)
	y := graph.Apply(scale{3}, graph.Apply(scale{2}, s.Param("x", 4)))
	src.Output("y", y)
	dst := src.Sibling()
	require.NoError(t, graph.RewriteInto(dst, src, nil))
	require.NoError(t, graph.Verify(dst))
	require.Equal(t, y.Name(), dst.Out("y").Name())
	require.Equal(t, src.Store(), dst.Store())
	require.Equal(t, "later", dst.Input("later", dtype.Float32, 1).Name(), "the scope of the target stays")
	require.EqualError(t, graph.RewriteInto(dst, src, nil), "rewrite: the target must be empty, it has 4 nodes")
	require.EqualError(t, graph.RewriteInto(graph.New(), src, nil), "rewrite: the target must share parameters, states and element type with the graph")
	bad := src.Sibling()
	bad.Input("", dtype.Float32)
	require.EqualError(t, graph.RewriteInto(bad, src, nil), "an input needs a name")
}

func TestAStoredTypeBelongsToItsGraph(t *testing.T) {
	b := graph.New()
	w := b.Param("w", 4)
	plan, err := b.Plan(graph.Apply(scale{1}, w))
	require.NoError(t, err)
	require.EqualError(t, w.Param().Store(dtype.BFloat16, make([]byte, 4)), "parameter w: bfloat16[4] has 8 bytes, got 4")
	require.NoError(t, w.Param().Store(dtype.BFloat16, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, w.Param().Tensor().Bytes())
	require.False(t, w.Param().Trainable())
	_, err = plan.Native()
	require.EqualError(t, err, "graph: Native: parameter w is stored as bfloat16[4], the graph was built for float32[4]: build it again")
	require.Equal(t, dtype.BFloat16, b.Sibling().Param("w", 4).Type().DType)
}

// TestRewriteKeepsTheNamesOfResults also where an op of several results stands
// twice in a scope.
func TestRewriteKeepsTheNamesOfResults(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 4)
	for range 2 {
		x = graph.ApplyAll("pair", pair{}, x)[1]
	}
	require.Equal(t, "pair#2.1", x.Name())
	b.Output("x", x)
	nb, err := graph.Rewrite(b, nil)
	require.NoError(t, err)
	var names, after []string
	for _, n := range b.Nodes() {
		names = append(names, n.Name())
	}
	for _, n := range nb.Nodes() {
		after = append(after, n.Name())
	}
	require.Equal(t, names, after)
}
