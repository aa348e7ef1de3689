package native

import (
	"fmt"
	"testing"

	"github.com/seafan/seafan/ops/optest"
)

// attnCase is one dense attention with its data.
type attnCase struct {
	name string
	optest.Attention
	masked string // shape of a random mask: "", "bk", "bqk", "1qk", "bhqk", "h1k"
}

func (c attnCase) data(t *testing.T) (a optest.Attention, q, k, v, dout, dlse []float64) {
	a = c.Attention
	name := t.Name()
	switch c.masked {
	case "bk":
		a.MaskShape = []int{a.B, a.Lk}
	case "bqk":
		a.MaskShape = []int{a.B, a.Lq, a.Lk}
	case "b1k":
		a.MaskShape = []int{a.B, 1, a.Lk}
	case "1hqk":
		a.MaskShape = []int{1, a.Hq, a.Lq, a.Lk}
	case "bhqk":
		a.MaskShape = []int{a.B, a.Hq, a.Lq, a.Lk}
	case "b1qk":
		a.MaskShape = []int{a.B, 1, a.Lq, a.Lk}
	}
	if c.masked != "" {
		n := 1
		for _, s := range a.MaskShape {
			n *= s
		}
		a.Mask = optest.Bools(name+" mask", n, 0.6)
	}
	q = optest.Normals(name+" q", a.B*a.Lq*a.Hq*a.D, 1)
	k = optest.Normals(name+" k", a.B*a.Lk*a.Hkv*a.D, 1)
	v = optest.Normals(name+" v", a.B*a.Lk*a.Hkv*a.Dv, 1)
	dout = optest.Normals(name+" dout", a.B*a.Lq*a.Hq*a.Dv, 1)
	dlse = optest.Normals(name+" dlse", a.B*a.Hq*a.Lq, 1)
	return a, q, k, v, dout, dlse
}

// maskOf gives the strides of an oracle's mask.
func maskOf(a optest.Attention) AttentionMask {
	if a.Mask == nil {
		return AttentionMask{}
	}
	m := AttentionMask{Keep: a.Mask}
	to := map[int][]*int{2: {&m.B, &m.K}, 3: {&m.B, &m.Q, &m.K}, 4: {&m.B, &m.H, &m.Q, &m.K}}[len(a.MaskShape)]
	stride := 1
	for d := len(a.MaskShape) - 1; d >= 0; d-- {
		if a.MaskShape[d] > 1 {
			*to[d] = stride
		}
		stride *= a.MaskShape[d]
	}
	return m
}

// attnRun holds guarded buffers of one call.
type attnRun[T Float] struct {
	args    AttentionGradArgs[T]
	guarded []interface {
		check(t *testing.T, name string)
	}
}

type guardOf[T Float] struct{ *optest.Guarded[T] }

func (g guardOf[T]) check(t *testing.T, name string) { optest.CheckGuards(t, name, g.Guarded) }

func (r *attnRun[T]) in(x []float64) []T {
	g := optest.GuardCopy(optest.Cast[T](x))
	r.guarded = append(r.guarded, guardOf[T]{g})
	return g.Data
}

func (r *attnRun[T]) fresh(n int) []T {
	g := optest.Guard[T](n)
	r.guarded = append(r.guarded, guardOf[T]{g})
	return g.Data
}

// newAttnRun prepares guarded buffers, the outputs full of NaN.
func newAttnRun[T Float](a optest.Attention, q, k, v, dout, dlse []float64) *attnRun[T] {
	r := &attnRun[T]{}
	r.args.AttentionArgs = AttentionArgs[T]{
		Out: r.fresh(a.B * a.Lq * a.Hq * a.Dv), LSE: r.fresh(a.B * a.Hq * a.Lq),
		Q: r.in(q), K: r.in(k), V: r.in(v),
		B: a.B, Lq: a.Lq, Lk: a.Lk, Hq: a.Hq, Hkv: a.Hkv, D: a.D, Dv: a.Dv,
		Scale: a.Scale, Softcap: a.Softcap, Causal: a.Causal, Window: a.Window,
		KVLen: a.KVLen, Mask: maskOf(a), BF16: attnInBF16, BF16x6: attnInBF16x6,
	}
	r.args.DQ, r.args.DK, r.args.DV = r.fresh(len(q)), r.fresh(len(k)), r.fresh(len(v))
	if a.Sinks != nil {
		r.args.Sinks, r.args.DSinks = r.in(a.Sinks), r.fresh(a.Hq)
	}
	if dout != nil {
		r.args.DOut = r.in(dout)
	}
	if dlse != nil {
		r.args.DLSE = r.in(dlse)
	}
	return r
}

// poisonScratch leaves NaN in the buffers that the next call takes, so that one
// that it reads before writing shows.
func poisonScratch[T Float]() {
	var taken [][]T
	for size := 16; size <= 1<<17; size *= 2 {
		for range 3 {
			taken = append(taken, optest.Poison(takeScratch[T](size)))
		}
	}
	for _, b := range taken {
		giveScratch(b)
	}
}

func (r *attnRun[T]) run(t *testing.T) {
	poisonScratch[T]()
	Attention(r.args.AttentionArgs)
	if r.args.DOut != nil {
		AttentionGrad(r.args)
	}
	for _, g := range r.guarded {
		g.check(t, t.Name())
	}
}

func attnCases() []attnCase {
	at := func(b, lq, lk, hq, hkv, d, dv int) optest.Attention {
		return optest.Attention{B: b, Lq: lq, Lk: lk, Hq: hq, Hkv: hkv, D: d, Dv: dv}
	}
	cases := []attnCase{
		{name: "smallest", Attention: at(1, 1, 1, 1, 1, 1, 1)},
		{name: "plain", Attention: at(2, 5, 7, 2, 2, 4, 3)},
		{name: "scale", Attention: at(1, 5, 7, 2, 1, 4, 3)},
		{name: "D 256", Attention: at(1, 17, 33, 2, 1, 256, 256)},
		{name: "D 33 Dv 40", Attention: at(1, 65, 65, 2, 1, 33, 40)},
	}
	cases[2].Scale = 0.3
	for _, n := range []int{1, 15, 63, 65, 129} {
		for _, m := range []int{1, 15, 63, 65, 129} {
			c := attnCase{name: fmt.Sprintf("causal %d x %d", n, m), Attention: at(2, n, m, 2, 1, 8, 5)}
			c.Causal = true
			cases = append(cases, c)
		}
	}
	for _, g := range []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 128} {
		c := attnCase{name: fmt.Sprintf("group of %d", g), Attention: at(1, 9, 20, 2*g, 2, 4, 4)}
		c.Causal = true
		cases = append(cases, c)
	}
	for _, m := range []string{"bk", "b1k", "bqk", "b1qk", "1hqk", "bhqk"} {
		c := attnCase{name: "mask " + m, masked: m, Attention: at(2, 20, 150, 4, 2, 8, 8)}
		cases = append(cases, c)
		c.name, c.Causal, c.Lq = "causal mask "+m, true, 140
		cases = append(cases, c)
	}
	c := attnCase{name: "kv lengths", Attention: at(4, 3, 200, 4, 2, 8, 8)}
	c.KVLen, c.Causal = []int32{0, 200, 1, 130}, true
	cases = append(cases, c)
	c = attnCase{name: "window", Attention: at(2, 300, 300, 2, 1, 8, 8)}
	c.Causal, c.Window = true, 40
	cases = append(cases, c)
	c.name, c.Causal, c.Lq = "window, not causal", false, 200
	cases = append(cases, c)
	c = attnCase{name: "softcap", Attention: at(2, 30, 140, 4, 2, 8, 8), masked: "bqk"}
	c.Softcap, c.Causal = 1.5, true
	cases = append(cases, c)
	c = attnCase{name: "sinks", Attention: at(2, 140, 140, 4, 2, 8, 8)}
	c.Causal, c.Sinks, c.Window, c.Softcap = true, []float64{-1, 0, 2, 30}, 30, 20
	cases = append(cases, c)
	c = attnCase{name: "few queries, many keys", masked: "bqk", Attention: at(2, 3, 1100, 4, 2, 8, 8)}
	cases = append(cases, c)
	c.name, c.masked, c.KVLen, c.Causal = "few queries, many keys, lengths", "", []int32{2, 1030}, true
	cases = append(cases, c)
	c = attnCase{name: "many heads", Attention: at(1, 530, 600, 8, 8, 4, 4)}
	c.Causal = true
	cases = append(cases, c)
	c = attnCase{name: "1000", Attention: at(1, 1000, 1000, 1, 1, 4, 4)}
	c.Causal = true
	cases = append(cases, c)
	return cases
}

// requireAttention holds forward and gradient against the oracle, in both
// precisions, and returns the largest rms errors in unit roundoffs.
func requireAttention(t *testing.T, c attnCase) (worst32, worst64 float64) {
	t.Helper()
	a, q, k, v, dout, dlse := c.data(t)
	out, lse := a.Forward(q, k, v)
	dq, dk, dv, dsinks := a.Backward(q, k, v, dout, dlse)
	r64 := newAttnRun[float64](a, q, k, v, dout, dlse)
	r64.run(t)
	r32 := newAttnRun[float32](a, q, k, v, dout, dlse)
	r32.run(t)
	for _, x := range []struct {
		name  string
		got64 []float64
		got32 []float32
		want  []float64
	}{
		{"out", r64.args.Out, r32.args.Out, out},
		{"lse", r64.args.LSE, r32.args.LSE, lse},
		{"dq", r64.args.DQ, r32.args.DQ, dq},
		{"dk", r64.args.DK, r32.args.DK, dk},
		{"dv", r64.args.DV, r32.args.DV, dv},
		{"dsinks", r64.args.DSinks, r32.args.DSinks, dsinks},
	} {
		d := optest.RequireClose(t, x.name+" float64", x.got64, x.want, optest.Float64, attnBound)
		worst64 = max(worst64, d.RMS/float64(optest.Float64))
		d = optest.RequireClose(t, x.name+" float32", x.got32, x.want, optest.Float32, attnBound)
		worst32 = max(worst32, d.RMS/float64(optest.Float32))
	}
	return worst32, worst64
}

// attnBound is the accepted rms error in unit roundoffs. Measured over all
// cases: float32 8.8, float64 13.6, both in the gradients of queries that see
// one or two keys, where dout.v and delta cancel.
const attnBound = 50

func TestAttentionAgainstOracle(t *testing.T) {
	defer func() { attnInBF16x6 = false }()
	for _, attnInBF16x6 = range []bool{false, true} {
		if attnInBF16x6 && gemmKernel != amxKernel {
			break
		}
		var worst32, worst64 float64
		for _, c := range attnCases() {
			t.Run(c.name, func(t *testing.T) {
				e32, e64 := requireAttention(t, c)
				worst32, worst64 = max(worst32, e32), max(worst64, e64)
			})
		}
		t.Logf("largest rms error in unit roundoffs: float32 %.2f, float64 %.2f, by BF16x6 %v", worst32, worst64, attnInBF16x6)
	}
}
