// The gradient of attention: probabilities are computed again, tile by tile,
// from lse; the scores of a pair of sequences are never held whole.

package native

import "math"

// AttentionGradArgs are the operands of AttentionGrad. The outputs have the
// shapes of q, k, v and sinks; DSinks is nil when Sinks is.
type AttentionGradArgs[T Float] struct {
	AttentionArgs[T] // Out and LSE as Attention wrote them; LSE is required

	DQ, DK, DV, DSinks []T
	DOut               []T
	DLSE               []T // [B,Hq,Lq] or [Hq,Lq], the gradient of lse; nil for none
}

// AttentionGrad writes the gradients of Attention. With p(i,j) =
// exp(s(i,j) - lse(i)) for the keys that query i sees and
// delta(i) = dout(i).out(i) - dlse(i),
//
//	dv(j) = sum_i p(i,j) dout(i)
//	ds    = p (dout(i).v(j) - delta(i)) dcap
//	dq(i) = scale sum_j ds(i,j) k(j)
//	dk(j) = scale sum_i ds(i,j) q(i)
//	dsink = sum_i exp(sink - lse(i)) (-delta(i))
//
// dk and dv are summed over the query heads of their key head in head order,
// dsinks over the sequences. A query that sees no key adds nothing, whatever
// its operands hold, and gets dq 0; a key that no query sees (or beyond KVLen)
// gets dk and dv 0.
//
// Source: Dao, FlashAttention-2 (arXiv:2307.08691).
func AttentionGrad[T Float](a AttentionGradArgs[T]) {
	g := attnBackward[T]{
		attnHeads: headsOf(&a.AttentionArgs),
		q:         a.Q, k: a.K, v: a.V, out: a.Out, lse: a.LSE,
		dout: a.DOut, dlse: a.DLSE, gq: a.DQ, gk: a.DK, gv: a.DV,
		sinks: a.Sinks, gsinks: a.DSinks,
	}
	g.run()
}

// attnBackward is one call of the gradient.
type attnBackward[T Float] struct {
	attnHeads[T]
	q, k, v, out, lse, sinks []T
	dout, dlse               []T
	gq, gk, gv, gsinks       []T // dq, dk, dv, dsinks
	delta                    []T // as lse
	tiles                    int // query tiles of the longest sequence
	deltas                   int // and its units of delta
	parts                    int // units that share one key head of a sequence
	dqParts                  []T // [parts-1] copies of dq
}

const (
	attnGradRows  = 128 // queries of a tile
	attnDeltaRows = 32  // queries of a unit of delta
	attnGradUnits = 32  // key heads are cut until a call has so many units
	attnGradParts = 4   // but at most so often: every part holds a dq
)

var (
	attnDelta32    = newKernel(attnDeltaUnit[float32])
	attnDelta64    = newKernel(attnDeltaUnit[float64])
	attnBackward32 = newKernel(attnBackwardPart[float32])
	attnBackward64 = newKernel(attnBackwardPart[float64])
	attnAddParts32 = newKernel(attnAddParts[float32])
	attnAddParts64 = newKernel(attnAddParts[float64])
	attnSinks32    = newKernel(attnSinkGrad[float32])
	attnSinks64    = newKernel(attnSinkGrad[float64])
)

func (g *attnBackward[T]) run() {
	if g.hkv == 0 {
		return
	}
	g.clearRest()
	if g.b == 0 {
		return
	}
	g.tiles = ceilDiv(g.longest(), attnGradRows)
	g.delta = takeScratch[T](len(g.lse))
	g.deltas = ceilDiv(g.longest(), attnDeltaRows)
	pick[attnBackward[T]](attnDelta32, attnDelta64).launch(g.deltas*g.b, *g)

	heads := g.b * g.hkv
	g.parts = min(max(ceilDiv(attnGradUnits, heads), 1), attnGradParts, max(ceilDiv(g.longestKeys(), attnKeys), 1))
	g.dqParts = takeScratch[T]((g.parts - 1) * len(g.gq))
	pick[attnBackward[T]](attnBackward32, attnBackward64).launch(heads*g.parts, *g)
	if g.parts > 1 {
		pick[attnBackward[T]](attnAddParts32, attnAddParts64).launch(g.tiles*g.b, *g)
	}
	giveScratch(g.dqParts)
	if len(g.sinks) > 0 {
		pick[attnBackward[T]](attnSinks32, attnSinks64).launch(g.hq, *g)
	}
	giveScratch(g.delta)
}

// clearRest writes the gradients of tokens that belong to no ragged sequence.
func (g *attnBackward[T]) clearRest() {
	if g.qIndptr == nil {
		return
	}
	q, k := int(g.qIndptr[g.b]), int(g.kvIndptr[g.b])*g.hkv
	clear(g.gq[q*g.hq*g.d : g.lq*g.hq*g.d])
	clear(g.gk[k*g.d : g.lk*g.hkv*g.d])
	clear(g.gv[k*g.dv : g.lk*g.hkv*g.dv])
}

// longestKeys returns the largest number of keys of a sequence.
func (h *attnHeads[T]) longestKeys() int {
	n := 0
	for b := range h.b {
		n = max(n, h.seq(b).lk)
	}
	return n
}

// attnDeltaUnit computes delta of some queries of one sequence, a query with all
// its heads at a time, as they lie in memory.
func attnDeltaUnit[T Float](g *attnBackward[T], unit int) {
	s := g.seq(unit / g.deltas)
	i0 := unit % g.deltas * attnDeltaRows
	n := g.hq * g.dv
	rounded := takeScratch[T](n)
	for i := i0; i < min(i0+attnDeltaRows, s.lq); i++ {
		at := (s.q0 + i) * n
		dout, out := g.dout[at:at+n], g.out[at:at+n]
		if g.bf16 {
			// As the products have it: a query that sees one key then has a
			// gradient of 0.
			roundBF16(rounded[:n], dout)
			dout = rounded[:n]
		}
		for head := range g.hq {
			l := g.lseAt(s, head) + i
			g.delta[l] = dot(dout[head*g.dv:(head+1)*g.dv], out[head*g.dv:])
			if len(g.dlse) > 0 {
				g.delta[l] -= g.dlse[l]
			}
		}
	}
	giveScratch(rounded)
}

// attnSinkGrad computes dsinks of one head.
func attnSinkGrad[T Float](g *attnBackward[T], head int) {
	sum := 0.0
	for b := range g.b {
		s := g.seq(b)
		at := g.lseAt(s, head)
		for i, lse := range g.lse[at : at+s.lq] {
			if !math.IsInf(float64(lse), -1) {
				sum -= math.Exp(float64(g.sinks[head]-lse)) * float64(g.delta[at+i])
			}
		}
	}
	g.gsinks[head] = T(sum)
}

// attnAddParts adds the dq of the parts, in order, for one tile of queries.
func attnAddParts[T Float](g *attnBackward[T], unit int) {
	s := g.seq(unit / g.tiles)
	i0 := unit % g.tiles * attnGradRows
	rows := min(attnGradRows, s.lq-i0)
	if rows <= 0 {
		return
	}
	at := (s.q0 + i0) * g.hq * g.d
	n := rows * g.hq * g.d
	for part := range g.parts - 1 {
		axpy(g.gq[at:at+n], 1, g.dqParts[part*len(g.gq)+at:][:n])
	}
}

// attnBackwardPart computes dk and dv of every parts-th key tile of one key
// head of one sequence, and what those keys add to dq. Taking every parts-th
// tile gives the parts of a causal mask equal work.
func attnBackwardPart[T Float](g *attnBackward[T], unit int) {
	heads := g.b * g.hkv
	part := unit / heads
	s := g.seq(unit % heads / g.hkv)
	w := attnGradState[T]{g: g, s: s, hk: unit % heads % g.hkv, dq: g.gq}
	if part > 0 {
		w.dq = g.dqParts[(part-1)*len(g.gq):][:len(g.gq)]
	}
	w.open()
	limit := s.lk
	if g.kvLen != nil && g.qIndptr == nil {
		limit = g.lk // keys beyond KVLen get zeros
	}
	from := part * attnKeys
	if !w.inWords() || from >= limit {
		w.clearQueries(w.hk*g.g, g.g, 0, s.lq)
	}
	for j0 := from; j0 < limit; j0 += g.parts * attnKeys {
		w.first = w.inWords() && j0 == from
		w.keyTile(j0, min(attnKeys, limit-j0))
	}
	if w.inPairs {
		giveScratch(w.pairs.buf)
	}
	if w.inSplit {
		giveScratch(w.split.buf)
	}
	giveScratch(w.buf)
}

// attnGradState is the work on one key tile.
type attnGradState[T Float] struct {
	g  *attnBackward[T]
	s  attnSeq
	hk int
	dq []T

	buf        []T
	kt, vt     []T // [D,attnKeys], [Dv,attnKeys] keys and values, transposed
	p, ds      []T // [attnGradRows,attnKeys]
	k, q, dout []T // copies without NaN and Inf, for tiles that are seen in part; q and dout rounded where bf16 is
	rounded    []T // [attnKeys,max(D,Dv)] keys or values, rounded

	inPairs bool // products go through words
	first   bool // and dq holds nothing yet: what is not written is to be cleared
	pairs   attnGradPairs
	inSplit bool // products go through words of three parts
	split   attnGradSplit
}

func (w *attnGradState[T]) open() {
	g := w.g
	w.buf = takeScratch[T](attnKeys*(2*g.d+g.dv+max(g.d, g.dv)) + attnGradRows*(2*attnKeys+g.d+g.dv))
	cut := cutter(w.buf)
	w.kt, w.vt, w.k = cut(attnKeys*g.d), cut(attnKeys*g.dv), cut(attnKeys*g.d)
	w.p, w.ds = cut(attnGradRows*attnKeys), cut(attnGradRows*attnKeys)
	w.q, w.dout = cut(attnGradRows*g.d), cut(attnGradRows*g.dv)
	w.rounded = cut(attnKeys * max(g.d, g.dv))
	if w.inPairs = g.multipliesPairs(); w.inPairs {
		w.openPairs()
	}
	if w.inSplit = g.multipliesSplit() && w.s.lk >= attnSplitFrom; w.inSplit {
		w.openSplit()
	}
}

// inWords says that the products go through words, of whichever kind.
func (w *attnGradState[T]) inWords() bool { return w.inPairs || w.inSplit }

// clearQueries sets dq of queries i..end of some heads to zero.
func (w *attnGradState[T]) clearQueries(head, heads, i, end int) {
	g := w.g
	for ; i < end; i++ {
		at := ((w.s.q0+i)*g.hq + head) * g.d
		clear(w.dq[at : at+heads*g.d])
	}
}

// clearKeys sets dk and dv of keys from..to to zero.
func (w *attnGradState[T]) clearKeys(from, to int) {
	g := w.g
	for j := from; j < to; j++ {
		row := (w.s.k0+j)*g.hkv + w.hk
		clear(g.gk[row*g.d : (row+1)*g.d])
		clear(g.gv[row*g.dv : (row+1)*g.dv])
	}
}

// keyTile writes dk and dv of keys j0..j0+n, of which those beyond the
// sequence are zero.
func (w *attnGradState[T]) keyTile(j0, n int) {
	g := w.g
	row := (w.s.k0+j0)*g.hkv + w.hk
	gk, gv := g.gk[row*g.d:], g.gv[row*g.dv:]
	ldk, ldv := g.hkv*g.d, g.hkv*g.dv
	there := max(min(n, w.s.lk-j0), 0)
	if w.inWords() {
		w.clearKeys(j0+there, j0+n)
	} else {
		w.clearKeys(j0, j0+n)
	}
	if n = there; n == 0 {
		if w.first {
			w.clearQueries(w.hk*g.g, g.g, 0, w.s.lq)
		}
		return
	}
	k, v := g.k[row*g.d:], g.v[row*g.dv:]
	switch {
	case w.inPairs:
		w.keyPairs(k, ldk, v, ldv, n)
	case w.inSplit:
		w.keySplit(float32s(k), ldk, float32s(v), ldv, n)
	default:
		w.loadKeys(k, ldk, v, ldv, n)
	}
	first, last := g.queries(w.s, j0, j0+n)
	if w.first {
		first, last = 0, w.s.lq
	}
	for head := w.hk * g.g; head < (w.hk+1)*g.g; head++ {
		for i0 := first / attnGradRows * attnGradRows; i0 < last; i0 += attnGradRows {
			rows := min(attnGradRows, w.s.lq-i0)
			view := g.view(w.s, head, 1, i0, i0+rows-1, j0, n)
			switch {
			case view == attnNone:
				if w.first {
					w.clearQueries(head, 1, i0, i0+rows)
				}
			case w.inPairs:
				w.blockPairs(gk, ldk, gv, ldv, k, head, i0, rows, j0, n, view)
			case w.inSplit:
				w.blockSplit(float32s(k), ldk, float32s(v), ldv, head, i0, rows, j0, n, view)
			default:
				w.block(gk, ldk, gv, ldv, k, head, i0, rows, j0, n, view)
			}
		}
	}
	if w.inPairs && !w.pairs.begun {
		w.clearKeys(j0, j0+n)
	}
	if w.inSplit {
		w.storeTurned(float32s(gk), ldk, w.split.sumK, n, g.d)
		w.storeTurned(float32s(gv), ldv, w.split.sumV, n, g.dv)
	}
}

// loadKeys fills kt and vt for the float products, and rounded with the keys.
func (w *attnGradState[T]) loadKeys(k []T, ldk int, v []T, ldv, n int) {
	g := w.g
	if g.bf16 {
		v, ldv = roundRows(w.rounded, v, ldv, n, g.dv)
	}
	packTransposed(w.vt, v, ldv, g.dv, n, attnKeys)
	if g.bf16 {
		k, ldk = roundRows(w.rounded, k, ldk, n, g.d)
	}
	packTransposed(w.kt, k, ldk, g.d, n, attnKeys)
}

// block adds what queries i0..i0+rows of a head and the keys of a tile give: to
// gk and gv, the rows of the keys with strides ldk and ldv, and to dq.
func (w *attnGradState[T]) block(gk []T, ldk int, gv []T, ldv int, keys []T, head, i0, rows, j0, n int, view attnView) {
	g := w.g
	at := (w.s.q0+i0)*g.hq + head
	q, dout, ldq, ldo, ldkeys := g.q[at*g.d:], g.dout[at*g.dv:], g.hq*g.d, g.hq*g.dv, ldk
	if g.bf16 {
		q, ldq = roundRows(w.q, q, ldq, rows, g.d)
		dout, ldo = roundRows(w.dout, dout, ldo, rows, g.dv)
		keys, ldkeys = w.rounded, g.d
	}
	step := rows
	if view == attnPart {
		step = attnStep
	}
	for r := 0; r < rows; r += step {
		w.pair(q, ldq, dout, ldo, head, i0, r, min(r+step, rows), j0, n, view)
	}
	if view == attnPart {
		q, ldq = w.mendQueries(w.q, q, ldq, g.d, w.ds, gk, ldk, head, i0, rows, j0, n)
		dout, ldo = w.mendQueries(w.dout, dout, ldo, g.dv, w.p, gv, ldv, head, i0, rows, j0, n)
		keys, ldkeys = w.mendKeys(keys, ldkeys, head, i0, rows, j0, n)
	}
	for r := 0; r < rows; r += step {
		end := min(r+step, rows)
		lo, hi := g.partOf(w.s, i0+r, i0+end-1, j0, n)
		if lo == hi {
			continue
		}
		m, p, ds := end-r, w.p[r*attnKeys+lo:], w.ds[r*attnKeys+lo:]
		gemmSerial(true, false, hi-lo, g.dv, m, 1, p, attnKeys, dout[r*ldo:], ldo, 1, gv[lo*ldv:], ldv)
		gemmSerial(true, false, hi-lo, g.d, m, 1, ds, attnKeys, q[r*ldq:], ldq, 1, gk[lo*ldk:], ldk)
		gemmSerial(false, false, m, g.d, hi-lo, 1, ds, attnKeys, keys[lo*ldkeys:], ldkeys, 1, w.dq[(at+r*g.hq)*g.d:], g.hq*g.d)
	}
}

// pair computes p and scale ds of queries i0+from..i0+end of a head and the
// keys of j0..j0+n that they see, zero where a single query does not see one. q
// and dout are those of i0.
func (w *attnGradState[T]) pair(q []T, ldq int, dout []T, ldo, head, i0, from, end, j0, n int, view attnView) {
	g := w.g
	lo, hi := g.partOf(w.s, i0+from, i0+end-1, j0, n)
	p, ds := w.p[from*attnKeys+lo:], w.ds[from*attnKeys+lo:]
	gemmSerial(false, false, end-from, hi-lo, g.d, g.scale, q[from*ldq:], ldq, w.kt[lo:], attnKeys, 0, p, attnKeys)
	gemmSerial(false, false, end-from, hi-lo, g.dv, 1, dout[from*ldo:], ldo, w.vt[lo:], attnKeys, 0, ds, attnKeys)
	stat := g.lseAt(w.s, head) + i0
	for r := from; r < end; r++ {
		p, ds := w.p[r*attnKeys:r*attnKeys+hi], w.ds[r*attnKeys:r*attnKeys+hi]
		a, b := lo, hi
		if view == attnPart {
			a, b = g.edges(w.s, j0, hi).of(i0 + r)
			a = min(max(a, lo), b)
			clear(p[lo:a])
			clear(p[b:])
			clear(ds[lo:a])
			clear(ds[b:])
		}
		p, ds = p[a:b], ds[a:b]
		softmaxGrad(p, ds, g.scale, g.softcap, g.lse[stat+r], g.delta[stat+r])
		if view == attnPart && g.mask.Keep != nil {
			g.drop(p, w.s, head, i0+r, j0+a, 0)
			g.drop(ds, w.s, head, i0+r, j0+a, 0)
		}
		if g.bf16 {
			roundBF16(p, p)
			roundBF16(ds, ds)
		}
	}
}

// softmaxGrad turns scores p into probabilities and ds = dout.v into scale
// times the gradient of the scores.
func softmaxGrad[T Float](p, ds []T, scale, softcap, lse, delta T) {
	if softcap > 0 {
		for j, x := range p {
			t := tanhOf(x / softcap)
			p[j] = softcap * t
			ds[j] = (ds[j] - delta) * (1 - t*t) * scale
		}
		probabilities(p, lse)
		for j, x := range p {
			ds[j] *= x
		}
		return
	}
	probabilities(p, lse)
	scaleMulAdd(ds, ds, p, scale, p, -scale*delta)
}

// probabilities turns scores into exp(p - lse). Those of forward pass and gradient
// differ by their rounding, which beyond 1e7 is whole numbers: then a probability
// of 1 might become anything.
func probabilities[T Float](p []T, lse T) {
	if expSubSum(p, p, lse) > 2 {
		for j, x := range p {
			p[j] = min(x, 1)
		}
	}
}

// mendQueries returns rows of q (or dout) that may be multiplied by the weights
// of every key: a row with NaN or Inf is replaced by zero after it was added,
// alone, to the sums of the keys that its query does see.
func (w *attnGradState[T]) mendQueries(buf, x []T, ldx, d int, weight, sum []T, lds, head, i0, rows, j0, n int) ([]T, int) {
	clean := true
	for r := range rows {
		clean = clean && finite(x[r*ldx:r*ldx+d])
	}
	if clean {
		return x, ldx
	}
	for r := range rows {
		row, to := x[r*ldx:r*ldx+d], buf[r*d:(r+1)*d]
		if finite(row) {
			copy(to, row)
			continue
		}
		for j := range n {
			if w.g.sees(w.s, head, i0+r, j0+j) {
				axpy(sum[j*lds:j*lds+d], weight[r*attnKeys+j], row)
			}
		}
		clear(to)
	}
	return buf, d
}

// mendKeys is mendQueries for the keys that go into dq.
func (w *attnGradState[T]) mendKeys(k []T, ldk, head, i0, rows, j0, n int) ([]T, int) {
	g := w.g
	clean := true
	for j := range n {
		clean = clean && finite(k[j*ldk:j*ldk+g.d])
	}
	if clean {
		return k, ldk
	}
	for j := range n {
		row, to := k[j*ldk:j*ldk+g.d], w.k[j*g.d:(j+1)*g.d]
		if finite(row) {
			copy(to, row)
			continue
		}
		for r := range rows {
			if g.sees(w.s, head, i0+r, j0+j) {
				at := ((w.s.q0+i0+r)*g.hq + head) * g.d
				axpy(w.dq[at:at+g.d], w.ds[r*attnKeys+j], row)
			}
		}
		clear(to)
	}
	return w.k, g.d
}
