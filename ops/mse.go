package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "mse",
		Doc:    "mean of squared differences, as a loss",
		Native: floats(mse[float32], mse[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 3 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			dx := graph.Apply(mseGrad{}, g.Out(0), g.In[0], g.In[1])
			return []*graph.Node{dx, Affine(dx, -1, 0)}
		},
	})
	graph.Register(graph.Def{
		Name:    "mse_grad",
		InPlace: []int{1, 2},
		Native:  floats(mseGradBody[float32], mseGradBody[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[1].Size()) },
	})
}

// MSEOp is the mean squared error, a scalar:
//
//	loss = sum_i (x_i - y_i)^2 / n
//
// over the n elements of x and y, which have one shape; 0 where n is. It is the loss
// of values: of a regression, of denoising, of one model's features by another's.
type MSEOp struct{}

// MSE adds an MSEOp.
func MSE(x, y *graph.Node) *graph.Node { return graph.Apply(MSEOp{}, x, y) }

// Name is "mse".
func (MSEOp) Name() string { return "mse" }

// Infer requires two values of one type.
func (MSEOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if _, err := twins(in, "x", "y"); err != nil {
		return nil, err
	}
	return []graph.Type{graph.T(in[0].DType)}, nil
}

func mse[T native.Float](c *graph.Call) error {
	native.MeanSquaredError(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.In[0].Size())
	return nil
}

// mseGrad is the gradient of x.
type mseGrad struct{}

func (mseGrad) Name() string                                { return "mse_grad" }
func (mseGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:2], nil }

func mseGradBody[T native.Float](c *graph.Call) error {
	native.MeanSquaredErrorGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[T](c.In[2]), c.Out[0].Size())
	return nil
}
