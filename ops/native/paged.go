// Attention over pages of keys and values, and the append of new ones.

package native

// PageTable says where the tokens of each request lie in a pool of pages of
// PageSize tokens: request r owns the pages Indices[Indptr[r]:Indptr[r+1]], in
// order, all full but the last, which holds LastPageLen[r] tokens (not read
// where the request has no page). CheckPages says what a table must hold.
type PageTable struct {
	PageSize    int     // a power of two, 1 to 256
	Indptr      []int32 // [B+1], counts pages
	Indices     []int32
	LastPageLen []int32 // [B]
}

// Length returns how many tokens request r has.
func (t *PageTable) Length(r int) int {
	pages := int(t.Indptr[r+1]) - int(t.Indptr[r])
	if pages <= 0 {
		return 0
	}
	return (pages-1)*t.PageSize + int(t.LastPageLen[r])
}

// Slot returns the place of token j of request r, in tokens of the pool.
func (t *PageTable) Slot(r, j int) int {
	page := int(t.Indices[int(t.Indptr[r])+j/t.PageSize])
	return page*t.PageSize + j%t.PageSize
}

// run returns the place of token j of request r, and how many of it and its n-1
// successors follow each other from there on.
func (t *PageTable) run(r, j, n int) (slot, there int) {
	pages := t.Indices[int(t.Indptr[r])+j/t.PageSize:]
	off := j % t.PageSize
	there = t.PageSize - off
	for i := 1; there < n && pages[i] == pages[i-1]+1; i++ {
		there += t.PageSize
	}
	return int(pages[0])*t.PageSize + off, min(there, n)
}

// PagedArgs are the operands of PagedAttention. Request r owns the queries
// QIndptr[r]:QIndptr[r+1] of q [T,Hq,D]; its keys and values are the tokens of
// Table in the pools k [pages,PageSize,Hkv,D] and v [pages,PageSize,Hkv,Dv].
// Prefill, a chunk of a prefill, and decode (one query a request) are one call
// and may be mixed in it.
type PagedArgs[T Float] struct {
	Out, LSE []T // [T,Hq,Dv], [Hq,T]; LSE may be nil
	Q        []T
	K, V     []T

	NarrowK, NarrowV NarrowPool // pools of narrower numbers in place of K and V

	NewK, NewV []T // [T,Hkv,D], [T,Hkv,Dv]: put into the pages first; nil for none

	QIndptr []int32 // [B+1], counts tokens
	Table   PageTable

	T, Hq, Hkv, D, Dv int

	Scale   float64 // factor of q k^T; 0 means 1/sqrt(D)
	Softcap float64
	Causal  bool
	Window  int
	Sinks   []T
	BF16    bool // as AttentionArgs has it, for requests of more than one query
}

// PagedAttention is Attention with the keys and values of a request in pages.
// The table counts new tokens already: the n queries of a request belong to its
// last n tokens, and so do the new keys and values. Each page is read once for
// all query heads of a key head. A request's result has the same bits alone and
// in any batch. Rows of q behind QIndptr[B] belong to no request: they put
// nothing into pages and get out 0 and lse -Inf.
func PagedAttention[T Float](a PagedArgs[T]) {
	f := attnForward[T]{
		attnHeads: attnHeads[T]{
			b: len(a.QIndptr) - 1, lq: a.T, hq: a.Hq, hkv: a.Hkv, g: a.Hq / max(a.Hkv, 1), d: a.D, dv: a.Dv,
			scale: scoreScale[T](a.Scale, a.D), softcap: T(a.Softcap),
			causal: a.Causal, bf16: a.BF16, window: a.Window, qIndptr: a.QIndptr, pages: a.Table,
		},
		q: a.Q, out: a.Out, lse: a.LSE, sinks: a.Sinks,
		kv: kvSource[T]{
			k:     kvRows[T]{a.K, a.NarrowK, a.Hkv, a.D},
			v:     kvRows[T]{a.V, a.NarrowV, a.Hkv, a.Dv},
			pages: a.Table,
		},
	}
	if len(a.NewK) > 0 {
		a.put(&f.kv.k, a.NewK)
		a.put(&f.kv.v, a.NewV)
	}
	f.run()
}

// PageSlots writes the slot of each of the T = len(slots) packed tokens: token
// i of the n that request r brings (QIndptr[r]:QIndptr[r+1]) is the i-th of the
// request's last n. Tokens that belong to no request get -1.
func PageSlots(slots []int32, table PageTable, qIndptr []int32) {
	for r := range len(qIndptr) - 1 {
		q0, q1 := int(qIndptr[r]), int(qIndptr[r+1])
		old := table.Length(r) - (q1 - q0)
		for i := q0; i < q1; i++ {
			slots[i] = int32(table.Slot(r, old+i-q0))
		}
	}
	if n := len(qIndptr); n > 0 {
		slots = slots[qIndptr[n-1]:]
	}
	for i := range slots {
		slots[i] = -1
	}
}

// AppendPages copies row t of rows [T,width] to slot slots[t] of a pool
// [slots,width]; width is Hkv*D for keys. A row with a negative slot is not
// copied. No two rows may have one slot.
func AppendPages[T Float](pool, rows []T, slots []int32, width int) {
	for t, slot := range slots {
		if slot >= 0 {
			copy(pool[int(slot)*width:(int(slot)+1)*width], rows[t*width:(t+1)*width])
		}
	}
}

// put stores the new keys or values of a call.
func (a *PagedArgs[T]) put(to *kvRows[T], rows []T) {
	for r := range len(a.QIndptr) - 1 {
		q0, q1 := int(a.QIndptr[r]), int(a.QIndptr[r+1])
		old := a.Table.Length(r) - (q1 - q0)
		for i := q0; i < q1; i++ {
			to.write(a.Table.Slot(r, old+i-q0), rows[i*to.hkv*to.width:])
		}
	}
}
