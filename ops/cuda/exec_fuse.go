package cuda

import (
	"errors"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// fuse makes one step of several nodes in a row that one kernel does; nil when there is no such thing at step i.
func (p *program) fuse(i int) (*step, int, error) {
	for _, f := range []func(int) (*Call, int, error){p.fuseDelta, p.fuseHeads, p.fuseGate, p.fuseAppend, p.fuseResidual, p.fuseRoute, p.fuseShared, p.fuseExperts, p.fuseLatents} {
		c, n, err := f(i)
		if c == nil && err == nil || errors.Is(err, ErrUnsupported) {
			continue // node by node, each says why
		}
		if err != nil {
			return nil, 0, err
		}
		s := &step{queued: c.queued, why: c.note}
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

// alike says that two linears read one x and can be one product of weights that follow each other, however those are stored.
func alike(a, b *graph.Node) bool {
	_, plain := opOf[ops.LinearOp](a)
	_, both := opOf[ops.LinearOp](b)
	return (plain && both || a.Op() == b.Op()) && a.In()[0] == b.In()[0] && (biasOf(a) == nil) == (biasOf(b) == nil)
}

// fuseResidual: linear, then the sum with another value.
func (p *program) fuseResidual(i int) (*Call, int, error) {
	linear, add := p.at(i), p.at(i+1)
	if !isLinear(linear) {
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
	if x, _ := p.plan.Place(rootOf(linear.In()[0])); to == x { // blocks that end early would write what others still read
		return nil, 0, nil
	}
	c := &Call{Node: linear, In: linear.In(), p: p}
	return c, 2, productBody(c, &Call{Node: add, In: in, p: p})
}

// fuseAppend: the rotation of q and k and the writes of k and v to their pools.
func (p *program) fuseAppend(i int) (*Call, int, error) {
	g, err := p.appendGroup(i)
	if g == nil || err != nil {
		return nil, 0, err
	}
	if err := errors.Join(g.q.inputs(0, &g.r.Q), g.k.inputs(0, &g.r.K), g.v.inputs(1, &g.r.V)); err != nil {
		return nil, 0, err
	}
	return g.c, 4, g.r.Launch(g.c)
}

// appendSteps are the rotations of q and k and the writes of k and v, as one launch that lacks its inputs.
type appendSteps struct {
	q, k, c, v *Call // rotary, rotary, append_pages, append_pages
	r          Rotary
}

func (p *program) appendGroup(i int) (*appendSteps, error) {
	q, k, ka, va := p.at(i), p.at(i+1), p.at(i+2), p.at(i+3)
	rq, ok := opOf[ops.RotaryOp](q)
	rk, both := opOf[ops.RotaryOp](k)
	if !ok || !both || rq != rk || rq.Back || len(q.In()) != 2 || len(k.In()) != 2 || q.In()[1] != k.In()[1] {
		return nil, nil
	}
	if _, ok := opOf[ops.AppendPagesOp](ka); !ok {
		return nil, nil
	}
	if _, ok := opOf[ops.AppendPagesOp](va); !ok {
		return nil, nil
	}
	kin, vin := ka.In(), va.In()
	if len(kin) != len(vin) || kin[1] != k || !p.only(k, ka) || kin[2] != vin[2] || kin[0] == vin[0] || !slices.Equal(kin[1].Shape(), vin[1].Shape()) {
		return nil, nil
	}
	g := &appendSteps{q: &Call{Node: q, In: q.In(), p: p}, k: &Call{Node: k, In: k.In(), p: p}, c: &Call{Node: ka, In: kin, p: p}, v: &Call{Node: va, In: vin, p: p}}
	pool := g.c.poolType(0)
	if pool != p.compute && pool != E4M3 || g.v.poolType(0) != pool {
		return nil, nil
	}
	var err error
	if g.r, err = g.q.rotation(q.In()[0], 1, rq.Table, rq.Pairing == ops.Interleaved, false); err != nil {
		return nil, err
	}
	var errs [5]error
	g.r.KPool, errs[0] = g.c.InputAs(0, pool)
	g.r.VPool, errs[1] = g.v.InputAs(0, pool)
	g.r.KSteps, errs[2] = g.c.poolSteps(3)
	g.r.VSteps, errs[3] = g.v.poolSteps(3)
	errs[4] = g.c.inputs(2, &g.r.Slots)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	g.r.Computed = g.r.Computed || !g.c.fed(2) || len(kin) > 3 && (g.c.computed(3) || g.v.computed(3))
	g.c.checkSlots(2, kin[0])
	g.r.Hq, g.r.Hk, g.r.QOut = q.Dim(-2), k.Dim(-2), g.q.Output(0)
	return g, nil
}

// fuseHeads: the products that give q, k and v as one, whose result the rotation and the writes read by strides; norms of
// the heads of q and k pass in front of the rotation.
func (p *program) fuseHeads(i int) (*Call, int, error) {
	var lin, norm [3]*graph.Node
	at := i
	for j := range lin {
		lin[j] = p.at(at)
		if !isLinear(lin[j]) || !alike(lin[j], lin[0]) {
			return nil, 0, nil
		}
		at++
		if _, ok := opOf[ops.RMSNormOp](p.at(at)); ok && j < 2 {
			if norm[j] = p.at(at); rootOf(norm[j].In()[0]) != lin[j] || p.computedNode(norm[j].In()[1]) || p.needs(norm[j], 1) {
				return nil, 0, nil
			}
			at++
		}
	}
	if (norm[0] == nil) != (norm[1] == nil) || norm[0] != nil && norm[0].Op() != norm[1].Op() {
		return nil, 0, nil
	}
	for j, reader := range []*graph.Node{p.at(at), p.at(at + 1), p.at(at + 3)} {
		from := lin[j]
		if norm[j] != nil {
			if !p.only(lin[j], norm[j]) {
				return nil, 0, nil
			}
			from = norm[j]
		}
		if reader == nil || !p.only(from, reader) {
			return nil, 0, nil
		}
	}
	g, err := p.appendGroup(at)
	if g == nil || err != nil {
		return nil, 0, err
	}
	width := 0
	for _, n := range lin {
		width += n.Dim(-1)
	}
	c := &Call{Node: lin[0], In: lin[0].In(), p: p}
	m := Gemm{M: rowsOf(lin[0].Type()), N: width, K: lastDim(c.In[0].Type()), Y: p.joined.pointer()}
	if err := c.products(m, lin[:]...); err != nil {
		return nil, 0, err
	}
	size := p.compute.Size()
	p.joined.bytes = max(p.joined.bytes, int64(m.M*width*size))
	r := g.r
	r.Q = m.Y
	r.K = r.Q.At(int64(lin[0].Dim(-1) * size))
	r.V = r.K.At(int64(lin[1].Dim(-1) * size))
	r.QStride, r.KStride, r.VStride = int64(width), int64(width), int64(width)
	if norm[0] != nil {
		r.Eps = float32(norm[0].Op().(ops.RMSNormOp).Eps)
		q, k := &Call{Node: norm[0], In: norm[0].In(), p: p}, &Call{Node: norm[1], In: norm[1].In(), p: p}
		if norm[0].In()[1].Dim(0) != r.D || norm[1].In()[1].Dim(0) != r.D {
			return nil, 0, nil // over all heads at once
		}
		if err := errors.Join(q.inputs(1, &r.QWeight), k.inputs(1, &r.KWeight)); err != nil {
			return nil, 0, err
		}
	}
	return c, at + 4 - i, r.Launch(c)
}

// fuseGate: the two products of a gated unit and its gate.
func (p *program) fuseGate(i int) (*Call, int, error) {
	gate, up, unit := p.at(i), p.at(i+1), p.at(i+2)
	if _, ok := opOf[ops.SwiGLUOp](unit); !ok || !isLinear(gate) || !isLinear(up) || !alike(gate, up) || biasOf(gate) != nil || !slices.Equal(unit.In(), []*graph.Node{gate, up}) || gate == up || !p.only(gate, unit) || !p.only(up, unit) {
		return nil, 0, nil
	}
	// The result must lie where one of the two did: other memory may be that of x, which is free by then.
	to, _ := p.plan.Place(unit)
	ga, _ := p.plan.Place(gate)
	if ua, _ := p.plan.Place(up); to != ga && to != ua {
		return nil, 0, nil
	}
	c := &Call{Node: gate, In: gate.In(), p: p}
	m := Gemm{M: rowsOf(gate.Type()), N: gate.Dim(-1), K: lastDim(c.In[0].Type()), SwiGLU: true, Y: p.pointer(unit)}
	if z, ok := p.codesOf(unit, unit.Type()); ok && z.steps.tensor() && quantises(gate) {
		c.codes = &z
		if err := c.products(m, gate, up); !errors.Is(err, ErrUnsupported) {
			if err == nil {
				p.coded[unit] = z
			}
			return c, 3, err
		}
		c = &Call{Node: gate, In: gate.In(), p: p}
	}
	return c, 3, c.products(m, gate, up)
}
