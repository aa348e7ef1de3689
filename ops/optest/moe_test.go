package optest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRouter_Chooses(t *testing.T) {
	// Sigmoid scores 0.5, 0.731, 0.881, 0.269; the bias lifts expert 3 to the
	// top but its weight stays 0.269.
	logits := []float64{0, 1, 2, -1}
	r := Router{Experts: 4, TopK: 2, Sigmoid: true, Renormalize: true, Scale: 2.5}
	ids, w := r.Route(logits, []float64{0, 0, 0, 1})
	require.Equal(t, []int32{3, 2}, ids)
	a, b := Sigmoid(-1), Sigmoid(2)
	near(t, []float64{2.5 * a / (a + b), 2.5 * b / (a + b)}, w, 1e-15)

	ids, w = Router{Experts: 4, TopK: 3}.Route(logits, nil)
	require.Equal(t, []int32{2, 1, 0}, ids)
	sum := 1 + math.E + math.Exp(2) + math.Exp(-1)
	near(t, []float64{math.Exp(2) / sum, math.E / sum, 1 / sum}, w, 1e-15)

	// Groups {0,1} and {2,3}: the best single expert is in the second, the best
	// two together in the first.
	r = Router{Experts: 4, TopK: 2, Groups: 2, KeepGroups: 1, Sigmoid: true}
	ids, _ = r.Route([]float64{1, 1, 2, -3}, nil)
	require.Equal(t, []int32{0, 1}, ids)

	// Equal scores: the lower index first.
	ids, _ = Router{Experts: 4, TopK: 3}.Route([]float64{0, 1, 1, 0}, nil)
	require.Equal(t, []int32{1, 2, 0}, ids)
}

func TestRouter_Gradients(t *testing.T) {
	const tokens = 5
	for i, r := range []Router{
		{Experts: 6, TopK: 2},
		{Experts: 6, TopK: 3, Renormalize: true, Scale: 1.7},
		{Experts: 6, TopK: 2, Sigmoid: true},
		{Experts: 6, TopK: 2, Sigmoid: true, Renormalize: true, Scale: 2.446, Groups: 3, KeepGroups: 2},
		{Experts: 6, TopK: 1, Renormalize: true},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			logits, bias := Normals("logits", tokens*6, 1), Normals("bias", 6, 0.1)
			ids, _ := r.Route(logits, bias)
			CheckGradient(t, "router",
				func(in [][]float64) [][]float64 {
					moved, w := r.Route(in[0], bias)
					require.Equal(t, ids, moved)
					return [][]float64{w}
				},
				func(in, d [][]float64) [][]float64 { return [][]float64{r.RouteGrad(d[0], in[0], ids)} }, logits)
			CheckGradient(t, "balance loss",
				func(in [][]float64) [][]float64 { return [][]float64{{r.BalanceLoss(in[0], ids)}} },
				func(in, d [][]float64) [][]float64 {
					return [][]float64{r.BalanceLossGrad(d[0][0], in[0], ids)}
				}, logits)
		})
	}
}

func TestRouter_Balance(t *testing.T) {
	r := Router{Experts: 4, TopK: 1}
	require.InDelta(t, 1, r.BalanceLoss(make([]float64, 16), []int32{0, 1, 2, 3}), 1e-15)
	require.InDelta(t, 4, r.BalanceLoss([]float64{99, 0, 0, 0, 99, 0, 0, 0}, []int32{0, 0}), 1e-12)
	// Loads 3, 2, 1, 2 around a mean of 2.
	require.Equal(t, []float64{-0.5, 1, 0.5, 0}, r.BalanceBias([]float64{0, 1, 0, 0}, []int32{0, 0, 1, 0, 1, 2, 3, 3}, 0.5))
}

func TestExperts(t *testing.T) {
	const tokens, experts = 5, 3
	x := Experts{D: 4, F: 3, TopK: 2}
	ids := []int32{0, 2, 2, 0, 0, 2, 2, 0, 0, 2} // expert 1 gets nothing
	in, weights := Normals("in", tokens*4, 1), Normals("weights", tokens*2, 1)
	gate, up, down := Normals("gate", experts*12, 1), Normals("up", experts*12, 1), Normals("down", experts*12, 1)
	CheckGradient(t, "experts",
		func(in [][]float64) [][]float64 {
			return [][]float64{x.Forward(in[0], in[1], ids, in[2], in[3], in[4])}
		},
		func(in, d [][]float64) [][]float64 {
			a, b, c, e, f := x.Backward(d[0], in[0], in[1], ids, in[2], in[3], in[4])
			require.Equal(t, make([]float64, 12), c[12:24])
			return [][]float64{a, b, c, e, f}
		}, in, weights, gate, up, down)

	clamped := ClampedExperts{Experts: x, Alpha: 1.702, Limit: 0.8}
	with := func(in [][]float64) ClampedExperts {
		c := clamped
		c.Gate, c.Up, c.Down = in[5], in[6], in[7]
		return c
	}
	CheckGradient(t, "clamped experts",
		func(in [][]float64) [][]float64 {
			return [][]float64{with(in).Forward(in[0], in[1], ids, in[2], in[3], in[4])}
		},
		func(in, d [][]float64) [][]float64 {
			return with(in).Backward(d[0], in[0], in[1], ids, in[2], in[3], in[4])
		}, in, weights, gate, up, down, Normals("gate bias", experts*3, 1), Normals("up bias", experts*3, 1), Normals("down bias", experts*4, 1))

	// The same through sorted rows and grouped products.
	order, offsets := SortByExpert(ids, experts)
	require.Equal(t, []int32{0, 3, 4, 7, 8, 1, 2, 5, 6, 9}, order)
	require.Equal(t, []int32{0, 5, 5, 10}, offsets)
	var rows []float64
	for _, choice := range order {
		rows = append(rows, in[int(choice)/2*4:][:4]...)
	}
	h := GroupedLinear(SwiGLU(GroupedLinear(rows, gate, offsets, 3, 4), GroupedLinear(rows, up, offsets, 3, 4)), down, offsets, 4, 3)
	y := make([]float64, len(in))
	for i, choice := range order {
		for j := range 4 {
			y[int(choice)/2*4+j] += weights[choice] * h[i*4+j]
		}
	}
	near(t, x.Forward(in, weights, ids, gate, up, down), y, 1e-14)
	CheckGradient(t, "grouped linear",
		func(in [][]float64) [][]float64 { return [][]float64{GroupedLinear(in[0], in[1], offsets, 3, 4)} },
		func(in, d [][]float64) [][]float64 {
			dx, dw := GroupedLinearGrad(d[0], in[0], in[1], offsets, 3, 4)
			return [][]float64{dx, dw}
		}, rows, gate)
}

func TestMLA(t *testing.T) {
	for i, a := range []MLA{
		{B: 1, Lq: 1, Lk: 1, H: 1, N: 1, P: 0, R: 1, V: 1},
		{B: 2, Lq: 4, Lk: 6, H: 3, N: 3, P: 2, R: 5, V: 4, Causal: true},
		{B: 1, Lq: 5, Lk: 3, H: 2, N: 4, P: 3, R: 2, V: 3, Causal: true},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			q, c := Normals("q", a.B*a.Lq*a.H*(a.N+a.P), 1), Normals("c", a.B*a.Lk*a.R, 1)
			p, w := Normals("p", a.B*a.Lk*a.P, 1), Normals("w", a.H*(a.N+a.V)*a.R, 1)
			out, lse := a.Forward(q, c, p, w)
			absorbed, lse2 := a.Absorbed(q, c, p, w)
			near(t, out, absorbed, 1e-13)
			RequireClose(t, "lse", lse2, lse, Float64, 16)
			CheckGradient(t, "mla",
				func(in [][]float64) [][]float64 {
					out, lse := a.Forward(in[0], in[1], in[2], in[3])
					return [][]float64{out, lse}
				},
				func(in, d [][]float64) [][]float64 {
					dq, dc, dp, dw := a.Backward(in[0], in[1], in[2], in[3], d[0], d[1])
					return [][]float64{dq, dc, dp, dw}
				}, q, c, p, w)
		})
	}
}
