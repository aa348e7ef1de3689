package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

// pagedCase is a batch of requests with shuffled pages; everything in the pool
// that is no token of a request is NaN.
type pagedCase struct {
	truth optest.Paged
	pages int
	t     int // rows of q, more than the requests have where the batch is padded
	q     []float64
	k, v  []float64 // pools
}

func newPagedCase(name string, a optest.Attention, pageSize int, queries, lengths []int32) pagedCase {
	c := pagedCase{truth: optest.Paged{Attention: a, QO: Indptr(queries)}}
	table := optest.PageTable{PageSize: pageSize, Indptr: []int32{0}}
	for _, n := range lengths {
		last := int32(0)
		if n > 0 {
			last = (n-1)%int32(pageSize) + 1
		}
		pages := int32(ceilDiv(int(n), pageSize))
		table.Indptr = append(table.Indptr, table.Indptr[len(table.Indptr)-1]+pages)
		table.LastPageLen = append(table.LastPageLen, last)
	}
	used := int(table.Indptr[len(lengths)])
	c.pages = used + 3
	order := make([]int32, c.pages)
	for i := range order {
		order[i] = int32(i)
	}
	r := optest.NewRand(name)
	for i := len(order) - 1; i > 0; i-- {
		j := r.Intn(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	table.Indices = order[:used]
	c.truth.Table = table
	c.t = int(c.truth.QO[len(queries)])
	c.q = optest.Normals(name+" q", c.t*a.Hq*a.D, 1)
	pool := func(part string, width int) []float64 {
		x := optest.Poison(make([]float64, c.pages*pageSize*width))
		fresh := optest.Normals(name+part, len(x), 1)
		for r := range lengths {
			for i := range table.Length(r) {
				at := table.Slot(r, i) * width
				copy(x[at:at+width], fresh[at:at+width])
			}
		}
		return x
	}
	c.k, c.v = pool(" k", a.Hkv*a.D), pool(" v", a.Hkv*a.Dv)
	return c
}

func (c pagedCase) table() PageTable {
	t := c.truth.Table
	return PageTable{PageSize: t.PageSize, Indptr: t.Indptr, Indices: t.Indices, LastPageLen: t.LastPageLen}
}

// args gives the operands, with outputs full of NaN.
func pagedArgsOf[T Float](c pagedCase) PagedArgs[T] {
	a := c.truth.Attention
	return PagedArgs[T]{
		Out: optest.Poison(make([]T, c.t*a.Hq*a.Dv)), LSE: optest.Poison(make([]T, c.t*a.Hq)),
		Q: optest.Cast[T](c.q), K: optest.Cast[T](c.k), V: optest.Cast[T](c.v),
		QIndptr: c.truth.QO, Table: c.table(), T: c.t, Hq: a.Hq, Hkv: a.Hkv, D: a.D, Dv: a.Dv,
		Scale: a.Scale, Softcap: a.Softcap, Causal: a.Causal, Window: a.Window, Sinks: optest.Cast[T](a.Sinks), BF16: attnInBF16,
	}
}

// request returns the part of the case that is request r alone.
func (c pagedCase) request(r int) pagedCase {
	one := c
	t, qo := c.truth.Table, c.truth.QO
	width := c.truth.Hq * c.truth.D
	one.q = c.q[int(qo[r])*width : int(qo[r+1])*width]
	one.t = int(qo[r+1] - qo[r])
	one.truth.QO = []int32{0, int32(one.t)}
	one.truth.Table = optest.PageTable{PageSize: t.PageSize, Indptr: []int32{0, t.Indptr[r+1] - t.Indptr[r]},
		Indices: t.Indices[t.Indptr[r]:t.Indptr[r+1]], LastPageLen: t.LastPageLen[r : r+1]}
	return one
}

func pagedCases() map[string]pagedCase {
	heads := func(hq, hkv, d, dv int) optest.Attention {
		return optest.Attention{Hq: hq, Hkv: hkv, D: d, Dv: dv, Causal: true}
	}
	cases := map[string]pagedCase{}
	add := func(name string, a optest.Attention, pageSize int, queries, lengths []int32) {
		cases[name] = newPagedCase(name, a, pageSize, queries, lengths)
	}
	for _, size := range []int{1, 2, 16, 256} {
		n := int32(size)
		add(fmt.Sprintf("decode, pages of %d", size), heads(4, 2, 8, 8), size,
			[]int32{1, 1, 1, 1, 1}, []int32{1, n, n + 1, 3*n + 1, 200})
		add(fmt.Sprintf("prefill, pages of %d", size), heads(4, 2, 8, 5), size,
			[]int32{1, 65, 0, 130, 15, 0}, []int32{1, 65, 7, 200, 300, 0})
	}
	for _, g := range []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 128} {
		add(fmt.Sprintf("group of %d", g), heads(2*g, 2, 4, 4), 4, []int32{1, 2, 1}, []int32{9, 140, 1})
	}
	a := heads(4, 2, 8, 8)
	a.Causal = false
	add("not causal", a, 4, []int32{3, 2}, []int32{9, 14})
	a = heads(4, 2, 8, 8)
	a.Window, a.Softcap, a.Sinks = 20, 3, []float64{0, 1, 2, -1}
	add("window, softcap, sinks", a, 16, []int32{40, 1, 1}, []int32{100, 300, 3})
	add("long caches", heads(4, 2, 8, 5), 16, []int32{1, 3, 1, 1, 1, 70}, []int32{1300, 513, 512, 5, 0, 700})
	a = heads(4, 2, 8, 8)
	a.Window, a.Sinks = 100, []float64{0, 1, 2, -1}
	add("long caches, window, sinks", a, 1, []int32{1, 40, 1}, []int32{1300, 1025, 2})
	// One token of heads that decode takes, beside requests that it does not.
	add("decode, heads of 64", heads(9, 3, 64, 64), 16, []int32{1, 1, 1, 2, 1, 1}, []int32{65, 600, 1101, 300, 64, 3})
	add("decode, groups of 7", heads(14, 2, 64, 64), 4, []int32{1, 1}, []int32{601, 70})
	add("decode, pages of 1", heads(5, 1, 32, 128), 1, []int32{1, 1}, []int32{1050, 67})
	a = heads(4, 1, 16, 64)
	a.Window, a.Softcap, a.Sinks = 90, 3, []float64{0, 1, 2, -1}
	add("decode, window, softcap, sinks", a, 2, []int32{1, 1, 1}, []int32{1300, 91, 70})
	add("more queries than keys", heads(2, 1, 8, 8), 4, []int32{5, 1}, []int32{2, 4})
	return cases
}

func TestPagedAttentionAgainstOracle(t *testing.T) {
	var worst float64
	for name, c := range pagedCases() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, CheckPages(c.table(), len(c.truth.QO)-1, c.pages))
			out, lse := c.truth.Forward(c.q, c.k, c.v)
			got := pagedArgsOf[float32](c)
			poisonScratch[float32]()
			PagedAttention(got)
			// Measured 3.7.
			d := optest.RequireClose(t, "out", got.Out, out, optest.Float32, 10)
			worst = max(worst, d.RMS/float64(optest.Float32))
			optest.RequireClose(t, "lse", got.LSE, lse, optest.Float32, 10)

			got64 := pagedArgsOf[float64](c)
			PagedAttention(got64)
			optest.RequireClose(t, "out float64", got64.Out, out, optest.Float64, 20)
		})
	}
	t.Logf("largest rms error: %.2f unit roundoffs", worst)
}

// TestPagedAttentionBF16 holds products of bf16 to the oracle on rounded operands,
// and requests of one query to the bits of float32, with every kernel set.
func TestPagedAttentionBF16(t *testing.T) {
	defer func() { attnInBF16 = false }()
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		for name, c := range pagedCases() {
			t.Run(name, func(t *testing.T) {
				c.q, c.k, c.v = optest.BF16.Round(c.q), optest.BF16.Round(c.k), optest.BF16.Round(c.v)
				out, lse := c.truth.Forward(c.q, c.k, c.v)
				attnInBF16 = false
				plain := pagedArgsOf[float32](c)
				PagedAttention(plain)
				attnInBF16 = true
				got := pagedArgsOf[float32](c)
				PagedAttention(got)
				optest.RequireClose(t, "out", got.Out, out, optest.BFloat16, attnBF16Bound)
				optest.RequireClose(t, "lse", got.LSE, lse, optest.Float32, 10)
				for r := range len(c.truth.QO) - 1 {
					if q0, width := int(c.truth.QO[r]), c.truth.Hq*c.truth.Dv; int(c.truth.QO[r+1]) == q0+1 {
						require.Equal(t, plain.Out[q0*width:][:width], got.Out[q0*width:][:width], "request %d", r)
					}
				}
			})
		}
	})
}

// A request alone has the bits it has in a batch.
func TestPagedRequestAloneIsBitEqual(t *testing.T) {
	defer func() { attnInBF16 = false }()
	for name, c := range pagedCases() {
		t.Run(name, func(t *testing.T) {
			for _, attnInBF16 = range []bool{false, true} {
				batch := pagedArgsOf[float32](c)
				PagedAttention(batch)
				for r := range len(c.truth.QO) - 1 {
					one := c.request(r)
					alone := pagedArgsOf[float32](one)
					PagedAttention(alone)
					q0, width := int(c.truth.QO[r]), c.truth.Hq*c.truth.Dv
					require.Equal(t, alone.Out, batch.Out[q0*width:][:one.t*width], "request %d", r)
					for h := range c.truth.Hq {
						require.Equal(t, alone.LSE[h*one.t:(h+1)*one.t], batch.LSE[h*c.t+q0:][:one.t], "request %d", r)
					}
				}
			}
		})
	}
}

// Pages and contiguous keys give the same bits.
func TestPagedEqualsDense(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 70, Lk: 150, Hq: 4, Hkv: 2, D: 8, Dv: 8, Causal: true}
	c := newPagedCase(t.Name(), a, 16, []int32{70}, []int32{150})
	k, _ := c.truth.Table.Gather(c.k, a.Hkv*a.D)
	v, _ := c.truth.Table.Gather(c.v, a.Hkv*a.Dv)
	defer func() { attnInBF16 = false }()
	for _, attnInBF16 = range []bool{false, true} {
		dense := runAttention(t, a, c.q, k, v, nil)
		paged := pagedArgsOf[float32](c)
		PagedAttention(paged)
		require.Equal(t, dense.Out, paged.Out)
		require.Equal(t, dense.LSE, paged.LSE)
	}
}

// inOrder is the case with the pages of each request one behind the other.
func (c pagedCase) inOrder() pagedCase {
	moved := c
	size := c.truth.Table.PageSize
	move := func(pool []float64, width int) []float64 {
		y := optest.Poison(make([]float64, len(pool)))
		for to, from := range c.truth.Table.Indices {
			copy(y[to*size*width:(to+1)*size*width], pool[int(from)*size*width:])
		}
		return y
	}
	moved.k, moved.v = move(c.k, c.truth.Hkv*c.truth.D), move(c.v, c.truth.Hkv*c.truth.Dv)
	moved.truth.Table.Indices = make([]int32, len(c.truth.Table.Indices))
	for i := range moved.truth.Table.Indices {
		moved.truth.Table.Indices[i] = int32(i)
	}
	return moved
}

// TestPlaceOfPagesChangesNoBit: pages that follow each other are read where they
// lie, others are gathered.
func TestPlaceOfPagesChangesNoBit(t *testing.T) {
	for name, c := range pagedCases() {
		eachKernel(t, func(t *testing.T) {
			far, near := pagedArgsOf[float32](c), pagedArgsOf[float32](c.inOrder())
			PagedAttention(far)
			PagedAttention(near)
			requireSameBits(t, far.Out, near.Out)
			requireSameBits(t, far.LSE, near.LSE)
		})
		far, near := pagedArgsOf[float64](c), pagedArgsOf[float64](c.inOrder())
		PagedAttention(far)
		PagedAttention(near)
		require.Equal(t, far.Out, near.Out, name)
	}
}

func TestA09_RequestWithoutKeys(t *testing.T) {
	a := optest.Attention{Hq: 2, Hkv: 1, D: 4, Dv: 4, Causal: true, Sinks: []float64{1, 2}}
	c := newPagedCase(t.Name(), a, 4, []int32{1, 1, 2}, []int32{5, 0, 9})
	got := pagedArgsOf[float32](c)
	PagedAttention(got)
	require.Equal(t, make([]float32, 8), got.Out[8:16])
	for h := range 2 {
		require.True(t, math.IsInf(float64(got.LSE[h*4+1]), -1))
	}
	out, _ := c.truth.Forward(c.q, c.k, c.v)
	optest.RequireClose(t, "out", got.Out, out, optest.Float32, 10)
}

func TestA10_UnusedSlotsAndPagesHoldNaN(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 1, Lk: 13, Hq: 2, Hkv: 1, D: 8, Dv: 8, Causal: true}
	c := newPagedCase(t.Name(), a, 4, []int32{1}, []int32{13}) // three slots and three pages are NaN
	k, _ := c.truth.Table.Gather(c.k, a.D)
	v, _ := c.truth.Table.Gather(c.v, a.Dv)
	got := pagedArgsOf[float32](c)
	PagedAttention(got)
	require.True(t, finite(got.Out))
	require.Equal(t, runAttention(t, a, c.q, k, v, nil).Out, got.Out)
}

// 13 tokens at once, as 5 and 8, and one by one, each chunk appended to its
// pages by the call that attends to it.
func TestA13_ChunkedPrefill(t *testing.T) {
	a := optest.Attention{Hq: 4, Hkv: 2, D: 8, Dv: 8, Causal: true}
	const n, size = 13, 4
	q := optest.Cast[float32](optest.Normals("q", n*a.Hq*a.D, 1))
	k := optest.Cast[float32](optest.Normals("k", n*a.Hkv*a.D, 1))
	v := optest.Cast[float32](optest.Normals("v", n*a.Hkv*a.Dv, 1))
	run := func(chunks ...int) []float32 {
		c := newPagedCase(t.Name(), a, size, []int32{n}, []int32{n})
		poolK, poolV := make([]float32, len(c.k)), make([]float32, len(c.v))
		optest.Poison(poolK)
		optest.Poison(poolV)
		var out []float32
		done := 0
		for _, chunk := range chunks {
			args := pagedArgsOf[float32](c)
			at := done
			done += chunk
			pages := ceilDiv(done, size)
			args.Table = PageTable{PageSize: size, Indptr: []int32{0, int32(pages)}, Indices: c.truth.Table.Indices[:pages],
				LastPageLen: []int32{int32((done-1)%size + 1)}}
			args.T, args.QIndptr = chunk, []int32{0, int32(chunk)}
			args.Q = q[at*a.Hq*a.D : done*a.Hq*a.D]
			args.K, args.V = poolK, poolV
			args.NewK, args.NewV = k[at*a.Hkv*a.D:done*a.Hkv*a.D], v[at*a.Hkv*a.Dv:done*a.Hkv*a.Dv]
			args.Out, args.LSE = optest.Poison(make([]float32, chunk*a.Hq*a.Dv)), nil
			require.NoError(t, CheckPages(args.Table, 1, c.pages))
			require.NoError(t, CheckAppend(args.Table, args.QIndptr))
			PagedAttention(args)
			out = append(out, args.Out...)
		}
		return out
	}
	whole := optest.Float64s(run(n))
	for _, chunks := range [][]int{{5, 8}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
		optest.RequireClose(t, fmt.Sprint(chunks), run(chunks...), whole, optest.Float32, 4)
	}
}

// Rows that pad a batch belong to no request: they write nothing into pages.
func TestPaddedRowsWriteNothing(t *testing.T) {
	a := optest.Attention{Hq: 2, Hkv: 1, D: 4, Dv: 4, Causal: true}
	c := newPagedCase(t.Name(), a, 4, []int32{1, 2}, []int32{5, 6})
	want := pagedArgsOf[float32](c)
	want.NewK, want.NewV = optest.Cast[float32](optest.Normals("nk", 12, 1)), optest.Cast[float32](optest.Normals("nv", 12, 1))
	PagedAttention(want)

	got := pagedArgsOf[float32](c)
	rows := func(x []float32, width int) []float32 {
		return append(append([]float32(nil), x...), make([]float32, 5*width)...)
	}
	got.T = 8
	got.Q = rows(want.Q, 8)
	optest.Poison(got.Q[3*8:])
	got.NewK, got.NewV = rows(want.NewK, 4), rows(want.NewV, 4)
	optest.Poison(got.NewK[12:])
	got.Out, got.LSE = optest.Poison(make([]float32, 8*8)), optest.Poison(make([]float32, 8*2))
	PagedAttention(got)
	require.Equal(t, want.Out, got.Out[:24])
	require.Equal(t, make([]float32, 40), got.Out[24:])
	optest.RequireEqual(t, "pool k", got.K, want.K)
	optest.RequireEqual(t, "pool v", got.V, want.V)
	for h := range 2 {
		require.Equal(t, want.LSE[h*3:h*3+3], got.LSE[h*8:h*8+3])
		require.True(t, math.IsInf(float64(got.LSE[h*8+3]), -1))
	}

	slots := make([]int32, 8)
	PageSlots(slots, c.table(), c.truth.QO)
	require.Equal(t, []int32{-1, -1, -1, -1, -1}, slots[3:])
	pool := optest.Cast[float32](c.k)
	AppendPages(pool, got.NewK, slots, 4)
	optest.RequireEqual(t, "pool by slots", pool, want.K)
}

func TestA11_BadPageTables(t *testing.T) {
	good := func() PageTable {
		return PageTable{PageSize: 4, Indptr: []int32{0, 2, 3}, Indices: []int32{5, 0, 2}, LastPageLen: []int32{4, 1}}
	}
	require.NoError(t, CheckPages(good(), 2, 6))
	for _, c := range []struct {
		want           string
		request, index int
		make           func(*PageTable)
	}{
		{"request 1: kv_last_page_len must be 1 to the page size 4, got 5 at index 1", 1, 1, func(p *PageTable) { p.LastPageLen[1] = 5 }},
		{"request 0: kv_last_page_len must be 1 to the page size 4, got 0 at index 0", 0, 0, func(p *PageTable) { p.LastPageLen[0] = 0 }},
		{"request 1: page 6 at index 2 of kv_page_indices is outside the pool of 6 pages", 1, 2, func(p *PageTable) { p.Indices[2] = 6 }},
		{"request 0: page -1 at index 1 of kv_page_indices is outside the pool of 6 pages", 0, 1, func(p *PageTable) { p.Indices[1] = -1 }},
		{"request 1: page 5 at index 2 of kv_page_indices is in the table twice", 1, 2, func(p *PageTable) { p.Indices[2] = 5 }},
		{"kv_page_indptr must start at 0, got 1", -1, 0, func(p *PageTable) { p.Indptr[0] = 1 }},
		{"request 1: kv_page_indptr must not decrease, got 2 then 1 at index 2", 1, 2, func(p *PageTable) { p.Indptr[2] = 1 }},
		{"request 1: kv_page_indptr ends at 4 at index 2, there are 3", 1, 2, func(p *PageTable) { p.Indptr[2] = 4 }},
		{"kv_page_indptr must have 3 elements for 2 requests, got 2", -1, -1, func(p *PageTable) { p.Indptr = p.Indptr[:2] }},
		{"kv_last_page_len must have 2 elements for 2 requests, got 1", -1, -1, func(p *PageTable) { p.LastPageLen = p.LastPageLen[:1] }},
		{"page_size must be a power of two from 1 to 256, got 3", -1, -1, func(p *PageTable) { p.PageSize = 3 }},
		{"page_size must be a power of two from 1 to 256, got 0", -1, -1, func(p *PageTable) { p.PageSize = 0 }},
		{"page_size must be a power of two from 1 to 256, got 512", -1, -1, func(p *PageTable) { p.PageSize = 512 }},
	} {
		bad := good()
		c.make(&bad)
		err := CheckPages(bad, 2, 6)
		require.EqualError(t, err, c.want)
		var e *PageError
		require.True(t, errors.As(err, &e))
		require.Equal(t, [2]int{c.request, c.index}, [2]int{e.Request, e.Index}, c.want)
	}
}

func TestA15_MoreTokensThanThePagesHold(t *testing.T) {
	p := PageTable{PageSize: 4, Indptr: []int32{0, 1, 2}, Indices: []int32{0, 1}, LastPageLen: []int32{4, 2}}
	require.NoError(t, CheckAppend(p, []int32{0, 4, 6}))
	err := CheckAppend(p, []int32{0, 1, 4})
	require.EqualError(t, err, "request 1: 3 new tokens do not fit into the 2 that its pages hold")
	var e *PageError
	require.True(t, errors.As(err, &e))
	require.Equal(t, 1, e.Request)
}

func TestA16_OffsetsNeed64Bits(t *testing.T) {
	require.NoError(t, CheckElements("k", 1<<20, 32, 128), "2^32 elements")
	p := PageTable{PageSize: 256, Indptr: []int32{0, 1}, Indices: []int32{1<<23 - 1}, LastPageLen: []int32{256}}
	require.EqualValues(t, int64(1<<31-1), p.Slot(0, 255))
	require.EqualValues(t, int64(1<<31-1)*32*128, int64(p.Slot(0, 255))*32*128)
	require.EqualError(t, CheckElements("k", 1<<31, 1<<20, 1<<20), "k: shape [2147483648 1048576 1048576] has more elements than can be indexed")
	require.EqualError(t, CheckElements("k", 1, -1), "k: negative size in shape [1 -1]")
}

func TestIndptrAndLengthErrors(t *testing.T) {
	require.NoError(t, CheckRagged([]int32{0, 2, 2}, []int32{0, 0, 5}, 3, 5))
	require.EqualError(t, CheckRagged(nil, []int32{0}, 3, 5), "qo_indptr must have at least 1 element, got 0")
	require.EqualError(t, CheckRagged([]int32{0, 4}, []int32{0, 1}, 3, 5), "request 0: qo_indptr ends at 4 at index 1, there are 3")
	require.EqualError(t, CheckRagged([]int32{0, 3}, []int32{0}, 3, 5), "kv_indptr must have 2 elements for 1 requests, got 1")
	require.EqualError(t, CheckIndptr("cu_seqlens", []int32{0, 3, 2}, 2, 5), "request 1: cu_seqlens must not decrease, got 3 then 2 at index 2")
	require.EqualError(t, CheckIndptr("cu_seqlens", []int32{1, 3, 4}, 2, 5), "cu_seqlens must start at 0, got 1")
	require.NoError(t, CheckLengths([]int32{0, 5}, 2, 5))
	require.EqualError(t, CheckLengths([]int32{0, 6}, 2, 5), "request 1: kv_len must be 0 to 5, got 6 at index 1")
	require.EqualError(t, CheckLengths([]int32{-1}, 1, 5), "request 0: kv_len must be 0 to 5, got -1 at index 0")
	require.EqualError(t, CheckLengths([]int32{1}, 2, 5), "kv_len must have 2 elements for 2 requests, got 1")
	require.NoError(t, CheckSlots([]int32{-1, 3}, 4))
	require.EqualError(t, CheckSlots([]int32{-1, 4}, 4), "token 1: slot 4 is outside the pool of 4 slots")
	require.EqualError(t, CheckSlots([]int32{-2}, 4), "token 0: slot -2 is outside the pool of 4 slots")
}

func TestPagedAttentionIsBitEqualForAnyWorkers(t *testing.T) {
	defer SetWorkers(0)
	cases := pagedCases()
	for _, name := range []string{"long caches", "decode, heads of 64", "decode, groups of 7", "decode, window, softcap, sinks"} {
		SetWorkers(1)
		want := pagedArgsOf[float32](cases[name])
		PagedAttention(want)
		for _, w := range []int{2, 7} {
			SetWorkers(w)
			got := pagedArgsOf[float32](cases[name])
			PagedAttention(got)
			require.Equal(t, want.Out, got.Out, name)
			require.Equal(t, want.LSE, got.LSE, name)
		}
	}
}

// The softmax of two rows at a time has the bits of one row after the other, and
// zeros behind a row.
func TestDecodeSoftmax(t *testing.T) {
	if gemmKernel < avx512Kernel {
		t.Skip("it is in AVX-512")
	}
	inf := float32(math.Inf(1))
	const rows, ldp = 4, 160
	for n := 1; n <= 150; n++ {
		p := optest.GuardCopy(optest.Cast[float32](optest.Normals(fmt.Sprint("scores ", n), rows*ldp, 9)))
		x := p.Data
		x[0], x[ldp+n-1] = -inf, -inf
		fill(x[3*ldp:], -inf)
		want := slices.Clone(x)
		tops, bases, sums := make([]float32, rows), make([]float32, rows), make([]float64, rows)
		attnSoftmax(&x[0], ldp*4, rows, n, &tops[0], &bases[0], &sums[0])
		optest.CheckGuards(t, "scores", p)
		for r := range rows {
			row, top := want[r*ldp:][:n], slices.Max(want[r*ldp:][:n])
			base := top
			if top == -inf {
				base = 0
			}
			sum := expSubSum(row, row, base)
			require.Equal(t, row, x[r*ldp:][:n], "%d scores, row %d", n, r)
			require.Equal(t, []any{top, sum}, []any{tops[r], sums[r]}, "%d scores, row %d", n, r)
			for _, v := range x[r*ldp+n : r*ldp+ceilDiv(n, decodeTurn)*decodeTurn] {
				require.Zero(t, v)
			}
		}
	}
}

func TestPagedAttentionDoesNotAllocate(t *testing.T) {
	c := newPagedCase(t.Name(), optest.Attention{Hq: 4, Hkv: 2, D: 16, Dv: 16, Causal: true}, 16, []int32{1, 20}, []int32{1300, 20})
	args := pagedArgsOf[float32](c)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if CheckPages(args.Table, 2, c.pages) == nil {
			PagedAttention(args)
		}
	}))
}

// FuzzPageTable: a table that the checks accept is safe to follow.
func FuzzPageTable(f *testing.F) {
	f.Add(uint8(4), uint8(6), []byte{0, 2, 3}, []byte{5, 0, 2}, []byte{4, 1}, []byte{0, 1, 3})
	f.Add(uint8(1), uint8(3), []byte{0, 1, 1}, []byte{2}, []byte{1, 0}, []byte{0, 0, 1})
	f.Add(uint8(4), uint8(2), []byte{0, 9}, []byte{5, 0}, []byte{200}, []byte{0, 7})
	f.Add(uint8(3), uint8(0), []byte{}, []byte{}, []byte{}, []byte{})
	f.Add(uint8(255), uint8(255), []byte{0, 255, 1}, []byte{255, 255}, []byte{0, 0}, []byte{3, 2, 1})
	f.Fuzz(func(t *testing.T, size, pages uint8, indptr, indices, last, qo []byte) {
		table := PageTable{PageSize: int(size), Indptr: int8s(indptr), Indices: int8s(indices), LastPageLen: int8s(last)}
		q := int8s(qo)
		if CheckPages(table, len(q)-1, int(pages)) != nil || CheckIndptr("qo_indptr", q, len(q)-1, 40) != nil || CheckAppend(table, q) != nil {
			return
		}
		tokens := int(q[len(q)-1]) + 1
		slots := int(pages) * table.PageSize
		buffers := []*optest.Guarded[float32]{optest.GuardCopy(make([]float32, slots*2)), optest.GuardCopy(make([]float32, slots*2)),
			optest.GuardCopy(make([]float32, tokens*4)), optest.Guard[float32](tokens * 4), optest.Guard[float32](tokens * 2), optest.GuardCopy(make([]float32, tokens*2))}
		PagedAttention(PagedArgs[float32]{K: buffers[0].Data, V: buffers[1].Data, Q: buffers[2].Data, Out: buffers[3].Data, LSE: buffers[4].Data,
			NewK: buffers[5].Data, NewV: buffers[5].Data, QIndptr: q, Table: table, T: tokens, Hq: 2, Hkv: 1, D: 2, Dv: 2, Causal: true})
		for i, b := range buffers {
			optest.CheckGuards(t, fmt.Sprint(i), b)
		}
		require.True(t, finite(buffers[3].Data))
	})
}

// FuzzRagged: prefix sums that the checks accept are safe to follow.
func FuzzRagged(f *testing.F) {
	f.Add([]byte{0, 2, 3}, []byte{0, 0, 5}, uint8(3), uint8(5))
	f.Add([]byte{0}, []byte{0}, uint8(0), uint8(0))
	f.Add([]byte{}, []byte{0, 1}, uint8(1), uint8(1))
	f.Add([]byte{0, 200, 3}, []byte{0, 1, 2}, uint8(9), uint8(9))
	f.Fuzz(func(t *testing.T, qo, kv []byte, queries, keys uint8) {
		q, k := int8s(qo), int8s(kv)
		if CheckRagged(q, k, int(queries), int(keys)) != nil {
			return
		}
		lq, lk := int(queries), int(keys)
		in := func(n int) *optest.Guarded[float32] { return optest.GuardCopy(make([]float32, n)) }
		out := func(n int) *optest.Guarded[float32] { return optest.Guard[float32](n) }
		b := []*optest.Guarded[float32]{in(lq * 4), in(lk * 2), in(lk * 2), out(lq * 4), out(lq * 2), in(lq * 4), out(lq * 4), out(lk * 2), out(lk * 2)}
		a := AttentionGradArgs[float32]{
			AttentionArgs: AttentionArgs[float32]{Q: b[0].Data, K: b[1].Data, V: b[2].Data, Out: b[3].Data, LSE: b[4].Data,
				B: len(q) - 1, Lq: lq, Lk: lk, Hq: 2, Hkv: 1, D: 2, Dv: 2, Causal: true, QIndptr: q, KVIndptr: k},
			DOut: b[5].Data, DQ: b[6].Data, DK: b[7].Data, DV: b[8].Data,
		}
		Attention(a.AttentionArgs)
		AttentionGrad(a)
		for i, x := range b {
			optest.CheckGuards(t, fmt.Sprint(i), x)
			require.True(t, i == 4 || finite(x.Data), i)
		}
	})
}

// int8s widens signed bytes, so that the fuzzer reaches negative numbers.
func int8s(b []byte) []int32 {
	x := make([]int32, len(b))
	for i, v := range b {
		x[i] = int32(int8(v))
	}
	return x
}

// Every part of a decoded token has a block of keys, and at most attnSplitKeys.
func TestDecodeCut(t *testing.T) {
	for keys := range 40000 {
		n, blocks := decodeCut(keys), ceilDiv(keys, decodeBlock)
		require.Zero(t, n&(n-1))
		require.LessOrEqual(t, ceilDiv(blocks, n)*decodeBlock, attnSplitKeys, "%d keys", keys)
		require.True(t, n == 1 || blocks >= n, "%d keys", keys)
		require.True(t, n <= 2 || keys >= n*decodeKeys, "%d keys", keys)
	}
}
