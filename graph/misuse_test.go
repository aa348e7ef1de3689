// What a user can do wrong: every call gives an error that says so, nothing
// panics, and no wrong value passes for a right one.
package graph_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// show is a view of the first N elements of input I.
type show struct{ I, N int }

func (show) Name() string { return "test_show" }
func (s show) Alias() int { return s.I }
func (s show) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, s.N)}, nil
}

// odd has an Infer that breaks its contract.
type odd struct {
	infer func(in []graph.Type) []graph.Type
}

func (odd) Name() string                                  { return "test_odd" }
func (o odd) Infer(in []graph.Type) ([]graph.Type, error) { return o.infer(in), nil }

// uncounted has a FLOPs that panics, and a gradient rule that does.
type uncounted struct{ scale }

func (uncounted) Name() string { return "test_uncounted" }

func init() {
	graph.Register(graph.Def{Name: "test_show"})
	graph.Register(graph.Def{Name: "test_odd"})
	graph.Register(graph.Def{Name: "test_uncounted",
		FLOPs: func(graph.Op, []graph.Type, []graph.Type) int64 { panic("no count") },
		Grad:  func(*graph.GradCall) []*graph.Node { panic("no rule") },
	})
}

func TestMisuseOfABuilderIsAnError(t *testing.T) {
	float := dtype.Float32
	x := func(b *graph.Builder) *graph.Node { return b.Input("x", float, 4) }
	twice := func(b *graph.Builder, infer func(in []graph.Type) []graph.Type) { graph.Apply(odd{infer}, x(b)) }
	for want, build := range map[string]func(b *graph.Builder){
		`output "y" is missing`:                                 func(b *graph.Builder) { b.Output("y", nil) },
		`output "y", x, belongs to another graph`:               func(b *graph.Builder) { b.Output("y", x(graph.New())) },
		"add: input 1 is missing":                               func(b *graph.Builder) { graph.Apply(graph.Add{}, x(b), nil) },
		"add: input 0 is missing":                               func(b *graph.Builder) { graph.Apply(graph.Add{}, &graph.Node{}, x(b)) },
		"the op is missing (nil)":                               func(b *graph.Builder) { graph.Apply(nil, x(b)) },
		"test_odd: invalid is no element type":                  func(b *graph.Builder) { twice(b, func([]graph.Type) []graph.Type { return make([]graph.Type, 1) }) },
		"test_odd: Infer gave 0 results, must be 1 to 16":       func(b *graph.Builder) { twice(b, func([]graph.Type) []graph.Type { return nil }) },
		"test_odd: Infer gave 17 results, must be 1 to 16":      func(b *graph.Builder) { twice(b, func([]graph.Type) []graph.Type { return make([]graph.Type, 17) }) },
		"test_odd: Infer failed on [float32[4]]: out of cheese": func(b *graph.Builder) { twice(b, func([]graph.Type) []graph.Type { panic("out of cheese") }) },
		"x: dtype(99) is no element type":                       func(b *graph.Builder) { b.Input("x", dtype.DType(99), 4) },
		// An error of a node of no graph goes with it.
		"add: input 1: test_scale: none of the inputs is a node": func(b *graph.Builder) { graph.Apply(graph.Add{}, x(b), graph.Apply(scale{1}, nil)) },
		`output "y": test_scale: none of the inputs is a node`:   func(b *graph.Builder) { b.Output("y", graph.Apply(scale{1})) },
		"parameter w is used both as a weight and as a state": func(b *graph.Builder) {
			b.Param("w", 4)
			b.State("w", dtype.Int32, 4)
		},
		"state w holds float32, the graph asks for int32": func(b *graph.Builder) {
			b.State("w", float, 4)
			b.State("w", dtype.Int32, 4)
		},
		"test_show: shares the memory of input 1, it has 1 inputs": func(b *graph.Builder) { graph.Apply(show{1, 4}, x(b)) },
		"test_show: the result float32[5] lies in input 0, which has 16 bytes of the 20 needed (float32[4])": func(b *graph.Builder) {
			graph.Apply(show{0, 5}, x(b))
		},
	} {
		b := graph.New()
		build(b)
		require.EqualError(t, b.Err(), want)
		require.EqualError(t, graph.Verify(b), want)
		_, err := graph.Rewrite(b, nil)
		require.EqualError(t, err, want)
	}
	_, err := new(graph.Plan).Native()
	require.EqualError(t, err, "graph: Native: there is no plan: see the error of Plan")
	// The names of a weight and of a state of another store must differ too.
	b := graph.New(nil)
	require.EqualError(t, b.Err(), "graph: New: option 0 is missing (nil)")
	b = graph.New(graph.States(graph.NewParams()))
	b.Param("w", 4)
	b.State("w", float, 4)
	require.EqualError(t, b.Err(), "parameter w is used both as a weight and as a state")
}

// TestABuilderThatNewDidNotMakeIsAnError: whatever is asked of it, and of the
// nodes that come of it.
func TestABuilderThatNewDidNotMakeIsAnError(t *testing.T) {
	for _, none := range []*graph.Builder{nil, {}} {
		_, planned := none.Plan()
		_, graded := none.Grad(nil)
		_, taped := none.Tape()
		_, rewritten := graph.Rewrite(none, nil)
		for _, err := range []error{
			none.Err(), planned, graded, taped, rewritten, graph.Verify(none), none.Scope("layers.%d", 3).Err(),
			graph.RewriteInto(graph.New(), none, nil), graph.RewriteInto(none, graph.New(), nil),
		} {
			require.EqualError(t, err, "graph: the builder is missing: New makes one")
		}
		x := none.Input("x", dtype.Float32, 4)
		for _, n := range []*graph.Node{
			x, none.Param("w", 4), none.State("s", dtype.Int32, 4), none.Const("c", 1), none.Fail(errors.New("no")),
			none.Output("y", x), graph.Apply(graph.Add{}, x, x),
		} {
			require.EqualError(t, n.Builder().Err(), "graph: the builder is missing: New makes one")
		}
		require.Equal(t, dtype.Float32, none.Float())
		require.Nil(t, none.Stored("w"))
		require.Nil(t, none.Out("y"))
		require.Nil(t, none.Node("x"))
		require.Empty(t, none.Nodes())
		require.Empty(t, none.Params())
		require.Empty(t, none.Store().All())
		require.Empty(t, none.ExprGraph().AllNodes())
		require.False(t, none.Graded())
		require.NoError(t, none.Sibling().Err())
	}
}

// TestANodeThatThereIsNotIsEmpty: Out and Node return nil for it.
func TestANodeThatThereIsNotIsEmpty(t *testing.T) {
	n := graph.New().Out("loss")
	require.Equal(t, []any{"", "", "", "none (nil)", 1}, []any{n.Name(), n.Label(), n.Scope(), n.String(), n.Dim(0)})
	require.Equal(t, graph.Type{}, n.Type())
	require.Empty(t, n.Shape())
	require.Nil(t, n.Op())
	require.Empty(t, n.In())
	require.Nil(t, n.Param())
	require.Empty(t, n.Results())
	require.Zero(t, n.ResultOffset(1))
	require.Nil(t, n.Const())
	_, _, ok := n.ResultOf()
	require.False(t, ok)
	_, err := n.Fed(nil)
	require.ErrorContains(t, err, "was not fed")
	require.EqualError(t, n.Builder().Err(), "a node is missing (nil)")
}

func TestShapesAreTheCallersOwn(t *testing.T) {
	b := graph.New()
	shape := []int{2, 2}
	x := b.Input("x", dtype.Float32, shape...)
	shape[0] = 9
	x.Shape()[0] = 9
	x.Type().Shape[0] = 9
	graph.Apply(odd{func(in []graph.Type) []graph.Type {
		in[0].Shape[0] = 9
		return in
	}}, x)
	require.NoError(t, b.Err())
	require.Equal(t, []int{2, 2}, x.Shape())
}

func TestMisuseOfAPlanIsAnError(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 4)
	y := graph.Apply(scale{2}, x)
	plan, err := b.Plan(y)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	_, err = run.Value(nil)
	require.EqualError(t, err, "graph: Value: a node that is missing (nil) is not an output of the plan")
	_, err = run.Value(x)
	require.EqualError(t, err, "graph: Value: x is not an output of the plan")
	require.EqualError(t, run.Do(context.Background(), graph.Feeds{"x": nil}), "graph: Do: input x must be 4 elements of float32, got <nil>")
	_, err = b.Plan(nil)
	require.EqualError(t, err, "graph: Plan: output 0 is not a node of this graph")
	_, err = b.Plan(graph.Apply(uncounted{}, x))
	require.EqualError(t, err, "graph: Plan: test_uncounted: test_uncounted: FLOPs failed: no count")
	_, err = b.Grad(graph.Apply(total{}, graph.Apply(uncounted{}, x)), x)
	require.ErrorContains(t, err, "no rule")

	b = graph.New()
	plan, err = b.Plan(graph.Apply(scale{2}, b.Input("x", dtype.Float32, 1<<47)))
	require.NoError(t, err)
	_, err = plan.Native()
	require.ErrorContains(t, err, "graph: Native: an arena of 1048576.00GiB ")
}

func TestASubstituteOfAnotherGraphIsRefused(t *testing.T) {
	b := graph.New()
	b.Output("y", graph.Apply(scale{2}, b.Input("x", dtype.Float32, 4)))
	_, err := graph.Rewrite(b, func(n *graph.Node, _ []*graph.Node) []*graph.Node { return []*graph.Node{n} })
	require.EqualError(t, err, "test_scale: test_scale: rewrite: the substitute test_scale belongs to another graph: build it from the rebuilt inputs")
	_, err = graph.Rewrite(b, func(*graph.Node, []*graph.Node) []*graph.Node { return []*graph.Node{nil} })
	require.EqualError(t, err, "test_scale: test_scale: rewrite: the substitute is not a node")
}

// TestAnOutputIsNotOverwritten: an output that a later step of the plan writes
// to would show another value than the graph says.
func TestAnOutputIsNotOverwritten(t *testing.T) {
	b := graph.New()
	s := b.State("s", dtype.Int32, 1)
	one := graph.Apply(count{}, s)
	seen := graph.Apply(graph.Reshape{Shape: []int{1, 1}}, one)
	two := graph.Apply(count{}, one)
	for _, o := range []*graph.Node{s, one, seen} {
		_, err := b.Plan(two, o)
		require.EqualError(t, err, "graph: the output "+o.Name()+" shows s, which test_count#2 writes to: ask for the result of test_count#2, or read the state after the run")
	}
	_, err := b.Plan(one, seen)
	require.NoError(t, err)
	_, err = b.Plan(s)
	require.NoError(t, err)
}

// TestExecutorsAreMadeAtTheSameTime: they share the memory of a state that
// nobody has touched before.
func TestExecutorsAreMadeAtTheSameTime(t *testing.T) {
	b := graph.New()
	s := b.State("s", dtype.Float32, 64)
	y := graph.Apply(scale{2}, s)
	plan, err := b.Plan(y)
	require.NoError(t, err)
	runs := make([]*graph.Native, 8)
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() { runs[i], _ = plan.Native() })
	}
	wg.Wait()
	graph.Data[float32](s.Param().Tensor())[3] = 5
	for _, r := range runs {
		wg.Go(func() { _ = r.Do(context.Background(), nil) })
	}
	wg.Wait()
	for _, r := range runs {
		v, err := r.Value(y)
		require.NoError(t, err)
		require.EqualValues(t, 10, graph.Data[float32](v)[3])
	}
}

// TestAValueIsNotFedBack: the memory of a value may be that of an input, which
// the run writes first.
func TestAValueIsNotFedBack(t *testing.T) {
	b := graph.New()
	x, h := b.Input("x", dtype.Float32, 4), b.Input("h", dtype.Float32, 4)
	y := graph.Apply(scale{2}, graph.Apply(graph.Add{}, x, graph.Apply(scale{3}, h)))
	plan, err := b.Plan(y)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	feeds := graph.Feeds{"x": []float32{1, 2, 3, 4}, "h": make([]float32, 4)}
	require.NoError(t, run.Do(context.Background(), feeds))
	v, err := run.Value(y)
	require.NoError(t, err)
	feeds["h"] = graph.Data[float32](v)
	require.EqualError(t, run.Do(context.Background(), feeds), "graph: Do: input h must not be a value of this executor, whose memory the run writes to: feed a copy")
	other, err := plan.Native()
	require.NoError(t, err)
	require.NoError(t, other.Do(context.Background(), feeds))
	v, err = other.Value(y)
	require.NoError(t, err)
	require.Equal(t, []float32{14, 28, 42, 56}, graph.Data[float32](v))
}

// waits is an op whose body runs what the test gave it.
type waits struct{ body func() }

func (waits) Name() string                                { return "test_waits" }
func (waits) Infer(in []graph.Type) ([]graph.Type, error) { return in, nil }

func init() {
	graph.Register(graph.Def{Name: "test_waits", Native: func(c *graph.Call) error {
		c.Op.(waits).body()
		return nil
	}})
}

// TestOneExecutorIsNotForTwoGoroutines: the second run is refused and the first
// goes on.
func TestOneExecutorIsNotForTwoGoroutines(t *testing.T) {
	var run *graph.Native
	var second error
	feeds := graph.Feeds{"x": []float32{1, 2}}
	b := graph.New()
	plan, err := b.Plan(graph.Apply(waits{func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			second = run.Do(context.Background(), feeds)
		}()
		<-done
	}}, b.Input("x", dtype.Float32, 2)))
	require.NoError(t, err)
	run, err = plan.Native()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, run.Do(context.Background(), feeds))
		require.EqualError(t, second, "graph: Do: the executor is in a run already: make one for each goroutine")
	}
	var none context.Context
	require.EqualError(t, run.Do(none, feeds), "graph: Do: the context is missing (nil)")
}

// TestCloseWaitsForWhatRuns: the memory of weights stays to the end of a run.
func TestCloseWaitsForWhatRuns(t *testing.T) {
	b := graph.New()
	closed := make(chan struct{})
	plan, err := b.Plan(graph.Apply(waits{func() {
		go func() { b.Store().Close(); close(closed) }()
		select {
		case <-closed:
			t.Error("closed during the run")
		case <-time.After(5 * time.Millisecond):
		}
	}}, b.Input("x", dtype.Float32, 2)))
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	feeds := graph.Feeds{"x": []float32{1, 2}}
	require.NoError(t, run.Do(context.Background(), feeds))
	<-closed
	const gone = "the model is closed, and the files of its weights with it"
	require.EqualError(t, run.Do(context.Background(), feeds), "graph: Do: "+gone)
	_, err = plan.Native()
	require.EqualError(t, err, "graph: Native: "+gone)
}

// ruled is scale with a gradient rule of its own.
type ruled struct {
	scale
	rule func(g *graph.GradCall) []*graph.Node
}

func (ruled) Name() string { return "test_ruled" }

func init() {
	graph.Register(graph.Def{Name: "test_ruled", Grad: func(g *graph.GradCall) []*graph.Node { return g.Op.(ruled).rule(g) }})
}

func TestMisuseOfAGradientRuleIsAnError(t *testing.T) {
	for want, rule := range map[string]func(g *graph.GradCall) []*graph.Node{
		"layers.3.test_ruled: the gradient rule gave 0 nodes for 1 inputs":                                    func(*graph.GradCall) []*graph.Node { return nil },
		"layers.3.test_ruled: the gradient rule gave nothing for input 0, layers.3.w":                         func(*graph.GradCall) []*graph.Node { return []*graph.Node{nil} },
		"layers.3.test_ruled: the gradient of input 0, z, belongs to another graph":                           func(*graph.GradCall) []*graph.Node { return []*graph.Node{graph.New().Input("z", dtype.Float32, 4)} },
		"layers.3.test_ruled: the gradient rule failed: out of cheese":                                        func(*graph.GradCall) []*graph.Node { panic("out of cheese") },
		"layers.3.test_ruled: the gradient rule failed: Out(1) is asked for, results are counted from 0 to 0": func(g *graph.GradCall) []*graph.Node { return []*graph.Node{g.Out(1)} },
	} {
		b := graph.New()
		w := b.Scope("layers.3").Param("w", 4)
		_, err := b.Grad(graph.Apply(total{}, graph.Apply(ruled{scale{1}, rule}, w)), w)
		require.EqualError(t, err, "graph: Grad: "+want)
	}
}
