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

// expertsBody is the products of all choices and their sum; with a residual, that is added in front of the rounding and the
// result goes to the sum's place.
func expertsBody(c *Call, add *Call) error {
	gate := c.In[3].Type()
	x := Experts{Type: c.Type(), T: rowsOf(c.In[0].Type()), TopK: lastDim(c.In[1].Type()), E: gate.Shape[0], F: gate.Shape[1], D: gate.Shape[2], Y: c.Output(0)}
	for i := 3; i < 6; i++ {
		if param := c.In[i].Param(); param != nil && !floatWeight(param) {
			return unsupported("experts", "weights of %s", param.Type.DType)
		}
	}
	c.checkInts(2, 0, x.E-1, "ids")
	var err error
	var dt DType
	if x.Weights, dt, err = c.scores(1); err != nil {
		return err
	}
	x.WeightsF32 = dt == F32
	if err := errors.Join(c.inputs(0, &x.X), c.inputs(2, &x.IDs, &x.Gate, &x.Up, &x.Down)); err != nil {
		return err
	}
	if add != nil {
		residual := 0
		if add.In[0] == c.Node {
			residual = 1
		}
		if x.Residual, err = add.Input(residual); err != nil {
			return err
		}
		x.Y = add.Output(0)
	}
	x.Scratch = c.Scratch(x.ScratchBytes(c.Target()))
	return x.Launch(c)
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
	if _, ok := opOf[ops.ExpertsOp](experts); !ok {
		return nil, 0, nil
	}
	if _, ok := opOf[graph.Add](add); !ok || !p.only(experts, add) {
		return nil, 0, nil
	}
	in := add.In()
	if in[0] != experts && in[1] != experts || in[0] == in[1] {
		return nil, 0, nil
	}
	// The sum must lie where one of the two did: other memory may be that of ids or weights, which are free by then.
	to, _ := p.plan.Place(add)
	a, _ := p.plan.Place(in[0])
	if b, _ := p.plan.Place(in[1]); to != a && to != b {
		return nil, 0, nil
	}
	c := &Call{Node: experts, In: experts.In(), p: p}
	return c, 2, expertsBody(c, &Call{Node: add, In: in, p: p})
}
