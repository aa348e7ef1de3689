package optest

// Ragged is attention over packed requests that do not see each other:
// q [T,Hq,D], k [S,Hkv,D], v [S,Hkv,Dv], out [T,Hq,Dv], lse [Hq,T]. Request r
// owns queries QO[r]..QO[r+1] and keys KV[r]..KV[r+1]; either may be empty.
// Attention gives heads, widths and options; its B, Lq, Lk, KVLen and masks are
// not used.
type Ragged struct {
	Attention
	QO, KV []int32
}

// request returns the dense attention of request r and its part of a packed
// tensor with the given width of a token.
func (a Ragged) request(r int) (dense Attention, q, kv func(x []float64, width int) []float64) {
	part := func(indptr []int32) func([]float64, int) []float64 {
		return func(x []float64, width int) []float64 {
			return x[int(indptr[r])*width : int(indptr[r+1])*width]
		}
	}
	dense = a.Attention
	dense.B, dense.KVLen, dense.Mask, dense.MaskShape = 1, nil, nil, nil
	dense.Lq, dense.Lk = int(a.QO[r+1]-a.QO[r]), int(a.KV[r+1]-a.KV[r])
	return dense, part(a.QO), part(a.KV)
}

// Forward runs the dense oracle on each request alone.
func (a Ragged) Forward(q, k, v []float64) (out, lse []float64) {
	total := int(a.QO[len(a.QO)-1])
	lse = make([]float64, a.Hq*total)
	for r := range len(a.QO) - 1 {
		dense, qs, kvs := a.request(r)
		o, l := dense.Forward(qs(q, a.Hq*a.D), kvs(k, a.Hkv*a.D), kvs(v, a.Hkv*a.Dv))
		out = append(out, o...)
		for h := range a.Hq {
			copy(lse[h*total+int(a.QO[r]):], l[h*dense.Lq:(h+1)*dense.Lq])
		}
	}
	return out, lse
}

// Backward runs the dense gradient on each request alone; dlse [Hq,T] may be nil.
func (a Ragged) Backward(q, k, v, dout, dlse []float64) (dq, dk, dv, dsinks []float64) {
	total := int(a.QO[len(a.QO)-1])
	if a.Sinks != nil {
		dsinks = make([]float64, a.Hq)
	}
	for r := range len(a.QO) - 1 {
		dense, qs, kvs := a.request(r)
		var dl []float64
		if dlse != nil {
			for h := range a.Hq {
				dl = append(dl, dlse[h*total+int(a.QO[r]):h*total+int(a.QO[r+1])]...)
			}
		}
		gq, gk, gv, gs := dense.Backward(qs(q, a.Hq*a.D), kvs(k, a.Hkv*a.D), kvs(v, a.Hkv*a.Dv), qs(dout, a.Hq*a.Dv), dl)
		dq, dk, dv = append(dq, gq...), append(dk, gk...), append(dv, gv...)
		for h := range gs {
			dsinks[h] += gs[h]
		}
	}
	return dq, dk, dv, dsinks
}
