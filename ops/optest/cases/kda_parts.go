package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() {
	tables = append(tables, kdaGateCases, kdaBetaCases, l2NormCases, gatedRMSNormCases)
}

// kdaInit is where the decays of a new layer lie: A of 1 to 16, dt_bias that
// makes steps of 1e-3 to 0.1.
func kdaInit(heads, dk int) (aLog, dtBias Input) {
	aLog = Input{Name: "a_log", Shape: []int{heads}, F: optest.Uniforms("a_log", heads, 0, 2.7)}
	dtBias = Input{Name: "dt_bias", Shape: []int{heads * dk}, F: optest.Uniforms("dt_bias", heads*dk, -7, -2)}
	return aLog, dtBias
}

func kdaGateCases() []Case {
	var cs []Case
	for _, bound := range []float64{0, -5} {
		// Measured 3.2 and 12. In the tail of the bounded form exp(A x) has the
		// rounding of A x, up to 70 here, as its relative error: measured 36.
		c, grad := 8.0, 24.0
		if bound != 0 {
			c, grad = 64, 64
		}
		for _, s := range []struct {
			lead      []int
			heads, dk int
		}{{[]int{1}, 1, 1}, {[]int{2, 33}, 3, 15}, {[]int{7}, 2, 64}} {
			z := Normal("z", append(s.lead, s.heads, s.dk)...)
			for i := range z.F { // both tails
				z.F[i] *= 4
			}
			aLog, dtBias := kdaInit(s.heads, s.dk)
			cs = append(cs, Case{Op: "kda_gate", Name: fmt.Sprint(z.Shape, " bound ", bound), In: []Input{z, aLog, dtBias},
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.KDAGate(in[0], in[1], in[2], bound)) },
				Oracle: func(in []Input) [][]float64 {
					return [][]float64{optest.KDAGate(in[0].F, in[1].F, in[2].F, s.heads, s.dk, bound)}
				},
				Grad: func(in []Input, d [][]float64) [][]float64 {
					dz, da, db := optest.KDAGateGrad(d[0], in[0].F, in[1].F, in[2].F, s.heads, s.dk, bound)
					return [][]float64{dz, da, db}
				},
				C: c, CGrad: grad,
			})
		}
	}
	bad := func(name, err string, bound float64, in ...Input) Case {
		return Case{Op: "kda_gate", Name: name, In: in, Err: "kda_gate: " + err,
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.KDAGate(in[0], in[1], in[2], bound)) }}
	}
	z := Normal("z", 2, 3, 4)
	return append(cs,
		bad("a_log", "kda gate: A_log has 4 values, want one for each of 3 heads", 0, z, Normal("a_log", 4), Normal("dt_bias", 12)),
		bad("dt_bias of the heads", "kda gate: dt_bias has 3 values, want one for each channel: 3 heads x 4 = 12", 0, z, Normal("a_log", 3), Normal("dt_bias", 3)),
		bad("bound above 0", "kda gate: the lower bound must be negative, or 0 for the softplus form, got 5", 5, z, Normal("a_log", 3), Normal("dt_bias", 12)),
		bad("one dimension", "z must be [...,H,K], got [12]", 0, Normal("z", 12), Normal("a_log", 3), Normal("dt_bias", 12)),
		bad("a_log of two dimensions", "a_log must be [H] and dt_bias [H K] for z [...,H,K], got z [2,3,4], a_log [1,3], dt_bias [12]", 0, z, Normal("a_log", 1, 3), Normal("dt_bias", 12)),
	)
}

func kdaBetaCases() []Case {
	var cs []Case
	for _, double := range []bool{false, true} {
		for _, n := range []int{1, 65, 1000} {
			b := Normal("b", n)
			for i := range b.F {
				b.F[i] *= 4
			}
			factor := 1.0
			if double {
				factor = 2
			}
			cs = append(cs, Case{Op: "kda_beta", Name: fmt.Sprint(n, " double ", double), In: []Input{b},
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.KDABeta(in[0], double)) },
				Oracle: func(in []Input) [][]float64 {
					y := make([]float64, n)
					for i, x := range in[0].F {
						y[i] = factor * optest.Sigmoid(x)
					}
					return [][]float64{y}
				},
				Grad: func(in []Input, d [][]float64) [][]float64 {
					dx := make([]float64, n)
					for i, x := range in[0].F {
						dx[i] = d[0][i] * factor * optest.Sigmoid(x) * optest.Sigmoid(-x)
					}
					return [][]float64{dx}
				},
				C: 2, CGrad: 4, // measured 0.6 and 1.4
			})
		}
	}
	return append(cs, Case{Op: "kda_beta", Name: "integers", In: []Input{Ints("b", 3, 4)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.KDABeta(in[0], false)) },
		Err:   "kda_beta: b must be float32 or float64, got int32[4]"})
}

func l2NormCases() []Case {
	const eps = 1e-6
	var cs []Case
	for _, s := range []struct{ rows, d int }{{3, 2}, {33, 15}, {5, 128}} {
		x := Normal("x", s.rows, s.d)
		for i := range s.d {
			x.F[i] *= 1e-3                    // where eps counts
			x.F[s.d+i] *= float64(s.rows % 5) // a row of zeros in one case
		}
		cs = append(cs, Case{Op: "l2norm", Name: fmt.Sprint(s), In: []Input{x},
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.L2Norm(in[0], eps)) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.L2Norm(in[0].F, s.d, eps)} },
			Grad: func(in []Input, d [][]float64) [][]float64 {
				return [][]float64{optest.L2NormGrad(d[0], in[0].F, s.d, eps)}
			},
			C: 2, CGrad: 2, // measured 0.5 and 0.5
		})
	}
	return append(cs, Case{Op: "l2norm", Name: "eps below 0", In: []Input{Normal("x", 2, 3)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.L2Norm(in[0], -1)) },
		Err:   "l2norm: eps must be 0 or more, got -1"})
}

func gatedRMSNormCases() []Case {
	const eps = 1e-5
	var cs []Case
	for _, s := range []struct{ rows, d int }{{3, 2}, {65, 15}, {40, 128}} {
		gate := Normal("gate", s.rows, s.d)
		for i := range gate.F {
			gate.F[i] *= 4
		}
		cs = append(cs, Case{Op: "gated_rmsnorm", Name: fmt.Sprint(s), In: []Input{Normal("x", s.rows, s.d), gate, Normal("w", s.d)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.GatedRMSNorm(in[0], in[1], in[2], eps)) },
			Oracle: func(in []Input) [][]float64 {
				return [][]float64{optest.GatedRMSNorm(in[0].F, in[1].F, in[2].F, eps)}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dx, dg, dw := optest.GatedRMSNormGrad(d[0], in[0].F, in[1].F, in[2].F, eps)
				return [][]float64{dx, dg, dw}
			},
			C: 4, CGrad: 8, // measured 1.3 and 3.6
		})
	}
	bad := func(name, err string, eps float64, in ...Input) Case {
		return Case{Op: "gated_rmsnorm", Name: name, In: in, Err: "gated_rmsnorm: " + err,
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.GatedRMSNorm(in[0], in[1], in[2], eps)) }}
	}
	return append(cs,
		bad("w", "w must be as long as the rows of x [...,D], got x [2,3], w [4]", eps, Normal("x", 2, 3), Normal("gate", 2, 3), Normal("w", 4)),
		bad("gate", "x and gate must have one type, got x float32[2,3], gate float32[2,4]", eps, Normal("x", 2, 3), Normal("gate", 2, 4), Normal("w", 3)),
		bad("eps below 0", "eps must be 0 or more, got -1", -1, Normal("x", 2, 3), Normal("gate", 2, 3), Normal("w", 3)))
}
