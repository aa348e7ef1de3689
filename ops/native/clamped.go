// The gated unit of GPT-OSS, which is clamped, and the biases of its experts.

package native

// Clamp are the constants of a clamped unit.
type Clamp struct{ Alpha, Limit float64 }

// ClampedGLU computes, with g = min(gate, Limit) and u = up within -Limit..Limit,
//
//	y[n] = (u + 1) g / (1 + e^(-Alpha g))
//
// y may be gate or up.
func ClampedGLU[T Float](y, gate, up []T, c Clamp) {
	pick[clampedArgs[T]](clamped32, clamped64).launch(ceilDiv(len(y), unitElements),
		clampedArgs[T]{gluArgs[T]{y: y, gate: gate, up: up, n: len(y)}, T(c.Alpha), T(c.Limit)})
}

// ClampedGLUGrad computes, with s = 1 / (1 + e^(-Alpha g)),
//
//	dgate[n] = dy (u + 1) s (1 + Alpha g (1 - s))   where gate <= Limit, else 0
//	dup[n]   = dy g s                               where -Limit <= up <= Limit, else 0
//
// dgate or dup may be dy, gate or up.
func ClampedGLUGrad[T Float](dgate, dup, dy, gate, up []T, c Clamp) {
	pick[clampedArgs[T]](clampedGrad32, clampedGrad64).launch(ceilDiv(len(dy), unitElements),
		clampedArgs[T]{gluArgs[T]{y: dy, gate: gate, up: up, dgate: dgate, dup: dup, n: len(dy)}, T(c.Alpha), T(c.Limit)})
}

type clampedArgs[T Float] struct {
	gluArgs[T]
	alpha, limit T
}

var (
	clamped32     = newKernel(clampedUnit[float32])
	clamped64     = newKernel(clampedUnit[float64])
	clampedGrad32 = newKernel(clampedGradUnit[float32])
	clampedGrad64 = newKernel(clampedGradUnit[float64])
)

func clampedUnit[T Float](a *clampedArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	for i := from; i < to; i++ {
		g, u := min(a.gate[i], a.limit), max(min(a.up[i], a.limit), -a.limit) // NaN stays NaN
		a.y[i] = (u + 1) * g / (1 + expOf(-a.alpha*g))
	}
}

func clampedGradUnit[T Float](a *clampedArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	for i := from; i < to; i++ {
		gate, up, dy := a.gate[i], a.up[i], a.y[i]
		g, u := min(gate, a.limit), max(min(up, a.limit), -a.limit)
		s := 1 / (1 + expOf(-a.alpha*g))
		dgate, dup := dy*(u+1)*s*(1+a.alpha*g*(1-s)), dy*g*s
		if gate > a.limit {
			dgate = 0
		}
		if up > a.limit || up < -a.limit {
			dup = 0
		}
		a.dgate[i], a.dup[i] = dgate, dup
	}
}

// Clamped is what makes SwiGLU experts those of GPT-OSS: biases behind the three
// products, gate and up [E,F], down [E,D], and a clamped unit.
type Clamped[T Float] struct {
	Clamp
	Gate, Up, Down []T
}

// unit makes hidden rows of the products with gate and up, to which it adds their
// biases; h may be a. Without it that is SwiGLU.
func (u *Clamped[T]) unit(h, a, b []T, offsets []int32, f int) {
	if u == nil {
		SwiGLU(h, a, b, len(h))
		return
	}
	addExpertBias(a, u.Gate, offsets, f)
	addExpertBias(b, u.Up, offsets, f)
	ClampedGLU(h, a, b, u.Clamp)
}

// unitGrad is the gradient of what is behind the biases.
func (u *Clamped[T]) unitGrad(da, db, dh, a, b []T) {
	if u == nil {
		SwiGLUGrad(da, db, dh, a, b, len(dh))
		return
	}
	ClampedGLUGrad(da, db, dh, a, b, u.Clamp)
}

// of are the biases of one expert, nil without.
func (u *Clamped[T]) of(e, f, d int) (gate, up, down []T) {
	if u == nil {
		return nil, nil, nil
	}
	return u.Gate[e*f:][:f], u.Up[e*f:][:f], u.Down[e*d:][:d]
}

type expertBiasArgs[T Float] struct {
	rows, bias []T
	offsets    []int32
	n, cols    int
}

var (
	expertBias32     = newKernel(expertBiasUnit[float32])
	expertBias64     = newKernel(expertBiasUnit[float64])
	expertBiasGrad32 = newKernel(expertBiasGradUnit[float32])
	expertBiasGrad64 = newKernel(expertBiasGradUnit[float64])
)

// addExpertBias adds bias[e] to the rows [M,N] of expert e; expertBiasGrad writes
// the sums of their gradients to bias.
func addExpertBias[T Float](rows, bias []T, offsets []int32, n int) {
	launchExpertBias(pick[expertBiasArgs[T]](expertBias32, expertBias64), rows, bias, offsets, n)
}

func expertBiasGrad[T Float](bias, rows []T, offsets []int32, n int) {
	launchExpertBias(pick[expertBiasArgs[T]](expertBiasGrad32, expertBiasGrad64), rows, bias, offsets, n)
}

func launchExpertBias[T Float](k *kernel[expertBiasArgs[T]], rows, bias []T, offsets []int32, n int) {
	cols := ceilDiv(n, groupedColumns)
	k.launch((len(offsets)-1)*cols, expertBiasArgs[T]{rows: rows, bias: bias, offsets: offsets, n: n, cols: cols})
}

// part is the part of a bias, and of the rows it goes to, that a unit works on.
func (a *expertBiasArgs[T]) part(unit int) (bias []T, from, to, at int) {
	e, at := unit/a.cols, unit%a.cols*groupedColumns
	return a.bias[e*a.n+at:][:min(groupedColumns, a.n-at)], int(a.offsets[e]), int(a.offsets[e+1]), at
}

func expertBiasUnit[T Float](a *expertBiasArgs[T], unit int) {
	bias, from, to, at := a.part(unit)
	for r := from; r < to; r++ {
		y := a.rows[r*a.n+at:][:len(bias)]
		for i, b := range bias {
			y[i] += b
		}
	}
}

func expertBiasGradUnit[T Float](a *expertBiasArgs[T], unit int) {
	bias, from, to, at := a.part(unit)
	sum := scratch64.take(len(bias))
	clear(sum)
	for r := from; r < to; r++ {
		for i, d := range a.rows[r*a.n+at:][:len(bias)] {
			sum[i] += float64(d)
		}
	}
	for i, s := range sum {
		bias[i] = T(s)
	}
	scratch64.give(sum)
}
