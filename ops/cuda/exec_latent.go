package cuda

import (
	"errors"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Latent attention: its small steps, and attention over pages of latents.
func init() {
	Register("split", splitBody)
	Register("join", joinBody)
	Register("latent_kv", latentKVBody)
	Register("latent_query", func(c *Call) error {
		o := c.Node.Op().(ops.LatentQueryOp)
		return latentProductBody(c, LatentProduct{N: o.N, V: o.V, P: lastDim(c.In[0].Type()) - o.N})
	})
	Register("latent_value", func(c *Call) error {
		o := c.Node.Op().(ops.LatentValueOp)
		return latentProductBody(c, LatentProduct{N: o.N, V: o.V, Value: true})
	})
}

// severalActivations says that all results of an op are activations, in the compute dtype.
func severalActivations(op string) bool { return op == "split" || op == "latent_kv" }

// moves launches any number of parts.
func (c *Call) moves(rows int, parts []MovePart) error {
	for at := 0; at < len(parts); at += 4 {
		if err := (Moves{Type: c.Type(), Rows: rows, Parts: parts[at:min(at+4, len(parts))]}).Launch(c); err != nil {
			return err
		}
	}
	return nil
}

func splitBody(c *Call) error {
	x, err := c.Input(0)
	if err != nil {
		return err
	}
	t := c.In[0].Type()
	var parts []MovePart
	at := 0
	for i, n := range c.Node.Op().(ops.SplitOp).Sizes {
		if c.Needs(i) {
			parts = append(parts, MovePart{To: c.Output(i), ToStride: int64(n), From: x.At(int64(at * c.Type().Size())), FromStride: int64(lastDim(t)), N: n})
		}
		at += n
	}
	return c.moves(rowsOf(t), parts)
}

func joinBody(c *Call) error {
	y, t := c.Output(0), c.Node.Type()
	var parts []MovePart
	at := 0
	for i, in := range c.In {
		x, err := c.Input(i)
		if err != nil {
			return err
		}
		n := lastDim(in.Type())
		parts = append(parts, MovePart{To: y.At(int64(at * c.Type().Size())), ToStride: int64(lastDim(t)), From: x, FromStride: int64(n), N: n})
		at += n
	}
	return c.moves(rowsOf(t), parts)
}

func latentKVBody(c *Call) error {
	o, p := c.Node.Op().(ops.LatentKVOp), lastDim(c.In[1].Type())
	var kv, shared Pointer
	if err := c.inputs(0, &kv, &shared); err != nil {
		return err
	}
	size := int64(c.Type().Size())
	k, v, n := c.Output(0), c.Output(1), int64(o.N)
	var parts []MovePart
	if c.Needs(0) {
		parts = append(parts, MovePart{To: k, ToStride: n + int64(p), From: kv, FromStride: n + int64(o.V), N: o.N},
			MovePart{To: k.At(n * size), ToStride: n + int64(p), From: shared, FromStride: int64(p), N: p, Divide: o.H})
	}
	if c.Needs(1) {
		parts = append(parts, MovePart{To: v, ToStride: int64(o.V), From: kv.At(n * size), FromStride: n + int64(o.V), N: o.V})
	}
	return c.moves(rowsOf(c.In[1].Type())*o.H, parts)
}

func latentProductBody(c *Call, l LatentProduct) error {
	x := c.In[0].Type()
	l.Type, l.H, l.T, l.R, l.Y = c.Type(), c.In[0].Dim(-2), rowsOf(x)/c.In[0].Dim(-2), lastDim(c.In[1].Type()), c.Output(0)
	l.Computed = c.computed(1)
	if param := c.In[1].Param(); param != nil && !floatWeight(param) {
		return unsupported(c.Node.Op().Name(), "a weight of %s", param.Type.DType)
	}
	return errors.Join(c.inputs(0, &l.X, &l.W), l.Launch(c))
}

// pagedOrLatentBody gives attention over pages of latents to the kernel that reads them once, all else to the others.
func pagedOrLatentBody(c *Call) error {
	if err := latentPagedBody(c); !errors.Is(err, ErrUnsupported) {
		return err
	}
	return pagedBody(c)
}

// latentPagedBody is causal attention whose one kv head is latents with a shared part behind them, and whose values are the
// same latents. It queues nothing when it answers ErrUnsupported.
func latentPagedBody(c *Call) error {
	const op = "paged_attention"
	o, q, k, v := c.Node.Op().(ops.PagedAttentionOp), c.In[0].Type(), c.In[1].Type(), c.In[2].Type()
	if k.Shape[2] != 1 || lastDim(k) != latentDim || lastDim(v) != latentValues || !o.Causal || o.Window > 0 || o.Softcap != 0 || len(c.In) > 7 || c.Needs(1) || !sameLatents(c.In[1], c.In[2]) {
		return unsupported(op, "this is no attention over latents")
	}
	if !c.Target().Hopper() || c.Type() == F32 || k.Shape[1] < 8 {
		return unsupported(op, "latents in %v, pages of %d on %s", c.Type(), k.Shape[1], c.Target().Name)
	}
	for i := 3; i < 7; i++ {
		if !c.fed(i) {
			return unsupported(op, "%s is not fed: the host looks at the requests before a run", c.In[i].Name())
		}
	}
	r := requests{c.In[3], c.In[4], c.In[5], c.In[6]}
	from := c.In[0]
	if _, ok := opOf[ops.LatentQueryOp](from); ok {
		from = from.In()[0]
	}
	tokens, size, pages := q.Shape[0], k.Shape[1], k.Shape[0]
	a := LatentAttention{Type: c.Type(), T: tokens, H: q.Shape[1], Requests: r.qo.Dim(0) - 1, Out: c.Output(0), PoolTokens: pages * size, Pages: Pages{PageSize: size},
		MaxLength: c.longest(r, from, size, pages), Scale: float32(o.Scale)}
	if err := errors.Join(c.inputs(0, &a.Q, &a.Pool), c.inputs(3, &a.QoIndptr, &a.Pages.Indptr, &a.Pages.Indices, &a.Pages.LastPageLen)); err != nil {
		return err
	}
	c.Check([4]any{r, tokens, size, pages}, r.check(tokens, size, pages))
	a.Tiles = ceilDiv(tokens*a.H, LatentRows) + a.Requests
	a.TileBatch, a.TileIndex = c.latentTiles(r, a.H, a.Tiles)
	a.Scratch = c.Scratch(a.ScratchBytes())
	if err := a.Single(c); err != nil || tokens == 1 {
		return err
	}
	c.p.several(r, func(f graph.Feeds) bool { return r.mixed(f) })
	c.mixed = true
	defer func() { c.mixed = false }()
	return a.Several(c)
}

// bare is the node behind reshapes.
func bare(n *graph.Node) *graph.Node {
	for {
		if _, ok := opOf[graph.Reshape](n); !ok {
			return n
		}
		n = n.In()[0]
	}
}

// sameLatents says that the values of a pool are the latents that begin the keys of the other: both are written, in the same
// slots, from one node, the keys with something joined behind.
func sameLatents(k, v *graph.Node) bool {
	_, a := opOf[ops.AppendPagesOp](k)
	_, b := opOf[ops.AppendPagesOp](v)
	if !a || !b || k.In()[2] != v.In()[2] {
		return false
	}
	join := bare(k.In()[1])
	_, ok := opOf[ops.JoinOp](join)
	return ok && bare(join.In()[0]) == bare(v.In()[1])
}

// part says that n, behind reshapes, is result i of m.
func (p *program) part(n, m *graph.Node, i int) bool {
	return rootOf(n) == m && p.offset(n) == p.offset(m)+int64(m.ResultOffset(i))
}

// fuseLatents: the split of latents from the shared part of keys, the norm of the ones, the rotation of the other, and the
// writes of both to their pools. The rotation of the queries may stand between; it follows as a launch of its own.
func (p *program) fuseLatents(i int) (*Call, int, error) {
	split, norm := p.at(i), p.at(i+1)
	o, ok := opOf[ops.SplitOp](split)
	n, both := opOf[ops.RMSNormOp](norm)
	if !ok || !both || len(o.Sizes) != 2 || !p.part(norm.In()[0], split, 0) || p.computedNode(norm.In()[1]) || p.needs(norm, 1) {
		return nil, 0, nil
	}
	at := i + 2
	rotary := func(shared bool) *graph.Node {
		x := p.at(at)
		if _, ok := opOf[ops.RotaryOp](x); !ok || p.part(x.In()[0], split, 1) != shared {
			return nil
		}
		at++
		return x
	}
	queries, turned := rotary(false), rotary(true)
	join, k, v := p.at(at), p.at(at+1), p.at(at+2)
	if k == nil || v == nil || !sameLatents(k, v) || bare(k.In()[1]) != join || len(k.In()) != 3 || len(v.In()) != 3 || len(join.In()) != 2 || !p.part(join.In()[0], norm, 0) || k.In()[0] == v.In()[0] {
		return nil, 0, nil
	}
	reads := map[*graph.Node][]*graph.Node{split: {norm, join}, norm: {join, v}, join: {k}}
	if turned != nil {
		reads[split], reads[turned] = []*graph.Node{norm, turned}, []*graph.Node{join}
		if bare(join.In()[1]) != turned {
			return nil, 0, nil
		}
	} else if !p.part(join.In()[1], split, 1) {
		return nil, 0, nil
	}
	for x, readers := range reads {
		if !slices.Equal(p.consumers[x], readers) || slices.ContainsFunc(p.plan.Outputs, func(o *graph.Node) bool { return rootOf(o) == x }) {
			return nil, 0, nil
		}
	}
	c := &Call{Node: k, In: k.In(), p: p}
	l := LatentAppend{Type: c.Type(), T: rowsOf(split.In()[0].Type()), R: o.Sizes[0], P: o.Sizes[1], Eps: float32(n.Eps)}
	value, weight, x := &Call{Node: v, In: v.In(), p: p}, &Call{Node: norm, In: norm.In(), p: p}, &Call{Node: split, In: split.In(), p: p}
	if err := errors.Join(c.inputs(0, &l.KPool), c.inputs(2, &l.Slots), value.inputs(0, &l.VPool), weight.inputs(1, &l.W), x.inputs(0, &l.X)); err != nil {
		return nil, 0, err
	}
	if turned != nil {
		rot := turned.Op().(ops.RotaryOp)
		r, err := (&Call{Node: turned, In: turned.In(), p: p}).rotation(turned.In()[0], 1, rot.Table, rot.Pairing == ops.Interleaved, rot.Back)
		if err != nil {
			return nil, 0, err
		}
		l.Cos, l.Sin, l.Positions, l.MaxPositions, l.Pairing = r.Cos, r.Sin, r.Positions, r.MaxPositions, r.Pairing
	}
	c.checkSlots(2, k.In()[0])
	if err := l.Launch(c); err != nil {
		return nil, 0, err
	}
	if queries != nil {
		q := &Call{Node: queries, In: queries.In(), p: p}
		if err := rotaryBody(q); err != nil {
			return nil, 0, err
		}
		c.queued = append(c.queued, q.queued...)
	}
	return c, at + 3 - i, nil
}

// latentTiles lists the row tiles of the requests that bring several tokens, a request's last ones first: they are the longest.
func (c *Call) latentTiles(r requests, heads, n int) (batch, index Pointer) {
	batch = c.Prepared([4]any{"latent batch", r, heads, n}, "latent_tile_batch", n, func(dst []int32, f graph.Feeds) { latentTiles(dst, nil, ints(f, r.qo), heads) })
	index = c.Prepared([4]any{"latent index", r, heads, n}, "latent_tile_index", n, func(dst []int32, f graph.Feeds) { latentTiles(nil, dst, ints(f, r.qo), heads) })
	return batch, index
}

// latentTiles fills the one that is not nil; what is left has no request.
func latentTiles(batch, index, qo []int32, heads int) {
	at := 0
	for b := range len(qo) - 1 {
		if single(qo, b) {
			continue
		}
		for t := ceilDiv(int(qo[b+1]-qo[b])*heads, LatentRows) - 1; t >= 0; t-- {
			if batch != nil {
				batch[at] = int32(b)
			} else {
				index[at] = int32(t)
			}
			at++
		}
	}
	for i := at; i < len(batch); i++ {
		batch[i] = -1
	}
	for i := at; i < len(index); i++ {
		index[i] = 0
	}
}
