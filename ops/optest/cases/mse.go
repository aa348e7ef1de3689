package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, mseCases, mulCases) }

func mseCases() []Case {
	var cs []Case
	for _, shape := range [][]int{{1}, {63}, {3, 65}, {2, 129, 1000}} {
		cs = append(cs, Case{Op: "mse", Name: fmt.Sprint(shape), In: []Input{Normal("x", shape...), Normal("y", shape...)},
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.MSE(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{{optest.MSE(in[0].F, in[1].F)}} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dx, dy := optest.MSEGrad(d[0][0], in[0].F, in[1].F)
				return [][]float64{dx, dy}
			},
			C: 2, CGrad: 2, // measured 0.86 and 0.83: the difference, and what is stored, are rounded
		})
	}
	return append(cs, Case{Op: "mse", Name: "shapes", In: []Input{Normal("x", 2, 3), Normal("y", 6)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.MSE(in[0], in[1])) },
		Err:   "mse: x and y must have one type, got x float32[2,3], y float32[6]"})
}

func mulCases() []Case {
	var cs []Case
	for _, shape := range [][]int{{1}, {63}, {3, 65}, {20, 1000}} {
		cs = append(cs, Case{Op: "mul", Name: fmt.Sprint(shape), In: []Input{Normal("x", shape...), Normal("y", shape...)},
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Mul(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.Mul(in[0].F, in[1].F)} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{optest.Mul(d[0], in[1].F), optest.Mul(d[0], in[0].F)}
			},
			C: 1, CGrad: 1, // one rounding
		})
	}
	for _, shape := range [][]int{{63, 1}, {3, 65}, {2, 33, 1000}} {
		cs = append(cs, Case{Op: "mul", Name: fmt.Sprint("rows ", shape), In: []Input{Normal("x", shape...), Normal("y", append(shape[:len(shape)-1:len(shape)-1], 1)...)},
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Mul(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.MulRows(in[0].F, in[1].F)} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{optest.MulRows(d[0], in[1].F), optest.MulRowsGrad(d[0], in[0].F, len(in[1].F))}
			},
			C: 1, CGrad: 1, // one rounding: the sums are float64's
		})
	}
	return append(cs, Case{Op: "mul", Name: "shapes", In: []Input{Normal("x", 2, 3), Normal("y", 3)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Mul(in[0], in[1])) },
		Err:   "mul: x and y must have one type, got x float32[2,3], y float32[3] (y may be [2,1]: one number a row)"})
}
