package ops

import (
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// KDA and its convolution in generation: packed tokens of requests whose states
// lie in pools, one slot a request.

func init() {
	graph.Register(graph.Def{
		Name:   "short_conv_slots",
		Doc:    "short convolution of packed requests on a pool of states",
		Native: floats(shortConvSlots[float32], shortConvSlots[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) * int64(last(in[1])) },
	})
	graph.Register(graph.Def{
		Name:   "kda_slots",
		Doc:    "KDA of packed requests on a pool of states: prefill, chunks, decode",
		Native: floats(kdaSlots[float32], kdaSlots[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 8 * int64(in[3].Size()) * int64(last(in[2])) },
	})
}

// Slots are the inputs that say where the states of R requests lie.
type Slots struct {
	QOIndptr *graph.Node // int32 [R+1]: request r owns tokens qo_indptr[r]:qo_indptr[r+1]
	Slots    *graph.Node // int32 [R]: its slot in the pools; -1: it has no tokens here
	Starts   *graph.Node // int32 [R]: 1 where it begins here, from a state of zeros; else 0
}

// ShortConvSlotsOp is ShortConvOp over the packed tokens x [T,C] of R requests,
// each with its state in a slot of pool [slots,C,W-1], which moves on in place.
// Inputs x, w [C,W], pool and those of Slots; result y [T,C]. Rows behind the
// last request and those of a request with slot -1 are 0.
type ShortConvSlotsOp struct{}

// ShortConvSlots adds a ShortConvSlotsOp.
func ShortConvSlots(x, w, pool *graph.Node, s Slots) *graph.Node {
	return graph.Apply(ShortConvSlotsOp{}, x, w, pool, s.QOIndptr, s.Slots, s.Starts)
}

// Name is "short_conv_slots".
func (ShortConvSlotsOp) Name() string { return "short_conv_slots" }

// Writes lists the pool.
func (ShortConvSlotsOp) Writes() []int { return []int{2} }

// Infer checks the channels and the pool.
func (ShortConvSlotsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 6, "x", "w", "pool", "qo_indptr", "slots", "starts"); err != nil {
		return nil, err
	}
	x, w, pool := in[0], in[1], in[2]
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if x.Rank() != 2 || w.DType != x.DType || w.Rank() != 2 || w.Shape[0] != x.Shape[1] || w.Shape[1] < 2 {
		return nil, fmt.Errorf("x must be [T,C] and w %s [C,W] with W of 2 or more, got x %s, w %s", x.DType, x.Dims(), w)
	}
	if pool.DType != x.DType || pool.Rank() != 3 || !slices.Equal(pool.Shape[1:], []int{w.Shape[0], w.Shape[1] - 1}) {
		return nil, fmt.Errorf("the pool must be %s [slots,%d,%d] for w %s, got %s", x.DType, w.Shape[0], w.Shape[1]-1, w.Dims(), pool)
	}
	return in[:1], slotTypes(in[3:])
}

// slotTypes checks the inputs of Slots.
func slotTypes(in []graph.Type) error {
	qo := in[0]
	if qo.DType != dtype.Int32 || qo.Rank() != 1 || qo.Shape[0] < 2 {
		return fmt.Errorf("qo_indptr must be int32[R+1] with R of 1 or more, got %s", qo)
	}
	for i, name := range []string{"slots", "starts"} {
		if want := graph.T(dtype.Int32, qo.Shape[0]-1); !in[i+1].Equal(want) {
			return fmt.Errorf("%s must be %s for qo_indptr %s, got %s", name, want, qo.Dims(), in[i+1])
		}
	}
	return nil
}

// requestSlots are the values of Slots, checked.
type requestSlots struct{ qo, slots, starts []int32 }

func readSlots(in []graph.Tensor, tokens, pool int) (requestSlots, error) {
	s := requestSlots{graph.Data[int32](in[0]), graph.Data[int32](in[1]), graph.Data[int32](in[2])}
	if err := native.CheckIndptr("qo_indptr", s.qo, len(s.slots), tokens); err != nil {
		return s, err
	}
	if !s.distinct(pool) {
		return s, native.CheckKDASlots(s.slots, pool)
	}
	return s, nil
}

// distinct tells without allocating that the slots of a few requests are in the
// pool and that no two share one.
func (s requestSlots) distinct(pool int) bool {
	const few = 64
	if len(s.slots) > few {
		return false
	}
	for i, slot := range s.slots {
		if int(slot) >= pool || slot >= 0 && slices.Contains(s.slots[:i], slot) {
			return false
		}
	}
	return true
}

// begin clears the states of the requests that begin; size is that of one.
func begin[T native.Float](s requestSlots, pool []T, size int) {
	for r, slot := range s.slots {
		if slot >= 0 && s.starts[r] != 0 {
			clear(pool[int(slot)*size:][:size])
		}
	}
}

func shortConvSlots[T native.Float](c *graph.Call) error {
	x, w, pool := c.In[0], c.In[1], c.In[2]
	s, err := readSlots(c.In[3:], x.Shape[0], pool.Shape[0])
	if err != nil {
		return err
	}
	channels, width := w.Shape[0], w.Shape[1]
	state := graph.Data[T](pool)
	begin(s, state, channels*(width-1))
	n := int(s.qo[len(s.slots)])
	y := graph.Data[T](c.Out[0])
	clear(y[n*channels:])
	native.ShortConv(y, state, graph.Data[T](x), graph.Data[T](w), state,
		native.ShortConvShape{Cu: s.qo, Slots: s.slots, Tokens: n, Channels: channels, Width: width})
	return nil
}

// KDASlotsOp is KDAOp over the packed tokens of R requests, each with its state
// in a slot of pool [slots,HV,K,V], which moves on in place. Inputs q and k
// [T,H,K], v [T,HV,V], g [T,HV,K], beta [T,HV], pool and those of Slots; result
// o [T,HV,V]. Rows behind the last request and those of a request with slot -1
// are 0. A request with one token takes a step of the recurrence, one with more
// goes by chunks, whatever the other requests bring; how a prompt is cut into
// calls changes its results by roundings alone. A fed g must be finite and at most
// 0; where the graph computes it, a request for which it is not gets NaN as results
// and state, alone.
type KDASlotsOp struct {
	Scale float64 // 0: K^-1/2
}

// KDASlots adds a KDASlotsOp.
func KDASlots(q, k, v, g, beta, pool *graph.Node, s Slots, o KDASlotsOp) *graph.Node {
	return graph.Apply(o, q, k, v, g, beta, pool, s.QOIndptr, s.Slots, s.Starts)
}

// Name is "kda_slots".
func (KDASlotsOp) Name() string { return "kda_slots" }

// Writes lists the pool.
func (KDASlotsOp) Writes() []int { return []int{5} }

// Infer checks heads, dims and the pool.
func (o KDASlotsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 9, "q", "k", "v", "g", "beta", "pool", "qo_indptr", "slots", "starts"); err != nil {
		return nil, err
	}
	// The same tokens as one packed sequence, with a state of the pool's kind.
	pool := in[5]
	s0 := graph.T(pool.DType, append([]int{1}, pool.Shape[min(1, pool.Rank()):]...)...)
	one := append(slices.Clone(in[:5]), s0, graph.T(dtype.Int32, 2))
	outs, err := (KDAOp{Scale: o.Scale, S0: true, Packed: true}).Infer(one)
	if err != nil {
		return nil, err
	}
	return outs[:1], slotTypes(in[6:])
}

func kdaSlots[T native.Float](c *graph.Call) error {
	q, v, pool := c.In[0], c.In[2], c.In[5]
	s, err := readSlots(c.In[6:], q.Shape[0], pool.Shape[0])
	if err != nil {
		return err
	}
	a := native.KDA[T]{
		Q: graph.Data[T](q), K: graph.Data[T](c.In[1]), V: graph.Data[T](v), G: graph.Data[T](c.In[3]), Beta: graph.Data[T](c.In[4]), S0: graph.Data[T](pool),
		Seqs: 1, H: q.Shape[1], HV: v.Shape[1], DK: last(q.Type), DV: last(v.Type), Scale: c.Op.(KDASlotsOp).Scale,
	}
	o := graph.Data[T](c.Out[0])
	n := int(s.qo[len(s.slots)])
	clear(o[n*a.HV*a.DV:])
	if err := native.CheckKDADecay(a.G[:n*a.HV*a.DK], a.HV, a.DK); err != nil {
		if c.Fed(3) {
			return err
		}
		var bad requestSlots
		s, bad = decaying(s, a)
		defer undefined(o, a, bad)
	}
	begin(s, a.S0, a.HV*a.DK*a.DV)
	for r := 0; r < len(s.slots); {
		run := 1 // requests of one kind side by side
		lo, hi := int(s.qo[r]), int(s.qo[r+1])
		if hi-lo == 1 {
			for r+run < len(s.slots) && s.qo[r+run+1]-s.qo[r+run] == 1 {
				run++
			}
			hi = lo + run
		}
		advance(o, a, s.slots[r:r+run], lo, hi)
		r += run
	}
	return nil
}

// decaying splits requests by whether their log-decays are some: each part skips the
// requests of the other.
func decaying[T native.Float](s requestSlots, a native.KDA[T]) (good, bad requestSlots) {
	good, bad = s, s
	good.slots, bad.slots = slices.Clone(s.slots), slices.Clone(s.slots)
	width := a.HV * a.DK
	for r := range s.slots {
		if native.CheckKDADecay(a.G[int(s.qo[r])*width:int(s.qo[r+1])*width], a.HV, a.DK) == nil {
			bad.slots[r] = -1
		} else {
			good.slots[r] = -1
		}
	}
	return good, bad
}

// undefined makes results and states of requests NaN, as a device does with a
// log-decay of NaN: it stays theirs until another begins in their slots.
func undefined[T native.Float](o []T, a native.KDA[T], s requestSlots) {
	fill := func(x []T) {
		for i := range x {
			x[i] = T(math.NaN())
		}
	}
	width, size := a.HV*a.DV, a.HV*a.DK*a.DV
	for r, slot := range s.slots {
		if slot >= 0 {
			fill(o[int(s.qo[r])*width : int(s.qo[r+1])*width])
			fill(a.S0[int(slot)*size:][:size])
		}
	}
}

// advance moves on requests with the tokens [lo,hi): one with several, or some
// with one each.
func advance[T native.Float](o []T, a native.KDA[T], slots []int32, lo, hi int) {
	if lo == hi {
		return
	}
	o = o[lo*a.HV*a.DV : hi*a.HV*a.DV]
	q, k := a.Q[lo*a.H*a.DK:hi*a.H*a.DK], a.K[lo*a.H*a.DK:hi*a.H*a.DK]
	v, g, beta := a.V[lo*a.HV*a.DV:hi*a.HV*a.DV], a.G[lo*a.HV*a.DK:hi*a.HV*a.DK], a.Beta[lo*a.HV:hi*a.HV]
	if hi-lo == len(slots) {
		native.KDADecode(o, native.KDAStep[T]{
			Q: q, K: k, V: v, G: g, Beta: beta, State: a.S0, Slots: slots,
			Rows: hi - lo, H: a.H, HV: a.HV, DK: a.DK, DV: a.DV, Scale: a.Scale,
		})
		return
	}
	a.Q, a.K, a.V, a.G, a.Beta, a.Slots, a.Tokens = q, k, v, g, beta, slots, hi-lo
	native.KDAChunked(o, a.S0, nil, a)
}
