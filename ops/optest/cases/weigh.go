package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
)

// weigh makes a scalar loss of a result: sum_i w[i] x[i], summed in float64. It
// is an op of the tests: its gradient hands w to the op under test.
type weigh struct{}

func (weigh) Name() string { return "case_weigh" }
func (weigh) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) != 2 || !in[0].Equal(in[1]) {
		return nil, fmt.Errorf("x and weights must have one type, got %v", in)
	}
	return []graph.Type{graph.T(in[0].DType)}, nil
}

// times is w[i] * d for a scalar d.
type times struct{}

func (times) Name() string                                { return "case_times" }
func (times) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

func init() {
	graph.Register(graph.Def{
		Name: "case_weigh",
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(times{}, g.In[1], g.Out(0)), nil}
		},
		NoGrad: []int{1},
		Native: func(c *graph.Call) error {
			s := 0.0
			w := floats(c.In[1])
			for i, x := range floats(c.In[0]) {
				if w[i] != 0 {
					s += x * w[i]
				}
			}
			store(c.Out[0], []float64{s})
			return nil
		},
	})
	graph.Register(graph.Def{
		Name: "case_times",
		Native: func(c *graph.Call) error {
			d := floats(c.In[1])[0]
			y := append([]float64(nil), floats(c.In[0])...)
			for i := range y {
				y[i] *= d
			}
			store(c.Out[0], y)
			return nil
		},
	})
}

func store(t graph.Tensor, v []float64) {
	if t.DType == dtype.Float64 {
		copy(graph.Data[float64](t), v)
		return
	}
	copy(graph.Data[float32](t), optest.Cast[float32](v))
}
