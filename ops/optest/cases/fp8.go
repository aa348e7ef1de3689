package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

func init() {
	tables = append(tables, fp8StepCases, fp8QuantizeCases, fp8MatMulCases, fp8LinearCases, fp8WeightCases, fp8Errors)
}

var fp8Formats = []struct {
	native.FP8
	oracle *optest.Format
}{{native.E4M3, optest.E4M3}, {native.E5M2, optest.E5M2}}

var fp8BlockKinds = []ops.FP8Block{{}, {Rows: 1}, {Rows: 1, Cols: 128}, {Rows: 128, Cols: 128}}

// fp8Blocks is the oracle's form of a block kind.
func fp8Blocks(k ops.FP8Block, rows, cols int) optest.Blocks {
	b := optest.PerTensor(rows, cols)
	if k.Rows > 0 {
		b.BlockRows = k.Rows
	}
	if k.Cols > 0 {
		b.BlockCols = k.Cols
	}
	return b
}

// fp8Quantized quantises with the steps of the dynamic recipe.
func fp8Quantized(x []float64, b optest.Blocks, f *optest.Format, margin int) optest.Quantized {
	steps, _ := b.Amax(x)
	for i := range steps {
		steps[i] = optest.QuantStep(steps[i], 1, f, margin)
	}
	return optest.Quantized{Blocks: b, Format: f, Codes: b.Quantize(x, steps, f), Steps: steps}
}

func fp8StepCases() []Case {
	var cs []Case
	for _, f := range fp8Formats {
		for i, k := range fp8BlockKinds {
			cs = append(cs, Case{Op: "fp8_steps", Name: fmt.Sprint(f.FP8, " ", k), In: []Input{Normal("x", 130, 257)},
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.FP8Steps(in[0], f.FP8, k, i)) },
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{fp8Quantized(in[0].F, fp8Blocks(k, 130, 257), f.oracle, i).Steps}
				},
				C: 1e-9, // exact
			})
		}
	}
	return cs
}

// fp8QuantizeCases encode and decode again, in both layouts: the result is
// exact. x has three dimensions.
func fp8QuantizeCases() []Case {
	var cs []Case
	const rows, cols = 66, 257
	for _, f := range fp8Formats {
		for _, k := range fp8BlockKinds {
			in := []Input{Normal("x", 2, rows/2, cols)}
			oracle := func(in []Input) [][]float64 {
				return [][]float64{fp8Quantized(in[0].F, fp8Blocks(k, rows, cols), f.oracle, 0).Values()}
			}
			for _, op := range []string{"quantize", "dequantize"} {
				cs = append(cs, Case{Op: op, Name: fmt.Sprint(f.FP8, " ", k), In: in,
					Build: func(in []*graph.Node) []*graph.Node {
						steps := ops.FP8Steps(in[0], f.FP8, k, 0)
						return one(ops.Dequantize(ops.Quantize(in[0], steps, f.FP8, k, false), steps, k))
					},
					Oracle: oracle, C: 1, // the product of step and value is rounded; measured 0.42
				})
			}
		}
		cs = append(cs, Case{Op: "quantize", Name: fmt.Sprint(f.FP8, " transposed"), In: []Input{Normal("x", 2, rows/2, cols)},
			Build: func(in []*graph.Node) []*graph.Node {
				steps := ops.FP8Steps(in[0], f.FP8, ops.FP8Block{}, 0)
				return one(ops.Dequantize(ops.Quantize(in[0], steps, f.FP8, ops.FP8Block{}, true), steps, ops.FP8Block{}))
			},
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.Transpose(fp8Quantized(in[0].F, optest.PerTensor(rows, cols), f.oracle, 0).Values(), rows, cols)}
			},
			C: 1,
		})
	}
	return cs
}

func fp8MatMulCases() []Case {
	var cs []Case
	for i, s := range []struct{ m, n, k int }{{1, 1, 1}, {7, 33, 65}, {65, 40, 300}, {130, 129, 257}} {
		for layout := range 4 {
			transA, transB := layout&1 != 0, layout&2 != 0
			ka, kb := fp8BlockKinds[(i+layout)%4], fp8BlockKinds[(i*3+layout)%4]
			fa, fb := fp8Formats[layout%2], fp8Formats[i%2]
			a, b := []int{s.m, s.k}, []int{s.k, s.n}
			if transA {
				a = []int{s.k, s.m}
			}
			if transB {
				b = []int{s.n, s.k}
			}
			in := []Input{Normal("a", a...), Normal("b", b...)}
			if layout > 0 {
				in = append(in, Normal("bias", s.n))
			}
			cs = append(cs, Case{Op: "fp8_matmul", Name: fmt.Sprint(s, layout), In: in,
				Build: func(in []*graph.Node) []*graph.Node {
					sa, sb := ops.FP8Steps(in[0], fa.FP8, ka, 0), ops.FP8Steps(in[1], fb.FP8, kb, 0)
					a8, b8 := ops.Quantize(in[0], sa, fa.FP8, ka, false), ops.Quantize(in[1], sb, fb.FP8, kb, false)
					return one(ops.FP8MatMul(a8, b8, sa, sb, ops.FP8MatMulOp{TransA: transA, TransB: transB, BlockA: ka, BlockB: kb}, in[2:]...))
				},
				Oracle: func(in []Input) [][]float64 {
					var bias []float64
					if len(in) == 3 {
						bias = in[2].F
					}
					qa, qb := fp8Quantized(in[0].F, fp8Blocks(ka, a[0], a[1]), fa.oracle, 0), fp8Quantized(in[1].F, fp8Blocks(kb, b[0], b[1]), fb.oracle, 0)
					return [][]float64{optest.FP8MatMul(qa, qb, bias, s.m, s.n, s.k, transA, transB)}
				},
				C: 12, // measured at most 5.4
			})
		}
	}
	return cs
}

func fp8LinearCases() []Case {
	var cs []Case
	for i, s := range []struct{ b, m, n, k int }{{1, 1, 1, 1}, {2, 3, 33, 65}, {3, 50, 33, 40}, {1, 7, 129, 300}} {
		for _, policy := range []ops.FP8Policy{ops.Hybrid, ops.OnlyE4M3, ops.OnlyE5M2} {
			for _, bias := range []bool{false, true} {
				r := ops.FP8Recipe{Format: policy, Margin: i % 2, History: 4 * (i % 3)}
				in := []Input{Normal("x", s.b, s.m, s.k), Normal("w", s.n, s.k)}
				if bias {
					in = append(in, Normal("bias", s.n))
				}
				forward, backward := fp8Formats[policy.Forward()].oracle, fp8Formats[policy.Backward()].oracle
				rows := s.b * s.m
				operands := func(in []Input) (x, w optest.Quantized) {
					return fp8Quantized(in[0].F, optest.PerTensor(rows, s.k), forward, r.Margin), fp8Quantized(in[1].F, optest.PerTensor(s.n, s.k), forward, r.Margin)
				}
				cs = append(cs, Case{Op: "fp8_linear", Name: fmt.Sprint(s, " ", r, " bias ", bias), In: in,
					Build: func(in []*graph.Node) []*graph.Node { return one(ops.FP8Linear(in[0], in[1], r, in[2:]...)) },
					Oracle: func(in []Input) [][]float64 {
						x, w := operands(in)
						return [][]float64{optest.FP8Linear(x, w, bias0(in), rows, s.n, s.k)}
					},
					Grad: func(in []Input, d [][]float64) [][]float64 {
						x, w := operands(in)
						g := fp8Quantized(d[0], optest.PerTensor(rows, s.n), backward, r.Margin)
						dx, dw, db := optest.FP8LinearGrad(d[0], g, x, w, rows, s.n, s.k)
						return [][]float64{dx, dw, db}[:len(in)]
					},
					C: 4, CGrad: 4, // measured at most 0.9 and 0.8
				})
			}
		}
	}
	return cs
}

func fp8WeightCases() []Case {
	cs := []Case{{Op: "amax", Name: "blocks", In: []Input{Normal("x", 2, 65, 257)},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.Amax(in[0], ops.FP8Block{Rows: 128, Cols: 128}))
		},
		Oracle: func(in []Input) [][]float64 {
			m, _ := optest.Blocks{Rows: 130, Cols: 257, BlockRows: 128, BlockCols: 128}.Amax(in[0].F)
			return [][]float64{m}
		},
		C: 1e-9, // exact
	}}
	for _, s := range []struct{ b, m, n, k int }{{1, 1, 1, 1}, {1, 1, 65, 300}, {2, 3, 33, 65}, {3, 50, 40, 129}} {
		rows := s.b * s.m
		for _, a := range []ops.FP8Activations{ops.Exact, ops.StepPerRow, ops.StaticSteps} {
			in := []Input{Normal("x", s.b, s.m, s.k), Normal("w", s.n, s.k), Normal("bias", s.n)}
			bias := 2 + int(a)%2 // with and without
			cs = append(cs, Case{Op: "fp8_weight_linear", Name: fmt.Sprint(s, " ", a), In: in[:bias],
				Build: func(in []*graph.Node) []*graph.Node {
					return one(ops.FP8WeightLinear(in[0], in[1], ops.FP8WeightLinearOp{Activations: a, StepX: 0.01}, in[2:]...))
				},
				Oracle: func(in []Input) [][]float64 {
					w := fp8Quantized(in[1].F, optest.PerRow(s.n, s.k), optest.E4M3, 0)
					x := in[0].F
					switch a {
					case ops.StepPerRow:
						x = fp8Quantized(x, optest.PerRow(rows, s.k), optest.E4M3, 0).Values()
					case ops.StaticSteps:
						b, steps := optest.PerTensor(rows, s.k), []float64{float64(float32(0.01))}
						x = b.Dequantize(b.Quantize(x, steps, optest.E4M3), steps, optest.E4M3)
					}
					return [][]float64{optest.Linear(x, w.Values(), bias0(in), rows, s.n, s.k)}
				},
				C: 12, // measured at most 5.3
			})
		}
	}
	return cs
}

// fp8Errors has one case for each check.
func fp8Errors() []Case {
	linear := func(r ops.FP8Recipe) func(in []*graph.Node) []*graph.Node {
		return func(in []*graph.Node) []*graph.Node { return one(ops.FP8Linear(in[0], in[1], r)) }
	}
	var cs []Case
	for _, e := range []struct {
		op, name string
		in       []Input
		build    func(in []*graph.Node) []*graph.Node
		err      string
	}{
		{"fp8_linear", "shapes", []Input{Normal("x", 2, 3), Normal("w", 4, 5)}, linear(ops.FP8Recipe{}),
			"w: fp8_linear: x must be [...,K] and w [N,K] with one K, got x [2,3], w [4,5]"},
		{"fp8_linear", "history", []Input{Normal("x", 2, 3), Normal("w", 4, 3)}, linear(ops.FP8Recipe{History: -1}),
			"w: fp8_linear: the history must be 0 (dynamic) to 65536 steps, got -1"},
		{"fp8_linear", "most recent", []Input{Normal("x", 2, 3), Normal("w", 4, 3)}, linear(ops.FP8Recipe{MostRecent: true}),
			"w: fp8_linear: the most recent amax needs a history of 1 or more, got 0"},
		{"fp8_linear", "margin", []Input{Normal("x", 2, 3), Normal("w", 4, 3)}, linear(ops.FP8Recipe{Margin: 65}),
			"w: fp8_linear: the margin must be -64 to 64, got 65"},
		{"fp8_linear", "format", []Input{Normal("x", 2, 3), Normal("w", 4, 3)}, linear(ops.FP8Recipe{Format: 9}),
			"w: fp8_linear: the format must be hybrid, E4M3 or E5M2, got policy 9"},
		{"fp8_weight_linear", "step", []Input{Normal("x", 2, 3), Normal("w", 4, 3)},
			func(in []*graph.Node) []*graph.Node {
				return one(ops.FP8WeightLinear(in[0], in[1], ops.FP8WeightLinearOp{Activations: ops.StaticSteps}))
			},
			"w: fp8_weight_linear: a static step must be positive and finite, got 0"},
		{"fp8_weight_linear", "activations", []Input{Normal("x", 2, 3), Normal("w", 4, 3)},
			func(in []*graph.Node) []*graph.Node {
				return one(ops.FP8WeightLinear(in[0], in[1], ops.FP8WeightLinearOp{Activations: 7}))
			},
			"w: fp8_weight_linear: the activations must be exact, quantised by row or by static steps, got activations 7"},
		{"fp8_weight_linear", "no steps", []Input{Normal("x", 2, 3), Normal("w", 4, 3)},
			func(in []*graph.Node) []*graph.Node {
				s := ops.FP8Steps(in[1], native.E4M3, ops.FP8Block{}, 0)
				return one(ops.Linear(in[0], ops.Quantize(in[1], s, native.E4M3, ops.FP8Block{}, false)))
			},
			"quantize: fp8_weight_linear: w float8_e4m3[4,3] needs its steps, a parameter of its name with _scale or _scale_inv"},
		{"quantize", "steps", []Input{Normal("x", 2, 3), Normal("s", 2, 1)},
			func(in []*graph.Node) []*graph.Node {
				return one(ops.Quantize(in[0], in[1], native.E4M3, ops.FP8Block{}, false))
			},
			"quantize: steps must be float32[1,1] for x [2,3] in blocks of 0x0, got float32[2,1]"},
		{"quantize", "block", []Input{Normal("x", 2, 3), Normal("s", 1, 1)},
			func(in []*graph.Node) []*graph.Node {
				return one(ops.Quantize(in[0], in[1], native.E4M3, ops.FP8Block{Rows: -1}, false))
			},
			"quantize: a block must have 0 (all) or more rows and columns, got -1x0"},
		{"dequantize", "codes", []Input{Normal("x", 2, 3), Normal("s", 1, 1)},
			func(in []*graph.Node) []*graph.Node { return one(ops.Dequantize(in[0], in[1], ops.FP8Block{})) },
			"dequantize: codes must be float8, got float32[2,3]"},
		{"fp8_matmul", "K", []Input{Normal("a", 2, 3), Normal("b", 4, 2)}, fp8Product(ops.FP8MatMulOp{TransB: true}),
			"fp8_matmul: a and b must have one K, got a [2,3], b [4,2] transposed"},
		{"fp8_matmul", "steps", []Input{Normal("a", 2, 3), Normal("b", 4, 3)}, fp8Product(ops.FP8MatMulOp{TransB: true, BlockA: ops.FP8Block{Rows: 1}}),
			"fp8_matmul: steps of a must be float32[2,1] for [2,3] in blocks of 1x0, got float32[1,1]"},
		{"fp8_matmul", "output", []Input{Normal("a", 2, 3), Normal("b", 4, 3)}, fp8Product(ops.FP8MatMulOp{TransB: true, Output: dtype.Int32}),
			"fp8_matmul: the result must be float32, bfloat16, float16 or float64, got int32"},
		{"fp8_matmul", "operands", []Input{Normal("a", 2, 3), Normal("b", 4, 3), Normal("s", 1, 1)},
			func(in []*graph.Node) []*graph.Node {
				return one(ops.FP8MatMul(in[0], in[1], in[2], in[2], ops.FP8MatMulOp{TransB: true}))
			},
			"fp8_matmul: a and b must be float8 with two dimensions, got a float32[2,3], b float32[4,3]"},
	} {
		cs = append(cs, Case{Op: e.op, Name: e.name, In: e.in, Build: e.build, Err: e.err})
	}
	return cs
}

// fp8Product multiplies two matrices of one step each.
func fp8Product(o ops.FP8MatMulOp) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		one8 := func(x *graph.Node) (codes, steps *graph.Node) {
			steps = ops.FP8Steps(x, native.E4M3, ops.FP8Block{}, 0)
			return ops.Quantize(x, steps, native.E4M3, ops.FP8Block{}, false), steps
		}
		a, sa := one8(in[0])
		b, sb := one8(in[1])
		return one(ops.FP8MatMul(a, b, sa, sb, o))
	}
}
