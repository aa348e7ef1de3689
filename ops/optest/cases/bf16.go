package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, bf16Cases) }

func bf16Cases() []Case {
	round := optest.BF16.Round
	cs := []Case{{Op: "bf16_linear", Name: "shapes", In: []Input{Normal("x", 2, 3), Normal("w", 4, 5)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.BF16Linear(in[0], in[1])) },
		Err:   "w: bf16_linear: x must be [...,K] and w [N,K] with one K, got x [2,3], w [4,5]"}}
	for i, s := range []struct{ b, m, n, k int }{{1, 1, 1, 1}, {2, 3, 33, 65}, {3, 50, 40, 300}} {
		in := []Input{Normal("x", s.b, s.m, s.k), Normal("w", s.n, s.k), Normal("bias", s.n)}[:2+i%2]
		rows := s.b * s.m
		cs = append(cs, Case{Op: "bf16_linear", Name: fmt.Sprint(s), In: in,
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.BF16Linear(in[0], in[1], in[2:]...)) },
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.Linear(round(in[0].F), round(in[1].F), bias0(in), rows, s.n, s.k)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dx, dw, _ := optest.LinearGrad(round(d[0]), round(in[0].F), round(in[1].F), rows, s.n, s.k)
				_, _, db := optest.LinearGrad(d[0], in[0].F, in[1].F, rows, s.n, s.k)
				return [][]float64{dx, dw, db}[:len(in)]
			},
			C: 6, CGrad: 6, // measured at most 1.7 and 1.3
		})
	}
	return cs
}
