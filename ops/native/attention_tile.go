// The tile step of attention: scores of some rows against some keys, the
// running softmax, and the products that a mask must not let NaN through.

package native

import (
	"bytes"
	"math"
	"unsafe"
)

const (
	attnRows = 128 // rows of a forward tile
	attnKeys = 128 // keys of a tile
	attnStep = 32  // rows of a tile that is seen in part go in steps, each with the keys it sees
)

// attnState is the running softmax of the rows of one forward tile.
type attnState[T Float] struct {
	f        *attnForward[T]
	s        attnSeq
	hk       int
	r0, rows int

	buf  []T // all scratch below
	q    []T // [rows,D]
	o    []T // [rows,Dv] not yet divided by l
	p    []T // [rows,attnKeys] scores, then probabilities
	kt   []T // [D,attnKeys] keys, transposed
	k, v []T // gathered keys and values, where they do not lie in rows
	m, l []T // [rows] running maximum and sum
	seen [attnSplitRows]bool

	step    attnWordStep
	rounds  bool // products are of bf16
	inPairs bool // products go through words
	pairs   attnPairs
	inSplit bool // products go through words of three parts
	split   attnSplitTile
}

// open takes scratch for rows r0..r0+rows and loads their queries.
func (w *attnState[T]) open() {
	f, rows := w.f, w.rows
	w.buf = takeScratch[T](rows*(f.d+f.dv+attnKeys+2) + attnKeys*(2*f.d+f.dv))
	cut := cutter(w.buf)
	w.q, w.o, w.p = cut(rows*f.d), cut(rows*f.dv), cut(rows*attnKeys)
	w.m, w.l = cut(rows), cut(rows)
	w.kt, w.k, w.v = cut(attnKeys*f.d), cut(attnKeys*f.d), cut(attnKeys*f.dv)
	clear(w.o)
	clear(w.l)
	fill(w.m, T(math.Inf(-1)))
	w.rounds = f.rounds(w.s)
	if w.inPairs = w.rounds && f.multipliesPairs(); w.inPairs {
		w.openPairs()
		return
	}
	if w.inSplit = f.multipliesSplit() && w.s.lk >= attnSplitFrom; w.inSplit {
		w.openSplit()
		return
	}
	for r := range rows {
		i, head := w.row(r)
		copy(w.q[r*f.d:(r+1)*f.d], f.q[((w.s.q0+i)*f.hq+head)*f.d:])
	}
	if w.rounds {
		roundBF16(w.q, w.q)
	}
}

// row returns query and head of row r.
func (w *attnState[T]) row(r int) (i, head int) {
	return (w.r0 + r) / w.f.g, w.hk*w.f.g + (w.r0+r)%w.f.g
}

// nextRow returns those of the row after that of query i and head.
func (w *attnState[T]) nextRow(i, head int) (int, int) {
	if head++; head == (w.hk+1)*w.f.g {
		return i + 1, w.hk * w.f.g
	}
	return i, head
}

// attend takes keys j0..j0+n into the running softmax.
func (w *attnState[T]) attend(j0, n int) {
	f := w.f
	view := w.view(j0, n)
	if view == attnNone {
		return
	}
	if w.inPairs {
		w.attendPairs(j0, n, view)
		return
	}
	if w.inSplit {
		w.attendSplit(j0, n, view)
		return
	}
	step := w.rows
	if view == attnPart {
		step = attnStep
	}
	k, ldk := f.kv.rows(&f.kv.k, w.s, w.hk, j0, n, w.k)
	if w.rounds {
		k, ldk = roundRows(w.k, k, ldk, n, f.d)
	}
	few := w.rows <= gemmFew // to whom turning the keys does not pay
	if !few {
		packTransposed(w.kt, k, ldk, f.d, n, attnKeys)
	}
	for r := 0; r < w.rows; r += step {
		end := min(r+step, w.rows)
		lo, hi := w.keysOf(r, end, j0, n)
		if few {
			gemmSerial(false, true, end-r, hi-lo, f.d, f.scale, w.q[r*f.d:], f.d, k[lo*ldk:], ldk, 0, w.p[r*attnKeys+lo:], attnKeys)
		} else {
			gemmSerial(false, false, end-r, hi-lo, f.d, f.scale, w.q[r*f.d:], f.d, w.kt[lo:], attnKeys, 0, w.p[r*attnKeys+lo:], attnKeys)
		}
		for r := r; r < end; r++ {
			w.softmaxRow(r, j0, lo, hi, view)
		}
	}
	v, ldv := f.kv.rows(&f.kv.v, w.s, w.hk, j0, n, w.v)
	if w.rounds {
		v, ldv = roundRows(w.v, v, ldv, n, f.dv)
	}
	if view == attnPart {
		v, ldv = w.mend(v, ldv, j0, n)
	}
	for r := 0; r < w.rows; r += step {
		end := min(r+step, w.rows)
		if lo, hi := w.keysOf(r, end, j0, n); lo < hi {
			gemmSerial(false, false, end-r, f.dv, hi-lo, 1, w.p[r*attnKeys+lo:], attnKeys, v[lo*ldv:], ldv, 1, w.o[r*f.dv:], f.dv)
		}
	}
}

// keysOf returns a range of the keys j0..j0+n, counted from j0, that holds all
// that rows r..end see.
func (w *attnState[T]) keysOf(r, end, j0, n int) (lo, hi int) {
	return w.f.partOf(w.s, (w.r0+r)/w.f.g, (w.r0+end-1)/w.f.g, j0, n)
}

// attnView says how much of a tile its rows see.
type attnView int

const (
	attnNone attnView = iota
	attnPart
	attnFull
)

func (w *attnState[T]) view(j0, n int) attnView {
	f := w.f
	i0, i1 := w.r0/f.g, (w.r0+w.rows-1)/f.g
	return f.view(w.s, w.hk*f.g, f.g, i0, i1, j0, n)
}

// view judges queries i0..i1 (both included) of heads h0..h0+heads against
// keys j0..j0+n.
func (h *attnHeads[T]) view(s attnSeq, h0, heads, i0, i1, j0, n int) attnView {
	lo0, hi0 := h.span(s, i0)
	lo1, hi1 := h.span(s, i1)
	if hi1 <= j0 || lo0 >= j0+n {
		return attnNone
	}
	full := lo1 <= j0 && hi0 >= j0+n
	if h.mask.Keep == nil {
		if full {
			return attnFull
		}
		return attnPart
	}
	if h.mask.H == 0 {
		heads = 1
	}
	if h.mask.Q == 0 {
		i1 = i0
	}
	some := false
	for i := i0; i <= i1; i++ {
		for head := h0; head < h0+heads; head++ {
			keep, step := h.keepRow(s, head, i, j0, j0+n)
			if step == 1 {
				b := unsafe.Slice((*byte)(unsafe.Pointer(&keep[0])), len(keep))
				some = some || bytes.IndexByte(b, 1) >= 0
				full = full && bytes.IndexByte(b, 0) < 0
			} else {
				for j := 0; j < len(keep); j += max(step, 1) {
					some = some || keep[j]
					full = full && keep[j]
				}
			}
			if some && !full {
				return attnPart
			}
		}
	}
	switch {
	case !some:
		return attnNone
	case full:
		return attnFull
	}
	return attnPart
}

// partOf returns which of the keys j0..j0+n queries i0..i1 (both included) see
// before the mask, counted from j0.
func (h *attnHeads[T]) partOf(s attnSeq, i0, i1, j0, n int) (lo, hi int) {
	e := h.edges(s, j0, n)
	lo, _ = e.of(i0)
	_, hi = e.of(i1)
	return lo, max(lo, hi)
}

// attnEdges say which of n keys, counted from their first, a query sees before the
// mask: i sees lo+i..hi+i of them.
type attnEdges struct{ lo, hi, n int }

// edges are those of the keys j0..j0+n, which the sequence has.
func (h *attnHeads[T]) edges(s attnSeq, j0, n int) attnEdges {
	e := attnEdges{-math.MaxInt / 2, math.MaxInt / 2, n}
	p := s.lk - s.lq - j0
	if h.causal {
		e.hi = p + 1
	}
	if h.window > 0 {
		e.lo = p - h.window + 1
	}
	return e
}

// of is the keys that query i sees.
func (e attnEdges) of(i int) (lo, hi int) {
	lo = min(max(e.lo+i, 0), e.n)
	return lo, max(lo, min(e.hi+i, e.n))
}

// drop sets the entries of x (keys j.. of a query) that the mask hides, and
// says whether any is left.
func (h *attnHeads[T]) drop(x []T, s attnSeq, head, i, j int, to T) bool {
	if len(x) == 0 {
		return false
	}
	if h.mask.Keep == nil {
		return true
	}
	keep, step := h.keepRow(s, head, i, j, j+len(x))
	some := false
	for c := range x {
		if keep[c*step] {
			some = true
		} else {
			x[c] = to
		}
	}
	return some
}

// sees says whether the query sees key j.
func (h *attnHeads[T]) sees(s attnSeq, head, i, j int) bool {
	if lo, hi := h.span(s, i); j < lo || j >= hi {
		return false
	}
	if h.mask.Keep == nil {
		return true
	}
	keep, _ := h.keepRow(s, head, i, j, j+1)
	return keep[0]
}

func fill[T Float](x []T, to T) {
	for i := range x {
		x[i] = to
	}
}

// softmaxSlack is how far a score may rise above m before the row moves to the
// new maximum: exp stays below e^8 and most rows are never scaled again.
const softmaxSlack = 8

// softmaxRow turns the scores of row r into exp(s - m), and moves m, l and o
// of the row when the scores rise far above m.
//
// The scores are those of keys from..to of the tile at j0.
func (w *attnState[T]) softmaxRow(r, j0, from, to int, view attnView) {
	f := w.f
	p := w.p[r*attnKeys : r*attnKeys+to]
	if view == attnPart {
		i, head := w.row(r)
		lo, hi := f.edges(w.s, j0, to).of(i)
		lo = min(max(lo, from), hi)
		clear(p[from:lo])
		clear(p[hi:])
		p = p[lo:hi]
		capScores(p, f.softcap)
		if !f.drop(p, w.s, head, i, j0+lo, T(math.Inf(-1))) {
			clear(p)
			return
		}
	} else {
		p = p[from:]
		capScores(p, f.softcap)
	}
	w.seen[r] = true
	if largest := maxOf(p); !(largest <= w.m[r]+softmaxSlack) {
		if w.l[r] != 0 {
			alpha := expOf(w.m[r] - largest)
			w.l[r] *= alpha
			scale(w.o[r*f.dv:(r+1)*f.dv], alpha)
		}
		w.m[r] = largest
	}
	base := w.m[r]
	if math.IsInf(float64(base), -1) {
		base = 0 // every score so far is -Inf: exp keeps them 0
	}
	w.l[r] += T(expSubSum(p, p, base))
	if w.rounds {
		roundBF16(p, p)
	}
}

// mend returns values that may be multiplied by the probabilities of every
// row: a value row with NaN or Inf is replaced by zero after it was added,
// alone, to the rows that do see it.
func (w *attnState[T]) mend(v []T, ldv, j0, n int) ([]T, int) {
	f := w.f
	clean := true
	for j := range n {
		clean = clean && finite(v[j*ldv:j*ldv+f.dv])
	}
	if clean {
		return v, ldv
	}
	for j := range n {
		row := v[j*ldv : j*ldv+f.dv]
		to := w.v[j*f.dv : (j+1)*f.dv]
		if finite(row) {
			copy(to, row)
			continue
		}
		for r := range w.rows {
			if i, head := w.row(r); f.sees(w.s, head, i, j0+j) {
				axpy(w.o[r*f.dv:(r+1)*f.dv], w.p[r*attnKeys+j], row)
			}
		}
		clear(to)
	}
	return w.v, f.dv
}

// finish divides by the sum and writes out and lse.
func (w *attnState[T]) finish() {
	f := w.f
	i, head := w.row(0)
	for r := range w.rows {
		f.finishRow(w.s, head, i, w.m[r], w.l[r], w.o[r*f.dv:(r+1)*f.dv], w.seen[r])
		i, head = w.nextRow(i, head)
	}
}

// finishRow writes out and lse of a query from its running softmax.
func (f *attnForward[T]) finishRow(s attnSeq, head, i int, m, l T, o []T, seen bool) {
	at := ((s.q0+i)*f.hq + head) * f.dv
	out := f.out[at : at+f.dv]
	lse := T(math.Inf(-1))
	if !seen {
		clear(out)
	} else {
		if len(f.sinks) > 0 {
			m, l = joinSink(m, l, f.sinks[head], o)
		}
		copy(out, o)
		scale(out, 1/l)
		lse = m + T(math.Log(float64(l)))
	}
	if f.lse != nil {
		f.lse[f.lseAt(s, head)+i] = lse
	}
}

// joinSink adds exp(sink) to the sum l of exponentials above m. Where the sink
// is the larger one the row moves to it.
func joinSink[T Float](m, l, sink T, o []T) (T, T) {
	if !(sink > m) {
		return m, l + expOf(sink-m)
	}
	alpha := expOf(m - sink)
	for c := range o {
		o[c] *= alpha
	}
	return sink, l*alpha + 1
}
