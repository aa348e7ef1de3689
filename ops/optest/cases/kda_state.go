package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, slotCases) }

// slotted are requests on pools of six slots: a prompt that begins, one that
// goes on, decode of one token each, a first token, nothing, and two rows of
// nobody.
var slotted = struct{ qo, slots, starts []int32 }{
	qo:     []int32{0, 70, 87, 88, 89, 89, 90},
	slots:  []int32{3, 0, 5, 1, -1, 4},
	starts: []int32{1, 0, 0, 0, 0, 1},
}

const slottedTokens, slottedPool = 92, 6

func slotInputs() []Input {
	of := func(name string, v []int32) Input { return Input{Name: name, Shape: []int{len(v)}, I: v} }
	return []Input{of("qo_indptr", slotted.qo), of("slots", slotted.slots), of("starts", slotted.starts)}
}

// gathered is one state for each request, from pool or zeros.
func gathered(pool []float64, size int) []float64 {
	var s []float64
	for r, slot := range slotted.slots {
		if slot < 0 || slotted.starts[r] != 0 {
			s = append(s, make([]float64, size)...)
		} else {
			s = append(s, pool[int(slot)*size:][:size]...)
		}
	}
	return s
}

// scattered is the pool after the requests moved on to states.
func scattered(pool, states []float64, size int) []float64 {
	next := append([]float64(nil), pool...)
	for r, slot := range slotted.slots {
		if slot >= 0 {
			copy(next[int(slot)*size:][:size], states[r*size:])
		}
	}
	return next
}

// slotCases compare the results; SlotPools has what the pools become.
func slotCases() []Case {
	var cs []Case
	const c, w = 7, 4
	pool := Normal("pool", slottedPool, c, w-1)
	pool.State = true
	conv := Case{Op: "short_conv_slots", Name: "prefill, decode and nobody",
		In: append([]Input{Normal("x", slottedTokens, c), Normal("w", c, w), pool}, slotInputs()...),
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.ShortConvSlots(in[0], in[1], in[2], slotsOf(in[3:])))
		},
		Oracle: func(in []Input) [][]float64 {
			y, _ := optest.ShortConv(in[0].F[:90*c], in[1].F, gathered(in[2].F, c*(w-1)), slotted.qo, c, w)
			return [][]float64{append(y, make([]float64, 2*c)...)}
		},
		C: 2, // measured 1.0
	}
	cs = append(cs, conv, Case{Op: conv.Op, Name: "pool of another width", In: append([]Input{conv.In[0], conv.In[1], Normal("pool", slottedPool, c, w)}, slotInputs()...),
		Build: conv.Build, Err: "short_conv_slots: the pool must be float32 [slots,7,3] for w [7,4], got float32[6,7,4]"})
	bad := conv
	bad.Name, bad.In = "slots", append([]Input{}, conv.In...)
	bad.In[2].State = false
	bad.In[4] = Ints("slots", 2, 5)
	bad.Err = "short_conv_slots: slots must be int32[6] for qo_indptr [7], got int32[5]"
	cs = append(cs, bad)
	for _, s := range []struct{ h, hv, k, v int }{{1, 1, 16, 16}, {2, 4, 16, 24}} {
		u := kdaUse{cu: []int32{0, slottedTokens}, h: s.h, hv: s.hv, dk: s.k, dv: s.v}
		pool := Normal("pool", slottedPool, s.hv, s.k, s.v)
		pool.State = true
		kda := Case{Op: "kda_slots", Name: fmt.Sprintf("prefill, decode and nobody %+v", s),
			In: append(append(u.inputs()[:5], pool), slotInputs()...),
			Build: func(in []*graph.Node) []*graph.Node {
				return one(ops.KDASlots(in[0], in[1], in[2], in[3], in[4], in[5], slotsOf(in[6:]), ops.KDASlotsOp{}))
			},
			Oracle: func(in []Input) [][]float64 {
				o, _ := slottedKDA(u, in).Forward()
				return [][]float64{append(o, make([]float64, 2*s.hv*s.v)...)}
			},
			C: 4, // measured 1.9
		}
		cs = append(cs, kda)
		bad := kda
		bad.Name = fmt.Sprintf("pool of another layout %+v", s)
		bad.In = append([]Input{}, kda.In...)
		bad.In[5] = Normal("pool", slottedPool, s.hv, s.v, s.k+1)
		bad.Err = fmt.Sprintf("kda_slots: s0 must be float32[1,%d,%d,%d], got float32[1,%d,%d,%d] (q [92,%d,%d], k [92,%d,%d], v [92,%d,%d], g [92,%d,%d], beta [92,%d])",
			s.hv, s.k, s.v, s.hv, s.v, s.k+1, s.h, s.k, s.h, s.k, s.hv, s.v, s.hv, s.k, s.hv)
		cs = append(cs, bad)
	}
	return cs
}

// slottedKDA is the call of the oracle for the tokens of requests.
func slottedKDA(u kdaUse, in []Input) optest.KDA {
	c := u.oracle(in)
	n := 90
	c.Q, c.K, c.V = c.Q[:n*u.h*u.dk], c.K[:n*u.h*u.dk], c.V[:n*u.hv*u.dv]
	c.G, c.Beta = c.G[:n*u.hv*u.dk], c.Beta[:n*u.hv]
	c.Cu, c.S0 = slotted.qo, gathered(in[5].F, u.hv*u.dk*u.dv)
	return c
}

func slotsOf(in []*graph.Node) ops.Slots {
	return ops.Slots{QOIndptr: in[0], Slots: in[1], Starts: in[2]}
}

// SlotPools are the pools of the cases of short_conv_slots and kda_slots after
// their call, by the name of the case.
func SlotPools() map[string][]float64 {
	after := map[string][]float64{}
	for _, c := range slotCases() {
		if c.Err != "" {
			continue
		}
		if c.Op == "short_conv_slots" {
			_, next := optest.ShortConv(c.In[0].F[:90*7], c.In[1].F, gathered(c.In[2].F, 21), slotted.qo, 7, 4)
			after[c.Name+c.Op] = scattered(c.In[2].F, next, 21)
			continue
		}
		s := c.In[5].Shape
		u := kdaUse{cu: []int32{0, slottedTokens}, h: c.In[0].Shape[1], hv: s[1], dk: s[2], dv: s[3]}
		_, next := slottedKDA(u, c.In).Forward()
		after[c.Name+c.Op] = scattered(c.In[5].F, next, s[1]*s[2]*s[3])
	}
	return after
}
