// A sequence of few queries and many keys is cut along its keys, so that one
// decoded token keeps all workers busy; the parts are joined in their order.

package native

import "math"

// attnSplitKeys is the length of a part, or the longest: see splitKeys. It depends
// on the sequence alone, so that a request is cut in the same places alone and in
// a batch.
const attnSplitKeys = 512

// cut returns into how many parts a sequence is cut.
func (f *attnForward[T]) cut(s attnSeq) int {
	if s.lq*f.g > attnRows {
		return 1
	}
	return max(1, ceilDiv(s.lk, f.splitKeys(s)))
}

// partSize is the size of the state of all rows of a part: m, l and o of each.
func (f *attnForward[T]) partSize() int { return f.splitRows * (f.dv + 2) }

// part returns the place of the state of a part of one key head of a sequence.
func (f *attnForward[T]) part(head, split int) []T {
	n := f.partSize()
	return f.parts[(head*f.splits+split)*n:][:n]
}

// keep stores the state of the rows; l -1 says that a row has seen no key.
func (w *attnState[T]) keep(to []T) {
	dv := w.f.dv
	for r := range w.rows {
		row := to[r*(dv+2):][:dv+2]
		row[0], row[1] = w.m[r], w.l[r]
		if !w.seen[r] {
			row[1] = -1
		}
		copy(row[2:], w.o[r*dv:(r+1)*dv])
	}
}

// attnJoinUnit joins the parts of one key head of a sequence.
func attnJoinUnit[T Float](f *attnForward[T], unit int) {
	s := f.seq(unit / f.hkv)
	splits := f.cut(s)
	if splits == 1 {
		return
	}
	o := takeScratch[T](f.dv)
	for r := range s.lq * f.g {
		at := r * (f.dv + 2)
		m, seen := T(math.Inf(-1)), false
		for split := range splits {
			if row := f.part(unit, split)[at:]; row[1] != -1 {
				m, seen = max(m, row[0]), true
			}
		}
		base := m
		if math.IsInf(float64(m), -1) {
			base = 0
		}
		var l T
		clear(o)
		for split := range splits {
			row := f.part(unit, split)[at : at+f.dv+2]
			if row[1] == -1 {
				continue
			}
			alpha := expOf(row[0] - base)
			l += alpha * row[1]
			axpy(o, alpha, row[2:])
		}
		f.finishRow(s, unit%f.hkv*f.g+r%f.g, r/f.g, m, l, o, seen)
	}
	giveScratch(o)
}
