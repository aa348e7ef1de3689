package optest

// PageTable says where the cached tokens of each request lie: request r owns
// the pages Indices[Indptr[r]..Indptr[r+1]], all full but the last, which holds
// LastPageLen[r] tokens (unused where the request has no page).
type PageTable struct {
	PageSize    int
	Indptr      []int32
	Indices     []int32
	LastPageLen []int32
}

// Length returns the number of cached tokens of request r.
func (p PageTable) Length(r int) int {
	n := int(p.Indptr[r+1] - p.Indptr[r])
	if n == 0 {
		return 0
	}
	return (n-1)*p.PageSize + int(p.LastPageLen[r])
}

// Slot returns the index of token i of request r in the pool, counted in
// tokens: page * PageSize + place in the page.
func (p PageTable) Slot(r, i int) int {
	return int(p.Indices[int(p.Indptr[r])+i/p.PageSize])*p.PageSize + i%p.PageSize
}

// Gather copies the tokens of all requests, width numbers each, out of the pool
// [pages, PageSize, width] into a packed cache, with its prefix sums of tokens.
func (p PageTable) Gather(pool []float64, width int) (packed []float64, kvIndptr []int32) {
	kvIndptr = []int32{0}
	for r := range len(p.Indptr) - 1 {
		for i := range p.Length(r) {
			at := p.Slot(r, i) * width
			packed = append(packed, pool[at:at+width]...)
		}
		kvIndptr = append(kvIndptr, kvIndptr[r]+int32(p.Length(r)))
	}
	return packed, kvIndptr
}

// Append returns the pool with the new tokens [T, width] in it. Request r
// brings the tokens qo[r]..qo[r+1]; the table counts them already, so they are
// the last ones of its cache.
func (p PageTable) Append(pool, tokens []float64, qo []int32, width int) []float64 {
	pool = append([]float64(nil), pool...)
	for r := range len(p.Indptr) - 1 {
		n := int(qo[r+1] - qo[r])
		for i := range n {
			at := p.Slot(r, p.Length(r)-n+i) * width
			copy(pool[at:at+width], tokens[(int(qo[r])+i)*width:])
		}
	}
	return pool
}

// Paged is attention of packed queries over paged caches. Decode is the case of
// one query a request.
type Paged struct {
	Attention
	QO    []int32
	Table PageTable
}

// Forward gathers the pages [pages, PageSize, Hkv, D or Dv] into a contiguous
// cache and runs the ragged oracle on it.
func (a Paged) Forward(q, kPages, vPages []float64) (out, lse []float64) {
	k, kv := a.Table.Gather(kPages, a.Hkv*a.D)
	v, _ := a.Table.Gather(vPages, a.Hkv*a.Dv)
	return Ragged{a.Attention, a.QO, kv}.Forward(q, k, v)
}
