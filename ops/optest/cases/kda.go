package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, kdaCases, kdaErrorCases) }

// kdaUse is one use of the core of KDA: B sequences of T tokens, or packed ones
// that end at cu.
type kdaUse struct {
	b, t, h, hv, dk, dv int
	cu                  []int32
	s0, recurrent       bool
	chunk               int
	scale               float64
	beta                float64 // largest write strength; 0: 1
	c, grad             float64
}

func (u kdaUse) lead() []int {
	if u.cu != nil {
		return []int{int(u.cu[len(u.cu)-1])}
	}
	return []int{u.b, u.t}
}

// ends are the borders of the sequences.
func (u kdaUse) ends() []int32 {
	if u.cu != nil {
		return u.cu
	}
	cu := make([]int32, u.b+1)
	for i := range cu {
		cu[i] = int32(i * u.t)
	}
	return cu
}

func (u kdaUse) name() string {
	s := fmt.Sprintf("B %d T %d H %d HV %d K %d V %d", u.b, u.t, u.h, u.hv, u.dk, u.dv)
	if u.cu != nil {
		s = fmt.Sprintf("packed %v H %d HV %d K %d V %d", u.cu, u.h, u.hv, u.dk, u.dv)
	}
	if u.s0 {
		s += " s0"
	}
	if u.recurrent {
		s += " recurrent"
	}
	if u.chunk > 0 {
		s += fmt.Sprint(" chunk ", u.chunk)
	}
	if u.beta > 1 {
		s += fmt.Sprint(" beta up to ", u.beta)
	}
	return s
}

// inputs are unit q and k, decays of every strength, and write strengths below
// beta.
func (u kdaUse) inputs() []Input {
	of := func(name string, dims ...int) Input { return Normal(name, append(u.lead(), dims...)...) }
	q, k := of("q", u.h, u.dk), of("k", u.h, u.dk)
	q.F, k.F = optest.L2Norm(q.F, u.dk, 1e-6), optest.L2Norm(k.F, u.dk, 1e-6)
	g, beta := of("g", u.hv, u.dk), of("beta", u.hv)
	for i, x := range g.F {
		g.F[i] = -math.Exp(2*x - 3) // from hardly any decay to almost all in a token
	}
	for i, x := range beta.F {
		beta.F[i] = max(u.beta, 1) * optest.Sigmoid(x)
	}
	in := []Input{q, k, of("v", u.hv, u.dv), g, beta}
	if u.s0 {
		in = append(in, Normal("s0", len(u.ends())-1, u.hv, u.dk, u.dv))
	}
	if u.cu != nil {
		in = append(in, Input{Name: "cu_seqlens", Shape: []int{len(u.cu)}, I: u.cu})
	}
	return in
}

func (u kdaUse) build(in []*graph.Node) []*graph.Node {
	o := ops.KDAOptions{Scale: u.scale, Chunk: u.chunk, Recurrent: u.recurrent}
	rest := in[5:]
	if u.s0 {
		o.S0, rest = rest[0], rest[1:]
	}
	if u.cu != nil {
		o.Cu = rest[0]
	}
	out, state := ops.KDA(in[0], in[1], in[2], in[3], in[4], o)
	return []*graph.Node{out, state}
}

func (u kdaUse) oracle(in []Input) optest.KDA {
	c := optest.KDA{Q: in[0].F, K: in[1].F, V: in[2].F, G: in[3].F, Beta: in[4].F, Cu: u.ends(), H: u.h, HV: u.hv, DK: u.dk, DV: u.dv, Scale: u.scale}
	if u.scale == 0 {
		c.Scale = 1 / math.Sqrt(float64(u.dk))
	}
	if u.s0 {
		c.S0 = in[5].F
	}
	return c
}

func (u kdaUse) testCase() Case {
	return Case{Op: "kda", Name: u.name(), In: u.inputs(), Build: u.build,
		Oracle: func(in []Input) [][]float64 {
			o, st := u.oracle(in).Forward()
			return [][]float64{o, st}
		},
		Grad: func(in []Input, d [][]float64) [][]float64 {
			g := u.oracle(in).Grad(d[0], d[1])
			all := [][]float64{g.Q, g.K, g.V, g.G, g.Beta}
			if u.s0 {
				all = append(all, g.S0)
			}
			return append(all, nil)[:len(in)]
		},
		C: u.c, CGrad: u.grad,
	}
}

func kdaCases() []Case {
	var cs []Case
	for _, u := range []kdaUse{
		{b: 1, t: 1, h: 1, hv: 1, dk: 1, dv: 1},
		{b: 2, t: 15, h: 1, hv: 2, dk: 16, dv: 24, s0: true},
		{b: 1, t: 16, h: 2, hv: 2, dk: 16, dv: 16},
		{b: 2, t: 17, h: 1, hv: 4, dk: 16, dv: 9, s0: true, beta: 2},
		{b: 1, t: 65, h: 1, hv: 2, dk: 40, dv: 16, s0: true, scale: 0.5},
		{b: 1, t: 130, h: 1, hv: 1, dk: 16, dv: 20, chunk: 32},
		{b: 1, t: 33, h: 1, hv: 1, dk: 96, dv: 8},
		{cu: []int32{0, 5, 5, 70, 86}, h: 2, hv: 4, dk: 16, dv: 24, s0: true},
		{cu: []int32{0, 0, 3}, h: 1, hv: 1, dk: 16, dv: 8},
	} {
		for _, u.recurrent = range []bool{false, true} {
			u.c, u.grad = 8, 16 // measured 3.5 and 7.1
			cs = append(cs, u.testCase())
		}
	}
	// A loss of one of the two results only.
	for i, name := range []string{"of o alone", "of the state alone"} {
		c := kdaUse{b: 2, t: 17, h: 1, hv: 2, dk: 16, dv: 24, s0: true, c: 8, grad: 16}.testCase()
		build := c.Build
		c.Name += " " + name
		c.Build = func(in []*graph.Node) []*graph.Node {
			rs := build(in)
			rs[1-i] = nil
			return rs
		}
		cs = append(cs, c)
	}
	return cs
}

func kdaErrorCases() []Case {
	bad := func(name, err string, change func(in []Input, u *kdaUse)) Case {
		u := kdaUse{b: 2, t: 3, h: 2, hv: 4, dk: 4, dv: 5, s0: true}
		in := u.inputs()
		change(in, &u)
		return Case{Op: "kda", Name: name, In: in, Build: func(in []*graph.Node) []*graph.Node { return u.build(in) }, Err: "kda: " + err}
	}
	const shapes = " (q [2,3,2,4], k [2,3,2,4], v [2,3,4,5], g [2,3,4,4], beta [2,3,4])"
	return []Case{
		bad("K of q", "q and k must be [...,H,K], v [...,HV,V], g [...,HV,K] and beta [...,HV] of the same tokens (q [2,3,2,6], k [2,3,2,4], v [2,3,4,5], g [2,3,4,4], beta [2,3,4])",
			func(in []Input, _ *kdaUse) { in[0] = Normal("q", 2, 3, 2, 6) }),
		bad("tokens of beta", "q and k must be [...,H,K], v [...,HV,V], g [...,HV,K] and beta [...,HV] of the same tokens (q [2,3,2,4], k [2,3,2,4], v [2,3,4,5], g [2,3,4,4], beta [2,2,4])",
			func(in []Input, _ *kdaUse) { in[4] = Normal("beta", 2, 2, 4) }),
		bad("heads of v", "v has 3 heads, not a multiple of q's 2 (q [2,3,2,4], k [2,3,2,4], v [2,3,3,5], g [2,3,3,4], beta [2,3,3])",
			func(in []Input, _ *kdaUse) {
				in[2], in[3], in[4] = Normal("v", 2, 3, 3, 5), Normal("g", 2, 3, 3, 4), Normal("beta", 2, 3, 3)
			}),
		bad("state of another layout", "s0 must be float32[2,4,4,5], got float32[2,4,5,4]"+shapes,
			func(in []Input, _ *kdaUse) { in[5] = Normal("s0", 2, 4, 5, 4) }),
		bad("one state for two sequences", "s0 must be float32[2,4,4,5], got float32[1,4,4,5]"+shapes,
			func(in []Input, _ *kdaUse) { in[5] = Normal("s0", 1, 4, 4, 5) }),
		bad("chunk", "chunk must be a multiple of 16 up to 1024 (0: 64), got 24"+"",
			func(_ []Input, u *kdaUse) { u.chunk = 24 }),
		bad("scale", "scale must be 0 (K^-1/2) or above, got -1", func(_ []Input, u *kdaUse) { u.scale = -1 }),
		bad("one sequence too few dimensions", "the first input must have 4 dimensions, batch and tokens first, got [6,2,4] (q [6,2,4], k [6,2,4], v [6,4,5], g [6,4,4], beta [6,4])",
			func(in []Input, _ *kdaUse) {
				in[0], in[1], in[2], in[3], in[4] = Normal("q", 6, 2, 4), Normal("k", 6, 2, 4), Normal("v", 6, 4, 5), Normal("g", 6, 4, 4), Normal("beta", 6, 4)
			}),
		{Op: "kda", Name: "head dim 257", In: kdaUse{b: 1, t: 1, h: 1, hv: 1, dk: 4, dv: 257}.inputs(), Build: kdaUse{}.build,
			Err: "kda: head dims go up to 256 (q [1,1,1,4], k [1,1,1,4], v [1,1,1,257], g [1,1,1,4], beta [1,1,1])"},
		{Op: "kda", Name: "cu_seqlens of floats", In: append(kdaUse{cu: []int32{0, 2}, h: 1, hv: 1, dk: 4, dv: 4}.inputs()[:5], Normal("cu_seqlens", 2)), Build: kdaUse{cu: []int32{0}}.build,
			Err: "kda: packed tokens must have 3 dimensions, tokens first, and cu_seqlens be int32[N+1] with N of 1 or more, got [2,1,4] and float32[2] (q [2,1,4], k [2,1,4], v [2,1,4], g [2,1,4], beta [2,1])"},
	}
}
