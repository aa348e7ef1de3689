package cuda

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Attention and what writes the pages it reads.
func init() {
	Register("attention", attentionBody)
	Register("paged_attention", pagedOrLatentBody)
	Register("append_pages", appendPagesBody)
	Register("append_rotary", appendRotaryBody)
}

// kernelWindow counts the keys besides the own one; an op's window counts it in and has 0 for all.
func kernelWindow(n int) int { return n - 1 }

func attentionBody(c *Call) error {
	const op = "attention"
	o, q, k, v := c.Node.Op().(ops.AttentionOp), c.In[0].Type(), c.In[1].Type(), c.In[2].Type()
	switch {
	case o.Ragged:
		return unsupported(op, "packed sequences without pages")
	case o.KVLen && (o.Mask || o.Sinks || q.Shape[1] != 1 || c.Needs(1)):
		return unsupported(op, "kv_len with more than one query token, a mask, sinks or lse")
	case o.Window > 0 && !o.Causal:
		return unsupported(op, "a window that is not causal")
	case lastDim(q) != lastDim(v):
		return unsupported(op, "head dims %d and %d of keys and values differ", lastDim(k), lastDim(v))
	}
	a := AttentionPrefill{Type: c.Type(), B: q.Shape[0], Lq: q.Shape[1], Hq: q.Shape[2], D: q.Shape[3], Lk: k.Shape[1], Hk: k.Shape[2], Out: c.Output(0),
		Causal: o.Causal, Window: kernelWindow(o.Window), Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
	if err := checkHeads(op, a.Type, a.Hq, a.Hk, a.D); err != nil {
		return err
	}
	if c.Needs(1) {
		a.LSE = c.Output(1)
	}
	if err := c.inputs(0, &a.Q, &a.K, &a.V); err != nil {
		return err
	}
	at := 3
	var err error
	if o.KVLen {
		return c.attentionOfLengths(o, a)
	}
	if o.Mask {
		m := c.In[at].Type()
		if a.Mask, err = c.Input(at); err != nil {
			return err
		}
		rows, heads := 1, 1
		if m.Rank() >= 3 {
			rows = m.Shape[m.Rank()-2]
		}
		if m.Rank() == 4 {
			heads = m.Shape[1]
		}
		a.MaskRequest = int64(heads * rows * a.Lk)
		if rows > 1 {
			a.MaskRow = int64(a.Lk)
		}
		if heads > 1 {
			a.MaskHead = int64(rows * a.Lk)
		}
		at++
	}
	if o.Sinks {
		if a.Sinks, err = c.InputAs(at, F32); err != nil {
			return err
		}
	}
	return a.Launch(c)
}

// attentionOfLengths is one query token a sequence, over keys of a length of its own.
func (c *Call) attentionOfLengths(o ops.AttentionOp, a AttentionPrefill) error {
	if o.Causal && a.Lk > 1 {
		return unsupported("attention", "kv_len of a causal attention")
	}
	c.checkInts(3, 0, a.Lk, "kv_len")
	lengths, err := c.Input(3)
	if err != nil {
		return err
	}
	d := AttentionDecode{Type: a.Type, B: a.B, Hq: a.Hq, Hk: a.Hk, D: a.D, Out: a.Out, Q: a.Q, K: a.K, V: a.V, Lengths: lengths, MaxLength: a.Lk, Window: -1, Softcap: a.Softcap, Scale: a.Scale}
	d.Scratch = c.Scratch(d.ScratchBytes())
	return d.Launch(c)
}

// requests are the inputs of a paged attention that describe its requests, all fed.
type requests struct{ qo, indptr, indices, last *graph.Node }

// single says whether a request brings one token: then it goes to the decode kernel, so that it has the same bits whatever
// else is in the step.
func single(qo []int32, b int) bool { return qo[b+1]-qo[b] == 1 }

// tilesOf is the number of tiles of a request for the prefill kernel.
func (r requests) tilesOf(qo []int32, b, rows int, several bool) int {
	if several && single(qo, b) {
		return 0
	}
	return ceilDiv(int(qo[b+1]-qo[b]), rows)
}

func (r requests) mixed(f graph.Feeds) bool {
	qo := ints(f, r.qo)
	for b := range len(qo) - 1 {
		if qo[b+1]-qo[b] > 1 {
			return true
		}
	}
	return false
}

// check tests the description of the requests.
func (r requests) check(tokens, pageSize, poolPages int) func(graph.Feeds) error {
	return func(f graph.Feeds) error {
		qo, indptr, last := ints(f, r.qo), ints(f, r.indptr), ints(f, r.last)
		if qo[0] != 0 {
			return fmt.Errorf("paged_attention: qo_indptr must start at 0, got %d", qo[0])
		}
		if err := CheckPages(pageSize, poolPages, indptr, ints(f, r.indices), last); err != nil {
			return fmt.Errorf("paged_attention: %w", err)
		}
		for b := range len(qo) - 1 {
			n, pages := int(qo[b+1])-int(qo[b]), int(indptr[b+1]-indptr[b])
			length := max(0, pages-1)*pageSize + int(last[b])
			if n < 0 || n > length {
				return fmt.Errorf("paged_attention: request %d brings %d tokens (qo_indptr %d, %d), its pages hold %d", b, n, qo[b], qo[b+1], length)
			}
		}
		if end := int(qo[len(qo)-1]); end > tokens {
			return fmt.Errorf("paged_attention: qo_indptr ends at %d, there are %d tokens", end, tokens)
		}
		return nil
	}
}

// mostDecode is the most rows that the decode kernel takes.
const mostDecode = 1024

// pagedBody gives every row of a request that brings one token to the decode kernel, as a request of its own, and the rows
// of the others to the prefill kernel behind it, whose launches a step of single tokens leaves out.
func pagedBody(c *Call) error {
	const op = "paged_attention"
	o, q, k, v := c.Node.Op().(ops.PagedAttentionOp), c.In[0].Type(), c.In[1].Type(), c.In[2].Type()
	tokens, hq, d, pages, size, hk := q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[0], k.Shape[1], k.Shape[2]
	if d != lastDim(v) {
		return unsupported(op, "head dims %d and %d of keys and values differ", d, lastDim(v))
	}
	if err := checkHeads(op, c.Type(), hq, hk, d); err != nil {
		return err
	}
	if len(c.In) > 7 {
		return unsupported(op, "pools of %s", k.DType)
	}
	if c.Needs(1) {
		return unsupported(op, "lse is read")
	}
	for i := 3; i < 7; i++ {
		if !c.fed(i) {
			return unsupported(op, "%s is not fed: the host looks at the requests before a run", c.In[i].Name())
		}
	}
	if !o.Causal && o.Window > 0 {
		return unsupported(op, "a window that is not causal")
	}
	r := requests{c.In[3], c.In[4], c.In[5], c.In[6]}
	var qp, kp, vp, qo, indptr, indices, last Pointer
	if err := c.inputs(0, &qp, &kp, &vp, &qo, &indptr, &indices, &last); err != nil {
		return err
	}
	c.Check([4]any{r, tokens, size, pages}, r.check(tokens, size, pages))
	if tokens <= mostDecode {
		rowIndptr, rowIndices, rowLast := c.decodeTable(r, tokens)
		a := AttentionDecode{Type: c.Type(), B: tokens, Hq: hq, Hk: hk, D: d, Out: c.Output(0), Q: qp, K: kp, V: vp,
			Pages:     &Pages{PageSize: size, Indptr: rowIndptr, Indices: rowIndices, LastPageLen: rowLast},
			MaxLength: longest(c.In[0], min(c.In[5].Dim(0), pages)*size), Window: kernelWindow(o.Window), Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
		a.Scratch = c.Scratch(a.ScratchBytes())
		if err := a.Launch(c); err != nil {
			return err
		}
		if tokens == 1 {
			return nil
		}
		c.p.several(r, func(f graph.Feeds) bool { return r.mixed(f) })
		c.mixed = true
		defer func() { c.mixed = false }()
	} else if err := c.Fill(c.Output(0), 0, int64(tokens*hq*d*c.Type().Size())); err != nil {
		return err
	}
	a := AttentionPrefill{Type: c.Type(), Hq: hq, Hk: hk, D: d, Out: c.Output(0), Q: qp, K: kp, V: vp, Causal: o.Causal, Window: kernelWindow(o.Window),
		Softcap: float32(o.Softcap), Scale: float32(o.Scale),
		Ragged: &Ragged{Pages: Pages{PageSize: size, Indptr: indptr, Indices: indices, LastPageLen: last}, Tokens: tokens, PoolTokens: pages * size, QoIndptr: qo}}
	rows := a.TileRows(c.Target())
	a.Ragged.Tiles = tokens/rows + min(r.qo.Dim(0)-1, tokens)
	a.Ragged.TileBatch, a.Ragged.TileIndex = c.tiles(r, rows, a.Ragged.Tiles, tokens <= mostDecode)
	return a.Launch(c)
}

// longest bounds the length of a request: the pages that there are, or the positions that q was turned by.
func longest(q *graph.Node, most int) int {
	for n := q; n.Op() != nil; n = n.In()[0] {
		switch o := n.Op().(type) {
		case ops.RotaryOp:
			return min(most, o.Table.Positions)
		case graph.Reshape:
			continue
		}
		break
	}
	return most
}

// decodeTable is the page table by rows: a row of a request that brings one token has its pages, any other has none.
func (c *Call) decodeTable(r requests, tokens int) (indptr, indices, last Pointer) {
	indptr = c.Prepared([3]any{"decode indptr", r, tokens}, "decode_indptr", tokens+1, func(dst []int32, f graph.Feeds) {
		clear(dst)
		qo, table := ints(f, r.qo), ints(f, r.indptr)
		for b := range len(qo) - 1 {
			if single(qo, b) {
				dst[qo[b]+1] = table[b+1] - table[b]
			}
		}
		for t := range tokens {
			dst[t+1] += dst[t]
		}
	})
	indices = c.Prepared([2]any{"decode indices", r}, "decode_indices", r.indices.Dim(0), func(dst []int32, f graph.Feeds) {
		qo, table, pages := ints(f, r.qo), ints(f, r.indptr), ints(f, r.indices)
		for b := range len(qo) - 1 {
			if single(qo, b) {
				dst = dst[copy(dst, pages[table[b]:table[b+1]]):]
			}
		}
	})
	last = c.Prepared([3]any{"decode last", r, tokens}, "decode_last_page_len", tokens, func(dst []int32, f graph.Feeds) {
		clear(dst)
		qo, lens := ints(f, r.qo), ints(f, r.last)
		for b := range len(qo) - 1 {
			if single(qo, b) {
				dst[qo[b]] = lens[b]
			}
		}
	})
	return indptr, indices, last
}

// tiles is the work of the prefill kernel: tiles of rows of the requests that bring several tokens, or of all.
func (c *Call) tiles(r requests, rows, n int, several bool) (batch, index Pointer) {
	batch = c.Prepared([4]any{"tile batch", r, rows, n}, "tile_batch", n, func(dst []int32, f graph.Feeds) {
		at, qo := 0, ints(f, r.qo)
		for b := range len(qo) - 1 {
			for range r.tilesOf(qo, b, rows, several) {
				dst[at] = int32(b)
				at++
			}
		}
		for ; at < n; at++ {
			dst[at] = -1
		}
	})
	index = c.Prepared([4]any{"tile index", r, rows, n}, "tile_index", n, func(dst []int32, f graph.Feeds) {
		clear(dst)
		at, qo := 0, ints(f, r.qo)
		for b := range len(qo) - 1 {
			for i := range r.tilesOf(qo, b, rows, several) {
				dst[at] = int32(i)
				at++
			}
		}
	})
	return batch, index
}

// several adds a test of whether a run needs the launches that are queued as mixed.
func (p *program) several(key any, f func(graph.Feeds) bool) {
	if k := [2]any{"mixed", key}; !p.checked[k] {
		p.checked[k] = true
		p.mixed = append(p.mixed, f)
	}
}

// appendable refuses pools that the cache write has no kernel for. It depends on the pool alone, so that every plan of a
// session answers alike.
func (c *Call) appendable(pool *graph.Node) error {
	if len(c.In) > 4 || pool.Type().DType == dtype.Float8E4M3 {
		return unsupported(c.Node.Op().Name(), "a pool of %s", pool.Type().DType)
	}
	if columns := pool.Dim(-2) * pool.Dim(-1); columns*c.Type().Size()%16 != 0 {
		return unsupported(c.Node.Op().Name(), "%d columns of %v: rows of whole 16 bytes", columns, c.Type())
	}
	return nil
}

func (c *Call) checkSlots(i int, pool *graph.Node) {
	c.checkInts(i, -1, pool.Dim(0)*pool.Dim(1)-1, "slots")
}

func appendPagesBody(c *Call) error {
	if err := c.appendable(c.In[0]); err != nil {
		return err
	}
	var pool, x, slots Pointer
	if err := c.inputs(0, &pool, &x, &slots); err != nil {
		return err
	}
	c.checkSlots(2, c.In[0])
	t := c.In[1].Type()
	return Append{Type: c.Type(), T: t.Shape[0], Columns: t.Shape[1] * t.Shape[2], Pool: pool, X: x, Slots: slots}.Launch(c)
}

func appendRotaryBody(c *Call) error {
	o, x := c.Node.Op().(ops.AppendRotaryOp), c.In[1]
	if err := c.appendable(c.In[0]); err != nil {
		return err
	}
	r, err := c.rotation(x, 2, o.Table, o.Pairing == ops.Interleaved, false)
	if err != nil {
		return err
	}
	if err := c.inputs(0, &r.KPool, &r.K); err != nil {
		return err
	}
	c.checkSlots(3, c.In[0])
	r.Hk = x.Dim(-2)
	if r.Slots, err = c.Input(3); err != nil {
		return err
	}
	return r.Launch(c)
}
