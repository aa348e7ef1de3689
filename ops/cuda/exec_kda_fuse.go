package cuda

import (
	"errors"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// delta is a layer of KDA on pools of states, from the projections of its input to the norm of its output: steps that one
// launch does for single tokens. Its projections lie in memory of their own, since those of the plan are free again before
// the last is made.
type delta struct {
	p                              *program
	q, k, v, fa, fb, b, ga, gb     *Call // linear
	cq, ck, cv, nq, nk             *Call // short_conv_slots, l2norm
	gate, beta, core, norm         *Call
	s                              slotted
	x                              KDAHeads
	tokens, width                  int
	xq, xk, xv, z, logits, gamma   Pointer // the projections
	thin                           Pointer // of the two narrow ones, the inner
	yq, yk, yv, decay, strength, o Pointer // of requests with several tokens, what lies between
}

// fuseDelta: the steps of one layer.
func (p *program) fuseDelta(i int) (*Call, int, error) {
	const count = 17
	var n [count]*Call
	for j := range n {
		node := p.at(i + j)
		if node == nil {
			return nil, 0, nil
		}
		n[j] = &Call{Node: node, In: node.In(), p: p}
	}
	d := &delta{p: p, q: n[0], cq: n[1], nq: n[2], k: n[3], ck: n[4], nk: n[5], v: n[6], cv: n[7], fa: n[8], fb: n[9], gate: n[10], b: n[11], beta: n[12], core: n[13], ga: n[14], gb: n[15], norm: n[16]}
	if !d.matches() {
		return nil, 0, nil
	}
	if err := d.launch(); err != nil {
		return nil, 0, err
	}
	return d.q, count, nil
}

// matches says that the steps are those of a layer, and that nothing else reads what lies between them.
func (d *delta) matches() bool {
	for _, c := range []*Call{d.q, d.k, d.v, d.fa, d.fb, d.b, d.ga, d.gb} {
		if !d.p.plain(c.Node) || len(c.In) != 2 || d.p.computedNode(c.In[1]) {
			return false
		}
	}
	for _, c := range []*Call{d.k, d.v, d.fa, d.b, d.ga} {
		if c.In[0] != d.q.In[0] {
			return false
		}
	}
	feeds := func(from *Call, to *Call, i int) bool {
		return rootOf(to.In[i]) == from.Node && d.p.only(from.Node, to.Node)
	}
	for _, c := range []*Call{d.cq, d.ck, d.cv} {
		if _, ok := opOf[ops.ShortConvSlotsOp](c.Node); !ok || !slices.Equal(c.In[3:], d.cq.In[3:]) {
			return false
		}
	}
	a, ok := opOf[ops.L2NormOp](d.nq.Node)
	b, both := opOf[ops.L2NormOp](d.nk.Node)
	_, gate := opOf[ops.KDAGateOp](d.gate.Node)
	_, beta := opOf[ops.KDABetaOp](d.beta.Node)
	_, core := opOf[ops.KDASlotsOp](d.core.Node)
	_, norm := opOf[ops.GatedRMSNormOp](d.norm.Node)
	if !ok || !both || a != b || !gate || !beta || !core || !norm || !slices.Equal(d.core.In[6:], d.cq.In[3:]) {
		return false
	}
	return feeds(d.q, d.cq, 0) && feeds(d.k, d.ck, 0) && feeds(d.v, d.cv, 0) && feeds(d.cq, d.nq, 0) && feeds(d.ck, d.nk, 0) && feeds(d.nq, d.core, 0) && feeds(d.nk, d.core, 1) &&
		feeds(d.cv, d.core, 2) && feeds(d.fa, d.fb, 0) && feeds(d.fb, d.gate, 0) && feeds(d.gate, d.core, 3) && feeds(d.b, d.beta, 0) && feeds(d.beta, d.core, 4) &&
		feeds(d.ga, d.gb, 0) && feeds(d.gb, d.norm, 1) && feeds(d.core, d.norm, 0)
}

// places lays the projections, and what lies between, into the memory of joined products.
func (d *delta) places() {
	at := int64(0)
	take := func(to *Pointer, elements, size int) {
		*to = d.p.joined.pointer().At(at)
		at += (int64(elements*size) + 255) &^ 255
	}
	t, size := d.p.compute.Size(), d.tokens*d.x.H
	for _, to := range []*Pointer{&d.xq, &d.xk, &d.z, &d.yq, &d.yk} {
		take(to, size*d.x.DK, t)
	}
	for _, to := range []*Pointer{&d.xv, &d.gamma, &d.yv, &d.o} {
		take(to, size*d.x.DV, t)
	}
	take(&d.logits, size, t)
	take(&d.strength, size, 4)
	take(&d.decay, size*d.x.DK, 4)
	take(&d.thin, d.tokens*max(d.fa.Node.Dim(-1), d.ga.Node.Dim(-1)), t)
	d.p.joined.bytes = max(d.p.joined.bytes, at)
}

// project queues the product of a linear with x, to y.
func (d *delta) project(l *Call, x, y Pointer) error {
	w := l.In[1]
	m := Gemm{Type: d.p.compute, M: d.tokens, N: w.Dim(0), K: lastDim(l.In[0].Type()), X: x, Y: y}
	if err := d.q.weight(w, &m.W); err != nil {
		return err
	}
	return m.Launch(d.q)
}

// weight reads a weight in the compute dtype.
func (c *Call) weight(w *graph.Node, to *Pointer) (err error) {
	*to, err = c.p.read(c.Node.Op().Name(), w, c.p.compute)
	return err
}

// launch queues the projections, the single tokens, and in steps that have others those.
func (d *delta) launch() error {
	c, err := d.q, error(nil)
	d.tokens, d.x, d.width = d.core.In[0].Dim(0), headsOf(d.core.In[0], d.core.In[2]), d.cq.In[1].Dim(1)
	if d.s, err = d.core.slotted("kda_slots", d.tokens, d.core.In[5].Dim(0)); err != nil {
		return err
	}
	d.places()
	rows, byRow := c.steps(d.s)
	rows.Settled = d.p.settled(d.core.In[5])
	gate, core, norm := d.gate.Node.Op().(ops.KDAGateOp), d.core.Node.Op().(ops.KDASlotsOp), d.norm.Node.Op().(ops.GatedRMSNormOp)
	eps := d.nq.Node.Op().(ops.L2NormOp).Eps
	f := KDAFused{Type: c.Type(), KDAHeads: d.x, StepRows: rows, Width: d.width, Scale: float32(core.Scale), Factor: 1, Bound: float32(gate.Bound), Eps: float32(eps), NormEps: float32(norm.Eps),
		Out: d.norm.Output(0), XQ: d.xq, XK: d.xk, XV: d.xv, Z: d.z, Beta: d.logits, Gate: d.gamma}
	if d.beta.Node.Op().(ops.KDABetaOp).Double {
		f.Factor = 2
	}
	if err := errors.Join(d.core.wide(5, &f.State), d.cq.wide(1, &f.WQ, &f.ConvQ), d.ck.wide(1, &f.WK, &f.ConvK), d.cv.wide(1, &f.WV, &f.ConvV),
		d.gate.wide(1, &f.ALog, &f.DtBias), d.norm.wide(2, &f.Norm)); err != nil {
		return err
	}
	var x Pointer
	if err := c.inputs(0, &x); err != nil {
		return err
	}
	for _, l := range []struct {
		linear *Call
		x, y   Pointer
	}{{d.q, x, d.xq}, {d.k, x, d.xk}, {d.v, x, d.xv}, {d.fa, x, d.thin}, {d.fb, d.thin, d.z}, {d.b, x, d.logits}, {d.ga, x, d.thin}, {d.gb, d.thin, d.gamma}} {
		if err := d.project(l.linear, l.x, l.y); err != nil {
			return err
		}
	}
	if !byRow {
		if err := c.Fill(f.Out, 0, int64(d.tokens*d.x.HV*d.x.DV*c.Type().Size())); err != nil {
			return err
		}
	}
	if err := f.Launch(c); err != nil {
		return err
	}
	if d.tokens == 1 {
		return nil
	}
	defer c.mixedOnly(d.s)()
	return d.others(f)
}

// others queues the requests that bring several tokens.
func (d *delta) others(f KDAFused) error {
	c, seqs, owners := d.q, d.q.sequences(d.s), d.q.owners(d.s)
	t := c.Type()
	for _, x := range []struct {
		x, w, state, y Pointer
		dim            int
	}{{d.xq, f.WQ, f.ConvQ, d.yq, d.x.DK}, {d.xk, f.WK, f.ConvK, d.yk, d.x.DK}, {d.xv, f.WV, f.ConvV, d.yv, d.x.DV}} {
		if err := (ShortConv{Type: t, T: d.tokens, C: d.x.H * x.dim, Width: d.width, KDASequences: seqs, Y: x.y, X: x.x, W: x.w, State: x.state, Next: x.state, Owner: owners}).Launch(c); err != nil {
			return err
		}
	}
	rows := d.tokens * d.x.H
	k := KDATokens{Type: t, KDAHeads: d.x, KDASequences: seqs, Scale: f.Scale, Out: d.o, Final: f.State, Q: d.yq, K: d.yk, V: d.yv, G: d.decay, Beta: d.strength, S0: f.State}
	return errors.Join(
		L2Norm{Type: t, Rows: rows, D: d.x.DK, Eps: f.Eps, Y: d.yq, X: d.yq}.Launch(c),
		L2Norm{Type: t, Rows: rows, D: d.x.DK, Eps: f.Eps, Y: d.yk, X: d.yk}.Launch(c),
		KDAGate{Type: t, T: d.tokens, H: d.x.H, DK: d.x.DK, Bound: f.Bound, G: d.decay, Z: d.z, ALog: f.ALog, DtBias: f.DtBias}.Launch(c),
		KDABeta{Type: t, N: int64(rows), Factor: f.Factor, Y: d.strength, B: d.logits}.Launch(c),
		c.kdaTokens(k, d.s, false),
		GatedRMSNorm{Type: t, Rows: rows, D: d.x.DV, Eps: f.NormEps, Y: f.Out, X: d.o, Gate: d.gamma, W: f.Norm, Sequences: seqs.Table, Owner: owners, Heads: d.x.H}.Launch(c),
	)
}
