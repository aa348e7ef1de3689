//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// latentBatch are requests over shuffled pages; what no request owns is NaN, also the page between any two.
type latentBatch struct {
	h, size          int
	lengths, queries []int
	q, pool, values  []float64
	qo               []int32
	table            optest.PageTable
	tokens           int
}

func newLatentBatch(r *rand.Rand, dt DType, h, size int, lengths, queries []int) *latentBatch {
	l := &latentBatch{h: h, size: size, lengths: lengths, queries: queries, qo: []int32{0}, table: optest.PageTable{PageSize: size, Indptr: []int32{0}}}
	next := int32(1)
	for i, n := range lengths {
		for left := n; left > 0; left -= size {
			l.table.Indices = append(l.table.Indices, next)
			next += 2
		}
		last := 0
		if n > 0 {
			last = (n-1)%size + 1
		}
		l.table.Indptr, l.table.LastPageLen = append(l.table.Indptr, int32(len(l.table.Indices))), append(l.table.LastPageLen, int32(last))
		l.qo = append(l.qo, l.qo[i]+int32(queries[i]))
	}
	l.tokens = int(l.qo[len(lengths)]) + 2
	l.q = normal(r, dt, l.tokens*h*latentDim, 1)
	l.pool = make([]float64, int(next)*size*latentDim)
	l.values = make([]float64, int(next)*size*latentValues)
	for i := range l.pool {
		l.pool[i] = math.NaN()
	}
	for i := range l.values {
		l.values[i] = math.NaN()
	}
	for i, n := range lengths {
		for j := range n {
			at := l.table.Slot(i, j)
			copy(l.pool[at*latentDim:], normal(r, dt, latentDim, 1))
			copy(l.values[at*latentValues:][:latentValues], l.pool[at*latentDim:])
		}
	}
	return l
}

func (l *latentBatch) want(scale float64) []float64 {
	a := optest.Attention{B: len(l.lengths), Lq: l.tokens, Hq: l.h, Hkv: 1, D: latentDim, Dv: latentValues, Causal: true, Scale: scale}
	out, _ := optest.Paged{Attention: a, QO: l.qo, Table: l.table}.Forward(l.q, l.pool, l.values)
	return append(out, make([]float64, 2*l.h*latentValues)...)
}

func (l *latentBatch) launch(b *bench, dt DType, scale float64) LatentAttention {
	n := l.tokens * l.h * latentValues
	a := LatentAttention{Type: dt, T: l.tokens, H: l.h, Requests: len(l.lengths), Out: b.out(dt, n), Q: b.put(dt, l.q), Pool: b.put(dt, l.pool), PoolTokens: len(l.pool) / latentDim,
		Pages:    Pages{PageSize: l.size, Indptr: b.ints(wide(l.table.Indptr)...), Indices: b.ints(wide(l.table.Indices)...), LastPageLen: b.ints(wide(l.table.LastPageLen)...)},
		QoIndptr: b.ints(wide(l.qo)...), Scale: float32(scale), MaxLength: 1}
	var batch, index []int
	for i, n := range l.queries {
		a.MaxLength = max(a.MaxLength, l.lengths[i])
		if n > 1 {
			for t := range ceilDiv(n*l.h, LatentRows) {
				batch, index = append(batch, i), append(index, t)
			}
		}
	}
	batch, index = append(batch, -1), append(index, 0)
	a.TileBatch, a.TileIndex, a.Tiles = b.ints(batch...), b.ints(index...), len(batch)
	a.Scratch = b.alloc(int(a.ScratchBytes())).Pointer
	return a
}

// bothKinds runs a batch of single tokens and chunks.
type bothKinds struct{ LatentAttention }

func (a bothKinds) Launch(q Queue) error {
	if err := a.Single(q); err != nil {
		return err
	}
	return a.Several(q)
}

func TestDeviceLatentAttention(t *testing.T) {
	b := newBench(t)
	if !b.d.Target().Hopper() {
		t.Skip("the kernels are Hopper's")
	}
	for _, dt := range []DType{BF16, F16} {
		for _, c := range []struct {
			h, size          int
			lengths, queries []int
		}{
			{16, 16, []int{1}, []int{1}}, {32, 16, []int{63, 0, 64, 65, 257, 700}, []int{1, 0, 1, 1, 1, 1}}, {128, 64, []int{130, 2000}, []int{1, 1}}, {96, 8, []int{300}, []int{1}},
			{32, 256, []int{70, 9, 513}, []int{70, 9, 33}}, {3, 16, []int{200, 40, 5}, []int{50, 1, 5}}, {128, 32, []int{65}, []int{3}},
		} {
			each(t, 7, fmt.Sprintf("%v/%+v", dt, c), func(t *testing.T) {
				b := newBench(t)
				l := newLatentBatch(rand.New(rand.NewPCG(31, uint64(c.h))), dt, c.h, c.size, c.lengths, c.queries)
				scale := 1 / math.Sqrt(192)
				a := l.launch(b, dt, scale)
				b.run(bothKinds{a})
				n := l.tokens * l.h * latentValues
				got := b.get(dt, a.Out, n)
				near(t, dt, 2, l.want(scale), got) // roundings of the weights and of the output, measured 0.9
				b.raw(a.Scratch, int(a.ScratchBytes()))
				b.run(bothKinds{a})
				require.Equal(t, got, b.get(dt, a.Out, n), "two runs")
			})
		}
	}
}

// A token that is not finite reaches the rows that see it and no other; a request has the same bits alone.
func TestDeviceLatentAttentionNaNAndAlone(t *testing.T) {
	b := newBench(t)
	if !b.d.Target().Hopper() {
		t.Skip("the kernels are Hopper's")
	}
	l := newLatentBatch(rand.New(rand.NewPCG(32, 1)), BF16, 16, 16, []int{90, 400}, []int{9, 1})
	a := l.launch(b, BF16, 0.07)
	b.run(bothKinds{a})
	row := l.h * latentValues
	clean := b.get(BF16, a.Out, l.tokens*row)
	l.pool[l.table.Slot(0, 86)*latentDim+100] = math.NaN() // of query token 5
	a = l.launch(b, BF16, 0.07)
	b.run(bothKinds{a})
	got := b.get(BF16, a.Out, l.tokens*row)
	require.Equal(t, clean[:5*row], got[:5*row])
	for i := 5 * row; i < 9*row; i++ {
		require.True(t, math.IsNaN(got[i]), "element %d", i)
	}
	require.Equal(t, clean[9*row:10*row], got[9*row:10*row])

	alone := newLatentBatch(rand.New(rand.NewPCG(32, 1)), BF16, 16, 16, []int{400}, []int{1})
	alone.q = append(l.q[9*l.h*latentDim:10*l.h*latentDim:10*l.h*latentDim], make([]float64, 2*l.h*latentDim)...)
	for j := range 400 {
		copy(alone.pool[alone.table.Slot(0, j)*latentDim:][:latentDim], l.pool[l.table.Slot(1, j)*latentDim:])
	}
	c := alone.launch(b, BF16, 0.07)
	b.run(bothKinds{c})
	require.Equal(t, clean[9*row:10*row], b.get(BF16, c.Out, alone.tokens*row)[:row])
}

func TestDeviceSpeedLatentAttention(t *testing.T) {
	speed(t)
	for _, c := range []struct{ h, requests, length, queries, size int }{
		{32, 1, 4096, 1, 64}, {32, 64, 4096, 1, 64}, {128, 1, 4096, 1, 64}, {128, 64, 4096, 1, 64}, {128, 16, 16384, 1, 16}, {128, 1, 32768, 1, 64}, {32, 1, 2048, 2048, 64}, {128, 1, 4096, 4096, 64},
	} {
		b := newBench(t)
		tokens, pages := c.requests*c.queries, ceilDiv(c.length, c.size)
		var indptr, indices, last, qo, batch, index []int
		for r := range c.requests + 1 {
			indptr, qo = append(indptr, r*pages), append(qo, r*c.queries)
		}
		for r := range c.requests {
			last = append(last, (c.length-1)%c.size+1)
			for i := range pages {
				indices = append(indices, (i*7919+r*pages)%(c.requests*pages))
			}
			for i := range ceilDiv(c.queries*c.h, LatentRows) {
				batch, index = append(batch, r), append(index, ceilDiv(c.queries*c.h, LatentRows)-1-i)
			}
		}
		pool := c.requests * pages * c.size
		a := LatentAttention{Type: BF16, T: tokens, H: c.h, Requests: c.requests, Out: b.out(BF16, tokens*c.h*latentValues), Q: b.random(BF16, tokens*c.h*latentDim, 1), Pool: b.random(BF16, pool*latentDim, 1), PoolTokens: pool,
			Pages: Pages{PageSize: c.size, Indptr: b.ints(indptr...), Indices: b.ints(indices...), LastPageLen: b.ints(last...)}, QoIndptr: b.ints(qo...), MaxLength: c.length, Scale: 0.07,
			TileBatch: b.ints(batch...), TileIndex: b.ints(index...), Tiles: len(batch)}
		a.Scratch = b.alloc(int(a.ScratchBytes())).Pointer
		run := a.Single
		pairs := float64(tokens) * float64(c.length)
		if c.queries > 1 {
			run, pairs = a.Several, float64(tokens)*float64(c.length)/2
		}
		us := clock(t, b.d, 6, func(q Queue, _ int) error { return run(q) })
		row(t, "latent attention", fmt.Sprintf("H%d B%d kv%d q%d page %d", c.h, c.requests, c.length, c.queries, c.size), us, 2*pairs*float64(c.h)*(latentDim+latentValues), 2*float64(pool)*latentDim)
	}
}
