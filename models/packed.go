package models

import (
	"fmt"
	"math"
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

	// Slots is how many requests the pools of recurrent states hold, for a
	// model that has such states.
	Slots int

	// Cache is the type of the numbers in the pages: that of the graph, its zero
	// value, or Float16 or BFloat16.
	Cache dtype.DType
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

	// Only in the graph of a model with recurrent states, see Recurrent.
	PackedStateSlots  = "state_slots"  // [R] slot of the request's states, -1: no tokens in this step
	PackedStateStarts = "state_starts" // [R] 1 where the request begins in this step, else 0
)

// The names of the pools begin with these.
const (
	PagePools  = "kv."    // pages of keys and values, [pages, ...]
	StatePools = "state." // recurrent states, [slots, ...]
)

// Packed builds one step of generation: it appends the keys and values of the
// tokens to the pools (the states "kv.<layer>.k" and ".v"), attends, and gives
// the logits [R,Vocab] of each request's last token. Prefill, a chunk of it
// and decode are the same graph. Recurrent states ("state.<layer>. ...") are
// moved on in their slots.
func (m *Transformer) Packed(b *graph.Builder, s Packed) *graph.Node {
	if err := m.usable(); err != nil {
		return b.Fail(err)
	}
	layers, err := m.reaches(m.positions(s), true)
	if err != nil {
		return b.Fail(err)
	}
	ints := func(name string, n int) *graph.Node { return b.Input(name, dtype.Int32, n) }
	tokens := ints(PackedTokens, s.Tokens)
	mix := &paged{b: b, layers: layers, shape: s, pos: ints(PackedPositions, s.Tokens), slots: ints(PackedSlots, s.Tokens)}
	mix.pages = ops.Pages{
		QOIndptr: ints(PackedQOIndptr, s.Requests+1), Indptr: ints(PackedPageIndptr, s.Requests+1),
		Indices: ints(PackedPageIndices, s.Indices), LastPageLen: ints(PackedLastPageLen, s.Requests),
	}
	if m.Recurrent() {
		mix.states = ops.Slots{QOIndptr: mix.pages.QOIndptr, Slots: ints(PackedStateSlots, s.Requests), Starts: ints(PackedStateStarts, s.Requests)}
	}
	hidden := m.Hidden(b, tokens, Dropout{}, mix)
	// Rows of a table are read by index: the last row of each request.
	last := ops.Embedding(ints(PackedLastRows, s.Requests), hidden)
	return m.Head(b, last)
}

// positions is how many a request can have.
func (m *Transformer) positions(s Packed) int { return min(m.Config.longest(), s.Pages*s.PageSize) }

// FirstPosition is what a graph of that shape takes as the position of the first
// token of a request whose prompt has so many: 0, or, where a rotation depends
// on the length of the sequence (longrope) and the prompt is a long one, that of
// the table of long sequences. A request that grows long goes on with the keys
// that it has, or is read again, as Rereads says.
func (m *Transformer) FirstPosition(s Packed, prompt int) int {
	if n := m.positions(s); m.Config.longer(n) && prompt > m.Config.RopeScale.OriginalPositions {
		return n
	}
	return 0
}

// Rereads reports whether a request that grows long, see FirstPosition, is read again
// from its first token: the published code of phi3 does that, that of others not.
func (m *Transformer) Rereads() bool { return architectures[m.Config.Type] == &phi3 }

// paged mixes packed tokens with what pages and slots hold of their requests.
type paged struct {
	b          *graph.Builder
	layers     []reach
	shape      Packed
	pos, slots *graph.Node
	pages      ops.Pages
	states     ops.Slots
}

// append puts the heads x [T,H,D] of the tokens into a pool of pages.
func (p *paged) append(name string, x *graph.Node) *graph.Node {
	stored := p.shape.Cache
	if stored == dtype.Invalid {
		stored = p.b.Float()
	}
	pool := p.b.State(name, stored, p.shape.Pages, p.shape.PageSize, x.Dim(-2), x.Dim(-1))
	return ops.AppendPages(pool, x, p.slots)
}

func (p *paged) Attention(l int, q, k, v, sinks *graph.Node) *graph.Node {
	r, pages := p.layers[l], p.pages
	pages.Sinks = sinks
	q, k = r.turnQueries(q, p.pos), r.turn(k, p.pos)
	kp, vp := p.append(fmt.Sprintf(PagePools+"%d.k", l), k), p.append(fmt.Sprintf(PagePools+"%d.v", l), v)
	return ops.PagedAttention(q, kp, vp, pages, ops.PagedAttentionOp{Causal: true, Window: r.window, Scale: r.scale, Softcap: r.cap})
}

// Latent keeps the latents in pages, one head of them, and lets the queries meet
// them as they are: neither keys nor values are formed. Where that cannot be,
// since the latents are too wide, the weight is stored in fewer than 16 bits or has an
// adapter, it keeps keys and values.
func (p *paged) Latent(l int, a *Latent, q, latent, shared, w *graph.Node) *graph.Node {
	r := p.layers[l]
	if a.KVRank+a.Rope > ops.MaxPagedHeadDim || !absorbed(w, p.b.Float()) {
		k, v := a.expand(q, latent, shared, w)
		return p.Attention(l, q, k, v, nil)
	}
	q = r.turnQueries(q, p.pos)
	if r.shared != nil {
		turned := ops.Rotary(ops.Reshape(shared, shared.Dim(0), 1, a.Rope), p.pos, r.shared, r.pairing)
		shared = ops.Reshape(turned, shared.Dim(0), a.Rope)
	}
	one := func(x *graph.Node) *graph.Node { return ops.Reshape(x, x.Dim(0), 1, x.Dim(1)) }
	kp := p.append(fmt.Sprintf(PagePools+"%d.k", l), one(ops.Join(latent, shared)))
	vp := p.append(fmt.Sprintf(PagePools+"%d.v", l), one(latent))
	scale := r.scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(a.Nope+a.Rope))
	}
	o := ops.PagedAttention(ops.LatentQuery(q, w, a.Nope, a.V), kp, vp, p.pages, ops.PagedAttentionOp{Causal: true, Window: r.window, Scale: scale})
	return ops.LatentValue(o, w, a.Nope, a.V)
}

// absorbed says that queries and values can take up kv_b_proj as it is stored.
func absorbed(w *graph.Node, float dtype.DType) bool {
	t := w.Type().DType
	half := float == dtype.Float32 && (t == dtype.BFloat16 || t == dtype.Float16)
	return (t == float || half) && !adapted(w)
}

func (p *paged) Conv(l int, name string, x, w *graph.Node) *graph.Node {
	pool := p.b.State(fmt.Sprintf(StatePools+"%d.%s_conv", l, name), p.b.Float(), p.shape.Slots, w.Dim(0), w.Dim(1)-1)
	return ops.ShortConvSlots(x, w, pool, p.states)
}

func (p *paged) Delta(l int, q, k, v, g, beta *graph.Node) *graph.Node {
	pool := p.b.State(fmt.Sprintf(StatePools+"%d.delta", l), p.b.Float(), p.shape.Slots, v.Dim(-2), k.Dim(-1), v.Dim(-1))
	return ops.KDASlots(q, k, v, g, beta, pool, p.states, ops.KDASlotsOp{})
}

// Recurrent reports whether a request of the model has states beside its pages:
// a step cannot be taken twice on them.
func (m *Transformer) Recurrent() bool { return m.Config.Delta != nil }

// Limits tells what a session needs to know of the model. The context is Config's, or
// what yarn makes of the original length where that is more: people add the scaling
// to a config and leave max_position_embeddings.
func (m *Transformer) Limits() (vocab, context int, eos []int32) {
	return m.Config.Vocab, m.Config.longest(), slices.Clone(m.Config.EOS)
}
