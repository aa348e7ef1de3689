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

// bf16Chain is the sum that one element of a product is, in the order of k, and
// the float64 sum of the same products. a and b are rounded.
func bf16Chain(a, b []float32) (chain float32, exact float64) {
	for p := 0; p < len(a); p += gemmKC {
		part := float32(0)
		for q := p; q < min(p+gemmKC, len(a)); q++ {
			product := float64(a[q]) * float64(b[q]) // exact in float64, and so is its sum with part up to one rounding
			part = flush32(float32(math.FMA(float64(a[q]), float64(b[q]), float64(part))))
			exact += product
		}
		chain += part
	}
	return chain, exact
}

// amxChain is bf16Chain for the AMX tile: 32 neighbours along k in two chains,
// whose sum is added to the chain through all of k.
func amxChain(a, b []float32) (chain float32, exact float64) {
	for q := 0; q < len(a); q += 2 * amxWords {
		var half [2]float32
		for i := q; i < min(q+2*amxWords, len(a)); i++ {
			half[i%2] = flush32(float32(math.FMA(float64(a[i]), float64(b[i]), float64(half[i%2]))))
			exact += float64(a[i]) * float64(b[i])
		}
		chain = flush32(chain + flush32(half[0]+half[1]))
	}
	return chain, exact
}

// flush32 is x, or a zero of its sign where x is subnormal.
func flush32(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

func roundedBF16(x []float32) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = flush32(dtype.ToBF16(v).Float32())
	}
	return y
}

func storedBF16(x []float32) []uint16 {
	y := make([]uint16, len(x))
	for i, v := range x {
		y[i] = uint16(dtype.ToBF16(v))
	}
	return y
}

// TestBF16ProductsAgainstLoops compares every transpose, with operands as
// float32 and as stored bf16, with float64 loops, and exactly with the chain
// that the tile is said to be.
func TestBF16ProductsAgainstLoops(t *testing.T) {
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		worst := 0.0
		for _, c := range append(gemmCases, gemmCase{48, 31, 511}, gemmCase{100, 64, 258}, gemmCase{48, 40, 64}, gemmCase{160, 161, 1088}, gemmCase{130, 290, 1}) {
			a, b, s := normals[float32](r, c.m*c.k), normals[float32](r, c.k*c.n), normals[float32](r, c.n)
			ra, rb := roundedBF16(a), transpose(roundedBF16(b), c.k, c.n)
			chains, exact := make([]float32, c.m*c.n), make([]float64, c.m*c.n)
			for i := range chains {
				x, w := ra[i/c.n*c.k:][:c.k], rb[i%c.n*c.k:][:c.k]
				if gemmKernel == amxKernel {
					chains[i], exact[i] = amxChain(x, w)
				} else {
					chains[i], exact[i] = bf16Chain(x, w)
				}
			}
			for trans := range 4 {
				transA, transB := trans&1 != 0, trans&2 != 0
				sa, lda := laidOut(transA, a, c.m, c.k)
				sb, ldb := laidOut(transB, b, c.k, c.n)
				name := fmt.Sprintf("m %d n %d k %d transA %v transB %v", c.m, c.n, c.k, transA, transB)
				got := eachWorkers(t, func() []float32 {
					got := nans[float32](c.m * c.n)
					bf16Products(transA, transB, c.m, c.n, c.k, 1, sa, lda, sb, ldb, 0, got, c.n, got, c.n)
					requireGuard(t, got)
					return got
				})
				e := rms(got, exact) * 0x1p24
				worst = max(worst, e)
				// Measured: 2.12.
				require.Falsef(t, !(e < 5), "%s: rms error %.1f units", name, e)
				requireSameBits(t, chains, got)
				biased := nans[float32](c.m * c.n)
				bf16Products(transA, transB, c.m, c.n, c.k, 0.5, sa, lda, sb, ldb, 1, s, 0, biased, c.n)
				if c.k <= gemmKC { // one pass
					for i, v := range chains {
						require.Equal(t, 0.5*v+s[i%c.n], biased[i], name)
					}
				}
				stored := eachWorkers(t, func() []float32 {
					stored := nans[float32](c.m * c.n)
					BF16MatMul(stored, storedBF16(sa), storedBF16(sb), c.m, c.n, c.k, transA, transB)
					requireGuard(t, stored)
					return stored
				})
				requireSameBits(t, got, stored)
			}
		}
		t.Logf("worst rms error %.2f units of roundoff", worst)
	})
}

// TestBF16ChainsHaveTheBitsOfFloat32: a product on rounded operands is that of
// Gemm, in every kernel set but AMX, and a row does not depend on the batch.
func TestBF16ChainsHaveTheBitsOfFloat32(t *testing.T) {
	const m, n, k = 101, 150, 601
	r := rand.New(rand.NewPCG(3, 4))
	x, w := normals[float32](r, m*k), normals[float32](r, n*k)
	var all []float32
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		y, want := make([]float32, m*n), make([]float32, m*n)
		BF16Linear(y, x, w, nil, m, n, k)
		if gemmKernel == amxKernel {
			all = y
		} else if gemmKernel != portableKernel { // whose Go code may or may not fuse
			Gemm(false, true, m, n, k, 1, roundedBF16(x), k, roundedBF16(w), k, 0, want, n)
			requireSameBits(t, want, y)
		}
		if all == nil {
			all = y
		}
		requireSameBits(t, all, y)
		for _, rows := range []int{1, 2, 3, 4, 8, 13, 60} {
			part := make([]float32, rows*n)
			BF16Linear(part, x[20*k:], w, nil, rows, n, k)
			requireSameBits(t, all[20*n:][:rows*n], part)
		}
	})
}

// TestBF16SpecialValues: NaN and infinity as in the plain formula; subnormal
// operands count as zero, and subnormal sums where the instruction is used.
func TestBF16SpecialValues(t *testing.T) {
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		const m, n, k, i, j = 61, 40, 271, 37, 35
		inf, nan, tiny := float32(math.Inf(1)), float32(math.NaN()), float32(0x1p-127)
		for _, p := range []int{0, 1, 260, 261, 270} {
			for _, s := range []struct{ av, bv, want float32 }{
				{nan, 1, nan}, {inf, 1, inf}, {-inf, 2, -inf}, {inf, 0, nan}, {1, nan, nan}, {0, inf, nan}, {1, -inf, -inf},
				{tiny, 0x1p100, 0}, {0x1p100, tiny, 0}, {0x1p-126, 1, 0x1p-126}, {math.MaxFloat32, 1, inf}, {0x1.fep127, 2, inf},
				{math.Float32frombits(0x7F800001), 1, nan},
			} {
				for trans := range 4 {
					transA, transB := trans&1 != 0, trans&2 != 0
					a, b := make([]float32, m*k), make([]float32, n*k)
					a[i*k+p], b[p*n+j] = s.av, s.bv
					a, lda := laidOut(transA, a, m, k)
					b, ldb := laidOut(transB, b, k, n)
					c := nans[float32](m * n)
					bf16Products(transA, transB, m, n, k, 1, a, lda, b, ldb, 0, c, n, c, n)
					got := c[i*n+j]
					if s.want != s.want {
						require.Truef(t, got != got, "%v x %v: %v", s.av, s.bv, got)
					} else {
						require.Equalf(t, s.want, got, "%v x %v", s.av, s.bv)
					}
					for q, v := range c {
						if q/n != i && q%n != j && v != 0 {
							require.Failf(t, "not zero", "element %d", q)
						}
					}
				}
			}
		}
		a, b, c := []float32{0x1p-100}, []float32{0x1p-40}, nans[float32](1)
		bf16Products(false, true, 1, 1, 1, 1, a, 1, b, 1, 0, c, 1, c, 1)
		if want := float32(0x1p-140); multipliesPairs[float32]() {
			require.Zero(t, c[0])
		} else {
			require.Equal(t, want, c[0])
		}
	})
}

// linearStored is one of BF16LinearsStored, with panels where the weight has them.
func linearStored(y, x []float32, w []uint16, b []float32, m, n, k int) {
	p := CodedLinear{Y: y, W: storedBytes(slices.Clone(w)), Bias: b, Coding: CodedBF16, N: n}
	p.Panels = panelsOf(CodedBF16, p.W, n, k)
	if n%panelCols == 0 && len(p.Panels) > 0 { // else many rows read the weight
		for i := range p.W {
			p.W[i] = 0x7f // of a NaN
		}
	}
	BF16LinearsStored(x, m, k, []CodedLinear{p})
}

// TestBF16LinearStoredIsThatOfTheWidenedWeight, forward and gradient.
func TestBF16LinearStoredIsThatOfTheWidenedWeight(t *testing.T) {
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		for _, s := range []struct{ m, n, k int }{{1, 33, 65}, {3, 64, 512}, {50, 70, 301}, {50, 70, 320}, {30, 64, 96}, {100, 288, 1088}, {0, 3, 4}, {2, 5, 0}} {
			r := rand.New(rand.NewPCG(uint64(s.m), 2))
			x, dy, w, b := normals[float32](r, s.m*s.k), normals[float32](r, s.m*s.n), normals[float32](r, s.n*s.k), normals[float32](r, s.n)
			for _, bias := range [][]float32{nil, b} {
				want, got := make([]float32, s.m*s.n), nans[float32](s.m*s.n)
				BF16Linear(want, x, w, bias, s.m, s.n, s.k)
				linearStored(got, x, storedBF16(w), bias, s.m, s.n, s.k)
				requireSameBits(t, want, got)
				requireGuard(t, got)
			}
			want, got := make([]float32, s.m*s.k), nans[float32](s.m*s.k)
			BF16LinearGradInput(want, dy, w, s.m, s.n, s.k)
			BF16LinearStoredGradInput(got, dy, storedBF16(w), s.m, s.n, s.k)
			requireSameBits(t, want, got)
			requireGuard(t, got)
		}
	})
}

// TestBF16ManyRows: blocks of rows have the bits that they have among many, which
// are multiplied another way.
func TestBF16ManyRows(t *testing.T) {
	const m, n, k = 1000, 70, 2100
	r := rand.New(rand.NewPCG(5, 4))
	x, w, b := normals[float32](r, m*k), normals[float32](r, n*k), normals[float32](r, n)
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		if !multipliesPairs[float32]() {
			t.Skip("the rows are those of Gemm")
		}
		for _, bias := range [][]float32{nil, b} {
			all := eachWorkers(t, func() []float32 {
				all := nans[float32](m * n)
				BF16Linear(all, x, w, bias, m, n, k)
				requireGuard(t, all)
				return all
			})
			for _, rows := range [][2]int{{0, 1}, {3, 100}, {880, 120}, {999, 1}} {
				part := make([]float32, rows[1]*n)
				BF16Linear(part, x[rows[0]*k:], w, bias, rows[1], n, k)
				requireSameBits(t, all[rows[0]*n:][:len(part)], part)
			}
		}
	})
}

// benchProducts times products of float32, large ones, then the demo model's: run
// gives its rate for op(x) op(w).
func benchProducts(b *testing.B, run func(b *testing.B, transA, transB bool, m, n, k int, x []float32, lda int, w []float32, ldb int, y []float32)) {
	for _, c := range []struct {
		transA, transB bool
		m, n, k        int
	}{
		{false, false, 1024, 1024, 1024}, {false, true, 1024, 1024, 1024}, {true, false, 1024, 1024, 1024},
		{false, true, 1024, 256, 256}, {false, true, 1024, 1024, 256}, {false, true, 1024, 256, 1024},
		{false, false, 1024, 256, 1024}, {true, false, 256, 256, 1024}, {true, false, 1024, 256, 1024},
	} {
		b.Run(fmt.Sprintf("%s/tA=%v,tB=%v/%dx%dx%d", GemmKernel(), c.transA, c.transB, c.m, c.n, c.k), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			lda, ldb := c.k, c.n
			if c.transA {
				lda = c.m
			}
			if c.transB {
				ldb = c.k
			}
			run(b, c.transA, c.transB, c.m, c.n, c.k, normals[float32](r, c.m*c.k), lda, normals[float32](r, c.n*c.k), ldb, make([]float32, c.m*c.n))
		})
	}
}

func BenchmarkBF16(b *testing.B) {
	benchProducts(b, func(b *testing.B, transA, transB bool, m, n, k int, x []float32, lda int, w []float32, ldb int, y []float32) {
		s := fastest(b, func() { bf16Products(transA, transB, m, n, k, 1, x, lda, w, ldb, 0, y, n, y, n) })
		b.ReportMetric(2*float64(m*n*k)/s/1e9, "GFLOP/s")
		sx, sw := storedBF16(x), storedBF16(w)
		s = fastest(b, func() { BF16MatMul(y, sx, sw, m, n, k, transA, transB) })
		b.ReportMetric(2*float64(m*n*k)/s/1e9, "GFLOP/s-stored")
	})
}

// TestBF16RowAloneIsBitEqual: a row on a stored weight has the bits it has among
// many.
func TestBF16RowAloneIsBitEqual(t *testing.T) {
	const m, n, k = 30, 70, 576
	r := rand.New(rand.NewPCG(4, 4))
	x, w := normals[float32](r, m*k), make([]uint16, n*k)
	for i := range w {
		w[i] = bf16Of(float32(r.NormFloat64()))
	}
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		all := make([]float32, m*n)
		linearStored(all, x, w, nil, m, n, k)
		for _, rows := range []int{1, 2, 4, 5, 13} {
			got := make([]float32, rows*n)
			linearStored(got, x[3*k:], w, nil, rows, n, k)
			requireSameBits(t, all[3*n:(3+rows)*n], got)
		}
	})
}

// TestBF16LinearsOfOneX have the bits of each alone, with and without a bias.
func TestBF16LinearsOfOneX(t *testing.T) {
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 10))
		for _, s := range [][2]int{{0, 3}, {1, 1}, {3, 33}, {130, 65}} {
			m, k := s[0], s[1]
			x := normals[float32](r, m*k)
			var ls []BF16LinearOf
			for i, n := range []int{70, 1, 0, 300} {
				l := BF16LinearOf{Y: nans[float32](m * n), W: normals[float32](r, n*k), N: n}
				if i%2 == 1 {
					l.B = normals[float32](r, n)
				}
				ls = append(ls, l)
			}
			BF16Linears(x, m, k, ls)
			for _, l := range ls {
				want := nans[float32](m * l.N)
				BF16Linear(want, x, l.W, l.B, m, l.N, k)
				requireGuard(t, l.Y)
				requireSameBits(t, want[:m*l.N], l.Y[:m*l.N])
			}
		}
	})
}
