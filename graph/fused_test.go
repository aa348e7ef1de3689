package graph_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// lead is 10 x, main is x + 1, tail the sum of two values; main writes down what it
// was fused with.
type fusable struct{ name string }

func (o fusable) Name() string                              { return "test_" + o.name }
func (fusable) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

var (
	fusedWith  []string
	refuses    bool // what fuses
	fusedPanic bool
)

func runFusable(c *graph.Call) error {
	x, y := graph.Data[float32](c.In[0]), graph.Data[float32](c.Out[0])
	for i, v := range x {
		switch c.Op.Name() {
		case "test_lead":
			y[i] = 10 * v
		case "test_main":
			y[i] = v + 1
		case "test_tail":
			y[i] = v + graph.Data[float32](c.In[1])[i]
		}
	}
	return nil
}

func init() {
	graph.Register(graph.Def{Name: "test_lead", Native: runFusable, InPlace: []int{0}})
	graph.Register(graph.Def{Name: "test_tail", Native: runFusable, InPlace: []int{0, 1}})
	graph.Register(graph.Def{
		Name:   "test_main",
		Native: runFusable,
		Together: func(calls []graph.Call) error {
			for i := range calls {
				_ = runFusable(&calls[i])
			}
			return nil
		},
		Leads: []string{"test_lead"},
		Tails: []string{"test_tail"},
		Fused: func(lead *graph.Call, calls []graph.Call, tail *graph.Call) bool {
			if fusedPanic {
				panic("bad luck")
			}
			if refuses {
				return false
			}
			fusedWith = append(fusedWith, fmt.Sprintf("%t %d %t", lead != nil, len(calls), tail != nil))
			if lead != nil {
				_ = runFusable(lead)
			}
			for i := range calls {
				_ = runFusable(&calls[i])
			}
			if tail != nil {
				_ = runFusable(tail)
			}
			return true
		},
	})
}

// A call runs in one go with what stands right before and behind it where nothing else
// reads what passes between them, and no memory that is read is written to.
func TestStepsRunFused(t *testing.T) {
	lead := func(x *graph.Node) *graph.Node { return graph.Apply(fusable{"lead"}, x) }
	main := func(x *graph.Node) *graph.Node { return graph.Apply(fusable{"main"}, x) }
	tail := func(x, y *graph.Node) *graph.Node { return graph.Apply(fusable{"tail"}, x, y) }
	flat := func(x *graph.Node) *graph.Node { return graph.Apply(graph.Reshape{Shape: []int{2, 1}}, x) }
	wide := func(x *graph.Node) *graph.Node { return graph.Apply(graph.Reshape{Shape: []int{2}}, x) }
	for _, c := range []struct {
		name  string
		build func(x *graph.Node) []*graph.Node
		fused []string
		want  []float32 // of 1, one number an output
	}{
		{"both", func(x *graph.Node) []*graph.Node { return []*graph.Node{tail(x, main(lead(x)))} },
			[]string{"true 1 true"}, []float32{12}},
		{"the sum turned round, and views between", func(x *graph.Node) []*graph.Node {
			return []*graph.Node{tail(wide(main(flat(lead(x)))), x)}
		}, []string{"true 1 true"}, []float32{12}},
		{"two, one after the other", func(x *graph.Node) []*graph.Node {
			y := tail(x, main(lead(x)))
			return []*graph.Node{tail(y, main(lead(y)))}
		}, []string{"true 1 true", "false 1 true"}, []float32{133}}, // y, which lead reads, is written to in place
		{"the second keeps what lead reads", func(x *graph.Node) []*graph.Node {
			y := tail(x, main(lead(x)))
			return []*graph.Node{tail(y, main(lead(y))), y}
		}, []string{"true 1 true", "true 1 true"}, []float32{133, 12}},
		{"calls of one lead", func(x *graph.Node) []*graph.Node {
			h := lead(x)
			return []*graph.Node{main(h), main(h), tail(x, x)}
		}, []string{"true 2 false"}, []float32{11, 11, 2}},
		{"calls that are written where lead reads", func(x *graph.Node) []*graph.Node {
			h := lead(x)
			return []*graph.Node{main(h), main(h)}
		}, []string{"false 2 false"}, []float32{11, 11}},
		{"a lead with another use", func(x *graph.Node) []*graph.Node {
			h := lead(x)
			return []*graph.Node{tail(h, main(h)), lead(h)}
		}, []string{"false 1 true"}, []float32{21, 100}},
		{"a sum in the place of what the call reads", func(x *graph.Node) []*graph.Node {
			h := lead(x)
			return []*graph.Node{tail(h, main(h))}
		}, []string{"false 1 false"}, []float32{21}},
		{"a lead that is an output", func(x *graph.Node) []*graph.Node {
			h := lead(x)
			return []*graph.Node{main(h), wide(flat(h))}
		}, []string{"false 1 false"}, []float32{11, 10}},
		{"a call that is an output", func(x *graph.Node) []*graph.Node {
			y := main(x)
			return []*graph.Node{y, tail(x, y)}
		}, []string{"false 1 false"}, []float32{2, 3}},
		{"a tail of the call alone", func(x *graph.Node) []*graph.Node {
			y := main(x)
			return []*graph.Node{tail(y, y)}
		}, []string{"false 1 false"}, []float32{4}},
		{"a tail of two calls", func(x *graph.Node) []*graph.Node { return []*graph.Node{tail(main(x), main(x))} },
			[]string{"false 2 false"}, []float32{4}},
		{"others are neither", func(x *graph.Node) []*graph.Node { return []*graph.Node{lead(main(tail(x, x)))} },
			[]string{"false 1 false"}, []float32{30}},
	} {
		b := graph.New()
		outs := c.build(b.Input("x", dtype.Float32, 2))
		plan, err := b.Plan(outs...)
		require.NoError(t, err, c.name)
		for _, refuses = range []bool{false, true} {
			run, err := plan.Native(graph.Poison(), graph.Timing())
			require.NoError(t, err, c.name)
			for range 2 {
				fusedWith = nil
				require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": []float32{1, 1}}), c.name)
				if !refuses {
					require.Equal(t, c.fused, fusedWith, c.name)
				}
			}
			for i, o := range outs {
				got, err := run.Value(o)
				require.NoError(t, err)
				require.Equal(t, []float32{c.want[i], c.want[i]}, graph.Data[float32](got), "%s, output %d", c.name, i)
			}
		}
	}
	refuses = false

	b := graph.New()
	plan, err := b.Plan(main(lead(b.Scope("layer").Input("x", dtype.Float32, 2))))
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	fusedPanic = true
	defer func() { fusedPanic = false }()
	require.ErrorContains(t, run.Do(context.Background(), graph.Feeds{plan.Inputs()[0].Name(): []float32{1, 2}}), "test_main: panic: bad luck")
}
