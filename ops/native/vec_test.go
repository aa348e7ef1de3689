package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// expStride is the distance between the float32 bit patterns that TestExp
// tries. With 1 (every float32, 10 s) the largest error is 8.15e-8.
const expStride = 61

func TestExp(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		x, y := make([]float32, 0, 4096), make([]float32, 4096)
		worst, at := 0.0, float32(0)
		check := func() {
			y = y[:len(x)]
			expSlice(y, x)
			for i, v := range x {
				want := math.Exp(float64(v))
				switch {
				case want >= 0x1p-126 && want < math.MaxFloat32*(1+0x1p-25):
					if e := math.Abs(float64(y[i])-want) / want; !(e <= worst) {
						worst, at = e, v
					}
				case want < 0x1p-126: // subnormal: correct to one step
					require.InDeltaf(t, want, float64(y[i]), 0x1p-149, "exp(%v)", v)
				default:
					require.Truef(t, math.IsInf(float64(y[i]), 1), "exp(%v) = %v", v, y[i])
				}
				if gemmKernel != portableKernel && math.Float32bits(y[i]) != math.Float32bits(exp32(v)) {
					require.Failf(t, "bits differ", "exp(%v) = %v, portable %v", v, y[i], exp32(v))
				}
			}
			x = x[:0]
		}
		// Below 2^-26 the result is 1 to half a step, beyond 106 it is 0 or Inf.
		for b := uint32(0x32800000); b < 0x42d40000; b += expStride {
			x = append(x, math.Float32frombits(b), -math.Float32frombits(b))
			if len(x) == cap(x) {
				check()
			}
		}
		x = append(x, 0, 1e-30, -1e-45, 88.7228317, 88.72284, -87.33655, -103.97208, -103.9721, 3e38, -3e38)
		check()
		t.Logf("worst relative error %.3g at %v", worst, at)
		require.LessOrEqual(t, worst, 8.2e-8)

		special := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 0}
		expSlice(special, special)
		require.True(t, special[0] != special[0])
		require.Equal(t, []float32{float32(math.Inf(1)), 0, 1}, special[1:])
	})
}

// The sigmoid and x times it hold their relative error over all of float32; below 2^-121 a result may be 0.
func TestSigmoidAndSiLU(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		var x []float32
		for b := uint64(0); b < 0x7f800000; b += 4093 { // magnitudes from 0 to the largest
			x = append(x, math.Float32frombits(uint32(b)), -math.Float32frombits(uint32(b)))
		}
		y, s, ones := make([]float32, len(x)), make([]float32, len(x)), make([]float32, len(x))
		for i := range ones {
			ones[i] = 1
		}
		SwiGLU(y, x, ones, len(x))
		KDABeta(s, x, len(x), 1)
		for name, of := range map[string]struct {
			got  []float32
			want func(x float64) float64
		}{"sigmoid": {s, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }}, "silu": {y, func(x float64) float64 { return x / (1 + math.Exp(-x)) }}} {
			worst, at := 0., 0.
			for i, v := range of.got {
				want := of.want(float64(x[i]))
				if math.Abs(want) < 0x1p-121 {
					require.InDeltaf(t, want, float64(v), 0x1p-121, "%s(%v)", name, x[i])
				} else if e := math.Abs(float64(v)-want) / math.Abs(want); !(e <= worst) {
					worst, at = e, float64(x[i])
				}
			}
			t.Logf("%s: worst relative error %.3g at %v", name, worst, at)
			require.LessOrEqual(t, worst, 2e-7, name) // measured 1.45e-7
		}
	})
}

// Every vector piece has the bits of its portable form at every length, and
// writes nothing beyond it.
func TestVectorPiecesEqualThePortableForm(t *testing.T) {
	best := gemmKernel
	t.Cleanup(func() { gemmKernel = best })
	for n := range 100 {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		a, b, c := normals[float32](r, n), normals[float32](r, n), normals[float32](r, n)
		run := func(k int) [][]float32 {
			gemmKernel = k
			var out [][]float32
			fresh := func() []float32 {
				y := nans[float32](n)
				out = append(out, y)
				return y
			}
			expSlice(fresh(), a)
			s := expSubSum(fresh(), a, 1.5)
			SwiGLU(fresh(), a, b, n)
			SwiGLUGrad(fresh(), fresh(), c, a, b, n)
			scaleMul(fresh(), a, b, 1.25)
			scaleMulAdd(fresh(), a, b, 1.25, c, -0.3)
			addScaled(fresh(), a, b, 0.7)
			y := fresh()
			copy(y, c)
			addScaleMul(y, a, b, 0.7)
			y = fresh()
			copy(y, c)
			scale(y, 0.7)
			for _, y := range out {
				requireGuard(t, y)
			}
			m := maxOf(a)
			return append(out, []float32{float32(s), float32(s - float64(float32(s))), m, float32(sumMul(a, b)), float32(sumMul3(a, b, c))})
		}
		want := run(portableKernel)
		for k := avx2Kernel; k <= best; k++ {
			for i, got := range run(k) {
				requireSameBits(t, want[i], got)
			}
		}
	}
}

func TestVectorSumsAndMaximum(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 9))
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		for _, n := range []int{1, 15, 16, 17, 100, 1000} {
			x, y, z := normals[float32](r, n), normals[float32](r, n), normals[float32](r, n)
			var d, d3, s float64
			m := x[0]
			for i := range x {
				d += float64(x[i]) * float64(y[i])
				d3 += float64(x[i]) * float64(y[i]) * float64(z[i])
				s += math.Exp(float64(x[i]) - 2)
				m = max(m, x[i])
			}
			require.InEpsilon(t, d, sumMul(x, y), 1e-12)
			require.InEpsilon(t, d3, sumMul3(x, y, z), 1e-12)
			require.InEpsilon(t, s, expSubSum(make([]float32, n), x, 2), 1.2e-7)
			require.Equal(t, m, maxOf(x))
			for _, at := range []int{0, n / 2, n - 1} {
				x[at] = inf
				require.Equal(t, inf, maxOf(x))
				x[at] = nan
				require.True(t, maxOf(x) != maxOf(x))
				x[at] = -inf
				require.Less(t, maxOf(x), inf)
				require.Zero(t, expSubSum(y, x[at:at+1], 3))
				x[at] = 0
			}
		}
		require.Equal(t, -inf, maxOf([]float32(nil)))
		require.Zero(t, sumMul([]float32(nil), nil))
	})
}

func BenchmarkVector(b *testing.B) {
	const n = 4096
	x, y, z := make([]float32, n), make([]float32, n), make([]float32, n)
	var sink float64
	for _, f := range []struct {
		name string
		f    func()
	}{
		{"exp", func() { expSlice(y, x) }},
		{"expSubSum", func() { sink += expSubSum(y, x, 1) }},
		{"max", func() { y[0] = maxOf(x) }},
		{"sumMul", func() { sink += sumMul(x, y) }},
		{"sumMul3", func() { sink += sumMul3(x, y, z) }},
		{"addScaled", func() { addScaled(y, x, z, 1) }},
	} {
		b.Run(fmt.Sprintf("%s/%s", GemmKernel(), f.name), func(b *testing.B) {
			b.ReportMetric(n/fastest(b, f.f)/1e9, "Gelem/s")
		})
	}
}
