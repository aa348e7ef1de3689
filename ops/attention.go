package ops

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "attention",
		Doc:    "softmax attention: causal, grouped, masks, lengths, window, softcap, sinks; lse as a second result",
		Native: floats(attention[float32], attention[float64]),
		FLOPs:  func(op graph.Op, in, _ []graph.Type) int64 { return op.(AttentionOp).flops(in, 1) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := g.Op.(AttentionOp)
			dout, dlse := g.Out(0), g.Out(1)
			in := append(g.In, g.Results[0], g.Results[1])
			for _, d := range []*graph.Node{dout, dlse} {
				if d != nil {
					in = append(in, d)
				}
			}
			rs := graph.ApplyAll("attention_grad", attentionGrad{o, dout != nil, dlse != nil}, in...)
			grads := make([]*graph.Node, len(g.In))
			copy(grads, rs[:3])
			if o.Sinks {
				grads[o.sinks()] = rs[3]
			}
			return grads
		},
	})
	graph.Register(graph.Def{
		Name:   "attention_grad",
		Native: floats(attentionGradBody[float32], attentionGradBody[float64]),
		FLOPs:  func(op graph.Op, in, _ []graph.Type) int64 { return op.(attentionGrad).flops(in, 2.5) },
	})
}

// AttentionOp is softmax attention of queries on keys and values:
//
//	s[b,h,i,j] = cap(Scale q[b,i,h] . k[b,j,h/G])
//	out[b,i,h] = sum_j exp(s[b,h,i,j] - lse[b,h,i]) v[b,j,h/G]
//	lse[b,h,i] = log(sum_j exp s[b,h,i,j] [+ exp sink[h]])   natural logarithm
//
// over the keys that the query sees. q [B,Lq,Hq,D], k [B,Lk,Hkv,D],
// v [B,Lk,Hkv,Dv] with Hq = G Hkv; results out [B,Lq,Hq,Dv] and lse [B,Hq,Lq].
// Then, in this order, as the attributes say: a mask (bool, true = keep,
// [B,Lk], [B,Lq or 1,Lk] or [B,Hq or 1,Lq or 1,Lk]), the length of each
// sequence of keys (int32 [B]), and a logit for each head [Hq] that joins the
// sum of its softmax.
//
// Packed sequences, when Ragged: q [T,Hq,D], k [S,Hkv,D], v [S,Hkv,Dv] and, as
// the last two inputs, qo_indptr and kv_indptr (int32 [B+1], prefix sums of
// tokens); sequence b owns queries qo_indptr[b]:qo_indptr[b+1] and keys
// kv_indptr[b]:kv_indptr[b+1], and sees no other. Results out [T,Hq,Dv] and lse
// [Hq,T]. Every token must belong to a sequence.
//
// Causal is bottom-right: query i sees key j when j <= i + Lk - Lq. A query
// that sees no key gives out 0 and lse -Inf and adds nothing to a gradient. A
// key or value that is masked or beyond its length never enters a sum.
type AttentionOp struct {
	Causal  bool
	Scale   float64 // 0: 1/sqrt(D)
	Window  int     // keep the last Window keys up to the diagonal; 0: all
	Softcap float64 // c > 0: cap(s) = c tanh(s/c)
	BF16    bool    // natively, products of operands rounded to bf16 (see native.AttentionArgs); a device has the type of its plan
	BF16x6  bool    // natively, float32 products through AMX where it is (see native.AttentionArgs)

	Mask, KVLen, Sinks, Ragged bool // which of the further inputs there are
}

// AttentionOptions are the attributes and the optional inputs of Attention.
type AttentionOptions struct {
	Causal  bool
	Scale   float64
	Window  int
	Softcap float64
	BF16    bool
	Mask    *graph.Node
	KVLen   *graph.Node
	Sinks   *graph.Node

	QOIndptr, KVIndptr *graph.Node // packed sequences: both or neither
}

// Attention adds an AttentionOp and returns out.
func Attention(q, k, v *graph.Node, opts AttentionOptions) *graph.Node {
	out, _ := AttentionLSE(q, k, v, opts)
	return out
}

// AttentionLSE is Attention with lse, for results that are merged later.
func AttentionLSE(q, k, v *graph.Node, opts AttentionOptions) (out, lse *graph.Node) {
	o := AttentionOp{Causal: opts.Causal, Scale: opts.Scale, Window: opts.Window, Softcap: opts.Softcap, BF16: opts.BF16,
		Mask: opts.Mask != nil, KVLen: opts.KVLen != nil, Sinks: opts.Sinks != nil, Ragged: opts.QOIndptr != nil || opts.KVIndptr != nil}
	in := []*graph.Node{q, k, v}
	for _, n := range []*graph.Node{opts.Mask, opts.KVLen, opts.Sinks, opts.QOIndptr, opts.KVIndptr} {
		if n != nil {
			in = append(in, n)
		}
	}
	rs := graph.ApplyAll("attention", o, in...)
	return rs[0], rs[1]
}

// Name is "attention".
func (AttentionOp) Name() string { return "attention" }

// Infer checks the shapes of q, k, v and of the inputs that the attributes ask
// for.
func (o AttentionOp) Infer(in []graph.Type) ([]graph.Type, error) {
	want := []string{"q", "k", "v"}
	for _, x := range []struct {
		on   bool
		name string
	}{{o.Mask, "mask"}, {o.KVLen, "kv_len"}, {o.Sinks, "sinks"}, {o.Ragged, "qo_indptr"}, {o.Ragged, "kv_indptr"}} {
		if x.on {
			want = append(want, x.name)
		}
	}
	if err := arity(in, len(want), want...); err != nil {
		return nil, err
	}
	q, k, v := in[0], in[1], in[2]
	if err := activation("q", q); err != nil {
		return nil, err
	}
	if err := alike(q, []string{"k", "v"}, k, v); err != nil {
		return nil, err
	}
	shapes := fmt.Sprintf("q %s, k %s, v %s", q.Dims(), k.Dims(), v.Dims())
	rank, layout := 4, "[B,L,H,D]"
	if o.Ragged {
		rank, layout = 3, "[T,H,D]"
	}
	if q.Rank() != rank || k.Rank() != rank || v.Rank() != rank {
		return nil, fmt.Errorf("q, k and v must be %s (%s)", layout, shapes)
	}
	b, lq, hq, d := q.Shape[0], q.Shape[rank-3], q.Shape[rank-2], q.Shape[rank-1]
	lk, hkv, dv := k.Shape[rank-3], k.Shape[rank-2], v.Shape[rank-1]
	switch {
	case !o.Ragged && (k.Shape[0] != b || v.Shape[0] != b):
		return nil, fmt.Errorf("q, k and v must have one batch size (%s)", shapes)
	case o.Ragged && (o.Mask || o.KVLen):
		return nil, errors.New("packed sequences take neither mask nor kv_len")
	case v.Shape[rank-3] != lk || v.Shape[rank-2] != hkv:
		return nil, fmt.Errorf("k and v must have one length and one number of heads (%s)", shapes)
	case k.Shape[rank-1] != d:
		return nil, fmt.Errorf("q and k must have one head dim (%s)", shapes)
	case hq%hkv != 0:
		return nil, fmt.Errorf("q has %d heads, not a multiple of k's %d (%s)", hq, hkv, shapes)
	case d > maxHeadDim || dv > maxHeadDim:
		return nil, fmt.Errorf("head dims go up to %d (%s)", maxHeadDim, shapes)
	case o.Window < 0:
		return nil, fmt.Errorf("window must be 0 (none) or more, got %d", o.Window)
	case !finite(o.Scale):
		return nil, fmt.Errorf("scale must be finite (0: 1/sqrt(D)), got %g", o.Scale)
	case !(o.Softcap >= 0) || !finite(o.Softcap):
		return nil, fmt.Errorf("softcap must be 0 (none) or more, got %g", o.Softcap)
	}
	rest := in[3:]
	if o.Mask {
		if _, err := maskOf(rest[0], b, hq, lq, lk); err != nil {
			return nil, err
		}
		rest = rest[1:]
	}
	if o.KVLen {
		if !rest[0].Equal(graph.T(dtype.Int32, b)) {
			return nil, fmt.Errorf("kv_len must be int32[%d], got %s", b, rest[0])
		}
		rest = rest[1:]
	}
	if o.Sinks {
		if !rest[0].Equal(graph.T(q.DType, hq)) {
			return nil, fmt.Errorf("sinks must be %s[%d], one for each head of q, got %s", q.DType, hq, rest[0])
		}
		rest = rest[1:]
	}
	if o.Ragged {
		if rest[0].DType != dtype.Int32 || rest[0].Rank() != 1 || rest[0].Shape[0] < 2 || !rest[0].Equal(rest[1]) {
			return nil, fmt.Errorf("qo_indptr and kv_indptr must be int32[B+1] with B of 1 or more, got %s and %s", rest[0], rest[1])
		}
		return []graph.Type{graph.T(q.DType, lq, hq, dv), graph.T(q.DType, hq, lq)}, nil
	}
	return []graph.Type{graph.T(q.DType, b, lq, hq, dv), graph.T(q.DType, b, hq, lq)}, nil
}

const maxHeadDim = 256

// maskOf tells how a mask of one of the three shapes is read.
func maskOf(m graph.Type, b, h, lq, lk int) (native.AttentionMask, error) {
	refuse := func() (native.AttentionMask, error) {
		return native.AttentionMask{}, fmt.Errorf("mask must be bool [%d,%d], [%d,%d or 1,%d] or [%d,%d or 1,%d or 1,%d], got %s",
			b, lk, b, lq, lk, b, h, lq, lk, m)
	}
	if m.DType != dtype.Bool || m.Rank() < 2 || m.Rank() > 4 {
		return refuse()
	}
	mh, mq := 1, 1
	if m.Rank() >= 3 {
		mq = m.Shape[m.Rank()-2]
	}
	if m.Rank() == 4 {
		mh = m.Shape[1]
	}
	if m.Shape[0] != b || last(m) != lk || mq != 1 && mq != lq || mh != 1 && mh != h {
		return refuse()
	}
	s := native.AttentionMask{K: 1, B: mh * mq * lk}
	if mq > 1 {
		s.Q = lk
	}
	if mh > 1 {
		s.H = mq * lk
	}
	return s, nil
}

func (o AttentionOp) flops(in []graph.Type, times float64) int64 {
	// Of packed sequences the lengths are known at the run only: this counts
	// them as equally long.
	q, v := in[0], in[2]
	r := q.Rank()
	sequences := float64(q.Shape[0])
	lq, lk := float64(q.Shape[r-3]), float64(v.Shape[r-3])
	if o.Ragged {
		sequences = float64(in[o.inputs()-1].Shape[0] - 1)
		lq, lk = lq/sequences, lk/sequences
	}
	pairs := lq * lk
	if o.Causal && lq == lk {
		pairs /= 2
	}
	return int64(times * 2 * pairs * sequences * float64(q.Shape[r-2]) * float64(last(q)+last(v)))
}

// attentionArgs fills what forward and backward share and checks the lengths.
func attentionArgs[T native.Float](o AttentionOp, in []graph.Tensor) (native.AttentionArgs[T], error) {
	q, k, v := in[0], in[1], in[2]
	r := q.Rank()
	a := native.AttentionArgs[T]{
		Q: graph.Data[T](q), K: graph.Data[T](k), V: graph.Data[T](v),
		B: q.Shape[0], Lq: q.Shape[r-3], Lk: k.Shape[r-3], Hq: q.Shape[r-2], Hkv: k.Shape[r-2], D: q.Shape[r-1], Dv: v.Shape[r-1],
		Scale: o.Scale, Softcap: o.Softcap, Causal: o.Causal, Window: o.Window, BF16: o.BF16, BF16x6: o.BF16x6,
	}
	rest := in[3:]
	if o.Mask {
		m, err := maskOf(rest[0].Type, a.B, a.Hq, a.Lq, a.Lk)
		if err != nil {
			return a, err
		}
		m.Keep = graph.Data[bool](rest[0])
		a.Mask = m
		rest = rest[1:]
	}
	if o.KVLen {
		a.KVLen = graph.Data[int32](rest[0])
		if err := native.CheckLengths(a.KVLen, a.B, a.Lk); err != nil {
			return a, err
		}
		rest = rest[1:]
	}
	if o.Sinks {
		a.Sinks = graph.Data[T](rest[0])
		rest = rest[1:]
	}
	if o.Ragged {
		a.QIndptr, a.KVIndptr = graph.Data[int32](rest[0]), graph.Data[int32](rest[1])
		a.B = len(a.QIndptr) - 1
		if err := native.CheckRagged(a.QIndptr, a.KVIndptr, a.Lq, a.Lk); err != nil {
			return a, err
		}
		if q, kv := int(a.QIndptr[a.B]), int(a.KVIndptr[a.B]); q != a.Lq || kv != a.Lk {
			return a, fmt.Errorf("qo_indptr and kv_indptr must end at %d and %d, the numbers of packed tokens, got %d and %d", a.Lq, a.Lk, q, kv)
		}
	}
	return a, nil
}

func attention[T native.Float](c *graph.Call) error {
	a, err := attentionArgs[T](c.Op.(AttentionOp), c.In)
	if err != nil {
		return err
	}
	a.Out, a.LSE = graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1])
	native.Attention(a)
	return nil
}

// attentionGrad gives dq, dk, dv and, with sinks, their gradient, from the
// inputs of the forward op, then out, lse, and those of dout and dlse that the
// loss depends on.
type attentionGrad struct {
	AttentionOp
	DOut, DLSE bool
}

func (attentionGrad) Name() string { return "attention_grad" }
func (o attentionGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	outs := append([]graph.Type(nil), in[:3]...)
	if o.Sinks {
		outs = append(outs, in[o.sinks()])
	}
	return outs, nil
}

// sinks is the place of the sinks among the inputs.
func (o AttentionOp) sinks() int {
	if o.Ragged {
		return o.inputs() - 3
	}
	return o.inputs() - 1
}

// inputs is the number of inputs of the forward op.
func (o AttentionOp) inputs() int {
	n := 3
	for _, on := range []bool{o.Mask, o.KVLen, o.Sinks, o.Ragged, o.Ragged} {
		if on {
			n++
		}
	}
	return n
}

func attentionGradBody[T native.Float](c *graph.Call) error {
	o := c.Op.(attentionGrad)
	a, err := attentionArgs[T](o.AttentionOp, c.In)
	if err != nil {
		return err
	}
	saved := c.In[o.inputs():]
	a.Out, a.LSE = graph.Data[T](saved[0]), graph.Data[T](saved[1])
	dout, dlse := lossParts[T](o.DOut, saved[2:], len(a.Out))
	native.AttentionGrad(native.AttentionGradArgs[T]{
		AttentionArgs: a, DOut: dout, DLSE: dlse,
		DQ: graph.Data[T](c.Out[0]), DK: graph.Data[T](c.Out[1]), DV: graph.Data[T](c.Out[2]), DSinks: data[T](c.Out, 3),
	})
	return nil
}
