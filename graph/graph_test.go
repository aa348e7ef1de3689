package graph_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Small ops for the tests of this package: scale, a two-result split-like op,
// a reduction to a scalar, and a state that counts.

type scale struct{ By float64 }

func (scale) Name() string                                { return "test_scale" }
func (scale) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

// minmax gives x and x*x as two results.
type pair struct{}

func (pair) Name() string { return "test_pair" }
func (pair) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{in[0], in[0]}, nil
}

type pairGrad struct{ A, B bool }

func (pairGrad) Name() string                                { return "test_pair_grad" }
func (pairGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

type total struct{}

func (total) Name() string { return "test_total" }
func (total) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType)}, nil
}

type fill struct{ Shape []int }

func (fill) Name() string { return "test_fill" }
func (f fill) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, f.Shape...)}, nil
}

type count struct{}

func (count) Name() string                                { return "test_count" }
func (count) Alias() int                                  { return 0 }
func (count) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

type strict struct{}

func (strict) Name() string { return "test_strict" }
func (strict) Infer(in []graph.Type) ([]graph.Type, error) {
	return nil, fmt.Errorf("wants nothing (x %s)", in[0].Dims())
}

func init() {
	graph.Register(graph.Def{Name: "test_scale", InPlace: []int{0},
		Native: func(c *graph.Call) error {
			x, y := graph.Data[float32](c.In[0]), graph.Data[float32](c.Out[0])
			for i := range x {
				y[i] = x[i] * float32(c.Op.(scale).By)
			}
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(g.Op, g.Out(0))}
		}})
	graph.Register(graph.Def{Name: "test_pair",
		Native: func(c *graph.Call) error {
			x, a, b := graph.Data[float32](c.In[0]), graph.Data[float32](c.Out[0]), graph.Data[float32](c.Out[1])
			for i := range x {
				a[i], b[i] = x[i], x[i]*x[i]
			}
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			in := []*graph.Node{g.In[0]}
			da, db := g.Out(0), g.Out(1)
			for _, d := range []*graph.Node{da, db} {
				if d != nil {
					in = append(in, d)
				}
			}
			return []*graph.Node{graph.Apply(pairGrad{da != nil, db != nil}, in...)}
		}})
	graph.Register(graph.Def{Name: "test_pair_grad",
		Native: func(c *graph.Call) error {
			op := c.Op.(pairGrad)
			x, dx := graph.Data[float32](c.In[0]), graph.Data[float32](c.Out[0])
			clear(dx)
			next := 1
			if op.A {
				for i, d := range graph.Data[float32](c.In[next]) {
					dx[i] += d
				}
				next++
			}
			if op.B {
				for i, d := range graph.Data[float32](c.In[next]) {
					dx[i] += 2 * x[i] * d
				}
			}
			return nil
		}})
	graph.Register(graph.Def{Name: "test_total",
		Native: func(c *graph.Call) error {
			var s float32
			for _, v := range graph.Data[float32](c.In[0]) {
				s += v
			}
			graph.Data[float32](c.Out[0])[0] = s
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(fill{g.In[0].Shape()}, g.Out(0))}
		}})
	graph.Register(graph.Def{Name: "test_fill",
		Native: func(c *graph.Call) error {
			for i := range graph.Data[float32](c.Out[0]) {
				graph.Data[float32](c.Out[0])[i] = graph.Data[float32](c.In[0])[0]
			}
			return nil
		}})
	graph.Register(graph.Def{Name: "test_count",
		Native: func(c *graph.Call) error {
			graph.Data[int32](c.Out[0])[0]++
			return nil
		}})
	graph.Register(graph.Def{Name: "test_strict"})
	graph.Register(graph.Def{Name: "test_panic",
		Native: func(c *graph.Call) error { panic("out of cheese") }})
	graph.Register(graph.Def{Name: "add", InPlace: []int{0, 1},
		Native: func(c *graph.Call) error {
			a, b, y := graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), graph.Data[float32](c.Out[0])
			for i := range a {
				y[i] = a[i] + b[i]
			}
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node { return []*graph.Node{g.Out(0), g.Out(0)} }})
}

type panicOp struct{ scale }

func (panicOp) Name() string { return "test_panic" }

// buildDiamond is loss = sum(3x + x) + sum over both results of pair(x), whose
// gradient is 4 + 1 + 2x.
func buildDiamond(params *graph.Params) (*graph.Builder, *graph.Node, []*graph.Node, error) {
	b := graph.New(graph.Share(params))
	s := b.Scope("layers.%d", 0)
	x := s.Param("x", 2, 3)
	y := graph.Apply(graph.Add{}, graph.Apply(scale{3}, x), x)
	ab := graph.ApplyAll("pair", pair{}, x)
	z := graph.Apply(graph.Add{}, y, graph.Apply(graph.Add{}, ab[0], ab[1]))
	z = graph.Apply(graph.Reshape{Shape: []int{6}}, z)
	loss := b.Output("loss", graph.Apply(total{}, z))
	if b.Err() != nil {
		return nil, nil, nil, b.Err()
	}
	grads, err := b.Grad(loss, b.Params()...)
	return b, loss, grads, err
}

func setX(params *graph.Params) []float32 {
	p := params.Get("layers.0.x")
	x := graph.Data[float32](p.Tensor())
	for i := range x {
		x[i] = float32(i) - 2.5
	}
	p.Touch()
	return x
}

func TestGradOfSharedInputsAndSeveralResults(t *testing.T) {
	params := graph.NewParams()
	b, loss, grads, err := buildDiamond(params)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(b))
	x := setX(params)
	plan, err := b.Plan(loss, grads[0])
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	tape, err := b.Tape(loss, grads[0])
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, run.Do(context.Background(), nil))
		require.NoError(t, tape.Do(nil))
		var want float32
		for _, v := range x {
			want += 5*v + v*v
		}
		got, err := run.Value(loss)
		require.NoError(t, err)
		require.InDelta(t, want, graph.Data[float32](got)[0], 1e-5)
		dx, err := run.Value(grads[0])
		require.NoError(t, err)
		for i, v := range x {
			require.Equal(t, 5+2*v, graph.Data[float32](dx)[i])
		}
		for _, n := range []*graph.Node{loss, grads[0]} {
			a, err := run.Value(n)
			require.NoError(t, err)
			c, err := tape.Value(n)
			require.NoError(t, err)
			require.Equal(t, a.Bytes(), c.Bytes(), "TapeMachine and Plan agree to the bit on %s", n.Name())
		}
		x[1] += 7 // parameters are shared: the next run sees it
	}
	require.NoError(t, tape.Close())
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = run.Do(context.Background(), nil) }))
}

func TestRewriteKeepsNamesAndValues(t *testing.T) {
	params := graph.NewParams()
	b := graph.New(graph.Share(params))
	x := b.Param("x", 4)
	b.Output("y", graph.Apply(scale{2}, graph.Apply(scale{3}, x)))
	require.NoError(t, b.Err())
	same, err := graph.Rewrite(b, nil)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(same))
	p1, err := b.Plan(b.Out("y"))
	require.NoError(t, err)
	p2, err := same.Plan(same.Out("y"))
	require.NoError(t, err)
	require.Equal(t, p1.String(), p2.String())
	double, err := graph.Rewrite(b, func(n *graph.Node, in []*graph.Node) []*graph.Node {
		if op, ok := n.Op().(scale); ok && op.By == 3 {
			return graph.ApplyAll(n.Label(), scale{30}, in...)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "test_scale", double.Out("y").In()[0].Name())
	p := params.Get("x")
	copy(graph.Data[float32](p.Tensor()), []float32{1, 2, 3, 4})
	p.Touch()
	p3, err := double.Plan(double.Out("y"))
	require.NoError(t, err)
	run, err := p3.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), nil))
	v, err := run.Value(double.Out("y"))
	require.NoError(t, err)
	require.Equal(t, []float32{60, 120, 180, 240}, graph.Data[float32](v))
}

func TestErrorsNamePathAndOp(t *testing.T) {
	for want, build := range map[string]func(b *graph.Builder){
		"layers.3.attn: test_strict: wants nothing (x [2,2])": func(b *graph.Builder) {
			graph.Apply(strict{}, b.Scope("layers.%d.attn", 3).Input("x", dtype.Float32, 2, 2))
		},
		"add: inputs must have one type, got float32[2] and float32[3]": func(b *graph.Builder) {
			graph.Apply(graph.Add{}, b.Input("x", dtype.Float32, 2), b.Input("y", dtype.Float32, 3))
		},
		"x: dimension 0 of [0,4] is 0, every dimension must be at least 1": func(b *graph.Builder) {
			b.Input("x", dtype.Float32, 0, 4)
		},
		`the name "x" is taken`: func(b *graph.Builder) {
			b.Input("x", dtype.Float32, 4)
			b.Input("x", dtype.Float32, 4)
		},
		"parameter w has shape [4], the graph asks for [5]": func(b *graph.Builder) {
			b.Param("w", 4)
			b.Param("w", 5)
		},
		"reshape: [4] has 4 elements, [3] has 3": func(b *graph.Builder) {
			graph.Apply(graph.Reshape{Shape: []int{3}}, b.Input("x", dtype.Float32, 4))
		},
		"x: [1073741824,1073741824] has more than 2^48 elements": func(b *graph.Builder) {
			b.Input("x", dtype.Float32, 1<<30, 1<<30)
		},
		"test_scale: input 1, x, belongs to another graph": func(b *graph.Builder) {
			graph.Apply(scale{}, b.Input("x", dtype.Float32, 4), graph.New().Input("x", dtype.Float32, 4))
		},
	} {
		b := graph.New()
		build(b)
		require.EqualError(t, b.Err(), want)
		// Everything after the first error does nothing.
		n := graph.Apply(scale{2}, b.Input("later", dtype.Float32, 2))
		require.Equal(t, 1, n.Dim(-1))
		require.EqualError(t, b.Err(), want)
		_, err := b.Plan(n)
		require.EqualError(t, err, want)
	}
}

func TestGradRefuses(t *testing.T) {
	b := graph.New()
	x, lost := b.Param("x", 2), b.Param("lost", 2)
	loss := graph.Apply(total{}, x)
	_, err := b.Grad(graph.Apply(scale{1}, x), x)
	require.EqualError(t, err, "graph: Grad: the loss must be a scalar of float32, got test_scale float32[2]")
	_, err = b.Grad(loss, x, lost)
	require.EqualError(t, err, "graph: Grad: the loss does not depend on lost")
	_, err = b.Grad(loss)
	require.EqualError(t, err, "graph: Grad: nothing to differentiate by: the graph has no trainable parameters")
	_, err = b.Grad(loss, x)
	require.NoError(t, err)
	_, err = b.Grad(loss, x)
	require.ErrorContains(t, err, "the gradient was taken already")
}

func TestStateIsWrittenInOrder(t *testing.T) {
	b := graph.New()
	n := b.State("n", dtype.Int32, 1)
	one := graph.Apply(count{}, n)
	two := graph.Apply(count{}, one)
	plan, err := b.Plan(two)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, run.Do(context.Background(), nil))
		v, err := run.Value(two)
		require.NoError(t, err)
		require.Equal(t, []int32{int32(2*i + 2)}, graph.Data[int32](v))
	}
	stale := graph.Apply(count{}, n)
	_, err = b.Plan(two, stale)
	require.ErrorContains(t, err, "reads n after test_count#2 has written it: use the result of test_count#2")
	b2 := graph.New()
	_, err = b2.Plan(graph.Apply(count{}, b2.Input("x", dtype.Int32, 1)))
	require.ErrorContains(t, err, "writes to x, which is not a state")
}

// sumDiff is x + y and x - y, each in the place of an input where it can be.
type sumDiff struct{}

func (sumDiff) Name() string                                { return "test_sum_diff" }
func (sumDiff) Infer(in []graph.Type) ([]graph.Type, error) { return in, nil }

func init() {
	graph.Register(graph.Def{Name: "test_sum_diff", InPlace: []int{0, 1}, Native: func(c *graph.Call) error {
		x, y, s, d := graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), graph.Data[float32](c.Out[0]), graph.Data[float32](c.Out[1])
		for i := range x {
			s[i], d[i] = x[i]+y[i], x[i]-y[i]
		}
		return nil
	}})
}

func TestSpreadPlansTakeOverInputsByResults(t *testing.T) {
	b := graph.New()
	x, y := b.Input("x", dtype.Float32, 1024), b.Input("y", dtype.Float32, 1024)
	both := graph.ApplyAll("both", sumDiff{}, graph.Apply(scale{2}, x), graph.Apply(scale{3}, y))
	kept := graph.ApplyAll("kept", sumDiff{}, both[0], both[1])
	out := graph.Apply(graph.Add{}, kept[0], both[1]) // both[1] is read again: kept[1] has a place of its own
	for _, spread := range []bool{false, true} {
		plan, err := b.Plan(out, kept[1])
		require.NoError(t, err)
		require.False(t, plan.IsSpread())
		arena := 5 * 4096 // at most, with what an op reads beside its two results
		if spread {
			plan.Spread()
			require.True(t, plan.IsSpread())
			arena = 3 * 4096
		}
		require.Equal(t, arena, plan.Arena)
		run, err := plan.Native(graph.Poison())
		require.NoError(t, err)
		feed := func(v float32) []float32 {
			s := make([]float32, 1024)
			for i := range s {
				s[i] = v + float32(i)
			}
			return s
		}
		require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": feed(1), "y": feed(10)}))
		for i := range 1024 {
			sum, diff := 2*(1+float32(i))+3*(10+float32(i)), 2*(1+float32(i))-3*(10+float32(i))
			for k, want := range []float32{sum + 2*diff, sum - diff} {
				v, err := run.Value(plan.Outputs[k])
				require.NoError(t, err)
				require.Equal(t, want, graph.Data[float32](v)[i])
			}
		}
	}
}

// half is x in two results.
type half struct{}

func (half) Name() string                                { return "test_half" }
func (half) Infer(in []graph.Type) ([]graph.Type, error) { return []graph.Type{in[0], in[0]}, nil }

func init() {
	graph.Register(graph.Def{Name: "test_half", Native: func(c *graph.Call) error {
		for i, v := range graph.Data[float32](c.In[0]) {
			graph.Data[float32](c.Out[0])[i], graph.Data[float32](c.Out[1])[i] = v/2, v/2
		}
		return nil
	}})
}

func TestSpreadResultsLiveAsLongAsTheyAreRead(t *testing.T) {
	b := graph.New()
	first := graph.ApplyAll("first", half{}, b.Input("x", dtype.Float32, 1024))
	second := graph.ApplyAll("second", half{}, graph.Apply(scale{8}, first[0])) // which takes over first[0], but not first[1]
	out := graph.Apply(graph.Add{}, graph.Apply(graph.Add{}, graph.Apply(scale{8}, second[0]), second[1]), first[1])
	for _, spread := range []bool{false, true} {
		plan, err := b.Plan(out)
		require.NoError(t, err)
		arena := 5 * 4096
		if spread {
			plan.Spread()
			arena = 4 * 4096
		}
		require.Equal(t, arena, plan.Arena)
		run, err := plan.Native(graph.Poison())
		require.NoError(t, err)
		x := make([]float32, 1024)
		x[3] = 1
		require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": x}))
		v, err := run.Value(out)
		require.NoError(t, err)
		require.Equal(t, float32(16+2+0.5), graph.Data[float32](v)[3])
	}
}

func TestPlanSharesMemory(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 1024)
	for range 20 {
		x = graph.Apply(scale{1.5}, x)
	}
	plan, err := b.Plan(x)
	require.NoError(t, err)
	require.Equal(t, 2*4096, plan.Arena, "the input and one buffer that every step takes over")
	require.Contains(t, plan.String(), "plan: 20 steps")
	require.Contains(t, plan.DOT(), `"x" -> "test_scale"`)
	run, err := plan.Native(graph.Poison(), graph.Timing())
	require.NoError(t, err)
	in := make([]float32, 1024)
	in[5] = 1
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": in}))
	v, err := run.Value(x)
	require.NoError(t, err)
	require.InEpsilon(t, math.Pow(1.5, 20), graph.Data[float32](v)[5], 1e-6)
	require.Contains(t, run.Profile(), "test_scale")
}

func TestFeedsAreCheckedBeforeAnyWork(t *testing.T) {
	b := graph.New()
	y := graph.Apply(scale{1}, b.Input("x", dtype.Float32, 2))
	plan, err := b.Plan(y)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	do := func(f graph.Feeds) error { return run.Do(context.Background(), f) }
	require.EqualError(t, do(nil), "graph: Do: input x (float32[2]) was not fed")
	require.EqualError(t, do(graph.Feeds{"x": []float32{1}}), "graph: Do: input x must be 2 elements of float32, got 1 of float32")
	require.EqualError(t, do(graph.Feeds{"x": []int32{1, 2}}), "graph: Do: input x must be 2 elements of float32, got 2 of int32")
	require.EqualError(t, do(graph.Feeds{"x": "no"}), "graph: Do: input x must be 2 elements of float32, got string")
	require.EqualError(t, do(graph.Feeds{"x": []float32{1, 2}, "z": []float32{1}}), "graph: Do: the plan has no input z")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.True(t, errors.Is(run.Do(ctx, graph.Feeds{"x": []float32{1, 2}}), context.Canceled))
}

func TestPanicInABodyIsAnError(t *testing.T) {
	b := graph.New()
	y := graph.Apply(panicOp{}, b.Scope("layers.1").Input("x", dtype.Float32, 2))
	plan, err := b.Plan(y)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	require.EqualError(t, run.Do(context.Background(), graph.Feeds{"layers.1.x": []float32{1, 2}}), "layers.1.test_panic: test_panic: panic: out of cheese")
	tape, err := b.Tape(y)
	require.NoError(t, err)
	require.ErrorContains(t, tape.Do(graph.Feeds{"layers.1.x": []float32{1, 2}}), "out of cheese")
}

func TestParametersNeedValues(t *testing.T) {
	b := graph.New()
	plan, err := b.Plan(graph.Apply(scale{1}, b.Param("w", 2)))
	require.NoError(t, err)
	_, err = plan.Native()
	require.EqualError(t, err, "graph: Native: parameter w has no value: initialise it (models have Init; else write its Tensor, then Touch), load a checkpoint, or build the graph on the parameters of the model that has it (graph.Share)")
}
