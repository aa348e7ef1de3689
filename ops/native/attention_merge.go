// MergeStates: attention over two sets of keys from the attention over each.

package native

import "math"

// AttentionState is the result of attention over some of the keys:
// out [B,L,H,Dv] and lse [B,H,L] (packed: B 1, L the tokens).
type AttentionState[T Float] struct{ Out, LSE []T }

// MergeStates writes the attention over the keys of a and of c together, which
// must be disjoint: with w = exp(lse_a - lse), lse = log(exp(lse_a) + exp(lse_c)),
//
//	out = w out_a + (1 - w) out_c
//
// A state whose lse is -Inf takes no part, whatever its out holds; two of them
// give 0 and -Inf. Only one of the states may have counted the sinks. The
// result may be a or c.
//
// Source: Ye et al., cascade inference (FlashInfer, arXiv:2501.01005).
func MergeStates[T Float](to, a, c AttentionState[T], b, l, h, dv int) {
	m := mergeArgs[T]{to: to, a: a, c: c, rows: b * l * h, l: l, h: h, dv: dv}
	pick[mergeArgs[T]](merge32, merge64).launch(ceilDiv(m.rows, mergeRows), m)
}

// MergeStatesGrad writes the gradients of the two states from that of the
// merged one: dout_s = w_s dout, dlse_s = w_s (dlse + dout.(out_s - out)).
// dlse may be nil. A state that took no part gets zeros.
func MergeStatesGrad[T Float](da, dc, to, a, c AttentionState[T], dout, dlse []T, b, l, h, dv int) {
	m := mergeArgs[T]{to: to, a: a, c: c, da: da, dc: dc, dout: dout, dlse: dlse, rows: b * l * h, l: l, h: h, dv: dv}
	pick[mergeArgs[T]](mergeGrad32, mergeGrad64).launch(ceilDiv(m.rows, mergeRows), m)
}

const mergeRows = 64 // rows of a unit

var (
	merge32     = newKernel(mergeUnit[float32])
	merge64     = newKernel(mergeUnit[float64])
	mergeGrad32 = newKernel(mergeGradUnit[float32])
	mergeGrad64 = newKernel(mergeGradUnit[float64])
)

type mergeArgs[T Float] struct {
	to, a, c, da, dc AttentionState[T]
	dout, dlse       []T
	rows, l, h, dv   int
}

// lseOf returns where the lse of a row of out [B,L,H] lies in [B,H,L].
func (m *mergeArgs[T]) lseOf(row int) int {
	return (row/(m.l*m.h)*m.h+row%m.h)*m.l + row/m.h%m.l
}

func mergeUnit[T Float](m *mergeArgs[T], unit int) {
	for row := unit * mergeRows; row < min((unit+1)*mergeRows, m.rows); row++ {
		i := m.lseOf(row)
		lse, wa, wc := mergeWeights(m.a.LSE[i], m.c.LSE[i])
		at, end := row*m.dv, (row+1)*m.dv
		out, oa, oc := m.to.Out[at:end], m.a.Out[at:end], m.c.Out[at:end]
		m.to.LSE[i] = lse
		switch {
		case wa == 0 && wc == 0:
			clear(out)
		case wc == 0:
			copy(out, oa)
		case wa == 0:
			copy(out, oc)
		default:
			for j := range out {
				out[j] = wa*oa[j] + wc*oc[j]
			}
		}
	}
}

func mergeGradUnit[T Float](m *mergeArgs[T], unit int) {
	for row := unit * mergeRows; row < min((unit+1)*mergeRows, m.rows); row++ {
		i := m.lseOf(row)
		_, wa, wc := mergeWeights(m.a.LSE[i], m.c.LSE[i])
		m.state(m.da, m.a, row, i, wa)
		m.state(m.dc, m.c, row, i, wc)
	}
}

// state writes the gradient of a row of a state of share w.
func (m *mergeArgs[T]) state(grad, of AttentionState[T], row, i int, w T) {
	at, end := row*m.dv, (row+1)*m.dv
	d, x, out, g := grad.Out[at:end], of.Out[at:end], m.to.Out[at:end], m.dout[at:end]
	if w == 0 {
		clear(d)
		grad.LSE[i] = 0
		return
	}
	var sum T
	if len(m.dlse) > 0 {
		sum = m.dlse[i]
	}
	for j := range d {
		sum += g[j] * (x[j] - out[j])
		d[j] = w * g[j]
	}
	grad.LSE[i] = w * sum
}

// mergeWeights returns log(exp(a) + exp(c)) and the share of each.
func mergeWeights[T Float](a, c T) (lse, wa, wc T) {
	m := max(a, c)
	if math.IsInf(float64(m), -1) {
		return m, 0, 0
	}
	ea, ec := math.Exp(float64(a-m)), math.Exp(float64(c-m))
	return m + T(math.Log(ea+ec)), T(ea / (ea + ec)), T(ec / (ea + ec))
}
