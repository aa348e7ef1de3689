package native

import (
	"math"
	"unsafe"
)

// This file is BF16x6, float32 products by tiles of bf16: each operand is the sum
// of three bf16 (24 bits of three times 8), and six of the nine products of parts
// are added in float32; those left out are below 2^-25 of the whole. The sum of a
// pass is one chain (gemm_amx_amd64.s says which), from zero, and is added to C:
// one through all of k would have the error of float32 at k 1024, and more beyond.
//
// Parts below 2^-126 count as zero, and parts and products of large numbers may
// overflow where float32 does not. So rows of op(A) and columns of op(B) whose
// largest magnitude is not in splitLeast..splitMost, and not zero, are multiplied
// again as Gemm does; NaN and infinities are among them. Of the others, what is
// lost is at most 6k 2^-126, where the product of the largest magnitudes is at
// least 2^-80, and no sum overflows. So an element of C depends only on its row
// and its column.

const (
	splitParts = 3
	splitRun   = 2 * amxWords          // numbers along k of a step of the tile
	splitStep  = splitParts * amxWords // its words
	splitPass  = 8 * splitStep         // of a pass: 32 rows of A are 48 KB, and 512 columns of B 768 KB
	splitSpan  = splitPass             // of a launch

	splitLeast = 0x1p-40
	splitMost  = 0x1p50
)

// splitWords are those of k numbers.
func splitWords(k int) int { return ceilDiv(k, splitRun) * splitStep }

// newTops takes scratch for the largest magnitudes of n rows or columns.
func newTops(n int) []float32 {
	tops := takeScratch[float32](ceilDiv(n, pairCols) * pairCols)
	clear(tops)
	return tops
}

// BF16x6Linear is Linear by BF16x6 where AMX is; elsewhere, and in float64, it is
// Linear.
func BF16x6Linear[T Float](y, x, w, b []T, m, n, k int) {
	beta, s, lds := biased(y, b, n)
	splitProducts(false, true, m, n, k, x, k, w, k, beta, s, lds, y, n)
}

// BF16x6Linears is BF16x6Linear of x[M,K] for each of ls; what is made of x for
// the products is made once.
func BF16x6Linears(x []float32, m, k int, ls []BF16LinearOf) {
	if m <= 0 || gemmKernel != amxKernel {
		for _, l := range ls {
			Linear(l.Y, x, l.W, l.B, m, l.N, k)
		}
		return
	}
	linearsOf(pairSource{wide: x, ld: k, split: true}, m, k, ls)
}

// BF16x6LinearGradInput is LinearGradInput by BF16x6.
func BF16x6LinearGradInput[T Float](dx, dy, w []T, m, n, k int) {
	splitProducts(false, false, m, k, n, dy, n, w, k, 0, dx, k, dx, k)
}

// BF16x6LinearGradWeight is LinearGradWeight by BF16x6.
func BF16x6LinearGradWeight[T Float](dw, dy, x []T, m, n, k int) {
	splitProducts(true, false, n, k, m, dy, n, x, k, 0, dw, k, dw, k)
}

// splitProducts is gemmAdd with alpha 1 by BF16x6. S is not C, unless beta is 0.
func splitProducts[T Float](transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, beta T, s []T, lds int, c []T, ldc int) {
	if a32, ok := any(a).([]float32); ok && gemmKernel == amxKernel {
		f := func(x []T) []float32 { return any(x).([]float32) }
		gemmBF16(transA, transB, m, n, k, 1, pairSource{wide: a32, ld: lda, split: true}, pairSource{wide: f(b), ld: ldb, split: true}, float32(beta), f(s), lds, f(c), ldc)
		return
	}
	gemmAdd(transA, transB, m, n, k, 1, a, lda, b, ldb, beta, s, lds, c, ldc)
}

// multiplyOutside multiplies again what parts cannot stand for.
func multiplyOutside(g *gemmArgs[float32]) {
	a, b := &g.words.src, &g.source
	across, down := a.ld, 1 // from row to row of op(A), from column to column of op(B)
	if g.words.turned {
		across = 1
	}
	if g.transB {
		down = b.ld
	}
	s := g.s
	if g.beta == 0 {
		s = g.c
	}
	outside(a.tops[:g.m], func(i, rows int) {
		gemmAdd(g.words.turned, g.transB, rows, g.n, b.k, g.alpha, a.wide[i*across:], a.ld, b.wide, b.ld, g.beta, s[i*g.lds:], g.lds, g.c[i*g.ldc:], g.ldc)
	})
	outside(b.tops[:g.n], func(j, cols int) {
		gemmAdd(g.words.turned, g.transB, g.m, cols, b.k, g.alpha, a.wide, a.ld, b.wide[j*down:], b.ld, g.beta, s[j:], g.lds, g.c[j:], g.ldc)
	})
}

// outside calls f for each run of tops that parts cannot stand for.
func outside(tops []float32, f func(from, n int)) {
	out := func(i int) bool {
		return i < len(tops) && tops[i] != 0 && !(tops[i] >= splitLeast && tops[i] <= splitMost)
	}
	for i := 0; i < len(tops); i++ {
		from := i
		for out(i) {
			i++
		}
		if i > from {
			f(from, i-from)
		}
	}
}

// splitUnit makes words of pairUnit rows of A, or, where A is turned, of pairCols
// of its columns.
func (a *pairArgs) splitUnit(unit int) {
	if !a.turned {
		for i := unit * pairUnit; i < min((unit+1)*pairUnit, a.m); i++ {
			a.src.tops[i] = math.Float32frombits(splitRow(&a.dst[i*a.ldd], &a.src.wide[i*a.src.ld], a.k))
		}
		return
	}
	i := unit * pairCols
	block := takeScratch[float32](splitPass * pairCols)
	for p := 0; p < a.words; p += splitPass {
		words := min(splitPass, a.words-p)
		a.src.packSplit(block, false, p, words, i, min(pairCols, a.m-i), pairCols)
		for q := 0; q < words; q += pairUnit {
			transposeBlocks(unsafe.Pointer(&a.dst[i*a.ldd+p+q]), a.ldd*4, unsafe.Pointer(&block[q*pairCols]), pairCols*4, pairCols/pairUnit)
		}
	}
	giveScratch(block)
}

// packSplit is pack of words of three parts.
func (s *pairSource) packSplit(panel []float32, turned bool, p, kc, j, cols, nr int) {
	first := p / splitStep * splitRun
	n := min(kc/splitStep*splitRun, s.k-first)
	if !turned {
		splitRows(&panel[0], &s.wide[first*s.ld+j], s.ld*4, n, cols, &s.tops[j])
		return
	}
	ld := kc | 16
	rows := takeScratch[float32](cols * ld)
	for i := range cols {
		top := splitRow(&rows[i*ld], &s.wide[(j+i)*s.ld+first], n)
		s.tops[j+i] = math.Float32frombits(max(top, math.Float32bits(s.tops[j+i])))
	}
	packTransposed(panel, rows, ld, kc, cols, nr)
	giveScratch(rows)
}
