// Attention whose products are of bf16 (AttentionArgs.BF16): where the CPU has
// an instruction for them, operands become words of two (gemm_bf16.go) as they
// are loaded, and probabilities as they are computed. Elsewhere, and with a mask
// or a soft cap, the float products run on rounded operands.

package native

import (
	"math"
	"slices"
)

// multipliesPairs says that the products go through words.
func (h *attnHeads[T]) multipliesPairs() bool {
	return h.bf16 && multipliesPairs[T]() && h.softcap == 0 && h.mask.Keep == nil && h.d > 0 && h.dv > 0
}

// attnPairs are the words of one forward tile.
type attnPairs struct {
	buf  []float32
	q    []float32 // [rows,wd] queries, pairs along D
	kt   []float32 // [wd,attnKeys] keys, pairs along D, transposed
	v    []float32 // [attnKeys/2,ldv] values, pairs of keys
	s    []float32 // [attnStep,attnKeys] scores of a step
	p    []float32 // [attnStep,attnKeys/2] probabilities of a step, pairs of keys
	line []float32 // [attnKeys,wd] keys, pairs along D
	wd   int
	ldv  int
}

// wholeCols is n columns in whole pieces of pairCols.
func wholeCols(n int) int { return ceilDiv(n, pairCols) * pairCols }

// openPairs takes scratch and makes words of the queries.
func (w *attnState[T]) openPairs() {
	f, x := w.f, &w.pairs
	x.wd, x.ldv = ceilDiv(f.d, 2), wholeCols(f.dv)
	line := max(attnKeys*x.wd, x.ldv)
	x.buf = takeScratch[float32]((wholeCols(w.rows)+attnKeys)*x.wd + line + attnKeys/2*x.ldv + attnStep*attnKeys*3/2)
	cut := cutter(x.buf)
	x.q, x.kt, x.line = cut(wholeCols(w.rows)*x.wd), cut(attnKeys*x.wd), cut(line)
	x.v, x.s, x.p = cut(attnKeys/2*x.ldv), cut(attnStep*attnKeys), cut(attnStep*attnKeys/2)
	q := float32s(f.q)
	for r := range min(f.g, w.rows) { // rows of a head are f.g apart
		i, head := w.row(r)
		pairBoth(x.kt, 0, x.q[r*x.wd:], f.g*x.wd, q[((w.s.q0+i)*f.hq+head)*f.d:], f.hq*f.d, ceilDiv(w.rows-r, f.g), f.d)
	}
}

// attendPairs is attend in words.
func (w *attnState[T]) attendPairs(j0, n int, view attnView) {
	f, x := w.f, &w.pairs
	v, ldv := f.kv.rows(&f.kv.v, w.s, w.hk, j0, n, w.v)
	v32 := float32s(v)
	var alone []int
	if !pairBoth(x.v, x.ldv, x.line, 0, v32, ldv, n, f.dv) {
		alone = takeOut(x.v, x.ldv, v32, ldv, n, f.dv)
	}
	clear(x.v[ceilDiv(n, 2)*x.ldv : wholeCols(n)/2*x.ldv])
	k, ldk := f.kv.rows(&f.kv.k, w.s, w.hk, j0, n, w.k)
	k32 := float32s(k)
	pairBoth(x.kt, 0, x.line, x.wd, k32, ldk, n, f.d) // their pairs are not needed, nor those along values
	packTransposed(x.kt, x.line, x.wd, x.wd, n, attnKeys)
	for r := 0; r < w.rows; r += attnStep {
		end := min(r+attnStep, w.rows)
		lo, hi := w.keysOf(r, end, j0, n)
		if lo == hi {
			continue
		}
		lo, hi = lo/pairCols*pairCols, wholeCols(hi)
		pairProduct(false, end-r, hi-lo, x.wd, float32(f.scale), x.q[r*x.wd:], x.wd, x.kt[lo:], attnKeys, 0, x.s[lo:], attnKeys)
		w.softmaxPairs(r, end, j0, n, lo, hi, view)
		pairProduct(false, end-r, f.dv, (hi-lo)/2, 1, x.p[lo/2:], attnKeys/2, x.v[lo/2*x.ldv:], x.ldv, 1, float32s(w.o)[r*f.dv:], f.dv)
		for _, j := range alone {
			for i := r; i < end; i++ {
				if at, head := w.row(i); f.sees(w.s, head, at, j0+j) {
					addRounded(float32s(w.o)[i*f.dv:], half(x.p[((i-r)*attnKeys+j)/2], j), v32[j*ldv:][:f.dv])
				}
			}
		}
	}
}

// softmaxPairs is softmaxRow for rows r..end, a step: the scores of keys lo..hi
// become words, 0 for keys that a row does not see.
func (w *attnState[T]) softmaxPairs(r, end, j0, n, lo, hi int, view attnView) {
	x := &w.pairs
	w.bases(x.s, r, end, j0, n, lo, hi, view, 1)
	expPairsBF16(&x.p[lo/2], &x.s[lo], end-r, attnKeys*4, (hi-lo)/pairCols, &w.step.base[0], &w.step.sum[0])
	w.addSums(r, end)
}

// attnWordStep is of the rows of a step, where products go through words.
type attnWordStep struct {
	base [attnSplitStep]float32 // what their exponentials are above
	sum  [attnSplitStep]float64 // and their sums
}

// bases moves m, l and o of rows r..end, a step, to the largest of factor times
// their scores s of keys lo..hi; keys that a row does not see get -Inf. All largest
// ones come before all exponentials, so that no row waits for the chain of another.
func (w *attnState[T]) bases(s []float32, r, end, j0, n, lo, hi int, view attnView, factor T) {
	f, x := w.f, &w.step
	e := f.edges(w.s, j0, n)
	at, head := w.row(r)
	for i := r; i < end; i++ {
		from, to := lo, n
		if view == attnPart {
			if from, to = e.of(at); from == to {
				from, to = lo, lo
			}
			at, head = w.nextRow(at, head)
		}
		w.seen[i] = w.seen[i] || from < to
		row := s[(i-r)*attnKeys:]
		copy(row[lo:from], unseen[:])
		copy(row[to:hi], unseen[:])
	}
	largestScores(&x.base[0], &s[lo], end-r, attnKeys*4, (hi-lo)/pairCols)
	for i := r; i < end; i++ {
		base := factor * T(x.base[i-r])
		switch {
		case base <= w.m[i]+softmaxSlack:
			base = w.m[i]
		case w.l[i] != 0:
			alpha := expOf(w.m[i] - base)
			w.l[i] *= alpha
			scale(w.o[i*f.dv:(i+1)*f.dv], alpha)
		}
		w.m[i] = base
		if math.IsInf(float64(base), -1) {
			base = 0 // every score so far is -Inf: exp keeps them 0
		}
		x.base[i-r] = float32(base)
	}
}

// unseen are the scores of keys that a row does not see.
var unseen = func() (s [attnKeys]float32) {
	fill(s[:], float32(math.Inf(-1)))
	return s
}()

// addSums adds the sums of a step to l.
func (w *attnState[T]) addSums(r, end int) {
	for i := r; i < end; i++ {
		w.l[i] += T(w.step.sum[i-r])
	}
}

// takeOut sets the rows of x [n,d] that are not finite in bf16 to zero in words
// that pair its rows, and returns which they are: they are added alone to the sums
// of those who do see them.
func takeOut(words []float32, ld int, x []float32, ldx, n, d int) (rows []int) {
	rounded := make([]float32, d)
	for r := range n {
		roundBF16(rounded, x[r*ldx:])
		if finite(rounded) {
			continue
		}
		rows = append(rows, r)
		keep := uint32(0xFFFF0000)
		if r%2 == 0 {
			keep = 0xFFFF
		}
		for c, v := range words[r/2*ld:][:d] {
			words[r/2*ld+c] = math.Float32frombits(math.Float32bits(v) & keep)
		}
	}
	return rows
}

// half is number i of a pair.
func half(word float32, i int) float32 {
	if i%2 == 0 {
		return math.Float32frombits(math.Float32bits(word) & 0xFFFF0000)
	}
	return math.Float32frombits(math.Float32bits(word) << 16)
}

// addRounded adds a times x, rounded to bf16, to y.
func addRounded(y []float32, a float32, x []float32) {
	rounded := make([]float32, len(x))
	roundBF16(rounded, x)
	axpy(y[:len(x)], a, rounded)
}

// attnGradPairs are the words of one key tile and of the queries beside it.
type attnGradPairs struct {
	buf     []float32
	kt, vt  []float32 // [wd,attnKeys], [wdv,attnKeys] keys and values, pairs along D, transposed
	k       []float32 // [attnKeys/2,ld] pairs of keys
	q, dout []float32 // [attnGradRows,wd], [attnGradRows,wdv] pairs along D
	qs, ds  []float32 // [attnGradRows/2,ld], [attnGradRows/2,ldv] q and dout, pairs of queries
	s, dp   []float32 // [attnStep,attnKeys] scores and dout.v of a step
	p, g    []float32 // [attnGradRows/2,attnKeys] probabilities and their gradient, pairs of queries
	gr      []float32 // [attnGradRows,attnKeys/2] the gradient, pairs of keys
	line    []float32 // [attnKeys,max(wd,wdv)]
	wd, wdv int
	ld, ldv int
	alone   []int // keys that are not finite in bf16, and not in k
	begun   bool  // dk and dv of the tile hold something

	rows softmaxGradRows
}

// softmaxGradRows are the arguments of softmaxGradBF16, which knows the offsets:
// two rows of scores s and of dout.v, stride bytes apart, in blocks of 32 keys.
//
//	p = e^(s - lse)    ds = scale (dout.v) p + t p    t = -scale delta
type softmaxGradRows struct {
	p, ds  *float32    // 0, 8: pairs of the rows
	row    [2]*float32 // 16, 24: ds in pairs of keys
	s, dp  *float32    // 32, 40
	stride int         // 48
	blocks int         // 56
	seen   [2][2]int   // 64, 72; 80, 88: the keys that a row sees
	lse    [2]float32  // 96, 100
	t      [2]float32  // 104, 108
	scale  float32     // 112
}

func (w *attnGradState[T]) openPairs() {
	g, x := w.g, &w.pairs
	x.wd, x.wdv, x.ld, x.ldv = ceilDiv(g.d, 2), ceilDiv(g.dv, 2), wholeCols(g.d), wholeCols(g.dv)
	const rows, keys = attnGradRows, attnKeys
	x.buf = takeScratch[float32]((keys+rows)*(x.wd+x.wdv) + keys/2*x.ld + rows/2*(x.ld+x.ldv) + 2*attnStep*keys + 3*rows/2*keys + keys*max(x.wd, x.wdv))
	cut := cutter(x.buf)
	x.kt, x.vt, x.k = cut(keys*x.wd), cut(keys*x.wdv), cut(keys/2*x.ld)
	x.q, x.dout, x.qs, x.ds = cut(rows*x.wd), cut(rows*x.wdv), cut(rows/2*x.ld), cut(rows/2*x.ldv)
	x.s, x.dp = cut(attnStep*keys), cut(attnStep*keys)
	x.p, x.g, x.gr = cut(rows/2*keys), cut(rows/2*keys), cut(rows/2*keys)
	x.line = cut(keys * max(x.wd, x.wdv))
	x.rows.stride, x.rows.scale = attnKeys*4, float32(g.scale)
}

// pairBoth makes words of n rows of d columns of src, pairs of rows into cols and
// pairs along the rows into rows, and says that the numbers are finite in bf16.
func pairBoth(cols []float32, ldc int, rows []float32, ldr int, src []float32, lds, n, d int) bool {
	finite := true
	for c := 0; c < d; c += pairCols {
		top := pairBothBF16(&cols[c], ldc*4, &rows[c/2], ldr*4, &src[c], lds*4, n, min(pairCols, d-c))
		finite = finite && top < 0x7F80
	}
	return finite
}

// keyPairs makes words of n keys and values.
func (w *attnGradState[T]) keyPairs(k []T, ldk int, v []T, ldv, n int) {
	g, x := w.g, &w.pairs
	pairBoth(x.qs, 0, x.line, x.wdv, float32s(v), ldv, n, g.dv) // pairs of values are not needed
	packTransposed(x.vt, x.line, x.wdv, x.wdv, n, attnKeys)
	x.alone, x.begun = nil, false
	if !pairBoth(x.k, x.ld, x.line, x.wd, float32s(k), ldk, n, g.d) {
		x.alone = takeOut(x.k, x.ld, float32s(k), ldk, n, g.d)
	}
	clear(x.k[ceilDiv(n, 2)*x.ld : wholeCols(n)/2*x.ld])
	packTransposed(x.kt, x.line, x.wd, x.wd, n, attnKeys)
}

// blockPairs is block in words.
func (w *attnGradState[T]) blockPairs(gk []T, ldk int, gv []T, ldv int, k []T, head, i0, rows, j0, n int, view attnView) {
	g, x := w.g, &w.pairs
	at := (w.s.q0+i0)*g.hq + head
	q, dout := float32s(g.q)[at*g.d:], float32s(g.dout)[at*g.dv:]
	var queries, douts []int
	if !pairBoth(x.qs, x.ld, x.q, x.wd, q, g.hq*g.d, rows, g.d) {
		queries = takeOut(x.qs, x.ld, q, g.hq*g.d, rows, g.d)
	}
	if !pairBoth(x.ds, x.ldv, x.dout, x.wdv, dout, g.hq*g.dv, rows, g.dv) {
		douts = takeOut(x.ds, x.ldv, dout, g.hq*g.dv, rows, g.dv)
	}
	gk32, gv32, dq := float32s(gk), float32s(gv), float32s(w.dq)
	for r := 0; r < rows; r += attnStep {
		end := min(r+attnStep, rows)
		lo, hi := w.beginStep(head, i0+r, i0+end, j0, n)
		if lo == hi {
			continue
		}
		w.gradPairs(head, i0, r, end, j0, n, lo, hi, view)
		pairProduct(false, end-r, g.d, (hi-lo)/2, 1, x.gr[(r*attnKeys+lo)/2:], attnKeys/2, x.k[lo/2*x.ld:], x.ld, unlessFirst(w.first), dq[(at+r*g.hq)*g.d:], g.hq*g.d)
	}
	width := attnKeys
	if view == attnPart {
		width = pairCols
	}
	for c := 0; c < n; c += width {
		from, to := w.stepsOf(c, i0, rows, j0, n)
		keys, pairs := min(width, n-c), ceilDiv(to-from, 2)
		if from >= to {
			if !x.begun {
				w.clearKeys(j0+c, j0+c+keys)
			}
			continue
		}
		pairProduct(true, keys, g.dv, pairs, 1, x.p[from/2*attnKeys+c:], attnKeys, x.ds[from/2*x.ldv:], x.ldv, unlessFirst(!x.begun), gv32[c*ldv:], ldv)
		pairProduct(true, keys, g.d, pairs, 1, x.g[from/2*attnKeys+c:], attnKeys, x.qs[from/2*x.ld:], x.ld, unlessFirst(!x.begun), gk32[c*ldk:], ldk)
	}
	x.begun = true
	if len(queries)+len(douts)+len(x.alone) == 0 {
		return
	}
	w.eachSeen(queries, nil, head, i0, rows, j0, n, func(r, j int) {
		addRounded(gk32[j*ldk:], half(x.gr[(r*attnKeys+j)/2], j), q[r*g.hq*g.d:][:g.d])
	})
	w.eachSeen(douts, nil, head, i0, rows, j0, n, func(r, j int) {
		addRounded(gv32[j*ldv:], half(x.p[r/2*attnKeys+j], r), dout[r*g.hq*g.dv:][:g.dv])
	})
	w.eachSeen(nil, x.alone, head, i0, rows, j0, n, func(r, j int) {
		addRounded(dq[(at+r*g.hq)*g.d:], half(x.gr[(r*attnKeys+j)/2], j), float32s(k)[j*ldk:][:g.d])
	})
}

// unlessFirst is the factor of a sum that holds nothing yet, or of one that does.
func unlessFirst(first bool) float32 {
	if first {
		return 0
	}
	return 1
}

// eachSeen calls f for the given queries, or the given keys, of a block and the
// keys that they see, or the queries that see them.
func (w *attnGradState[T]) eachSeen(queries, keys []int, head, i0, rows, j0, n int, f func(r, j int)) {
	for r := range rows {
		for j := range n {
			if (slices.Contains(queries, r) || slices.Contains(keys, j)) && w.g.sees(w.s, head, i0+r, j0+j) {
				f(r, j)
			}
		}
	}
}

// pairCols returns whole blocks of the keys j0..j0+n, counted from j0, that hold
// all that queries i0..end see.
func (w *attnGradState[T]) pairCols(i0, end, j0, n int) (lo, hi int) {
	if lo, hi = w.g.partOf(w.s, i0, end-1, j0, n); lo == hi {
		return lo, lo
	}
	return lo / pairCols * pairCols, wholeCols(hi)
}

// beginStep is pairCols; where those queries see none of the keys it leaves dq as it
// is to be.
func (w *attnGradState[T]) beginStep(head, i0, end, j0, n int) (lo, hi int) {
	lo, hi = w.pairCols(i0, end, j0, n)
	if lo == hi && w.first {
		w.clearQueries(head, 1, i0, end)
	}
	return lo, hi
}

// stepsOf returns the queries, counted from i0, of those steps of a block that compute
// key c, counted from j0. They follow each other.
func (w *attnGradState[T]) stepsOf(c, i0, rows, j0, n int) (from, to int) {
	from = rows
	for r := 0; r < rows; r += attnStep {
		end := min(r+attnStep, rows)
		if lo, hi := w.pairCols(i0+r, i0+end, j0, n); lo <= c && c < hi {
			from, to = min(from, r), end
		}
	}
	return from, to
}

// gradPairs is pair in words, for queries i0+r..i0+end and keys lo..hi.
func (w *attnGradState[T]) gradPairs(head, i0, r, end, j0, n, lo, hi int, view attnView) {
	g, x := w.g, &w.pairs
	pairProduct(false, end-r, hi-lo, x.wd, float32(g.scale), x.q[r*x.wd:], x.wd, x.kt[lo:], attnKeys, 0, x.s[lo:], attnKeys)
	pairProduct(false, end-r, hi-lo, x.wdv, 1, x.dout[r*x.wdv:], x.wdv, x.vt[lo:], attnKeys, 0, x.dp[lo:], attnKeys)
	stat := g.lseAt(w.s, head) + i0
	e := g.edges(w.s, j0, n)
	a := &x.rows
	a.blocks = (hi - lo) / pairCols
	for i := r; i < end; i += 2 {
		for k := range a.seen {
			a.seen[k] = [2]int{} // an odd row's partner sees nothing
			if i+k < end {
				from, to := lo, n
				if view == attnPart {
					from, to = e.of(i0 + i + k)
				}
				a.seen[k] = [2]int{from - lo, to - lo}
				a.lse[k] = float32(g.lse[stat+i+k])
				a.t[k] = float32(-g.scale * g.delta[stat+i+k])
			}
			a.row[k] = &x.gr[((i+k)*attnKeys+lo)/2]
		}
		a.p, a.ds = &x.p[i/2*attnKeys+lo], &x.g[i/2*attnKeys+lo]
		a.s, a.dp = &x.s[(i-r)*attnKeys+lo], &x.dp[(i-r)*attnKeys+lo]
		softmaxGradBF16(a)
	}
}

// cutter hands out pieces of buf that follow each other.
func cutter[T any](buf []T) func(n int) []T {
	return func(n int) []T {
		b := buf[:n:n]
		buf = buf[n:]
		return b
	}
}

// roundRows writes n rows of d columns, rounded to bf16, into buf.
func roundRows[T Float](buf, x []T, ldx, n, d int) ([]T, int) {
	for i := range n {
		roundBF16(buf[i*d:(i+1)*d], x[i*ldx:])
	}
	return buf, d
}

// roundBF16 computes y = x rounded to bf16 with subnormal numbers as zero; y may
// be x.
func roundBF16[T Float](y, x []T) {
	if len(y) == 0 {
		return
	}
	if multipliesPairs[T]() {
		roundRowBF16(f32p(y), f32p(x), len(y))
		return
	}
	bf16Slice(y, x[:len(y)], true)
}
