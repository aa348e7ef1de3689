// The gradient of KDA by chunks.

package native

type kdaChunkGradArgs[T Float] struct {
	KDA[T]
	grad                 KDAGrads[T]
	do, dst, checkpoints []T
}

var (
	kdaChunkGrad32 = newKernel(kdaChunkGradUnit[float32])
	kdaChunkGrad64 = newKernel(kdaChunkGradUnit[float64])
)

// KDAChunkedGrad writes the gradients that KDARecurrentGrad does. Going back
// over the chunks with S the state that enters one (its checkpoint), dS' the
// gradient of the state that leaves it and U = V - Kd S - M Vn (so that
// Vn = diag(beta) U):
//
//	dVn = P'dO + Kg dS' - M'Z,  Z = beta dVn      by back substitution
//	dV = Z,  dbeta = dVn . U,  dS = diag(exp G_end) dS' + Qd'dO - Kd'Z
//	E = -stril(Z Vn'),  F = tril(dO Vn')          the gradients of M and P
//	dQd = dO S',  dKd = -Z S',  dKg = Vn dS''
//
// then every product goes back to q', k and the decays through the same split
// of the decays as forward. A term that holds exp(G_i - G_j) gives its value to
// dG_i and takes it from dG_j, so with dk+ the share of dk from rows (exp G_i)
// and dk- that from columns (exp -G_i):
//
//	dG_i = q' dq' + k (dk+ - dk-),  dg_t = sum_{i >= t} dG_i inside the chunk
func KDAChunkedGrad[T Float](g KDAGrads[T], do, dst, checkpoints []T, k KDA[T]) {
	seg := k.seg()
	pick[kdaChunkGradArgs[T]](kdaChunkGrad32, kdaChunkGrad64).launch(seg.n*k.H, kdaChunkGradArgs[T]{
		KDA: k, grad: g, do: do, dst: dst, checkpoints: checkpoints})
}

// kdaBack is the scratch of one unit of the gradient.
type kdaBack[T Float] struct {
	f     kdaFactors[T]
	ds    []T // [K,V] the gradient of the state
	u     []T // [C,V]
	vn    []T // [C,V]
	dvn   []T // [C,V]
	zo    []T // [C,2,V] -Z and dO
	ef    []T // [C,2,C] E and F
	dfar  []T // [C,2,K] gradients of the scaled rows
	dnear []T // [C,2,K]
	ddiag []T // [C,2,K], at last those of raw
	drise []T // [C,K] of risen
	dcol  []T // [C,K] of the keys decayed to some later entry, at last dk-
	dend  []T // [K] of G at the end of the chunk
	self  []T // [C] the diagonal of F, which no decay takes part in
}

func (w *kdaBack[T]) size(nk, nv, c int) int {
	return w.f.size() + nk*nv + 5*c*nv + 2*c*c + 8*c*nk + nk + c
}

func (w *kdaBack[T]) cut(buf []T, nk, nv, c int) {
	buf = w.f.cut(buf)
	part := func(p *[]T, n int) { *p, buf = buf[:n], buf[n:] }
	part(&w.ds, nk*nv)
	part(&w.u, c*nv)
	part(&w.vn, c*nv)
	part(&w.dvn, c*nv)
	part(&w.zo, 2*c*nv)
	part(&w.ef, 2*c*c)
	part(&w.dfar, 2*c*nk)
	part(&w.dnear, 2*c*nk)
	part(&w.ddiag, 2*c*nk)
	part(&w.drise, c*nk)
	part(&w.dcol, c*nk)
	part(&w.dend, nk)
	part(&w.self, c)
}

func kdaChunkGradUnit[T Float](a *kdaChunkGradArgs[T], i int) {
	seq, h := i/a.H, i%a.H
	lo, hi := a.seg().bounds(seq)
	group, c := a.HV/a.H, a.chunk()
	w := kdaBack[T]{f: kdaFactors[T]{nk: a.DK, c: c, wide: max(a.DK, a.DV)}}
	buf := takeScratch[T](w.size(a.DK, a.DV, c))
	defer giveScratch(buf)
	w.cut(buf, a.DK, a.DV, c)
	for hv := h * group; hv < (h+1)*group; hv++ {
		a.loadState(w.ds, a.dst, seq, hv, 0, a.DV)
		first := a.firstCheckpoint(seq, lo)
		for n := ceilDiv(hi-lo, c); n > 0; n-- {
			t := lo + (n-1)*c
			w.f.fill(&a.KDA, hv, t, min(c, hi-t))
			s := a.checkpoint(a.checkpoints, first+n-1, hv)
			a.values(&w, s, hv, t)
			a.increments(&w, hv, t)
			a.state(&w, s)
			a.pairs(&w)
			a.operands(&w, h, hv, t, hv > h*group)
		}
		a.storeState(a.grad.S0, w.ds, seq, hv, 0, a.DV)
	}
}

// values recomputes u and vn of the chunk at token t.
func (a *kdaChunkGradArgs[T]) values(w *kdaBack[T], s []T, hv, t int) {
	f, nv := &w.f, a.DV
	gemmSerial(false, false, f.rows(), nv, a.DK, 1, f.far, 2*a.DK, s, nv, 0, w.u, nv)
	for i := range f.n {
		u := w.u[i*nv:][:nv]
		addScaled(u, a.V[((t+i)*a.HV+hv)*nv:], u, -1)
	}
	for b := range f.blocks {
		f.solve(w.vn, w.u, nv, nv, b)
		first := b * kdaBlock
		gemmSerial(false, false, kdaBlock, nv, kdaBlock, -1, f.mp[2*first*f.c+first:], 2*f.c, w.vn[first*nv:], nv, 1, w.u[first*nv:], nv)
	}
}

// increments computes dvn and Z, and writes dV and dbeta.
func (a *kdaChunkGradArgs[T]) increments(w *kdaBack[T], hv, t int) {
	f, nv, rows := &w.f, a.DV, w.f.rows()
	for i := range rows {
		row := w.zo[(2*i+1)*nv:][:nv]
		if i < f.n {
			copy(row, a.do[((t+i)*a.HV+hv)*nv:])
		} else {
			clear(row)
		}
	}
	gemmSerial(false, false, rows, nv, a.DK, 1, f.reached(f.blocks), a.DK, w.ds, nv, 0, w.dvn, nv)
	solved := takeScratch[T](kdaBlock * nv)
	for b := f.blocks - 1; b >= 0; b-- {
		first := b * kdaBlock
		next := first + kdaBlock
		dvn := w.dvn[first*nv:]
		gemmSerial(true, false, kdaBlock, nv, kdaBlock, 1, f.mp[(2*first+1)*f.c+first:], 2*f.c, w.zo[(2*first+1)*nv:], 2*nv, 1, dvn, nv)
		if next < rows {
			gemmSerial(true, false, kdaBlock, nv, 2*(rows-next), 1, f.mp[2*next*f.c+first:], f.c, w.zo[2*next*nv:], nv, 1, dvn, nv)
		}
		gemmSerial(true, false, kdaBlock, nv, kdaBlock, 1, f.square(f.inverse, b), kdaBlock, dvn, nv, 0, solved, nv)
		gemmSerial(true, false, kdaBlock, nv, kdaBlock, -1, f.square(f.write, b), kdaBlock, dvn, nv, 0, w.zo[2*first*nv:], 2*nv)
		for i := first; i < min(next, f.n); i++ {
			a.grad.Beta[(t+i)*a.HV+hv] = T(sumMul(solved[(i-first)*nv:][:nv], w.u[i*nv:]))
			dv := a.grad.V[((t+i)*a.HV+hv)*nv:][:nv]
			for j, z := range w.zo[2*i*nv:][:nv] {
				dv[j] = -z
			}
		}
	}
	giveScratch(solved)
}

// state computes what meets the states: dfar, the gradient of Kg (in dcol),
// that of the decay of the whole chunk, and moves ds to the chunk's start.
func (a *kdaChunkGradArgs[T]) state(w *kdaBack[T], s []T) {
	f, nk, nv, rows := &w.f, a.DK, a.DV, w.f.rows()
	gemmSerial(false, true, rows, nk, nv, 1, w.vn, nv, w.ds, nv, 0, w.dcol, nk)
	for d, decay := range f.decay() {
		ds := w.ds[d*nv:][:nv]
		w.dend[d] = decay * T(sumMul(s[d*nv:][:nv], ds))
		scaleMul(ds, ds, f.one, decay)
	}
	keys := f.reached(f.blocks)
	for i := range rows {
		addScaleMul(w.dend, f.row(keys, i), f.row(w.dcol, i), 1)
	}
	gemmSerial(false, true, 2*rows, nk, nv, 1, w.zo, nv, s, nv, 0, w.dfar, nk)
	gemmSerial(true, false, nk, nv, 2*rows, 1, f.far, nk, w.zo, nv, 1, w.ds, nv)
}

// pairs goes back through M and P: ddiag and dnear for the rows, drise and dcol
// for the columns.
func (a *kdaChunkGradArgs[T]) pairs(w *kdaBack[T]) {
	f, nk, nv, c := &w.f, a.DK, a.DV, w.f.c
	for b := f.blocks - 1; b >= 0; b-- {
		first := b * kdaBlock
		ef := w.ef[2*first*c:]
		gemmSerial(false, true, 2*kdaBlock, first+kdaBlock, nv, 1, w.zo[2*first*nv:], nv, w.vn, nv, 0, ef, c)
		f.maskDiagonal(w.ef, b)
		for i := first; i < first+kdaBlock; i++ {
			at := (2*i+1)*c + i
			w.self[i], w.ef[at] = w.ef[at], 0
		}
		dnear := w.dnear[2*first*nk:][:2*kdaBlock*nk]
		if b == 0 {
			clear(dnear)
		} else {
			for i := range first {
				row := f.row(w.dcol, i)
				scaleMul(row, row, f.row(f.whole, b), 1)
			}
			gemmSerial(true, false, first, nk, 2*kdaBlock, 1, ef, c, f.near[2*first*nk:], nk, 1, w.dcol, nk)
			gemmSerial(false, false, 2*kdaBlock, nk, first, 1, ef, c, f.reached(b), nk, 0, dnear, nk)
		}
		gemmSerial(false, false, 2*kdaBlock, nk, kdaBlock, 1, ef[first:], c, f.risen[first*nk:], nk, 0, w.ddiag[2*first*nk:], nk)
		gemmSerial(true, false, kdaBlock, nk, 2*kdaBlock, 1, ef[first:], c, f.diag[2*first*nk:], nk, 0, w.drise[first*nk:], nk)
	}
}

// operands gathers the gradients of the raw rows, writes dg, and writes dq and
// dk or adds to them.
func (a *kdaChunkGradArgs[T]) operands(w *kdaBack[T], h, hv, t int, add bool) {
	f := &w.f
	for i := range f.rows() {
		b := i / kdaBlock
		alpha, entry, fall := f.row(f.alpha, b*kdaBlock), f.row(f.entry, b), f.row(f.fall, i)
		for r := 2 * i; r < 2*i+2; r++ {
			diag, near := f.row(w.ddiag, r), f.row(w.dnear, r)
			addScaleMul(near, entry, f.row(w.dfar, r), 1)
			addScaleMul(diag, alpha, near, 1)
			scaleMul(diag, diag, fall, 1)
		}
		col := f.row(w.dcol, i)
		scaleMul(col, col, f.row(f.tail, i), 1)
		addScaleMul(col, f.row(f.rise, i), f.row(w.drise, i), 1)
	}
	for b := range f.blocks {
		f.eachSteep(b, w.addSteep)
	}
	scale, nk := a.scale(), a.DK
	for i := f.n - 1; i >= 0; i-- {
		k, q := f.row(f.raw, 2*i), f.row(f.raw, 2*i+1)
		dk, dq, col := f.row(w.ddiag, 2*i), f.row(w.ddiag, 2*i+1), f.row(w.dcol, i)
		addScaleMul(w.dend, q, dq, 1)
		addScaleMul(w.dend, k, dk, 1)
		addScaleMul(w.dend, k, col, -1)
		copy(f.row(a.grad.G, (t+i)*a.HV+hv), w.dend)

		outQ, outK := a.grad.Q[((t+i)*a.H+h)*nk:][:nk], a.grad.K[((t+i)*a.H+h)*nk:][:nk]
		scaleMulAdd(dq, dq, f.one, scale, k, scale*w.self[i])
		scaleMulAdd(dk, dk, f.one, 1, q, w.self[i])
		if add {
			addScaled(outQ, outQ, dq, 1)
			addScaled(outK, outK, dk, 1)
		} else {
			copy(outQ, dq)
			copy(outK, dk)
		}
		addScaled(outK, outK, col, 1)
	}
}

// addSteep adds the terms of element (j, d) that the matrix products leave out.
func (w *kdaBack[T]) addSteep(j, d int) {
	f := &w.f
	nk, c := f.nk, f.c
	k, r, sum := f.raw[2*j*nk+d], T(1), T(0)
	for i := j + 1; i < (j/kdaBlock+1)*kdaBlock && r != 0; i++ {
		r *= f.alpha[i*nk+d]
		e, o := w.ef[2*i*c+j], w.ef[(2*i+1)*c+j]
		w.ddiag[2*i*nk+d] += e * k * r
		w.ddiag[(2*i+1)*nk+d] += o * k * r
		sum += (e*f.raw[2*i*nk+d] + o*f.raw[(2*i+1)*nk+d]) * r
	}
	w.dcol[j*nk+d] += sum
}
