package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "rmsnorm",
		Doc:    "rows to unit root mean square",
		Native: floats(rmsNorm[float32], rmsNorm[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 4 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("rmsnorm_grad", rmsNormGrad{}, g.Out(0), g.In[0], g.In[1], g.Results[1])[:2]
		},
	})
	graph.Register(graph.Def{
		Name:    "rmsnorm_grad",
		InPlace: []int{0},
		Native:  floats(rmsNormGradBody[float32], rmsNormGradBody[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 8 * int64(in[0].Size()) },
	})
}

// RMSNormOp scales rows to unit root mean square:
//
//	y = x / sqrt(mean(x^2) + Eps) * w
//
// over the last dimension. x [...,D], w [D], y [...,D]; a second result keeps
// 1/sqrt(mean(x^2) + Eps) of each row for the gradient. Source: Zhang and
// Sennrich, Root Mean Square Layer Normalization (arXiv:1910.07467).
type RMSNormOp struct{ Eps float64 }

// RMSNorm adds an RMSNormOp.
func RMSNorm(x, w *graph.Node, eps float64) *graph.Node {
	return graph.Apply(RMSNormOp{eps}, x, w)
}

// Name is "rmsnorm".
func (RMSNormOp) Name() string { return "rmsnorm" }

// Infer requires w to be as long as the rows of x.
func (o RMSNormOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "x", "w"); err != nil {
		return nil, err
	}
	if err := rowOperands(in, "w"); err != nil {
		return nil, err
	}
	if !(o.Eps >= 0) || !finite(o.Eps) {
		return nil, fmt.Errorf("eps must be 0 or more, got %g", o.Eps)
	}
	return []graph.Type{in[0], graph.T(in[0].DType, rows(in[0]))}, nil
}

// rowOperands checks x [...,D] and further operands [D].
func rowOperands(in []graph.Type, names ...string) error {
	x := in[0]
	if err := activation("x", x); err != nil {
		return err
	}
	if err := alike(x, names, in[1:]...); err != nil {
		return err
	}
	for i, w := range in[1:] {
		if x.Rank() < 1 || w.Rank() != 1 || w.Shape[0] != last(x) {
			return fmt.Errorf("%s must be as long as the rows of x [...,D], got x %s, %s %s", names[i], x.Dims(), names[i], w.Dims())
		}
	}
	return nil
}

func rmsNorm[T native.Float](c *graph.Call) error {
	x := c.In[0]
	native.RMSNorm(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](x), graph.Data[T](c.In[1]),
		rows(x.Type), last(x.Type), c.Op.(RMSNormOp).Eps)
	return nil
}

// rmsNormGrad gives dx and dw from dy, x, w and the saved rows' factors.
type rmsNormGrad struct{}

func (rmsNormGrad) Name() string                                { return "rmsnorm_grad" }
func (rmsNormGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:3], nil }

func rmsNormGradBody[T native.Float](c *graph.Call) error {
	x := c.In[1]
	native.RMSNormGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.In[0]), graph.Data[T](x),
		graph.Data[T](c.In[2]), graph.Data[T](c.In[3]), rows(x.Type), last(x.Type))
	return nil
}
