package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "mul",
		Doc:     "elementwise product",
		InPlace: []int{0, 1},
		Native:  floats(mul[float32], mul[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{Mul(g.Out(0), g.In[1]), Mul(g.Out(0), g.In[0])}
		},
	})
}

// MulOp is z = x y, element by element, of two values of one shape: a gate, a mask
// that is fed, a scale for each element.
type MulOp struct{}

// Mul adds a MulOp.
func Mul(x, y *graph.Node) *graph.Node { return graph.Apply(MulOp{}, x, y) }

// Name is "mul".
func (MulOp) Name() string { return "mul" }

// Infer requires two values of one type.
func (MulOp) Infer(in []graph.Type) ([]graph.Type, error) { return twins(in, "x", "y") }

func mul[T native.Float](c *graph.Call) error {
	native.Mul(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.Out[0].Size())
	return nil
}
