// Command customop shows an op that lives outside the module's own tables: this
// file imports only what everyone can, and adds an op like any other, with a
// shape rule, a gradient, a native body and a place in plans.
//
//	y = Cap tanh(x / Cap)
//
// squashes x softly into (-Cap, Cap); x has any shape.
package main

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

func init() {
	graph.Register(graph.Def{
		Name:    "soft_cap",
		InPlace: []int{0},
		Native: func(c *graph.Call) error {
			x, y, limit := graph.Data[float32](c.In[0]), graph.Data[float32](c.Out[0]), c.Op.(SoftCapOp).Cap
			for i, v := range x {
				y[i] = float32(limit * math.Tanh(float64(v)/limit))
			}
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(softCapGrad{g.Op.(SoftCapOp)}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{
		Name:    "soft_cap_grad",
		InPlace: []int{0},
		Native: func(c *graph.Call) error {
			dy, x, dx, limit := graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), graph.Data[float32](c.Out[0]), c.Op.(softCapGrad).Cap
			for i, v := range x {
				t := math.Tanh(float64(v) / limit)
				dx[i] = dy[i] * float32(1-t*t)
			}
			return nil
		},
	})
}

// SoftCapOp is y = Cap tanh(x / Cap).
type SoftCapOp struct{ Cap float64 }

// SoftCap adds a SoftCapOp to x's graph.
func SoftCap(x *graph.Node, limit float64) *graph.Node { return graph.Apply(SoftCapOp{limit}, x) }

// Name is "soft_cap".
func (SoftCapOp) Name() string { return "soft_cap" }

// Infer requires a float32 and a positive Cap.
func (o SoftCapOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 1 || in[0].DType != dtype.Float32 || !(o.Cap > 0) {
		return nil, fmt.Errorf("takes one float32 and a cap above 0, got %v and %g", in, o.Cap)
	}
	return in, nil
}

// softCapGrad is dx = dy (1 - tanh(x / Cap)^2).
type softCapGrad struct{ SoftCapOp }

func (softCapGrad) Name() string                                { return "soft_cap_grad" }
func (softCapGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }
