package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "route",
		Doc:    "the experts of each token: top-k of the scores plus bias, in groups",
		Native: routeBody,
	})
	graph.Register(graph.Def{
		Name:   "route_weights",
		Doc:    "the weights of the chosen experts",
		Native: floats(routeWeights[float32], routeWeights[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(routeWeightsGrad{g.Op.(RouteWeightsOp)}, g.Out(0), g.In[0], g.In[1]), nil}
		},
	})
	graph.Register(graph.Def{Name: "route_weights_grad", Native: floats(routeWeightsGradBody[float32], routeWeightsGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "balance_loss",
		Doc:    "how unevenly tokens fall to experts, as a loss",
		Native: floats(balanceLoss[float32], balanceLoss[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			return []*graph.Node{graph.Apply(balanceLossGrad{g.Op.(BalanceLossOp)}, g.Out(0), g.In[0], g.In[1]), nil}
		},
	})
	graph.Register(graph.Def{Name: "balance_loss_grad", Native: floats(balanceLossGradBody[float32], balanceLossGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "experts",
		Doc:    "SwiGLU experts on the tokens that chose them, no capacity, no drop",
		Native: floats(experts[float32], experts[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return expertFLOPs(in) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			if o := g.Op.(ExpertsOp); o.stored(g.In[3].Type(), 0) { // the stacks are not trained
				rs := graph.ApplyAll("experts_grad_input", expertsGradInput{o}, append([]*graph.Node{g.Out(0)}, g.In...)...)
				return []*graph.Node{rs[0], rs[1], nil, nil, nil, nil}
			}
			rs := graph.ApplyAll("experts_grad", expertsGrad{}, append([]*graph.Node{g.Out(0)}, g.In...)...)
			return []*graph.Node{rs[0], rs[1], nil, rs[2], rs[3], rs[4]}
		},
	})
	graph.Register(graph.Def{
		Name:   "experts_grad_input",
		Native: expertsGradInputBody,
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * expertFLOPs(in[1:]) },
	})
	graph.Register(graph.Def{
		Name:   "experts_grad",
		Native: floats(expertsGradBody[float32], expertsGradBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 3 * expertFLOPs(in[1:]) },
	})
}

// Router says how experts are chosen and weighed: see native.Router.
type Router = native.Router

// RouteOp chooses TopK experts for each token: s = softmax(logits) or
// sigmoid(logits), and the TopK largest s + bias are chosen, in falling order,
// the lower index first among equals; with Groups only those of the KeepGroups
// groups whose two best s + bias have the largest sum. logits [...,E], bias [E]
// or none; ids int32 [...,TopK]. It has no gradient.
type RouteOp struct{ Router }

// RouteWeightsOp gives the weights [...,TopK] of the chosen ids: their s,
// divided by their sum + 1e-20 when Renormalize, times Scale.
type RouteWeightsOp struct{ Router }

// Route adds a RouteOp and a RouteWeightsOp; bias may be nil.
func Route(logits, bias *graph.Node, r Router) (ids, weights *graph.Node) {
	ids = graph.Apply(RouteOp{r}, given(logits, bias)...)
	return ids, graph.Apply(RouteWeightsOp{r}, logits, ids)
}

// Name is "route".
func (RouteOp) Name() string { return "route" }

// Infer checks logits and bias against the router.
func (o RouteOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "logits", "bias"); err != nil {
		return nil, err
	}
	if err := o.logits(in[0]); err != nil {
		return nil, err
	}
	if len(in) == 2 && !in[1].Equal(graph.T(in[0].DType, o.Experts)) {
		return nil, fmt.Errorf("bias must be %s[%d], got %s", in[0].DType, o.Experts, in[1])
	}
	ids := withLast(in[0], o.TopK)
	ids.DType = dtype.Int32
	return []graph.Type{ids}, nil
}

func (o RouteOp) logits(t graph.Type) error {
	if err := activation("logits", t); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err
	}
	if t.Rank() < 1 || last(t) != o.Experts {
		return fmt.Errorf("logits must be [...,%d], one for each expert, got %s", o.Experts, t.Dims())
	}
	return nil
}

func routeBody(c *graph.Call) error {
	if c.In[0].DType == dtype.Float64 {
		return route[float64](c)
	}
	return route[float32](c)
}

func route[T native.Float](c *graph.Call) error {
	logits := c.In[0]
	native.Route(graph.Data[int32](c.Out[0]), nil, graph.Data[T](logits), data[T](c.In, 1), rows(logits.Type), c.Op.(RouteOp).Router)
	return nil
}

// Name is "route_weights".
func (RouteWeightsOp) Name() string { return "route_weights" }

// Infer checks the ids against the logits.
func (o RouteWeightsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "logits", "ids"); err != nil {
		return nil, err
	}
	if err := (RouteOp(o)).logits(in[0]); err != nil {
		return nil, err
	}
	weights := withLast(in[0], o.TopK)
	if in[1].DType != dtype.Int32 || !slices.Equal(in[1].Shape, weights.Shape) {
		return nil, fmt.Errorf("ids must be int32 %s for logits %s, got %s", weights.Dims(), in[0].Dims(), in[1])
	}
	return []graph.Type{weights}, nil
}

func routeWeights[T native.Float](c *graph.Call) error {
	o, ids := c.Op.(RouteWeightsOp), graph.Data[int32](c.In[1])
	if err := native.CheckExpertIDs(ids, o.Experts); err != nil {
		return err
	}
	native.RouteWeights(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), ids, rows(c.In[0].Type), o.Router)
	return nil
}

// routeWeightsGrad is the gradient of the logits; the choice is constant.
type routeWeightsGrad struct{ RouteWeightsOp }

func (routeWeightsGrad) Name() string                                { return "route_weights_grad" }
func (routeWeightsGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:2], nil }

func routeWeightsGradBody[T native.Float](c *graph.Call) error {
	native.RouteGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[int32](c.In[2]), rows(c.In[1].Type), c.Op.(routeWeightsGrad).Router)
	return nil
}

// BalanceLossOp is E sum_e f_e P_e, with f_e the share of the choices ids that
// went to expert e and P_e the mean over the tokens of s_e / sum(s): 1 for an
// even load. ids, int32 [...,TopK], are constants, so the gradient goes to the
// logits [...,E] alone. Source: Switch Transformer (arXiv:2101.03961).
type BalanceLossOp struct{ Router }

// BalanceLoss adds a BalanceLossOp.
func BalanceLoss(logits, ids *graph.Node, r Router) *graph.Node {
	return graph.Apply(BalanceLossOp{r}, logits, ids)
}

// Name is "balance_loss".
func (BalanceLossOp) Name() string { return "balance_loss" }

// Infer checks the ids against the logits; the loss is a scalar.
func (o BalanceLossOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if _, err := (RouteWeightsOp(o)).Infer(in); err != nil {
		return nil, err
	}
	return []graph.Type{graph.T(in[0].DType)}, nil
}

func balanceLoss[T native.Float](c *graph.Call) error {
	o, ids := c.Op.(BalanceLossOp), graph.Data[int32](c.In[1])
	if err := native.CheckExpertIDs(ids, o.Experts); err != nil {
		return err
	}
	native.BalanceLoss(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), ids, rows(c.In[0].Type), o.Router)
	return nil
}

// balanceLossGrad is the gradient of the logits.
type balanceLossGrad struct{ BalanceLossOp }

func (balanceLossGrad) Name() string                                { return "balance_loss_grad" }
func (balanceLossGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:2], nil }

func balanceLossGradBody[T native.Float](c *graph.Call) error {
	native.BalanceLossGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), graph.Data[int32](c.In[2]), rows(c.In[1].Type), c.Op.(balanceLossGrad).Router)
	return nil
}

// ExpertsOp applies to every token the SwiGLU experts that it chose:
//
//	y[t] = sum_c weights[t,c] down_e (silu(gate_e x[t]) * (up_e x[t])),  e = ids[t,c]
//
// x [...,D], weights [...,TopK], ids int32 [...,TopK], gate and up [E,F,D],
// down [E,D,F]. Tokens are sorted by expert, and no token is dropped. The three
// stacks may be stored in 16 bits, or in the blocks of Codings, uint8 [E,N,bytes of a
// row], and are then read as they are: float32 alone is computed with them, and they
// have no gradient.
type ExpertsOp struct {
	Codings [3]Coding // of gate, up and down; 0: plain numbers
}

// stored reports whether a stack is read as it is stored.
func (o ExpertsOp) stored(t graph.Type, i int) bool { return isHalf(t) || o.Codings[i] != 0 }

// Experts adds an ExpertsOp. Stacks stored in 8 bits are read as they are: then
// it is an FP8ExpertsOp.
func Experts(x, weights, ids, gate, up, down *graph.Node) *graph.Node {
	if gate.Type().DType.IsFloat8() {
		return FP8Experts(x, weights, ids, gate, up, down, FP8ExpertsOp{})
	}
	return graph.Apply(ExpertsOp{[3]Coding{codingOf(gate), codingOf(up), codingOf(down)}}, x, weights, ids, gate, up, down)
}

// Name is "experts".
func (ExpertsOp) Name() string { return "experts" }

// Infer checks the choices against the tokens and the stacks against each other.
func (o ExpertsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 6, "x", "weights", "ids", "gate", "up", "down"); err != nil {
		return nil, err
	}
	x, weights, ids, gate, up, down := in[0], in[1], in[2], in[3], in[4], in[5]
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if x.DType == dtype.Float32 && o.stored(gate, 0) && o.stored(up, 1) && o.stored(down, 2) {
		for i, w := range []*graph.Type{&gate, &up, &down} {
			var err error
			if *w, err = asWide(*w, o.Codings[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", [...]string{"gate", "up", "down"}[i], err)
			}
		}
	}
	if err := alike(x, []string{"weights", "gate", "up", "down"}, weights, gate, up, down); err != nil {
		return nil, err
	}
	if x.Rank() < 1 || weights.Rank() != x.Rank() || !slices.Equal(weights.Shape[:x.Rank()-1], x.Shape[:x.Rank()-1]) || ids.DType != dtype.Int32 || !slices.Equal(ids.Shape, weights.Shape) {
		return nil, fmt.Errorf("weights must be [...,TopK] and ids int32 [...,TopK] for x [...,D], got x %s, weights %s, ids %s", x.Dims(), weights.Dims(), ids)
	}
	if gate.Rank() != 3 || !gate.Equal(up) || down.Rank() != 3 || gate.Shape[2] != last(x) ||
		down.Shape[0] != gate.Shape[0] || down.Shape[1] != gate.Shape[2] || down.Shape[2] != gate.Shape[1] {
		return nil, fmt.Errorf("gate and up must be [E,F,D] and down [E,D,F] for x [...,D], got x %s, gate %s, up %s, down %s", x.Dims(), gate.Dims(), up.Dims(), down.Dims())
	}
	if k := last(weights); k > gate.Shape[0] {
		return nil, fmt.Errorf("a token chooses %d of %d experts (weights %s, gate %s)", k, gate.Shape[0], weights.Dims(), gate.Dims())
	}
	return in[:1], nil
}

func expertFLOPs(in []graph.Type) int64 {
	return 6 * int64(in[1].Size()) * int64(in[3].Shape[1]*last(in[0]))
}

func expertShape(in []graph.Tensor) native.Experts {
	gate := in[3]
	return native.Experts{Tokens: rows(in[0].Type), TopK: last(in[1].Type), E: gate.Shape[0], F: gate.Shape[1], D: last(in[0].Type)}
}

func experts[T native.Float](c *graph.Call) error { return expertsWith[T](c, c.Op.(ExpertsOp), nil) }

// expertsWith computes experts, with the biases and the unit of u if it is not nil.
func expertsWith[T native.Float](c *graph.Call, o ExpertsOp, u *native.Clamped[T]) error {
	x := expertShape(c.In)
	ids := graph.Data[int32](c.In[2])
	if err := native.CheckExpertIDs(ids, x.E); err != nil {
		return err
	}
	if stacks, ok := codedStacks(c.In[3:6], o); ok {
		native.ExpertsCodedForward(graph.Data[float32](c.Out[0]), graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), ids, stacks[0], stacks[1], stacks[2], x, wideUnit(u))
		return nil
	}
	native.ExpertsForward(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), ids,
		graph.Data[T](c.In[3]), graph.Data[T](c.In[4]), graph.Data[T](c.In[5]), x, u)
	return nil
}

// wideUnit is u, of a graph in float32, which alone takes stored stacks.
func wideUnit[T native.Float](u *native.Clamped[T]) *native.Clamped[float32] {
	wide, _ := any(u).(*native.Clamped[float32])
	return wide
}

// expertsGradWith writes the gradients of experts; those of stored stacks are not
// wanted. The inputs are those of the forward op behind the gradient of its result.
func expertsGradWith[T native.Float](c *graph.Call, o ExpertsOp, g native.ExpertsGrads[T], u *native.Clamped[T]) error {
	in := c.In[1:]
	if stacks, ok := codedStacks(in[3:6], o); ok {
		wide, _ := any(g).(native.ExpertsGrads[float32])
		native.ExpertsCodedGradInput(wide, graph.Data[float32](c.In[0]), graph.Data[float32](in[0]), graph.Data[float32](in[1]), graph.Data[int32](in[2]),
			stacks[0], stacks[1], stacks[2], expertShape(in), wideUnit(u))
		return nil
	}
	native.ExpertsGrad(g, graph.Data[T](c.In[0]), graph.Data[T](in[0]), graph.Data[T](in[1]), graph.Data[int32](in[2]),
		graph.Data[T](in[3]), graph.Data[T](in[4]), graph.Data[T](in[5]), expertShape(in), u)
	return nil
}

// codedStacks are the stacks where they are stored in 16 bits or blocks.
func codedStacks(in []graph.Tensor, o ExpertsOp) (stacks [3]native.CodedStack, ok bool) {
	for i, w := range in {
		mem, coding, stored := coded(w, o.Codings[i])
		if !stored {
			return stacks, false
		}
		stacks[i] = native.CodedStack{Data: mem, Coding: coding}
	}
	return stacks, true
}

// expertsGradInput gives the gradients of x and weights for stored stacks.
type expertsGradInput struct{ of ExpertsOp }

func (expertsGradInput) Name() string { return "experts_grad_input" }
func (expertsGradInput) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{in[1], in[2]}, nil
}

func expertsGradInputBody(c *graph.Call) error {
	return expertsGradWith(c, c.Op.(expertsGradInput).of, native.ExpertsGrads[float32]{Tokens: graph.Data[float32](c.Out[0]), Weights: graph.Data[float32](c.Out[1])}, nil)
}

// expertsGrad gives the gradients of x, weights, gate, up and down.
type expertsGrad struct{}

func (expertsGrad) Name() string { return "experts_grad" }
func (expertsGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{in[1], in[2], in[4], in[5], in[6]}, nil
}

func expertsGradBody[T native.Float](c *graph.Call) error {
	return expertsGradWith(c, ExpertsOp{}, native.ExpertsGrads[T]{
		Tokens: graph.Data[T](c.Out[0]), Weights: graph.Data[T](c.Out[1]), Gate: graph.Data[T](c.Out[2]), Up: graph.Data[T](c.Out[3]), Down: graph.Data[T](c.Out[4]),
	}, nil)
}
