package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// The small ops around the core of Kimi Delta Attention.

func init() {
	graph.Register(graph.Def{
		Name:   "kda_gate",
		Doc:    "log-decay of KDA from its pre-activation, softplus or lower-bound form",
		Native: floats(kdaGate[float32], kdaGate[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("kda_gate_grad", kdaGateGrad{g.Op.(KDAGateOp)}, g.Out(0), g.In[0], g.In[1], g.In[2])[:3]
		},
	})
	graph.Register(graph.Def{Name: "kda_gate_grad", Native: floats(kdaGateGradBody[float32], kdaGateGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "kda_beta",
		Doc:    "write strength of KDA from its logit",
		Native: floats(kdaBeta[float32], kdaBeta[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(kdaBetaGrad{g.Op.(KDABetaOp)}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{Name: "kda_beta_grad", Native: floats(kdaBetaGradBody[float32], kdaBetaGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "l2norm",
		Doc:    "rows to length 1",
		Native: floats(l2Norm[float32], l2Norm[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(l2NormGrad{g.Op.(L2NormOp)}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{Name: "l2norm_grad", Native: floats(l2NormGradBody[float32], l2NormGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "gated_rmsnorm",
		Doc:    "RMSNorm with a sigmoid gate behind it",
		Native: floats(gatedRMSNorm[float32], gatedRMSNorm[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return graph.ApplyAll("gated_rmsnorm_grad", gatedRMSNormGrad{g.Op.(GatedRMSNormOp)}, g.Out(0), g.In[0], g.In[1], g.In[2])[:3]
		},
	})
	graph.Register(graph.Def{Name: "gated_rmsnorm_grad", Native: floats(gatedRMSNormGradBody[float32], gatedRMSNormGradBody[float64])})
}

// KDAGateOp gives the log-decay g [...,H,K] (natural logarithm, never above 0)
// of the pre-activation z [...,H,K], with A = exp(a_log[h]) and x = z + dt_bias:
//
//	Bound 0:  g = -A log(1 + exp x)
//	Bound < 0: g = Bound sigmoid(A x)
//
// a_log is [H], dt_bias [H K].
type KDAGateOp struct{ Bound float64 }

// KDAGate adds a KDAGateOp.
func KDAGate(z, aLog, dtBias *graph.Node, bound float64) *graph.Node {
	return graph.Apply(KDAGateOp{bound}, z, aLog, dtBias)
}

// Name is "kda_gate".
func (KDAGateOp) Name() string { return "kda_gate" }

// Infer checks the parameters against the heads of z.
func (o KDAGateOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 3, "z", "a_log", "dt_bias"); err != nil {
		return nil, err
	}
	z := in[0]
	if err := activation("z", z); err != nil {
		return nil, err
	}
	if err := alike(z, []string{"a_log", "dt_bias"}, in[1:]...); err != nil {
		return nil, err
	}
	if z.Rank() < 2 {
		return nil, fmt.Errorf("z must be [...,H,K], got %s", z.Dims())
	}
	h := z.Shape[z.Rank()-2]
	if in[1].Rank() != 1 || in[2].Rank() != 1 {
		return nil, fmt.Errorf("a_log must be [H] and dt_bias [H K] for z [...,H,K], got z %s, a_log %s, dt_bias %s", z.Dims(), in[1].Dims(), in[2].Dims())
	}
	if err := native.CheckKDAGate(in[1].Shape[0], in[2].Shape[0], h, last(z), o.Bound); err != nil {
		return nil, err
	}
	return in[:1], nil
}

func gateSizes(z graph.Type) (tokens, heads, dk int) {
	heads, dk = z.Shape[z.Rank()-2], last(z)
	return z.Size() / (heads * dk), heads, dk
}

func kdaGate[T native.Float](c *graph.Call) error {
	tokens, heads, dk := gateSizes(c.In[0].Type)
	native.KDAGate(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[T](c.In[2]), tokens, heads, dk, c.Op.(KDAGateOp).Bound)
	return nil
}

// kdaGateGrad gives dz, da_log and ddt_bias.
type kdaGateGrad struct{ KDAGateOp }

func (kdaGateGrad) Name() string                                { return "kda_gate_grad" }
func (kdaGateGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:4], nil }

func kdaGateGradBody[T native.Float](c *graph.Call) error {
	tokens, heads, dk := gateSizes(c.In[1].Type)
	native.KDAGateGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.Out[2]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]),
		graph.Data[T](c.In[2]), graph.Data[T](c.In[3]), tokens, heads, dk, c.Op.(kdaGateGrad).Bound)
	return nil
}

// KDABetaOp gives the write strength beta = sigmoid(b), or 2 sigmoid(b) when
// Double, which lets the transition have negative eigenvalues.
type KDABetaOp struct{ Double bool }

// KDABeta adds a KDABetaOp.
func KDABeta(b *graph.Node, double bool) *graph.Node { return graph.Apply(KDABetaOp{double}, b) }

// Name is "kda_beta".
func (KDABetaOp) Name() string { return "kda_beta" }

// Infer takes logits of any shape.
func (KDABetaOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "b"); err != nil {
		return nil, err
	}
	return in, activation("b", in[0])
}

func (o KDABetaOp) factor() float64 {
	if o.Double {
		return 2
	}
	return 1
}

func kdaBeta[T native.Float](c *graph.Call) error {
	native.KDABeta(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), c.In[0].Size(), c.Op.(KDABetaOp).factor())
	return nil
}

type kdaBetaGrad struct{ KDABetaOp }

func (kdaBetaGrad) Name() string                                { return "kda_beta_grad" }
func (kdaBetaGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

func kdaBetaGradBody[T native.Float](c *graph.Call) error {
	native.KDABetaGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), c.In[0].Size(), c.Op.(kdaBetaGrad).factor())
	return nil
}

// L2NormOp is y = x / sqrt(sum x^2 + Eps) over the last dimension: Eps is inside
// the root and added to the sum.
type L2NormOp struct{ Eps float64 }

// L2Norm adds an L2NormOp.
func L2Norm(x *graph.Node, eps float64) *graph.Node { return graph.Apply(L2NormOp{eps}, x) }

// Name is "l2norm".
func (L2NormOp) Name() string { return "l2norm" }

// Infer takes rows of any number.
func (o L2NormOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x"); err != nil {
		return nil, err
	}
	if !(o.Eps >= 0) || !finite(o.Eps) {
		return nil, fmt.Errorf("eps must be 0 or more, got %g", o.Eps)
	}
	return in, activation("x", in[0])
}

func l2Norm[T native.Float](c *graph.Call) error {
	x := c.In[0]
	native.L2Norm(graph.Data[T](c.Out[0]), graph.Data[T](x), rows(x.Type), last(x.Type), c.Op.(L2NormOp).Eps)
	return nil
}

type l2NormGrad struct{ L2NormOp }

func (l2NormGrad) Name() string                                { return "l2norm_grad" }
func (l2NormGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:1], nil }

func l2NormGradBody[T native.Float](c *graph.Call) error {
	x := c.In[1]
	native.L2NormGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](x), rows(x.Type), last(x.Type), c.Op.(l2NormGrad).Eps)
	return nil
}

// GatedRMSNormOp is y = sigmoid(gate) w x / sqrt(mean x^2 + Eps) over the last
// dimension: the norm first, the gate last. x and gate [...,D], w [D].
type GatedRMSNormOp struct{ Eps float64 }

// GatedRMSNorm adds a GatedRMSNormOp.
func GatedRMSNorm(x, gate, w *graph.Node, eps float64) *graph.Node {
	return graph.Apply(GatedRMSNormOp{eps}, x, gate, w)
}

// Name is "gated_rmsnorm".
func (GatedRMSNormOp) Name() string { return "gated_rmsnorm" }

// Infer requires a gate like x and w as long as its rows.
func (o GatedRMSNormOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 3, "x", "gate", "w"); err != nil {
		return nil, err
	}
	if err := rowOperands([]graph.Type{in[0], in[2]}, "w"); err != nil {
		return nil, err
	}
	if !in[1].Equal(in[0]) {
		return nil, fmt.Errorf("x and gate must have one type, got x %s, gate %s", in[0], in[1])
	}
	if !(o.Eps >= 0) || !finite(o.Eps) {
		return nil, fmt.Errorf("eps must be 0 or more, got %g", o.Eps)
	}
	return in[:1], nil
}

func gatedRMSNorm[T native.Float](c *graph.Call) error {
	x := c.In[0]
	native.GatedRMSNorm(graph.Data[T](c.Out[0]), graph.Data[T](x), graph.Data[T](c.In[1]), graph.Data[T](c.In[2]), rows(x.Type), last(x.Type), c.Op.(GatedRMSNormOp).Eps)
	return nil
}

// gatedRMSNormGrad gives dx, dgate and dw.
type gatedRMSNormGrad struct{ GatedRMSNormOp }

func (gatedRMSNormGrad) Name() string                                { return "gated_rmsnorm_grad" }
func (gatedRMSNormGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:4], nil }

func gatedRMSNormGradBody[T native.Float](c *graph.Call) error {
	x := c.In[1]
	native.GatedRMSNormGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.Out[2]), graph.Data[T](c.In[0]), graph.Data[T](x),
		graph.Data[T](c.In[2]), graph.Data[T](c.In[3]), rows(x.Type), last(x.Type), c.Op.(gatedRMSNormGrad).Eps)
	return nil
}
