package native

import "unsafe"

// This file is the matrix product of bf16 with sums in float32 where the CPU
// has an instruction for it: the operands of gemm.go become words of 32 bits,
// each of two neighbours along k (gemm_bf16_amd64.s says how), so that blocking
// and packing are those of a float32 product of half the k. op(A) is turned into
// words once, B while its panels are packed.
//
// The product of two bf16 is exact in float32, so a chain has the bits of Gemm's
// on the rounded operands, in every kernel set; but subnormal operands, and sums
// that become subnormal on the way, count as zero.

// multipliesPairs says that gemmBF16 can run.
func multipliesPairs[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel == bf16Kernel
}

// gemmBF16 computes C = alpha op(A) op(B) + beta S as gemmAdd does, with A and B
// rounded to bf16.
func gemmBF16(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b pairSource, beta float32, s []float32, lds int, c []float32, ldc int) {
	if m <= 0 || n <= 0 {
		return
	}
	words := ceilDiv(k, 2)
	b.k = k
	g := gemmArgs[float32]{
		gemmOperands: gemmOperands[float32]{
			transA: transA, transB: transB, m: m, n: n, k: words,
			alpha: alpha, beta: beta, s: s, lds: lds, c: c, ldc: ldc, pairs: true, source: b,
		},
	}
	w := pairArgs{src: a, lds: lda, turned: transA, m: m, k: k}
	if transA {
		w.ldd = ceilDiv(m, pairCols)*pairCols + 16
		w.dst = takeScratch[float32](words * w.ldd)
		pairWords.launch(ceilDiv(words, pairUnit), w)
	} else {
		w.ldd = words | 16 // not a power of two, so rows spread over the cache sets
		w.dst = takeScratch[float32](m * w.ldd)
		pairWords.launch(ceilDiv(m, pairUnit), w)
	}
	g.a, g.lda = w.dst, w.ldd
	g.compute()
	giveScratch(w.dst)
}

const (
	pairCols = 32 // columns that the assembly pairs at a time
	pairUnit = 16 // rows of words in a unit
)

// pairArgs turn op(A) [m,k] into words: rows of words, or of a transposed A
// columns.
type pairArgs struct {
	dst, src []float32
	ldd, lds int
	turned   bool
	m, k     int
}

var pairWords = newKernel(pairWordsUnit)

func pairWordsUnit(a *pairArgs, unit int) {
	if a.k == 0 {
		return
	}
	if !a.turned {
		for i := unit * pairUnit; i < min((unit+1)*pairUnit, a.m); i++ {
			pairRowBF16(&a.dst[i*a.ldd], &a.src[i*a.lds], a.k)
		}
		return
	}
	p := unit * pairUnit
	rows := min(2*pairUnit, a.k-2*p)
	for j := 0; j < a.m; j += pairCols {
		pairRowsBF16(&a.dst[p*a.ldd+j], a.ldd*4, &a.src[2*p*a.lds+j], a.lds*4, rows, min(pairCols, a.m-j))
	}
}

// pairSource is an operand B, as it lies: float32, or bf16 as it is stored.
type pairSource struct {
	wide   []float32
	stored []uint16
	ld     int
	k      int // of numbers
}

// pack writes words p..p+kc of columns j..j+cols into a panel [kc, nr] and fills
// the columns beyond with zeros.
func (s *pairSource) pack(panel []float32, turned bool, p, kc, j, cols, nr int) {
	n := min(2*kc, s.k-2*p)
	if !turned {
		at := 2*p*s.ld + j
		if s.stored != nil {
			pairRowsStored(&panel[0], nr*4, &s.stored[at], s.ld*2, n, cols)
		} else {
			pairRowsBF16(&panel[0], nr*4, &s.wide[at], s.ld*4, n, cols)
		}
		return
	}
	ld := kc | 16
	rows := takeScratch[float32](cols * ld)
	for i := range cols {
		at := (j+i)*s.ld + 2*p
		if s.stored != nil {
			pairRowStored(&rows[i*ld], &s.stored[at], n)
		} else {
			pairRowBF16(&rows[i*ld], &s.wide[at], n)
		}
	}
	packTransposed(panel, rows, ld, kc, cols, nr)
	giveScratch(rows)
}
