package optest

import "math"

// MLA is attention over a latent cache (DeepSeek-V2, arXiv:2405.04434). A
// cached token is its normed latent c [R] and one key part p [P] shared by all
// heads; head h has the rows Wk_h [N,R] and Wv_h [V,R] of w [H*(N+V), R]:
//
//	k_h = [Wk_h c | p]     v_h = Wv_h c     out = attention(q, k, v)
//
// with q [B,Lq,H,N+P] as [N | P] for each head, c [B,Lk,R], p [B,Lk,P], out
// [B,Lq,H,V], causal bottom-right, scale (N+P)^-1/2. P turned by rotary, if the
// model does so, comes in turned; P may be 0.
type MLA struct {
	B, Lq, Lk, H int
	N, P, R, V   int
	Causal       bool
}

func (a MLA) dense() Attention {
	return Attention{B: a.B, Lq: a.Lq, Lk: a.Lk, Hq: a.H, Hkv: a.H, D: a.N + a.P, Dv: a.V, Causal: a.Causal}
}

// expand returns the keys and values of all heads.
func (a MLA) expand(c, p, w []float64) (k, v []float64) {
	for t := range a.B * a.Lk {
		both := Linear(c[t*a.R:(t+1)*a.R], w, nil, 1, a.H*(a.N+a.V), a.R)
		for h := range a.H {
			head := both[h*(a.N+a.V) : (h+1)*(a.N+a.V)]
			k = append(append(k, head[:a.N]...), p[t*a.P:(t+1)*a.P]...)
			v = append(v, head[a.N:]...)
		}
	}
	return k, v
}

// Forward expands keys and values and attends densely; lse is [B,H,Lq].
func (a MLA) Forward(q, c, p, w []float64) (out, lse []float64) {
	k, v := a.expand(c, p, w)
	return a.dense().Forward(q, k, v)
}

// Absorbed gives the same by never forming keys or values: the score is
// (Wk_h^T q_N).c + q_P.p, and the output Wv_h (sum p_j c_j). What a decode over
// the latent cache computes.
func (a MLA) Absorbed(q, c, p, w []float64) (out, lse []float64) {
	lse = make([]float64, a.B*a.H*a.Lq)
	out = make([]float64, a.B*a.Lq*a.H*a.V)
	for b := range a.B {
		for h := range a.H {
			wk := w[h*(a.N+a.V)*a.R:][:a.N*a.R]
			wv := w[(h*(a.N+a.V)+a.N)*a.R:][:a.V*a.R]
			for i := range a.Lq {
				at := (b*a.Lq+i)*a.H + h
				qh := q[at*(a.N+a.P):][:a.N+a.P]
				latent := MatMul(qh[:a.N], wk, 1, a.R, a.N, false, false)
				var scores []float64
				for j := range a.Lk {
					if a.Causal && j > i+a.Lk-a.Lq {
						break
					}
					t := b*a.Lk + j
					s := MatMul(latent, c[t*a.R:(t+1)*a.R], 1, 1, a.R, false, true)[0] +
						MatMul(qh[a.N:], p[t*a.P:(t+1)*a.P], 1, 1, a.P, false, true)[0]
					scores = append(scores, s/math.Sqrt(float64(a.N+a.P)))
				}
				var weights []float64
				weights, lse[(b*a.H+h)*a.Lq+i] = Softmax(scores)
				mean := MatMul(weights, c[b*a.Lk*a.R:], 1, a.R, len(weights), false, false)
				copy(out[at*a.V:], MatMul(mean, wv, 1, a.V, a.R, false, true))
			}
		}
	}
	return out, lse
}

// Backward returns the gradients of q, c, p and w through the expanded form;
// dlse may be nil.
func (a MLA) Backward(q, c, p, w, dout, dlse []float64) (dq, dc, dp, dw []float64) {
	k, v := a.expand(c, p, w)
	dq, dk, dv, _ := a.dense().Backward(q, k, v, dout, dlse)
	dp = make([]float64, len(p))
	width := a.N + a.V
	both := make([]float64, a.B*a.Lk*a.H*width)
	for t := range a.B * a.Lk {
		for h := range a.H {
			at := t*a.H + h
			copy(both[at*width:], dk[at*(a.N+a.P):][:a.N])
			copy(both[at*width+a.N:], dv[at*a.V:][:a.V])
			for j := range a.P {
				dp[t*a.P+j] += dk[at*(a.N+a.P)+a.N+j]
			}
		}
	}
	dc, dw, _ = LinearGrad(both, c, w, a.B*a.Lk, a.H*width, a.R)
	return dq, dc, dp, dw
}
