// KDA by chunks: matrix products inside a chunk, one state from chunk to chunk.

package native

type kdaChunkArgs[T Float] struct {
	KDA[T]
	o, st, checkpoints []T
	tile, tiles        int
}

var (
	kdaChunk32 = newKernel(kdaChunkUnit[float32])
	kdaChunk64 = newKernel(kdaChunkUnit[float64])
)

// Where there are few heads, V is cut in tiles, which all repeat the work that
// does not depend on V.
const (
	kdaFewHeads  = 8
	kdaChunkTile = 64
)

// KDAChunked computes what KDARecurrent does, chunk by chunk. With S the state
// that enters the chunk, M and P as in kda_factors.go, and Kd, Qd, Kg the keys
// and queries decayed from the start and to the end of the chunk:
//
//	Vn = (I + diag(beta) M)^-1 diag(beta) (V - Kd S)
//	O  = Qd S + P Vn
//	S <- diag(exp G_end) S + Kg' Vn
//
// The triangular system is solved by forward substitution over blocks of 16
// for the right-hand side, which needs neither the inverse nor the products of
// it that a two-pass form stores. A chunk that holds a NaN or an Inf is done
// token by token, so that it spreads as the definition says, never backwards.
func KDAChunked[T Float](o, st, checkpoints []T, k KDA[T]) {
	seg := k.seg()
	a := kdaChunkArgs[T]{KDA: k, o: o, st: st, checkpoints: checkpoints, tile: k.DV, tiles: 1}
	if seg.n*k.HV < kdaFewHeads && k.DV > kdaChunkTile {
		a.tile, a.tiles = kdaChunkTile, ceilDiv(k.DV, kdaChunkTile)
	}
	pick[kdaChunkArgs[T]](kdaChunk32, kdaChunk64).launch(seg.n*k.HV*a.tiles, a)
}

func kdaChunkUnit[T Float](a *kdaChunkArgs[T], i int) {
	v0 := i % a.tiles * a.tile
	hv := i / a.tiles % a.HV
	seq := i / a.tiles / a.HV
	nv := min(a.tile, a.DV-v0)
	lo, hi := a.seg().bounds(seq)
	if a.slot(seq) < 0 {
		a.skip(a.o, lo, hi, hv, v0, nv)
		return
	}
	c := a.chunk()
	f := kdaFactors[T]{nk: a.DK, c: c, wide: max(a.DK, nv)}
	buf := takeScratch[T](f.size() + a.DK*nv + 3*c*nv + a.DK)
	defer giveScratch(buf)
	rest := f.cut(buf)
	s, rest := rest[:a.DK*nv], rest[a.DK*nv:]
	vn, yo := rest[:c*nv], rest[c*nv:]
	a.loadState(s, a.S0, seq, hv, v0, nv)
	for t := lo; t < hi; t += c {
		if a.checkpoints != nil {
			to := a.checkpoint(a.checkpoints, a.firstCheckpoint(seq, lo)+(t-lo)/c, hv)
			for d := range a.DK {
				copy(to[d*a.DV+v0:][:nv], s[d*nv:])
			}
		}
		n := min(c, hi-t)
		f.fill(&a.KDA, hv, t, n)
		if !a.advance(&f, s, yo, vn, hv, t, v0, nv) {
			a.byToken(s, yo, hv, t, n, v0, nv)
		}
	}
	a.storeState(a.st, s, seq, hv, v0, nv)
}

// byToken advances s [K,nv] token by token. buf [K+2nv] is scratch.
func (a *kdaChunkArgs[T]) byToken(s, buf []T, hv, t, n, v0, nv int) {
	h := hv * a.H / a.HV
	alpha, p, r := buf[:a.DK], buf[a.DK:][:nv], buf[a.DK+nv:][:nv]
	for ; n > 0; t, n = t+1, n-1 {
		expSlice(alpha, a.G[(t*a.HV+hv)*a.DK:][:a.DK])
		kdaToken(a.o[(t*a.HV+hv)*a.DV+v0:][:nv], s, alpha, a.Q[(t*a.H+h)*a.DK:][:a.DK], a.K[(t*a.H+h)*a.DK:][:a.DK],
			a.V[(t*a.HV+hv)*a.DV+v0:][:nv], a.Beta[t*a.HV+hv], a.scale(), p, r)
	}
}

// advance writes the outputs of the chunk at token t and moves s [K,nv] to its
// end, unless something in it is not finite. yo [C,2,nv] and vn [C,nv] are scratch.
func (a *kdaChunkArgs[T]) advance(f *kdaFactors[T], s, yo, vn []T, hv, t, v0, nv int) bool {
	rows, nk, c := f.rows(), a.DK, f.c
	gemmSerial(false, false, 2*rows, nv, nk, 1, f.far, nk, s, nv, 0, yo, nv)
	for i := range f.n {
		y := yo[2*i*nv:][:nv]
		addScaled(y, a.V[((t+i)*a.HV+hv)*a.DV+v0:], y, -1)
	}
	for b := range f.blocks {
		f.solve(vn, yo, 2*nv, nv, b)
		first := b * kdaBlock
		gemmSerial(false, false, kdaBlock, nv, first+kdaBlock, 1, f.mp[(2*first+1)*c:], 2*c, vn, nv, 1, yo[(2*first+1)*nv:], 2*nv)
	}
	if sum := sumMul(f.raw[:2*rows*nk], f.raw) + sumMul(vn[:rows*nv], vn); sum-sum != 0 {
		return false
	}
	for i := range f.n {
		copy(a.o[((t+i)*a.HV+hv)*a.DV+v0:][:nv], yo[(2*i+1)*nv:])
	}
	for d, w := range f.decay() {
		row := s[d*nv:][:nv]
		scaleMul(row, row, f.one, w)
	}
	gemmSerial(true, false, nk, nv, rows, 1, f.reached(f.blocks), nk, vn, nv, 1, s, nv)
	return true
}
