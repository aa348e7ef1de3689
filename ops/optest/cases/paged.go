package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, appendCases, appendRotaryCases, pagedCases) }

func appendCases() []Case {
	c := Case{Op: "append_pages", Name: "with a row of no request", C: 0,
		In: []Input{Normal("pages", 3, 4, 2, 5), Normal("x", 3, 2, 5), {Name: "slots", Shape: []int{3}, I: []int32{11, -1, 0}}},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.AppendPages(in[0], in[1], in[2]))
		},
		Oracle: func(in []Input) [][]float64 {
			pool := append([]float64(nil), in[0].F...)
			for t, slot := range in[2].I {
				if slot >= 0 {
					copy(pool[int(slot)*10:], in[1].F[t*10:(t+1)*10])
				}
			}
			return [][]float64{pool}
		}}
	c.In[0].State = true
	bad := c
	bad.Name, bad.In = "heads", []Input{c.In[0], Normal("x", 3, 3, 5), c.In[2]}
	bad.Err = "append_pages: pages must be [pages,page_size,H,D] and x [T,H,D], got pages [3,4,2,5], x [3,3,5]"
	return []Case{c, bad}
}

func appendRotaryCases() []Case {
	const h, d, width, positions = 2, 8, 4, 50
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: width, Base: 1e4, Positions: positions})
	if err != nil {
		panic(err) // a mistake in this table
	}
	pool := Normal("pages", 3, 4, h, d)
	pool.State = true
	c := Case{Op: "append_rotary", Name: "with a row of no request",
		In: []Input{pool, Normal("x", 4, h, d), {Name: "pos", Shape: []int{4}, I: []int32{0, 49, 7, 8}}, {Name: "slots", Shape: []int{4}, I: []int32{11, 3, -1, 0}}},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.AppendRotary(in[0], in[1], in[2], in[3], table, ops.Half))
		},
		Oracle: func(in []Input) [][]float64 {
			turned := optest.Rotary(in[1].F, in[2].I, optest.Float64s(table.Cos), optest.Float64s(table.Sin), h, d, width, optest.Half)
			pages := append([]float64(nil), in[0].F...)
			for t, slot := range in[3].I {
				if slot >= 0 {
					copy(pages[int(slot)*h*d:], turned[t*h*d:(t+1)*h*d])
				}
			}
			return [][]float64{pages}
		},
		C: 2,
	}
	bad := c
	bad.Name, bad.In = "slots", []Input{pool, c.In[1], c.In[2], {Name: "slots", Shape: []int{3}, I: make([]int32, 3)}}
	bad.Err = "append_rotary: slots must be int32[4] for x [4,2,8], got int32[3]"
	return []Case{c, bad}
}

func pagedCases() []Case {
	cs := []Case{pagedCase("latents", 16, 0, 4, 1, 576, 512)}
	for _, size := range []int{1, 4, 16, 256} {
		for _, window := range []int{0, 5} {
			name := "heads"
			if size == 4 {
				name = "A10, heads"
			}
			cs = append(cs, pagedCase(name, size, window, 6, 2, 16, 24))
		}
	}
	bad := pagedSinks(pagedCase("sinks of other heads", 4, 0, 6, 2, 16, 24), 2)
	bad.Err = "paged_attention: sinks must be float32[6], one for each head of q, got float32[2]"
	return append(cs, pagedSinks(pagedCase("sinks", 4, 0, 6, 2, 16, 24), 6), pagedSinks(pagedCase("sinks", 16, 5, 6, 2, 16, 24), 6), bad)
}

// pagedSinks is a case with a logit for each head.
func pagedSinks(c Case, heads int) Case {
	c.In = append(c.In, Normal("sinks", heads))
	return c
}

// pagedCase is a prefill, a decode of one token, an empty request, a decode on a
// page boundary, and two rows that belong to nobody.
func pagedCase(name string, size, window, hq, hkv, d, dv int) Case {
	lengths, queries := []int{13, 65, 0, 2 * size}, []int{13, 1, 0, 1}
	qo := []int32{0, 13, 14, 14, 15}
	table := optest.PageTable{PageSize: size, Indptr: []int32{0}}
	next := int32(0)
	for _, n := range lengths {
		for left := n; left > 0; left -= size {
			table.Indices = append(table.Indices, next)
			next += 2 // pages of other requests lie between
		}
		table.Indptr = append(table.Indptr, int32(len(table.Indices)))
		table.LastPageLen = append(table.LastPageLen, int32((n+size-1)%size+1))
	}
	a := optest.Attention{B: 4, Lq: 17, Hq: hq, Hkv: hkv, D: d, Dv: dv, Causal: true, Window: window}
	pool := func(name string, width int) Input {
		x := Normal(name, int(next), size, hkv, width)
		x.State = true
		for i := range x.F { // what no request owns must not matter
			if !owned(table, lengths, i/(hkv*width)) {
				x.F[i] = math.NaN()
			}
		}
		return x
	}
	ints := func(name string, v []int32) Input { return Input{Name: name, Shape: []int{len(v)}, I: v} }
	return Case{Op: "paged_attention", Name: fmt.Sprintf("%s, page size %d window %d queries %v of %v", name, size, window, queries, lengths),
		In: []Input{Normal("q", 17, hq, d), pool("k_pages", d), pool("v_pages", dv), ints("qo_indptr", qo),
			ints("kv_page_indptr", table.Indptr), ints("kv_page_indices", table.Indices), ints("kv_last_page_len", table.LastPageLen)},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.PagedAttention(in[0], in[1], in[2], ops.Pages{QOIndptr: in[3], Indptr: in[4], Indices: in[5], LastPageLen: in[6], Sinks: append(in, nil)[7]},
				ops.PagedAttentionOp{Causal: true, Window: window}))
		},
		Oracle: func(in []Input) [][]float64 {
			if len(in) > 7 {
				a.Sinks = in[7].F
			}
			out, _ := optest.Paged{Attention: a, QO: qo, Table: table}.Forward(in[0].F, in[1].F, in[2].F)
			nobody := make([]float64, 2*hq*dv) // rows of no request are 0
			return [][]float64{append(out, nobody...)}
		},
		C: 8,
	}
}

// owned reports whether a slot of the pool holds a token of a request.
func owned(t optest.PageTable, lengths []int, slot int) bool {
	for r, n := range lengths {
		for i := range n {
			if t.Slot(r, i) == slot {
				return true
			}
		}
	}
	return false
}
