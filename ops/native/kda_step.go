// KDA for one new token of each request, on a pool of states.

package native

// KDAStep holds the operands of one decoded token for each of Rows requests.
type KDAStep[T Float] struct {
	Q, K                []T     // [R,H,K]
	V                   []T     // [R,HV,V]
	G                   []T     // [R,HV,K]
	Beta                []T     // [R,HV]
	State               []T     // [slots,HV,K,V], or [slots,HV,V,K] if VFirst; updated in place
	Slots               []int32 // [R] the state of each row, no slot twice; negative: skip the row; nil: row r has slot r
	Rows, H, HV, DK, DV int
	Scale               float64 // 0: K^-1/2
	VFirst              bool
}

// kdaStepTile is how many columns of a state one unit takes: K of them come
// from memory once and stay in the first level cache until they are written.
const kdaStepTile = 64

type kdaStepArgs[T Float] struct {
	KDAStep[T]
	o     []T
	tiles int
}

var (
	kdaStep32 = newKernel(kdaStepUnit[float32])
	kdaStep64 = newKernel(kdaStepUnit[float64])
)

// KDADecode advances the state of every row by one token and writes o [R,HV,V].
// It moves each element of a state from memory once and back once. A row with
// a negative slot touches no state and gets zeros; slot 0 is a slot like others.
func KDADecode[T Float](o []T, s KDAStep[T]) {
	tiles := ceilDiv(s.DV, kdaStepTile)
	pick[kdaStepArgs[T]](kdaStep32, kdaStep64).launch(s.Rows*s.HV*tiles, kdaStepArgs[T]{KDAStep: s, o: o, tiles: tiles})
}

func kdaStepUnit[T Float](a *kdaStepArgs[T], i int) {
	v0 := i % a.tiles * kdaStepTile
	hv := i / a.tiles % a.HV
	r := i / a.tiles / a.HV
	n := min(kdaStepTile, a.DV-v0)
	o := a.o[(r*a.HV+hv)*a.DV+v0:][:n]
	slot := r
	if a.Slots != nil {
		slot = int(a.Slots[r])
	}
	if slot < 0 {
		clear(o)
		return
	}
	k := KDA[T]{DK: a.DK, Scale: a.Scale}
	at := r*a.H + hv*a.H/a.HV
	size := a.DK * a.DV
	kdaStep(o, a.State[(slot*a.HV+hv)*size:][:size], a.Q[at*a.DK:][:a.DK], a.K[at*a.DK:][:a.DK], a.V[(r*a.HV+hv)*a.DV+v0:][:n],
		a.G[(r*a.HV+hv)*a.DK:][:a.DK], a.Beta[r*a.HV+hv], k.scale(), v0, a.DV, a.VFirst)
}

// kdaStep advances columns [v0,v0+len(v)) of the state s of one head by a token:
//
//	p = S'(alpha k),  r = S'(alpha q),  delta = beta (v - p)
//	o = scale (r + delta (k.q)),  S <- diag(alpha) S + k delta'
func kdaStep[T Float](o, s, q, k, v, g []T, beta, scale T, v0, dv int, vFirst bool) {
	nk, n := len(k), len(v)
	buf := takeScratch[T](5*nk + 5*n)
	alpha, kq, pr, one := buf[:nk], buf[nk:3*nk], buf[3*nk:][:2*n], buf[3*nk+2*n:][:n]
	expSlice(alpha, g)
	scaleMul(kq[:nk], k, alpha, 1)
	scaleMul(kq[nk:], q, alpha, 1)
	p, r, delta := pr[:n], pr[n:], pr[:n]
	if vFirst {
		both := buf[3*nk+3*n:][:2*nk+2*n] // k and q, then p and r, in pairs
		for d := range nk {
			both[2*d], both[2*d+1] = kq[d], kq[nk+d]
		}
		pairs := both[2*nk:]
		gemmSerial(false, false, n, 2, nk, 1, s[v0*nk:], nk, both, 2, 0, pairs, 2)
		for j := range n {
			p[j], r[j] = pairs[2*j], pairs[2*j+1]
		}
	} else {
		gemmSerial(false, false, 2, n, nk, 1, kq, nk, s[v0:], dv, 0, pr, n)
	}
	same := T(sumMul(k, q))
	for j, x := range v {
		delta[j] = beta * (x - p[j])
		o[j] = scale * (r[j] + delta[j]*same)
	}
	if vFirst {
		for j, d := range delta {
			row := s[(v0+j)*nk:][:nk]
			scaleMulAdd(row, row, alpha, 1, k, d)
		}
	} else {
		for j := range one {
			one[j] = 1
		}
		for d, decay := range alpha {
			row := s[d*dv+v0:][:n]
			scaleMulAdd(row, row, one, decay, delta, k[d])
		}
	}
	giveScratch(buf)
}
