package optest

import "math"

// MergeStates joins attentions over disjoint sets of keys into the attention
// over all of them: with w_s = exp(lse_s) / sum(exp(lse)), out = sum w_s out_s
// and lse = log(sum(exp(lse))). State s has outs[s] [rows, Dv] and lses[s]
// [rows] in the same order. A state with lse -Inf takes no part, whatever its
// out holds; a row without any other gives 0 and -Inf.
func MergeStates(outs, lses [][]float64, dv int) (out, lse []float64) {
	out, lse = make([]float64, len(outs[0])), make([]float64, len(lses[0]))
	for r := range lse {
		var terms []float64
		for _, l := range lses {
			terms = append(terms, l[r])
		}
		var w []float64
		w, lse[r] = Softmax(terms)
		for s, l := range terms {
			if math.IsInf(l, -1) {
				continue
			}
			for d := range dv {
				out[r*dv+d] += w[s] * outs[s][r*dv+d]
			}
		}
	}
	return out, lse
}

// MergeStatesGrad returns the gradients of every state. With w as above,
// dout_s = w_s dout and dlse_s = w_s (dlse + dout.(out_s - out)), since
// dw_s/dlse_t = w_s ([s=t] - w_t).
func MergeStatesGrad(outs, lses [][]float64, dv int, dout, dlse []float64) (douts, dlses [][]float64) {
	out, lse := MergeStates(outs, lses, dv)
	for s := range outs {
		do, dl := make([]float64, len(out)), make([]float64, len(lse))
		for r := range lse {
			if math.IsInf(lses[s][r], -1) {
				continue
			}
			w := math.Exp(lses[s][r] - lse[r])
			dl[r] = w * dlse[r]
			for d := range dv {
				at := r*dv + d
				do[at] = w * dout[at]
				dl[r] += w * dout[at] * (outs[s][at] - out[at])
			}
		}
		douts, dlses = append(douts, do), append(dlses, dl)
	}
	return douts, dlses
}
