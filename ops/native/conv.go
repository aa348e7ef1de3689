// The short convolution in front of KDA: depthwise, causal, SiLU behind it,
// with the last inputs of a sequence as its state.

package native

import "iter"

// segments cuts packed tokens into sequences: at cu, or evenly where cu is nil.
type segments struct {
	cu        []int32
	n, tokens int
}

func newSegments(cu []int32, n, tokens int) segments {
	if cu != nil {
		n = len(cu) - 1
	}
	return segments{cu, n, tokens}
}

// bounds returns the first token of sequence s and the one after its last.
func (g segments) bounds(s int) (lo, hi int) {
	if g.cu != nil {
		return int(g.cu[s]), int(g.cu[s+1])
	}
	l := g.tokens / g.n
	return s * l, (s + 1) * l
}

// of returns the sequence that holds token t: the last one that begins at or
// before t, since those are empty that begin there and are not the last.
func (g segments) of(t int) int {
	lo, hi := 0, g.n
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if first, _ := g.bounds(mid); first <= t {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// span is a sequence: its number, its first token and the one after its last.
type span struct{ seq, lo, hi int }

// tokensFrom yields n tokens from t on, or as many as there are, with the
// sequence of each.
func (g segments) tokensFrom(t, n int) iter.Seq2[int, span] {
	return func(yield func(int, span) bool) {
		in := span{seq: g.of(t)}
		in.lo, in.hi = g.bounds(in.seq)
		for end := min(t+n, g.tokens); t < end; t++ {
			for t >= in.hi {
				in.seq++
				in.lo, in.hi = g.bounds(in.seq)
			}
			if !yield(t, in) {
				return
			}
		}
	}
}

const (
	convRows     = 32  // tokens of a unit
	convGradRows = 256 // tokens of one partial sum of dw
)

// ShortConvShape says how the operands of a short convolution are cut.
type ShortConvShape struct {
	Cu              []int32 // [N+1] where the packed sequences begin and end; nil: Seqs of equal length
	Slots           []int32 // [N] which state a sequence has; negative: skip it; nil: its own number
	Seqs, Tokens    int
	Channels, Width int
}

type shortConvArgs[T Float] struct {
	y, next, x, state []T
	taps, one         []T // w transposed, [W,C], and a row of ones
	seg               segments
	slots             []int32
	c, width, blocks  int
}

var (
	shortConv32     = newKernel(shortConvUnit[float32])
	shortConv64     = newKernel(shortConvUnit[float64])
	shortConvKeep32 = newKernel(shortConvKeep[float32])
	shortConvKeep64 = newKernel(shortConvKeep[float64])
)

// ShortConv computes, for every channel c of the packed tokens x [T,C],
//
//	a_t = sum_j w[c,j] x[t-W+1+j, c],  y_t = a_t sigmoid(a_t)
//
// with w [C,W], its last column on the newest sample. Samples before a
// sequence come from state [N,C,W-1], oldest first (nil: zeros), and next
// (same shape, nil where not wanted) takes the last W-1 samples of each
// sequence, which are the state for its continuation; it may be state. An empty
// sequence hands its state on. A sequence with a negative slot gets zeros and
// touches no state.
func ShortConv[T Float](y, next, x, w, state []T, s ShortConvShape) {
	a := newShortConv(x, w, state, s)
	a.y, a.next, a.blocks = y, next, ceilDiv(s.Tokens, convRows)
	pick[shortConvArgs[T]](shortConv32, shortConv64).launch(a.blocks, a)
	if next != nil {
		pick[shortConvArgs[T]](shortConvKeep32, shortConvKeep64).launch(a.seg.n, a)
	}
	giveScratch(a.taps)
}

// newShortConv takes scratch for taps and one, which begins at taps.
func newShortConv[T Float](x, w, state []T, s ShortConvShape) shortConvArgs[T] {
	buf := takeScratch[T]((s.Width + 1) * s.Channels)
	for c := range s.Channels {
		for j := range s.Width {
			buf[j*s.Channels+c] = w[c*s.Width+j]
		}
	}
	one := buf[s.Width*s.Channels:]
	for c := range one {
		one[c] = 1
	}
	return shortConvArgs[T]{x: x, state: state, taps: buf, one: one,
		seg: newSegments(s.Cu, s.Seqs, s.Tokens), slots: s.Slots, c: s.Channels, width: s.Width}
}

// tap returns the weights of all channels for the sample width-1-j tokens back.
func (a *shortConvArgs[T]) tap(j int) []T { return a.taps[j*a.c:][:a.c] }

func (a *shortConvArgs[T]) slot(seq int) int {
	if a.slots == nil {
		return seq
	}
	return int(a.slots[seq])
}

// sample returns row t-back of the sequence [lo,...), which may lie in the
// state: then stride is W-1, else 1. nil: zeros.
func (a *shortConvArgs[T]) sample(seq, lo, t, back int) (row []T, stride int) {
	if t-back >= lo {
		return a.x[(t-back)*a.c:][:a.c], 1
	}
	if a.state == nil {
		return nil, 0
	}
	w := a.width - 1
	return a.state[a.slot(seq)*a.c*w+w+t-back-lo:], w
}

func shortConvUnit[T Float](a *shortConvArgs[T], i int) {
	for t, in := range a.seg.tokensFrom(i*convRows, convRows) {
		y := a.y[t*a.c:][:a.c]
		if a.slot(in.seq) < 0 {
			clear(y)
			continue
		}
		a.preact(y, in.seq, in.lo, t)
		silu := gluArgs[T]{y: y, gate: y, up: a.one, n: a.c}
		for u := range ceilDiv(a.c, unitElements) {
			swiGLUUnit(&silu, u)
		}
	}
}

// preact writes a_t of all channels.
func (a *shortConvArgs[T]) preact(y []T, seq, lo, t int) {
	clear(y)
	for j := range a.width {
		row, stride := a.sample(seq, lo, t, a.width-1-j)
		switch {
		case row == nil:
		case stride == 1:
			addScaleMul(y, row, a.tap(j), 1)
		default:
			for c, w := range a.tap(j) {
				y[c] += w * row[c*stride]
			}
		}
	}
}

// shortConvKeep writes the state of a sequence for its continuation. Column j is
// read from column j or a later one, so next may be state.
func shortConvKeep[T Float](a *shortConvArgs[T], seq int) {
	lo, hi := a.seg.bounds(seq)
	w, slot := a.width-1, a.slot(seq)
	if slot < 0 {
		return
	}
	out := a.next[slot*a.c*w:][:a.c*w]
	for j := range w {
		row, stride := a.sample(seq, lo, hi, w-j)
		for c := range a.c {
			if row == nil {
				out[c*w+j] = 0
			} else {
				out[c*w+j] = row[c*stride]
			}
		}
	}
}

type shortConvGradArgs[T Float] struct {
	shortConvArgs[T]
	dx, dw, dstate, dy, dnext []T
	da, part                  []T // [T,C] and a [W,C] for every convGradRows tokens
}

var (
	shortConvDA32 = newKernel(shortConvDA[float32])
	shortConvDA64 = newKernel(shortConvDA[float64])
	shortConvDX32 = newKernel(shortConvDX[float32])
	shortConvDX64 = newKernel(shortConvDX[float64])
)

// ShortConvGrad computes dx [T,C], dw [C,W] and dstate [N,C,W-1] (nil where not
// wanted) of ShortConv from dy and from dnext, the gradient of its final state
// (nil: zeros):
//
//	da = dy sigmoid(a) (1 + a (1 - sigmoid(a)))
//	dw_j = sum_t da_t x_{t-W+1+j},  dx_s = sum_j w_j da_{s+W-1-j}
//
// where an x before the sequence is the state's. Slots must be nil.
func ShortConvGrad[T Float](dx, dw, dstate, dy, dnext, x, w, state []T, s ShortConvShape) {
	blocks := ceilDiv(s.Tokens, convGradRows)
	a := shortConvGradArgs[T]{
		shortConvArgs: newShortConv(x, w, state, s),
		dx:            dx, dw: dw, dstate: dstate, dy: dy, dnext: dnext,
		da:   takeScratch[T](s.Tokens * s.Channels),
		part: takeScratch[T](blocks * s.Channels * s.Width),
	}
	a.blocks = blocks
	n := blocks + 1
	if dstate != nil {
		n += a.seg.n
	}
	pick[shortConvGradArgs[T]](shortConvDA32, shortConvDA64).launch(blocks, a)
	pick[shortConvGradArgs[T]](shortConvDX32, shortConvDX64).launch(n, a)
	giveScratch(a.da)
	giveScratch(a.part)
	giveScratch(a.taps)
}

// shortConvDA computes da and the share of dw of one block of tokens.
func shortConvDA[T Float](a *shortConvGradArgs[T], i int) {
	part := a.part[i*a.c*a.width:][:a.c*a.width]
	clear(part)
	unused := takeScratch[T](a.c) // the other gradient of the gated unit
	for t, in := range a.seg.tokensFrom(i*convGradRows, convGradRows) {
		da, dy := a.da[t*a.c:][:a.c], a.dy[t*a.c:][:a.c]
		a.preact(da, in.seq, in.lo, t)
		silu := gluArgs[T]{dgate: da, dup: unused, y: dy, gate: da, up: a.one, n: a.c}
		for u := range ceilDiv(a.c, unitElements) {
			swiGLUGradUnit(&silu, u)
		}
		for j := range a.width {
			row, stride := a.sample(in.seq, in.lo, t, a.width-1-j)
			sum := part[j*a.c:][:a.c]
			switch {
			case row == nil:
			case stride == 1:
				addScaleMul(sum, da, row, 1)
			default:
				for c, v := range da {
					sum[c] += v * row[c*stride]
				}
			}
		}
	}
	giveScratch(unused)
}

// shortConvDX writes dx of one block of tokens, then (next unit) dw, then (one
// unit a sequence) dstate.
func shortConvDX[T Float](a *shortConvGradArgs[T], i int) {
	if i == a.blocks {
		clear(a.dw)
		for b := range a.blocks {
			part := a.part[b*a.c*a.width:][:a.c*a.width]
			for j := range a.width {
				for c := range a.c {
					a.dw[c*a.width+j] += part[j*a.c+c]
				}
			}
		}
		return
	}
	if i > a.blocks {
		a.stateGrad(i - a.blocks - 1)
		return
	}
	for t, in := range a.seg.tokensFrom(i*convGradRows, convGradRows) {
		a.sampleGrad(a.dx[t*a.c:][:a.c], 1, in.seq, in.lo, in.hi, t)
	}
}

// sampleGrad writes the gradient of the sample at t, which lies before lo for
// a sample of the state.
func (a *shortConvGradArgs[T]) sampleGrad(out []T, stride, seq, lo, hi, t int) {
	w := a.width - 1
	for c := range a.c {
		out[c*stride] = 0
	}
	for j := range a.width {
		if s := t + w - j; s >= lo && s < hi {
			da := a.da[s*a.c:][:a.c]
			if stride == 1 {
				addScaleMul(out[:a.c], da, a.tap(j), 1)
				continue
			}
			for c, w := range a.tap(j) {
				out[c*stride] += w * da[c]
			}
		}
	}
	if kept := t - (hi - w); a.dnext != nil && kept >= 0 {
		d := a.dnext[seq*a.c*w:][:a.c*w]
		for c := range a.c {
			out[c*stride] += d[c*w+kept]
		}
	}
}

func (a *shortConvGradArgs[T]) stateGrad(seq int) {
	lo, hi := a.seg.bounds(seq)
	w := a.width - 1
	for j := range w {
		a.sampleGrad(a.dstate[seq*a.c*w+j:], w, seq, lo, hi, lo-w+j)
	}
}
