package ops

import (
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
				grads[len(grads)-1] = rs[3]
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
// Causal is bottom-right: query i sees key j when j <= i + Lk - Lq. A query
// that sees no key gives out 0 and lse -Inf and adds nothing to a gradient. A
// key or value that is masked or beyond its length never enters a sum.
type AttentionOp struct {
	Causal  bool
	Scale   float64 // 0: 1/sqrt(D)
	Window  int     // keep the last Window keys up to the diagonal; 0: all
	Softcap float64 // c > 0: cap(s) = c tanh(s/c)

	Mask, KVLen, Sinks bool // which of the further inputs there are
}

// AttentionOptions are the attributes and the optional inputs of Attention.
type AttentionOptions struct {
	Causal  bool
	Scale   float64
	Window  int
	Softcap float64
	Mask    *graph.Node
	KVLen   *graph.Node
	Sinks   *graph.Node
}

// Attention adds an AttentionOp and returns out.
func Attention(q, k, v *graph.Node, opts AttentionOptions) *graph.Node {
	out, _ := AttentionLSE(q, k, v, opts)
	return out
}

// AttentionLSE is Attention with lse, for results that are merged later.
func AttentionLSE(q, k, v *graph.Node, opts AttentionOptions) (out, lse *graph.Node) {
	o := AttentionOp{Causal: opts.Causal, Scale: opts.Scale, Window: opts.Window, Softcap: opts.Softcap,
		Mask: opts.Mask != nil, KVLen: opts.KVLen != nil, Sinks: opts.Sinks != nil}
	in := []*graph.Node{q, k, v}
	for _, n := range []*graph.Node{opts.Mask, opts.KVLen, opts.Sinks} {
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
	}{{o.Mask, "mask"}, {o.KVLen, "kv_len"}, {o.Sinks, "sinks"}} {
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
	if q.Rank() != 4 || k.Rank() != 4 || v.Rank() != 4 {
		return nil, fmt.Errorf("q, k and v must be [B,L,H,D] (%s)", shapes)
	}
	b, lq, hq, d := q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	lk, hkv, dv := k.Shape[1], k.Shape[2], v.Shape[3]
	switch {
	case k.Shape[0] != b || v.Shape[0] != b:
		return nil, fmt.Errorf("q, k and v must have one batch size (%s)", shapes)
	case v.Shape[1] != lk || v.Shape[2] != hkv:
		return nil, fmt.Errorf("k and v must have one length and one number of heads (%s)", shapes)
	case k.Shape[3] != d:
		return nil, fmt.Errorf("q and k must have one head dim (%s)", shapes)
	case hq%hkv != 0:
		return nil, fmt.Errorf("q has %d heads, not a multiple of k's %d (%s)", hq, hkv, shapes)
	case d > maxHeadDim || dv > maxHeadDim:
		return nil, fmt.Errorf("head dims go up to %d (%s)", maxHeadDim, shapes)
	case o.Window < 0:
		return nil, fmt.Errorf("window must be 0 (none) or more, got %d", o.Window)
	case !(o.Softcap >= 0):
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
	if o.Sinks && !rest[0].Equal(graph.T(q.DType, hq)) {
		return nil, fmt.Errorf("sinks must be %s[%d], one for each head of q, got %s", q.DType, hq, rest[0])
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
	q, v := in[0], in[2]
	pairs := float64(q.Shape[1]) * float64(v.Shape[1])
	if o.Causal && q.Shape[1] == v.Shape[1] {
		pairs /= 2
	}
	return int64(times * 2 * pairs * float64(q.Shape[0]*q.Shape[2]) * float64(q.Shape[3]+v.Shape[3]))
}

// attentionArgs fills what forward and backward share and checks the lengths.
func attentionArgs[T native.Float](o AttentionOp, in []graph.Tensor) (native.AttentionArgs[T], error) {
	q, k, v := in[0], in[1], in[2]
	a := native.AttentionArgs[T]{
		Q: graph.Data[T](q), K: graph.Data[T](k), V: graph.Data[T](v),
		B: q.Shape[0], Lq: q.Shape[1], Lk: k.Shape[1], Hq: q.Shape[2], Hkv: k.Shape[2], D: q.Shape[3], Dv: v.Shape[3],
		Scale: o.Scale, Softcap: o.Softcap, Causal: o.Causal, Window: o.Window,
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
		for i, n := range a.KVLen {
			if n < 0 || int(n) > a.Lk {
				return a, fmt.Errorf("kv_len[%d] is %d, must be 0 to %d", i, n, a.Lk)
			}
		}
		rest = rest[1:]
	}
	if o.Sinks {
		a.Sinks = graph.Data[T](rest[0])
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
		outs = append(outs, in[o.inputs()-1])
	}
	return outs, nil
}

// inputs is the number of inputs of the forward op.
func (o AttentionOp) inputs() int {
	n := 3
	for _, on := range []bool{o.Mask, o.KVLen, o.Sinks} {
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
	var dout, dlse []T
	if rest := saved[2:]; o.DOut {
		dout, dlse = graph.Data[T](rest[0]), data[T](rest, 1)
	} else {
		dout, dlse = make([]T, len(a.Out)), graph.Data[T](rest[0])
	}
	native.AttentionGrad(native.AttentionGradArgs[T]{
		AttentionArgs: a, DOut: dout, DLSE: dlse,
		DQ: graph.Data[T](c.Out[0]), DK: graph.Data[T](c.Out[1]), DV: graph.Data[T](c.Out[2]), DSinks: data[T](c.Out, 3),
	})
	return nil
}
