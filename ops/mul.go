package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "mul",
		Doc:     "elementwise product, or one number a row",
		InPlace: []int{0, 1},
		Native:  floats(mul[float32], mul[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			dx := Mul(g.Out(0), g.In[1])
			if g.In[0].Type().Equal(g.In[1].Type()) {
				return []*graph.Node{dx, Mul(g.Out(0), g.In[0])}
			}
			return []*graph.Node{dx, graph.Apply(mulGrad{}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{Name: "mul_grad", Native: floats(mulGradBody[float32], mulGradBody[float64])})
}

// MulOp is z = x y, element by element, of two values of one shape: a gate, a mask
// that is fed, a scale for each element. y may be [...,1] for x [...,D]: then it is
// one number a row.
type MulOp struct{}

// Mul adds a MulOp.
func Mul(x, y *graph.Node) *graph.Node { return graph.Apply(MulOp{}, x, y) }

// Name is "mul".
func (MulOp) Name() string { return "mul" }

// Infer requires two values of one type, but for one number a row.
func (MulOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) == 2 && in[0].Rank() > 0 && withLast(in[0], 1).Equal(in[1]) {
		return in[:1], activation("x", in[0])
	}
	out, err := twins(in, "x", "y")
	if err != nil && len(in) == 2 && in[0].DType == in[1].DType && in[0].Rank() > 0 {
		return nil, fmt.Errorf("%w (y may be %s: one number a row)", err, withLast(in[0], 1).Dims())
	}
	return out, err
}

func mul[T native.Float](c *graph.Call) error {
	z, x, y := graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1])
	if slices.Equal(c.In[0].Shape, c.In[1].Shape) {
		native.Mul(z, x, y, len(z))
		return nil
	}
	native.MulRows(z, x, y, len(y), last(c.In[0].Type))
	return nil
}

// mulGrad gives the gradient of one number a row.
type mulGrad struct{}

func (mulGrad) Name() string { return "mul_grad" }
func (mulGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{withLast(in[1], 1)}, nil
}

func mulGradBody[T native.Float](c *graph.Call) error {
	dy := graph.Data[T](c.Out[0])
	native.MulRowsGrad(dy, graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), len(dy), last(c.In[1].Type))
	return nil
}
