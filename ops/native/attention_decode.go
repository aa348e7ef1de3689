// One decoded token against a part of the keys: keys and values of all heads are
// read in the order in which they lie, once.

package native

import (
	"math"
	"sync/atomic"
	"unsafe"
)

const (
	decodeKeys  = 128 // of a part at least, where there are more than two
	decodeParts = 16  // of a sequence at most, until parts are attnSplitKeys long
	decodeShort = 64  // keys that are not cut
	decodeBlock = 16  // keys that all heads take one after the other
	decodeRows  = 4   // query heads of a key head that share what is read
)

// kvForm is how the keys or values that the assembly reads lie: as float32, or in
// 16 bits.
type kvForm int

const (
	kvF32 kvForm = iota
	kvBF16
	kvF16
)

// size is the bytes of a number.
func (k kvForm) size() int {
	if k == kvF32 {
		return 4
	}
	return 2
}

// decodes says that decode can compute the parts of a sequence.
func (f *attnForward[T]) decodes(s attnSeq) bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel >= avx512Kernel && s.lq == 1 && f.mask.Keep == nil && !f.rounds(s) &&
		f.d > 0 && f.d%16 == 0 && f.dv > 0 && f.dv%64 == 0
}

// decodeCut is into how many parts so many keys are cut: a power of two, so that
// two workers, or four, each get as many. A part is read by one core alone, and its
// state by the one that joins: the fewer the better.
func decodeCut(keys int) int {
	if keys <= decodeShort {
		return 1
	}
	n := 2
	for n < decodeParts && keys >= 2*n*decodeKeys || keys > n*attnSplitKeys {
		n *= 2
	}
	return n
}

var (
	attnDecode32 = newSeatKernel(attnDecodeUnit[float32])
	attnDecode64 = newSeatKernel(attnDecodeUnit[float64])
)

// attnDecodeUnit computes a part of a sequence of one query for all its heads. Parts
// are joined as a tree: who comes second to a pair joins it, so that each worker
// joins what it has computed and the last one has one state of another's to read.
func attnDecodeUnit[T Float](f *attnForward[T], seat, unit int) {
	s, split := f.seq(unit/f.splits), unit%f.splits
	n := f.cut(s)
	if n == 1 || split >= n || !f.decodes(s) {
		return
	}
	f.decode(s, split, n, f.scratch[seat*f.seat:][:f.seat])
	come := f.come[s.b*f.splits*cacheLine/4:]
	for wide := 1; wide < n; wide *= 2 {
		split -= split % (2 * wide)
		if atomic.AddInt32(&come[(split+wide)*cacheLine/4], 1) == 1 {
			return
		}
		f.joinPair(s.b, split, split+wide)
	}
	o, m, l := f.part(s.b, 0)
	for head := range f.hq {
		row := head/f.g*f.splitRows + head%f.g
		f.finishRow(s, head, 0, m[row], l[row], o[row*f.dv:][:f.dv], l[row] != -1)
	}
}

// cacheLine is the bytes that change hands between cores.
const cacheLine = 64

// joinPair makes the state of a part of sequence b that of its keys and another
// part's.
func (f *attnForward[T]) joinPair(b, to, from int) {
	o, m, l := f.part(b, to)
	o2, m2, l2 := f.part(b, from)
	fetchLines(unsafe.Pointer(&o2[0]), f.partSize()*int(unsafe.Sizeof(o2[0])))
	for hk := range f.hkv {
		for row := hk * f.splitRows; row < hk*f.splitRows+f.g; row++ {
			x, y := o[row*f.dv:][:f.dv], o2[row*f.dv:][:f.dv]
			switch {
			case l2[row] == -1:
			case l[row] == -1:
				copy(x, y)
				m[row], l[row] = m2[row], l2[row]
			default:
				top := max(m[row], m2[row])
				base := top
				if math.IsInf(float64(top), -1) {
					base = 0
				}
				wx, wy := expOf(m[row]-base), expOf(m2[row]-base)
				scale(x, wx)
				axpy(x, wy, y)
				m[row], l[row] = top, wx*l[row]+wy*l2[row]
			}
		}
	}
}

// decodeSeat is the size of what decode takes of scratch: scores of the longest
// part, of which four are written at a time, and a block of keys or values that
// must be widened first.
func (f *attnForward[T]) decodeSeat() int {
	n := f.hq * (attnSplitKeys + decodeBlock)
	if p, _ := f.kv.k.where(0); p == nil {
		n += decodeBlock * f.hkv * max(f.d, f.dv)
	}
	return ceilDiv(n, 16) * 16 // whole cache lines
}

// decode computes a part of n of a sequence of one query for all its heads. The
// bits do not depend on where the keys lie.
func (f *attnForward[T]) decode(s attnSeq, split, n int, p []T) {
	lo, hi := f.span(s, 0)
	blocks := ceilDiv(s.lk, decodeBlock)
	from, to := max(split*blocks/n*decodeBlock, lo), min((split+1)*blocks/n*decodeBlock, hi)
	n = max(to-from, 0)
	ldp := ceilDiv(n+3, 16) * 16 // four scores are written at a time
	wide := p[f.hq*ldp:]
	for j := from; j < to; {
		at, there := f.kv.decodeRun(s, j, to)
		k, form := f.kv.k.block(at, there, wide)
		ahead := f.ahead(&f.kv.k, s, j+there)
		if j+there == to { // then the values
			ahead = f.ahead(&f.kv.v, s, from)
		}
		for hk := range f.hkv {
			for r := 0; r < f.g; r += decodeRows {
				f.scores(p[(hk*f.g+r)*ldp+j-from:], ldp, s, hk, r, unsafe.Add(k, hk*f.d*form.size()), form, there, ahead+uintptr(hk*there*f.d*form.size()))
			}
		}
		j += there
	}
	o, m, l := f.part(s.b, split)
	for hk := range f.hkv {
		clear(o[hk*f.splitRows*f.dv:][:f.g*f.dv])
		for r := range f.g {
			row := hk*f.splitRows + r
			if n == 0 {
				l[row] = -1
				continue
			}
			scores := p[(hk*f.g+r)*ldp:][:n]
			capScores(scores, f.softcap)
			m[row] = maxOf(scores)
			base := m[row]
			if math.IsInf(float64(base), -1) {
				base = 0 // every score is -Inf: exp keeps them 0
			}
			l[row] = T(expSubSum(scores, scores, base))
		}
	}
	for j := from; j < to; {
		at, there := f.kv.decodeRun(s, j, to)
		v, form := f.kv.v.block(at, there, wide)
		ahead := f.ahead(&f.kv.v, s, j+there)
		if j+there == to { // then the keys of the next part
			ahead = f.ahead(&f.kv.k, s, to)
		}
		for hk := range f.hkv {
			for r := 0; r < f.g; r += decodeRows {
				attnValues(form, f32p(o[(hk*f.splitRows+r)*f.dv:]), f.dv*4, f32p(p[(hk*f.g+r)*ldp+j-from:]), ldp*4,
					unsafe.Add(v, hk*f.dv*form.size()), f.hkv*f.dv*form.size(), ahead+uintptr(hk*there*f.dv*form.size()), min(decodeRows, f.g-r), there, f.dv)
			}
		}
		j += there
	}
}

// ahead is where the block of x from key j on lies, or the last key where there is
// none; nowhere if x is widened first.
func (f *attnForward[T]) ahead(x *kvRows[T], s attnSeq, j int) uintptr {
	at, _ := f.kv.decodeRun(s, min(j, s.lk-1), s.lk)
	p, _ := x.where(at)
	return uintptr(p)
}

// where is the memory of the rows of a token and their form, nil where they must
// be widened first.
func (s *kvRows[T]) where(token int) (unsafe.Pointer, kvForm) {
	at := token * s.hkv * s.width
	switch {
	case s.narrow.BF16 != nil:
		return unsafe.Pointer(&s.narrow.BF16[at]), kvBF16
	case s.narrow.F16 != nil:
		return unsafe.Pointer(&s.narrow.F16[at]), kvF16
	case s.narrow.holds():
		return nil, kvF32
	}
	return unsafe.Pointer(&s.full[at]), kvF32
}

// block is the rows of all heads of n tokens that follow each other from at on:
// where they lie, or widened into buf.
func (s *kvRows[T]) block(at, n int, buf []T) (unsafe.Pointer, kvForm) {
	if p, form := s.where(at); p != nil {
		return p, form
	}
	for i := range n {
		for hk := range s.hkv {
			s.read(buf[(i*s.hkv+hk)*s.width:][:s.width], at+i, hk)
		}
	}
	return unsafe.Pointer(&buf[0]), kvF32
}

// decodeRun is where key j lies, and how many of decodeBlock from there on, up to
// key to, follow each other.
func (kv *kvSource[T]) decodeRun(s attnSeq, j, to int) (at, there int) {
	n := min(to-j, decodeBlock)
	if kv.pages.PageSize > 0 {
		return kv.pages.run(s.b, j, n)
	}
	return s.k0 + j, n
}

// scores fills p with those of at most decodeRows heads, from head r of key head
// hk on, with n keys, the row of hk of the first of which is k. What is not a
// multiple of 4 goes one by one, each as four of its kind.
func (f *attnForward[T]) scores(p []T, ldp int, s attnSeq, hk, r int, k unsafe.Pointer, form kvForm, n int, ahead uintptr) {
	q := f32p(f.q[(s.q0*f.hq+hk*f.g+r)*f.d:])
	rows, scale, four, ldk := min(decodeRows, f.g-r), float32(f.scale), n&^3, f.hkv*f.d*form.size()
	if four > 0 {
		attnScores(form, f32p(p), ldp*4, q, k, ldk, ahead, rows, four, f.d, scale)
	}
	for i := four; i < n; i++ {
		attnScores(form, f32p(p[i:]), ldp*4, q, unsafe.Add(k, i*ldk), 0, ahead, rows, 4, f.d, scale)
	}
}
