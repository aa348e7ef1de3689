package native

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// A rowCase is one size of a row op with its inputs in float64 and what the
// oracle makes of them. run computes outputs of the sizes of want.
type rowCase struct {
	name string
	in   [][]float64
	want [][]float64
	c32  float64 // bound in unit roundoffs of float32; the measured value is beside it
}

// checkRows runs a body in float32 with every kernel set and in float64, into
// buffers of NaN between guards, with 1, 2 and 7 workers, against the oracle.
func checkRows(t *testing.T, c rowCase, run32 func(out, in [][]float32), run64 func(out, in [][]float64)) {
	t.Helper()
	t.Run(c.name, func(t *testing.T) {
		eachKernel(t, func(t *testing.T) {
			checkRowsOf(t, c, optest.Float32, c.c32, run32)
			if gemmKernel == portableKernel {
				// The oracle's own rounding is in the error.
				checkRowsOf(t, c, optest.Float64, 32, run64)
			}
		})
	})
}

func checkRowsOf[T Float](t *testing.T, c rowCase, unit optest.Precision, bound float64, run func(out, in [][]T)) {
	in := make([][]T, len(c.in))
	for i := range in {
		if c.in[i] != nil {
			in[i] = optest.GuardCopy(optest.Cast[T](c.in[i])).Data
		}
	}
	var sizes []int
	flat := eachWorkers(t, func() []T {
		out := make([][]T, len(c.want))
		guards := make([]*optest.Guarded[T], len(c.want))
		for i, w := range c.want {
			guards[i] = optest.Guard[T](len(w))
			out[i] = guards[i].Data
		}
		run(out, in)
		sizes = sizes[:0]
		var all []T
		for i := range out {
			optest.CheckGuards(t, c.name, guards[i])
			sizes = append(sizes, len(out[i]))
			all = append(all, out[i]...)
		}
		return all
	})
	for i, w := range c.want {
		d := optest.RequireClose(t, fmt.Sprintf("output %d", i), flat[:sizes[i]], w, unit, bound)
		if unit == optest.Float32 {
			t.Logf("output %d: rms error %.2f units", i, d.RMS/float64(unit))
		}
		flat = flat[sizes[i]:]
	}
}

func TestLinear(t *testing.T) {
	for _, s := range []struct{ m, n, k int }{{1, 1, 1}, {3, 65, 63}, {130, 70, 300}} {
		name := fmt.Sprintf("m %d n %d k %d", s.m, s.n, s.k)
		x, w := optest.Normals(name+"x", s.m*s.k, 1), optest.Normals(name+"w", s.n*s.k, 0.1)
		b, dy := optest.Normals(name+"b", s.n, 1), optest.Normals(name+"dy", s.m*s.n, 1)
		dx, dw, db := optest.LinearGrad(dy, x, w, s.m, s.n, s.k)
		// Measured: at most 4.5.
		checkRows(t, rowCase{name, [][]float64{x, w, b, dy},
			[][]float64{optest.Linear(x, w, b, s.m, s.n, s.k), optest.Linear(x, w, nil, s.m, s.n, s.k), dx, dw, db}, 6},
			linearAll[float32](s.m, s.n, s.k), linearAll[float64](s.m, s.n, s.k))
	}
}

func linearAll[T Float](m, n, k int) func(out, in [][]T) {
	return func(out, in [][]T) {
		x, w, b, dy := in[0], in[1], in[2], in[3]
		Linear(out[0], x, w, b, m, n, k)
		Linear(out[1], x, w, nil, m, n, k)
		LinearGradInput(out[2], dy, w, m, n, k)
		LinearGradWeight(out[3], dy, x, m, n, k)
		LinearGradBias(out[4], dy, m, n)
	}
}

var normSizes = []struct{ rows, d int }{{1, 5}, {3, 63}, {65, 65}, {100, 256}, {33, 1000}}

func TestRMSNorm(t *testing.T) {
	const eps = 1e-5
	for _, s := range normSizes {
		for _, weight := range []bool{true, false} {
			name := fmt.Sprintf("rows %d d %d weight %v", s.rows, s.d, weight)
			x, dy := optest.Normals(name+"x", s.rows*s.d, 2), optest.Normals(name+"dy", s.rows*s.d, 1)
			var w []float64
			if weight {
				w = optest.Normals(name+"w", s.d, 1)
			}
			dx, dw := optest.RMSNormGrad(dy, x, w, s.rows, s.d, eps)
			want := [][]float64{optest.RMSNorm(x, w, s.rows, s.d, eps), dx}
			if weight {
				want = append(want, dw)
			}
			// Measured: at most 2.1.
			checkRows(t, rowCase{name, [][]float64{x, w, dy}, want, 3}, rmsNormAll[float32](s.rows, s.d, eps), rmsNormAll[float64](s.rows, s.d, eps))
		}
	}
}

func rmsNormAll[T Float](rows, d int, eps float64) func(out, in [][]T) {
	return func(out, in [][]T) {
		x, w, dy := in[0], in[1], in[2]
		rstd := nans[T](rows)
		RMSNorm(out[0], rstd, x, w, rows, d, eps)
		var dw []T
		if w != nil {
			dw = out[2]
		}
		RMSNormGrad(out[1], dw, dy, x, w, rstd, rows, d)
	}
}

func TestLayerNorm(t *testing.T) {
	const eps = 1e-5
	for _, s := range normSizes {
		for parts := range 3 { // nothing, weight, weight and bias
			name := fmt.Sprintf("rows %d d %d parts %d", s.rows, s.d, parts)
			x, dy := optest.Normals(name+"x", s.rows*s.d, 2), optest.Normals(name+"dy", s.rows*s.d, 1)
			var w, b []float64
			if parts > 0 {
				w = optest.Normals(name+"w", s.d, 1)
			}
			if parts > 1 {
				b = optest.Normals(name+"b", s.d, 1)
			}
			dx, dw, db := optest.LayerNormGrad(dy, x, w, s.rows, s.d, eps)
			want := [][]float64{optest.LayerNorm(x, w, b, s.rows, s.d, eps), dx}
			if parts > 0 {
				want = append(want, dw)
			}
			if parts > 1 {
				want = append(want, db)
			}
			// Measured: at most 2.1.
			checkRows(t, rowCase{name, [][]float64{x, w, b, dy}, want, 4}, layerNormAll[float32](s.rows, s.d, eps), layerNormAll[float64](s.rows, s.d, eps))
		}
	}
}

func layerNormAll[T Float](rows, d int, eps float64) func(out, in [][]T) {
	return func(out, in [][]T) {
		x, w, b, dy := in[0], in[1], in[2], in[3]
		mean, rstd := nans[T](rows), nans[T](rows)
		LayerNorm(out[0], mean, rstd, x, w, b, rows, d, eps)
		var dw, db []T
		if w != nil {
			dw = out[2]
		}
		if b != nil {
			db = out[3]
		}
		LayerNormGrad(out[1], dw, db, dy, x, w, mean, rstd, rows, d)
	}
}

func TestSwiGLUAndGeGLU(t *testing.T) {
	for _, n := range []int{3, 15, 1000, 2*unitElements + 19} {
		name := fmt.Sprint("n ", n)
		g, u, dy := optest.Normals(name+"g", n, 3), optest.Normals(name+"u", n, 1), optest.Normals(name+"dy", n, 1)
		dg, du := optest.SwiGLUGrad(dy, g, u)
		// Measured: at most 1.8.
		checkRows(t, rowCase{"SwiGLU " + name, [][]float64{g, u, dy}, [][]float64{optest.SwiGLU(g, u), dg, du}, 3}, swiGLUAll[float32](n), swiGLUAll[float64](n))
		for _, tanh := range []bool{false, true} {
			dg, du := optest.GeGLUGrad(dy, g, u, tanh)
			// Measured: at most 1.8.
			checkRows(t, rowCase{fmt.Sprint("GeGLU tanh ", tanh, " ", name), [][]float64{g, u, dy}, [][]float64{optest.GeGLU(g, u, tanh), dg, du}, 4},
				geGLUAll[float32](n, tanh), geGLUAll[float64](n, tanh))
		}
	}
}

func swiGLUAll[T Float](n int) func(out, in [][]T) {
	return func(out, in [][]T) {
		SwiGLU(out[0], in[0], in[1], n)
		SwiGLUGrad(out[1], out[2], in[2], in[0], in[1], n)
	}
}

func geGLUAll[T Float](n int, tanh bool) func(out, in [][]T) {
	return func(out, in [][]T) {
		GeGLU(out[0], in[0], in[1], n, tanh)
		GeGLUGrad(out[1], out[2], in[2], in[0], in[1], n, tanh)
	}
}

// Far from 0 the gate is the identity or nothing, never NaN.
func TestGatesFarFromZero(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		gate := []float32{1e30, -1e30, 88, -88, 100, -100, 0, 1e-40, 1, 1, 1, 1, 1, 1, 1, 1}
		ones := make([]float32, 16)
		for i := range ones {
			ones[i] = 1
		}
		for _, f := range []func(y, dg, du []float32){
			func(y, dg, du []float32) {
				SwiGLU(y, gate, ones, 16)
				SwiGLUGrad(dg, du, ones, gate, ones, 16)
			},
			func(y, dg, du []float32) {
				GeGLU(y, gate[2:], ones, 14, false)
				GeGLUGrad(dg, du, ones, gate[2:], ones, 14, false)
			},
		} {
			y, dg, du := make([]float32, 16), make([]float32, 16), make([]float32, 16)
			f(y, dg, du)
			for _, x := range [][]float32{y, dg, du} {
				for i, v := range x {
					require.Falsef(t, v != v, "element %d", i)
				}
			}
		}
		y := make([]float32, 16)
		SwiGLU(y, gate, ones, 16)
		require.Equal(t, []float32{1e30, 0, 88, y[3], 100, y[5], 0, 0.5e-40}, y[:8])
		require.InDelta(t, 0, y[3], 1e-36)
		require.InDelta(t, 0, y[5], 1e-40)
	})
}

func TestAddAndAccumulate(t *testing.T) {
	const n = unitElements + 21
	a, b := optest.Normals("a", n, 1), optest.Normals("b", n, 1)
	scaled := make([]float64, n)
	for i := range scaled {
		scaled[i] = a[i] - 0.75*b[i]
	}
	// Measured: 0.54.
	checkRows(t, rowCase{"n", [][]float64{a, b}, [][]float64{optest.Add(a, b), scaled}, 1}, addAll[float32], addAll[float64])
}

func addAll[T Float](out, in [][]T) {
	n := len(in[0])
	Add(out[0], in[0], in[1], n)
	copy(out[1], in[0])
	Accumulate(out[1], in[1], n, -0.75)
}

func TestEmbedding(t *testing.T) {
	for _, s := range []struct{ n, v, d int }{{1, 1, 1}, {0, 5, 3}, {7, 300, 63}, {1000, 50, 65}} {
		name := fmt.Sprintf("n %d v %d d %d", s.n, s.v, s.d)
		w, dy, ids := optest.Normals(name+"w", s.v*s.d, 1), optest.Normals(name+"dy", s.n*s.d, 1), optest.Ints(name, s.n, s.v)
		// Measured: 0.43.
		checkRows(t, rowCase{name, [][]float64{w, dy}, [][]float64{optest.Embedding(w, ids, s.d), optest.EmbeddingGrad(dy, ids, s.v, s.d)}, 1},
			embeddingAll[float32](t, ids, s.v, s.d), embeddingAll[float64](t, ids, s.v, s.d))
	}
	y := nans[float32](4)
	require.EqualError(t, Embedding(y, make([]float32, 6), []int32{0, 3}, 2, 3, 2), "token 1 is 3, not in [0,3)")
	require.EqualError(t, EmbeddingGrad(y, make([]float32, 6), []int32{0, -1}, 2, 3, 2), "token 1 is -1, not in [0,3)")
	require.True(t, y[0] != y[0])
}

func embeddingAll[T Float](t *testing.T, ids []int32, v, d int) func(out, in [][]T) {
	return func(out, in [][]T) {
		require.NoError(t, Embedding(out[0], in[0], ids, len(ids), v, d))
		require.NoError(t, EmbeddingGrad(out[1], in[1], ids, len(ids), v, d))
	}
}

func TestCrossEntropy(t *testing.T) {
	const ignore = -100
	for _, s := range []struct {
		n, v  int
		zloss float64
	}{{1, 1, 0}, {5, 2, 0}, {63, 100, 1e-3}, {130, 256, 0}, {9, 3000, 1e-4}} {
		name := fmt.Sprintf("n %d v %d zloss %v", s.n, s.v, s.zloss)
		x, labels := optest.Normals(name, s.n*s.v, 3), optest.Ints(name, s.n, s.v)
		for i := 3; i < s.n; i += 4 {
			labels[i] = ignore
		}
		r := optest.CrossEntropy(x, labels, s.v, ignore, s.zloss)
		dx := optest.CrossEntropyGrad(0.5, x, labels, s.v, ignore, s.zloss)
		c := 8.0 // measured: 2.1, and 51 in one element where p - 1 cancels
		if s.v == 1 {
			c = 1
		}
		checkRows(t, rowCase{name, [][]float64{x, {0.5}}, [][]float64{{r.Loss}, r.LSE, dx}, c},
			crossEntropyAll[float32](t, labels, r.Count, s.v, ignore, s.zloss), crossEntropyAll[float64](t, labels, r.Count, s.v, ignore, s.zloss))
	}
}

func crossEntropyAll[T Float](t *testing.T, labels []int32, counted, v int, ignore int32, zloss float64) func(out, in [][]T) {
	return func(out, in [][]T) {
		count, err := CrossEntropy(out[0], out[1], in[0], labels, len(labels), v, ignore, zloss)
		require.NoError(t, err)
		require.Equal(t, counted, count)
		require.NoError(t, CrossEntropyGrad(out[2], in[1], in[0], out[1], labels, len(labels), v, ignore, zloss))
	}
}

func TestN02_AllLabelsIgnored(t *testing.T) {
	x, loss, lse, dx := []float32{1, 2, 3, 4}, nans[float32](1), nans[float32](2), nans[float32](4)
	count, err := CrossEntropy(loss, lse, x, []int32{7, 7}, 2, 2, 7, 0.1)
	require.NoError(t, err)
	require.Zero(t, count)
	require.Equal(t, []float32{0}, loss)
	require.NoError(t, CrossEntropyGrad(dx, []float32{1}, x, lse, []int32{7, 7}, 2, 2, 7, 0.1))
	require.Equal(t, make([]float32, 4), dx)
}

func TestCrossEntropySpecialRows(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		inf := math.Inf(1)
		const v = 17
		for _, c := range []struct {
			at5, at3     float64
			lse, lossOf5 float64
			rest         float64
			gradFinite   bool
		}{
			{at5: 0, at3: -inf, rest: -inf, lse: 0, lossOf5: 0, gradFinite: true},
			{at5: 0, at3: 1e4, rest: 0, lse: 1e4, lossOf5: 1e4, gradFinite: true},
			{at5: math.NaN(), lse: math.NaN(), lossOf5: math.NaN()},
			{at5: 0, at3: inf, lse: inf, lossOf5: inf},
			{at5: -inf, at3: -inf, rest: -inf, lse: -inf, lossOf5: math.NaN()},
		} {
			x := make([]float32, v)
			for i := range x {
				x[i] = float32(c.rest)
			}
			x[5], x[3] = float32(c.at5), float32(c.at3)
			loss, lse, dx := nans[float32](1), nans[float32](1), nans[float32](v)
			_, err := CrossEntropy(loss, lse, x, []int32{5}, 1, v, -1, 0)
			require.NoError(t, err)
			for _, p := range [][2]float64{{c.lse, float64(lse[0])}, {c.lossOf5, float64(loss[0])}} {
				if p[0] != p[0] {
					require.True(t, p[1] != p[1])
				} else {
					require.Equal(t, p[0], p[1])
				}
			}
			require.NoError(t, CrossEntropyGrad(dx, []float32{1}, x, lse, []int32{5}, 1, v, -1, 0))
			if c.gradFinite {
				for _, d := range dx {
					require.True(t, d-d == 0)
				}
			}
		}
	})
}

func TestCrossEntropyRefusesLabels(t *testing.T) {
	loss, x := nans[float32](1), make([]float32, 6)
	_, err := CrossEntropy(loss, x, x, []int32{-1, 3}, 2, 3, -1, 0)
	require.EqualError(t, err, "label of row 1 is 3, neither in [0,3) nor the ignored -1")
	require.True(t, loss[0] != loss[0])
	require.EqualError(t, CrossEntropyGrad(x, x, x, x, []int32{-2}, 1, 3, -1, 0), "label of row 0 is -2, neither in [0,3) nor the ignored -1")
}

func TestDropout(t *testing.T) {
	const n = unitElements + 7
	x := optest.Normals("x", n, 1)
	for _, p := range []float64{0, 0.1, 0.5, 1} {
		// Measured: 0.92.
		want := optest.Dropout(x, p, 1<<40+5, 3)
		checkRows(t, rowCase{fmt.Sprint("p ", p), [][]float64{x}, [][]float64{want}, 1},
			func(out, in [][]float32) { Dropout(out[0], in[0], n, p, 1<<40+5, 3) },
			func(out, in [][]float64) { Dropout(out[0], in[0], n, p, 1<<40+5, 3) })
	}
	// The published answers of Philox4x32-10 (Random123, kat_vectors).
	for key, want := range map[uint64][4]uint32{
		0:              {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		math.MaxUint64: {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
	} {
		w0, w1, w2, w3 := philox(key, key, key)
		require.Equal(t, want, [4]uint32{w0, w1, w2, w3})
	}
	y := make([]float32, n)
	nan := make([]float32, n)
	for i := range nan {
		nan[i] = float32(math.NaN())
	}
	Dropout(y, nan, n, 0.5, 1, 1)
	for i, v := range y {
		require.Equal(t, !optest.DropoutKeeps(uint64(i), 1, 1, 0.5), v == 0)
	}
}

func TestAdamW(t *testing.T) {
	const n = unitElements + 9
	p, m, g := optest.Normals("p", n, 1), optest.Normals("m", n, 0.1), optest.Normals("g", n, 2)
	v := optest.Uniforms("v", n, 0, 0.1)
	const clip = 0.25
	clipped := make([]float64, n)
	for i := range g {
		clipped[i] = clip * g[i]
	}
	for _, step := range []int{1, 7, 100000} {
		o := optest.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Step: step}
		p1, m1, v1 := o.Update(p, clipped, m, v)
		h := AdamWStep{LR: o.LR, Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, Decay: o.Decay, Step: step, GradScale: clip}
		// Measured: 0.75.
		checkRows(t, rowCase{fmt.Sprint("step ", step), [][]float64{p, m, v, g}, [][]float64{p1, m1, v1}, 2}, adamWAll[float32](h), adamWAll[float64](h))
	}
}

func adamWAll[T Float](h AdamWStep) func(out, in [][]T) {
	return func(out, in [][]T) {
		for i := range out {
			copy(out[i], in[i])
		}
		AdamW(out[0], out[1], out[2], in[3], len(in[3]), h)
	}
}

// AdamW measures what it writes, NaN anywhere among it.
func TestAdamWMeasures(t *testing.T) {
	const n = 2*unitElements + 9
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for at, v := range map[int]float32{0: -900, 5: nan, n - 1: nan, n - 3: 700, unitElements + 17: inf, 3: 1e-40} {
		p, m, w, g := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range p {
			p[i], g[i] = float32(i%7)-3, float32(i%5)-2
		}
		p[at] = v
		amax, count := AdamW(p, m, w, g, n, AdamWStep{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: 1, GradScale: 1})
		want, wantCount := FP8TensorAmax(p)
		require.Equal(t, want, amax, "element %d is %g", at, v)
		require.Equal(t, wantCount, count, "element %d is %g", at, v)
	}
}

func TestSumSquares(t *testing.T) {
	const n = 3*unitElements + 5
	x := optest.Normals("x", n, 1)
	x[77] = 1e25 // its square overflows float32
	norm := optest.GlobalNorm(x)
	checkRows(t, rowCase{"norm", [][]float64{x}, [][]float64{{norm}}, 1},
		func(out, in [][]float32) { out[0][0] = float32(math.Sqrt(SumSquares(in[0], n))) },
		func(out, in [][]float64) { out[0][0] = math.Sqrt(SumSquares(in[0], n)) })
	require.Zero(t, SumSquares([]float32(nil), 0))
}

// Row ops with the same bits in every kernel set: they use no fused
// multiply-add. (Linear is not among them.)
func TestRowOpsEqualThePortableForm(t *testing.T) {
	best := gemmKernel
	t.Cleanup(func() { gemmKernel = best })
	const rows, d = 37, 83
	in := func(name string) []float32 { return optest.Cast[float32](optest.Normals(name, rows*d, 1)) }
	run := func(k int) []float32 {
		gemmKernel = k
		var all []float32
		out := func(n int) []float32 { return nans[float32](n) }
		x, dy, u := in("x"), in("dy"), in("u")
		y, dx, dw, rstd := out(rows*d), out(rows*d), out(d), out(rows)
		RMSNorm(y, rstd, x, u[:d], rows, d, 1e-6)
		RMSNormGrad(dx, dw, dy, x, u[:d], rstd, rows, d)
		all = append(append(append(append(all, y...), rstd...), dx...), dw...)
		SwiGLU(y, x, u, rows*d)
		all = append(all, y...)
		SwiGLUGrad(dx, y, dy, x, u, rows*d)
		all = append(append(all, y...), dx...)
		labels := optest.Ints("labels", rows, d)
		_, err := CrossEntropy(dw, rstd, x, labels, rows, d, -1, 1e-3)
		require.NoError(t, err)
		require.NoError(t, CrossEntropyGrad(dx, dy, x, rstd, labels, rows, d, -1, 1e-3))
		all = append(append(append(all, dw[0]), rstd...), dx...)
		v := make([]float32, rows*d)
		AdamW(x, dy, v, u, rows*d, AdamWStep{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.1, Step: 3, GradScale: 0.7})
		return append(append(append(all, x...), dy...), v...)
	}
	want := run(portableKernel)
	for k := avx2Kernel; k <= best; k++ {
		requireSameBits(t, want, run(k))
	}
}

func TestRowOpsDoNotAllocate(t *testing.T) {
	const rows, d = 64, 64
	x, y, z, w := make([]float32, rows*d), make([]float32, rows*d), make([]float32, rows*d), make([]float32, rows*d)
	labels := make([]int32, rows)
	for i, f := range []func(){
		func() { Linear(y, x, w, w, rows, d, d); LinearGradBias(w, x, rows, d) },
		func() { RMSNorm(y, z, x, w, rows, d, 1e-5); RMSNormGrad(y, w, x, x, w, z, rows, d) },
		func() {
			LayerNorm(y, z, z[rows:], x, w, w, rows, d, 1e-5)
			LayerNormGrad(y, w, w[d:], x, x, w, z, z[rows:], rows, d)
		},
		func() { SwiGLU(y, x, w, rows*d); SwiGLUGrad(y, z, x, x, w, rows*d) },
		func() { GeGLU(y, x, w, rows*d, true); GeGLUGrad(y, z, x, x, w, rows*d, false) },
		func() { Add(y, x, w, rows*d); Accumulate(y, x, rows*d, 2) },
		func() {
			if Embedding(y, w, labels, rows, d, d) != nil || EmbeddingGrad(w, y, labels, rows, d, d) != nil {
				panic("refused")
			}
		},
		func() {
			_, err := CrossEntropy(z, y, x, labels, rows, d, -1, 0)
			if err != nil || CrossEntropyGrad(z, w, x, y, labels, rows, d, -1, 0) != nil {
				panic("refused")
			}
		},
		func() { Dropout(y, x, rows*d, 0.5, 1, 2) },
		func() {
			AdamW(y, z, w, x, rows*d, AdamWStep{LR: 1, Beta1: 0.9, Beta2: 0.9, Step: 1, GradScale: 1})
			SumSquares(x, rows*d)
		},
	} {
		f()
		require.Zerof(t, testing.AllocsPerRun(50, f), "call %d", i)
	}
}
