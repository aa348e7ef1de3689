package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, splitCases, joinCases, latentCases, absorbedCases) }

func splitCases() []Case {
	var cs []Case
	for _, sizes := range [][]int{{1, 1}, {5, 2, 9}, {64, 33}} {
		const rows = 67
		width := 0
		for _, n := range sizes {
			width += n
		}
		build := func(in []*graph.Node) []*graph.Node { return ops.Split(in[0], sizes...) }
		c := Case{Op: "split", Name: fmt.Sprint(sizes), In: []Input{Normal("x", rows, width)}, Build: build,
			Oracle: func(in []Input) [][]float64 {
				parts := make([][]float64, len(sizes))
				for r := range rows {
					row := in[0].F[r*width:][:width]
					for i, n := range sizes {
						parts[i], row = append(parts[i], row[:n]...), row[n:]
					}
				}
				return parts
			},
			Grad: func(_ []Input, d [][]float64) [][]float64 {
				var dx []float64
				for r := range rows {
					for i, n := range sizes {
						dx = append(dx, d[i][r*n:][:n]...)
					}
				}
				return [][]float64{dx}
			},
		}
		cs = append(cs, c)
		c.Name += " first part alone"
		c.Build = func(in []*graph.Node) []*graph.Node {
			parts := build(in)
			clear(parts[1:])
			return parts
		}
		cs = append(cs, c)
	}
	for _, sizes := range [][]int{{2, 3}, {6}, {6, 0}} {
		cs = append(cs, Case{Op: "split", Name: fmt.Sprint("6 as ", sizes), In: []Input{Normal("x", 2, 6)},
			Build: func(in []*graph.Node) []*graph.Node { return ops.Split(in[0], sizes...) },
			Err:   fmt.Sprintf("split: two or more sizes of 1 or more must add up to the last dimension, got %v for x [2,6]", sizes)})
	}
	return cs
}

// latentCases holds keys and values from their parts to attention over them as
// the oracle of latent attention has it.
func latentCases() []Case {
	var cs []Case
	for _, a := range []optest.MLA{
		{B: 1, Lq: 1, Lk: 1, H: 1, N: 1, P: 1, R: 1, V: 1},
		{B: 2, Lq: 17, Lk: 17, H: 3, N: 8, P: 4, R: 12, V: 10, Causal: true},
		{B: 1, Lq: 70, Lk: 70, H: 2, N: 16, P: 8, R: 24, V: 16, Causal: true},
	} {
		cs = append(cs, Case{Op: "latent_kv", Name: fmt.Sprintf("%+v", a),
			In: []Input{Normal("q", a.B, a.Lq, a.H, a.N+a.P), Normal("c", a.B, a.Lk, a.R), Normal("p", a.B, a.Lk, a.P), Normal("w", a.H*(a.N+a.V), a.R)},
			Build: func(in []*graph.Node) []*graph.Node {
				k, v := ops.LatentKV(ops.Linear(in[1], in[3]), in[2], a.H, a.N, a.V)
				return one(ops.Attention(in[0], k, v, ops.AttentionOptions{Causal: a.Causal}))
			},
			Oracle: func(in []Input) [][]float64 {
				out, _ := a.Forward(in[0].F, in[1].F, in[2].F, in[3].F)
				return [][]float64{out}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dq, dc, dp, dw := a.Backward(in[0].F, in[1].F, in[2].F, in[3].F, d[0], nil)
				return [][]float64{dq, dc, dp, dw}
			},
			C: 12, CGrad: 24, // measured 5.4 and 10.8
		})
	}
	bad := func(name, err string, in ...Input) Case {
		return Case{Op: "latent_kv", Name: name, In: in, Err: "latent_kv: " + err,
			Build: func(in []*graph.Node) []*graph.Node {
				k, _ := ops.LatentKV(in[0], in[1], 2, 3, 4)
				return one(k)
			}}
	}
	return append(cs,
		bad("heads", "kv must be [...,14] for 2 heads of 3 and 4 numbers, and p [...,P], got kv float32[5,13], p float32[5,2]", Normal("kv", 5, 13), Normal("p", 5, 2)),
		bad("tokens", "kv must be [...,14] for 2 heads of 3 and 4 numbers, and p [...,P], got kv float32[5,14], p float32[4,2]", Normal("kv", 5, 14), Normal("p", 4, 2)))
}

func joinCases() []Case {
	var cs []Case
	for _, sizes := range [][]int{{1, 1}, {5, 2, 9}, {64, 33}} {
		const rows = 67
		var in []Input
		for i, n := range sizes {
			in = append(in, Normal(fmt.Sprint("part ", i), rows, n))
		}
		cs = append(cs, Case{Op: "join", Name: fmt.Sprint(sizes), In: in,
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Join(in...)) },
			Oracle: func(in []Input) [][]float64 {
				var y []float64
				for r := range rows {
					for i, n := range sizes {
						y = append(y, in[i].F[r*n:][:n]...)
					}
				}
				return [][]float64{y}
			},
			Grad: func(_ []Input, d [][]float64) [][]float64 {
				parts, row := make([][]float64, len(sizes)), d[0]
				for range rows {
					for i, n := range sizes {
						parts[i], row = append(parts[i], row[:n]...), row[n:]
					}
				}
				return parts
			},
		})
	}
	return append(cs, Case{Op: "join", Name: "rows", In: []Input{Normal("a", 2, 3), Normal("b", 3, 3)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Join(in...)) },
		Err:   "join: parts may differ in the last dimension alone, got float32[2,3] and, as part 1, float32[3,3]"})
}

// absorbedCases attend over the latents, never forming keys or values, and are
// held to the form that does.
func absorbedCases() []Case {
	var cs []Case
	for _, a := range []optest.MLA{
		{B: 1, Lq: 1, Lk: 1, H: 1, N: 1, P: 1, R: 1, V: 1},
		{B: 2, Lq: 17, Lk: 17, H: 3, N: 8, P: 4, R: 12, V: 10, Causal: true},
		{B: 1, Lq: 70, Lk: 70, H: 2, N: 16, P: 8, R: 24, V: 16, Causal: true},
	} {
		for _, op := range []string{"latent_query", "latent_value"} {
			cs = append(cs, Case{Op: op, Name: fmt.Sprintf("%+v", a),
				In: []Input{Normal("q", a.B, a.Lq, a.H, a.N+a.P), Normal("c", a.B, a.Lk, a.R), Normal("p", a.B, a.Lk, a.P), Normal("w", a.H*(a.N+a.V), a.R)},
				Build: func(in []*graph.Node) []*graph.Node {
					k := ops.Reshape(ops.Join(in[1], in[2]), a.B, a.Lk, 1, a.R+a.P)
					v := ops.Reshape(in[1], a.B, a.Lk, 1, a.R)
					o := ops.Attention(ops.LatentQuery(in[0], in[3], a.N, a.V), k, v, ops.AttentionOptions{Causal: a.Causal, Scale: 1 / math.Sqrt(float64(a.N+a.P))})
					return one(ops.LatentValue(o, in[3], a.N, a.V))
				},
				Oracle: func(in []Input) [][]float64 {
					out, _ := a.Forward(in[0].F, in[1].F, in[2].F, in[3].F)
					return [][]float64{out}
				},
				C: 14, // measured 6.6
			})
		}
	}
	return append(cs,
		Case{Op: "latent_query", Name: "heads", In: []Input{Normal("q", 5, 2, 6), Normal("w", 13, 4)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.LatentQuery(in[0], in[1], 3, 4)) },
			Err:   "latent_query: w must be [H(3+4),R] for q [...,H,_], got q [5,2,6], w [13,4]"},
		Case{Op: "latent_query", Name: "narrow", In: []Input{Normal("q", 5, 2, 2), Normal("w", 14, 4)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.LatentQuery(in[0], in[1], 3, 4)) },
			Err:   "latent_query: q must be [...,H,N+P] with N 3, got [5,2,2]"},
		Case{Op: "latent_value", Name: "rank", In: []Input{Normal("o", 5, 2, 6), Normal("w", 14, 4)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.LatentValue(in[0], in[1], 3, 4)) },
			Err:   "latent_value: o must be [...,H,R] for w [H(N+V),R], got o [5,2,6], w [14,4]"})
}
