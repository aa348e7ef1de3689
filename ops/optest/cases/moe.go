package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

func init() {
	tables = append(tables, routeCases, routeWeightsCases, expertsCases, fp8ExpertsCases, balanceCases)
}

// routers are the forms that published models use, and small ones.
var routers = []struct {
	optest.Router
	bias bool
}{
	{optest.Router{Experts: 1, TopK: 1}, false},
	{optest.Router{Experts: 8, TopK: 2, Renormalize: true}, false},
	{optest.Router{Experts: 60, TopK: 4}, true},
	{optest.Router{Experts: 8, TopK: 2, Sigmoid: true, Renormalize: true, Scale: 2.5}, true},
	{optest.Router{Experts: 32, TopK: 5, Groups: 4, KeepGroups: 2, Sigmoid: true, Renormalize: true, Scale: 2.5}, true},
	{optest.Router{Experts: 12, TopK: 3, Groups: 3, KeepGroups: 1, Scale: 16}, false},
}

const routedTokens = 67

// logits are those of routedTokens tokens.
func logits(experts int) Input { return Normal("logits", routedTokens, experts) }

// chosen are the oracle's choices for them.
func chosen(r optest.Router, bias []float64) Input {
	ids, _ := r.Route(logits(r.Experts).F, bias)
	return Input{Name: "ids", Shape: []int{routedTokens, r.TopK}, I: ids}
}

func biasOf(r optest.Router) Input {
	return Input{Name: "bias", Shape: []int{r.Experts}, F: optest.Uniforms(fmt.Sprint("bias ", r.Experts), r.Experts, -0.2, 0.2)}
}

func routeCases() []Case {
	var cs []Case
	for _, r := range routers {
		in := []Input{logits(r.Experts)}
		if r.bias {
			in = append(in, biasOf(r.Router))
		}
		cs = append(cs, Case{Op: "route", Name: fmt.Sprintf("%+v", r), In: in,
			Build: func(in []*graph.Node) []*graph.Node {
				var bias *graph.Node
				if r.bias {
					bias = in[1]
				}
				ids, weights := ops.Route(in[0], bias, ops.Router(r.Router))
				return []*graph.Node{ids, weights}
			},
			Oracle: func(in []Input) [][]float64 {
				var bias []float64
				if r.bias {
					bias = in[1].F
				}
				ids, weights := r.Route(in[0].F, bias)
				floats := make([]float64, len(ids))
				for i, e := range ids {
					floats[i] = float64(e)
				}
				return [][]float64{floats, weights}
			},
			C: 4,
		})
	}
	bad := func(name, err string, r ops.Router, in ...Input) Case {
		return Case{Op: "route", Name: name, In: in, Err: "route: " + err,
			Build: func(in []*graph.Node) []*graph.Node {
				var bias *graph.Node
				if len(in) > 1 {
					bias = in[1]
				}
				ids, _ := ops.Route(in[0], bias, r)
				return one(ids)
			}}
	}
	x := Normal("logits", 3, 8)
	return append(cs,
		bad("top-k 9 of 8", "router: top-k must be from 1 to the number of experts, got top-k 9 of 8 experts", ops.Router{Experts: 8, TopK: 9}, x),
		bad("top-k 0", "router: top-k must be from 1 to the number of experts, got top-k 0 of 8 experts", ops.Router{Experts: 8}, x),
		bad("groups", "router: 8 experts do not make 3 groups of one size", ops.Router{Experts: 8, TopK: 2, Groups: 3, KeepGroups: 1}, x),
		bad("kept groups", "router: must keep from 1 to all 4 groups, got 5", ops.Router{Experts: 8, TopK: 2, Groups: 4, KeepGroups: 5}, x),
		bad("experts in kept groups", "router: top-k 3 is more than the 2 experts of 1 groups", ops.Router{Experts: 8, TopK: 3, Groups: 4, KeepGroups: 1}, x),
		bad("logits", "logits must be [...,4], one for each expert, got [3,8]", ops.Router{Experts: 4, TopK: 2}, x),
		bad("bias", "bias must be float32[8], got float32[4]", ops.Router{Experts: 8, TopK: 2}, x, Normal("bias", 4)))
}

func routeWeightsCases() []Case {
	var cs []Case
	for _, r := range routers {
		var bias []float64
		if r.bias {
			bias = biasOf(r.Router).F
		}
		ids := chosen(r.Router, bias)
		cs = append(cs, Case{Op: "route_weights", Name: fmt.Sprintf("%+v", r), In: []Input{logits(r.Experts), ids},
			Build: func(in []*graph.Node) []*graph.Node {
				return one(graph.Apply(ops.RouteWeightsOp{Router: ops.Router(r.Router)}, in...))
			},
			Oracle: func(in []Input) [][]float64 {
				_, w := r.Route(in[0].F, bias)
				return [][]float64{w}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{r.RouteGrad(d[0], in[0].F, in[1].I), nil}
			},
			C: 2, CGrad: 2, // measured 0.5 and 0.5
		})
	}
	return append(cs, Case{Op: "route_weights", Name: "ids", In: []Input{Normal("logits", 3, 8), Ints("ids", 8, 3, 3)},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(graph.Apply(ops.RouteWeightsOp{Router: ops.Router{Experts: 8, TopK: 2}}, in...))
		},
		Err: "route_weights: ids must be int32 [3,2] for logits [3,8], got int32[3,3]"})
}

func expertsCases() []Case {
	var cs []Case
	for _, s := range []struct{ tokens, topK, e, f, d int }{{1, 1, 1, 1, 1}, {3, 1, 5, 7, 6}, {67, 2, 8, 15, 33}, {130, 3, 4, 32, 16}} {
		ids := Ints("ids", s.e, s.tokens, s.topK)
		for i := range ids.I { // distinct choices of a token; the last expert has no token where that can be
			ids.I[i] = (ids.I[i/s.topK*s.topK] + int32(i%s.topK)) % int32(max(s.e-1, s.topK))
		}
		x := optest.Experts{D: s.d, F: s.f, TopK: s.topK}
		cs = append(cs, Case{Op: "experts", Name: fmt.Sprintf("%+v", s),
			In: []Input{Normal("x", s.tokens, s.d), Normal("weights", s.tokens, s.topK), ids, Normal("gate", s.e, s.f, s.d), Normal("up", s.e, s.f, s.d), Normal("down", s.e, s.d, s.f)},
			Build: func(in []*graph.Node) []*graph.Node {
				return one(ops.Experts(in[0], in[1], in[2], in[3], in[4], in[5]))
			},
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{x.Forward(in[0].F, in[1].F, in[2].I, in[3].F, in[4].F, in[5].F)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				a, b, c, e, f := x.Backward(d[0], in[0].F, in[1].F, in[2].I, in[3].F, in[4].F, in[5].F)
				return [][]float64{a, b, nil, c, e, f}
			},
			C: 8, CGrad: 10, // measured 3.7 and 4.4
		})
		stacks := append([]Input{}, cs[len(cs)-1].In...)
		clamped := func(in []Input) optest.ClampedExperts {
			return optest.ClampedExperts{Experts: x, Alpha: 1.702, Limit: 2, Gate: in[6].F, Up: in[7].F, Down: in[8].F}
		}
		cs = append(cs, Case{Op: "clamped_experts", Name: fmt.Sprintf("%+v", s),
			In:    append(stacks, Normal("gate_bias", s.e, s.f), Normal("up_bias", s.e, s.f), Normal("down_bias", s.e, s.d)),
			Build: buildClamped(ops.ClampedExpertsOp{Alpha: 1.702, Limit: 2}),
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{clamped(in).Forward(in[0].F, in[1].F, in[2].I, in[3].F, in[4].F, in[5].F)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				g := clamped(in).Backward(d[0], in[0].F, in[1].F, in[2].I, in[3].F, in[4].F, in[5].F)
				return [][]float64{g[0], g[1], nil, g[2], g[3], g[4], g[5], g[6], g[7]}
			},
			C: 8, CGrad: 10, // measured 2.6 and 4.1
		})
	}
	badClamped := func(name, err string, o ops.ClampedExpertsOp, down ...int) Case {
		return Case{Op: "clamped_experts", Name: name, Err: "clamped_experts: " + err, Build: buildClamped(o),
			In: []Input{Normal("x", 3, 4), Normal("weights", 3, 2), Ints("ids", 5, 3, 2), Normal("gate", 5, 6, 4), Normal("up", 5, 6, 4), Normal("down", 5, 4, 6),
				Normal("gate_bias", 5, 6), Normal("up_bias", 5, 6), Normal("down_bias", down...)}}
	}
	bad := func(name, err string, change func(in []Input)) Case {
		in := []Input{Normal("x", 3, 4), Normal("weights", 3, 2), Ints("ids", 5, 3, 2), Normal("gate", 5, 6, 4), Normal("up", 5, 6, 4), Normal("down", 5, 4, 6)}
		change(in)
		return Case{Op: "experts", Name: name, In: in, Err: "experts: " + err,
			Build: func(in []*graph.Node) []*graph.Node {
				return one(ops.Experts(in[0], in[1], in[2], in[3], in[4], in[5]))
			}}
	}
	return append(cs,
		bad("ids", "weights must be [...,TopK] and ids int32 [...,TopK] for x [...,D], got x [3,4], weights [3,2], ids int32[3,3]", func(in []Input) { in[2] = Ints("ids", 5, 3, 3) }),
		bad("down", "gate and up must be [E,F,D] and down [E,D,F] for x [...,D], got x [3,4], gate [5,6,4], up [5,6,4], down [5,6,4]", func(in []Input) { in[5] = Normal("down", 5, 6, 4) }),
		bad("choices", "a token chooses 2 of 1 experts (weights [3,2], gate [1,6,4])", func(in []Input) {
			in[3], in[4], in[5] = Normal("gate", 1, 6, 4), Normal("up", 1, 6, 4), Normal("down", 1, 4, 6)
		}),
		badClamped("biases", "gate_bias and up_bias must be float32[5,6] and down_bias float32[5,4], got float32[5,6], float32[5,6], float32[4]", ops.ClampedExpertsOp{Alpha: 1, Limit: 1}, 4),
		badClamped("limit", "alpha must be finite and the limit above 0, got 1 and 0", ops.ClampedExpertsOp{Alpha: 1}, 5, 4))
}

func buildClamped(o ops.ClampedExpertsOp) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		return one(ops.ClampedExperts(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8], o))
	}
}

func fp8ExpertsCases() []Case {
	var cs []Case
	for _, s := range []struct{ tokens, topK, e, f, d int }{{1, 1, 1, 1, 1}, {3, 1, 5, 7, 6}, {35, 2, 4, 150, 129}, {70, 2, 3, 128, 256}} {
		for _, a := range []ops.FP8Activations{ops.Exact, ops.StepPerBlock} {
			ids := Ints("ids", s.e, s.tokens, s.topK)
			for i := range ids.I { // distinct choices of a token; the last expert has no token where that can be
				ids.I[i] = (ids.I[i/s.topK*s.topK] + int32(i%s.topK)) % int32(max(s.e-1, s.topK))
			}
			x := optest.Experts{D: s.d, F: s.f, TopK: s.topK}
			cs = append(cs, Case{Op: "fp8_experts", Name: fmt.Sprintf("%+v %v", s, a),
				In: []Input{Normal("x", s.tokens, s.d), Normal("weights", s.tokens, s.topK), ids, Normal("gate", s.e, s.f, s.d), Normal("up", s.e, s.f, s.d), Normal("down", s.e, s.d, s.f)},
				Build: func(in []*graph.Node) []*graph.Node {
					return one(ops.FP8Experts(in[0], in[1], in[2], in[3], in[4], in[5], ops.FP8ExpertsOp{Activations: a}))
				},
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{x.FP8Forward(in[0].F, in[1].F, in[2].I, in[3].F, in[4].F, in[5].F, a == ops.StepPerBlock)}
				},
				C: 16, // measured at most 7.7
			})
		}
	}
	bad := func(name, err string, o ops.FP8ExpertsOp, change func(in []*graph.Node)) Case {
		in := []Input{Normal("x", 3, 4), Normal("weights", 3, 2), Ints("ids", 5, 3, 2), Normal("gate", 5, 6, 4), Normal("up", 5, 6, 4), Normal("down", 5, 4, 6)}
		return Case{Op: "fp8_experts", Name: name, In: in, Err: err,
			Build: func(in []*graph.Node) []*graph.Node {
				in = append([]*graph.Node{}, in...)
				change(in)
				return one(ops.FP8Experts(in[0], in[1], in[2], in[3], in[4], in[5], o))
			}}
	}
	codes := func(w *graph.Node, f native.FP8) *graph.Node {
		return ops.Quantize(w, ops.FP8Steps(w, f, ops.FP8Block{}, 0), f, ops.FP8Block{}, false)
	}
	return append(cs,
		bad("activations", "fp8_experts: the activations must be exact or quantised by block, got static steps", ops.FP8ExpertsOp{Activations: ops.StaticSteps}, func([]*graph.Node) {}),
		bad("down", "fp8_experts: gate and up must be [E,F,D] and down [E,D,F] for x [...,D], got x [3,4], gate [5,6,4], up [5,6,4], down [5,6,4]", ops.FP8ExpertsOp{}, func(in []*graph.Node) { in[5] = in[4] }),
		bad("mixed", "fp8_experts: gate, up and down must all be wide or all float8_e4m3, got float8_e4m3[5,6,4], float32[5,6,4], float32[5,4,6]", ops.FP8ExpertsOp{}, func(in []*graph.Node) { in[3] = codes(in[3], native.E4M3) }),
		bad("format", "fp8_experts: gate, up and down must all be wide or all float8_e4m3, got float8_e5m2[5,6,4], float32[5,6,4], float32[5,4,6]", ops.FP8ExpertsOp{}, func(in []*graph.Node) { in[3] = codes(in[3], native.E5M2) }),
		bad("no steps", "fp8_experts: gate float8_e4m3[5,6,4] needs its steps float32[5,1,1], a parameter of its name with _scale or _scale_inv", ops.FP8ExpertsOp{}, func(in []*graph.Node) {
			in[3], in[4], in[5] = codes(in[3], native.E4M3), codes(in[4], native.E4M3), codes(in[5], native.E4M3)
		}))
}

func balanceCases() []Case {
	var cs []Case
	for _, r := range routers {
		cs = append(cs, Case{Op: "balance_loss", Name: fmt.Sprintf("%+v", r), In: []Input{logits(r.Experts), chosen(r.Router, nil)},
			Build: func(in []*graph.Node) []*graph.Node {
				return one(ops.BalanceLoss(in[0], in[1], ops.Router(r.Router)))
			},
			Oracle: func(in []Input) [][]float64 { return [][]float64{{r.BalanceLoss(in[0].F, in[1].I)}} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{r.BalanceLossGrad(d[0][0], in[0].F, in[1].I), nil}
			},
			C: 8, CGrad: 4, // measured 4.3, one chain of tokens in the oracle, and 1.7
		})
	}
	return append(cs, Case{Op: "balance_loss", Name: "ids", In: []Input{Normal("logits", 3, 8), Ints("ids", 8, 3, 3)},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.BalanceLoss(in[0], in[1], ops.Router{Experts: 8, TopK: 2}))
		},
		Err: "balance_loss: ids must be int32 [3,2] for logits [3,8], got int32[3,3]"})
}
