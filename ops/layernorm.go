package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "layernorm",
		Doc:    "rows to mean 0 and variance 1",
		Native: floats(layerNorm[float32], layerNorm[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 7 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("layernorm_grad", layerNormGrad{len(g.In) == 3}, g.Out(0), g.In[0], g.In[1], g.Results[1], g.Results[2])[:len(g.In)]
		},
	})
	graph.Register(graph.Def{
		Name:   "layernorm_grad",
		Native: floats(layerNormGradBody[float32], layerNormGradBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 12 * int64(in[0].Size()) },
	})
}

// LayerNormOp scales rows to mean 0 and variance 1:
//
//	y = (x - mean(x)) / sqrt(var(x) + Eps) * w + b
//
// over the last dimension, with the variance of the whole row. x [...,D],
// w and b [D], y [...,D]; two more results keep mean and 1/sqrt(var(x) + Eps)
// of each row. Source: Ba et al., Layer Normalization (arXiv:1607.06450).
type LayerNormOp struct{ Eps float64 }

// LayerNorm adds a LayerNormOp; the bias is optional.
func LayerNorm(x, w *graph.Node, eps float64, bias ...*graph.Node) *graph.Node {
	return graph.Apply(LayerNormOp{eps}, append([]*graph.Node{x, w}, bias...)...)
}

// Name is "layernorm".
func (LayerNormOp) Name() string { return "layernorm" }

// Infer requires w and b to be as long as the rows of x.
func (o LayerNormOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "x", "w", "bias"); err != nil {
		return nil, err
	}
	if err := rowOperands(in, "w", "bias"); err != nil {
		return nil, err
	}
	if !(o.Eps >= 0) || !finite(o.Eps) {
		return nil, fmt.Errorf("eps must be 0 or more, got %g", o.Eps)
	}
	row := graph.T(in[0].DType, rows(in[0]))
	return []graph.Type{in[0], row, row}, nil
}

func layerNorm[T native.Float](c *graph.Call) error {
	x := c.In[0]
	native.LayerNorm(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.Out[2]), graph.Data[T](x),
		graph.Data[T](c.In[1]), data[T](c.In, 2), rows(x.Type), last(x.Type), c.Op.(LayerNormOp).Eps)
	return nil
}

// layerNormGrad gives dx, dw and, with a bias, db.
type layerNormGrad struct{ Bias bool }

func (layerNormGrad) Name() string { return "layernorm_grad" }
func (o layerNormGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	if o.Bias {
		return []graph.Type{in[1], in[2], in[2]}, nil
	}
	return []graph.Type{in[1], in[2]}, nil
}

func layerNormGradBody[T native.Float](c *graph.Call) error {
	x := c.In[1]
	native.LayerNormGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), data[T](c.Out, 2), graph.Data[T](c.In[0]), graph.Data[T](x),
		graph.Data[T](c.In[2]), graph.Data[T](c.In[3]), graph.Data[T](c.In[4]), rows(x.Type), last(x.Type))
	return nil
}
