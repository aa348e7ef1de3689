package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "dropout",
		Doc:     "counter-based dropout, the same mask in the backward pass",
		InPlace: []int{0},
		Native:  floats(dropout[float32], dropout[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			// The mask is a function of seed, step and position: the backward
			// pass draws the same one again.
			return []*graph.Node{graph.ApplyAs("dropout_grad", g.Op, g.Out(0), g.In[1]), nil}
		},
	})
}

// DropoutOp sets elements to 0 with probability P and divides the others by
// 1-P. Element i is kept by a counter-based generator (Philox) at counter (i,
// step) under key Seed: the same run draws the same masks, on any number of
// workers. x has any shape, step is int64 [1]; give each layer its own Seed.
type DropoutOp struct {
	P    float64
	Seed uint64
}

// Dropout adds a DropoutOp; with p = 0 it is x itself.
func Dropout(x, step *graph.Node, p float64, seed uint64) *graph.Node {
	if p == 0 {
		return x
	}
	return graph.Apply(DropoutOp{p, seed}, x, step)
}

// Name is "dropout".
func (DropoutOp) Name() string { return "dropout" }

// Infer requires a probability below 1.
func (o DropoutOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "x", "step"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	if !in[1].Equal(graph.T(dtype.Int64, 1)) {
		return nil, fmt.Errorf("step must be int64[1], got %s", in[1])
	}
	if !(o.P >= 0 && o.P < 1) {
		return nil, fmt.Errorf("p must be in [0,1), got %g", o.P)
	}
	return in[:1], nil
}

func dropout[T native.Float](c *graph.Call) error {
	o := c.Op.(DropoutOp)
	native.Dropout(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), c.Out[0].Size(), o.P, o.Seed, uint64(graph.Data[int64](c.In[1])[0]))
	return nil
}
