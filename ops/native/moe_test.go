package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

var routers = []Router{
	{Experts: 1, TopK: 1},
	{Experts: 6, TopK: 2},
	{Experts: 8, TopK: 8, Renormalize: true},
	{Experts: 12, TopK: 3, Renormalize: true, Scale: 1.7},
	{Experts: 6, TopK: 2, Sigmoid: true},
	{Experts: 16, TopK: 4, Sigmoid: true, Renormalize: true, Scale: 2.446, Groups: 4, KeepGroups: 2},
	{Experts: 6, TopK: 1, Groups: 6, KeepGroups: 1},
}

func oracleRouter(r Router) optest.Router {
	return optest.Router{Experts: r.Experts, TopK: r.TopK, Groups: r.Groups, KeepGroups: r.KeepGroups,
		Sigmoid: r.Sigmoid, Renormalize: r.Renormalize, Scale: r.Scale}
}

func noIDs(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = -99
	}
	return ids
}

func TestRouter(t *testing.T) { both(t, testRouter[float32], testRouter[float64]) }

func testRouter[T Float](t *testing.T) {
	for i, r := range routers {
		for _, tokens := range []int{0, 1, 33, 100} {
			rnd := rand.New(rand.NewPCG(31, uint64(i)))
			logits, bias := normals[T](rnd, tokens*r.Experts), normals[T](rnd, r.Experts)
			dw, dloss := normals[T](rnd, tokens*r.TopK), []T{1.5}
			require.NoError(t, r.Check())
			oracle := oracleRouter(r)
			wantIDs, wantW := oracle.Route(wide(logits), wide(bias))
			ids, weights := noIDs(tokens*r.TopK), nans[T](tokens*r.TopK)
			dl, loss, dbal := nans[T](len(logits)), nans[T](1), nans[T](len(logits))
			eachWorkers(t, func() []T {
				unmodified(t, func() {
					Route(ids, weights, logits, bias, tokens, r)
					RouteGrad(dl, dw, logits, ids, tokens, r)
					BalanceLoss(loss, logits, ids, tokens, r)
					BalanceLossGrad(dbal, dloss, logits, ids, tokens, r)
				}, logits, bias, dw, dloss)
				return flat(weights, dl, loss, dbal)
			})
			require.Equal(t, append([]int32{}, wantIDs...), ids)
			require.NoError(t, CheckExpertIDs(ids, r.Experts))
			near(t, "weights", weights, wantW, 1)
			near(t, "dlogits", dl, oracle.RouteGrad(wide(dw), wide(logits), ids), 2)
			if tokens == 0 {
				require.Zero(t, loss[0])
				continue
			}
			near(t, "loss", loss, []float64{oracle.BalanceLoss(wide(logits), ids)}, 1)
			near(t, "loss dlogits", dbal, oracle.BalanceLossGrad(1.5, wide(logits), ids), 2)
			next := nans[T](r.Experts)
			BalanceBias(next, bias, ids, r, .125)
			require.InDeltaSlice(t, oracle.BalanceBias(wide(bias), ids, .125), wide(next), 1e-6)
		}
	}
}

func TestRouterGradByDifferences(t *testing.T) {
	const tokens = 5
	for i, r := range routers {
		rnd := rand.New(rand.NewPCG(32, uint64(i)))
		logits := normals[float64](rnd, tokens*r.Experts)
		for i, p := range rnd.Perm(len(logits)) { // no two so close that a step swaps them
			logits[i] = .1*float64(p) + .01*logits[i]
		}
		ids := noIDs(tokens * r.TopK)
		Route(ids, nans[float64](tokens*r.TopK), logits, nil, tokens, r)
		projected(t, fmt.Sprint(r), func() [][]float64 {
			w, loss := nans[float64](tokens*r.TopK), nans[float64](1)
			Route(noIDs(tokens*r.TopK), w, logits, nil, tokens, r)
			BalanceLoss(loss, logits, ids, tokens, r)
			return [][]float64{w, loss}
		}, func(u [][]float64) [][]float64 {
			a, b := nans[float64](len(logits)), nans[float64](len(logits))
			RouteGrad(a, u[0], logits, ids, tokens, r)
			BalanceLossGrad(b, u[1], logits, ids, tokens, r)
			for i, v := range b {
				a[i] += v
			}
			return [][]float64{a}
		}, logits)
	}
}

func TestRouterChoice(t *testing.T) {
	route := func(r Router, logits, bias []float32) []int32 {
		ids := noIDs(r.TopK)
		Route(ids, nans[float32](r.TopK), logits, bias, 1, r)
		return ids
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	sig := func(r Router) Router { r.Sigmoid = true; return r }
	// Equal scores: the lower index first.
	require.Equal(t, []int32{1, 2, 0}, route(Router{Experts: 4, TopK: 3}, []float32{0, 1, 1, 0}, nil))
	require.Equal(t, []int32{0, 1, 2, 3}, route(Router{Experts: 4, TopK: 4}, []float32{0, 0, 0, 0}, nil))
	// The bias chooses, the sum of the two best ranks a group.
	require.Equal(t, []int32{3, 2}, route(sig(Router{Experts: 4, TopK: 2}), []float32{0, 1, 2, -1}, []float32{0, 0, 0, 1}))
	require.Equal(t, []int32{0, 1}, route(sig(Router{Experts: 4, TopK: 2, Groups: 2, KeepGroups: 1}), []float32{1, 1, 2, -3}, nil))
	// Equal groups: the lower one.
	require.Equal(t, []int32{0, 1}, route(sig(Router{Experts: 4, TopK: 2, Groups: 2, KeepGroups: 1}), []float32{1, 1, 1, 1}, nil))
	// NaN and banned experts come last; no expert twice, whatever the logits.
	require.Equal(t, []int32{2, 0}, route(sig(Router{Experts: 3, TopK: 2}), []float32{0, nan, 1}, nil))
	require.Equal(t, []int32{2, 1}, route(sig(Router{Experts: 3, TopK: 2}), []float32{5, 0, 1}, []float32{-inf, 0, 0}))
	require.Equal(t, []int32{0, 1, 2}, route(sig(Router{Experts: 3, TopK: 3}), []float32{nan, nan, nan}, nil))
	require.Equal(t, []int32{0, 1, 2}, route(Router{Experts: 3, TopK: 3}, []float32{nan, 1, 2}, nil))
}

func TestRouterChecks(t *testing.T) {
	for _, c := range []struct {
		r    Router
		want string
	}{
		{Router{Experts: 4}, "router: top-k must be from 1 to the number of experts, got top-k 0 of 4 experts"},
		{Router{Experts: 4, TopK: 5}, "router: top-k must be from 1 to the number of experts, got top-k 5 of 4 experts"},
		{Router{Experts: 5, TopK: 1, Groups: 2, KeepGroups: 1}, "router: 5 experts do not make 2 groups of one size"},
		{Router{Experts: 4, TopK: 1, Groups: 2}, "router: must keep from 1 to all 2 groups, got 0"},
		{Router{Experts: 4, TopK: 1, Groups: 2, KeepGroups: 3}, "router: must keep from 1 to all 2 groups, got 3"},
		{Router{Experts: 4, TopK: 3, Groups: 2, KeepGroups: 1}, "router: top-k 3 is more than the 2 experts of 1 groups"},
	} {
		require.EqualError(t, c.r.Check(), c.want)
	}
	require.EqualError(t, CheckExpertIDs([]int32{0, 3, 4}, 4), "experts: choice 2 is expert 4, must be from 0 to 3")
	require.EqualError(t, CheckExpertIDs([]int32{-1}, 4), "experts: choice 0 is expert -1, must be from 0 to 3")
}

func TestSortByExpert(t *testing.T) {
	for _, ids := range [][]int32{nil, {0}, {3, 1, 3, 0, 1, 3}, {2, 2, 2, 2}} {
		order, offsets := optest.SortByExpert(ids, 4)
		gotOrder, position, gotOffsets := noIDs(len(ids)), noIDs(len(ids)), noIDs(5)
		SortByExpert(gotOrder, position, gotOffsets, ids, 4)
		require.Equal(t, append([]int32{}, order...), gotOrder)
		require.Equal(t, offsets, gotOffsets)
		for i, choice := range gotOrder {
			require.EqualValues(t, i, position[choice])
		}
	}
}

func TestGroupedLinear(t *testing.T) { both(t, testGroupedLinear[float32], testGroupedLinear[float64]) }

func testGroupedLinear[T Float](t *testing.T) {
	for i, c := range []struct {
		offsets []int32
		n, k    int
	}{
		{[]int32{0, 0, 0}, 3, 4},
		{[]int32{0, 1}, 1, 1},
		{[]int32{0, 0, 100, 101, 101, 300, 300}, 130, 37},
		{[]int32{0, 95, 191, 288, 288}, 7, 200},
		{[]int32{0, 0, 300}, 100, 9},
	} {
		r := rand.New(rand.NewPCG(33, uint64(i)))
		e := len(c.offsets) - 1
		m := int(c.offsets[e])
		x, w, dy := normals[T](r, m*c.k), normals[T](r, e*c.n*c.k), normals[T](r, m*c.n)
		want := optest.GroupedLinear(wide(x), wide(w), c.offsets, c.n, c.k)
		wantX, wantW := optest.GroupedLinearGrad(wide(dy), wide(x), wide(w), c.offsets, c.n, c.k)
		// The same rows found through an index of a shuffled x.
		perm := r.Perm(m)
		shuffled, rows := make([]T, m*c.k), make([]int32, m)
		for i, p := range perm {
			copy(shuffled[p*c.k:(p+1)*c.k], x[i*c.k:(i+1)*c.k])
			rows[i] = int32(p)
		}
		for _, g := range []Grouped{{Offsets: c.offsets, N: c.n, K: c.k}, {Offsets: c.offsets, Rows: rows, N: c.n, K: c.k}} {
			in := x
			if g.Rows != nil {
				in = shuffled
			}
			y, dx, dw := nans[T](m*c.n), nans[T](m*c.k), nans[T](len(w))
			eachWorkers(t, func() []T {
				unmodified(t, func() {
					GroupedLinear(y, in, w, g)
					GroupedLinearGradInput(dx, dy, w, g)
					GroupedLinearGradWeight(dw, dy, in, g)
				}, in, w, dy)
				return flat(y, dx, dw)
			})
			near(t, "y", y, want, 16)
			near(t, "dx", dx, wantX, 16)
			near(t, "dw", dw, wantW, 24)
		}
	}
}

func TestExperts(t *testing.T) { both(t, testExperts[float32], testExperts[float64]) }

func testExperts[T Float](t *testing.T) {
	for i, x := range []Experts{
		{Tokens: 0, TopK: 2, E: 3, D: 4, F: 5},
		{Tokens: 9, TopK: 1, E: 1, D: 3, F: 2},
		{Tokens: 5, TopK: 2, E: 7, D: 9, F: 6},
		{Tokens: 150, TopK: 3, E: 5, D: 20, F: 33},
	} {
		r := rand.New(rand.NewPCG(34, uint64(i)))
		in, dy := normals[T](r, x.Tokens*x.D), normals[T](r, x.Tokens*x.D)
		gate, up, down := normals[T](r, x.E*x.F*x.D), normals[T](r, x.E*x.F*x.D), normals[T](r, x.E*x.F*x.D)
		router := Router{Experts: x.E, TopK: x.TopK, Sigmoid: true}
		ids, weights := noIDs(x.Tokens*x.TopK), nans[T](x.Tokens*x.TopK)
		Route(ids, weights, normals[T](r, x.Tokens*x.E), nil, x.Tokens, router)
		oracle := optest.Experts{D: x.D, F: x.F, TopK: x.TopK}
		want := oracle.Forward(wide(in), wide(weights), ids, wide(gate), wide(up), wide(down))
		wantIn, wantW, wantG, wantU, wantD := oracle.Backward(wide(dy), wide(in), wide(weights), ids, wide(gate), wide(up), wide(down))
		y := nans[T](len(in))
		g := ExpertsGrads[T]{Tokens: nans[T](len(in)), Weights: nans[T](len(weights)), Gate: nans[T](len(gate)), Up: nans[T](len(up)), Down: nans[T](len(down))}
		eachWorkers(t, func() []T {
			unmodified(t, func() {
				ExpertsForward(y, in, weights, ids, gate, up, down, x, nil)
				ExpertsGrad(g, dy, in, weights, ids, gate, up, down, x, nil)
			}, in, weights, gate, up, down, dy)
			return flat(y, g.Tokens, g.Weights, g.Gate, g.Up, g.Down)
		})
		near(t, "y", y, want, 16)
		near(t, "dx", g.Tokens, wantIn, 16)
		near(t, "dweights", g.Weights, wantW, 16)
		near(t, "dgate", g.Gate, wantG, 16)
		near(t, "dup", g.Up, wantU, 16)
		near(t, "ddown", g.Down, wantD, 16)
		run := func() {
			ExpertsForward(y, in, weights, ids, gate, up, down, x, nil)
			ExpertsGrad(g, dy, in, weights, ids, gate, up, down, x, nil)
		}
		require.Zero(t, allocs(run))
	}
}

// A token's output does not depend on what else is in the batch, not even in
// the last bit: nothing is dropped and sums run in the order of the choices.
func TestExpertsTokensAreIndependent(t *testing.T) {
	x := Experts{Tokens: 200, TopK: 2, E: 4, D: 24, F: 40}
	r := rand.New(rand.NewPCG(35, 35))
	in, w := normals[float32](r, x.Tokens*x.D), normals[float32](r, x.Tokens*x.TopK)
	gate, up, down := normals[float32](r, x.E*x.F*x.D), normals[float32](r, x.E*x.F*x.D), normals[float32](r, x.E*x.F*x.D)
	ids := make([]int32, x.Tokens*x.TopK) // all tokens to experts 1 and 3
	for i := range ids {
		ids[i] = int32(1 + 2*(i%2))
	}
	all := nans[float32](len(in))
	ExpertsForward(all, in, w, ids, gate, up, down, x, nil)
	one := x
	one.Tokens = 1
	for _, tok := range []int{0, 57, 199} {
		y := nans[float32](x.D)
		ExpertsForward(y, in[tok*x.D:][:x.D], w[tok*2:][:2], ids[:2], gate, up, down, one, nil)
		requireSameBits(t, all[tok*x.D:(tok+1)*x.D], y)
	}
}

func TestExpertsGradByDifferences(t *testing.T) {
	x := Experts{Tokens: 6, TopK: 2, E: 4, D: 5, F: 3}
	r := rand.New(rand.NewPCG(36, 36))
	in, w := normals[float64](r, x.Tokens*x.D), normals[float64](r, x.Tokens*x.TopK)
	gate, up, down := normals[float64](r, x.E*x.F*x.D), normals[float64](r, x.E*x.F*x.D), normals[float64](r, x.E*x.F*x.D)
	ids := []int32{0, 1, 3, 0, 1, 3, 0, 3, 1, 0, 3, 1} // expert 2 has no token
	projected(t, "experts", func() [][]float64 {
		y := nans[float64](len(in))
		ExpertsForward(y, in, w, ids, gate, up, down, x, nil)
		return [][]float64{y}
	}, func(u [][]float64) [][]float64 {
		g := ExpertsGrads[float64]{Tokens: nans[float64](len(in)), Weights: nans[float64](len(w)), Gate: nans[float64](len(gate)), Up: nans[float64](len(up)), Down: nans[float64](len(down))}
		ExpertsGrad(g, u[0], in, w, ids, gate, up, down, x, nil)
		return [][]float64{g.Tokens, g.Weights, g.Gate, g.Up, g.Down}
	}, in, w, gate, up, down)
}

// BenchmarkExperts: 1024 tokens, 2 of 16 experts of 256 x 256; the peer is one
// dense SwiGLU feed-forward with the same number of products.
func BenchmarkExperts(b *testing.B) {
	x := Experts{Tokens: 1024, TopK: 2, E: 16, D: 256, F: 256}
	r := rand.New(rand.NewPCG(37, 37))
	in, w := normals[float32](r, x.Tokens*x.D), normals[float32](r, x.Tokens*x.TopK)
	n := x.E * x.F * x.D
	gate, up, down := normals[float32](r, n), normals[float32](r, n), normals[float32](r, n)
	ids := make([]int32, x.Tokens*x.TopK)
	Route(ids, make([]float32, len(ids)), normals[float32](r, x.Tokens*x.E), nil, x.Tokens, Router{Experts: x.E, TopK: x.TopK})
	y := make([]float32, len(in))
	g := ExpertsGrads[float32]{Tokens: make([]float32, len(in)), Weights: make([]float32, len(w)), Gate: make([]float32, n), Up: make([]float32, n), Down: make([]float32, n)}
	b.Run("forward", func(b *testing.B) {
		for b.Loop() {
			ExpertsForward(y, in, w, ids, gate, up, down, x, nil)
		}
	})
	b.Run("gradient", func(b *testing.B) {
		for b.Loop() {
			ExpertsGrad(g, y, in, w, ids, gate, up, down, x, nil)
		}
	})
	m := x.Tokens * x.TopK
	rows, p, q := normals[float32](r, m*x.D), make([]float32, m*x.F), make([]float32, m*x.F)
	b.Run("dense forward", func(b *testing.B) {
		for b.Loop() {
			Linear(p, rows, gate, nil, m, x.F, x.D)
			Linear(q, rows, up, nil, m, x.F, x.D)
			SwiGLU(p, p, q, m*x.F)
			Linear(q, p, down, nil, m, x.D, x.F)
		}
	})
}
