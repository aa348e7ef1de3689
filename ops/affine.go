package ops

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "affine",
		Doc:     "multiple of a value plus a constant",
		InPlace: []int{0},
		Native:  floats(affine[float32], affine[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.ApplyAs("affine_grad", AffineOp{Mul: g.Op.(AffineOp).Mul}, g.Out(0))}
		},
	})
}

// AffineOp is y = Mul x + Add, element by element, with two constants: the
// scale of an embedding, or a norm's weight that is stored less 1.
type AffineOp struct{ Mul, Add float64 }

// Affine adds an AffineOp.
func Affine(x *graph.Node, mul, add float64) *graph.Node {
	return graph.Apply(AffineOp{mul, add}, x)
}

// Name is "affine".
func (AffineOp) Name() string { return "affine" }

// Infer requires finite constants.
func (o AffineOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	if s := o.Mul + o.Add; math.IsNaN(s) || math.IsInf(s, 0) {
		return nil, fmt.Errorf("the constants must be finite, got %g x + %g", o.Mul, o.Add)
	}
	return in[:1], nil
}

func affine[T native.Float](c *graph.Call) error {
	o := c.Op.(AffineOp)
	native.Affine(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), c.Out[0].Size(), o.Mul, o.Add)
	return nil
}
