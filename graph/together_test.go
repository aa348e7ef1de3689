package graph_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// times is x times a number, and writes down with how many others it ran.
type times struct{ by float32 }

func (times) Name() string                                { return "test_times" }
func (times) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

var ranTogether []int

func runTimes(c *graph.Call) error {
	by := c.Op.(times).by
	for i, v := range graph.Data[float32](c.In[0]) {
		graph.Data[float32](c.Out[0])[i] = by * v
	}
	return nil
}

func init() {
	graph.Register(graph.Def{
		Name: "test_times",
		Native: func(c *graph.Call) error {
			ranTogether = append(ranTogether, 1)
			return runTimes(c)
		},
		Together: func(calls []graph.Call) error {
			ranTogether = append(ranTogether, len(calls))
			for i := range calls {
				if calls[i].Op.(times).by == 13 {
					return errors.New("bad luck")
				}
				if err := runTimes(&calls[i]); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// Steps of one op that follow each other and have one first input run in one
// call, others do not.
func TestStepsRunTogether(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 2)
	a, c, d := graph.Apply(times{2}, x), graph.Apply(times{3}, x), graph.Apply(times{5}, x)
	e := graph.Apply(times{7}, d)
	f, g := graph.Apply(times{1}, e), graph.Apply(times{4}, e)
	plan, err := b.Plan(a, c, d, f, g)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison(), graph.Timing())
	require.NoError(t, err)
	ranTogether = nil
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": []float32{1, 2}}))
	require.Equal(t, []int{3, 1, 2}, ranTogether)
	for n, want := range map[*graph.Node][]float32{a: {2, 4}, c: {3, 6}, d: {5, 10}, f: {35, 70}, g: {140, 280}} {
		got, err := run.Value(n)
		require.NoError(t, err)
		require.Equal(t, want, graph.Data[float32](got))
	}
	require.Contains(t, run.Profile(), "test_times")

	b = graph.New()
	x = b.Input("x", dtype.Float32, 2)
	plan, err = b.Plan(graph.Apply(times{2}, x), graph.Apply(times{13}, x))
	require.NoError(t, err)
	run, err = plan.Native()
	require.NoError(t, err)
	require.ErrorContains(t, run.Do(context.Background(), graph.Feeds{"x": []float32{1, 2}}), "test_times: bad luck")
}
