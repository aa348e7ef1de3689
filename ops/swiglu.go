package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "swiglu",
		Doc:     "silu(gate) * up",
		InPlace: []int{0, 1},
		Native:  floats(swiGLU[float32], swiGLU[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 6 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("swiglu_grad", swiGLUGrad{}, g.Out(0), g.In[0], g.In[1])[:2]
		},
	})
	graph.Register(graph.Def{
		Name:    "swiglu_grad",
		InPlace: []int{1, 2},
		Native:  floats(swiGLUGradBody[float32], swiGLUGradBody[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 12 * int64(in[0].Size()) },
	})
}

// SwiGLUOp is the gated unit of most language models:
//
//	y = silu(gate) * up,  silu(z) = z / (1 + exp(-z))
//
// gate, up and y have one shape. Source: Shazeer, GLU Variants Improve
// Transformer (arXiv:2002.05202).
type SwiGLUOp struct{}

// SwiGLU adds a SwiGLUOp.
func SwiGLU(gate, up *graph.Node) *graph.Node { return graph.Apply(SwiGLUOp{}, gate, up) }

// Name is "swiglu".
func (SwiGLUOp) Name() string { return "swiglu" }

// Infer requires equal types.
func (SwiGLUOp) Infer(in []graph.Type) ([]graph.Type, error) { return twins(in, "gate", "up") }

func swiGLU[T native.Float](c *graph.Call) error {
	native.SwiGLU(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.Out[0].Size())
	return nil
}

// swiGLUGrad gives the gradients of gate and up.
type swiGLUGrad struct{}

func (swiGLUGrad) Name() string                                { return "swiglu_grad" }
func (swiGLUGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:3], nil }

func swiGLUGradBody[T native.Float](c *graph.Call) error {
	native.SwiGLUGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[T](c.In[2]), c.Out[0].Size())
	return nil
}
