// A sequence of few queries and many keys is cut along its keys, so that one
// decoded token keeps all workers busy; the parts are joined in their order.

package native

import "math"

// attnSplitKeys is the length of a part, or the longest: see decodeCut. Where a
// sequence is cut depends on it alone, so that a request is cut in the same places
// alone and in a batch.
const attnSplitKeys = 512

// cut returns into how many parts a sequence is cut.
func (f *attnForward[T]) cut(s attnSeq) int {
	switch {
	case s.lq*f.g > attnRows:
		return 1
	case f.decodes(s):
		return decodeCut(s.lk)
	}
	return max(1, ceilDiv(s.lk, attnSplitKeys))
}

// partSize is the size of the state of all rows of a part, o, m and l of each, in
// cache lines of its own.
func (f *attnForward[T]) partSize() int {
	return ceilDiv(f.hkv*f.splitRows*(f.dv+2), 16) * 16
}

// part returns the place of the state of a part of a sequence: o [Hkv,rows,Dv], m
// and l [Hkv,rows].
func (f *attnForward[T]) part(b, split int) (o, m, l []T) {
	rows, x := f.hkv*f.splitRows, f.parts[(b*f.splits+split)*f.partSize():]
	return x[:rows*f.dv], x[rows*f.dv:][:rows], x[rows*(f.dv+1):][:rows]
}

// keep stores the state of the rows in a part; l -1 says that a row has seen no key.
func (w *attnState[T]) keep(split int) {
	dv, at := w.f.dv, w.hk*w.f.splitRows
	o, m, l := w.f.part(w.s.b, split)
	copy(o[at*dv:], w.o[:w.rows*dv])
	copy(m[at:], w.m[:w.rows])
	for r, sum := range w.l[:w.rows] {
		if !w.seen[r] {
			sum = -1
		}
		l[at+r] = sum
	}
}

// attnJoinUnit joins the parts of one key head of a sequence that did not decode.
func attnJoinUnit[T Float](f *attnForward[T], unit int) {
	if s := f.seq(unit / f.hkv); f.cut(s) > 1 && !f.decodes(s) {
		f.join(s, unit%f.hkv)
	}
}

// join joins the parts of one key head of a sequence.
func (f *attnForward[T]) join(s attnSeq, hk int) {
	splits := f.cut(s)
	sum := takeScratch[T](f.dv)
	for r := range s.lq * f.g {
		row := hk*f.splitRows + r
		top, seen := T(math.Inf(-1)), false
		for split := range splits {
			if _, m, l := f.part(s.b, split); l[row] != -1 {
				top, seen = max(top, m[row]), true
			}
		}
		base := top
		if math.IsInf(float64(top), -1) {
			base = 0
		}
		var total T
		clear(sum)
		for split := range splits {
			o, m, l := f.part(s.b, split)
			if l[row] == -1 {
				continue
			}
			alpha := expOf(m[row] - base)
			total += alpha * l[row]
			axpy(sum, alpha, o[row*f.dv:][:f.dv])
		}
		f.finishRow(s, hk*f.g+r%f.g, r/f.g, top, total, sum, seen)
	}
	giveScratch(sum)
}
