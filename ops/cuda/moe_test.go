//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// Routers of published models and odd ones, with ties, NaN and Inf among the logits: choices as native's.
func TestDeviceRoute(t *testing.T) {
	for _, r := range []ops.Router{
		{Experts: 1, TopK: 1}, {Experts: 60, TopK: 4}, {Experts: 128, TopK: 8, Renormalize: true}, {Experts: 64, TopK: 6, Scale: 16},
		{Experts: 256, TopK: 8, Groups: 8, KeepGroups: 4, Sigmoid: true, Renormalize: true, Scale: 2.5}, {Experts: 12, TopK: 3, Groups: 3, KeepGroups: 1},
		{Experts: 896, TopK: 16, Sigmoid: true, Renormalize: true, Scale: 2.446}, {Experts: 4, TopK: 2, Groups: 4, KeepGroups: 2, Sigmoid: true}, {Experts: 4096, TopK: 40},
	} {
		for _, tokens := range []int{0, 1, 67} {
			for _, bias := range []bool{false, true} {
				each(t, 13, fmt.Sprintf("%+v/T%d/bias=%v", r, tokens, bias), func(t *testing.T) { testRoute(t, r, tokens, bias) })
			}
		}
	}
}

func testRoute(t *testing.T, r ops.Router, tokens int, bias bool) {
	b := newBench(t)
	g := rand.New(rand.NewPCG(11, uint64(r.Experts)))
	logits := normal(g, F32, tokens*r.Experts, 2)
	for i := range logits {
		if i/r.Experts%5 == 3 { // ties
			logits[i] = math.Round(logits[i])
		}
	}
	c := Route{Router: r, T: tokens, IDs: b.out(F32, tokens*r.TopK), Weights: b.out(F32, tokens*r.TopK), WeightsType: F32, Logits: b.put(F32, logits), LogitsType: F32, BiasType: F32}
	var shift []float64
	if bias {
		shift = normal(g, F32, r.Experts, 0.2)
		c.Bias = b.put(F32, shift)
	}
	if tokens == 0 {
		require.NoError(t, c.Launch(b.d.Main()))
		return
	}
	b.run(c)
	ids, want := optest.Router(r).Route(logits, shift)
	require.Equal(t, wide(ids), b.getInts(c.IDs, tokens*r.TopK))
	got := b.get(F32, c.Weights, tokens*r.TopK)
	near(t, F32, 1, want, got) // one rounding from f64, measured 0.6
	again := c
	again.Given, again.Weights = true, b.out(F32, tokens*r.TopK)
	b.run(again)
	require.Equal(t, got, b.get(F32, again.Weights, tokens*r.TopK))
}

// What is not a number is chosen last, as natively.
func TestDeviceRouteNaN(t *testing.T) {
	b := newBench(t)
	nan, inf := math.NaN(), math.Inf(1)
	logits := []float64{1, nan, 3, 2, nan, nan, nan, nan, 1, inf, -inf, 0}
	r := Route{Router: ops.Router{Experts: 4, TopK: 3, Sigmoid: true}, T: 3, IDs: b.out(F32, 9), Logits: b.put(F32, logits), LogitsType: F32}
	b.run(r)
	require.Equal(t, []int{2, 3, 0, 0, 1, 2, 1, 0, 3}, b.getInts(r.IDs, 9))
	r.Router.Sigmoid = false // one NaN makes every share one
	b.run(r)
	require.Equal(t, []int{0, 1, 2, 0, 1, 2, 0, 1, 2}, b.getInts(r.IDs, 9))
}

func (b *bench) getInts(p Pointer, n int) []int {
	x := make([]int, n)
	for i, v := range as[int32](b.raw(p, 4*n)) {
		x[i] = int(v)
	}
	return x
}

func TestDeviceRouterLogits(t *testing.T) {
	for _, dt := range []DType{BF16, F16} {
		for _, c := range []struct{ t, n, k int }{{1, 1, 8}, {1, 128, 2048}, {8, 60, 136}, {9, 256, 1032}, {33, 129, 2304}, {64, 128, 264}} {
			each(t, 13, fmt.Sprintf("%v/%+v", dt, c), func(t *testing.T) {
				b := newBench(t)
				r := rand.New(rand.NewPCG(17, uint64(c.n)))
				x, w := normal(r, dt, c.t*c.k, 1), normal(r, dt, c.n*c.k, 1/math.Sqrt(float64(c.k)))
				l := Logits{Type: dt, T: c.t, N: c.n, K: c.k, X: b.put(dt, x), W: b.put(dt, w), Y: b.out(F32, c.t*c.n)}
				b.run(l)
				near(t, F32, 40, optest.Linear(x, w, nil, c.t, c.n, c.k), b.get(F32, l.Y, c.t*c.n)) // the tensor cores truncate
			})
		}
	}
}

type expertsCase struct {
	t, topK, e, d, f int
	ids              string // "": any; "one": all tokens to one expert; "few": some experts have none; "rising": expert e has 7e+1, top-k is 1
	residual, shared bool
}

var expertsCases = []expertsCase{
	{t: 1, topK: 1, e: 1, d: 1, f: 1}, {t: 3, topK: 1, e: 5, d: 6, f: 7}, {t: 67, topK: 2, e: 8, d: 33, f: 15, ids: "few"}, {t: 1, topK: 3, e: 8, d: 40, f: 16},
	{t: 5, topK: 2, e: 6, d: 40, f: 24, residual: true}, {t: 1, topK: 8, e: 128, d: 256, f: 136}, {t: 17, topK: 4, e: 16, d: 1032, f: 72}, {t: 64, topK: 8, e: 64, d: 128, f: 64, residual: true},
	{t: 64, topK: 2, e: 8, d: 64, f: 128, ids: "one"}, {t: 1, topK: 1, e: 4, d: 64, f: 40, shared: true}, {t: 9, topK: 3, e: 16, d: 1040, f: 72, shared: true, residual: true}, {t: 64, topK: 2, e: 8, d: 64, f: 128, shared: true}, {t: 65, topK: 2, e: 8, d: 64, f: 128}, {t: 130, topK: 3, e: 4, d: 72, f: 200, ids: "few"}, {t: 300, topK: 2, e: 3, d: 264, f: 328, ids: "one", residual: true},
	{t: 257, topK: 8, e: 64, d: 136, f: 264}, {t: 520, topK: 1, e: 2, d: 320, f: 520},
	{t: 6364, topK: 1, e: 43, d: 264, f: 72, ids: "rising"}, {t: 70, topK: 40, e: 48, d: 72, f: 16, residual: true}, // tiles of every height, more terms than are looked up at once
}

func TestDeviceExperts(t *testing.T) {
	for _, dt := range allTypes {
		for _, c := range expertsCases {
			each(t, 11, fmt.Sprintf("%v/%+v", dt, c), func(t *testing.T) { testExperts(t, dt, c) })
		}
	}
}

func (c expertsCase) choices(r *rand.Rand) []int32 {
	ids := make([]int32, c.t*c.topK)
	if c.ids == "rising" {
		at := 0
		for e := range c.e {
			for range 7*e + 1 {
				ids[at] = int32(e)
				at++
			}
		}
		return ids
	}
	for i := range c.t {
		for j, e := range r.Perm(c.e)[:min(c.topK, c.e)] {
			ids[i*c.topK+j] = int32(e)
			if c.ids == "few" {
				ids[i*c.topK+j] = int32(e / 2 * 2)
			}
			if c.ids == "one" {
				ids[i*c.topK+j] = int32(c.e - 1)
			}
		}
	}
	return ids
}

func testExperts(t *testing.T, dt DType, c expertsCase) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(12, uint64(c.t*c.e)))
	x, ids, weights := normal(r, dt, c.t*c.d, 1), c.choices(r), normal(r, F32, c.t*c.topK, 1)
	gate, up := normal(r, dt, c.e*c.f*c.d, 1/math.Sqrt(float64(c.d))), normal(r, dt, c.e*c.f*c.d, 1/math.Sqrt(float64(c.d)))
	down, res := normal(r, dt, c.e*c.d*c.f, 1/math.Sqrt(float64(c.f))), normal(r, dt, c.t*c.d, 1)
	want := optest.Experts{D: c.d, F: c.f, TopK: c.topK}.Forward(x, weights, ids, gate, up, down)
	a := Experts{Type: dt, T: c.t, TopK: c.topK, E: c.e, D: c.d, F: c.f, Y: b.out(dt, c.t*c.d), X: b.put(dt, x), Weights: b.put(F32, weights), WeightsF32: true,
		IDs: b.ints(wide(ids)...), Gate: b.put(dt, gate), Up: b.put(dt, up), Down: b.put(dt, down)}
	if c.shared {
		if dt == F32 {
			t.Skip("only the streaming kernels take a shared expert")
		}
		ones, all := make([]float64, c.t), make([]int32, c.t)
		for i := range ones {
			ones[i] = 1
		}
		g, u, w := normal(r, dt, c.f*c.d, 1/math.Sqrt(float64(c.d))), normal(r, dt, c.f*c.d, 1/math.Sqrt(float64(c.d))), normal(r, dt, c.d*c.f, 1/math.Sqrt(float64(c.f)))
		a.SharedGate, a.SharedUp, a.SharedDown = b.put(dt, g), b.put(dt, u), b.put(dt, w)
		for i, v := range (optest.Experts{D: c.d, F: c.f, TopK: 1}).Forward(x, ones, all, g, u, w) {
			want[i] += v
		}
	}
	if c.residual {
		a.Residual = b.put(dt, res)
		for i := range want {
			want[i] += res[i]
		}
	}
	scratch := int(a.ScratchBytes(b.d.Target()))
	a.Scratch = b.alloc(scratch).Pointer
	b.run(a)
	b.raw(a.Scratch, scratch)
	bound := 2. // roundings of the hidden rows, of those of the experts and of the sum: measured 1.1
	if dt == F32 {
		bound = 20
	}
	got := b.get(dt, a.Y, c.t*c.d)
	near(t, dt, bound, want, got)
	b.run(a)
	require.Equal(t, got, b.get(dt, a.Y, c.t*c.d), "two runs")
	if b.d.Target().Hopper() && dt != F32 && c.t > expertsStreamTokens { // the kernel of older GPUs
		portable := b.d.Target()
		portable.Portable = true
		a.Y = b.out(dt, c.t*c.d)
		require.NoError(t, a.Launch(as90{b.d.Main(), portable}))
		require.NoError(t, b.d.Main().Wait())
		near(t, dt, bound, want, b.get(dt, a.Y, c.t*c.d))
	}
}

// as90 is a queue that says it is another GPU.
type as90 struct {
	Queue
	gpu Target
}

func (q as90) Target() Target { return q.gpu }

// A token's row has the same bits alone and among others, within the streaming kernels and within the others.
func TestDeviceExpertsAloneAndAmongOthers(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(13, 1))
	c := expertsCase{t: 300, topK: 4, e: 16, d: 1024, f: 264}
	x, ids := b.put(BF16, normal(r, BF16, c.t*c.d, 1)), c.choices(r)
	weights, gate, up, down := b.put(F32, normal(r, F32, c.t*c.topK, 1)), b.put(BF16, normal(r, BF16, c.e*c.f*c.d, 0.03)), b.put(BF16, normal(r, BF16, c.e*c.f*c.d, 0.03)), b.put(BF16, normal(r, BF16, c.e*c.f*c.d, 0.05))
	run := func(from, n int) []float64 {
		a := Experts{Type: BF16, T: n, TopK: c.topK, E: c.e, D: c.d, F: c.f, Y: b.out(BF16, n*c.d), X: x.At(int64(2 * from * c.d)), Weights: weights.At(int64(4 * from * c.topK)), WeightsF32: true,
			IDs: b.ints(wide(ids[from*c.topK:][:n*c.topK])...), Gate: gate, Up: up, Down: down}
		a.Scratch = b.alloc(int(a.ScratchBytes(b.d.Target()))).Pointer
		b.run(a)
		return b.get(BF16, a.Y, n*c.d)
	}
	few := run(100, 64)
	for _, n := range []int{1, 7, 33} {
		require.Equal(t, few[20*c.d:(20+n)*c.d], run(120, n), "%d tokens", n)
	}
	require.Equal(t, run(0, 300)[150*c.d:], run(150, 150))
}

func TestDeviceSpeedExperts(t *testing.T) {
	speed(t)
	b := newBench(t)
	g := Gemm{Type: BF16, M: 8192, N: 4096, K: 2048, X: b.random(BF16, 8192*2048, 1), W: b.random(BF16, 4*4096*2048, 0.02), Y: b.out(BF16, 8192*4096)}
	w := g.W
	us := clock(t, b.d, 10, func(q Queue, i int) error {
		g.W = w.At(int64(i%4) * 4096 * 2048 * 2)
		return g.Launch(q)
	})
	row(t, "dense gemm", "M8192 N4096 K2048", us, 2*8192*4096*2048, 0)
	for _, s := range []struct {
		name       string
		e, k, d, f int
		tokens     []int
	}{{"e64", 64, 8, 2048, 1408, []int{4096}}, {"e64", 64, 8, 2048, 1024, []int{4096}}, {"qwen3-30b-a3b", 128, 8, 2048, 768, []int{4096, 1024, 128, 64, 16, 4, 1}}, {"deepseek-v3/4", 64, 8, 7168, 2048, []int{1, 4096}}} {
		gate, up, down := b.random(BF16, s.e*s.f*s.d, 0.02), b.random(BF16, s.e*s.f*s.d, 0.02), b.random(BF16, s.e*s.f*s.d, 0.02)
		for _, T := range s.tokens {
			r := rand.New(rand.NewPCG(14, uint64(T)))
			sets := 1
			if T <= 64 {
				sets = 6 // other experts each time, so that L2 does not hold them
			}
			var ids []int32
			for range sets {
				ids = append(ids, expertsCase{t: T, topK: s.k, e: s.e}.choices(r)...)
			}
			used := map[int32]bool{}
			for _, e := range ids[:T*s.k] {
				used[e] = true
			}
			p := b.ints(wide(ids)...)
			a := Experts{Type: BF16, T: T, TopK: s.k, E: s.e, D: s.d, F: s.f, Y: b.out(BF16, T*s.d), X: b.random(BF16, T*s.d, 1), Weights: b.random(F32, T*s.k, 1), WeightsF32: true, IDs: p, Gate: gate, Up: up, Down: down}
			a.Scratch = b.alloc(int(a.ScratchBytes(b.d.Target()))).Pointer
			us := clock(t, b.d, 6, func(q Queue, i int) error {
				a.IDs = p.At(int64(i % sets * T * s.k * 4))
				return a.Launch(q)
			})
			flops := 6 * float64(T*s.k) * float64(s.d*s.f)
			bytes := 6 * float64(len(used)*s.d*s.f)
			row(t, "experts "+s.name, fmt.Sprintf("E%d top%d T%d D%d F%d", s.e, s.k, T, s.d, s.f), us, flops, bytes)
			if T <= 64 {
				continue
			}
			part := &parts{Queue: b.d.Main()}
			require.NoError(t, a.Launch(part))
			for _, l := range part.list {
				us := clock(t, b.d, 6, func(q Queue, _ int) error { return q.Launch(l) })
				flops := map[string]float64{"moe_sm90_bf16_swiglu": 4, "moe_sm90_bf16": 2}[l.Kernel] * float64(T*s.k) * float64(s.d*s.f)
				row(t, "  "+l.Kernel, "", us, flops, 0)
			}
		}
	}
	for _, T := range []int{1, 8, 32, 64} {
		x, w := b.random(BF16, T*2048, 1), b.random(BF16, 128*2048, 0.02)
		l := Logits{Type: BF16, T: T, N: 128, K: 2048, X: x, W: w, Y: b.out(F32, T*128)}
		us := clock(t, b.d, 20, func(q Queue, _ int) error { return l.Launch(q) })
		row(t, "router logits", fmt.Sprintf("T%d N128 K2048", T), us, 0, 0)
	}
	for _, r := range []ops.Router{{Experts: 128, TopK: 8, Renormalize: true}, {Experts: 256, TopK: 8, Groups: 8, KeepGroups: 4, Sigmoid: true, Renormalize: true, Scale: 2.5}} {
		for _, T := range []int{1, 64, 4096} {
			a := Route{Router: r, T: T, IDs: b.out(F32, T*r.TopK), Weights: b.out(F32, T*r.TopK), WeightsType: F32, Logits: b.random(F32, T*r.Experts, 1), LogitsType: F32}
			us := clock(t, b.d, 20, func(q Queue, _ int) error { return a.Launch(q) })
			row(t, "route", fmt.Sprintf("E%d top%d groups %d T%d", r.Experts, r.TopK, r.Groups, T), us, 0, 0)
		}
	}
}
