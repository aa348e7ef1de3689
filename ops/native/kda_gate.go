// What turns the projections of KDA into its decay and its write strength.

package native

import (
	"math"
	"unsafe"
)

// gateRows is how many tokens one unit of the gate takes: one partial sum of
// the gradients of its parameters.
const gateRows = 64

type kdaGateArgs[T Float] struct {
	g, z, aLog, dtBias []T
	dz, dg, dALog, dDt []T // dALog, dDt: partial sums, one row a unit
	tokens, heads, dk  int
	bound              float64
}

var (
	kdaGate32     = newKernel(kdaGateUnit[float32])
	kdaGate64     = newKernel(kdaGateUnit[float64])
	kdaGateGrad32 = newKernel(kdaGateGradUnit[float32])
	kdaGateGrad64 = newKernel(kdaGateGradUnit[float64])
)

// KDAGate writes the log-decay g [T,H,K] (natural logarithm, never above 0) of
// the pre-activations z [T,H,K]. With A = exp(aLog[h]) (aLog nil: 1) and
// x = z + dtBias[h,d] (dtBias nil: z):
//
//	bound = 0:  g = -A log(1 + exp x)        the softplus form
//	bound < 0:  g = bound sigmoid(A x)       the lower-bound form
//
// aLog has one value a head, dtBias one a channel (H K of them). A decay
// near 0, a long memory, keeps its digits down to the smallest normal number.
func KDAGate[T Float](g, z, aLog, dtBias []T, tokens, heads, dk int, bound float64) {
	units := ceilDiv(tokens, gateRows)
	pick[kdaGateArgs[T]](kdaGate32, kdaGate64).launch(units, kdaGateArgs[T]{
		g: g, z: z, aLog: aLog, dtBias: dtBias, tokens: tokens, heads: heads, dk: dk, bound: bound})
}

// head returns A and the channel biases (nil: none) of head h.
func (a *kdaGateArgs[T]) head(h int) (rate float64, bias []T) {
	rate = 1
	if a.aLog != nil {
		rate = math.Exp(float64(a.aLog[h]))
	}
	if a.dtBias != nil {
		bias = a.dtBias[h*a.dk:][:a.dk]
	}
	return rate, bias
}

func kdaGateUnit[T Float](a *kdaGateArgs[T], i int) {
	e := takeScratch[T](a.dk)
	for h := range a.heads {
		rate, bias := a.head(h)
		for t := i * gateRows; t < min((i+1)*gateRows, a.tokens); t++ {
			at := (t*a.heads + h) * a.dk
			g := a.g[at:][:a.dk]
			a.input(g, e, a.z[at:][:a.dk], bias, rate)
			for d, u := range g {
				if a.bound == 0 {
					g[d] = T(-rate) * softplus(u, e[d])
				} else {
					s, _ := sigmoids(e[d])
					g[d] = T(a.bound) * s
				}
			}
		}
	}
	giveScratch(e)
}

// input writes what the nonlinearity takes, x or A x, to u, and exp(-u) to t.
func (a *kdaGateArgs[T]) input(u, t, z, bias []T, rate float64) {
	if bias == nil {
		copy(u, z)
	} else {
		addScaled(u, z, bias, 1)
	}
	if a.bound != 0 && rate != 1 {
		for d := range u {
			u[d] *= T(rate)
		}
	}
	expNeg(t, u)
}

// expNeg writes exp(-x), from which both sides of a sigmoid follow without
// branches or cancellation.
func expNeg[T Float](t, x []T) {
	for i, v := range x {
		t[i] = -v
	}
	expSlice(t, t)
}

// sigmoids returns s = 1 / (1 + exp(-x)) and 1 - s for t = exp(-x).
func sigmoids[T Float](t T) (s, rest T) { return 1 / (1 + t), 1 / (1 + 1/t) }

// sigmoid is 1 / (1 + exp(-x)).
func sigmoid[T Float](x T) T { return 1 / (1 + expOf(-x)) }

// softplus is log(1 + exp x) = max(x, 0) + log(1 + e) for t = exp(-x), with
// e = exp(-|x|) and
//
//	log(1 + e) = 2 (z + z^3/3 + z^5/5 + ...),  z = e / (2 + e) <= 1/3
func softplus[T Float](x, t T) T {
	e := min(t, 1/t)
	if unsafe.Sizeof(x) == 8 {
		return max(x, 0) + T(math.Log1p(float64(e)))
	}
	z := e / (2 + e)
	y := z * z
	const c3, c5, c7, c9, c11, c13 = 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13
	return max(x, 0) + 2*z*(1+y*(c3+y*(c5+y*(c7+y*(c9+y*(c11+y*c13))))))
}

// KDAGateGrad writes dz [T,H,K], daLog [H] and ddtBias [H,K] (the last two nil
// where not wanted) from dg and the inputs of KDAGate:
//
//	bound = 0:  dz = -A sigmoid(x) dg,                daLog = sum dg g
//	bound < 0:  dz = bound s (1 - s) A dg, s = sigmoid(A x),  daLog = sum dz x
//
// and ddtBias = sum over tokens of dz.
func KDAGateGrad[T Float](dz, daLog, ddtBias, dg, z, aLog, dtBias []T, tokens, heads, dk int, bound float64) {
	units := ceilDiv(tokens, gateRows)
	partA, partDt := takeScratch[T](units*heads), takeScratch[T](units*heads*dk)
	pick[kdaGateArgs[T]](kdaGateGrad32, kdaGateGrad64).launch(units, kdaGateArgs[T]{
		dz: dz, dALog: partA, dDt: partDt, dg: dg, z: z, aLog: aLog, dtBias: dtBias,
		tokens: tokens, heads: heads, dk: dk, bound: bound})
	addRows(daLog, partA, units, heads)
	addRows(ddtBias, partDt, units, heads*dk)
	giveScratch(partA)
	giveScratch(partDt)
}

// addRows writes the sum of the rows of part [rows,n], in order, unless out is nil.
func addRows[T Float](out, part []T, rows, n int) {
	if out == nil {
		return
	}
	clear(out[:n])
	for r := range rows {
		for j, v := range part[r*n:][:n] {
			out[j] += v
		}
	}
}

func kdaGateGradUnit[T Float](a *kdaGateArgs[T], i int) {
	buf := takeScratch[T](2 * a.dk)
	u, e := buf[:a.dk], buf[a.dk:]
	for h := range a.heads {
		rate, bias := a.head(h)
		dDt := a.dDt[(i*a.heads+h)*a.dk:][:a.dk]
		clear(dDt)
		sumA := 0.0
		for t := i * gateRows; t < min((i+1)*gateRows, a.tokens); t++ {
			at := (t*a.heads + h) * a.dk
			dg, dz := a.dg[at:][:a.dk], a.dz[at:][:a.dk]
			a.input(u, e, a.z[at:][:a.dk], bias, rate)
			for d, x := range u {
				s, rest := sigmoids(e[d])
				if a.bound == 0 {
					dz[d] = T(-rate) * s * dg[d]
					sumA -= float64(dg[d]) * float64(softplus(x, e[d]))
				} else {
					by := T(a.bound) * s * rest * dg[d]
					dz[d] = by * T(rate)
					sumA += float64(by) * float64(x)
				}
			}
			addScaled(dDt, dDt, dz, 1)
		}
		if a.bound == 0 {
			sumA *= rate
		}
		a.dALog[i*a.heads+h] = T(sumA)
	}
	giveScratch(buf)
}

// betaRows is how many elements one unit of the write strength takes.
const betaRows = 4096

type kdaBetaArgs[T Float] struct {
	out, b, dbeta []T
	n             int
	c             float64
}

var (
	kdaBeta32 = newKernel(kdaBetaUnit[float32])
	kdaBeta64 = newKernel(kdaBetaUnit[float64])
)

// KDABeta writes the write strength beta = c sigmoid(b) of n logits: c is 1, or
// 2 where the transition may have negative eigenvalues.
func KDABeta[T Float](beta, b []T, n int, c float64) {
	kdaBeta(kdaBetaArgs[T]{out: beta, b: b, n: n, c: c})
}

// KDABetaGrad writes db = dbeta c sigmoid(b) (1 - sigmoid(b)).
func KDABetaGrad[T Float](db, dbeta, b []T, n int, c float64) {
	kdaBeta(kdaBetaArgs[T]{out: db, dbeta: dbeta, b: b, n: n, c: c})
}

func kdaBeta[T Float](args kdaBetaArgs[T]) {
	units := ceilDiv(args.n, betaRows)
	pick[kdaBetaArgs[T]](kdaBeta32, kdaBeta64).launch(units, args)
}

func kdaBetaUnit[T Float](a *kdaBetaArgs[T], i int) {
	for j := i * betaRows; j < min((i+1)*betaRows, a.n); j++ {
		s, rest := sigmoids(expOf(-a.b[j]))
		if a.dbeta == nil {
			a.out[j] = T(a.c) * s
		} else {
			a.out[j] = a.dbeta[j] * T(a.c) * s * rest
		}
	}
}
