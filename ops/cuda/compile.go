package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Options say how a plan runs.
type Options struct {
	Type      DType // of weights and activations; the zero value is BF16
	MaxLength int   // the longest request on pages; 0: as many tokens as the page table can name
}

// Lowering is what the CUDA body of an op sees: one node of a plan, where its values lie, and the queue.
type Lowering struct {
	Op      graph.Op
	In      []graph.Type
	Out     []graph.Type
	Src     []Pointer // the inputs
	Dst     []Pointer // the results
	Type    DType     // of floats
	Queue   Queue
	Options Options

	node    *graph.Node
	compile *compilation
}

var bodies = struct {
	sync.RWMutex
	of map[string]func(*Lowering) error
}{of: map[string]func(*Lowering) error{}}

// Register adds the CUDA body of an op by name: it queues the op's launches, or answers ErrUnsupported with the reason. It
// panics when the name is taken: that is a mistake in the program, found when it starts.
func Register(name string, body func(*Lowering) error) {
	bodies.Lock()
	defer bodies.Unlock()
	if name == "" || bodies.of[name] != nil {
		panic(fmt.Sprintf("cuda: Register: the name %q is empty or taken", name))
	}
	bodies.of[name] = body
}

// memory gives a compilation what lies outside the arena. The device implements it, and so does a test without one.
type memory interface {
	param(p *graph.Param, t DType) (Pointer, error)
	pair(p, q *graph.Param, t DType) (Pointer, error)                 // the rows of p, then those of q
	table(key any, label string, make func() []byte) (Pointer, error) // constants, shared by key
	zeroed(label string, bytes int64) (Pointer, error)                // scratch of this plan, zeroed once
}

// hostStep runs before every replay: it checks the feeds, or computes a small array from them.
type hostStep struct {
	check func(feeds graph.Feeds) error
	to    Pointer
	fill  func(feeds graph.Feeds, to []byte)
	bytes int
}

// compilation lowers a plan: the same work for a device and for a recorder.
type compilation struct {
	plan    *graph.Plan
	options Options
	mem     memory
	arena   Pointer
	steps   []hostStep
	scratch Pointer
	flags   Pointer
	wide    map[*graph.Node]bool // products that nothing but the caller reads: kept in f32
	readers map[*graph.Node]int  // how many inputs and outputs of the plan a value is
}

// newCompilation finds the outputs that can stay f32.
func newCompilation(plan *graph.Plan, options Options, mem memory) *compilation {
	c := &compilation{plan: plan, options: options, mem: mem, wide: map[*graph.Node]bool{}, readers: map[*graph.Node]int{}}
	readers := map[*graph.Node]int{}
	for _, n := range plan.Nodes() {
		for _, in := range n.In() {
			readers[in]++
			c.readers[in]++
		}
	}
	for _, n := range plan.Outputs {
		c.readers[n]++
		for n.Op() != nil && n.Op().Name() == "reshape" && readers[n] == 0 && readers[n.In()[0]] == 1 {
			n = n.In()[0]
			readers[n] = 0
		}
		if n.Op() != nil && n.Op().Name() == "linear" && readers[n] == 0 {
			c.wide[n] = true
		}
	}
	return c
}

// isWide says whether the value of an output is f32 on the device.
func (c *compilation) isWide(n *graph.Node) bool {
	for n.Op() != nil && n.Op().Name() == "reshape" {
		n = n.In()[0]
	}
	return c.wide[n]
}

// lower queues every step of the plan, some of them together.
func (c *compilation) lower(q Queue) error {
	for i := 0; i < len(c.plan.Steps); {
		n, err := c.fused(q, i)
		if n == 0 && err == nil {
			n, err = 1, c.step(q, c.plan.Steps[i].Node)
		}
		if err != nil {
			return fmt.Errorf("cuda: %s: %w", c.plan.Steps[i].Node.Name(), err)
		}
		i += n
	}
	return nil
}

func (c *compilation) step(q Queue, n *graph.Node) error {
	bodies.RLock()
	body := bodies.of[n.Op().Name()]
	bodies.RUnlock()
	if body == nil {
		return unsupported(n.Op().Name(), "the op has no CUDA body")
	}
	l := &Lowering{Op: n.Op(), Type: c.options.Type, Queue: q, Options: c.options, node: n, compile: c}
	for _, in := range n.In() {
		p, err := c.pointer(in)
		if err != nil {
			return err
		}
		l.In, l.Src = append(l.In, in.Type()), append(l.Src, p)
	}
	outs, err := n.Op().Infer(l.In)
	if err != nil {
		return err
	}
	at, err := c.pointer(n)
	if err != nil {
		return err
	}
	l.Out = outs
	for _, t := range outs { // results of one node lie one after the other, each aligned to 64 bytes
		l.Dst = append(l.Dst, at)
		at = at.At(int64((t.Bytes() + 63) / 64 * 64))
	}
	return body(l)
}

// pointer is where the value of a node lies: in the plan's places, which are sized for float32, so that 16-bit values have
// room to spare.
func (c *compilation) pointer(n *graph.Node) (Pointer, error) {
	place, ok := c.plan.Place(n)
	if !ok {
		return Pointer{}, fmt.Errorf("%s has no place in the plan", n.Name())
	}
	if d := n.Type().DType; d != dtype.Float32 && d != dtype.Int32 && !(place.Leaf != nil && (d == dtype.BFloat16 || d == dtype.Float16)) {
		return Pointer{}, unsupported("plan", "%s is %s: float32 and int32 values, and weights of 16 bits, run on CUDA", n.Name(), n.Type())
	}
	if place.Leaf == nil {
		p := c.arena.At(int64(place.Offset))
		p.Label = n.Name()
		return p, nil
	}
	if place.Offset != 0 || place.Leaf.Param() == nil {
		return Pointer{}, unsupported("plan", "%s is a part of a leaf or a constant", n.Name())
	}
	return c.mem.param(place.Leaf.Param(), c.options.Type)
}

// feed gives the value of an input of the node in the feeds, when it is one.
func (l *Lowering) feed(i int) (name string, ok bool) {
	for _, in := range l.compile.plan.Inputs() {
		if in == l.node.In()[i] {
			return in.Name(), true
		}
	}
	return "", false
}

func ints(feeds graph.Feeds, name string) []int32 {
	switch v := feeds[name].(type) {
	case []int32:
		return v
	case graph.Tensor:
		return graph.Data[int32](v)
	}
	return nil
}

func rowsOf(t graph.Type) (rows, width int) {
	width = t.Shape[len(t.Shape)-1]
	return t.Size() / width, width
}

func init() {
	Register("embedding", func(l *Lowering) error {
		l.below(0, "token", 0, l.In[1].Shape[0])
		return Embedding{Type: l.Type, T: l.In[0].Size(), D: l.In[1].Shape[1], Vocabulary: l.In[1].Shape[0], Scale: 1, Y: l.Dst[0], Table: l.Src[1], IDs: l.Src[0]}.Launch(l.Queue)
	})
	Register("rmsnorm", func(l *Lowering) error {
		rows, d := rowsOf(l.In[0])
		return RMSNorm{Type: l.Type, Rows: rows, D: d, Eps: float32(l.Op.(ops.RMSNormOp).Eps), Y: l.Dst[0], X: l.Src[0], W: l.Src[1], Computed: l.node.In()[1].Param() == nil}.Launch(l.Queue)
	})
	Register("linear", func(l *Lowering) error {
		m, k := rowsOf(l.In[0])
		g := Gemm{Type: l.Type, M: m, N: l.In[1].Shape[0], K: k, Y: l.Dst[0], X: l.Src[0], W: l.Src[1], F32Out: l.compile.wide[l.node], Computed: l.node.In()[1].Param() == nil}
		if len(l.In) == 3 {
			g.Bias = l.Src[2]
		}
		return l.compile.product(l.Queue, g)
	})
	Register("layernorm", func(l *Lowering) error {
		rows, d := rowsOf(l.In[0])
		n := LayerNorm{Type: l.Type, Rows: rows, D: d, Eps: float32(l.Op.(ops.LayerNormOp).Eps), Y: l.Dst[0], X: l.Src[0], W: l.Src[1]}
		if len(l.In) == 3 {
			n.B = l.Src[2]
		}
		return n.Launch(l.Queue)
	})
	Register("swiglu", gated(func(graph.Op) Gate { return SwiGLU }))
	Register("geglu", gated(func(op graph.Op) Gate {
		if op.(ops.GeGLUOp).Tanh {
			return GeGLUTanh
		}
		return GeGLUErf
	}))
	Register("add", func(l *Lowering) error {
		return Add{Type: l.Type, N: int64(l.Out[0].Size()), Y: l.Dst[0], A: l.Src[0], B: l.Src[1]}.Launch(l.Queue)
	})
	Register("rotary", lowerRotary)
	Register("attention", lowerAttention)
	Register("append_pages", lowerAppendPages)
	Register("append_rotary", lowerAppendRotary)
	Register("paged_attention", lowerPagedAttention)
}

func gated(gate func(graph.Op) Gate) func(*Lowering) error {
	return func(l *Lowering) error {
		rows, f := rowsOf(l.In[0])
		return Gated{Type: l.Type, Gate: gate(l.Op), Rows: rows, F: f, Y: l.Dst[0], G: l.Src[0], Up: l.Src[1]}.Launch(l.Queue)
	}
}

// product launches a Gemm with the scratch that all products of the plan share.
func (c *compilation) product(q Queue, g Gemm) error {
	scratch, flags := g.ScratchBytes(q.Target())
	if scratch > 0 {
		var err error
		if g.Scratch, err = c.shared(&c.scratch, "product scratch", int64(q.Target().SMs)*256*streamColumns*4); err != nil {
			return err
		}
		if g.Flags, err = c.shared(&c.flags, "product flags", flags); err != nil {
			return err
		}
	}
	return g.Launch(q)
}

// shared is scratch that all steps of a plan use one after the other.
func (c *compilation) shared(p *Pointer, label string, bytes int64) (Pointer, error) {
	if p.IsNil() {
		q, err := c.mem.zeroed(label, bytes)
		if err != nil {
			return Pointer{}, err
		}
		*p = q
	}
	return *p, nil
}

func lowerRotary(l *Lowering) error {
	o, x := l.Op.(ops.RotaryOp), l.In[0]
	if o.Back {
		return unsupported("rotary", "the gradient")
	}
	rank := len(x.Shape)
	heads, d, length := x.Shape[rank-2], x.Shape[rank-1], x.Shape[rank-3]
	tokens := x.Size() / (heads * d)
	r, err := l.turn(o.Table, o.Pairing == ops.Interleaved)
	if err != nil {
		return err
	}
	r.T, r.Hq, r.D, r.Q, r.QOut, r.K = tokens, heads, d, l.Src[0], l.Dst[0], l.Src[0]
	if len(l.In) == 2 {
		if l.In[1].Size() != tokens {
			return unsupported("rotary", "positions %s of x %s: one position a token", l.In[1].Dims(), x.Dims())
		}
		r.Positions = l.Src[1]
		l.below(1, "position", 0, o.Table.Positions)
	} else if r.Positions, err = l.compile.mem.table([2]int{tokens, length}, "positions", func() []byte { return countUp(tokens, length) }); err != nil {
		return err
	}
	return r.Launch(l.Queue)
}

// turn is a Rotary with its table on the device.
func (l *Lowering) turn(t *ops.RotaryTable, interleaved bool) (r Rotary, err error) {
	if t.Width == 0 {
		return r, unsupported("rotary", "a table of width 0")
	}
	r = Rotary{Type: l.Type, Rot: t.Width, MaxPositions: t.Positions}
	if interleaved {
		r.Pairing = Interleaved
	}
	if r.Cos, err = l.compile.mem.table(&t.Cos[0], "cosines", func() []byte { return floatBytes(t.Cos) }); err != nil {
		return r, err
	}
	r.Sin, err = l.compile.mem.table(&t.Sin[0], "sines", func() []byte { return floatBytes(t.Sin) })
	return r, err
}

// below refuses feeds of an input that name something at or above a bound, or below low.
func (l *Lowering) below(input int, what string, low, bound int) {
	name, ok := l.feed(input)
	if !ok {
		return
	}
	l.compile.steps = append(l.compile.steps, hostStep{check: func(feeds graph.Feeds) error {
		for t, v := range ints(feeds, name) {
			if int(v) < low || int(v) >= bound {
				return fmt.Errorf("%s: %s %d at %d: %d to %d are possible", name, what, v, t, low, bound-1)
			}
		}
		return nil
	}})
}

func lowerAppendPages(l *Lowering) error {
	if len(l.In) > 3 {
		return unsupported("append_pages", "pools of 8 bits")
	}
	pool, x := l.In[0].Shape, l.In[1].Shape
	l.below(2, "slot", math.MinInt32, pool[0]*pool[1])
	return Append{Type: l.Type, T: x[0], Columns: x[1] * x[2], Pool: l.Dst[0], X: l.Src[1], Slots: l.Src[2]}.Launch(l.Queue)
}

func lowerAppendRotary(l *Lowering) error {
	o, pool, x := l.Op.(ops.AppendRotaryOp), l.In[0].Shape, l.In[1].Shape
	r, err := l.turn(o.Table, o.Pairing == ops.Interleaved)
	if err != nil {
		return err
	}
	l.below(2, "position", 0, o.Table.Positions)
	l.below(3, "slot", math.MinInt32, pool[0]*pool[1])
	r.T, r.Hk, r.D, r.Q, r.K, r.Positions, r.KPool, r.Slots = x[0], x[1], x[2], l.Src[1], l.Src[1], l.Src[2], l.Dst[0], l.Src[3]
	return r.Launch(l.Queue)
}

// lowerPagedAttention takes the decode kernel when there are as many tokens as requests: every request then has one token,
// or is padding at the end. Otherwise the prefill kernel, whose work map is computed from the feeds before every run.
func lowerPagedAttention(l *Lowering) error {
	const op = "paged_attention"
	if len(l.In) > 7 {
		return unsupported(op, "pools of 8 bits")
	}
	o := l.Op.(ops.PagedAttentionOp)
	q, k, v := l.In[0].Shape, l.In[1].Shape, l.In[2].Shape
	if q[2] != v[3] {
		return unsupported(op, "head dims %d of q and k and %d of v: one head dim", q[2], v[3])
	}
	window := -1
	if o.Window > 0 {
		window = o.Window - 1
	}
	tokens, requests, pageSize, ids := q[0], l.In[3].Size()-1, k[1], l.In[5].Size()
	pages := Pages{PageSize: pageSize, Indptr: l.Src[4], Indices: l.Src[5], LastPageLen: l.Src[6]}
	var names [4]string
	for i := range names {
		var ok bool
		if names[i], ok = l.feed(3 + i); !ok {
			return unsupported(op, "input %d is computed: indptr, page ids and lengths must be fed", 3+i)
		}
	}
	l.compile.steps = append(l.compile.steps, hostStep{check: func(f graph.Feeds) error {
		return CheckPages(pageSize, k[0], ints(f, names[1]), ints(f, names[2]), ints(f, names[3]))
	}})
	if tokens == requests && (o.Causal || window < 0) {
		longest := ids * pageSize
		if l.Options.MaxLength > 0 {
			longest = min(longest, l.Options.MaxLength)
		}
		l.compile.steps = append(l.compile.steps, hostStep{check: func(f graph.Feeds) error {
			indptr, pageIndptr, last := ints(f, names[0]), ints(f, names[1]), ints(f, names[3])
			for b := range requests {
				if n := indptr[b+1] - indptr[b]; n < 0 || n > 1 || indptr[b] != min(int32(b), indptr[requests]) {
					return fmt.Errorf("%s %v: with as many tokens as requests, each has one and padding comes last", names[0], indptr)
				}
				if n := int(pageIndptr[b+1]-pageIndptr[b]-1)*pageSize + int(last[b]); n > longest {
					return fmt.Errorf("request %d has %d tokens, the plan was compiled for %d", b, n, longest)
				}
			}
			return nil
		}})
		a := AttentionDecode{Type: l.Type, B: requests, Hq: q[1], Hk: k[2], D: q[2], Out: l.Dst[0], Q: l.Src[0], K: l.Src[1], V: l.Src[2], Pages: &pages, MaxLength: longest, Window: window,
			Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
		var err error
		if a.Scratch, err = l.compile.mem.zeroed(l.node.Name()+" scratch", a.ScratchBytes()); err != nil {
			return err
		}
		return a.Launch(l.Queue)
	}
	a := AttentionPrefill{Type: l.Type, Hq: q[1], Hk: k[2], D: q[2], Out: l.Dst[0], Q: l.Src[0], K: l.Src[1], V: l.Src[2], Causal: o.Causal, Window: window, Softcap: float32(o.Softcap), Scale: float32(o.Scale),
		Ragged: &Ragged{Pages: pages, Tokens: tokens, PoolTokens: k[0] * pageSize, QoIndptr: l.Src[3]}}
	rows := a.TileRows(l.Queue.Target())
	tiles := tokens/rows + requests
	work, err := l.compile.mem.zeroed(l.node.Name()+" work map", int64(8*tiles))
	if err != nil {
		return err
	}
	a.Ragged.TileBatch, a.Ragged.TileIndex, a.Ragged.Tiles = work, work.At(int64(4*tiles)), tiles
	l.compile.steps = append(l.compile.steps, hostStep{
		check: func(f graph.Feeds) error {
			indptr := ints(f, names[0])
			if int(indptr[len(indptr)-1]) > tokens {
				return fmt.Errorf("%s ends at %d, there are %d tokens", names[0], indptr[len(indptr)-1], tokens)
			}
			_, _, err := WorkMap(indptr, rows)
			return err
		},
		to: work, bytes: 8 * tiles,
		fill: func(f graph.Feeds, to []byte) {
			batch, index, _ := WorkMap(ints(f, names[0]), rows)
			for i := range tiles {
				b, t := int32(-1), int32(0)
				if i < len(batch) {
					b, t = batch[i], index[i]
				}
				binary.LittleEndian.PutUint32(to[4*i:], uint32(b))
				binary.LittleEndian.PutUint32(to[4*(tiles+i):], uint32(t))
			}
		}})
	return a.Launch(l.Queue)
}

func floatBytes(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// countUp is 0 to length-1 again and again, as int32.
func countUp(n, length int) []byte {
	b := make([]byte, 0, 4*n)
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, uint32(i%length))
	}
	return b
}

func lowerAttention(l *Lowering) error {
	const op = "attention"
	o := l.Op.(ops.AttentionOp)
	if o.Mask || o.Sinks || o.Ragged {
		return unsupported(op, "mask, sinks and packed sequences of a plan")
	}
	q, k, v := l.In[0].Shape, l.In[1].Shape, l.In[2].Shape
	if q[3] != v[3] {
		return unsupported(op, "head dims %d of q and k and %d of v: one head dim", q[3], v[3])
	}
	window := -1
	if o.Window > 0 {
		window = o.Window - 1
	}
	if o.KVLen {
		if q[1] != 1 || o.Causal {
			return unsupported(op, "kv_len with %d query tokens: one token, not causal", q[1])
		}
		a := AttentionDecode{Type: l.Type, B: q[0], Hq: q[2], Hk: k[2], D: q[3], Out: l.Dst[0], Q: l.Src[0], K: l.Src[1], V: l.Src[2], Lengths: l.Src[3], MaxLength: k[1], Window: window,
			Softcap: float32(o.Softcap), Scale: float32(o.Scale)}
		var err error
		if a.Scratch, err = l.compile.mem.zeroed(l.node.Name()+" scratch", a.ScratchBytes()); err != nil {
			return err
		}
		return a.Launch(l.Queue)
	}
	return AttentionPrefill{Type: l.Type, B: q[0], Hq: q[2], Hk: k[2], D: q[3], Lq: q[1], Lk: k[1], Out: l.Dst[0], Q: l.Src[0], K: l.Src[1], V: l.Src[2], Causal: o.Causal, Window: window,
		Softcap: float32(o.Softcap), Scale: float32(o.Scale)}.Launch(l.Queue)
}
