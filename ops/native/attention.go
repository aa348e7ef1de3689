// Attention: softmax(scale q k^T) v by tiles with a running softmax, dense or
// ragged; the scores of a pair of sequences are never held whole.

package native

import "math"

// AttentionArgs are the operands of Attention and AttentionGrad.
//
// Dense: q [B,Lq,Hq,D], k [B,Lk,Hkv,D], v [B,Lk,Hkv,Dv] give out
// [B,Lq,Hq,Dv] and lse [B,Hq,Lq]. With KVLen [B] only the first KVLen[b] keys
// of batch b exist, and the diagonal is that of the shorter sequence.
//
// Ragged, when QIndptr is set: sequence b owns queries QIndptr[b]:QIndptr[b+1]
// of q [Lq,Hq,D] and keys KVIndptr[b]:KVIndptr[b+1] of k [Lk,Hkv,D] and v
// [Lk,Hkv,Dv], Lq and Lk being the packed totals; out is [Lq,Hq,Dv], lse
// [Hq,Lq]. Sequences do not see each other. Queries and keys behind the last
// sequence belong to none: out 0, lse -Inf, gradients 0.
type AttentionArgs[T Float] struct {
	Out, LSE []T // LSE may be nil
	Q, K, V  []T

	B, Lq, Lk int // sequences, queries and keys of each (totals when ragged)
	Hq, Hkv   int // query head h reads key head h/(Hq/Hkv)
	D, Dv     int

	Scale   float64 // factor of q k^T; 0 means 1/sqrt(D)
	Softcap float64 // c > 0: scores become c tanh(score/c)
	Causal  bool    // query i of a sequence sees key j when j <= i+Lk-Lq
	Window  int     // w > 0: only keys j > i+Lk-Lq-w are seen
	Sinks   []T     // [Hq]: a logit that joins the sum of its head's softmax; nil for none
	Mask    AttentionMask

	// BF16 rounds the operands of the products to bf16: q, k, v, dout, the
	// probabilities and the gradient of the scores, subnormal numbers to zero.
	// Sums, the softmax, lse and the results stay T.
	BF16 bool

	// BF16x6 lets the products of float32 go through AMX where it is, as
	// BF16x6Linear does: with their error or less. With BF16, a mask, a soft cap or a
	// negative Scale it changes nothing.
	BF16x6 bool

	KVLen             []int32 // [B], dense only; nil means Lk everywhere
	QIndptr, KVIndptr []int32 // [B+1], both or neither
}

// Attention writes
//
//	s(i,j)  = cap(scale q(i).k(j)) for the keys j that query i sees
//	out(i)  = sum_j exp(s(i,j) - lse(i)) v(j)
//	lse(i)  = log(sum_j exp(s(i,j)) [+ exp(sink)])   natural logarithm
//
// A query that sees no key gets out exactly 0 and lse -Inf, with or without a
// sink. A key or value that no query of its sequence sees is never read into
// the sums, so NaN there changes nothing. The result of a sequence does not
// depend on the others of the call. The sum over the keys is divided by its
// weights, of which the largest is 1, at the end: values above the largest float
// divided by the number of keys may give Inf.
//
// Source: Dao et al., FlashAttention (arXiv:2205.14135).
func Attention[T Float](a AttentionArgs[T]) {
	f := forwardOf(&a)
	f.run()
}

func forwardOf[T Float](a *AttentionArgs[T]) attnForward[T] {
	f := attnForward[T]{
		attnHeads: headsOf(a),
		q:         a.Q, out: a.Out, lse: a.LSE, sinks: a.Sinks,
		kv: kvSource[T]{k: kvRows[T]{full: a.K, hkv: a.Hkv, width: a.D}, v: kvRows[T]{full: a.V, hkv: a.Hkv, width: a.Dv}},
	}
	return f
}

// attnHeads is what forward and backward share: sizes, which key a query sees,
// and where each sequence lies.
type attnHeads[T Float] struct {
	b, lq, lk, hq, hkv, g, d, dv int
	scale, softcap               T
	causal, bf16, bf16x6         bool
	window                       int
	mask                         AttentionMask
	kvLen, qIndptr, kvIndptr     []int32
	pages                        PageTable // paged keys: lengths come from here
}

// rounds says that the products of a sequence are of bf16: on pages those of a single
// query, which the read of keys and values bounds, are not.
func (h *attnHeads[T]) rounds(s attnSeq) bool { return h.bf16 && (h.pages.PageSize == 0 || s.lq > 1) }

func headsOf[T Float](a *AttentionArgs[T]) attnHeads[T] {
	return attnHeads[T]{
		b: a.B, lq: a.Lq, lk: a.Lk, hq: a.Hq, hkv: a.Hkv, g: a.Hq / max(a.Hkv, 1), d: a.D, dv: a.Dv,
		scale: scoreScale[T](a.Scale, a.D), softcap: T(a.Softcap),
		causal: a.Causal, bf16: a.BF16, bf16x6: a.BF16x6 && gemmKernel == amxKernel, window: a.Window, mask: a.Mask,
		kvLen: a.KVLen, qIndptr: a.QIndptr, kvIndptr: a.KVIndptr,
	}
}

func scoreScale[T Float](scale float64, d int) T {
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(max(d, 1)))
	}
	return T(scale)
}

// attnSeq is one sequence: queries q0..q0+lq and keys k0..k0+lk in units of
// tokens of the whole operand (k0 is not used for pages).
type attnSeq struct {
	b, q0, lq, k0, lk int
}

func (h *attnHeads[T]) seq(b int) attnSeq {
	s := attnSeq{b: b, q0: b * h.lq, lq: h.lq, k0: b * h.lk, lk: h.lk}
	if h.qIndptr != nil {
		s.q0 = int(h.qIndptr[b])
		s.lq = int(h.qIndptr[b+1]) - s.q0
	}
	switch {
	case h.pages.PageSize > 0:
		s.k0, s.lk = 0, h.pages.Length(b)
	case h.kvIndptr != nil:
		s.k0 = int(h.kvIndptr[b])
		s.lk = int(h.kvIndptr[b+1]) - s.k0
	case h.kvLen != nil:
		s.lk = int(h.kvLen[b])
	}
	return s
}

// longest returns the largest number of queries of a sequence.
func (h *attnHeads[T]) longest() int {
	if h.qIndptr == nil {
		return h.lq
	}
	n := 0
	for b := range h.b {
		n = max(n, int(h.qIndptr[b+1])-int(h.qIndptr[b]))
	}
	return n
}

// span returns the half-open range of keys that query i sees before the mask.
// Both ends never decrease with i.
func (h *attnHeads[T]) span(s attnSeq, i int) (lo, hi int) {
	p := i + s.lk - s.lq
	lo, hi = 0, s.lk
	if h.causal {
		hi = min(hi, p+1)
	}
	if h.window > 0 {
		lo = max(0, p-h.window+1)
	}
	return min(lo, s.lk), max(hi, min(lo, s.lk))
}

// queries returns a range of queries that holds all that see a key of j0..j1.
func (h *attnHeads[T]) queries(s attnSeq, j0, j1 int) (lo, hi int) {
	off := s.lk - s.lq
	lo, hi = 0, s.lq
	if h.causal {
		lo = max(lo, j0-off)
	}
	if h.window > 0 {
		hi = min(hi, j1-1-off+h.window)
	}
	return lo, max(lo, hi)
}

// lseAt returns where lse of (s, head, query 0) lies.
func (h *attnHeads[T]) lseAt(s attnSeq, head int) int {
	if h.qIndptr != nil {
		return head*h.lq + s.q0
	}
	return (s.b*h.hq + head) * h.lq
}

// keepRow returns the mask entries of keys j0..j1 of a query, with their stride.
func (h *attnHeads[T]) keepRow(s attnSeq, head, i, j0, j1 int) ([]bool, int) {
	m := &h.mask
	at := head*m.H + j0*m.K
	if h.qIndptr != nil {
		at += (s.q0 + i) * m.Q
	} else {
		at += s.b*m.B + i*m.Q
	}
	return m.Keep[at : at+(j1-1-j0)*m.K+1], m.K
}

// attnForward is one call of the forward pass, dense, ragged or paged.
type attnForward[T Float] struct {
	attnHeads[T]
	q, out, lse, sinks []T
	kv                 kvSource[T]
	tiles              int     // of the longest sequence
	rows               int     // of a tile
	splits             int     // of the sequence cut into most, 0 where none is cut
	splitRows          int     // largest number of rows of a key head of a cut sequence
	parts              []T     // [B,splits] states of cut sequences
	scratch            []T     // of each seat of decode
	seat               int     // its size
	come               []int32 // [B,splits] lines: who has come to a pair of parts
}

var (
	attnForward32 = newKernel(attnForwardUnit[float32])
	attnForward64 = newKernel(attnForwardUnit[float64])
	attnJoin32    = newKernel(attnJoinUnit[float32])
	attnJoin64    = newKernel(attnJoinUnit[float64])
)

func (f *attnForward[T]) run() {
	if f.hkv == 0 {
		return
	}
	f.clearRest()
	f.rows = f.tileRows()
	heads, decoding, joins := f.b*f.hkv, 0, false
	for b := range f.b {
		s := f.seq(b)
		rows, n := s.lq*f.g, f.cut(s)
		if n > 1 {
			f.splits = max(f.splits, n)
			f.splitRows = max(f.splitRows, rows)
		}
		if n > 1 && f.decodes(s) {
			decoding++
			continue
		}
		f.tiles = max(f.tiles, ceilDiv(rows, f.rows))
		joins = joins || n > 1
	}
	f.parts = takeScratch[T](f.b * f.splits * f.partSize())
	if decoding < f.b {
		n := f.tiles
		if joins {
			n += f.splits
		}
		pick[attnForward[T]](attnForward32, attnForward64).launch(n*heads, *f)
	}
	if joins {
		pick[attnForward[T]](attnJoin32, attnJoin64).launch(heads, *f)
	}
	if decoding > 0 {
		n := f.b * f.splits
		seats := min(Workers(), n)
		f.seat = f.decodeSeat()
		f.scratch = takeScratch[T](seats * f.seat)
		f.come = scratchCounts.take(n * cacheLine / 4)
		clear(f.come)
		pick[attnForward[T]](attnDecode32, attnDecode64).launchSeats(n, seats, *f)
		giveScratch(f.scratch)
		scratchCounts.give(f.come)
	}
	giveScratch(f.parts)
}

// clearRest writes the result of packed queries that belong to no sequence.
func (f *attnForward[T]) clearRest() {
	if f.qIndptr == nil {
		return
	}
	end := int(f.qIndptr[f.b])
	clear(f.out[end*f.hq*f.dv : f.lq*f.hq*f.dv])
	if f.lse != nil {
		for h := range f.hq {
			fill(f.lse[h*f.lq+end:(h+1)*f.lq], T(math.Inf(-1)))
		}
	}
}

// attnForwardUnit computes f.rows rows of one key head of one sequence
// against all its keys, or all rows of a cut sequence against attnSplitKeys of
// them. A row is a (query, head of the group) pair, so that one pass over the
// keys serves the whole group. Tiles and splits are counted from the start of
// the sequence, and the late tiles, which see most keys under a causal mask, go
// first.
func attnForwardUnit[T Float](f *attnForward[T], unit int) {
	heads := f.b * f.hkv
	s := f.seq(unit % heads / f.hkv)
	w := attnState[T]{f: f, s: s, hk: unit % heads % f.hkv}
	tile := f.tiles - 1 - unit/heads
	split := -1 - tile
	from, to := 0, s.lk
	switch n := f.cut(s); {
	case tile < 0 && (n == 1 || split >= n), tile >= 0 && n > 1:
		return
	case n > 1 && f.decodes(s):
		return
	case tile < 0:
		from, to = split*attnSplitKeys, min((split+1)*attnSplitKeys, s.lk)
	default:
		w.r0 = tile * f.rows
	}
	w.rows = min(f.rows, s.lq*f.g-w.r0)
	if w.rows <= 0 {
		return
	}
	w.open()
	first, _ := f.span(s, w.r0/f.g)
	_, last := f.span(s, (w.r0+w.rows-1)/f.g)
	first, last = max(from, first/attnKeys*attnKeys), min(to, last)
	for j0 := first; j0 < last; j0 += attnKeys {
		w.attend(j0, min(attnKeys, s.lk-j0))
	}
	if tile < 0 {
		w.keep(split)
	} else {
		w.finish()
	}
	if w.inPairs {
		giveScratch(w.pairs.buf)
	}
	if w.inSplit {
		giveScratch(w.split.buf)
	}
	giveScratch(w.buf)
}
