package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, rotaryCases, attentionCases, raggedCases, mergeCases) }

func rotaryCases() []Case {
	var cs []Case
	for _, s := range []struct{ b, t, h, d, width int }{{1, 1, 1, 2, 2}, {2, 5, 3, 8, 4}, {2, 65, 4, 64, 64}} {
		for _, pairing := range []optest.Pairing{optest.Half, optest.Interleaved} {
			for _, positions := range []string{"none", "tokens", "batch"} {
				cs = append(cs, rotaryCase(s.b, s.t, s.h, s.d, s.width, pairing, positions))
			}
		}
	}
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: 4, Base: 1e4, Positions: 3})
	if err != nil {
		panic(err) // a mistake in this table
	}
	return append(cs,
		Case{Op: "rotary", Name: "more tokens than positions", In: []Input{Normal("x", 1, 4, 1, 4)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Rotary(in[0], nil, table, ops.Half)) },
			Err:   "rotary: x [1,4,1,4] has 4 tokens, the table holds 3 positions"},
		Case{Op: "rotary", Name: "head too small", In: []Input{Normal("x", 1, 2, 1, 2)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Rotary(in[0], nil, table, ops.Half)) },
			Err:   "rotary: the table turns 4 elements of a head, x [1,2,1,2] has 2"},
		Case{Op: "rotary", Name: "positions", In: []Input{Normal("x", 1, 2, 1, 4), Ints("pos", 3, 5)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Rotary(in[0], in[1], table, ops.Half)) },
			Err:   "rotary: positions must be int32 [1,2] or [2] for x [1,2,1,4], got int32[5]"})
}

func rotaryCase(b, t, h, d, width int, pairing optest.Pairing, positions string) Case {
	const table = 100
	made, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: width, Base: 1e4, Positions: table})
	if err != nil {
		panic(err) // a mistake in this table
	}
	in := []Input{Normal("x", b, t, h, d)}
	pos := make([]int32, b*t)
	for i := range pos {
		pos[i] = int32(i % t)
	}
	switch positions {
	case "tokens":
		in = append(in, Ints("pos", table, t))
		for i := range pos {
			pos[i] = in[1].I[i%t]
		}
	case "batch":
		in = append(in, Ints("pos", table, b, t))
		copy(pos, in[1].I)
	}
	cos, sin := optest.Float64s(made.Cos), optest.Float64s(made.Sin) // the stored table is the contract; its own test is R02's
	native := map[optest.Pairing]func(x *graph.Node, pos *graph.Node) *graph.Node{
		optest.Half:        func(x, pos *graph.Node) *graph.Node { return ops.Rotary(x, pos, made, ops.Half) },
		optest.Interleaved: func(x, pos *graph.Node) *graph.Node { return ops.Rotary(x, pos, made, ops.Interleaved) },
	}[pairing]
	return Case{Op: "rotary", Name: fmt.Sprintf("B%d T%d H%d D%d width %d pairing %d positions %s", b, t, h, d, width, pairing, positions), In: in,
		Build: func(in []*graph.Node) []*graph.Node {
			if len(in) == 1 {
				return one(native(in[0], nil))
			}
			return one(native(in[0], in[1]))
		},
		Oracle: func(in []Input) [][]float64 {
			return [][]float64{optest.Rotary(in[0].F, pos, cos, sin, h, d, width, pairing)}
		},
		Grad: func(in []Input, g [][]float64) [][]float64 {
			return [][]float64{optest.RotaryGrad(g[0], pos, cos, sin, h, d, width, pairing), nil}[:len(in)]
		},
		C: 2, CGrad: 2,
	}
}

func attentionCases() []Case {
	causal := func(a optest.Attention) optest.Attention { a.Causal = true; return a }
	plain := optest.Attention{B: 2, Lq: 5, Lk: 5, Hq: 2, Hkv: 2, D: 8, Dv: 8}
	gqa := optest.Attention{B: 1, Lq: 65, Lk: 65, Hq: 6, Hkv: 2, D: 16, Dv: 24}
	list := map[string]optest.Attention{
		"smallest":      {B: 1, Lq: 1, Lk: 1, Hq: 1, Hkv: 1, D: 1, Dv: 1},
		"plain":         plain,
		"causal":        causal(plain),
		"groups":        causal(gqa),
		"Lq above Lk":   causal(optest.Attention{B: 1, Lq: 5, Lk: 2, Hq: 1, Hkv: 1, D: 4, Dv: 4}),
		"Lk above Lq":   causal(optest.Attention{B: 1, Lq: 3, Lk: 130, Hq: 4, Hkv: 1, D: 33, Dv: 40}),
		"odd and large": causal(optest.Attention{B: 1, Lq: 129, Lk: 129, Hq: 2, Hkv: 1, D: 96, Dv: 96}),
	}
	w := gqa
	w.Causal, w.Window = true, 7
	list["window"] = w
	w = gqa
	w.Softcap, w.Scale = 2, 0.5
	list["softcap"] = w
	w = causal(gqa)
	w.Sinks = optest.Normals("sinks", 6, 1)
	list["sinks"] = w
	w = causal(plain)
	w.KVLen = []int32{3, 0}
	list["A09, kv_len"] = w
	w.Sinks = []float64{0.5, -1}
	list["kv_len and sinks"] = w
	for _, shape := range [][]int{{2, 5}, {2, 5, 5}, {2, 1, 5}, {2, 2, 5, 5}, {2, 1, 1, 5}, {2, 2, 1, 5}} {
		w = causal(plain)
		w.MaskShape, w.Mask = shape, optest.Bools(fmt.Sprint(shape), size(shape), 0.6)
		list[fmt.Sprint("mask ", shape)] = w
	}
	var cs []Case
	for name, a := range list {
		cs = append(cs, attentionCase(name, a))
	}
	for _, keys := range []int{128, 129, 300} { // one key tile, a second one of one key, three
		cs = append(cs, byBF16x6(causal(optest.Attention{B: 1, Lq: keys, Lk: keys, Hq: 2, Hkv: 1, D: 64, Dv: 40})))
	}
	refused := func(name, err string, opts func(in []*graph.Node) ops.AttentionOptions, in ...Input) {
		cs = append(cs, Case{Op: "attention", Name: name, In: in, Err: err, Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.Attention(in[0], in[1], in[2], opts(in)))
		}})
	}
	none := func([]*graph.Node) ops.AttentionOptions { return ops.AttentionOptions{} }
	refused("heads", "attention: q has 6 heads, not a multiple of k's 4 (q [1,2,6,8], k [1,2,4,8], v [1,2,4,8])", none,
		Normal("q", 1, 2, 6, 8), Normal("k", 1, 2, 4, 8), Normal("v", 1, 2, 4, 8))
	refused("batch", "attention: q, k and v must have one batch size (q [1,2,4,8], k [2,2,4,8], v [2,2,4,8])", none,
		Normal("q", 1, 2, 4, 8), Normal("k", 2, 2, 4, 8), Normal("v", 2, 2, 4, 8))
	refused("head dim", "attention: q and k must have one head dim (q [1,2,4,8], k [1,2,4,6], v [1,2,4,8])", none,
		Normal("q", 1, 2, 4, 8), Normal("k", 1, 2, 4, 6), Normal("v", 1, 2, 4, 8))
	refused("too large", "attention: head dims go up to 256 (q [1,1,1,257], k [1,1,1,257], v [1,1,1,8])", none,
		Normal("q", 1, 1, 1, 257), Normal("k", 1, 1, 1, 257), Normal("v", 1, 1, 1, 8))
	refused("rank", "attention: q, k and v must be [B,L,H,D] (q [2,4,8], k [2,4,8], v [2,4,8])", none,
		Normal("q", 2, 4, 8), Normal("k", 2, 4, 8), Normal("v", 2, 4, 8))
	refused("mask", "attention: mask must be bool [1,2], [1,2 or 1,2] or [1,4 or 1,2 or 1,2], got bool[1,3]",
		func(in []*graph.Node) ops.AttentionOptions { return ops.AttentionOptions{Mask: in[3]} },
		Normal("q", 1, 2, 4, 8), Normal("k", 1, 2, 4, 8), Normal("v", 1, 2, 4, 8), Input{Name: "mask", Shape: []int{1, 3}, Keep: make([]bool, 3)})
	return cs
}

func raggedCases() []Case {
	var cs []Case
	for name, c := range map[string]struct{ q, k []int32 }{
		"equal lengths":     {[]int32{0, 5, 10}, []int32{0, 5, 10}},
		"an empty sequence": {[]int32{0, 0, 1, 1, 66}, []int32{0, 0, 3, 8, 73}},
		"no keys":           {[]int32{0, 3, 20}, []int32{0, 0, 17}},
	} {
		for _, sinks := range []bool{false, true} {
			cs = append(cs, raggedCase(fmt.Sprint("packed, ", name, ", sinks ", sinks), optest.Attention{Hq: 4, Hkv: 2, D: 16, Dv: 8, Causal: true}, c.q, c.k, sinks))
		}
	}
	return cs
}

// attention is the oracle of attention, of dense or of packed sequences.
type attention interface {
	Forward(q, k, v []float64) (out, lse []float64)
	Backward(q, k, v, dout, dlse []float64) (dq, dk, dv, dsinks []float64)
}

// attends is a case of attention: in begins with q, k and v, and has the sinks at
// a place of their own, 0 for none, with which at makes the oracle.
func attends(name string, in []Input, sinks int, at func(sinks []float64) attention, options func(in []*graph.Node) ops.AttentionOptions) Case {
	oracle := func(in []Input) attention {
		if sinks == 0 {
			return at(nil)
		}
		return at(in[sinks].F)
	}
	return Case{Op: "attention", Name: name, In: in,
		Build: func(in []*graph.Node) []*graph.Node {
			out, lse := ops.AttentionLSE(in[0], in[1], in[2], options(in))
			return []*graph.Node{out, lse}
		},
		Oracle: func(in []Input) [][]float64 {
			out, lse := oracle(in).Forward(in[0].F, in[1].F, in[2].F)
			return [][]float64{out, lse}
		},
		Grad: func(in []Input, d [][]float64) [][]float64 {
			dq, dk, dv, ds := oracle(in).Backward(in[0].F, in[1].F, in[2].F, d[0], d[1])
			grads := make([][]float64, len(in))
			copy(grads, [][]float64{dq, dk, dv})
			if sinks > 0 {
				grads[sinks] = ds
			}
			return grads
		},
		C: 8, CGrad: 16,
	}
}

func attentionOptions(a optest.Attention) ops.AttentionOptions {
	return ops.AttentionOptions{Causal: a.Causal, Scale: a.Scale, Window: a.Window, Softcap: a.Softcap}
}

// raggedCase is attention of packed sequences that end at qo and kv.
func raggedCase(name string, a optest.Attention, qo, kv []int32, withSinks bool) Case {
	b, sinks := len(qo)-1, 0
	ints := func(name string, v []int32) Input { return Input{Name: name, Shape: []int{len(v)}, I: v} }
	in := []Input{Normal("q", int(qo[b]), a.Hq, a.D), Normal("k", int(kv[b]), a.Hkv, a.D), Normal("v", int(kv[b]), a.Hkv, a.Dv)}
	if withSinks {
		sinks = len(in)
		in = append(in, Normal("sinks", a.Hq))
	}
	in = append(in, ints("qo_indptr", qo), ints("kv_indptr", kv))
	at := func(sinks []float64) attention {
		o := optest.Ragged{Attention: a, QO: qo, KV: kv}
		o.Sinks = sinks
		return o
	}
	return attends(name, in, sinks, at, func(in []*graph.Node) ops.AttentionOptions {
		o := attentionOptions(a)
		o.QOIndptr, o.KVIndptr = in[len(in)-2], in[len(in)-1]
		if sinks > 0 {
			o.Sinks = in[sinks]
		}
		return o
	})
}

func mergeCases() []Case {
	var cs []Case
	for _, outShape := range [][]int{{1, 1, 1, 1}, {2, 33, 3, 8}, {65, 3, 8}} {
		n := len(outShape)
		lseShape := []int{outShape[n-2], outShape[n-3]}
		if n == 4 {
			lseShape = append([]int{outShape[0]}, lseShape...)
		}
		in := []Input{Normal("out_a", outShape...), Normal("lse_a", lseShape...), Normal("out_b", outShape...), Normal("lse_b", lseShape...)}
		// The oracle's rows are those of out; lse is stored head by head.
		b, l, h, dv := 1, outShape[n-3], outShape[n-2], outShape[n-1]
		if n == 4 {
			b = outShape[0]
		}
		perm := func(x []float64, back bool) []float64 {
			y := make([]float64, len(x))
			for i := range b {
				for j := range l {
					for k := range h {
						row, stored := (i*l+j)*h+k, (i*h+k)*l+j
						if back {
							y[stored] = x[row]
						} else {
							y[row] = x[stored]
						}
					}
				}
			}
			return y
		}
		states := func(in []Input) (outs, lses [][]float64) {
			return [][]float64{in[0].F, in[2].F}, [][]float64{perm(in[1].F, false), perm(in[3].F, false)}
		}
		cs = append(cs, Case{Op: "merge_states", Name: fmt.Sprint(outShape), In: in,
			Build: func(in []*graph.Node) []*graph.Node {
				out, lse := ops.MergeStates(in[0], in[1], in[2], in[3])
				return []*graph.Node{out, lse}
			},
			Oracle: func(in []Input) [][]float64 {
				outs, lses := states(in)
				out, lse := optest.MergeStates(outs, lses, dv)
				return [][]float64{out, perm(lse, true)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				outs, lses := states(in)
				do, dl := optest.MergeStatesGrad(outs, lses, dv, d[0], perm(d[1], false))
				return [][]float64{do[0], perm(dl[0], true), do[1], perm(dl[1], true)}
			},
			C: 4, CGrad: 16,
		})
	}
	return append(cs, Case{Op: "merge_states", Name: "lse", In: []Input{Normal("out_a", 2, 3, 4), Normal("lse_a", 2, 3), Normal("out_b", 2, 3, 4), Normal("lse_b", 2, 3)},
		Build: func(in []*graph.Node) []*graph.Node {
			out, _ := ops.MergeStates(in[0], in[1], in[2], in[3])
			return one(out)
		},
		Err: "merge_states: states must be out [B,L,H,Dv] with lse [B,H,L], or [T,H,Dv] with [H,T], and both alike, got out_a float32[2,3,4], lse_a float32[2,3], out_b float32[2,3,4], lse_b float32[2,3]"})
}

// byBF16x6 is a case of attention whose float32 products go through AMX where it is,
// and anywhere within the bounds of float32.
func byBF16x6(a optest.Attention) Case {
	c := attentionCase(fmt.Sprint("by BF16x6, ", a.Lk), a)
	c.Build = func(in []*graph.Node) []*graph.Node {
		return graph.ApplyAll("attention", ops.AttentionOp{Causal: a.Causal, BF16x6: true}, in...)
	}
	return c
}

func attentionCase(name string, a optest.Attention) Case {
	in := []Input{Normal("q", a.B, a.Lq, a.Hq, a.D), Normal("k", a.B, a.Lk, a.Hkv, a.D), Normal("v", a.B, a.Lk, a.Hkv, a.Dv)}
	sinks := 0
	if a.Mask != nil {
		in = append(in, Input{Name: "mask", Shape: a.MaskShape, Keep: a.Mask})
	}
	if a.KVLen != nil {
		in = append(in, Input{Name: "kv_len", Shape: []int{a.B}, I: a.KVLen})
	}
	if a.Sinks != nil {
		sinks = len(in)
		in = append(in, Input{Name: "sinks", Shape: []int{a.Hq}, F: a.Sinks})
	}
	at := func(sinks []float64) attention {
		o := a
		o.Sinks = sinks
		return o
	}
	return attends(name, in, sinks, at, func(in []*graph.Node) ops.AttentionOptions {
		o, rest := attentionOptions(a), in[3:]
		next := func(on bool) *graph.Node {
			if !on {
				return nil
			}
			n := rest[0]
			rest = rest[1:]
			return n
		}
		o.Mask, o.KVLen, o.Sinks = next(a.Mask != nil), next(a.KVLen != nil), next(a.Sinks != nil)
		return o
	})
}
