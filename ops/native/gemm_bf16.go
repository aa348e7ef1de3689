package native

import "unsafe"

// This file is the matrix product of bf16 with sums in float32 where the CPU
// has an instruction for it: the operands of gemm.go become words of 32 bits,
// each of two neighbours along k (gemm_bf16_amd64.s says how), so that blocking
// and packing are those of a float32 product of half the k. op(A) is turned into
// words once, B while its panels are packed.
//
// The product of two bf16 is exact in float32, so a chain has the bits of Gemm's
// on the rounded operands, in every kernel set but AMX; subnormal operands, and
// sums that become subnormal on the way, count as zero.

// multipliesPairs says that gemmBF16 can run.
func multipliesPairs[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel >= bf16Kernel
}

// gemmBF16 computes C = alpha op(A) op(B) + beta S as gemmAdd does, with A and B
// rounded to bf16.
func gemmBF16(transA, transB bool, m, n, k int, alpha float32, a, b pairSource, beta float32, s []float32, lds int, c []float32, ldc int) {
	if m <= 0 || n <= 0 {
		return
	}
	// Tiles can take words as they lie in memory, whatever the order of two, if B's
	// are in the same: whole tiles of rows and k, for nothing is added.
	if gemmKernel == amxKernel && !transA && a.stored != nil && b.stored != nil && k > 0 &&
		m%pairUnit == 0 && k%(2*amxWords) == 0 && a.ld%2 == 0 && (!transB || b.ld%2 == 0) {
		b.direct = true
		w := pairArgs{dst: a.words(), ldd: a.ld / 2, rows: true, m: m, k: k, words: k / 2}
		w.multiply(transB, n, alpha, b, beta, s, lds, c, ldc)
		return
	}
	w := wordsOf(transA, m, k, a)
	w.multiply(transB, n, alpha, b, beta, s, lds, c, ldc)
	w.free()
}

// wordsOf takes scratch for the words of op(A), which the first product makes.
func wordsOf(transA bool, m, k int, a pairSource) pairArgs {
	words := ceilDiv(k, 2)
	amx := gemmKernel == amxKernel
	if amx {
		words = ceilDiv(words, amxWords) * amxWords
	}
	if a.split {
		words = splitWords(k)
		a.k, a.tops = k, newTops(m)
	}
	w := pairArgs{src: a, turned: transA, rows: !transA || amx, m: m, k: k, words: words, units: ceilDiv(words, pairUnit)}
	if w.rows {
		w.ldd = words | 16 // not a power of two, so rows spread over the cache sets
		w.dst = takeScratch[float32]((ceilDiv(m, amxRows) + 1) * amxRows * w.ldd)
		if !transA {
			w.units = ceilDiv(m, pairUnit)
		} else if a.split {
			w.units = ceilDiv(m, pairCols)
		}
	} else {
		w.ldd = ceilDiv(m, pairCols)*pairCols + 16
		w.dst = takeScratch[float32](words * w.ldd)
	}
	return w
}

// multiply is gemmBF16 of op(A).
func (w *pairArgs) multiply(transB bool, n int, alpha float32, b pairSource, beta float32, s []float32, lds int, c []float32, ldc int) {
	b.k = w.k
	if b.split {
		b.tops = newTops(n)
	}
	g := gemmArgs[float32]{
		gemmOperands: gemmOperands[float32]{
			transA: !w.rows, transB: transB, m: w.m, n: n, k: w.words, a: w.dst, lda: w.ldd,
			alpha: alpha, beta: beta, s: s, lds: lds, c: c, ldc: ldc, pairs: true, tiles: gemmKernel == amxKernel, source: b,
		},
		words: *w,
	}
	g.compute()
	w.units = 0
	if b.split {
		multiplyOutside(&g)
		giveScratch(b.tops)
	}
}

// free gives back what wordsOf took.
func (w *pairArgs) free() {
	giveScratch(w.dst)
	if w.src.split {
		giveScratch(w.src.tops)
	}
}

// pairProduct computes C = alpha op(A) B + beta C on the calling goroutine, with A
// and B in words of which k counts: op(A) pairs along its rows, or, stored
// transposed, down its columns, as B does. AMX takes what it can: 16 words a step of
// operands that may be read beyond m and n, to whole blocks of 16 rows and 32 columns.
func pairProduct(transA bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if m <= 0 || n <= 0 {
		return
	}
	if gemmKernel == amxKernel && !transA && k > 0 && k%amxWords == 0 && len(a) >= (ceilDiv(m, pairUnit)*pairUnit-1)*lda+k && len(b) >= (k-1)*ldb+wholeCols(n) {
		var t tileArgs
		t.rows, t.cols, t.k, t.alpha = m, n, k, alpha
		t.a, t.rsa = unsafe.Pointer(&a[0]), lda*4
		t.b, t.rsb, t.panels = unsafe.Pointer(&b[0]), ldb*4, pairCols*4
		t.c, t.ldc = unsafe.Pointer(&c[0]), ldc*4
		if beta != 0 {
			t.s, t.lds, t.beta = t.c, t.ldc, beta
		}
		t.runTiles()
		return
	}
	g := gemmOperands[float32]{
		transA: transA, m: m, n: n, k: k, pairs: true, ready: true,
		alpha: alpha, beta: beta, a: a, lda: lda, b: b, ldb: ldb, s: c, lds: ldc, c: c, ldc: ldc,
	}
	g.serial()
}

const (
	pairCols    = 32 // columns that the assembly pairs at a time
	pairUnit    = 16 // rows of words in a unit
	amxRows     = 32 // of four AMX tiles; they read whole blocks of 16 rows and amxWords words
	amxWords    = 16
	amxUnitRows = 64
	amxUnitCols = 512 // 1 MB of a pass's words stay in L2
	amxUnits    = 16  // with fewer, units have amxFewCols columns, so that many workers share them
	amxFewCols  = 128
	amxPass     = 512 // words of a pass: a launch takes no more
)

// pairArgs turn op(A) [m,k] into words: rows of words, or columns.
type pairArgs struct {
	dst    []float32
	ldd    int
	src    pairSource
	turned bool // A is stored [k,m]
	rows   bool // of words, with zeros up to words
	m, k   int
	words  int
	units  int // 0: the words are there
}

var pairWords = newKernel(pairWordsUnit)

func pairWordsUnit(a *pairArgs, unit int) {
	if a.k == 0 {
		return
	}
	if a.src.split {
		a.splitUnit(unit)
		return
	}
	p := unit * pairUnit // the first word, where A is turned
	rows := min(2*pairUnit, a.k-2*p)
	switch {
	case !a.turned:
		for i := p; i < min(p+pairUnit, a.m); i++ {
			d := a.dst[i*a.ldd:][:a.words]
			a.src.row(d, i*a.src.ld, a.k)
			clear(d[ceilDiv(a.k, 2):])
		}
	case a.rows:
		block := takeScratch[float32](pairUnit * pairCols)
		clear(block[ceilDiv(rows, 2)*pairCols:])
		for j := 0; j < a.m; j += pairCols {
			a.src.rows(block, pairCols, 2*p*a.src.ld+j, rows, min(pairCols, a.m-j))
			transposeBlocks(unsafe.Pointer(&a.dst[j*a.ldd+p]), a.ldd*4, unsafe.Pointer(&block[0]), pairCols*4, pairCols/pairUnit)
		}
		giveScratch(block)
	default:
		for j := 0; j < a.m; j += pairCols {
			a.src.rows(a.dst[p*a.ldd+j:], a.ldd, 2*p*a.src.ld+j, rows, min(pairCols, a.m-j))
		}
	}
}

// pairSource is an operand as it lies: float32, or bf16 as it is stored, or the
// codes of 8-bit floats.
type pairSource struct {
	wide   []float32
	stored []uint16
	codes  []byte
	format FP8
	ld     int
	k      int       // of op(B): its rows
	panels []float32 // of stored [n,k] as FillPanels writes them, or nil
	direct bool      // a word is two numbers as they lie in memory, that of the smaller k in its low half
	split  bool      // wide is split into three parts, for BF16x6
	tops   []float32 // then the largest magnitude of each row of op(A), or column of op(B), as integers order them
}

// words are the stored numbers of a row by twos.
func (s *pairSource) words() []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(s.stored))), len(s.stored)/2)
}

// row pairs n > 0 numbers from at on.
func (s *pairSource) row(dst []float32, at, n int) {
	switch {
	case s.codes != nil:
		pairRowCodes(&dst[0], &s.codes[at], n, &fp8WordsOf[s.format])
	case s.stored != nil:
		pairRowStored(&dst[0], &s.stored[at], n)
	default:
		pairRowBF16(&dst[0], &s.wide[at], n)
	}
}

// rows pairs rows of at most pairCols columns from at on; ldd is the stride of
// dst, which is written pairCols wide.
func (s *pairSource) rows(dst []float32, ldd, at, rows, cols int) {
	switch {
	case s.codes != nil:
		pairRowsCodes(&dst[0], ldd*4, &s.codes[at], s.ld, rows, cols, &fp8WordsOf[s.format])
	case s.stored != nil:
		pairRowsStored(&dst[0], ldd*4, &s.stored[at], s.ld*2, rows, cols)
	default:
		pairRowsBF16(&dst[0], ldd*4, &s.wide[at], s.ld*4, rows, cols)
	}
}

// pack writes words p..p+kc of columns j..j+cols into a panel [kc, nr] and fills
// what is beyond with zeros.
func (s *pairSource) pack(panel []float32, turned bool, p, kc, j, cols, nr int) {
	if s.split {
		s.packSplit(panel, turned, p, kc, j, cols, nr)
		return
	}
	n := min(2*kc, s.k-2*p)
	words := ceilDiv(n, 2)
	if s.panels != nil {
		copy(panel[:kc*nr], s.panels[j*s.k/2+p*nr:])
		return
	}
	if s.direct {
		if turned {
			packTransposed(panel, s.words()[j*s.ld/2+p:], s.ld/2, kc, cols, nr)
			return
		}
		// Pairing puts the first row of two in the high half: it walks from the last row.
		last := 2*(p+kc) - 1
		pairRowsStored(&panel[(kc-1)*nr], -nr*4, &s.stored[last*s.ld+j], -s.ld*2, n, cols)
		return
	}
	if !turned {
		s.rows(panel, nr, 2*p*s.ld+j, n, cols)
		clear(panel[words*nr : kc*nr])
		return
	}
	if s.codes != nil && n%(4*pairUnit) == 0 && cols == pairCols {
		quads := takeScratch[float32](n / 4 * pairCols) // four codes of a column each
		for i := 0; i < cols; i += pairUnit {
			transposeBlocks(unsafe.Pointer(&quads[i]), pairCols*4, unsafe.Pointer(&s.codes[(j+i)*s.ld+2*p]), s.ld, n/(4*pairUnit))
		}
		pairQuads(&panel[0], &quads[0], n/4, &fp8WordsOf[s.format])
		clear(panel[words*nr : kc*nr])
		giveScratch(quads)
		return
	}
	ld := kc | 16
	rows := takeScratch[float32](cols * ld)
	for i := range cols {
		s.row(rows[i*ld:], (j+i)*s.ld+2*p, n)
		clear(rows[i*ld+words : i*ld+kc])
	}
	packTransposed(panel, rows, ld, kc, cols, nr)
	giveScratch(rows)
}
