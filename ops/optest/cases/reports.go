package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// What users of other implementations reported, by the id of the acceptance
// case, as far as it is one use of an op: so it holds for every executor.
func init() { tables = append(tables, attentionReports, rotaryReports, kdaReports) }

// attentionReport is a use whose q is 0, so that every row is the mean of the
// values that it sees.
func attentionReport(name string, a optest.Attention) Case {
	c := attentionCase(name, a)
	clear(c.In[0].F)
	return c
}

// withValues is a report of given values and results.
func withValues(c Case, v, out []float64) Case {
	c.In[2].F = v
	whole := c.Oracle
	c.Oracle = func(in []Input) [][]float64 { return [][]float64{out, whole(in)[1]} }
	return c
}

func attentionReports() []Case {
	two := optest.Attention{B: 1, Lq: 2, Lk: 2, Hq: 1, Hkv: 1, D: 32, Dv: 32}
	masked := func(name string, a optest.Attention, keep ...bool) Case {
		a.MaskShape, a.Mask = []int{1, len(keep) / 2, 2}, keep
		if len(keep) == 2 {
			a.MaskShape = []int{1, 2}
		}
		return attentionReport(name, a)
	}
	causal := two
	causal.Causal = true
	hidden := masked("A02, NaN behind a mask", two, true, false)
	hidden.Grad = nil
	for _, x := range hidden.In[1:3] {
		for i := 32; i < 64; i++ {
			x.F[i] = math.NaN()
		}
	}
	one := func(lq, lk int) optest.Attention {
		return optest.Attention{B: 1, Lq: lq, Lk: lk, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true}
	}
	cs := []Case{
		masked("A01, a row that sees nothing", two, true, true, false, false),
		masked("A01, no row sees anything", two, false, false),
		masked("A01, nothing is left by causal and padding", causal, false, true),
		hidden,
		withValues(attentionReport("A03, 2 queries of 5 keys", one(2, 5)), []float64{1, 2, 3, 4, 5}, []float64{2.5, 3}),
		withValues(attentionReport("A03, 5 queries of 2 keys", one(5, 2)), []float64{1, 2}, []float64{0, 0, 0, 1, 1.5}),
		withValues(attentionReport("A04, heads of a group", optest.Attention{B: 1, Lq: 1, Lk: 1, Hq: 4, Hkv: 2, D: 1, Dv: 1}), []float64{10, 20}, []float64{10, 10, 20, 20}),
		raggedCase("A08, requests without queries and keys", optest.Attention{Hq: 9, Hkv: 3, D: 16, Dv: 16, Causal: true}, []int32{0, 0, 1, 1, 2}, []int32{0, 0, 3, 3, 8}, false),
	}
	for _, d := range []int{33, 40, 80, 96, 192} {
		cs = append(cs, attentionCase(fmt.Sprint("A07, heads of ", d), optest.Attention{B: 1, Lq: 20, Lk: 33, Hq: 2, Hkv: 1, D: d, Dv: d, Causal: true}))
	}
	return cs
}

func rotaryReports() []Case {
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: 4, Base: 1e4, Positions: 2})
	if err != nil {
		panic(err) // a mistake in this table
	}
	var cs []Case
	for _, pairing := range []optest.Pairing{optest.Half, optest.Interleaved} {
		at := ops.Half
		if pairing == optest.Interleaved {
			at = ops.Interleaved
		}
		cs = append(cs, Case{Op: "rotary", Name: fmt.Sprint("R01, pairing ", pairing),
			In:    []Input{{Name: "x", Shape: []int{1, 1, 1, 4}, F: []float64{1, 2, 3, 4}}, {Name: "pos", Shape: []int{1}, I: []int32{1}}},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Rotary(in[0], in[1], table, at)) },
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.Rotary(in[0].F, []int32{1}, optest.Float64s(table.Cos), optest.Float64s(table.Sin), 1, 4, 4, pairing)}
			}, C: 2})
	}
	return cs
}

func kdaReports() []Case {
	report := func(id string, u kdaUse) Case {
		u.c, u.grad = 8, 16
		c := u.testCase()
		c.Name = id + ", " + c.Name
		return c
	}
	strong := report("K01", kdaUse{b: 1, t: 64, h: 1, hv: 1, dk: 32, dv: 32})
	strong.Grad = nil // that of g is 1e-12 of its terms
	for i := range strong.In[3].F {
		strong.In[3].F[i] = math.Log(1e-12)
	}
	cs := []Case{strong, report("K02", kdaUse{b: 1, t: 70, h: 2, hv: 4, dk: 32, dv: 32})}
	for _, t := range []int{1, 15, 16, 63, 64, 65, 129} {
		cs = append(cs, report("K04", kdaUse{b: 1, t: t, h: 1, hv: 1, dk: 40, dv: 16, s0: true}))
		if t == 15 || t == 65 {
			cs = append(cs, report("K04", kdaUse{b: 1, t: t, h: 1, hv: 1, dk: 96, dv: 16, s0: true}))
		}
	}
	known := report("K10", kdaUse{b: 1, t: 4, h: 1, hv: 1, dk: 2, dv: 1, scale: math.Sqrt(.5)})
	for i, f := range [][]float64{{1, 0, 0, 1, 1, 1, 1, 0}, {1, 0, 0, 1, 1, 0, 0, 1}, {1, 2, 3, 4}, {-.1, -.1, -.1, -.1, -.1, -.1, -.1, -.1}, {.5, .5, .5, .5}} {
		known.In[i].F = f
	}
	return append(cs, known)
}
