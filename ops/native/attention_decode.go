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
	decodeTurn  = 32  // scores of a row that the softmax takes at a time

	decodeFetch = 12 << 10 // bytes that are fetched ahead, in whole blocks
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
// joins what it has computed and the last one has one state of another's to read. It
// writes to its own part, whose lines its core has.
func attnDecodeUnit[T Float](f *attnForward[T], seat, unit int) {
	s, split := f.seq(unit/f.splits), unit%f.splits
	n := f.cut(s)
	if n == 1 || split >= n || !f.decodes(s) {
		return
	}
	p := f.scratch[seat*f.seat:][:f.seat]
	f.decode(s, split, n, p)
	mine := split // the part whose state is that of all joined so far
	for wide := 1; wide < n; wide *= 2 {
		side := split / wide & 1
		split -= side * wide
		pair := f.come[(s.b*f.splits+split+wide)*cacheLine/4:][:3]
		pair[1+side] = int32(mine)
		if atomic.AddInt32(&pair[0], 1) == 1 {
			return
		}
		if 2*wide == n {
			fetchToWrite(unsafe.Pointer(&f.out[s.q0*f.hq*f.dv]), f.hq*f.dv*int(unsafe.Sizeof(f.out[0])))
		}
		f.joinPair(s.b, mine, int(pair[2-side]), p)
	}
	o, m, l := f.part(s.b, mine)
	for head := range f.hq {
		row := head/f.g*f.splitRows + head%f.g
		f.finishRow(s, head, 0, m[row], l[row], o[row*f.dv:][:f.dv], l[row] != -1)
	}
}

// cacheLine is the bytes that change hands between cores.
const cacheLine = 64

// joinPair makes the state of a part of sequence b that of its keys and another
// part's; p is scratch. All rows of a part see its keys, or none does.
func (f *attnForward[T]) joinPair(b, to, from int, p []T) {
	o, m, l := f.part(b, to)
	o2, m2, l2 := f.part(b, from)
	fetchLines(unsafe.Pointer(&o2[0]), f.partSize()*int(unsafe.Sizeof(o2[0])))
	switch {
	case l2[0] == -1:
		return
	case l[0] == -1:
		copy(o, o2)
		copy(m, m2)
		copy(l, l2)
		return
	}
	w := p[:2*f.hq]
	for head := range f.hq {
		row := head/f.g*f.splitRows + head%f.g
		top := max(m[row], m2[row])
		base := top
		if math.IsInf(float64(top), -1) {
			base = 0
		}
		w[head], w[f.hq+head], m[row] = m[row]-base, m2[row]-base, top
	}
	expSlice(w, w)
	for head := range f.hq {
		row := head/f.g*f.splitRows + head%f.g
		l[row] = w[head]*l[row] + w[f.hq+head]*l2[row]
	}
	for hk := range f.hkv {
		at := hk * f.splitRows * f.dv
		attnJoin(f32p(o[at:]), f32p(o2[at:]), f32p(w[hk*f.g:]), f32p(w[f.hq+hk*f.g:]), f.g, f.dv)
	}
}

// decodeRow is the most scores of a row: those of the longest part, of which four
// are written at a time.
const decodeRow = attnSplitKeys + decodeTurn

// decodeSeat is the size of what decode takes of scratch: rows of scores, in pairs,
// what the softmax says of each, and a block of keys or values that must be widened
// first.
func (f *attnForward[T]) decodeSeat() int {
	n := (f.hq + 1) * (decodeRow + 4)
	if p, _ := f.kv.k.where(0); p == nil {
		n += decodeBlock * f.hkv * max(f.d, f.dv)
	}
	return ceilDiv(n, 16) * 16 // whole cache lines
}

// decodeTile are the arguments of the products of a block of keys or values with
// the rows of all heads; strides are in bytes. The offsets are known to the
// assembly, which changes the arguments.
type decodeTile struct {
	p          *float32       // 0: scores of the first head and key
	ldp, headp int            // 8, 16: from row to row, from head to head
	x          *float32       // 24: queries, or sums of values
	headx      int            // 32: from head to head
	kv         unsafe.Pointer // 40: keys or values
	ldkv       int            // 48: from token to token
	ahead      unsafe.Pointer // 56: memory to fetch meanwhile, as much as is read
	heads      int            // 64
	rows       int            // 72: of a head, at most decodeRows
	keys, d    int            // 80, 88
	scale      float32        // 96
	more       bool           // 100: sums go on
}

// on sets what the assembly has changed.
func (t *decodeTile) on(p, x *float32, kv, ahead unsafe.Pointer, heads int) {
	t.p, t.x, t.kv, t.ahead, t.heads = p, x, kv, ahead, heads
}

// kvRun are keys that are read in blocks of those that follow each other.
type kvRun struct {
	j, to    int // keys to come
	at, left int // those of them that follow each other
}

// block takes at most decodeBlock keys that follow each other, from at on.
func (kv *kvSource[T]) block(s attnSeq, r *kvRun) (at, n int) {
	if r.left == 0 {
		r.at, r.left = s.k0+r.j, r.to-r.j
		if kv.pages.PageSize > 0 && r.left > 0 {
			r.at, r.left = kv.pages.run(s.b, r.j, r.left)
		}
	}
	at, n = r.at, min(r.left, decodeBlock)
	r.at, r.left, r.j = r.at+n, r.left-n, r.j+n
	return at, n
}

// decodeAhead goes over the blocks of the keys of a part, of its values, and of the
// keys of the next one, which the same worker computes most often.
type decodeAhead[T Float] struct {
	kv       *kvSource[T]
	s        attnSeq
	from, to int            // the part
	stage    int            // of those three
	x        *kvRows[T]     // whose blocks they are
	run      kvRun          // those to come
	at       unsafe.Pointer // where the last block lies
}

// next returns where the next block lies, the last one where there is none, or nil
// where what is read must be widened first.
func (a *decodeAhead[T]) next() unsafe.Pointer {
	if a.run.j == a.run.to {
		switch a.stage++; a.stage {
		case 1:
			a.x, a.run = &a.kv.v, kvRun{j: a.from, to: a.to}
		case 2:
			a.x, a.run = &a.kv.k, kvRun{j: a.to, to: min(a.to+attnSplitKeys, a.s.lk)}
		}
	}
	if at, n := a.kv.block(a.s, &a.run); n > 0 {
		a.at, _ = a.x.where(at)
	}
	return a.at
}

// decode computes a part of n of a sequence of one query for all its heads. The
// bits do not depend on where the keys lie. Memory is fetched in the order in which
// it lies: the keys of one head lie apart, and the processor fetches no such rows.
func (f *attnForward[T]) decode(s attnSeq, split, n int, p []T) {
	lo, hi := f.span(s, 0)
	blocks := ceilDiv(s.lk, decodeBlock)
	from, to := max(split*blocks/n*decodeBlock, lo), min((split+1)*blocks/n*decodeBlock, hi)
	o, m, l := f.part(s.b, split)
	if n = to - from; n <= 0 {
		clear(o)
		fill(l, -1)
		return
	}
	fetchToWrite(unsafe.Pointer(&o[0]), f.partSize()*int(unsafe.Sizeof(o[0])))
	ahead := decodeAhead[T]{kv: &f.kv, s: s, from: from, to: to, x: &f.kv.k, run: kvRun{j: from, to: to}}
	if k, form := f.kv.k.where(0); k != nil {
		size := decodeBlock * f.hkv * f.d * form.size()
		for range max(1, decodeFetch/size) {
			fetchLines(ahead.next(), min(size, decodeFetch))
		}
	}
	ldp, rows := ceilDiv(n+3, decodeTurn)*decodeTurn, ceilDiv(f.hq, 2)*2
	tops, bases := p[rows*ldp:][:rows], p[rows*(ldp+1):][:rows]
	sums, wide := unsafe.Slice((*float64)(unsafe.Pointer(&p[rows*(ldp+2)])), rows), p[rows*(ldp+4):]
	var t decodeTile
	t.ldp, t.headp, t.headx, t.d, t.scale = ldp*4, f.g*ldp*4, f.g*f.d*4, f.d, float32(f.scale)
	for run := (kvRun{j: from, to: to}); run.j < to; {
		j := run.j - from
		at, there := f.kv.block(s, &run)
		k, form := f.kv.k.rows(at, there, wide)
		fetch, ldk := ahead.next(), f.hkv*f.d*form.size()
		for r := 0; r < f.g; r += decodeRows {
			t.rows = min(decodeRows, f.g-r)
			q := f32p(f.q[(s.q0*f.hq+r)*f.d:])
			if four := there &^ 3; four > 0 {
				t.ldkv, t.keys = ldk, four
				t.on(f32p(p[r*ldp+j:]), q, k, fetch, f.hkv)
				t.scores(form)
			}
			for i := there &^ 3; i < there; i++ { // one by one, each as four of its kind
				t.ldkv, t.keys = 0, 4
				t.on(f32p(p[r*ldp+j+i:]), q, unsafe.Add(k, i*ldk), fetch, f.hkv)
				t.scores(form)
			}
		}
	}
	for head := 0; head < f.hq && f.softcap > 0; head++ {
		capScores(p[head*ldp:][:n], f.softcap)
	}
	attnSoftmax(f32p(p), ldp*4, rows, n, f32p(tops), f32p(bases), &sums[0])
	for head := range f.hq {
		row := head/f.g*f.splitRows + head%f.g
		m[row], l[row] = tops[head], T(sums[head])
	}
	t.headx, t.d, t.more = f.splitRows*f.dv*4, f.dv, false
	for run := (kvRun{j: from, to: to}); run.j < to; {
		j := run.j - from
		at, there := f.kv.block(s, &run)
		v, form := f.kv.v.rows(at, there, wide)
		fetch := ahead.next()
		t.ldkv, t.keys = f.hkv*f.dv*form.size(), there
		for r := 0; r < f.g; r += decodeRows {
			t.rows = min(decodeRows, f.g-r)
			t.on(f32p(p[r*ldp+j:]), f32p(o[r*f.dv:]), v, fetch, f.hkv)
			t.values(form)
		}
		t.more = true
	}
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

// rows is the rows of all heads of n tokens that follow each other from at on:
// where they lie, or widened into buf.
func (s *kvRows[T]) rows(at, n int, buf []T) (unsafe.Pointer, kvForm) {
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
