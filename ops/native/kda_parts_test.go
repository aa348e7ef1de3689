package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

func wide[T Float](x []T) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// unmodified calls f and requires that it left the inputs alone.
func unmodified[T Float](t *testing.T, f func(), inputs ...[]T) {
	t.Helper()
	kept := make([][]T, len(inputs))
	for i, x := range inputs {
		kept[i] = append([]T(nil), x...)
	}
	f()
	for i, x := range inputs {
		requireSameBits(t, kept[i], x)
	}
}

// projected checks a float64 gradient with one random direction for each input
// against the fourth-order central difference of sum u f.
func projected(t *testing.T, name string, f func() [][]float64, grads func(u [][]float64) [][]float64, inputs ...[]float64) {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	var u [][]float64
	for _, y := range f() {
		u = append(u, normals[float64](r, len(y)))
	}
	value := func() float64 {
		sum := 0.0
		for i, y := range f() {
			for j, v := range y {
				sum += u[i][j] * v
			}
		}
		return sum
	}
	got := grads(u)
	for i, x := range inputs {
		dir := normals[float64](r, len(x))
		kept := append([]float64(nil), x...)
		at := func(h float64) float64 {
			for j := range x {
				x[j] = kept[j] + h*dir[j]
			}
			v := value()
			copy(x, kept)
			return v
		}
		const h = 1e-4
		want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		sum, size := 0.0, 1e-12
		for j, v := range got[i] {
			sum += v * dir[j]
			size += v * dir[j] * v * dir[j]
		}
		require.LessOrEqualf(t, math.Abs(sum-want)/math.Sqrt(size), 1e-6, "%s, input %d: %v and by differences %v", name, i, sum, want)
	}
}

var convCases = []struct {
	cu            []int32
	seqs, tok     int
	channels, wid int
	state, dnext  bool
}{
	{nil, 1, 1, 1, 1, true, true},
	{nil, 1, 0, 3, 4, true, true},
	{nil, 3, 3 * 65, 5, 4, true, true},
	{nil, 2, 20, 7, 4, false, false},
	{[]int32{0, 0, 1, 3, 3, 40, 300, 300}, 0, 300, 6, 4, true, true},
	{[]int32{0, 2, 3}, 0, 3, 4, 7, true, true},
}

func TestShortConv(t *testing.T) { both(t, testShortConv[float32], testShortConv[float64]) }

func testShortConv[T Float](t *testing.T) {
	for i, c := range convCases {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		s := ShortConvShape{Cu: c.cu, Seqs: c.seqs, Tokens: c.tok, Channels: c.channels, Width: c.wid}
		cu, n := c.cu, c.tok*c.channels
		if cu == nil {
			for j := range c.seqs + 1 {
				cu = append(cu, int32(j*c.tok/c.seqs))
			}
		}
		ns := (len(cu) - 1) * c.channels * (c.wid - 1)
		x, w := normals[T](r, n), normals[T](r, c.channels*c.wid)
		var state, dnext []T
		if c.state {
			state = normals[T](r, ns)
		}
		if c.dnext {
			dnext = normals[T](r, ns)
		}
		dy := normals[T](r, n)
		wantY, wantNext := optest.ShortConv(wide(x), wide(w), wide(state), cu, c.channels, c.wid)
		wantDX, wantDW, wantDS := optest.ShortConvGrad(wide(dy), wide(dnext), wide(x), wide(w), wide(state), cu, c.channels, c.wid)
		y, next := nans[T](n), nans[T](ns)
		dx, dw, ds := nans[T](n), nans[T](len(w)), nans[T](ns)
		eachWorkers(t, func() []T {
			unmodified(t, func() {
				ShortConv(y, next, x, w, state, s)
				ShortConvGrad(dx, dw, ds, dy, dnext, x, w, state, s)
			}, x, w, state, dy, dnext)
			return append(append(append(append([]T{}, y...), dx...), dw...), ds...)
		})
		near(t, "y", y, wantY, 3)
		near(t, "next", next, wantNext, 0)
		near(t, "dx", dx, wantDX, 5)
		near(t, "dw", dw, wantDW, 8)
		near(t, "dstate", ds, wantDS, 5)
		ShortConv(y, nil, x, w, state, s)
		ShortConvGrad(dx, dw, nil, dy, dnext, x, w, state, s)
		near(t, "dx without dstate", dx, wantDX, 5)
	}
}

// A sequence in two pieces that hand the state on equals the whole one, bit for bit.
func TestShortConvSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const n, c, w = 50, 6, 4
	x, k := normals[float32](r, n*c), normals[float32](r, c*w)
	state := normals[float32](r, c*(w-1))
	whole, last := nans[float32](n*c), nans[float32](c*(w-1))
	ShortConv(whole, last, x, k, state, ShortConvShape{Seqs: 1, Tokens: n, Channels: c, Width: w})
	for _, cut := range []int{0, 1, 2, 3, 17, 49, 50} {
		y, mid, end := nans[float32](n*c), nans[float32](c*(w-1)), nans[float32](c*(w-1))
		ShortConv(y[:cut*c], mid, x[:cut*c], k, state, ShortConvShape{Seqs: 1, Tokens: cut, Channels: c, Width: w})
		ShortConv(y[cut*c:], end, x[cut*c:], k, mid, ShortConvShape{Seqs: 1, Tokens: n - cut, Channels: c, Width: w})
		requireSameBits(t, whole, y)
		requireSameBits(t, last, end)
	}
}

func TestShortConvGradByDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	s := ShortConvShape{Cu: []int32{0, 2, 2, 9}, Tokens: 9, Channels: 3, Width: 4}
	x, w, state := normals[float64](r, 27), normals[float64](r, 12), normals[float64](r, 27)
	projected(t, "short conv", func() [][]float64 {
		y, next := nans[float64](27), nans[float64](27)
		ShortConv(y, next, x, w, state, s)
		return [][]float64{y, next}
	}, func(u [][]float64) [][]float64 {
		dx, dw, ds := nans[float64](27), nans[float64](12), nans[float64](27)
		ShortConvGrad(dx, dw, ds, u[0], u[1], x, w, state, s)
		return [][]float64{dx, dw, ds}
	}, x, w, state)
}

func TestKDAGate(t *testing.T) { both(t, testKDAGate[float32], testKDAGate[float64]) }

func testKDAGate[T Float](t *testing.T) {
	for i, c := range []struct{ tokens, heads, dk int }{{0, 2, 3}, {1, 1, 1}, {65, 3, 5}, {200, 2, 40}} {
		for _, bound := range []float64{0, -5, -1} {
			for _, params := range []bool{true, false} {
				r := rand.New(rand.NewPCG(4, uint64(i)))
				n := c.tokens * c.heads * c.dk
				z, dg := normals[T](r, n), normals[T](r, n)
				var aLog, dt []T
				if params {
					aLog, dt = normals[T](r, c.heads), normals[T](r, c.heads*c.dk)
				}
				wantG := optest.KDAGate(wide(z), wide(aLog), wide(dt), c.heads, c.dk, bound)
				wantZ, wantA, wantD := optest.KDAGateGrad(wide(dg), wide(z), wide(aLog), wide(dt), c.heads, c.dk, bound)
				g, dz, da, dd := nans[T](n), nans[T](n), nans[T](c.heads), nans[T](c.heads*c.dk)
				eachWorkers(t, func() []T {
					unmodified(t, func() {
						KDAGate(g, z, aLog, dt, c.tokens, c.heads, c.dk, bound)
						KDAGateGrad(dz, da, dd, dg, z, aLog, dt, c.tokens, c.heads, c.dk, bound)
					}, z, aLog, dt, dg)
					return append(append(append(append([]T{}, g...), dz...), da...), dd...)
				})
				near(t, "g", g, wantG, 4) // 2.4
				near(t, "dz", dz, wantZ, 4)
				near(t, "dA_log", da, wantA, 8) // 4.6: a sum of both signs
				near(t, "ddt_bias", dd, wantD, 8)
			}
		}
	}
}

func TestKDAGateGradByDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	z, a, d := normals[float64](r, 4*6), normals[float64](r, 2), normals[float64](r, 6)
	for _, bound := range []float64{0, -5} {
		projected(t, "gate", func() [][]float64 {
			g := nans[float64](24)
			KDAGate(g, z, a, d, 4, 2, 3, bound)
			return [][]float64{g}
		}, func(u [][]float64) [][]float64 {
			dz, da, dd := nans[float64](24), nans[float64](2), nans[float64](6)
			KDAGateGrad(dz, da, dd, u[0], z, a, d, 4, 2, 3, bound)
			return [][]float64{dz, da, dd}
		}, z, a, d)
	}
}

func TestL2Norm(t *testing.T) { both(t, testL2Norm[float32], testL2Norm[float64]) }

func testL2Norm[T Float](t *testing.T) {
	for i, c := range []struct{ rows, d int }{{0, 4}, {1, 1}, {65, 7}, {3, 128}, {130, 40}} {
		r := rand.New(rand.NewPCG(6, uint64(i)))
		x, dy := normals[T](r, c.rows*c.d), normals[T](r, c.rows*c.d)
		wantY := optest.L2Norm(wide(x), c.d, 1e-6)
		y, dx := nans[T](len(x)), nans[T](len(x))
		eachWorkers(t, func() []T {
			unmodified(t, func() {
				L2Norm(y, x, c.rows, c.d, 1e-6)
				L2NormGrad(dx, dy, x, c.rows, c.d, 1e-6)
			}, x, dy)
			return append(append([]T{}, y...), dx...)
		})
		near(t, "y", y, wantY, 1)
		near(t, "dx", dx, optest.L2NormGrad(wide(dy), wide(x), c.d, 1e-6), 2)
	}
	x := []T{0, 0, 0, 1e-3, 0, 0} // a zero row stays zero, a small one is shrunk by eps
	y := nans[T](6)
	L2Norm(y, x, 2, 3, 1e-6)
	require.Equal(t, []T{0, 0, 0}, y[:3])
	require.InDelta(t, math.Sqrt(.5), float64(y[3]), 1e-6)
}

func TestGatedRMSNorm(t *testing.T) { both(t, testGatedRMSNorm[float32], testGatedRMSNorm[float64]) }

func testGatedRMSNorm[T Float](t *testing.T) {
	for i, c := range []struct{ rows, d int }{{0, 4}, {1, 1}, {65, 7}, {600, 32}, {3, 128}} {
		r := rand.New(rand.NewPCG(7, uint64(i)))
		n := c.rows * c.d
		x, gate, w, dy := normals[T](r, n), normals[T](r, n), normals[T](r, c.d), normals[T](r, n)
		wantX, wantG, wantW := optest.GatedRMSNormGrad(wide(dy), wide(x), wide(gate), wide(w), 1e-5)
		y, dx, dg, dw := nans[T](n), nans[T](n), nans[T](n), nans[T](c.d)
		eachWorkers(t, func() []T {
			unmodified(t, func() {
				GatedRMSNorm(y, x, gate, w, c.rows, c.d, 1e-5)
				GatedRMSNormGrad(dx, dg, dw, dy, x, gate, w, c.rows, c.d, 1e-5)
			}, x, gate, w, dy)
			return append(append(append(append([]T{}, y...), dx...), dg...), dw...)
		})
		near(t, "y", y, optest.GatedRMSNorm(wide(x), wide(gate), wide(w), 1e-5), 2)
		near(t, "dx", dx, wantX, 4)
		near(t, "dgate", dg, wantG, 4)
		near(t, "dw", dw, wantW, 8)
	}
}

func TestGatedRMSNormGradByDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	x, gate, w := normals[float64](r, 15), normals[float64](r, 15), normals[float64](r, 5)
	projected(t, "gated norm", func() [][]float64 {
		y := nans[float64](15)
		GatedRMSNorm(y, x, gate, w, 3, 5, 1e-5)
		return [][]float64{y}
	}, func(u [][]float64) [][]float64 {
		dx, dg, dw := nans[float64](15), nans[float64](15), nans[float64](5)
		GatedRMSNormGrad(dx, dg, dw, u[0], x, gate, w, 3, 5, 1e-5)
		return [][]float64{dx, dg, dw}
	}, x, gate, w)
	projected(t, "l2 norm", func() [][]float64 {
		y := nans[float64](15)
		L2Norm(y, x, 3, 5, 1e-6)
		return [][]float64{y}
	}, func(u [][]float64) [][]float64 {
		dx := nans[float64](15)
		L2NormGrad(dx, u[0], x, 3, 5, 1e-6)
		return [][]float64{dx}
	}, x)
	projected(t, "beta", func() [][]float64 {
		y := nans[float64](15)
		KDABeta(y, x, 15, 2)
		return [][]float64{y}
	}, func(u [][]float64) [][]float64 {
		dx := nans[float64](15)
		KDABetaGrad(dx, u[0], x, 15, 2)
		return [][]float64{dx}
	}, x)
}

func TestKDABeta(t *testing.T) {
	b := []float32{0, 1000, -1000, 3}
	beta := nans[float32](4)
	KDABeta(beta, b, 4, 1)
	require.Equal(t, []float32{.5, 1, 0}, beta[:3]) // logit 0 still writes
	KDABeta(beta, b, 4, 2)
	require.Equal(t, []float32{1, 2, 0}, beta[:3])
	require.InDelta(t, 2/(1+math.Exp(-3)), float64(beta[3]), 1e-7)
	requireGuard(t, beta)
}

func TestKDAPartsDoNotAllocate(t *testing.T) {
	const n, h, d = 64, 2, 16
	r := rand.New(rand.NewPCG(9, 9))
	x, y, z := normals[float32](r, n*h*d), nans[float32](n*h*d), nans[float32](n*h*d)
	p := normals[float32](r, h*d*4)
	dp := nans[float32](h * d * 4)
	s := ShortConvShape{Seqs: 1, Tokens: n, Channels: h * d, Width: 4}
	for i, f := range []func(){
		func() { ShortConv(y, nil, x, p, nil, s) },
		func() { ShortConvGrad(y, dp, nil, x, nil, x, p, nil, s) },
		func() { KDAGate(y, x, p[:h], p[:h*d], n, h, d, 0) },
		func() { KDAGateGrad(y, dp[:h], dp[:h*d], x, x, p, p, n, h, d, 0) },
		func() { L2Norm(y, x, n*h, d, 1e-6) },
		func() { L2NormGrad(z, x, y, n*h, d, 1e-6) },
		func() { GatedRMSNorm(y, x, x, p, n*h, d, 1e-6) },
		func() { GatedRMSNormGrad(y, z, dp, x, x, x, p, n*h, d, 1e-6) },
		func() { KDABeta(y, x, n, 1) },
	} {
		f()
		require.Zero(t, testing.AllocsPerRun(50, f), fmt.Sprint("body ", i))
	}
}
