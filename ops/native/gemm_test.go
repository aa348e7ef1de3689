package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// eachKernel runs a test on every kernel set that this CPU can run, of those
// that differ in more than products of bf16.
func eachKernel(t *testing.T, run func(t *testing.T)) {
	kernelsUpTo(t, avx512Kernel, run)
}

func kernelsUpTo(t *testing.T, last int, run func(t *testing.T)) {
	best := gemmKernel
	t.Cleanup(func() { gemmKernel = best })
	for k := portableKernel; k <= min(best, last); k++ {
		t.Run(kernelNames[k], func(t *testing.T) {
			gemmKernel = k
			run(t)
		})
	}
	gemmKernel = best
}

// eachWorkers runs f with 1, 2 and 7 workers and requires equal bits of what
// it returns.
func eachWorkers[T Float](t *testing.T, f func() []T) []T {
	t.Helper()
	t.Cleanup(func() { SetWorkers(0) })
	var first []T
	for _, w := range []int{1, 2, 7} {
		SetWorkers(w)
		got := f()
		if first == nil {
			first = got
			continue
		}
		requireSameBits(t, first, got)
	}
	SetWorkers(0)
	return first
}

// allocs is what a steady run allocates: the least of some measurements, as the
// count is that of the whole process, where helpers may be on their way to sleep.
func allocs(run func()) float64 {
	least := testing.AllocsPerRun(20, run)
	for range 9 {
		least = min(least, testing.AllocsPerRun(20, run))
	}
	return least
}

func requireSameBits[T Float](t *testing.T, want, got []T) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	for i := range want {
		if math.Float64bits(float64(want[i])) != math.Float64bits(float64(got[i])) {
			require.Failf(t, "bits differ", "at %d: %v and %v", i, want[i], got[i])
		}
	}
}

func normals[T Float](r *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(r.NormFloat64())
	}
	return x
}

const guard = -12345.5

// nans returns n elements of NaN with guard values behind them, beyond its length.
func nans[T Float](n int) []T {
	x := make([]T, n+8)
	for i := range x {
		x[i] = T(math.NaN())
		if i >= n {
			x[i] = guard
		}
	}
	return x[:n]
}

// requireGuard checks the values behind a slice of nans.
func requireGuard[T Float](t *testing.T, x []T) {
	t.Helper()
	for i, v := range x[:len(x)+8][len(x):] {
		require.Equalf(t, T(guard), v, "wrote %d beyond the end", i)
	}
}

// rms is the root mean square of got - want over that of want.
func rms[T Float](got []T, want []float64) float64 {
	var d, w float64
	for i := range want {
		e := float64(got[i]) - want[i]
		d += e * e
		w += want[i] * want[i]
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / w)
}

type gemmCase struct{ m, n, k int }

var gemmCases = []gemmCase{
	{1, 1, 1}, {1, 33, 65}, {2, 16, 8}, {3, 31, 300}, {5, 7, 0}, {7, 100, 63}, {8, 257, 1000},
	{2, 70, 288}, {3, 64, 512}, {4, 96, 272}, {12, 32, 256}, {13, 33, 257}, {49, 65, 63}, {64, 64, 64}, {60, 300, 260}, {97, 67, 515}, {0, 4, 4}, {4, 0, 4},
}

func transpose[T Float](x []T, rows, cols int) []T {
	y := make([]T, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}

// laidOut is x[rows,cols] as it is stored where trans says that it is turned, and
// its row stride.
func laidOut[T Float](trans bool, x []T, rows, cols int) ([]T, int) {
	if trans {
		return transpose(x, rows, cols), rows
	}
	return x, cols
}

// spread copies rows to a larger row stride and fills the gaps with NaN.
func spread[T Float](x []T, rows, cols, ld int) []T {
	y := nans[T](max(rows-1, 0)*ld + cols)
	for i := range rows {
		copy(y[i*ld:][:cols], x[i*cols:])
	}
	return y
}

func TestGemmAgainstLoops(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		t.Run("float32", testGemm[float32])
		if gemmKernel == portableKernel {
			t.Run("float64", testGemm[float64])
		}
	})
}

func testGemm[T Float](t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	unit, bound := 0x1p-24, 10.0
	if T(1)+0x1p-40 != 1 {
		unit, bound = 0x1p-53, 15 // the loop's own error is as large
	}
	worst := 0.0
	for _, c := range gemmCases {
		a, b, c0 := normals[T](r, c.m*c.k), normals[T](r, c.k*c.n), normals[T](r, c.m*c.n)
		product := make([]float64, c.m*c.n)
		for i := range c.m {
			for j := range c.n {
				for p := range c.k {
					product[i*c.n+j] += float64(a[i*c.k+p]) * float64(b[p*c.n+j])
				}
			}
		}
		for trans := range 4 {
			transA, transB := trans&1 != 0, trans&2 != 0
			for _, ab := range [][2]float64{{1, 0}, {1, 1}, {-0.5, 2}} {
				alpha, beta := ab[0], ab[1]
				want := make([]float64, c.m*c.n)
				for i, s := range product {
					want[i] = alpha * s
					if beta != 0 {
						want[i] += beta * float64(c0[i])
					}
				}
				sa, lda := spread(a, c.m, c.k, c.k+3), c.k+3
				if transA {
					sa, lda = spread(transpose(a, c.m, c.k), c.k, c.m, c.m+1), c.m+1
				}
				sb, ldb := spread(b, c.k, c.n, c.n+2), c.n+2
				if transB {
					sb, ldb = spread(transpose(b, c.k, c.n), c.n, c.k, c.k+5), c.k+5
				}
				ldc := c.n + 4
				name := fmt.Sprintf("m %d n %d k %d transA %v transB %v alpha %v beta %v", c.m, c.n, c.k, transA, transB, alpha, beta)
				run := func(f func(bool, bool, int, int, int, T, []T, int, []T, int, T, []T, int)) []T {
					sc := nans[T](max(c.m-1, 0)*ldc + c.n)
					if beta != 0 {
						sc = spread(c0, c.m, c.n, ldc)
					}
					f(transA, transB, c.m, c.n, c.k, T(alpha), sa, lda, sb, ldb, T(beta), sc, ldc)
					requireGuard(t, sc)
					got := make([]T, 0, c.m*c.n)
					for i := range c.m {
						got = append(got, sc[i*ldc:][:c.n]...)
						if i < c.m-1 {
							for _, gap := range sc[i*ldc+c.n : (i+1)*ldc] {
								if gap == gap {
									require.Failf(t, "wrote into a gap", "%s: row %d", name, i)
								}
							}
						}
					}
					return got
				}
				got := eachWorkers(t, func() []T { return run(Gemm[T]) })
				requireSameBits(t, got, run(gemmSerial[T]))
				e := rms(got, want) / unit
				worst = max(worst, e)
				// Measured: 4.95 portable, 4.90 avx2 and avx512.
				require.Falsef(t, !(e < bound), "%s: rms error %.1f units", name, e)
			}
		}
	}
	t.Logf("worst rms error %.2f units of roundoff", worst)
}

// A row of C has the same bits alone and within a larger product.
func TestGemmRowsDoNotDependOnTheBatch(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		const m, n, k = 101, 300, 400
		r := rand.New(rand.NewPCG(3, 4))
		x, w := normals[float32](r, m*k), normals[float32](r, n*k)
		all := make([]float32, m*n)
		Gemm(false, true, m, n, k, 1, x, k, w, k, 0, all, n)
		for _, rows := range []int{1, 2, 3, 4, 8, 13, 60} {
			part := make([]float32, rows*n)
			Gemm(false, true, rows, n, k, 1, x[20*k:], k, w, k, 0, part, n)
			requireSameBits(t, all[20*n:][:rows*n], part)
		}
	})
}

// An A that is packed, because its rows fall on too few cache sets or it is
// transposed, gives the bits of one that is read where it lies.
func TestGemmOfPackedRowsHasTheBitsOfRowsThatLie(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		const m, n, k = 101, 300, 1100
		r := rand.New(rand.NewPCG(13, 14))
		a, b := normals[float32](r, m*k), normals[float32](r, k*n)
		want := nans[float32](m * n)
		Gemm(false, false, m, n, k, 1, spread(a, m, k, k+3), k+3, b, n, 0, want, n)
		apart, turned := spread(a, m, k, 4*gemmSets), spread(transpose(a, m, k), k, m, m+1)
		got := eachWorkers(t, func() []float32 {
			y := nans[float32](2 * m * n)
			Gemm(false, false, m, n, k, 1, apart, 4*gemmSets, b, n, 0, y, n)
			Gemm(true, false, m, n, k, 1, turned, m+1, b, n, 0, y[m*n:], n)
			requireGuard(t, y)
			return y
		})
		requireSameBits(t, want, got[:m*n])
		requireSameBits(t, want, got[m*n:2*m*n])
	})
}

func TestGemmAddsABiasOrAResidual(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		const m, n, k = 50, 70, 300
		r := rand.New(rand.NewPCG(5, 6))
		x, w, bias, res := normals[float32](r, m*k), normals[float32](r, n*k), normals[float32](r, n), normals[float32](r, m*n)
		y, plain := nans[float32](m*n), nans[float32](m*n)
		for _, s := range []struct {
			s   []float32
			lds int
		}{{bias, 0}, {res, n}} {
			for i := range m {
				copy(plain[i*n:][:n], s.s[i*s.lds:])
			}
			Gemm(false, true, m, n, k, 1, x, k, w, k, 1, plain, n)
			gemmAdd(false, true, m, n, k, 1, x, k, w, k, 1, s.s, s.lds, y, n)
			requireSameBits(t, plain, y)
			requireGuard(t, y)
		}
	})
}

// NaN, Inf and denormals come out as in the plain formula.
func TestGemmSpecialValues(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		const m, n, k = 61, 40, 270
		inf, nan, tiny := float32(math.Inf(1)), float32(math.NaN()), math.Float32frombits(3)
		for _, s := range []struct{ av, bv, want float32 }{
			{nan, 1, nan}, {inf, 1, inf}, {-inf, 2, -inf}, {inf, 0, nan}, {1, nan, nan}, {0, inf, nan}, {1, -inf, -inf},
			{tiny, 1, tiny}, {tiny, 2, 2 * tiny}, {1, tiny, tiny}, {math.MaxFloat32, 2, inf},
		} {
			a, b := make([]float32, m*k), make([]float32, n*k)
			const i, j, p = 37, 35, 261
			a[i*k+p], b[j*k+p] = s.av, s.bv
			c := nans[float32](m * n)
			Gemm(false, true, m, n, k, 1, a, k, b, k, 0, c, n)
			got := c[i*n+j]
			if s.want != s.want {
				require.Truef(t, got != got, "%v x %v: %v", s.av, s.bv, got)
			} else {
				require.Equalf(t, s.want, got, "%v x %v", s.av, s.bv)
			}
			for q, v := range c {
				if q/n != i && q%n != j {
					require.Zerof(t, v, "element %d, away from row %d and column %d", q, i, j)
				}
			}
		}
	})
}

func TestGemmDoesNotAllocate(t *testing.T) {
	const m, n, k = 100, 100, 100
	a, b, c := make([]float32, m*k), make([]float32, n*k), make([]float32, m*n)
	for _, f := range []func(){
		func() { Gemm(false, true, m, n, k, 1, a, k, b, k, 0, c, n) },
		func() { Gemm(true, false, 4, n, k, 1, a, m, b, n, 0, c, n) },
		func() { gemmSerial(false, true, 64, 64, 64, 1, a, k, b, k, 0, c, n) },
	} {
		f()
		require.Zero(t, testing.AllocsPerRun(100, f))
	}
}

// fastest runs f b.N times and returns the seconds of the fastest run, which a
// busy machine disturbs least: the rates that the benchmarks report are its.
func fastest(b *testing.B, f func()) float64 {
	f()
	b.ResetTimer()
	best := time.Duration(math.MaxInt64)
	for range b.N {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return best.Seconds()
}

func BenchmarkGemm(b *testing.B) {
	for _, c := range []struct {
		transA, transB bool
		m, n, k        int
	}{
		{false, false, 1024, 1024, 1024}, {false, true, 1024, 1024, 1024}, {true, false, 1024, 1024, 1024},
		{false, true, 1024, 256, 256}, {false, true, 1024, 1024, 256}, {false, true, 1024, 256, 1024},
		{false, false, 1024, 256, 1024}, {true, false, 256, 256, 1024}, {true, false, 1024, 256, 1024},
		{false, true, 1, 1024, 1024}, {false, true, 8, 1024, 1024}, {false, true, 1, 4096, 4096},
	} {
		b.Run(fmt.Sprintf("%s/tA=%v,tB=%v/%dx%dx%d", GemmKernel(), c.transA, c.transB, c.m, c.n, c.k), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x, w, y := normals[float32](r, c.m*c.k), normals[float32](r, c.n*c.k), make([]float32, c.m*c.n)
			lda, ldb := c.k, c.n
			if c.transA {
				lda = c.m
			}
			if c.transB {
				ldb = c.k
			}
			Gemm(c.transA, c.transB, c.m, c.n, c.k, 1, x, lda, w, ldb, 0, y, c.n)
			for at := 0; at < c.m*c.n; at += c.m*c.n/7 + 1 {
				want := 0.0
				for p := range c.k {
					xi, wi := at/c.n*lda+p, p*ldb+at%c.n
					if c.transA {
						xi = p*lda + at/c.n
					}
					if c.transB {
						wi = at%c.n*ldb + p
					}
					want += float64(x[xi]) * float64(w[wi])
				}
				require.InDelta(b, want, float64(y[at]), 1e-5*float64(c.k))
			}
			s := reportRate(b, Workers(), 2*float64(c.m*c.n*c.k), func() { Gemm(c.transA, c.transB, c.m, c.n, c.k, 1, x, lda, w, ldb, 0, y, c.n) })
			if c.m <= 8 {
				b.ReportMetric(float64(c.n*c.k)*4/s/1e9, "GB/s")
			}
		})
	}
}

func BenchmarkGemmSerial(b *testing.B) {
	const n = 64
	x, w, y := make([]float32, n*4*n), make([]float32, n*4*n), make([]float32, n*n)
	for _, trans := range []bool{false, true} {
		b.Run(fmt.Sprintf("%s/tB=%v/64x64x64", GemmKernel(), trans), func(b *testing.B) {
			reportRate(b, 1, 2*n*n*n, func() { gemmSerial(false, trans, n, n, n, 1, x, 4*n, w, 4*n, 0, y, n) })
		})
	}
}

// fullTile is a run of full tiles whose operands are in L1, and its operations.
func fullTile() (run func(), flop float64) {
	const calls = 100
	nr, rows := tileCols[float32](), tileRows[float32](100)
	x, w, y := make([]float32, rows*gemmAStride), make([]float32, nr*gemmKC), make([]float32, rows*nr)
	g := gemmOperands[float32]{alpha: 1, c: y, ldc: nr}
	t := g.firstPass()
	t.k = gemmKC
	return func() {
		for range calls {
			t.column(0, rows, nr, x, gemmAStride, 1, gemmAStride, w, nr, 0)
		}
	}, 2 * calls * float64(rows*nr*gemmKC)
}

// BenchmarkTile is the peak: one full tile, its operands in L1.
func BenchmarkTile(b *testing.B) {
	run, flop := fullTile()
	b.Run(GemmKernel(), func(b *testing.B) { b.ReportMetric(flop/fastest(b, run)/1e9, "GFLOP/s") })
}

// peak is the rate of the fastest of some full tiles, on one core.
var peak = sync.OnceValue(func() float64 {
	run, flop := fullTile()
	best := time.Duration(math.MaxInt64)
	for range 500 {
		start := time.Now()
		run()
		best = min(best, time.Since(start))
	}
	return flop / best.Seconds()
})

// reportRate gives the rate of float32 products on a number of cores, and what it is of their peak.
func reportRate(b *testing.B, cores int, flop float64, run func()) (seconds float64) {
	most := peak() * float64(cores)
	seconds = fastest(b, run)
	b.ReportMetric(flop/seconds/1e9, "GFLOP/s")
	b.ReportMetric(100*flop/seconds/most, "%peak")
	return seconds
}

func TestKernelChoice(t *testing.T) {
	t.Setenv("SEAFAN_KERNELS", "")
	best := chooseKernel()
	for k, name := range kernelNames {
		t.Setenv("SEAFAN_KERNELS", name)
		require.Equal(t, min(k, best), chooseKernel())
	}
	t.Setenv("SEAFAN_KERNELS", "unknown")
	require.Equal(t, best, chooseKernel())
	require.Contains(t, kernelNames, GemmKernel())
}
