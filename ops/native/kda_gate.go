// What turns the projections of KDA into its decay and its write strength.

package native

import "math"

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
// aLog has one value a head, dtBias one a channel (H K of them). It is
// evaluated in float64: the small decays of a long memory keep their digits.
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
	for h := range a.heads {
		rate, bias := a.head(h)
		for t := i * gateRows; t < min((i+1)*gateRows, a.tokens); t++ {
			z, g := a.z[(t*a.heads+h)*a.dk:][:a.dk], a.g[(t*a.heads+h)*a.dk:][:a.dk]
			for d, v := range z {
				x := float64(v)
				if bias != nil {
					x += float64(bias[d])
				}
				if a.bound == 0 {
					g[d] = T(-rate * softplus(x))
				} else {
					g[d] = T(a.bound * sigmoid(rate*x))
				}
			}
		}
	}
}

// softplus is log(1 + exp x) without overflow and with the tail of exp x.
func softplus(x float64) float64 {
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
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
	for h := range a.heads {
		rate, bias := a.head(h)
		dDt := a.dDt[(i*a.heads+h)*a.dk:][:a.dk]
		clear(dDt)
		sumA := 0.0
		for t := i * gateRows; t < min((i+1)*gateRows, a.tokens); t++ {
			at := (t*a.heads + h) * a.dk
			z, dg, dz := a.z[at:][:a.dk], a.dg[at:][:a.dk], a.dz[at:][:a.dk]
			for d, v := range z {
				x := float64(v)
				if bias != nil {
					x += float64(bias[d])
				}
				var byX float64
				if a.bound == 0 {
					byX = -rate * sigmoid(x) * float64(dg[d])
					sumA -= float64(dg[d]) * rate * softplus(x)
				} else {
					s := sigmoid(rate * x)
					byX = a.bound * s * (1 - s) * rate * float64(dg[d])
					sumA += byX * x
				}
				dz[d] = T(byX)
				dDt[d] += T(byX)
			}
		}
		a.dALog[i*a.heads+h] = T(sumA)
	}
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
		s := sigmoid(a.b[j])
		if a.dbeta == nil {
			a.out[j] = T(a.c) * s
		} else {
			a.out[j] = a.dbeta[j] * T(a.c) * s * (1 - s)
		}
	}
}
