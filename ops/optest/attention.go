package optest

import "math"

// Attention describes a dense attention: q [B,Lq,Hq,D], k [B,Lk,Hkv,D],
// v [B,Lk,Hkv,Dv], out [B,Lq,Hq,Dv], lse [B,Hq,Lq] (natural log).
//
//	s_j = softcap(scale q.k_j)   p_j = exp(s_j) / (sum exp(s) + exp(sink))   out = sum p_j v_j
//
// over the keys j that query i sees, with query head h reading kv head h/G.
// lse is the logarithm of the denominator, sink included. A query that sees no
// key gives out 0 and lse -Inf, whatever the sink, and no gradient.
type Attention struct {
	B, Lq, Lk, Hq, Hkv, D, Dv int

	Scale   float64   // 0: 1/sqrt(D)
	Causal  bool      // key j is seen when j <= i + (length - Lq): bottom-right
	Window  int       // if > 0, key j is seen when j > i + (length - Lq) - Window
	Softcap float64   // if > 0, s = cap tanh(s / cap)
	Sinks   []float64 // [Hq] or nil
	KVLen   []int32   // [B] lengths in place of Lk, or nil
	Mask    []bool    // true keeps; or nil
	// MaskShape is [B,Lk], [B, Lq or 1, Lk] or [B, Hq or 1, Lq or 1, Lk]; a
	// leading 1 in place of B is a mask for every sequence.
	MaskShape []int
}

func (a Attention) scale() float64 {
	if a.Scale != 0 {
		return a.Scale
	}
	return 1 / math.Sqrt(float64(a.D))
}

// kept reads the mask at (b, h, i, j).
func (a Attention) kept(b, h, i, j int) bool {
	if a.Mask == nil {
		return true
	}
	index := []int{b, h, i, j}
	switch len(a.MaskShape) {
	case 2:
		index = []int{b, j}
	case 3:
		index = []int{b, i, j}
	}
	offset := 0
	for d, size := range a.MaskShape {
		offset *= size
		if size > 1 {
			offset += index[d]
		}
	}
	return a.Mask[offset]
}

// visible lists the keys that query i of head h in sequence b sees.
func (a Attention) visible(b, h, i int) []int {
	length := a.Lk
	if a.KVLen != nil {
		length = int(a.KVLen[b])
	}
	at := i + length - a.Lq
	var keys []int
	for j := range length {
		late := a.Causal && j > at
		early := a.Window > 0 && j <= at-a.Window
		if !late && !early && a.kept(b, h, i, j) {
			keys = append(keys, j)
		}
	}
	return keys
}

// row is one query of one head with its materialised softmax.
type row struct {
	keys  []int
	q     int   // offset of the query
	k, v  []int // offsets of the seen keys and values
	out   int   // offset of the output
	score []float64
	p     []float64
	sink  []float64 // the share of the sink, if there is one
	lse   float64
	slope []float64 // d score / d (scale q.k): 1 without a softcap
}

func (a Attention) row(q, k []float64, b, h, i int) row {
	group := a.Hq / a.Hkv
	r := row{keys: a.visible(b, h, i), q: ((b*a.Lq+i)*a.Hq + h) * a.D, out: ((b*a.Lq+i)*a.Hq + h) * a.Dv}
	for _, j := range r.keys {
		at := (b*a.Lk+j)*a.Hkv + h/group
		r.k = append(r.k, at*a.D)
		r.v = append(r.v, at*a.Dv)
		dot := 0.0
		for d := range a.D {
			dot += q[r.q+d] * k[at*a.D+d]
		}
		s, slope := a.scale()*dot, 1.0
		if a.Softcap > 0 {
			t := math.Tanh(s / a.Softcap)
			s, slope = a.Softcap*t, 1-t*t
		}
		r.score = append(r.score, s)
		r.slope = append(r.slope, slope)
	}
	terms := append([]float64(nil), r.score...)
	if a.Sinks != nil && len(r.keys) > 0 {
		terms = append(terms, a.Sinks[h])
	}
	r.p, r.lse = Softmax(terms)
	r.sink = r.p[len(r.keys):]
	r.p = r.p[:len(r.keys)]
	return r
}

func (a Attention) each(q, k []float64, do func(r row, h, at int)) {
	for b := range a.B {
		for h := range a.Hq {
			for i := range a.Lq {
				do(a.row(q, k, b, h, i), h, (b*a.Hq+h)*a.Lq+i)
			}
		}
	}
}

// Forward returns out and lse.
func (a Attention) Forward(q, k, v []float64) (out, lse []float64) {
	out, lse = make([]float64, a.B*a.Lq*a.Hq*a.Dv), make([]float64, a.B*a.Hq*a.Lq)
	a.each(q, k, func(r row, _, at int) {
		lse[at] = r.lse
		for n, p := range r.p {
			for d := range a.Dv {
				out[r.out+d] += p * v[r.v[n]+d]
			}
		}
	})
	return out, lse
}

// Backward returns the gradients of q, k, v and the sinks (nil without sinks)
// for the gradients of out and lse; dlse may be nil. It contracts with the
// Jacobian of the softmax of each row, dp_i/ds_j = p_i ([i=j] - p_j), the sink
// being one more element of the row whose value is 0, and dlse/ds_j = p_j.
func (a Attention) Backward(q, k, v, dout, dlse []float64) (dq, dk, dv, dsinks []float64) {
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	if a.Sinks != nil {
		dsinks = make([]float64, a.Hq)
	}
	a.each(q, k, func(r row, h, at int) {
		if len(r.keys) == 0 {
			return
		}
		dp := make([]float64, len(r.p))
		mean := 0.0
		for n, p := range r.p {
			for d := range a.Dv {
				dp[n] += dout[r.out+d] * v[r.v[n]+d]
				dv[r.v[n]+d] += p * dout[r.out+d]
			}
			mean += p * dp[n]
		}
		into := 0.0
		if dlse != nil {
			into = dlse[at]
		}
		for _, share := range r.sink {
			dsinks[h] += share * (into - mean)
		}
		for n, p := range r.p {
			ds := p * (dp[n] - mean + into) * r.slope[n] * a.scale()
			for d := range a.D {
				dq[r.q+d] += ds * k[r.k[n]+d]
				dk[r.k[n]+d] += ds * q[r.q+d]
			}
		}
	})
	return dq, dk, dv, dsinks
}
