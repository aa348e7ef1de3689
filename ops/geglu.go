package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "geglu",
		Doc:     "gelu(gate) * up, exact or tanh",
		InPlace: []int{0, 1},
		Native:  floats(geGLU[float32], geGLU[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 10 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("geglu_grad", geGLUGrad{g.Op.(GeGLUOp)}, g.Out(0), g.In[0], g.In[1])[:2]
		},
	})
	graph.Register(graph.Def{
		Name:   "geglu_grad",
		Native: floats(geGLUGradBody[float32], geGLUGradBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 20 * int64(in[0].Size()) },
	})
}

// GeGLUOp is the gated unit with the Gaussian error linear unit:
//
//	y = gelu(gate) * up
//	gelu(z) = z/2 (1 + erf(z/sqrt 2))                          exact
//	gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))    Tanh
//
// gate, up and y have one shape. Source: Shazeer, GLU Variants Improve
// Transformer (arXiv:2002.05202).
type GeGLUOp struct{ Tanh bool }

// GeGLU adds a GeGLUOp.
func GeGLU(gate, up *graph.Node, tanh bool) *graph.Node {
	return graph.Apply(GeGLUOp{tanh}, gate, up)
}

// Name is "geglu".
func (GeGLUOp) Name() string { return "geglu" }

// Infer requires equal types.
func (GeGLUOp) Infer(in []graph.Type) ([]graph.Type, error) { return twins(in, "gate", "up") }

func geGLU[T native.Float](c *graph.Call) error {
	native.GeGLU(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.Out[0].Size(), c.Op.(GeGLUOp).Tanh)
	return nil
}

// geGLUGrad gives the gradients of gate and up.
type geGLUGrad struct{ GeGLUOp }

func (geGLUGrad) Name() string                                { return "geglu_grad" }
func (geGLUGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:3], nil }

func geGLUGradBody[T native.Float](c *graph.Call) error {
	native.GeGLUGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[T](c.In[2]), c.Out[0].Size(), c.Op.(geGLUGrad).Tanh)
	return nil
}
