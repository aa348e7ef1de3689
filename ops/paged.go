package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "append_pages",
		Doc:    "new keys or values into a pool of pages",
		Native: floats(appendPages[float32], appendPages[float64]),
		FLOPs:  func(graph.Op, []graph.Type, []graph.Type) int64 { return 0 },
	})
	graph.Register(graph.Def{
		Name:   "append_rotary",
		Doc:    "keys turned by their positions into a pool of pages",
		Native: floats(appendRotary[float32], appendRotary[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 3 * int64(in[1].Size()) },
	})
	graph.Register(graph.Def{
		Name:   "paged_attention",
		Doc:    "attention of packed requests on pages: prefill, chunks, decode",
		Native: floats(pagedAttention[float32], pagedAttention[float64]),
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			// The lengths are known at the run only: this counts full pages.
			q, k, v, indices := in[0], in[1], in[2], in[5]
			return 2 * int64(q.Shape[0]*q.Shape[1]) * int64(indices.Shape[0]*k.Shape[1]) * int64(last(q)+last(v))
		},
	})
}

// AppendPagesOp writes rows into a pool of pages: row t of x [T,H,D] goes to
// slot slots[t] of pages [pages,page_size,H,D], slot s being place s%page_size
// of page s/page_size. A row whose slot is -1 belongs to no request and is not
// written. pages is a state; the result is the pool after the write, and who
// reads the new content takes it from the result.
//
// A pool holds the type of x, bfloat16, float16, or E4M3 with a step for each head
// (float32 [H], a further input): a value is step times its code. Narrow values
// are rounded to nearest, float16 and E4M3 saturate.
type AppendPagesOp struct{}

// AppendPages adds an AppendPagesOp; steps are given for a pool of E4M3 alone.
func AppendPages(pages, x, slots *graph.Node, steps ...*graph.Node) *graph.Node {
	return graph.Apply(AppendPagesOp{}, append([]*graph.Node{pages, x, slots}, steps...)...)
}

// Name is "append_pages".
func (AppendPagesOp) Name() string { return "append_pages" }

// Alias makes the result the pool itself.
func (AppendPagesOp) Alias() int { return 0 }

// Infer checks the rows against the pool.
func (AppendPagesOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 3, "pages", "x", "slots", "steps"); err != nil {
		return nil, err
	}
	if err := pool("pages", in[0], in[1].DType, in[3:]); err != nil {
		return nil, err
	}
	return appended(in[0], in[1], in[2])
}

// pool checks the element type of a pool, and its steps, against what is
// computed with.
func pool(name string, pages graph.Type, compute dtype.DType, steps []graph.Type) error {
	e4m3 := pages.DType == dtype.Float8E4M3
	if pages.DType != compute && pages.DType != dtype.BFloat16 && pages.DType != dtype.Float16 && !e4m3 {
		return fmt.Errorf("%s must hold %s, bfloat16, float16 or float8_e4m3, got %s", name, compute, pages)
	}
	if e4m3 != (len(steps) > 0) {
		return fmt.Errorf("a pool takes steps when it holds float8_e4m3 and only then, %s is %s", name, pages)
	}
	if e4m3 && pages.Rank() == 4 && !steps[0].Equal(graph.T(dtype.Float32, pages.Shape[2])) {
		return fmt.Errorf("steps of %s must be float32[%d], one for each head, got %s", name, pages.Shape[2], steps[0])
	}
	return nil
}

// narrowPool is the memory of a narrow pool; ok is false for a pool of the type
// that is computed with.
func narrowPool(pages graph.Tensor, steps []graph.Tensor) (p native.NarrowPool, ok bool) {
	switch pages.DType {
	case dtype.BFloat16:
		p.BF16 = graph.Data[uint16](pages)
	case dtype.Float16:
		p.F16 = graph.Data[uint16](pages)
	case dtype.Float8E4M3:
		p.E4M3, p.Steps = graph.Data[uint8](pages), graph.Data[float32](steps[0])
	default:
		return p, false
	}
	return p, true
}

// appended checks rows x that go into pages at slots.
func appended(pages, x, slots graph.Type) ([]graph.Type, error) {
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if pages.Rank() != 4 || x.Rank() != 3 || pages.Shape[2] != x.Shape[1] || pages.Shape[3] != x.Shape[2] {
		return nil, fmt.Errorf("pages must be [pages,page_size,H,D] and x [T,H,D], got pages %s, x %s", pages.Dims(), x.Dims())
	}
	if !slots.Equal(graph.T(dtype.Int32, x.Shape[0])) {
		return nil, fmt.Errorf("slots must be int32[%d] for x %s, got %s", x.Shape[0], x.Dims(), slots)
	}
	return []graph.Type{pages}, nil
}

func appendPages[T native.Float](c *graph.Call) error {
	pages, x, slots := c.Out[0], c.In[1], graph.Data[int32](c.In[2])
	if err := native.CheckSlots(slots, pages.Shape[0]*pages.Shape[1]); err != nil {
		return err
	}
	if p, ok := narrowPool(pages, c.In[3:]); ok {
		native.AppendNarrowPages(p, graph.Data[T](x), slots, x.Shape[1], x.Shape[2])
		return nil
	}
	native.AppendPages(graph.Data[T](pages), graph.Data[T](x), slots, x.Shape[1]*x.Shape[2])
	return nil
}

// AppendRotaryOp is a RotaryOp whose result goes straight into a pool of pages,
// as AppendPagesOp puts it there: inputs pages, x [T,H,D], positions int32 [T]
// and slots int32 [T].
type AppendRotaryOp struct {
	Table   *RotaryTable
	Pairing native.RotaryPairing
}

// AppendRotary adds an AppendRotaryOp.
func AppendRotary(pages, x, pos, slots *graph.Node, table *RotaryTable, pairing native.RotaryPairing) *graph.Node {
	return graph.Apply(AppendRotaryOp{table, pairing}, pages, x, pos, slots)
}

// Name is "append_rotary".
func (AppendRotaryOp) Name() string { return "append_rotary" }

// Alias makes the result the pool itself.
func (AppendRotaryOp) Alias() int { return 0 }

// Infer checks what RotaryOp and AppendPagesOp check.
func (o AppendRotaryOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 4, "pages", "x", "positions", "slots"); err != nil {
		return nil, err
	}
	if _, err := (RotaryOp{Table: o.Table, Pairing: o.Pairing}).Infer(in[1:3]); err != nil {
		return nil, err
	}
	if in[0].DType != in[1].DType {
		return nil, fmt.Errorf("pages must hold %s as x, got %s", in[1].DType, in[0])
	}
	return appended(in[0], in[1], in[3])
}

func appendRotary[T native.Float](c *graph.Call) error {
	o, pages, x := c.Op.(AppendRotaryOp), c.Out[0], c.In[1]
	pos, slots := graph.Data[int32](c.In[2]), graph.Data[int32](c.In[3])
	if err := native.CheckPositions(pos, o.Table.Positions); err != nil {
		return err
	}
	if err := native.CheckSlots(slots, pages.Shape[0]*pages.Shape[1]); err != nil {
		return err
	}
	native.Rotary(native.RotaryArgs[T]{
		Y: graph.Data[T](pages), X: graph.Data[T](x), Cos: o.Table.Cos, Sin: o.Table.Sin, Pos: pos, Slots: slots,
		T: x.Shape[0], H: x.Shape[1], D: x.Shape[2], Dr: o.Table.Width, Pairing: o.Pairing,
	})
	return nil
}

// PagedAttentionOp is AttentionOp with the keys and values of each request in
// pages. Prefill, a chunk of a prefill and decode are one op and may be mixed
// in a call of R requests with T tokens in all:
//
//	q                [T,Hq,D]   packed tokens; request r owns qo_indptr[r]:qo_indptr[r+1]
//	k_pages, v_pages [pages,page_size,Hkv,D], [pages,page_size,Hkv,Dv]
//	qo_indptr        int32 [R+1], counts tokens
//	kv_page_indptr   int32 [R+1], counts pages
//	kv_page_indices  int32 [N], page ids
//	kv_last_page_len int32 [R]
//	k_steps, v_steps float32 [Hkv], for pools of E4M3 alone
//	sinks            [Hq], with Sinks: a logit for each head, as AttentionOp has them
//
// Pools hold the type of q, bfloat16, float16 or E4M3, as AppendPagesOp writes them.
// Results: out [T,Hq,Dv] and lse [Hq,T]. The n queries of a request are the
// last n of its tokens, whose keys and values are in the pages already. Rows
// of q behind qo_indptr[R] belong to no request: out 0, lse -Inf. A request's
// result has the same bits alone and in any batch. It has no gradient.
type PagedAttentionOp struct {
	Causal  bool
	Scale   float64 // 0: 1/sqrt(D)
	Window  int
	Softcap float64
	BF16    bool // natively, as AttentionOp has it, for requests of more than one query
	Sinks   bool // they are the last input
}

// MaxPagedHeadDim is the largest head dim of PagedAttentionOp: latents that are
// attended to over themselves are wider than heads.
const MaxPagedHeadDim = 1024

// Pages are the inputs of PagedAttention that describe the requests.
type Pages struct {
	QOIndptr, Indptr, Indices, LastPageLen *graph.Node
	KSteps, VSteps                         *graph.Node // of pools of E4M3
	Sinks                                  *graph.Node // of the heads, nil without
}

// PagedAttention adds a PagedAttentionOp and returns out.
func PagedAttention(q, kPages, vPages *graph.Node, p Pages, o PagedAttentionOp) *graph.Node {
	in := []*graph.Node{q, kPages, vPages, p.QOIndptr, p.Indptr, p.Indices, p.LastPageLen}
	o.Sinks = p.Sinks != nil
	return graph.Apply(o, append(in, given(p.KSteps, p.VSteps, p.Sinks)...)...)
}

// Name is "paged_attention".
func (PagedAttentionOp) Name() string { return "paged_attention" }

// Infer checks q against the pools and the description of the requests.
func (o PagedAttentionOp) Infer(in []graph.Type) ([]graph.Type, error) {
	in, sinks := o.cut(in)
	if err := arity(in, 7, "q", "k_pages", "v_pages", "qo_indptr", "kv_page_indptr", "kv_page_indices", "kv_last_page_len", "k_steps", "v_steps"); err != nil {
		return nil, err
	}
	q, k, v := in[0], in[1], in[2]
	if err := activation("q", q); err != nil {
		return nil, err
	}
	for _, t := range sinks {
		if q.Rank() == 3 && !t.Equal(graph.T(q.DType, q.Shape[1])) {
			return nil, fmt.Errorf("sinks must be %s[%d], one for each head of q, got %s", q.DType, q.Shape[1], t)
		}
	}
	if k.DType != v.DType {
		return nil, fmt.Errorf("k_pages and v_pages must hold one type, got %s and %s", k, v)
	}
	if len(in) == 8 {
		return nil, fmt.Errorf("k_steps and v_steps come together, got one of them")
	}
	for i, p := range []graph.Type{k, v} {
		var steps []graph.Type
		if len(in) == 9 {
			steps = in[7+i : 8+i]
		}
		if err := pool([]string{"k_pages", "v_pages"}[i], p, q.DType, steps); err != nil {
			return nil, err
		}
	}
	shapes := fmt.Sprintf("q %s, k_pages %s, v_pages %s", q.Dims(), k.Dims(), v.Dims())
	if q.Rank() != 3 || k.Rank() != 4 || v.Rank() != 4 {
		return nil, fmt.Errorf("q must be [T,Hq,D], k_pages and v_pages [pages,page_size,Hkv,D] (%s)", shapes)
	}
	size := k.Shape[1]
	switch {
	case k.Shape[0] != v.Shape[0] || size != v.Shape[1] || k.Shape[2] != v.Shape[2]:
		return nil, fmt.Errorf("k_pages and v_pages must agree but for the head dim (%s)", shapes)
	case size > 256 || size&(size-1) != 0:
		return nil, fmt.Errorf("page_size must be a power of two from 1 to 256, got %d (%s)", size, shapes)
	case last(q) != last(k):
		return nil, fmt.Errorf("q and k_pages must have one head dim (%s)", shapes)
	case q.Shape[1]%k.Shape[2] != 0:
		return nil, fmt.Errorf("q has %d heads, not a multiple of k_pages' %d (%s)", q.Shape[1], k.Shape[2], shapes)
	case last(q) > MaxPagedHeadDim || last(v) > MaxPagedHeadDim:
		return nil, fmt.Errorf("head dims go up to %d (%s)", MaxPagedHeadDim, shapes)
	case !finite(o.Scale):
		return nil, fmt.Errorf("scale must be finite (0: 1/sqrt(D)), got %g", o.Scale)
	case o.Window < 0 || !(o.Softcap >= 0) || !finite(o.Softcap):
		return nil, fmt.Errorf("window and softcap must be 0 (none) or more, got %d and %g", o.Window, o.Softcap)
	}
	names := []string{"qo_indptr", "kv_page_indptr", "kv_page_indices", "kv_last_page_len"}
	for i, t := range in[3:7] {
		if t.DType != dtype.Int32 || t.Rank() != 1 {
			return nil, fmt.Errorf("%s must be int32 of one dimension, got %s", names[i], t)
		}
	}
	if r := in[3].Shape[0] - 1; r < 1 || in[4].Shape[0] != r+1 || in[6].Shape[0] != r {
		return nil, fmt.Errorf("qo_indptr and kv_page_indptr must be [R+1] and kv_last_page_len [R] with R of 1 or more, got %s, %s, %s",
			in[3].Dims(), in[4].Dims(), in[6].Dims())
	}
	return []graph.Type{graph.T(q.DType, q.Shape[0], q.Shape[1], last(v)), graph.T(q.DType, q.Shape[1], q.Shape[0])}, nil
}

// cut takes the sinks, if there are, from the inputs.
func (o PagedAttentionOp) cut(in []graph.Type) (others, sinks []graph.Type) {
	if n := len(in) - 1; o.Sinks && n >= 0 {
		return in[:n], in[n:]
	}
	return in, nil
}

func pagedAttention[T native.Float](c *graph.Call) error {
	o, q, k, v := c.Op.(PagedAttentionOp), c.In[0], c.In[1], c.In[2]
	steps := c.In[7:]
	a := native.PagedArgs[T]{
		Out: graph.Data[T](c.Out[0]), LSE: graph.Data[T](c.Out[1]), Q: graph.Data[T](q),
		QIndptr: graph.Data[int32](c.In[3]),
		Table: native.PageTable{PageSize: k.Shape[1], Indptr: graph.Data[int32](c.In[4]), Indices: graph.Data[int32](c.In[5]),
			LastPageLen: graph.Data[int32](c.In[6])},
		T: q.Shape[0], Hq: q.Shape[1], Hkv: k.Shape[2], D: last(q.Type), Dv: last(v.Type),
		Scale: o.Scale, Softcap: o.Softcap, Causal: o.Causal, Window: o.Window, BF16: o.BF16,
	}
	if n := len(steps) - 1; o.Sinks {
		a.Sinks, steps = graph.Data[T](steps[n]), steps[:n]
	}
	var kSteps, vSteps []graph.Tensor
	if len(steps) == 2 {
		kSteps, vSteps = steps[:1], steps[1:]
	}
	var narrow bool
	if a.NarrowK, narrow = narrowPool(k, kSteps); narrow {
		a.NarrowV, _ = narrowPool(v, vSteps)
	} else {
		a.K, a.V = graph.Data[T](k), graph.Data[T](v)
	}
	requests := len(a.QIndptr) - 1
	if err := native.CheckIndptr("qo_indptr", a.QIndptr, requests, a.T); err != nil {
		return err
	}
	if err := native.CheckPages(a.Table, requests, k.Shape[0]); err != nil {
		return err
	}
	if err := native.CheckAppend(a.Table, a.QIndptr); err != nil {
		return err
	}
	native.PagedAttention(a)
	return nil
}
