package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() {
	tables = append(tables, addCases, reshapeCases, embeddingCases, linearCases, rmsNormCases, layerNormCases, gatedCases, dropoutCases, crossEntropyCases)
}

func one(n *graph.Node) []*graph.Node { return []*graph.Node{n} }

func addCases() []Case {
	var cs []Case
	for _, n := range []int{1, 63, 1000} {
		cs = append(cs, Case{Op: "add", Name: fmt.Sprint(n), In: []Input{Normal("a", n), Normal("b", n)},
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Add(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.Add(in[0].F, in[1].F)} },
			Grad: func(_ []Input, d [][]float64) [][]float64 {
				da, db := optest.AddGrad(d[0])
				return [][]float64{da, db}
			},
			C: 1, CGrad: 0, // one rounding; the gradient is a copy
		})
	}
	return append(cs, Case{Op: "add", Name: "shapes", In: []Input{Normal("a", 2, 3), Normal("b", 3, 2)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Add(in[0], in[1])) },
		Err:   "add: inputs must have one type, got float32[2,3] and float32[3,2]"})
}

func reshapeCases() []Case {
	return []Case{{Op: "reshape", Name: "2x6 as 3x4", In: []Input{Normal("x", 2, 6)},
		Build:  func(in []*graph.Node) []*graph.Node { return one(ops.Reshape(in[0], 3, 4)) },
		Oracle: func(in []Input) [][]float64 { return [][]float64{in[0].F} },
		Grad:   func(_ []Input, d [][]float64) [][]float64 { return d },
	}, {Op: "reshape", Name: "wrong size", In: []Input{Normal("x", 2, 6)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Reshape(in[0], 5)) },
		Err:   "reshape: [2,6] has 12 elements, [5] has 5"}}
}

func embeddingCases() []Case {
	var cs []Case
	for _, s := range []struct{ n, v, d int }{{1, 1, 1}, {65, 7, 33}, {200, 300, 64}} {
		cs = append(cs, Case{Op: "embedding", Name: fmt.Sprint(s), In: []Input{Ints("ids", s.v, s.n), Normal("table", s.v, s.d)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Embedding(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.Embedding(in[1].F, in[0].I, s.d)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{nil, optest.EmbeddingGrad(d[0], in[0].I, s.v, s.d)}
			},
			CGrad: 4, // sums of about n/v rows
		})
	}
	return append(cs, Case{Op: "embedding", Name: "ids are floats", In: []Input{Normal("ids", 2), Normal("table", 3, 4)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Embedding(in[0], in[1])) },
		Err:   "embedding: ids must be int32 and table [V,D], got ids float32[2], table float32[3,4]"})
}

func linearCases() []Case {
	var cs []Case
	for _, s := range []struct{ m, n, k int }{{1, 1, 1}, {1, 300, 200}, {7, 5, 3}, {63, 65, 129}, {130, 1000, 64}} {
		for _, bias := range []bool{false, true} {
			in := []Input{Normal("x", 1, s.m, s.k), Normal("w", s.n, s.k)}
			if bias {
				in = append(in, Normal("bias", s.n))
			}
			cs = append(cs, Case{Op: "linear", Name: fmt.Sprint(s, " bias ", bias), In: in,
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.Linear(in[0], in[1], in[2:]...)) },
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{optest.Linear(in[0].F, in[1].F, bias0(in), s.m, s.n, s.k)}
				},
				Grad: func(in []Input, d [][]float64) [][]float64 {
					dx, dw, db := optest.LinearGrad(d[0], in[0].F, in[1].F, s.m, s.n, s.k)
					return [][]float64{dx, dw, db}[:len(in)]
				},
				C: 8, CGrad: 16, // a chain of K (for dx N, up to 1000) rounded sums, error about sqrt(K)/3 at worst
			})
		}
	}
	return append(cs,
		Case{Op: "linear", Name: "K differs", In: []Input{Normal("x", 2, 3), Normal("w", 4, 5)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Linear(in[0], in[1])) },
			Err:   "w: linear: x must be [...,K] and w [N,K] with one K, got x [2,3], w [4,5]"},
		Case{Op: "linear", Name: "bias", In: []Input{Normal("x", 2, 3), Normal("w", 4, 3), Normal("bias", 3)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Linear(in[0], in[1], in[2])) },
			Err:   "w: linear: bias must be [4] for w [4,3], got [3]"})
}

func bias0(in []Input) []float64 {
	if len(in) > 2 {
		return in[2].F
	}
	return nil
}

func rmsNormCases() []Case {
	const eps = 1e-5
	var cs []Case
	for _, s := range []struct{ rows, d int }{{1, 1}, {3, 15}, {65, 129}, {40, 1000}} {
		cs = append(cs, Case{Op: "rmsnorm", Name: fmt.Sprint(s), In: []Input{Normal("x", s.rows, s.d), Normal("w", s.d)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.RMSNorm(in[0], in[1], eps)) },
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.RMSNorm(in[0].F, in[1].F, s.rows, s.d, eps)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dx, dw := optest.RMSNormGrad(d[0], in[0].F, in[1].F, s.rows, s.d, eps)
				return [][]float64{dx, dw}
			},
			C: 4, CGrad: rmsGradUnits(s.d),
		})
	}
	return append(cs,
		Case{Op: "rmsnorm", Name: "w too long", In: []Input{Normal("x", 2, 3), Normal("w", 4)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.RMSNorm(in[0], in[1], eps)) },
			Err:   "rmsnorm: w must be as long as the rows of x [...,D], got x [2,3], w [4]"},
		Case{Op: "rmsnorm", Name: "eps below 0", In: []Input{Normal("x", 2, 3), Normal("w", 3)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.RMSNorm(in[0], in[1], -1)) },
			Err:   "rmsnorm: eps must be 0 or more, got -1"})
}

// rmsGradUnits: with rows of one element dx is a difference of two numbers that
// agree to eps, so all but the last digits cancel.
func rmsGradUnits(d int) float64 {
	if d == 1 {
		return 1e6
	}
	return 8
}

func layerNormCases() []Case {
	const eps = 1e-5
	var cs []Case
	for _, s := range []struct{ rows, d int }{{1, 2}, {3, 15}, {65, 129}, {40, 1000}} {
		for _, bias := range []bool{false, true} {
			in := []Input{Normal("x", s.rows, s.d), Normal("w", s.d)}
			if bias {
				in = append(in, Normal("bias", s.d))
			}
			cs = append(cs, Case{Op: "layernorm", Name: fmt.Sprint(s, " bias ", bias), In: in,
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.LayerNorm(in[0], in[1], eps, in[2:]...)) },
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{optest.LayerNorm(in[0].F, in[1].F, bias0(in), s.rows, s.d, eps)}
				},
				Grad: func(in []Input, d [][]float64) [][]float64 {
					dx, dw, db := optest.LayerNormGrad(d[0], in[0].F, in[1].F, s.rows, s.d, eps)
					return [][]float64{dx, dw, db}[:len(in)]
				},
				C: 4, CGrad: layerGradUnits(s.d),
			})
		}
	}
	return cs
}

// layerGradUnits: rows of two elements become +-1 whatever x is, and dx cancels.
func layerGradUnits(d int) float64 {
	if d == 2 {
		return 1e6
	}
	return 8
}

func gatedCases() []Case {
	var cs []Case
	for _, n := range []int{1, 63, 1000} {
		in := []Input{Normal("gate", n), Normal("up", n)}
		for i := range in[0].F { // reach both tails
			in[0].F[i] *= 4
		}
		cs = append(cs, Case{Op: "swiglu", Name: fmt.Sprint(n), In: in,
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.SwiGLU(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.SwiGLU(in[0].F, in[1].F)} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dg, du := optest.SwiGLUGrad(d[0], in[0].F, in[1].F)
				return [][]float64{dg, du}
			},
			C: 4, CGrad: 6,
		})
		for _, tanh := range []bool{false, true} {
			cs = append(cs, Case{Op: "geglu", Name: fmt.Sprint(n, " tanh ", tanh), In: in,
				Build:  func(in []*graph.Node) []*graph.Node { return one(ops.GeGLU(in[0], in[1], tanh)) },
				Oracle: func(in []Input) [][]float64 { return [][]float64{optest.GeGLU(in[0].F, in[1].F, tanh)} },
				Grad: func(in []Input, d [][]float64) [][]float64 {
					dg, du := optest.GeGLUGrad(d[0], in[0].F, in[1].F, tanh)
					return [][]float64{dg, du}
				},
				C: 4, CGrad: 8,
			})
		}
	}
	return append(cs, Case{Op: "swiglu", Name: "shapes", In: []Input{Normal("gate", 2), Normal("up", 3)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.SwiGLU(in[0], in[1])) },
		Err:   "swiglu: gate and up must have one type, got gate float32[2], up float32[3]"})
}

func dropoutCases() []Case {
	var cs []Case
	for _, p := range []float64{0.1, 0.5} {
		for _, n := range []int{1, 65, 5000} {
			cs = append(cs, Case{Op: "dropout", Name: fmt.Sprint(n, " p ", p), In: []Input{Normal("x", n), {Name: "step", Shape: []int{1}, Step: []int64{1<<33 + 7}}},
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.Dropout(in[0], in[1], p, 99)) },
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{optest.Dropout(in[0].F, p, 99, uint64(in[1].Step[0]))}
				},
				Grad: func(in []Input, d [][]float64) [][]float64 {
					return [][]float64{optest.Dropout(d[0], p, 99, uint64(in[1].Step[0])), nil}
				},
				C: 2, CGrad: 2,
			})
		}
	}
	return append(cs, Case{Op: "dropout", Name: "p 1", In: []Input{Normal("x", 3), {Name: "step", Shape: []int{1}, Step: []int64{0}}},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.Dropout(in[0], in[1], 1, 0)) },
		Err:   "dropout: p must be in [0,1), got 1"})
}

func crossEntropyCases() []Case {
	var cs []Case
	for _, s := range []struct{ n, v int }{{1, 1}, {3, 2}, {65, 129}, {16, 1000}} {
		for _, z := range []float64{0, 1e-2} {
			labels := Ints("labels", s.v, s.n)
			for i := 1; i < s.n; i += 5 {
				labels.I[i] = ops.IgnoreIndex
			}
			cs = append(cs, crossEntropyCase(fmt.Sprint(s, " z-loss ", z), labels, s.n, s.v, z))
		}
	}
	ignored := Ints("labels", 4, 6)
	for i := range ignored.I {
		ignored.I[i] = ops.IgnoreIndex
	}
	return append(cs, crossEntropyCase("all ignored", ignored, 6, 4, 0),
		Case{Op: "cross_entropy", Name: "labels", In: []Input{Normal("logits", 2, 3, 4), Ints("labels", 4, 3)},
			Build: func(in []*graph.Node) []*graph.Node {
				loss, _ := ops.CrossEntropy(in[0], in[1])
				return one(loss)
			},
			Err: "cross_entropy: labels must be int32 [...] for logits [...,V], got logits float32[2,3,4], labels int32[3]"})
}

func crossEntropyCase(name string, labels Input, n, v int, z float64) Case {
	logits := Normal("logits", n, v)
	if v > 2 { // with two classes a sure guess makes a loss that is all cancellation
		for i := range logits.F {
			logits.F[i] *= 3
		}
	}
	grad := 8.0
	if v == 1 {
		grad = 1000 // softmax is 1 and only the z-loss is left of 1 + 2 z lse - 1; measured 26 and 118
	}
	return Case{Op: "cross_entropy", Name: name, In: []Input{logits, labels},
		Build: func(in []*graph.Node) []*graph.Node {
			loss, tokens := ops.CrossEntropy(in[0], in[1], ops.CrossEntropyOptions{ZLoss: z})
			return []*graph.Node{loss, tokens}
		},
		Oracle: func(in []Input) [][]float64 {
			r := optest.CrossEntropy(in[0].F, in[1].I, v, ops.IgnoreIndex, z)
			return [][]float64{{r.Loss}, {float64(r.Count)}}
		},
		Grad: func(in []Input, d [][]float64) [][]float64 {
			return [][]float64{optest.CrossEntropyGrad(d[0][0], in[0].F, in[1].I, v, ops.IgnoreIndex, z), nil}
		},
		C: 4, CGrad: grad,
	}
}
