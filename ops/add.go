package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// The op itself is graph.Add, since gradients are summed with it.
func init() {
	graph.Register(graph.Def{
		Name:    "add",
		Doc:     "elementwise sum",
		InPlace: []int{0, 1},
		Native:  floats(add[float32], add[float64]),
		Grad:    func(g *graph.GradCall) []*graph.Node { return []*graph.Node{g.Out(0), g.Out(0)} },
	})
}

// Add is the elementwise sum of two values of one type, as in a residual
// connection.
func Add(a, b *graph.Node) *graph.Node { return graph.Apply(graph.Add{}, a, b) }

func add[T native.Float](c *graph.Call) error {
	native.Add(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.Out[0].Size())
	return nil
}
