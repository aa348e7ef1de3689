package native

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

var nan = math.NaN()

// Most cases are of few keys.
func init() { attnSplitFrom = 0 }

// attnInBF16 and attnInBF16x6 make newAttnRun ask for products of bf16, and for
// float products by BF16x6.
var attnInBF16, attnInBF16x6 bool

// eachProducts runs a test with float products, with those of bf16, and by BF16x6
// where that is another way.
func eachProducts(t *testing.T, test func(t *testing.T)) {
	t.Cleanup(func() { attnInBF16, attnInBF16x6 = false, false })
	for i, name := range []string{"float", "bf16", "bf16x6"} {
		attnInBF16, attnInBF16x6 = i == 1, i == 2
		if !attnInBF16x6 || gemmKernel == amxKernel {
			t.Run(name, test)
		}
	}
}

// runAttention runs a in float32 on buffers full of NaN.
func runAttention(t *testing.T, a optest.Attention, q, k, v, dout []float64) AttentionGradArgs[float32] {
	t.Helper()
	r := newAttnRun[float32](a, q, k, v, dout, nil)
	r.run(t)
	return r.args
}

func ones(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

func TestA01_RowThatSeesNothing(t *testing.T) { eachProducts(t, a01RowThatSeesNothing) }

func a01RowThatSeesNothing(t *testing.T) {
	for name, a := range map[string]optest.Attention{
		"mask":             {Mask: []bool{true, true, false, false}, MaskShape: []int{1, 2, 2}},
		"causal and mask":  {Mask: []bool{true, false, false, false}, MaskShape: []int{1, 2, 2}, Causal: true},
		"sinks and a mask": {Mask: []bool{true, true, false, false}, MaskShape: []int{1, 2, 2}, Sinks: []float64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			a.B, a.Lq, a.Lk, a.Hq, a.Hkv, a.D, a.Dv = 1, 2, 2, 1, 1, 32, 32
			n := 2 * 32
			q, k, v := optest.Normals("q", n, 1), optest.Normals("k", n, 1), optest.Normals("v", n, 1)
			dout := optest.Normals("dout", n, 1)
			got := runAttention(t, a, q, k, v, dout)
			require.Equal(t, make([]float32, 32), got.Out[32:])
			require.True(t, math.IsInf(float64(got.LSE[1]), -1))
			require.Equal(t, make([]float32, 32), got.DQ[32:])

			// Row 1 adds nothing, even if all it holds is NaN.
			for i := 32; i < 64; i++ {
				q[i], dout[i] = nan, nan
			}
			again := runAttention(t, a, q, k, v, dout)
			require.Equal(t, got.Out, again.Out)
			require.Equal(t, got.DQ, again.DQ)
			require.Equal(t, got.DK, again.DK)
			require.Equal(t, got.DV, again.DV)
			require.Equal(t, got.DSinks, again.DSinks)
			for _, x := range [][]float32{got.DQ, got.DK, got.DV, got.DSinks} {
				require.True(t, finite(x))
			}
		})
	}
}

func TestA02_HiddenNaNChangesNothing(t *testing.T) { eachProducts(t, a02HiddenNaNChangesNothing) }

func a02HiddenNaNChangesNothing(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 3, Lk: 2, Hq: 1, Hkv: 1, D: 4, Dv: 4, Mask: []bool{true, false}, MaskShape: []int{1, 2}}
	q, dout := optest.Normals("q", 12, 1), optest.Normals("dout", 12, 1)
	for _, bad := range []float64{nan, math.Inf(1), math.Inf(-1)} {
		k, v := optest.Normals("k", 8, 1), optest.Normals("v", 8, 1)
		clear(k[4:])
		clear(v[4:])
		want := runAttention(t, a, q, k, v, dout)
		for i := 4; i < 8; i++ {
			k[i], v[i] = bad, bad
		}
		got := runAttention(t, a, q, k, v, dout)
		require.Equal(t, want.Out, got.Out)
		require.Equal(t, want.DQ, got.DQ)
		require.Equal(t, want.DK, got.DK)
		require.Equal(t, want.DV, got.DV)
		require.Equal(t, make([]float32, 4), got.DK[4:])
		require.Equal(t, make([]float32, 4), got.DV[4:])
	}
}

// A key that some queries see and others do not: NaN reaches only the former,
// forward and backward, and a query with NaN only the keys that it sees.
func TestA02_NaNReachesOnlyWhoSeesIt(t *testing.T) { eachProducts(t, a02NaNReachesOnlyWhoSeesIt) }

func a02NaNReachesOnlyWhoSeesIt(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 200, Lk: 200, Hq: 2, Hkv: 1, D: 4, Dv: 4, Causal: true, Window: 50}
	nq, nk := a.Lq*a.Hq*a.D, a.Lk*a.D
	q, k, v, dout := optest.Normals("q", nq, 1), optest.Normals("k", nk, 1), optest.Normals("v", nk, 1), optest.Normals("dout", nq, 1)
	clean := runAttention(t, a, q, k, v, dout)
	const at = 100
	t.Run("key and value", func(t *testing.T) {
		k, v := append([]float64(nil), k...), append([]float64(nil), v...)
		k[at*4], v[at*4+1] = nan, nan
		got := runAttention(t, a, q, k, v, dout)
		for i := range a.Lq {
			rows := got.Out[i*8 : i*8+8]
			if i < at || i >= at+50 {
				require.Equal(t, clean.Out[i*8:i*8+8], rows, i)
				require.Equal(t, clean.DQ[i*8:i*8+8], got.DQ[i*8:i*8+8], i)
			} else {
				require.True(t, rows[0] != rows[0] && rows[5] != rows[5], i)
			}
		}
		for j := range a.Lk {
			if j <= at-50 || j >= at+50 {
				require.Equal(t, clean.DK[j*4:j*4+4], got.DK[j*4:j*4+4], j)
				require.Equal(t, clean.DV[j*4:j*4+4], got.DV[j*4:j*4+4], j)
			}
		}
	})
	t.Run("value only", func(t *testing.T) {
		v := append([]float64(nil), v...)
		v[at*4+1] = math.Inf(1)
		got := runAttention(t, a, q, k, v, dout)
		for i := range a.Lq {
			if i < at || i >= at+50 {
				require.Equal(t, clean.Out[i*8:i*8+8], got.Out[i*8:i*8+8], i)
			} else {
				require.True(t, math.IsInf(float64(got.Out[i*8+1]), 1), i)
				require.True(t, math.Abs(float64(got.Out[i*8]-clean.Out[i*8])) < 1e-6, i)
			}
		}
	})
	t.Run("query", func(t *testing.T) {
		q, dout := append([]float64(nil), q...), append([]float64(nil), dout...)
		q[at*8], dout[at*8+1] = nan, nan
		got := runAttention(t, a, q, k, v, dout)
		for j := range a.Lk {
			if j > at || j <= at-50 {
				require.Equal(t, clean.DK[j*4:j*4+4], got.DK[j*4:j*4+4], j)
				require.Equal(t, clean.DV[j*4:j*4+4], got.DV[j*4:j*4+4], j)
			} else {
				require.True(t, got.DK[j*4] != got.DK[j*4] && got.DV[j*4+1] != got.DV[j*4+1], j)
			}
		}
	})
}

// Very low logits are not masked ones.
func TestA02_LowLogitsAreNotMasked(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 1, Lk: 2, Hq: 1, Hkv: 1, D: 1, Dv: 1, Scale: 1}
	got := runAttention(t, a, []float64{1}, []float64{-1e5, -1e5}, []float64{2, 4}, nil)
	require.Equal(t, []float32{3}, got.Out)
	require.InDelta(t, -1e5+math.Ln2, float64(got.LSE[0]), 1e-2)
}

func TestA03_CausalIsBottomRight(t *testing.T) { eachProducts(t, a03CausalIsBottomRight) }

func a03CausalIsBottomRight(t *testing.T) {
	for _, c := range []struct {
		lq, lk int
		want   []float32
	}{{2, 5, []float32{2.5, 3}}, {5, 2, []float32{0, 0, 0, 1, 1.5}}} {
		a := optest.Attention{B: 1, Lq: c.lq, Lk: c.lk, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true}
		got := runAttention(t, a, make([]float64, c.lq), ones(c.lk), []float64{1, 2, 3, 4, 5}[:c.lk], ones(c.lq))
		for i, w := range c.want {
			require.InDelta(t, w, got.Out[i], 2e-7, "query %d of %d", i, c.lq)
			if w == 0 {
				require.Zero(t, got.Out[i])
				require.True(t, math.IsInf(float64(got.LSE[i]), -1))
			}
		}
	}
}

func TestA04_QueryHeadReadsItsGroup(t *testing.T) { eachProducts(t, a04QueryHeadReadsItsGroup) }

func a04QueryHeadReadsItsGroup(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 1, Lk: 1, Hq: 4, Hkv: 2, D: 2, Dv: 1}
	got := runAttention(t, a, ones(8), ones(4), []float64{10, 20}, []float64{1, 2, 3, 4})
	require.Equal(t, []float32{10, 10, 20, 20}, got.Out)
	require.Equal(t, []float32{3, 7}, got.DV, "summed over the group")
}

func TestA07_AnyHeadDim(t *testing.T) {
	for _, d := range []int{33, 40, 80, 96, 192} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			c := attnCase{Attention: optest.Attention{B: 1, Lq: 20, Lk: 70, Hq: 2, Hkv: 1, D: d, Dv: d, Causal: true}}
			requireAttention(t, c)
		})
	}
}

func TestA08_EmptyKeysOfADenseBatch(t *testing.T) { eachProducts(t, a08EmptyKeysOfADenseBatch) }

func a08EmptyKeysOfADenseBatch(t *testing.T) {
	kvLen := []int32{0, 3, 0, 5}
	a := optest.Attention{B: 4, Lq: 2, Lk: 6, Hq: 9, Hkv: 3, D: 8, Dv: 8, KVLen: kvLen, Causal: true}
	q := optest.Normals("q", a.B*a.Lq*a.Hq*a.D, 1)
	k := optest.Normals("k", a.B*a.Lk*a.Hkv*a.D, 1)
	v := optest.Normals("v", a.B*a.Lk*a.Hkv*a.Dv, 1)
	dout := optest.Normals("dout", len(q), 1)
	for b, n := range kvLen { // what lies behind the length is never read
		for i := (b*a.Lk + int(n)) * a.Hkv * a.D; i < (b+1)*a.Lk*a.Hkv*a.D; i++ {
			k[i], v[i] = nan, nan
		}
	}
	got := runAttention(t, a, q, k, v, dout)
	nq, nk := a.Lq*a.Hq*a.D, a.Lk*a.Hkv*a.D
	for b := range a.B {
		one := a
		one.B, one.KVLen = 1, kvLen[b:b+1]
		alone := runAttention(t, one, q[b*nq:(b+1)*nq], k[b*nk:(b+1)*nk], v[b*nk:(b+1)*nk], dout[b*nq:(b+1)*nq])
		require.Equal(t, alone.Out, got.Out[b*nq:(b+1)*nq])
		require.Equal(t, alone.DQ, got.DQ[b*nq:(b+1)*nq])
		require.Equal(t, alone.DK, got.DK[b*nk:(b+1)*nk])
		require.Equal(t, alone.DV, got.DV[b*nk:(b+1)*nk])
		if kvLen[b] == 0 {
			require.Equal(t, make([]float32, nq), alone.Out)
			require.Equal(t, make([]float32, nk), alone.DK)
		}
	}
}

func TestAttentionIsBitEqualForAnyWorkers(t *testing.T) {
	eachProducts(t, attentionIsBitEqualForAnyWorkers)
}

func attentionIsBitEqualForAnyWorkers(t *testing.T) {
	defer SetWorkers(0)
	a := optest.Attention{B: 1, Lq: 700, Lk: 700, Hq: 4, Hkv: 2, D: 16, Dv: 16, Causal: true, Sinks: []float64{0, 1, 2, 3}}
	n := 700 * 4 * 16
	q, k, v, dout := optest.Normals("q", n, 1), optest.Normals("k", n/2, 1), optest.Normals("v", n/2, 1), optest.Normals("dout", n, 1)
	SetWorkers(1)
	want := runAttention(t, a, q, k, v, dout)
	for _, w := range []int{2, 7} {
		SetWorkers(w)
		got := runAttention(t, a, q, k, v, dout)
		require.Equal(t, want.Out, got.Out)
		require.Equal(t, want.LSE, got.LSE)
		require.Equal(t, want.DQ, got.DQ)
		require.Equal(t, want.DK, got.DK)
		require.Equal(t, want.DV, got.DV)
		require.Equal(t, want.DSinks, got.DSinks)
	}
}

func TestAttentionDoesNotAllocate(t *testing.T) { eachProducts(t, attentionDoesNotAllocate) }

func attentionDoesNotAllocate(t *testing.T) {
	r := attnBench(optest.Attention{B: 2, Lq: 150, Lk: 150, Hq: 4, Hkv: 2, D: 16, Dv: 16, Causal: true})
	require.Zero(t, testing.AllocsPerRun(20, func() {
		Attention(r.args.AttentionArgs)
		AttentionGrad(r.args)
	}))
}

func TestTanh(t *testing.T) {
	worst := 0.0
	for x := float32(1e-8); x < 30; x *= 1.00002 {
		want := math.Tanh(float64(x))
		worst = max(worst, math.Abs(float64(tanhOf(x))-want)/want)
		if tanhOf(-x) != -tanhOf(x) {
			t.Fatal(x)
		}
	}
	t.Logf("largest relative error %.3g", worst)
	require.Less(t, worst, 2e-7)
	inf := float32(math.Inf(1))
	require.Equal(t, []float32{0, 1, -1}, []float32{tanhOf(float32(0)), tanhOf(inf), tanhOf(-inf)})
	require.True(t, math.IsNaN(float64(tanhOf(float32(nan)))))
}

// Forward and gradient of a long sequence need memory in proportion to its
// length: the scores alone would be 256 MiB here. Measured 1.9 MB for two workers,
// who each have buffers of their own, 1 MB of it the three further copies of dq.
func TestAttentionMemoryIsLinear(t *testing.T) {
	SetWorkers(2)
	t.Cleanup(func() { SetWorkers(0) })
	a := optest.Attention{B: 1, Lq: 8192, Lk: 8192, Hq: 1, Hkv: 1, D: 8, Dv: 8, Causal: true}
	n := a.Lq * a.D
	r := newAttnRun[float32](a, optest.Normals("q", n, 1), optest.Normals("k", n, 1), optest.Normals("v", n, 1), optest.Normals("dout", n, 1), nil)
	var before, after runtime.MemStats
	scratch32.mu.Lock()
	clear(scratch32.free[:]) // what earlier calls left would not be counted
	scratch32.mu.Unlock()
	runtime.ReadMemStats(&before)
	Attention(r.args.AttentionArgs)
	AttentionGrad(r.args)
	runtime.ReadMemStats(&after)
	t.Logf("%d bytes allocated", after.TotalAlloc-before.TotalAlloc)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

// One random projection of every gradient by central differences in float64.
func TestAttentionGradientByDifferences(t *testing.T) {
	for _, c := range []optest.Attention{
		{B: 2, Lq: 5, Lk: 9, Hq: 4, Hkv: 2, D: 3, Dv: 5, Causal: true, Sinks: []float64{0, 1, -1, 2}},
		{B: 1, Lq: 12, Lk: 150, Hq: 2, Hkv: 1, D: 4, Dv: 4, Softcap: 2, Window: 100},
		{B: 1, Lq: 4, Lk: 6, Hq: 2, Hkv: 2, D: 4, Dv: 4, Mask: optest.Bools("m", 24, 0.5), MaskShape: []int{1, 4, 6}},
	} {
		name := fmt.Sprintf("%+v", c)
		inputs := [][]float64{
			optest.Normals(name+"q", c.B*c.Lq*c.Hq*c.D, 1), optest.Normals(name+"k", c.B*c.Lk*c.Hkv*c.D, 1),
			optest.Normals(name+"v", c.B*c.Lk*c.Hkv*c.Dv, 1),
		}
		if c.Sinks != nil {
			inputs = append(inputs, c.Sinks)
		}
		run := func(in [][]float64, dout, dlse []float64) AttentionGradArgs[float64] {
			a := c
			if c.Sinks != nil {
				a.Sinks = in[3]
			}
			r := newAttnRun[float64](a, in[0], in[1], in[2], dout, dlse)
			r.run(t)
			return r.args
		}
		optest.CheckGradient(t, name, func(in [][]float64) [][]float64 {
			a := run(in, nil, nil)
			return [][]float64{a.Out, a.LSE}
		}, func(in, dout [][]float64) [][]float64 {
			a := run(in, dout[0], dout[1])
			g := [][]float64{a.DQ, a.DK, a.DV}
			if c.Sinks != nil {
				g = append(g, a.DSinks)
			}
			return g
		}, inputs...)
	}
}

// Every size may be 0: nothing is read out of range, and what is written is what
// a row without keys gives.
func TestAttentionOfNothing(t *testing.T) { eachProducts(t, attentionOfNothing) }

func attentionOfNothing(t *testing.T) {
	for _, c := range []optest.Attention{
		{B: 0, Lq: 3, Lk: 3, Hq: 2, Hkv: 1, D: 4, Dv: 4},
		{B: 2, Lq: 0, Lk: 3, Hq: 2, Hkv: 1, D: 4, Dv: 4},
		{B: 2, Lq: 3, Lk: 0, Hq: 2, Hkv: 1, D: 4, Dv: 4},
		{B: 2, Lq: 3, Lk: 0, Hq: 2, Hkv: 1, D: 4, Dv: 4, KVLen: []int32{0, 0}, Sinks: []float64{1, 2}},
		{B: 0, Lq: 0, Lk: 0, Hq: 0, Hkv: 0, D: 0, Dv: 0},
	} {
		zeros := func(n int) []float64 { return make([]float64, n) }
		got := runAttention(t, c, zeros(c.B*c.Lq*c.Hq*c.D), zeros(c.B*c.Lk*c.Hkv*c.D), zeros(c.B*c.Lk*c.Hkv*c.Dv), zeros(c.B*c.Lq*c.Hq*c.Dv))
		for _, x := range [][]float32{got.Out, got.DQ, got.DK, got.DV, got.DSinks} {
			for _, v := range x {
				require.Zero(t, v, "%+v", c)
			}
		}
		for _, v := range got.LSE {
			require.True(t, math.IsInf(float64(v), -1))
		}
	}
}

// A score of -Inf that is seen is no mask: it weighs 0 beside finite ones, in
// the first tile, in a tile of its own and in a part of its own; and where a
// row has no other the formula gives NaN.
func TestInfiniteScores(t *testing.T) { eachProducts(t, infiniteScores) }

func infiniteScores(t *testing.T) {
	for _, lk := range []int{2, 300, 1100} {
		a := optest.Attention{B: 1, Lq: 1, Lk: lk, Hq: 1, Hkv: 1, D: 1, Dv: 1, Scale: 1}
		k, v := make([]float64, lk), ones(lk)
		for j := range lk - 1 {
			k[j] = math.Inf(-1)
		}
		v[lk-1] = 3
		got := runAttention(t, a, []float64{1}, k, v, nil)
		require.Equal(t, []float32{3}, got.Out, lk)
		require.Equal(t, []float32{0}, got.LSE, lk)
		k[lk-1] = math.Inf(-1)
		require.True(t, math.IsNaN(float64(runAttention(t, a, []float64{1}, k, v, nil).Out[0])), lk)
		k[0] = math.Inf(1)
		require.True(t, math.IsNaN(float64(runAttention(t, a, []float64{1}, k, v, nil).Out[0])), lk)
		k[0], k[lk-1] = nan, 0
		require.True(t, math.IsNaN(float64(runAttention(t, a, []float64{1}, k, v, nil).Out[0])), lk)
	}
}

// Scores of 1e9 are rounded to multiples of 64, those of a single query another
// way in the gradient than in the forward pass: dv stays a mean of dout.
func TestHugeScores(t *testing.T) { eachProducts(t, hugeScores) }

func hugeScores(t *testing.T) {
	for _, lq := range []int{1, 65} {
		a := optest.Attention{B: 3, Lq: lq, Lk: 70, Hq: 3, Hkv: 3, D: 64, Dv: 64, Scale: 1}
		q, k := optest.Normals("q", a.B*a.Lq*a.Hq*a.D, 1e4), optest.Normals("k", a.B*a.Lk*a.Hkv*a.D, 1e4)
		v, dout := optest.Normals("v", a.B*a.Lk*a.Hkv*a.Dv, 1), optest.Uniforms("dout", a.B*a.Lq*a.Hq*a.Dv, -1, 1)
		got := runAttention(t, a, q, k, v, dout)
		for _, x := range [][]float32{got.Out, got.LSE, got.DQ, got.DK, got.DV} {
			require.True(t, finite(x), lq)
		}
		for i, x := range got.DV {
			require.LessOrEqual(t, math.Abs(float64(x)), float64(a.Lq), i)
		}
	}
}

// NaN behind a mask that hides a key from some rows only.
func TestA02_MaskHidesNaNFromSomeRows(t *testing.T) { eachProducts(t, a02MaskHidesNaNFromSomeRows) }

func a02MaskHidesNaNFromSomeRows(t *testing.T) {
	a := optest.Attention{B: 1, Lq: 40, Lk: 3, Hq: 2, Hkv: 1, D: 4, Dv: 4, MaskShape: []int{1, 40, 3}}
	a.Mask = make([]bool, 120)
	for i := range a.Mask {
		a.Mask[i] = i%3 != 1 || i/3 == 7 // key 1 is seen by query 7 alone
	}
	nq := 40 * 2 * 4
	q, dout := optest.Normals("q", nq, 1), optest.Normals("dout", nq, 1)
	k, v := optest.Normals("k", 12, 1), optest.Normals("v", 12, 1)
	clean := runAttention(t, a, q, k, v, dout)
	k[4], v[5] = nan, nan
	got := runAttention(t, a, q, k, v, dout)
	for i := range 40 {
		at := i * 8
		if i == 7 {
			require.True(t, math.IsNaN(float64(got.Out[at])) && math.IsNaN(float64(got.DQ[at])))
			continue
		}
		require.Equal(t, clean.Out[at:at+8], got.Out[at:at+8], i)
		require.Equal(t, clean.DQ[at:at+8], got.DQ[at:at+8], i)
	}
}

// TestAttentionBF16x6OfFewKeys: with one key tile a sequence has the products of float32.
func TestAttentionBF16x6OfFewKeys(t *testing.T) {
	if gemmKernel != amxKernel {
		t.Skip("no tiles")
	}
	defer func(from int) { attnInBF16x6, attnSplitFrom = false, from }(attnSplitFrom)
	attnSplitFrom = attnKeys + 1
	a := optest.Attention{B: 2, Lq: 300, Lk: attnKeys, Hq: 16, Hkv: 8, D: 8, Dv: 8}
	nq, nk := a.B*a.Lq*a.Hq*a.D, a.B*a.Lk*a.Hkv*a.D
	q, k, v, dout := optest.Normals("q", nq, 1), optest.Normals("k", nk, 1), optest.Normals("v", nk, 1), optest.Normals("dout", nq, 1)
	plain := runAttention(t, a, q, k, v, dout)
	attnInBF16x6 = true
	got := runAttention(t, a, q, k, v, dout)
	for i, x := range [][]float32{plain.Out, plain.LSE, plain.DQ, plain.DK, plain.DV} {
		requireSameBits(t, x, [][]float32{got.Out, got.LSE, got.DQ, got.DK, got.DV}[i])
	}
}

// TestAttentionBF16x6OfMixedLengths: in one batch a sequence of one key tile has the
// float products, in forward tiles that are those of the longer one.
func TestAttentionBF16x6OfMixedLengths(t *testing.T) {
	defer func(from int) { attnInBF16x6, attnSplitFrom = false, from }(attnSplitFrom)
	attnSplitFrom, attnInBF16x6 = attnKeys+1, true
	a := optest.Attention{B: 2, Lq: 300, Lk: 600, Hq: 16, Hkv: 8, D: 4, Dv: 4, KVLen: []int32{100, 600}, Causal: true}
	requireAttention(t, attnCase{name: "mixed lengths", Attention: a})
}

// Rows that words of three parts cannot stand for have the products of float32: each
// row is within 200 roundoffs of its largest element (measured 63, where terms cancel).
func TestAttentionBF16x6OfAnyMagnitude(t *testing.T) {
	if gemmKernel != amxKernel {
		t.Skip("no tiles")
	}
	defer func() { attnInBF16x6 = false }()
	a := optest.Attention{B: 1, Lq: 150, Lk: 150, Hq: 2, Hkv: 1, D: 4, Dv: 4, Causal: true}
	nq, nk := a.Lq*a.Hq*a.D, a.Lk*a.D
	q, k, v, dout := optest.Normals("q", nq, 1), optest.Normals("k", nk, 1), optest.Normals("v", nk, 1), optest.Normals("dout", nq, 1)
	for c := range 4 {
		q[60*8+c] *= 0x1p-50
		k[20*4+c] *= 0x1p-60
		v[c] *= 0x1p-100 // alone in what the first query sees
		v[31*4+c] *= 0x1p40
		v[70*4+c] *= 0x1p-70
		dout[90*8+c] *= 0x1p-80
		dout[140*8+c] *= 0x1p40
	}
	attnInBF16x6 = false
	plain := runAttention(t, a, q, k, v, dout)
	attnInBF16x6 = true
	got := runAttention(t, a, q, k, v, dout)
	for name, x := range map[string][2][]float32{"out": {plain.Out, got.Out}, "dq": {plain.DQ, got.DQ}, "dk": {plain.DK, got.DK}, "dv": {plain.DV, got.DV}} {
		for i := 0; i < len(x[0]); i += 4 {
			most, off := 0.0, 0.0
			for c := i; c < i+4; c++ {
				most, off = max(most, math.Abs(float64(x[0][c]))), max(off, math.Abs(float64(x[0][c]-x[1][c])))
			}
			require.LessOrEqualf(t, off, 200*0x1p-24*most, "%s row %d: %v, plain %v", name, i/4, x[1][i:i+4], x[0][i:i+4])
		}
	}
}
