package models

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Packed is the shape of a graph that generates: T packed tokens of R requests
// whose keys and values lie in pools of Pages pages of PageSize tokens, found
// through at most Indices page ids.
type Packed struct {
	Tokens, Requests         int
	Pages, PageSize, Indices int
}

// The inputs of a packed graph, all int32.
const (
	PackedTokens      = "tokens"           // [T] token ids; anything in rows of no request
	PackedPositions   = "positions"        // [T]
	PackedSlots       = "slots"            // [T] place of the token's key and value in the pool, -1: no request
	PackedQOIndptr    = "qo_indptr"        // [R+1]
	PackedPageIndptr  = "kv_page_indptr"   // [R+1]
	PackedPageIndices = "kv_page_indices"  // [Indices]
	PackedLastPageLen = "kv_last_page_len" // [R]
	PackedLastRows    = "last_rows"        // [R] row of each request's last token
)

// Packed builds one step of generation: it appends the keys and values of the
// tokens to the pools (the states "kv.<layer>.k" and ".v"), attends, and gives
// the logits [R,Vocab] of each request's last token. Prefill, a chunk of it
// and decode are the same graph.
func (m *Transformer) Packed(b *graph.Builder, s Packed) *graph.Node {
	c := m.Config
	layers, err := m.reaches(c.Context)
	if err != nil {
		return b.Fail(err)
	}
	ints := func(name string, n int) *graph.Node { return b.Input(name, dtype.Int32, n) }
	tokens, pos, slots := ints(PackedTokens, s.Tokens), ints(PackedPositions, s.Tokens), ints(PackedSlots, s.Tokens)
	pages := ops.Pages{
		QOIndptr: ints(PackedQOIndptr, s.Requests+1), Indptr: ints(PackedPageIndptr, s.Requests+1),
		Indices: ints(PackedPageIndices, s.Indices), LastPageLen: ints(PackedLastPageLen, s.Requests),
	}
	// pool holds the rows [T,heads,width] of x in pages.
	pool := func(name string, x *graph.Node) *graph.Node {
		return b.State(name, b.Float(), s.Pages, s.PageSize, x.Dim(-2), x.Dim(-1))
	}
	hidden := m.Hidden(b, tokens, Dropout{}, func(_ *graph.Builder, l int, q, k, v *graph.Node) *graph.Node {
		r := layers[l]
		q, k = r.turn(q, pos), r.turn(k, pos)
		kp := ops.AppendPages(pool(fmt.Sprintf("kv.%d.k", l), k), k, slots)
		vp := ops.AppendPages(pool(fmt.Sprintf("kv.%d.v", l), v), v, slots)
		return ops.PagedAttention(q, kp, vp, pages, ops.PagedAttentionOp{Causal: true, Window: r.window, Scale: r.scale})
	})
	// Rows of a table are read by index: the last row of each request.
	last := ops.Embedding(ints(PackedLastRows, s.Requests), hidden)
	return m.Head(b, last)
}

// Limits tells what a session needs to know of the model.
func (m *Transformer) Limits() (vocab, context int, eos []int32) {
	return m.Config.Vocab, m.Config.Context, slices.Clone(m.Config.EOS)
}
