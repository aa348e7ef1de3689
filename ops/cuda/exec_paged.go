package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	cpu "github.com/seafan/seafan/ops/native"
)

// Attention and what writes the pages it reads.
func init() {
	Register("attention", attentionBody)
	Register("paged_attention", pagedOrLatentBody)
	Register("merge_states", mergeStatesBody)
	Register("append_pages", appendPagesBody)
	Register("append_rotary", appendRotaryBody)
}

// kernelWindow counts the keys besides the own one; an op's window counts it in and has 0 for all.
func kernelWindow(n int) int { return n - 1 }

// attentionBody gives 16-bit attention over heads that the matrix units have kernels for to them, all else to the general
// kernel.
func attentionBody(c *Call) error {
	const op = "attention"
	o, q, k, v := c.Node.Op().(ops.AttentionOp), c.In[0].Type(), c.In[1].Type(), c.In[2].Type()
	r := q.Rank()
	g := AttentionGeneral{Type: c.Type(), KV: c.Type(), Lq: q.Shape[r-3], Hq: q.Shape[r-2], D: q.Shape[r-1], Lk: k.Shape[r-3], Hk: k.Shape[r-2], Dv: lastDim(v), Out: c.Output(0),
		Causal: o.Causal, Window: kernelWindow(o.Window), Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
	if err := checkGroup(op, g.Hq, g.Hk); err != nil {
		return err
	}
	if c.Needs(1) {
		g.LSE = c.Output(1)
	}
	if err := c.inputs(0, &g.Q, &g.K, &g.V); err != nil {
		return err
	}
	at := 3
	var err error
	if o.Mask {
		m := c.In[at].Type()
		if g.Mask, err = c.Input(at); err != nil {
			return err
		}
		rows, heads := 1, 1
		if m.Rank() >= 3 {
			rows = m.Shape[m.Rank()-2]
		}
		if m.Rank() == 4 {
			heads = m.Shape[1]
		}
		g.MaskRequest = int64(heads * rows * g.Lk)
		if rows > 1 {
			g.MaskRow = int64(g.Lk)
		}
		if heads > 1 {
			g.MaskHead = int64(rows * g.Lk)
		}
		at++
	}
	if o.KVLen {
		if !c.fed(at) {
			return unsupported(op, "kv_len is not fed: the host looks at it before a run")
		}
		c.checkInts(at, 0, g.Lk, "kv_len")
		if g.KVLen, err = c.Input(at); err != nil {
			return err
		}
		at++
	}
	if o.Sinks {
		var wide bool
		if g.Sinks, wide, err = c.floats(at); err != nil {
			return err
		}
		g.SinksNarrow = !wide
		at++
	}
	if o.Ragged {
		return c.packedAttention(g, at)
	}
	g.B = q.Shape[0]
	if g.Dv != g.D || g.SinksNarrow || checkHeads(op, g.Type, g.Hq, g.Hk, g.D, false) != nil {
		return g.Launch(c)
	}
	if o.KVLen {
		d := AttentionDecode{Type: g.Type, B: g.B, Hq: g.Hq, Hk: g.Hk, D: g.D, Out: g.Out, Q: g.Q, K: g.K, V: g.V, Lengths: g.KVLen, MaxLength: g.Lk, Window: g.Window, Softcap: g.Softcap, Scale: g.Scale}
		if g.Lq > 1 || o.Mask || o.Sinks || c.Needs(1) || !d.fits(c.Target()) {
			return g.Launch(c)
		}
		d.Scratch, d.Ticket = c.Scratch(d.ScratchBytes()), c.Flags(4)
		return d.Launch(c)
	}
	a := AttentionPrefill{Type: g.Type, B: g.B, Hq: g.Hq, Hk: g.Hk, D: g.D, Lq: g.Lq, Lk: g.Lk, Out: g.Out, Q: g.Q, K: g.K, V: g.V, LSE: g.LSE, Causal: g.Causal, Window: g.Window,
		Softcap: g.Softcap, Scale: g.Scale, Sinks: g.Sinks, Mask: g.Mask, MaskRequest: g.MaskRequest, MaskHead: g.MaskHead, MaskRow: g.MaskRow}
	if !a.fits(c.Target()) {
		return g.Launch(c)
	}
	a.Ticket = c.Flags(4)
	return a.Launch(c)
}

// floats is a float input in the type that it has on the device, a weight in f32; wide says that it is f32.
func (c *Call) floats(i int) (p Pointer, wide bool, err error) {
	dt := F32
	if !c.p.constant[c.In[i]] {
		dt = c.p.stored(c.In[i])
	}
	p, err = c.InputAs(i, dt)
	return p, dt == F32, err
}

// packedAttention is attention of packed sequences; the last two inputs say which tokens are whose.
func (c *Call) packedAttention(g AttentionGeneral, at int) error {
	const op = "attention"
	if !c.fed(at) || !c.fed(at+1) {
		return unsupported(op, "qo_indptr and kv_indptr are not fed: the host looks at them before a run")
	}
	qo, kv := c.In[at], c.In[at+1]
	g.B = qo.Dim(0) - 1
	c.Check([4]any{"packed", qo, kv, [2]int{g.Lq, g.Lk}}, func(f graph.Feeds) error {
		for _, x := range []struct {
			name string
			v    []int32
			end  int
		}{{"qo_indptr", ints(f, qo), g.Lq}, {"kv_indptr", ints(f, kv), g.Lk}} {
			if x.v[0] != 0 || int(x.v[g.B]) != x.end {
				return fmt.Errorf("attention: %s must run from 0 to %d, the number of packed tokens, got %d to %d", x.name, x.end, x.v[0], x.v[g.B])
			}
			for b := range g.B {
				if x.v[b+1] < x.v[b] {
					return fmt.Errorf("attention: %s decreases at sequence %d: %d, %d", x.name, b, x.v[b], x.v[b+1])
				}
			}
		}
		return nil
	})
	r := &Ragged{Tokens: g.Lq}
	if err := c.inputs(at, &r.QoIndptr, &r.KVIndptr); err != nil {
		return err
	}
	g.Ragged = r
	group := g.Hq / g.Hk
	r.Tiles = g.Lq*group/GeneralRows + g.B + 1
	r.TileBatch, r.TileIndex = c.tiles(requests{qo: qo}, tiling{rows: GeneralRows, group: group, n: r.Tiles, tokens: g.Lq})
	return g.Launch(c)
}

func mergeStatesBody(c *Call) error {
	t := c.In[0].Type()
	r := t.Rank()
	m := MergeStates{Type: c.Type(), B: 1, L: t.Shape[r-3], H: t.Shape[r-2], Dv: t.Shape[r-1], Out: c.Output(0)}
	if r == 4 {
		m.B = t.Shape[0]
	}
	if c.Needs(1) {
		m.LSE = c.Output(1)
	}
	var errs [4]error
	m.A, errs[0] = c.Input(0)
	m.LSEA, m.WideA, errs[1] = c.floats(1)
	m.BState, errs[2] = c.Input(2)
	m.LSEB, m.WideB, errs[3] = c.floats(3)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	return m.Launch(c)
}

// requests are the inputs of a paged attention that describe its requests, all fed.
type requests struct{ qo, indptr, indices, last *graph.Node }

// single says whether a request brings one token: then it goes to the decode kernel, so that it has the same bits whatever
// else is in the step.
func single(qo []int32, b int) bool { return qo[b+1]-qo[b] == 1 }

// tiling is how a kernel cuts requests into tiles: of rows, of which a token has group. The kernel may leave out requests
// of one token, and may take the tokens behind the last request as one more when it knows how many there are.
type tiling struct {
	rows, group, n int // n tiles at most
	several        bool
	tokens         int
}

func (t tiling) of(qo []int32, b int) int {
	if t.several && single(qo, b) {
		return 0
	}
	end := t.tokens
	if b+1 < len(qo) {
		end = int(qo[b+1])
	}
	return ceilDiv(max(0, end-int(qo[b]))*t.group, t.rows)
}

// requests is how many requests there are tiles of.
func (t tiling) requests(qo []int32) int {
	if t.tokens > 0 {
		return len(qo)
	}
	return len(qo) - 1
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

// check tests the description of the requests, as native does.
func (r requests) check(tokens, pageSize, poolPages int) func(graph.Feeds) error {
	return func(f graph.Feeds) error {
		qo, table := ints(f, r.qo), r.table(f, pageSize)
		err := cpu.CheckIndptr("qo_indptr", qo, len(qo)-1, tokens)
		if err == nil {
			err = cpu.CheckPages(table, len(qo)-1, poolPages)
		}
		if err == nil {
			err = cpu.CheckAppend(table, qo)
		}
		if err != nil {
			return fmt.Errorf("paged_attention: %w", err)
		}
		return nil
	}
}

func (r requests) table(f graph.Feeds, pageSize int) cpu.PageTable {
	return cpu.PageTable{PageSize: pageSize, Indptr: ints(f, r.indptr), Indices: ints(f, r.indices), LastPageLen: ints(f, r.last)}
}

// within tests that requests which bring one token are no longer than what the launch has scratch for. The table has passed check.
func (r requests) within(pageSize, most int) func(graph.Feeds) error {
	return func(f graph.Feeds) error {
		qo, table := ints(f, r.qo), r.table(f, pageSize)
		for b := range len(qo) - 1 {
			if n := table.Length(b); single(qo, b) && n > most {
				return fmt.Errorf("paged_attention: %w", &cpu.PageError{Request: b, Index: -1, Reason: fmt.Sprintf("request %d: its pages hold %d tokens, q is turned by positions of 0 to %d", b, n, most-1)})
			}
		}
		return nil
	}
}

// mostDecode is the most rows that the decode kernel takes.
const mostDecode = 1024

// poolType is the type that the keys or values of input i have on the device.
func (c *Call) poolType(i int) DType {
	if param := rootOf(c.In[i]).Param(); param != nil && param.State {
		if dt, ok := c.p.stateType(param); ok {
			return dt
		}
	}
	return c.Type()
}

// pagedBody gives every row of a request that brings one token to the decode kernel, as a request of its own, and the rows
// of the others to the prefill kernel behind it, whose launches a step of single tokens leaves out. What those two do not
// take goes to the general kernel, which takes all rows alike.
func pagedBody(c *Call) error {
	const op = "paged_attention"
	o, q, k, v := c.Node.Op().(ops.PagedAttentionOp), c.In[0].Type(), c.In[1].Type(), c.In[2].Type()
	tokens, hq, d, pages, size, hk := q.Shape[0], q.Shape[1], q.Shape[2], k.Shape[0], k.Shape[1], k.Shape[2]
	for i := 3; i < 7; i++ {
		if !c.fed(i) {
			return unsupported(op, "%s is not fed: the host looks at the requests before a run", c.In[i].Name())
		}
	}
	r := requests{c.In[3], c.In[4], c.In[5], c.In[6]}
	pool := c.poolType(1)
	var qp, kp, vp, kSteps, vSteps, sinks, qo, indptr, indices, last Pointer
	var errs [6]error
	wide := true
	errs[0] = errors.Join(c.inputs(0, &qp), c.inputs(3, &qo, &indptr, &indices, &last))
	kp, errs[1] = c.InputAs(1, pool)
	vp, errs[2] = c.InputAs(2, pool)
	if len(c.In) > 8 {
		kSteps, errs[3] = c.InputAs(7, F32)
		vSteps, errs[4] = c.InputAs(8, F32)
	}
	if o.Sinks {
		sinks, wide, errs[5] = c.floats(len(c.In) - 1)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	c.Check([4]any{r, tokens, size, pages}, r.check(tokens, size, pages))
	ragged := Ragged{Pages: Pages{PageSize: size, Indptr: indptr, Indices: indices, LastPageLen: last}, Tokens: tokens, PoolTokens: pages * size, QoIndptr: qo}
	general := func(several bool, all int) error {
		g := AttentionGeneral{Type: c.Type(), KV: pool, B: r.qo.Dim(0) - 1, Hq: hq, Hk: hk, D: d, Dv: lastDim(v), Out: c.Output(0), Q: qp, K: kp, V: vp, KSteps: kSteps, VSteps: vSteps,
			Sinks: sinks, SinksNarrow: !wide, Ragged: &ragged, Causal: o.Causal, Window: kernelWindow(o.Window), Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
		if c.Needs(1) {
			g.LSE = c.Output(1)
		}
		t := tiling{rows: GeneralRows, group: hq / hk, n: tokens*(hq/hk)/GeneralRows + g.B + 1, several: several, tokens: all}
		ragged.Tiles = t.n
		ragged.TileBatch, ragged.TileIndex = c.tiles(r, t)
		return g.Launch(c)
	}
	one := AttentionDecode{Type: c.Type(), B: tokens, Hq: hq, Hk: hk, D: d, Out: c.Output(0), Q: qp, K: kp, V: vp, KSteps: kSteps, VSteps: vSteps, Sinks: sinks,
		Window: kernelWindow(o.Window), Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
	decode := tokens <= mostDecode
	if !wide || d != lastDim(v) || pool != c.Type() && pool != E4M3 || c.Needs(1) || checkHeads(op, c.Type(), hq, hk, d, pool == E4M3) != nil || decode && !one.fits(c.Target()) {
		return general(false, tokens)
	}
	if decode {
		rowIndptr, rowIndices, rowLast := c.decodeTable(r, tokens)
		one.Pages, one.MaxLength = &Pages{PageSize: size, Indptr: rowIndptr, Indices: rowIndices, LastPageLen: rowLast}, c.longest(r, c.In[0], size, pages)
		one.Scratch, one.Ticket = c.Scratch(one.ScratchBytes()), c.Flags(4)
		// A product of 8-bit weights gains less by an early start than its loads hold up the merge.
		one.Ahead = !slices.ContainsFunc(c.p.consumers[c.Node], func(n *graph.Node) bool {
			_, narrow := opOf[ops.FP8WeightLinearOp](n)
			return narrow
		})
		var err error
		if one.Written, one.Writes, err = c.written(); err != nil {
			return err
		}
		if err := one.Launch(c); err != nil {
			return err
		}
		if tokens == 1 {
			return nil
		}
		c.p.several(r, func(f graph.Feeds) bool { return r.mixed(f) })
		c.mixed = true
		defer func() { c.mixed = false }()
	} else { // rows of nobody are zero
		c.p.several([3]any{"padded", r, tokens}, func(f graph.Feeds) bool { qo := ints(f, r.qo); return int(qo[len(qo)-1]) < tokens })
		c.mixed = true
		err := c.Fill(c.Output(0), 0, int64(tokens*hq*d*c.Type().Size()))
		if c.mixed = false; err != nil {
			return err
		}
	}
	a := AttentionPrefill{Type: c.Type(), Hq: hq, Hk: hk, D: d, Out: c.Output(0), Q: qp, K: kp, V: vp, Causal: o.Causal, Window: kernelWindow(o.Window),
		Softcap: float32(o.Softcap), Scale: float32(o.Scale), Ragged: &ragged, KSteps: kSteps, VSteps: vSteps, Sinks: sinks}
	if !a.fits(c.Target()) {
		return general(decode, 0)
	}
	a.Ticket = c.Flags(4)
	rows := a.TileRows(c.Target())
	ragged.Tiles = tokens/rows + min(r.qo.Dim(0)-1, tokens)
	ragged.TileBatch, ragged.TileIndex = c.tiles(r, tiling{rows: rows, group: 1, n: ragged.Tiles, several: decode})
	return a.Launch(c)
}

// written is where a step writes to the pools of inputs 1 and 2: the fed slots of one write to each, and no other write of the fed pool.
// There is none where that is not known, or where there are more slots than decode looks at.
func (c *Call) written() (slots Pointer, n int, err error) {
	var at [2]*graph.Node
	for i := range at {
		pool := c.In[1+i]
		if _, ok := opOf[ops.AppendPagesOp](pool); !ok || pool.In()[0].Op() != nil {
			return Pointer{}, 0, nil
		}
		for _, m := range c.p.consumers[pool.In()[0]] {
			if _, reads := opOf[ops.PagedAttentionOp](m); m != pool && !reads {
				return Pointer{}, 0, nil
			}
		}
		at[i] = pool.In()[2]
	}
	w := &Call{Node: c.Node, In: at[:1], p: c.p}
	if n = at[0].Dim(0); at[0] != at[1] || !w.fed(0) || n < 1 || n > MostWrites {
		return Pointer{}, 0, nil
	}
	slots, err = w.Input(0)
	return slots, n, err
}

// longest bounds the length of a request that brings one token: the pages that there are, or the positions that q was turned
// by, which a longer request is refused for.
func (c *Call) longest(r requests, q *graph.Node, size, pages int) int {
	most := min(r.indices.Dim(0), pages) * size
	for n := q; n.Op() != nil; n = n.In()[0] {
		switch o := n.Op().(type) {
		case ops.RotaryOp:
			if o.Table.Positions < most {
				most = o.Table.Positions
				c.Check([4]any{"longest", r, size, most}, r.within(size, most))
			}
			return most
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

// tiles is the work of a kernel that takes tiles of rows: of which request each is, negative for none, and the how
// many-th of it.
func (c *Call) tiles(r requests, t tiling) (batch, index Pointer) {
	batch = c.Prepared([3]any{"tile batch", r, t}, "tile_batch", t.n, func(dst []int32, f graph.Feeds) {
		at, qo := 0, ints(f, r.qo)
		for b := range t.requests(qo) {
			for range t.of(qo, b) {
				dst[at] = int32(b)
				at++
			}
		}
		for ; at < t.n; at++ {
			dst[at] = -1
		}
	})
	index = c.Prepared([3]any{"tile index", r, t}, "tile_index", t.n, func(dst []int32, f graph.Feeds) {
		clear(dst)
		at, qo := 0, ints(f, r.qo)
		for b := range t.requests(qo) {
			for i := range t.of(qo, b) {
				dst[at] = int32(i)
				at++
			}
		}
	})
	return batch, index
}

// several adds a test of whether a run needs what is queued as mixed.
func (p *program) several(key any, f func(graph.Feeds) bool) {
	if k := [2]any{"mixed", key}; !p.checked[k] {
		p.checked[k] = true
		p.mixed = append(p.mixed, f)
	}
}

// poolSteps are the steps of a pool of E4M3, input i where there is one.
func (c *Call) poolSteps(i int) (Pointer, error) {
	if i >= len(c.In) {
		return Pointer{}, nil
	}
	return c.InputAs(i, F32)
}

func (c *Call) checkSlots(i int, pool *graph.Node) {
	c.checkInts(i, -1, pool.Dim(0)*pool.Dim(1)-1, "slots")
}

func appendPagesBody(c *Call) error {
	t := c.In[1].Type()
	a := Append{Type: c.Type(), PoolType: c.poolType(0), T: t.Shape[0], Columns: t.Shape[1] * t.Shape[2], Heads: t.Shape[1]}
	var errs [3]error
	a.Pool, errs[0] = c.InputAs(0, a.PoolType)
	a.Steps, errs[1] = c.poolSteps(3)
	errs[2] = c.inputs(1, &a.X, &a.Slots)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	c.checkSlots(2, c.In[0])
	return a.Launch(c)
}

func appendRotaryBody(c *Call) error {
	o, x := c.Node.Op().(ops.AppendRotaryOp), c.In[1]
	r, err := c.rotation(x, 2, o.Table, o.Pairing == ops.Interleaved, false)
	if err != nil {
		return err
	}
	if err := c.inputs(0, &r.KPool, &r.K); err != nil {
		return err
	}
	c.checkSlots(3, c.In[0])
	r.Computed = r.Computed || !c.fed(3)
	r.Hk = x.Dim(-2)
	if r.Slots, err = c.Input(3); err != nil {
		return err
	}
	return r.Launch(c)
}
