// Attention whose float32 products go through AMX (AttentionArgs.BF16x6): operands
// become words of three parts (gemm_bf16x6.go), keys and values once for many rows of
// a forward tile, queries and dout once for a key tile of the gradient; probabilities
// and their gradient become words as they leave the exponential. With a mask or a soft
// cap the float products run. Rows of the operands that parts cannot stand for are
// alone: their products are made one by one.
//
// The words of a key tile, of a block of queries and of what is between them are 0.7
// MB where D is 64: the threads of a core share its L2.

package native

import (
	"math"
	"slices"
	"unsafe"
)

const (
	attnSplitRows  = 512 // of a forward tile, where there are units enough
	attnSplitStep  = 64  // rows of a forward tile that is seen whole go in steps
	attnSplitWords = attnKeys / splitRun * splitStep
	attnSplitLd    = attnSplitWords | 16 // of a row of words along the keys of a tile, or the queries of a block

	// The magnitudes of a row that parts stand for. Scores of queries and keys up to
	// attnSplitMost are rounded to less than 1; sums of the others do not overflow, and
	// the least ones of two operands have products of at least 2^-100.
	attnSplitMost  = 0x1p8
	attnValuesMost = 0x1p30
	attnSplitLeast = 0x1p-36
	attnDOutLeast  = 0x1p-64
)

// attnSplitFrom is the length from which words of a sequence pay: those of the only
// key tile of a shorter one cost what its products save. Tests lower it.
var attnSplitFrom = attnKeys + 1

// multipliesSplit says that the products go through words of three parts, those of
// sequences of attnSplitFrom keys or more.
func (h *attnHeads[T]) multipliesSplit() bool {
	return h.bf16x6 && !h.bf16 && multipliesPairs[T]() && h.softcap == 0 && h.scale > 0 && h.mask.Keep == nil && h.d > 0 && h.dv > 0
}

// tileRows returns the rows of a forward tile.
func (f *attnForward[T]) tileRows() int {
	if f.multipliesSplit() && f.lk >= attnSplitFrom && f.b*f.hkv*ceilDiv(f.longest()*f.g, attnSplitRows) >= amxUnits {
		return attnSplitRows
	}
	return attnRows
}

// splitTiles computes C = A B, or adds it to C, on the calling goroutine, with A
// in rows of words of three parts and B in panels of them, panel apart.
func splitTiles(m, n, words int, a []float32, lda int, b []float32, panel int, add bool, c []float32, ldc int) {
	if m <= 0 || n <= 0 || words <= 0 {
		return
	}
	var t tileArgs
	t.rows, t.cols, t.k, t.split = m, n, words, 1
	t.a, t.rsa = unsafe.Pointer(unsafe.SliceData(a)), lda*4
	t.b, t.rsb, t.panels = unsafe.Pointer(unsafe.SliceData(b)), pairCols*4, panel*4
	t.c, t.ldc = unsafe.Pointer(unsafe.SliceData(c)), ldc*4
	t.alpha = 1
	if add {
		t.s, t.lds, t.beta = t.c, t.ldc, 1
	}
	t.runTiles()
}

// isAlone says that parts cannot stand for numbers up to top.
func isAlone(top, least, most float32) bool { return top != 0 && !(top >= least && top <= most) }

// aloneRows returns the rows of src that are alone, from attnSplitLeast on.
func aloneRows(src []float32, lds, rows, d int, most float32) (alone []int) {
	for r := range rows {
		if top, nan := amaxOf(src[r*lds:][:d]); nan > 0 || isAlone(top, attnSplitLeast, most) {
			alone = append(alone, r)
		}
	}
	return alone
}

// splitPanels makes panels of words of rows of src, for products with them turned
// or as they lie.
func splitPanels(dst []float32, turned bool, src []float32, lds, rows, d int) {
	k, cols, panel := rows, d, attnSplitWords
	if turned {
		k, cols, panel = d, rows, splitWords(d)
	}
	tops := newTops(cols)
	source := pairSource{wide: src, ld: lds, k: k, split: true, tops: tops}
	for j := 0; j < cols; j += pairCols {
		source.packSplit(dst[j*panel:], turned, 0, splitWords(k), j, min(pairCols, cols-j), pairCols)
	}
	giveScratch(tops)
}

// takeOutSplit sets number i along k of each of n rows or columns to zero in their
// words: stride from a word of k to the next, and at(j) where those of j begin.
func takeOutSplit(words []float32, i, stride, n int, at func(j int) int) {
	keep := uint32(0xFFFF0000)
	if i%splitRun >= amxWords {
		keep = 0xFFFF
	}
	for j := range n {
		for part := range splitParts {
			w := &words[at(j)+wordOf(i, part)*stride]
			*w = math.Float32frombits(math.Float32bits(*w) & keep)
		}
	}
}

// wordOf is the word of a part of number i along k.
func wordOf(i, part int) int { return i/splitRun*splitStep + part*amxWords + i%amxWords }

// joined is number i along k of words that are stride apart.
func joined(words []float32, i, stride int) (x float32) {
	for part := splitParts - 1; part >= 0; part-- {
		x += half(words[wordOf(i, part)*stride], 1-i%splitRun/amxWords)
	}
	return x
}

// splitBothWays makes words of rows of src: along them, ldd apart, and, in turned, along
// each of its d columns. It returns the rows that are alone.
func splitBothWays(along []float32, ldd int, turned, src []float32, lds, rows, d int, least, most float32) (alone []int) {
	width := wholeCols(d)
	block := takeScratch[float32](splitStep * width)
	for r := 0; r < rows; r += splitRun {
		var tops [splitRun]float32
		n := min(splitRun, rows-r)
		if n == splitRun && d == width {
			splitBoth(&along[r*ldd], ldd*4, &block[0], &src[r*lds], lds*4, d/pairCols, &tops)
		} else {
			down := newTops(width)
			for i := range n {
				tops[i] = math.Float32frombits(splitRow(&along[(r+i)*ldd], &src[(r+i)*lds], d))
			}
			for j := 0; j < d; j += pairCols {
				splitRows(&block[splitStep*j], &src[r*lds+j], lds*4, n, min(pairCols, d-j), &down[j])
			}
			giveScratch(down)
		}
		at := turned[r/splitRun*splitStep:]
		for j := 0; j < width; j += pairCols {
			for q := 0; q < splitStep; q += pairUnit {
				transposeBlocks(unsafe.Pointer(&at[j*attnSplitLd+q]), attnSplitLd*4, unsafe.Pointer(&block[splitStep*j+q*pairCols]), pairCols*4, pairCols/pairUnit)
			}
		}
		for i, top := range tops {
			if isAlone(top, least, most) {
				alone = append(alone, r+i)
			}
		}
	}
	giveScratch(block)
	return alone
}

// attnSplitTile are the words of one forward tile.
type attnSplitTile struct {
	buf   []float32
	q     []float32 // [rows,wd] queries, parts along D
	kt    []float32 // panels of keys, parts along D
	v     []float32 // panels of values, parts along the keys
	s     []float32 // [attnSplitStep,attnKeys] scores of a step
	p     []float32 // [attnSplitStep,attnSplitLd] probabilities of a step, parts along the keys
	wd    int
	alone []int // rows whose queries are alone
}

// openSplit takes scratch and makes words of the queries.
func (w *attnState[T]) openSplit() {
	f, x := w.f, &w.split
	x.wd = splitWords(f.d)
	x.buf = takeScratch[float32](wholeCols(w.rows)*x.wd + attnKeys*x.wd + wholeCols(f.dv)*attnSplitWords + attnSplitStep*(attnKeys+attnSplitLd))
	cut := cutter(x.buf)
	x.q, x.kt, x.v = cut(wholeCols(w.rows)*x.wd), cut(attnKeys*x.wd), cut(wholeCols(f.dv)*attnSplitWords)
	x.s, x.p = cut(attnSplitStep*attnKeys), cut(attnSplitStep*attnSplitLd)
	for r := range w.rows {
		if isAlone(math.Float32frombits(splitRow(&x.q[r*x.wd], &w.query(r)[0], f.d)), attnSplitLeast, attnSplitMost) {
			x.alone = append(x.alone, r)
		}
	}
}

// query is that of row r.
func (w *attnState[T]) query(r int) []float32 {
	i, head := w.row(r)
	return float32s(w.f.q)[((w.s.q0+i)*w.f.hq+head)*w.f.d:][:w.f.d]
}

// attendSplit is attend in words.
func (w *attnState[T]) attendSplit(j0, n int, view attnView) {
	f, x := w.f, &w.split
	kt, ldk := f.kv.rows(&f.kv.k, w.s, w.hk, j0, n, w.k)
	vt, ldv := f.kv.rows(&f.kv.v, w.s, w.hk, j0, n, w.v)
	k, v := float32s(kt), float32s(vt)
	keys, values := aloneRows(k, ldk, n, f.d, attnSplitMost), aloneRows(v, ldv, n, f.dv, attnValuesMost)
	splitPanels(x.kt, true, k, ldk, n, f.d)
	splitPanels(x.v, false, v, ldv, n, f.dv)
	for _, j := range values {
		takeOutSplit(x.v, j, pairCols, f.dv, panelAt)
	}
	step := attnStep
	if view == attnFull {
		step = attnSplitStep
	}
	for r := 0; r < w.rows; r += step {
		end := min(r+step, w.rows)
		lo, hi := w.keysOf(r, end, j0, n)
		if lo == hi {
			continue
		}
		lo, hi = lo/pairCols*pairCols, wholeCols(hi)
		from, words := lo/splitRun*splitStep, (hi-lo)/splitRun*splitStep
		splitTiles(end-r, hi-lo, x.wd, x.q[r*x.wd:], x.wd, x.kt[lo*x.wd:], pairCols*x.wd, false, x.s[lo:], attnKeys)
		if len(keys)+len(x.alone) > 0 {
			eachAlone(x.alone, keys, r, end, lo, min(hi, n), func(i, j int) {
				x.s[(i-r)*attnKeys+j] = dot(w.query(i), k[j*ldk:][:f.d])
			})
		}
		w.softmaxSplit(r, end, j0, n, lo, hi, view)
		splitTiles(end-r, f.dv, words, x.p[from:], attnSplitLd, x.v[from*pairCols:], pairCols*attnSplitWords, true, float32s(w.o)[r*f.dv:], f.dv)
		if len(values) == 0 {
			continue
		}
		eachAlone(nil, values, r, end, lo, min(hi, n), func(i, j int) {
			if at, head := w.row(i); f.sees(w.s, head, at, j0+j) {
				axpy(float32s(w.o)[i*f.dv:][:f.dv], joined(x.p[(i-r)*attnSplitLd:], j, 1), v[j*ldv:][:f.dv])
			}
		})
	}
}

// panelAt is where column j of panels of a tile's keys begins.
func panelAt(j int) int { return j/pairCols*pairCols*attnSplitWords + j%pairCols }

// rowAt is where row j of words along the queries of a block begins.
func rowAt(j int) int { return j * attnSplitLd }

// eachAlone calls f for the pairs of rows from..end and columns lo..hi of which the
// row or the column is alone.
func eachAlone(rows, cols []int, from, end, lo, hi int, f func(i, j int)) {
	for i := from; i < end; i++ {
		if slices.Contains(rows, i) {
			for j := lo; j < hi; j++ {
				f(i, j)
			}
			continue
		}
		for _, j := range cols {
			if lo <= j && j < hi {
				f(i, j)
			}
		}
	}
}

// softmaxSplit is softmaxPairs for words of three parts.
func (w *attnState[T]) softmaxSplit(r, end, j0, n, lo, hi int, view attnView) {
	x := &w.split
	w.bases(x.s, r, end, j0, n, lo, hi, view, w.f.scale)
	expSplit(&x.p[lo/splitRun*splitStep], attnSplitLd*4, &x.s[lo], end-r, attnKeys*4, (hi-lo)/pairCols, float32(w.f.scale), &w.step.base[0], &w.step.sum[0])
	w.addSums(r, end)
}

// splitGradStep are the arguments of softmaxGradSplit, which knows the offsets, and
// the strides of s, dp and row: a step of queries with products q.k, not yet scaled,
// and dout.v in blocks of 32 keys.
//
//	p = min(1, e^(scale q.k - lse))    ds = scale (dout.v) p + t p    t = -scale delta
type splitGradStep struct {
	p, ds    *float32          // 0, 8: panels, parts along the queries
	row      *float32          // 16: ds in rows, parts along the keys
	s, dp    *float32          // 24, 32
	blocks   int               // 40
	scale    float32           // 48
	part     int32             // 52: 1 where a query sees only keys from..to
	lse, t   [attnStep]float32 // 56, 184
	from, to [attnStep]int32   // 312, 440
}

// attnGradSplit are the words of a key tile and of the queries beside it.
type attnGradSplit struct {
	buf            []float32
	kt, vt         []float32 // panels of keys and values, parts along D
	k              []float32 // panels of keys, parts along the keys
	sumK, sumV     []float32 // [D,attnKeys], [Dv,attnKeys] dk and dv, transposed
	q, dout        []float32 // [attnGradRows,wd], [attnGradRows,wdv] parts along D
	qt, dt         []float32 // [D,attnSplitLd], [Dv,attnSplitLd] parts along the queries
	s, dp          []float32 // [attnStep,attnKeys] q.k and dout.v of a step
	p, ds          []float32 // panels of probabilities and their gradient, parts along the queries
	gr             []float32 // [attnStep,attnSplitLd] the gradient of a step, parts along the keys
	line           []float32 // [attnKeys,max(D,Dv)]
	wd, wdv        int
	step           splitGradStep
	keys, values   []int // of the tile that are alone
	queries, douts []int // of the block that are alone
}

func (w *attnGradState[T]) openSplit() {
	g, x := w.g, &w.split
	d, dv := wholeCols(g.d), wholeCols(g.dv)
	x.wd, x.wdv = splitWords(g.d), splitWords(g.dv)
	x.buf = takeScratch[float32]((attnKeys+attnGradRows)*(x.wd+x.wdv) + d*attnSplitWords + (d+dv)*(attnKeys+attnSplitLd) +
		2*attnStep*attnKeys + 2*attnKeys*attnSplitWords + attnStep*attnSplitLd + attnKeys*max(d, dv))
	cut := cutter(x.buf)
	x.kt, x.vt, x.k = cut(attnKeys*x.wd), cut(attnKeys*x.wdv), cut(d*attnSplitWords)
	x.sumK, x.sumV = cut(d*attnKeys), cut(dv*attnKeys)
	x.q, x.dout = cut(attnGradRows*x.wd), cut(attnGradRows*x.wdv)
	x.qt, x.dt = cut(d*attnSplitLd), cut(dv*attnSplitLd)
	x.s, x.dp = cut(attnStep*attnKeys), cut(attnStep*attnKeys)
	x.p, x.ds = cut(attnKeys*attnSplitWords), cut(attnKeys*attnSplitWords)
	x.gr, x.line = cut(attnStep*attnSplitLd), cut(attnKeys*max(d, dv))
	x.step.scale = float32(g.scale)
}

// keySplit makes words of n keys and values.
func (w *attnGradState[T]) keySplit(k []float32, ldk int, v []float32, ldv, n int) {
	g, x := w.g, &w.split
	x.keys, x.values = aloneRows(k, ldk, n, g.d, attnSplitMost), aloneRows(v, ldv, n, g.dv, attnValuesMost)
	splitPanels(x.k, false, k, ldk, n, g.d)
	splitPanels(x.kt, true, k, ldk, n, g.d)
	splitPanels(x.vt, true, v, ldv, n, g.dv)
	for _, j := range x.keys {
		takeOutSplit(x.k, j, pairCols, g.d, panelAt)
	}
	clear(x.sumK)
	clear(x.sumV)
}

// storeTurned writes sums [d,attnKeys] to n rows of d.
func (w *attnGradState[T]) storeTurned(to []float32, ld int, sums []float32, n, d int) {
	line, width := w.split.line, wholeCols(d)
	packTransposed(line, sums, attnKeys, n, d, width)
	for j := range n {
		copy(to[j*ld:][:d], line[j*width:])
	}
}

// blockSplit is block in words.
func (w *attnGradState[T]) blockSplit(k []float32, ldk int, v []float32, ldv, head, i0, rows, j0, n int, view attnView) {
	g, x := w.g, &w.split
	at := (w.s.q0+i0)*g.hq + head
	q, dout := float32s(g.q)[at*g.d:], float32s(g.dout)[at*g.dv:]
	ldq, ldo := g.hq*g.d, g.hq*g.dv
	x.queries = splitBothWays(x.q, x.wd, x.qt, q, ldq, rows, g.d, attnSplitLeast, attnSplitMost)
	x.douts = splitBothWays(x.dout, x.wdv, x.dt, dout, ldo, rows, g.dv, attnDOutLeast, attnValuesMost)
	for _, r := range x.queries {
		takeOutSplit(x.qt, r, 1, g.d, rowAt)
	}
	for _, r := range x.douts {
		takeOutSplit(x.dt, r, 1, g.dv, rowAt)
	}
	alone := len(x.queries)+len(x.douts)+len(x.keys)+len(x.values) > 0
	dq := float32s(w.dq)[at*g.d:]
	for r := 0; r < rows; r += attnStep {
		end := min(r+attnStep, rows)
		lo, hi := w.beginStep(head, i0+r, i0+end, j0, n)
		if lo == hi {
			continue
		}
		// dq of this step, and the next block's rows, come from far.
		if !w.first {
			fetchRows(unsafe.Pointer(&dq[r*ldq]), ldq*4, end-r, g.d*4)
		}
		next := min(end-r, w.s.lq-i0-attnGradRows-r)
		if next > 0 {
			fetchRows(unsafe.Pointer(&q[(attnGradRows+r)*ldq]), ldq*4, next, g.d*4)
		}
		splitTiles(end-r, hi-lo, x.wd, x.q[r*x.wd:], x.wd, x.kt[lo*x.wd:], pairCols*x.wd, false, x.s[lo:], attnKeys)
		if next > 0 {
			fetchRows(unsafe.Pointer(&dout[(attnGradRows+r)*ldo]), ldo*4, next, g.dv*4)
		}
		splitTiles(end-r, hi-lo, x.wdv, x.dout[r*x.wdv:], x.wdv, x.vt[lo*x.wdv:], pairCols*x.wdv, false, x.dp[lo:], attnKeys)
		if alone {
			eachAlone(x.queries, x.keys, r, end, lo, min(hi, n), func(i, j int) {
				x.s[(i-r)*attnKeys+j] = dot(q[i*ldq:][:g.d], k[j*ldk:])
			})
			eachAlone(x.douts, x.values, r, end, lo, min(hi, n), func(i, j int) {
				x.dp[(i-r)*attnKeys+j] = dot(dout[i*ldo:][:g.dv], v[j*ldv:])
			})
		}
		w.gradSplit(head, i0, r, end, j0, n, lo, hi, view)
		from := lo / splitRun * splitStep
		splitTiles(end-r, g.d, (hi-lo)/splitRun*splitStep, x.gr[from:], attnSplitLd, x.k[from*pairCols:], pairCols*attnSplitWords, !w.first, dq[r*ldq:], ldq)
		if !alone {
			continue
		}
		eachAlone(x.queries, x.keys, r, end, lo, min(hi, n), func(i, j int) {
			if !g.sees(w.s, head, i0+i, j0+j) {
				return
			}
			ds := joined(x.gr[(i-r)*attnSplitLd:], j, 1)
			if slices.Contains(x.queries, i) {
				addDown(x.sumK[j:], ds, q[i*ldq:][:g.d])
			}
			if slices.Contains(x.keys, j) {
				axpy(dq[i*ldq:][:g.d], ds, k[j*ldk:])
			}
		})
		eachAlone(x.douts, nil, r, end, lo, min(hi, n), func(i, j int) {
			if g.sees(w.s, head, i0+i, j0+j) {
				addDown(x.sumV[j:], joined(x.p[panelAt(j):], i, pairCols), dout[i*ldo:][:g.dv])
			}
		})
	}
	width := attnKeys
	if view == attnPart {
		width = pairCols
	}
	for c := 0; c < n; c += width {
		from, to := w.stepsOf(c, i0, rows, j0, n)
		if from >= to {
			continue
		}
		cols, words, from := min(width, n-c), splitWords(to-from), from/splitRun*splitStep
		b := c*attnSplitWords + from*pairCols
		splitTiles(g.dv, cols, words, x.dt[from:], attnSplitLd, x.p[b:], pairCols*attnSplitWords, true, x.sumV[c:], attnKeys)
		splitTiles(g.d, cols, words, x.qt[from:], attnSplitLd, x.ds[b:], pairCols*attnSplitWords, true, x.sumK[c:], attnKeys)
	}
}

// addDown adds a times x to a column of sums.
func addDown(sums []float32, a float32, x []float32) {
	for c, v := range x {
		sums[c*attnKeys] += a * v
	}
}

// gradSplit makes words of p and ds of queries i0+r..i0+end and keys lo..hi.
func (w *attnGradState[T]) gradSplit(head, i0, r, end, j0, n, lo, hi int, view attnView) {
	g, x := w.g, &w.split
	a := &x.step
	a.part = 0
	if view == attnPart || end-r < attnStep || n < hi {
		a.part = 1
	}
	stat := g.lseAt(w.s, head) + i0 + r
	for i := range end - r {
		a.lse[i] = float32(g.lse[stat+i])
		a.t[i] = float32(-g.scale * g.delta[stat+i])
	}
	e := g.edges(w.s, j0, n)
	for i := 0; i < attnStep && a.part != 0; i++ {
		from, to := lo, lo // rows beyond the last see nothing
		if i < end-r {
			from, to = e.of(i0 + r + i)
		}
		a.from[i], a.to[i] = int32(from-lo), int32(to-lo)
	}
	word, from := r/splitRun*splitStep, lo/splitRun*splitStep
	a.p, a.ds, a.row = &x.p[lo*attnSplitWords+word*pairCols], &x.ds[lo*attnSplitWords+word*pairCols], &x.gr[from]
	a.s, a.dp, a.blocks = &x.s[lo], &x.dp[lo], (hi-lo)/pairCols
	softmaxGradSplit(a)
}
