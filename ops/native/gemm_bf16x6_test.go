package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

// threeParts are three bf16 whose sum x is.
func threeParts(x float32) (parts [3]float32) {
	for i := range parts {
		parts[i] = flush32(dtype.ToBF16(x).Float32())
		x -= parts[i]
	}
	return parts
}

// splitChain is the sum that one element of a product is: of 32 neighbours along
// k six products of parts, one after the other, each two chains as in amxChain;
// cut where a pass ends.
func splitChain(a, b [][3]float32) (sum float32) {
	const pass = splitPass / splitStep * splitRun
	for from := 0; from < len(a); from += pass {
		chain := float32(0)
		for p := from; p < min(from+pass, len(a)); p += splitRun {
			for _, parts := range [6][2]int{{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}} {
				var half [2]float32
				for q := p; q < min(p+splitRun, len(a)); q++ {
					h := &half[(q-p)/amxWords]
					*h = flush32(float32(math.FMA(float64(a[q][parts[0]]), float64(b[q][parts[1]]), float64(*h))))
				}
				chain = flush32(chain + flush32(half[0]+half[1]))
			}
		}
		sum += chain
	}
	return sum
}

func splitAll(x []float32) [][3]float32 {
	y := make([][3]float32, len(x))
	for i, v := range x {
		y[i] = threeParts(v)
	}
	return y
}

// TestBF16x6WordsAreThePartsOfANumber, by rows and by columns, with the largest
// magnitudes; their sum is the number, from 2^-100 on.
func TestBF16x6WordsAreThePartsOfANumber(t *testing.T) {
	if !multipliesPairs[float32]() {
		t.Skip("no instruction for bf16")
	}
	r := rand.New(rand.NewPCG(1, 6))
	// parts are those of number i in words that lie step apart.
	parts := func(words []float32, step, i int) (parts [3]float32) {
		for p := range parts {
			u := math.Float32bits(words[(i/splitRun*splitStep+p*amxWords+i%amxWords)*step])
			parts[p] = math.Float32frombits(u >> (i % splitRun / amxWords * 16) << 16)
		}
		return parts
	}
	for _, n := range []int{1, 15, 16, 17, 31, 32, 33, 63, 64, 100} {
		for _, cols := range []int{1, 15, 17, 32} {
			const ld = 40
			x, tops := nans[float32](n*ld), make([]float32, pairCols)
			down := nans[float32](splitWords(n) * pairCols)
			for j := range cols {
				row := make([]float32, n)
				words := nans[float32](splitWords(n))
				for i := range row {
					row[i] = float32(math.Ldexp(r.Float64()-0.5, r.IntN(227)-98))
					x[i*ld+j] = row[i]
					tops[j] = max(tops[j], float32(math.Abs(float64(row[i]))))
				}
				require.Equal(t, tops[j], math.Float32frombits(splitRow(&words[0], &row[0], n)))
				requireGuard(t, words)
				for i := range splitWords(n) / splitParts * 2 {
					var want [3]float32
					if i < n {
						want = threeParts(row[i])
						require.Equal(t, row[i], want[0]+(want[1]+want[2]))
					}
					require.Equal(t, want, parts(words, 1, i))
				}
			}
			got := make([]float32, pairCols)
			splitRows(&down[0], &x[0], ld*4, n, cols, &got[0])
			requireGuard(t, down)
			require.Equal(t, tops, got)
			for j := range pairCols {
				for i := range splitWords(n) / splitParts * 2 {
					var want [3]float32
					if i < n && j < cols {
						want = threeParts(x[i*ld+j])
					}
					require.Equal(t, want, parts(down[j:], pairCols, i))
				}
			}
		}
	}
}

// TestBF16x6WordsBothWays: words of rows and of columns made in one pass are those of
// each row, and of each column, alone.
func TestBF16x6WordsBothWays(t *testing.T) {
	if !multipliesPairs[float32]() {
		t.Skip("no instruction for bf16")
	}
	r := rand.New(rand.NewPCG(1, 16))
	for _, rows := range []int{1, 32, 50, 128} {
		for _, d := range []int{5, 32, 64, 96, 100} {
			lds, ldd := d+3, splitWords(d)
			src := normals[float32](r, rows*lds)
			src[rows/2*lds+d/2] = attnSplitMost * 2
			along, turned := nans[float32](rows*ldd), nans[float32](wholeCols(d)*attnSplitLd)
			require.Equal(t, []int{rows / 2}, splitBothWays(along, ldd, turned, src, lds, rows, d, attnSplitLeast, attnSplitMost))
			requireGuard(t, along)
			want := make([]float32, ldd)
			for i := range rows {
				splitRow(&want[0], &src[i*lds], d)
				requireSameBits(t, want, along[i*ldd:][:ldd])
			}
			column, want := make([]float32, rows), make([]float32, splitWords(rows))
			for j := range d {
				for i := range column {
					column[i] = src[i*lds+j]
				}
				splitRow(&want[0], &column[0], rows)
				requireSameBits(t, want, turned[j*attnSplitLd:][:len(want)])
			}
		}
	}
}

// TestBF16x6ProductsAgainstLoops compares every transpose with float64 loops, and
// exactly with the chain that the tile is said to be. Without AMX they are Gemm's.
func TestBF16x6ProductsAgainstLoops(t *testing.T) {
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		if gemmKernel != amxKernel {
			t.Skip("no tiles")
		}
		r := rand.New(rand.NewPCG(7, 8))
		worst := 0.0
		for _, c := range append(gemmCases, gemmCase{48, 31, 511}, gemmCase{100, 64, 258}, gemmCase{64, 40, 64}, gemmCase{160, 161, 1088}, gemmCase{130, 290, 1}) {
			a, b, s := normals[float32](r, c.m*c.k), normals[float32](r, c.k*c.n), normals[float32](r, c.n)
			chains, exact := make([]float32, c.m*c.n), make([]float64, c.m*c.n)
			pa, pb := splitAll(a), splitAll(transpose(b, c.k, c.n))
			for i := range exact {
				chains[i] = splitChain(pa[i/c.n*c.k:][:c.k], pb[i%c.n*c.k:][:c.k])
				for p := range c.k {
					exact[i] += float64(a[i/c.n*c.k+p]) * float64(b[p*c.n+i%c.n])
				}
			}
			for trans := range 4 {
				transA, transB := trans&1 != 0, trans&2 != 0
				sa, lda := laidOut(transA, a, c.m, c.k)
				sb, ldb := laidOut(transB, b, c.k, c.n)
				name := fmt.Sprintf("m %d n %d k %d transA %v transB %v", c.m, c.n, c.k, transA, transB)
				plain := make([]float32, c.m*c.n)
				Gemm(transA, transB, c.m, c.n, c.k, 1, sa, lda, sb, ldb, 0, plain, c.n)
				got := eachWorkers(t, func() []float32 {
					got := nans[float32](c.m * c.n)
					splitProducts(transA, transB, c.m, c.n, c.k, sa, lda, sb, ldb, 0, got, c.n, got, c.n)
					requireGuard(t, got)
					return got
				})
				requireSameBits(t, chains, got)
				if c.k >= 32 && c.m*c.n >= 1000 { // of few, either may come out better
					worst = max(worst, rms(got, exact)/rms(plain, exact))
				}
				biased := nans[float32](c.m * c.n)
				splitProducts(transA, transB, c.m, c.n, c.k, sa, lda, sb, ldb, 1, s, 0, biased, c.n)
				requireGuard(t, biased)
				if c.k <= splitPass/splitStep*splitRun { // one pass
					for i, v := range chains {
						require.Equal(t, v+s[i%c.n], biased[i], name)
					}
				}
			}
		}
		// Measured: 0.69.
		require.LessOrEqual(t, worst, 1.0)
		t.Logf("worst rms error %.2f of float32's", worst)
	})
}

// TestBF16x6SpecialValues: where parts cannot stand for a row or a column, its
// elements are those of Gemm; all others have the bits that they have without.
func TestBF16x6SpecialValues(t *testing.T) {
	const m, n, k, normal = 90, 70, 600, 20
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	fill := func(x []float32, v float32) {
		for i := range x {
			x[i] *= v
		}
	}
	kinds := []func(x []float32){
		func(x []float32) { x[3] = inf }, func(x []float32) { x[k-1] = -inf }, func(x []float32) { x[0], x[1] = inf, -inf },
		func(x []float32) { x[260] = nan }, func(x []float32) { x[40] = math.MaxFloat32 }, func(x []float32) { x[255] = -0x1p60 },
		func(x []float32) { fill(x, 0x1p-50) }, func(x []float32) { fill(x, 0x1p-130) }, func(x []float32) { clear(x); x[9] = 0x1p-149 },
		func(x []float32) { clear(x) }, func(x []float32) { fill(x, 0x1p45) }, func(x []float32) { fill(x, 0x1p-35) }, func(x []float32) { x[4] = 0x1p-140 },
	}
	const outside = 9 // of kinds
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 8))
		a, b, bias := normals[float32](r, m*k), normals[float32](r, n*k), normals[float32](r, n)
		plainA, plainB := slices.Clone(a), slices.Clone(b)
		worst := 0.0
		for i, f := range kinds {
			for _, at := range []int{normal + i, 50 + i} { // rows beside each other, and two of each kind
				f(a[at*k:][:k])
			}
			f(b[(normal+2*i)*k:][:k])
		}
		for trans := range 4 {
			transA, transB := trans&1 != 0, trans&2 == 0
			turn := func(a, b []float32) (sa []float32, lda int, sb []float32, ldb int) {
				sa, lda = laidOut(transA, a, m, k)
				sb, ldb = laidOut(!transB, b, n, k)
				return sa, lda, sb, ldb
			}
			sa, lda, sb, ldb := turn(a, b)
			want, got, without := make([]float32, m*n), nans[float32](m*n), make([]float32, m*n)
			gemmAdd(transA, transB, m, n, k, 1, sa, lda, sb, ldb, 1, bias, 0, want, n)
			splitProducts(transA, transB, m, n, k, sa, lda, sb, ldb, 1, bias, 0, got, n)
			requireGuard(t, got)
			sa, lda, sb, ldb = turn(plainA, plainB)
			splitProducts(transA, transB, m, n, k, sa, lda, sb, ldb, 1, bias, 0, without, n)
			for i := range m {
				for j := range n {
					row, col := -1, -1
					switch {
					case i >= 50 && i < 50+len(kinds):
						row = i - 50
					case i >= normal && i < normal+len(kinds):
						row = i - normal
					}
					if j >= normal && (j-normal)%2 == 0 && j < normal+2*len(kinds) {
						col = (j - normal) / 2
					}
					g, w := got[i*n+j], want[i*n+j]
					name := fmt.Sprintf("%d, %d: kinds %d and %d", i, j, row, col)
					switch {
					case row >= 0 && row < outside || col >= 0 && col < outside:
						require.Equal(t, math.Float32bits(w), math.Float32bits(g), name)
					case row < 0 && col < 0:
						require.Equal(t, without[i*n+j], g, name)
					default:
						size := math.Abs(float64(bias[j]))
						for p := range k {
							size += math.Abs(float64(a[i*k+p]) * float64(b[j*k+p]))
						}
						off := math.Abs(float64(w) - float64(g))
						require.LessOrEqual(t, off, size*0x1p-22, name) // 4 unit roundoffs, measured 1.27
						if size > 0 {
							worst = max(worst, off/size)
						}
					}
				}
			}
		}
		t.Logf("largest difference from Gemm %.2f unit roundoffs of the sum of magnitudes", worst*0x1p24)
	})
}

// TestBF16x6RowAloneIsBitEqual: a row has the bits alone that it has in a batch,
// and one of several linears of one x those it has alone, with and without a bias;
// without AMX those of Linear.
func TestBF16x6RowAloneIsBitEqual(t *testing.T) {
	const m, n, k = 300, 170, 700
	r := rand.New(rand.NewPCG(5, 4))
	x, w, b := normals[float32](r, m*k), normals[float32](r, n*k), normals[float32](r, n)
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		for _, bias := range [][]float32{nil, b} {
			all := nans[float32](m * n)
			BF16x6Linear(all, x, w, bias, m, n, k)
			if gemmKernel != amxKernel {
				want := make([]float32, m*n)
				Linear(want, x, w, bias, m, n, k)
				requireSameBits(t, want, all)
			}
			for _, rows := range [][2]int{{0, 1}, {3, 100}, {180, 60}, {299, 1}} {
				part, other := nans[float32](rows[1]*n), nans[float32](rows[1]*(n-3))
				l := []BF16LinearOf{{Y: other, W: w, B: bias, N: n - 3}, {Y: part, W: w, B: bias, N: n}}
				BF16x6Linears(x[rows[0]*k:], rows[1], k, l)
				requireGuard(t, part)
				requireGuard(t, other)
				requireSameBits(t, all[rows[0]*n:][:len(part)], part)
				for i := range rows[1] {
					requireSameBits(t, part[i*n:][:n-3], other[i*(n-3):][:n-3])
				}
			}
		}
	})
}

// TestBF16x6Accuracy against float64, beside Gemm, in units of roundoff of the rms.
func TestBF16x6Accuracy(t *testing.T) {
	const m, n = 64, 48
	for _, k := range []int{64, 256, 1024, 4096} {
		r := rand.New(rand.NewPCG(2, uint64(k)))
		a, b := normals[float32](r, m*k), normals[float32](r, n*k)
		exact, chains, plain := make([]float64, m*n), make([]float32, m*n), make([]float32, m*n)
		pa, pb := splitAll(a), splitAll(b)
		for i := range exact {
			x, y := a[i/n*k:][:k], b[i%n*k:][:k]
			for p := range x {
				exact[i] += float64(x[p]) * float64(y[p])
			}
			chains[i] = splitChain(pa[i/n*k:][:k], pb[i%n*k:][:k])
		}
		Gemm(false, true, m, n, k, 1, a, k, b, k, 0, plain, n)
		if gemmKernel == amxKernel {
			got := nans[float32](m * n)
			splitProducts(false, true, m, n, k, a, k, b, k, 0, got, n, got, n)
			requireSameBits(t, chains, got)
		}
		e, p := rms(chains, exact)*0x1p24, rms(plain, exact)*0x1p24
		t.Logf("k %d: %.2f, Gemm %.2f", k, e, p)
		// Measured: 1.01 to 2.43, Gemm with AVX-512 2.50 to 4.92; at most 0.51 of it.
		require.Less(t, e, 0.75*p)
	}
}

func BenchmarkBF16x6(b *testing.B) {
	benchProducts(b, func(b *testing.B, transA, transB bool, m, n, k int, x []float32, lda int, w []float32, ldb int, y []float32) {
		s := fastest(b, func() { splitProducts(transA, transB, m, n, k, x, lda, w, ldb, 0, y, n, y, n) })
		b.ReportMetric(2*float64(m*n*k)/s/1e9, "GFLOP/s")
	})
}
