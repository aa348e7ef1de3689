package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, affineCases) }

func affineCases() []Case {
	var cs []Case
	for _, n := range []int{1, 63, 1000} {
		for _, k := range [][2]float64{{1, 1}, {math.Sqrt(640), 0}, {-0.3, 2}} {
			cs = append(cs, Case{Op: "affine", Name: fmt.Sprint(n, k), In: []Input{Normal("x", n)},
				Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Affine(in[0], k[0], k[1])) },
				Oracle: func(in []Input) [][]float64 { return [][]float64{optest.Affine(in[0].F, k[0], k[1])} },
				Grad:   func(_ []Input, d [][]float64) [][]float64 { return [][]float64{optest.Affine(d[0], k[0], 0)} },
				C:      2, CGrad: 2, // the constants, the product and the sum are rounded once each
			})
		}
	}
	return append(cs, Case{Op: "affine", Name: "not finite", In: []Input{Normal("x", 2)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Affine(in[0], math.Inf(1), 0)) },
		Err:   "affine: the constants must be finite, got +Inf x + 0"})
}
