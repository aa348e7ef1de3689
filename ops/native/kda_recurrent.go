// KDA token by token: the form of its definition, and of short inputs.

package native

// kdaTile is how many columns of a state one unit carries: K of them stay in
// the first level cache over all tokens.
const kdaTile = 32

type kdaRecurrentArgs[T Float] struct {
	KDA[T]
	o, st, checkpoints []T
	tiles              int
}

var (
	kdaRecurrent32     = newKernel(kdaRecurrentUnit[float32])
	kdaRecurrent64     = newKernel(kdaRecurrentUnit[float64])
	kdaRecurrentGrad32 = newKernel(kdaRecurrentGradUnit[float32])
	kdaRecurrentGrad64 = newKernel(kdaRecurrentGradUnit[float64])
)

// KDARecurrent writes o [T,HV,V] and the final states st (shape of S0, which it
// may be; nil where not wanted). A sequence with a negative slot gets zeros and
// touches no state. checkpoints [KDACheckpoints,HV,K,V] takes the state before
// every chunk, which the gradient needs (nil: not wanted; slots that no chunk
// uses are left alone). An empty sequence hands S0 on bit for bit.
// It is parallel over sequences, value heads and tiles of V columns.
func KDARecurrent[T Float](o, st, checkpoints []T, k KDA[T]) {
	tiles := ceilDiv(k.DV, kdaTile)
	seg := k.seg()
	pick[kdaRecurrentArgs[T]](kdaRecurrent32, kdaRecurrent64).launch(seg.n*k.HV*tiles, kdaRecurrentArgs[T]{
		KDA: k, o: o, st: st, checkpoints: checkpoints, tiles: tiles})
}

func kdaRecurrentUnit[T Float](a *kdaRecurrentArgs[T], i int) {
	v0 := i % a.tiles * kdaTile
	hv := i / a.tiles % a.HV
	seq := i / a.tiles / a.HV
	n := min(kdaTile, a.DV-v0)
	lo, hi := a.seg().bounds(seq)
	if a.slot(seq) < 0 {
		a.skip(a.o, lo, hi, hv, v0, n)
		return
	}
	buf := takeScratch[T](a.DK*(n+1) + 2*n)
	s, alpha, p, r := buf[:a.DK*n], buf[a.DK*n:][:a.DK], buf[a.DK*(n+1):][:n], buf[a.DK*(n+1)+n:][:n]
	a.loadState(s, a.S0, seq, hv, v0, n)
	for t := lo; t < hi; t++ {
		if a.checkpoints != nil && (t-lo)%a.chunk() == 0 {
			to := a.checkpoint(a.checkpoints, a.firstCheckpoint(seq, lo)+(t-lo)/a.chunk(), hv)
			for d := range a.DK {
				copy(to[d*a.DV+v0:][:n], s[d*n:])
			}
		}
		at := t*a.H + hv*a.H/a.HV
		expSlice(alpha, a.G[(t*a.HV+hv)*a.DK:][:a.DK])
		kdaToken(a.o[(t*a.HV+hv)*a.DV+v0:][:n], s, alpha, a.Q[at*a.DK:][:a.DK], a.K[at*a.DK:][:a.DK],
			a.V[(t*a.HV+hv)*a.DV+v0:][:n], a.Beta[t*a.HV+hv], a.scale(), p, r)
	}
	a.storeState(a.st, s, seq, hv, v0, n)
	giveScratch(buf)
}

// kdaToken advances the columns s [K,n] of a state by one token and writes
// their output. It reads the decayed state S~ once for both products:
//
//	p = S~'k,  r = S~'q,  delta = beta (v - p),  o = scale (r + delta (k.q)),  S = S~ + k delta'
func kdaToken[T Float](o, s, alpha, q, k, v []T, beta, scale T, p, r []T) {
	clear(p)
	clear(r)
	n := len(v)
	p, r, o = p[:n], r[:n], o[:n]
	for d, decay := range alpha {
		kd, qd, row := k[d], q[d], s[d*n:][:n]
		for j, x := range row {
			x *= decay
			row[j] = x
			p[j] += x * kd
			r[j] += x * qd
		}
	}
	kq := dot(k, q)
	for j, x := range v {
		delta := beta * (x - p[j])
		p[j] = delta
		o[j] = scale * (r[j] + delta*kq)
	}
	for d, kd := range k {
		row := s[d*n:][:n]
		for j, delta := range p {
			row[j] += kd * delta
		}
	}
}

type kdaRecurrentGradArgs[T Float] struct {
	KDA[T]
	grad                 KDAGrads[T]
	do, dst, checkpoints []T
}

// KDARecurrentGrad writes the gradients of every operand from do [T,HV,V], the
// gradient dst of the final states (nil: zeros) and the checkpoints of a
// forward pass with the same chunk. Going back over the tokens, with dS the
// gradient of the state after token t, S~ the decayed state, u = v - S~'k and
// delta = beta u:
//
//	dS += scale q do',  dq = scale S_t do
//	ddelta = dS'k,  dbeta = ddelta.u,  dv = beta ddelta
//	dk = dS delta - beta S~ ddelta
//	dS~ = dS - beta k ddelta',  dg = sum_v S~ dS~,  dS <- diag(exp g) dS~
//
// The states inside a chunk are recomputed from its checkpoint: the update is
// never inverted. dq and dk are summed over the value heads of a group. Slots
// must be nil: states of a pool have no gradient.
func KDARecurrentGrad[T Float](g KDAGrads[T], do, dst, checkpoints []T, k KDA[T]) {
	seg := k.seg()
	pick[kdaRecurrentGradArgs[T]](kdaRecurrentGrad32, kdaRecurrentGrad64).launch(seg.n*k.H, kdaRecurrentGradArgs[T]{
		KDA: k, grad: g, do: do, dst: dst, checkpoints: checkpoints})
}

func kdaRecurrentGradUnit[T Float](a *kdaRecurrentGradArgs[T], i int) {
	seq, h := i/a.H, i%a.H
	lo, hi := a.seg().bounds(seq)
	group, c, size := a.HV/a.H, a.chunk(), a.DK*a.DV
	for t := lo; t < hi; t++ {
		clear(a.grad.Q[(t*a.H+h)*a.DK:][:a.DK])
		clear(a.grad.K[(t*a.H+h)*a.DK:][:a.DK])
	}
	buf := takeScratch[T]((c+2)*size + c*(a.DK+2*a.DV) + 2*a.DV)
	defer giveScratch(buf)
	w := kdaGradScratch[T]{}
	rest := buf
	cut := func(n int) (part []T) { part, rest = rest[:n], rest[n:]; return part }
	w.states, w.ds = cut((c+1)*size), cut(size)
	w.alpha, w.u, w.delta = cut(c*a.DK), cut(c*a.DV), cut(c*a.DV)
	w.ddelta, w.r = cut(a.DV), cut(a.DV)
	for hv := h * group; hv < (h+1)*group; hv++ {
		a.loadState(w.ds, a.dst, seq, hv, 0, a.DV)
		first := a.firstCheckpoint(seq, lo)
		for n := ceilDiv(hi-lo, c); n > 0; n-- {
			from := lo + (n-1)*c
			a.replay(&w, first+n-1, h, hv, from, min(from+c, hi))
			for t := min(from+c, hi) - 1; t >= from; t-- {
				a.back(&w, h, hv, t, t-from)
			}
		}
		a.storeState(a.grad.S0, w.ds, seq, hv, 0, a.DV)
	}
}

// kdaGradScratch holds what one unit of the gradient recomputes for a chunk.
type kdaGradScratch[T Float] struct {
	states    []T // [C+1,K,V] the decayed states, after the first one the state before each token
	ds        []T // [K,V]
	alpha     []T // [C,K]
	u, delta  []T // [C,V]
	ddelta, r []T // [V]
}

// replay recomputes the decayed state, u and delta of the tokens [from,to).
func (a *kdaRecurrentGradArgs[T]) replay(w *kdaGradScratch[T], checkpoint, h, hv, from, to int) {
	size := a.DK * a.DV
	copy(w.states[:size], a.checkpoint(a.checkpoints, checkpoint, hv))
	for t := from; t < to; t++ {
		i := t - from
		alpha, u, delta := w.alpha[i*a.DK:][:a.DK], w.u[i*a.DV:][:a.DV], w.delta[i*a.DV:][:a.DV]
		expSlice(alpha, a.G[(t*a.HV+hv)*a.DK:][:a.DK])
		k, beta := a.K[(t*a.H+h)*a.DK:][:a.DK], a.Beta[t*a.HV+hv]
		s, next := w.states[i*size:][:size], w.states[(i+1)*size:][:size]
		copy(u, a.V[(t*a.HV+hv)*a.DV:][:a.DV])
		for d, decay := range alpha {
			row, kd := s[d*a.DV:][:a.DV], k[d]
			for j, x := range row {
				x *= decay
				row[j] = x
				u[j] -= x * kd
			}
		}
		for j, x := range u {
			delta[j] = beta * x
		}
		for d, kd := range k {
			row, out := s[d*a.DV:][:a.DV], next[d*a.DV:][:a.DV]
			for j, x := range row {
				out[j] = x + kd*delta[j]
			}
		}
	}
}

// back goes back over token t, number i of its chunk.
func (a *kdaRecurrentGradArgs[T]) back(w *kdaGradScratch[T], h, hv, t, i int) {
	nk, nv, scale := a.DK, a.DV, a.scale()
	q, k := a.Q[(t*a.H+h)*nk:][:nk], a.K[(t*a.H+h)*nk:][:nk]
	dq, dk := a.grad.Q[(t*a.H+h)*nk:][:nk], a.grad.K[(t*a.H+h)*nk:][:nk]
	dg, dv := a.grad.G[(t*a.HV+hv)*nk:][:nk], a.grad.V[(t*a.HV+hv)*nv:][:nv]
	do, beta := a.do[(t*a.HV+hv)*nv:][:nv], a.Beta[t*a.HV+hv]
	s, alpha := w.states[i*nk*nv:], w.alpha[i*nk:][:nk]
	u, delta := w.u[i*nv:][:nv], w.delta[i*nv:][:nv]
	ddelta := w.ddelta
	clear(ddelta)
	for d, kd := range k {
		ds, qd := w.ds[d*nv:][:nv], q[d]*scale
		for j, x := range do {
			y := ds[j] + qd*x
			ds[j] = y
			ddelta[j] += y * kd
		}
	}
	a.grad.Beta[t*a.HV+hv] = dot(ddelta, u)
	for j, x := range ddelta {
		dv[j] = beta * x
	}
	oDelta := dot(delta, do)
	for d := range k {
		row, ds := s[d*nv:][:nv], w.ds[d*nv:][:nv]
		dq[d] += scale * (dot(row, do) + k[d]*oDelta)
		dk[d] += dot(ds, delta) - dot(row, dv)
		kd, decay, sum := k[d], alpha[d], T(0)
		for j, x := range ds {
			x -= kd * dv[j]
			sum += row[j] * x
			ds[j] = decay * x
		}
		dg[d] = sum
	}
}
