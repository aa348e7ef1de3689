package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "clamped_experts",
		Doc:    "experts with biases and a clamped unit, as GPT-OSS has them",
		Native: floats(clampedExperts[float32], clampedExperts[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return expertFLOPs(in) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			rs := graph.ApplyAll("clamped_experts_grad", clampedExpertsGrad{g.Op.(ClampedExpertsOp)}, append([]*graph.Node{g.Out(0)}, g.In...)...)
			grads := []*graph.Node{rs[0], rs[1], nil, nil, nil, nil, rs[2], rs[3], rs[4]}
			if len(rs) > 5 { // else the stacks are not trained
				copy(grads[3:], rs[5:])
			}
			return grads
		},
	})
	graph.Register(graph.Def{
		Name:   "clamped_experts_grad",
		Native: floats(clampedExpertsGradBody[float32], clampedExpertsGradBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 3 * expertFLOPs(in[1:]) },
	})
}

// ClampedExpertsOp is an ExpertsOp with biases and another unit: with
// g = min(gate_e x + gate_bias_e, Limit) and u = up_e x + up_bias_e within
// -Limit..Limit,
//
//	y[t] = sum_c weights[t,c] (down_e ((u + 1) g sigmoid(Alpha g)) + down_bias_e),  e = ids[t,c]
//
// Behind the stacks come gate_bias and up_bias [E,F] and down_bias [E,D]. A bound
// has the gradient of what is within it, itself included. Source: OpenAI, gpt-oss
// (arXiv:2508.10925).
type ClampedExpertsOp struct{ Alpha, Limit float64 }

// ClampedExperts adds a ClampedExpertsOp.
func ClampedExperts(x, weights, ids, gate, up, down, gateBias, upBias, downBias *graph.Node, o ClampedExpertsOp) *graph.Node {
	return graph.Apply(o, x, weights, ids, gate, up, down, gateBias, upBias, downBias)
}

// Name is "clamped_experts".
func (ClampedExpertsOp) Name() string { return "clamped_experts" }

// Infer requires what ExpertsOp does, biases of the stacks, and the constants.
func (o ClampedExpertsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 9, "x", "weights", "ids", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"); err != nil {
		return nil, err
	}
	out, err := ExpertsOp{}.Infer(in[:6])
	if err != nil {
		return nil, err
	}
	e, f, d := in[3].Shape[0], in[3].Shape[1], in[3].Shape[2]
	hidden, rows := graph.T(in[0].DType, e, f), graph.T(in[0].DType, e, d)
	if !in[6].Equal(hidden) || !in[7].Equal(hidden) || !in[8].Equal(rows) {
		return nil, fmt.Errorf("gate_bias and up_bias must be %s and down_bias %s, got %s, %s, %s", hidden, rows, in[6], in[7], in[8])
	}
	if !finite(o.Alpha) || !(o.Limit > 0) || !finite(o.Limit) {
		return nil, fmt.Errorf("alpha must be finite and the limit above 0, got %g and %g", o.Alpha, o.Limit)
	}
	return out, nil
}

// clampedOf is the unit of the inputs.
func clampedOf[T native.Float](o ClampedExpertsOp, in []graph.Tensor) *native.Clamped[T] {
	return &native.Clamped[T]{Clamp: native.Clamp(o), Gate: graph.Data[T](in[6]), Up: graph.Data[T](in[7]), Down: graph.Data[T](in[8])}
}

func clampedExperts[T native.Float](c *graph.Call) error {
	return expertsWith(c, ExpertsOp{}, clampedOf[T](c.Op.(ClampedExpertsOp), c.In))
}

// clampedExpertsGrad gives the gradients of x, weights, the biases and, unless they
// are stored in 16 bits, the stacks.
type clampedExpertsGrad struct{ ClampedExpertsOp }

func (clampedExpertsGrad) Name() string { return "clamped_experts_grad" }
func (clampedExpertsGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	out := []graph.Type{in[1], in[2], in[7], in[8], in[9]}
	if !isHalf(in[4]) {
		out = append(out, in[4:7]...)
	}
	return out, nil
}

func clampedExpertsGradBody[T native.Float](c *graph.Call) error {
	g := native.ExpertsGrads[T]{
		Tokens: graph.Data[T](c.Out[0]), Weights: graph.Data[T](c.Out[1]),
		GateBias: graph.Data[T](c.Out[2]), UpBias: graph.Data[T](c.Out[3]), DownBias: graph.Data[T](c.Out[4]),
	}
	if len(c.Out) > 5 {
		g.Gate, g.Up, g.Down = graph.Data[T](c.Out[5]), graph.Data[T](c.Out[6]), graph.Data[T](c.Out[7])
	}
	return expertsGradWith(c, ExpertsOp{}, g, clampedOf[T](c.Op.(clampedExpertsGrad).ClampedExpertsOp, c.In[1:]))
}
