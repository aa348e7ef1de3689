package cuda

import (
	"errors"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Mixtures of experts: the router, and the experts with the residual sum behind them. Logits that only a router reads and its
// weights stay in f32, so that a choice does not depend on the compute dtype's rounding of them.
func init() {
	Register("route", func(c *Call) error { return routeBody(c, nil) })
	Register("route_weights", routeWeightsBody)
	Register("experts", func(c *Call) error { return expertsBody(c, nil) })
}

// routed says that routers alone read n.
func (p *program) routed(n *graph.Node) bool {
	for _, c := range p.consumers[n] {
		if name := c.Op().Name(); name != "route" && name != "route_weights" {
			return false
		}
	}
	return len(p.consumers[n]) > 0 && n.Type().DType == dtype.Float32
}

// routerLogits is a linear that routers alone read, for few tokens.
func (c *Call) routerLogits() error {
	if !c.p.routed(c.Node) || len(c.In) != 2 || c.computed(1) || c.OutputType() != F32 || c.Type() == F32 {
		return unsupported("linear", "these are no logits of a router")
	}
	l := Logits{Type: c.Type(), T: rowsOf(c.In[0].Type()), N: c.In[1].Dim(0), K: lastDim(c.In[0].Type()), Y: c.Output(0)}
	return errors.Join(c.inputs(0, &l.X, &l.W), l.Launch(c))
}

// scores reads input i in the float type that it has.
func (c *Call) scores(i int) (Pointer, DType, error) {
	dt := c.p.stored(c.In[i])
	if c.p.constant[c.In[i]] {
		dt = F32
	}
	q, err := c.InputAs(i, dt)
	return q, dt, err
}

// routeBody chooses; with the node of the weights of the same logits it gives those too.
func routeBody(c, weights *Call) error {
	r := Route{Router: c.Node.Op().(ops.RouteOp).Router, T: rowsOf(c.In[0].Type()), IDs: c.Output(0)}
	var err error
	if r.Logits, r.LogitsType, err = c.scores(0); err != nil {
		return err
	}
	if len(c.In) > 1 {
		if r.Bias, r.BiasType, err = c.scores(1); err != nil {
			return err
		}
	}
	if weights != nil {
		r.Weights, r.WeightsType = weights.Output(0), weights.OutputType()
	}
	return r.Launch(c)
}

func routeWeightsBody(c *Call) error {
	r := Route{Router: c.Node.Op().(ops.RouteWeightsOp).Router, T: rowsOf(c.In[0].Type()), Given: true, Weights: c.Output(0), WeightsType: c.OutputType()}
	c.checkInts(1, 0, r.Router.Experts-1, "ids")
	var err error
	if r.Logits, r.LogitsType, err = c.scores(0); err != nil {
		return err
	}
	if r.IDs, err = c.Input(1); err != nil {
		return err
	}
	return r.Launch(c)
}

// expertsOf is the products of all choices and their sum.
func expertsOf(c *Call) (x Experts, err error) {
	for i := 3; i < 6; i++ {
		if param := c.In[i].Param(); param != nil && !floatWeight(param) {
			return x, unsupported("experts", "weights of %s", param.Type.DType)
		}
	}
	if x, err = choicesOf(c); err != nil {
		return x, err
	}
	return x, c.inputs(3, &x.Gate, &x.Up, &x.Down)
}

// choicesOf is a mixture without its stacks.
func choicesOf(c *Call) (x Experts, err error) {
	gate := c.In[3].Type()
	x = Experts{Type: c.Type(), T: rowsOf(c.In[0].Type()), TopK: lastDim(c.In[1].Type()), E: gate.Shape[0], F: gate.Shape[1], D: lastDim(c.In[0].Type()), Y: c.Output(0)}
	c.checkInts(2, 0, x.E-1, "ids")
	var dt DType
	if x.Weights, dt, err = c.scores(1); err != nil {
		return x, err
	}
	x.WeightsF32 = dt == F32
	return x, errors.Join(c.inputs(0, &x.X), c.inputs(2, &x.IDs))
}

// expertsBody queues them; with a residual, that is added in front of the rounding and the result goes to the sum's place.
func expertsBody(c *Call, add *Call) error {
	x, err := expertsOf(c)
	if err != nil {
		return err
	}
	if err := x.onto(add, c.Node); err != nil {
		return err
	}
	x.Scratch = c.Scratch(x.ScratchBytes(c.Target()))
	return x.Launch(c)
}

// onto puts the result to the place of a sum with a residual, if there is one.
func (x *Experts) onto(add *Call, experts *graph.Node) (err error) {
	if add != nil {
		x.Residual, err = add.Input(other(add.Node, experts))
		x.Y = add.Output(0)
	}
	return err
}

// other is the number of the input of a sum that is not n.
func other(add, n *graph.Node) int {
	if add.In()[0] == n {
		return 1
	}
	return 0
}

// adds says that n is the sum of a and something else.
func adds(n, a *graph.Node) bool {
	_, ok := opOf[graph.Add](n)
	return ok && (n.In()[0] == a) != (n.In()[1] == a)
}

// fuseRoute: the choice and the weights of the chosen.
func (p *program) fuseRoute(i int) (*Call, int, error) {
	route, weights := p.at(i), p.at(i+1)
	r, ok := opOf[ops.RouteOp](route)
	w, both := opOf[ops.RouteWeightsOp](weights)
	if !ok || !both || r.Router != w.Router || weights.In()[0] != route.In()[0] || weights.In()[1] != route {
		return nil, 0, nil
	}
	c := &Call{Node: route, In: route.In(), p: p}
	return c, 2, routeBody(c, &Call{Node: weights, In: weights.In(), p: p})
}

// fuseExperts: experts, then the sum with another value.
func (p *program) fuseExperts(i int) (*Call, int, error) {
	experts, add := p.at(i), p.at(i+1)
	_, wide := opOf[ops.ExpertsOp](experts)
	_, coded := opOf[ops.FP8ExpertsOp](experts)
	if !wide && !coded || !adds(add, experts) || !p.only(experts, add) || !p.inPlace(add) {
		return nil, 0, nil
	}
	c, body := &Call{Node: experts, In: experts.In(), p: p}, expertsBody
	if coded {
		body = fp8ExpertsBody
	}
	return c, 2, body(c, &Call{Node: add, In: add.In(), p: p})
}

// inPlace says that a sum lies where one of its inputs did: other memory may be that of ids or weights, which are free by then.
func (p *program) inPlace(add *graph.Node) bool {
	to, _ := p.plan.Place(add)
	a, _ := p.plan.Place(add.In()[0])
	b, _ := p.plan.Place(add.In()[1])
	return to == a || to == b
}

// fuseShared: experts, the gated unit of one shared expert of the same width, their sum, and perhaps the sum with the residual
// behind it. It is for few tokens: the shared weights stream with the others.
func (p *program) fuseShared(i int) (*Call, int, error) {
	experts, gate, up, unit, down, sum := p.at(i), p.at(i+1), p.at(i+2), p.at(i+3), p.at(i+4), p.at(i+5)
	_, ok := opOf[ops.ExpertsOp](experts)
	_, isUnit := opOf[ops.SwiGLUOp](unit)
	if !ok || !isUnit || !adds(sum, experts) || !adds(sum, down) || !p.only(experts, sum) {
		return nil, 0, nil
	}
	x := experts.In()[0]
	for _, l := range []struct{ n, from, to *graph.Node }{{gate, x, unit}, {up, x, unit}, {down, unit, sum}} {
		if !p.plain(l.n) || len(l.n.In()) != 2 || l.n.In()[0] != l.from || !p.only(l.n, l.to) || p.wide[l.n] || p.computedNode(l.n.In()[1]) {
			return nil, 0, nil
		}
	}
	// The sum must lie where the experts' would: what the shared unit frees may be ids or weights.
	to, _ := p.plan.Place(sum)
	if own, _ := p.plan.Place(experts); unit.In()[0] != gate || unit.In()[1] != up || to != own {
		return nil, 0, nil
	}
	c := &Call{Node: experts, In: experts.In(), p: p}
	e, err := expertsOf(c)
	if err != nil || !e.SharesExpert(c.Target()) || gate.In()[1].Dim(0) != e.F {
		return nil, 0, err
	}
	for _, w := range []struct {
		n  *graph.Node
		to *Pointer
	}{{gate, &e.SharedGate}, {up, &e.SharedUp}, {down, &e.SharedDown}} {
		if param := w.n.In()[1].Param(); param == nil || !floatWeight(param) {
			return nil, 0, nil
		}
		if *w.to, err = (&Call{Node: w.n, In: w.n.In(), p: p}).Input(1); err != nil {
			return nil, 0, err
		}
	}
	n := 6
	e.Y = (&Call{Node: sum, In: sum.In(), p: p}).Output(0)
	if add := p.at(i + 6); adds(add, sum) && p.only(sum, add) && p.inPlace(add) {
		a := &Call{Node: add, In: add.In(), p: p}
		if e.Residual, err = a.Input(other(add, sum)); err != nil {
			return nil, 0, err
		}
		e.Y, n = a.Output(0), 7
	}
	e.Scratch = c.Scratch(e.ScratchBytes(c.Target()))
	return c, n, e.Launch(c)
}
