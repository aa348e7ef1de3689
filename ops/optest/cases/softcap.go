package cases

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, softcapCases) }

func softcapCases() []Case {
	var cs []Case
	for _, n := range []int{1, 63, 1000, 20000} {
		for _, c := range []float64{0.5, 30} {
			cs = append(cs, Case{Op: "softcap", Name: fmt.Sprint(n, c), In: []Input{Normal("x", n)},
				Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Softcap(in[0], c)) },
				Oracle: func(in []Input) [][]float64 { return [][]float64{optest.Softcap(in[0].F, c)} },
				Grad:   func(in []Input, d [][]float64) [][]float64 { return [][]float64{optest.SoftcapGrad(d[0], in[0].F, c)} },
				C:      2, CGrad: 2, // computed in float64 and rounded once
			})
		}
	}
	return append(cs, Case{Op: "softcap", Name: "no cap", In: []Input{Normal("x", 2)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Softcap(in[0], 0)) },
		Err:   "softcap: the cap must be above 0 and finite, got 0",
	}, Case{Op: "softcap", Name: "not finite", In: []Input{Normal("x", 2)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Softcap(in[0], math.Inf(1))) },
		Err:   "softcap: the cap must be above 0 and finite, got +Inf"})
}
