package ops

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "softcap",
		Doc:     "c tanh(x/c), a soft bound of logits",
		InPlace: []int{0},
		Native:  floats(softcap[float32], softcap[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 10 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(softcapGrad{g.Op.(SoftcapOp)}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{
		Name:   "softcap_grad",
		Native: floats(softcapGradBody[float32], softcapGradBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 10 * int64(in[0].Size()) },
	})
}

// SoftcapOp is y = Cap tanh(x / Cap), element by element: logits that stay
// within the cap. Source: Gemma 2 (arXiv:2408.00118).
type SoftcapOp struct{ Cap float64 }

// Softcap adds a SoftcapOp.
func Softcap(x *graph.Node, bound float64) *graph.Node { return graph.Apply(SoftcapOp{bound}, x) }

// Name is "softcap".
func (SoftcapOp) Name() string { return "softcap" }

// Infer requires a finite cap above 0.
func (o SoftcapOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	if !(o.Cap > 0) || math.IsInf(o.Cap, 0) {
		return nil, fmt.Errorf("the cap must be above 0 and finite, got %g", o.Cap)
	}
	return in[:1], nil
}

func softcap[T native.Float](c *graph.Call) error {
	native.Softcap(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), c.Out[0].Size(), c.Op.(SoftcapOp).Cap)
	return nil
}

// softcapGrad is the gradient of x from that of y and x.
type softcapGrad struct{ SoftcapOp }

func (softcapGrad) Name() string                                { return "softcap_grad" }
func (softcapGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

func softcapGradBody[T native.Float](c *graph.Call) error {
	native.SoftcapGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.Out[0].Size(), c.Op.(softcapGrad).Cap)
	return nil
}
