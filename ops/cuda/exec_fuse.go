package cuda

import (
	"errors"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// fuse makes one step of several nodes in a row that one kernel does; nil when there is no such thing at step i.
func (p *program) fuse(i int) (*step, int, error) {
	for _, f := range []func(int) (*Call, int, error){p.fuseAppend, p.fuseResidual} {
		c, n, err := f(i)
		if c == nil && err == nil || errors.Is(err, ErrUnsupported) {
			continue // node by node, each says why
		}
		if err != nil {
			return nil, 0, err
		}
		s := &step{queued: c.queued}
		for _, x := range p.plan.Steps[i : i+n] {
			s.nodes = append(s.nodes, x.Node)
		}
		return s, n, nil
	}
	return nil, 0, nil
}

func (p *program) at(i int) *graph.Node {
	if i >= len(p.plan.Steps) || p.constant[p.plan.Steps[i].Node] {
		return nil
	}
	return p.plan.Steps[i].Node
}

// only says whether m is the only reader of n, and n no output.
func (p *program) only(n, m *graph.Node) bool {
	readers := p.consumers[rootOf(n)]
	return len(readers) == 1 && readers[0] == m && !slices.ContainsFunc(p.plan.Outputs, func(o *graph.Node) bool { return rootOf(o) == rootOf(n) })
}

func opOf[O graph.Op](n *graph.Node) (o O, ok bool) {
	if n == nil {
		return o, false
	}
	o, ok = n.Op().(O)
	return o, ok
}

// fuseResidual: linear, then the sum with another value.
func (p *program) fuseResidual(i int) (*Call, int, error) {
	linear, add := p.at(i), p.at(i+1)
	if _, ok := opOf[ops.LinearOp](linear); !ok {
		return nil, 0, nil
	}
	if _, ok := opOf[graph.Add](add); !ok || p.wide[linear] || !p.only(linear, add) {
		return nil, 0, nil
	}
	in := add.In()
	if in[0] != linear && in[1] != linear || in[0] == in[1] {
		return nil, 0, nil
	}
	// The sum must lie where one of the two did: other memory may be that of linear's x, which is free by then.
	to, _ := p.plan.Place(add)
	a, _ := p.plan.Place(in[0])
	if b, _ := p.plan.Place(in[1]); to != a && to != b {
		return nil, 0, nil
	}
	c := &Call{Node: linear, In: linear.In(), p: p}
	return c, 2, linearBody(c, &Call{Node: add, In: in, p: p})
}

// fuseAppend: the rotation of q and k and the writes of k and v to their pools.
func (p *program) fuseAppend(i int) (*Call, int, error) {
	q, k, ka, va := p.at(i), p.at(i+1), p.at(i+2), p.at(i+3)
	rq, ok := opOf[ops.RotaryOp](q)
	rk, both := opOf[ops.RotaryOp](k)
	if !ok || !both || rq != rk || rq.Back || len(q.In()) != 2 || len(k.In()) != 2 || q.In()[1] != k.In()[1] {
		return nil, 0, nil
	}
	if _, ok := opOf[ops.AppendPagesOp](ka); !ok {
		return nil, 0, nil
	}
	if _, ok := opOf[ops.AppendPagesOp](va); !ok {
		return nil, 0, nil
	}
	kin, vin := ka.In(), va.In()
	if len(kin) != 3 || len(vin) != 3 || kin[1] != k || !p.only(k, ka) || kin[2] != vin[2] || kin[0] == vin[0] || !slices.Equal(kin[1].Shape(), vin[1].Shape()) {
		return nil, 0, nil
	}
	c := &Call{Node: ka, In: kin, p: p}
	qc, kc, vc := &Call{Node: q, In: q.In(), p: p}, &Call{Node: k, In: k.In(), p: p}, &Call{Node: va, In: vin, p: p}
	if err := errors.Join(c.appendable(kin[0]), c.appendable(vin[0])); err != nil {
		return nil, 0, err
	}
	r, err := qc.rotation(q.In()[0], 1, rq.Table, rq.Pairing == ops.Interleaved, false)
	if err != nil {
		return nil, 0, err
	}
	if err := errors.Join(qc.inputs(0, &r.Q), kc.inputs(0, &r.K), c.inputs(0, &r.KPool), c.inputs(2, &r.Slots), vc.inputs(0, &r.VPool, &r.V)); err != nil {
		return nil, 0, err
	}
	c.checkSlots(2, kin[0])
	r.Hq, r.Hk, r.QOut = q.Dim(-2), k.Dim(-2), qc.Output(0)
	return c, 4, r.Launch(c)
}
