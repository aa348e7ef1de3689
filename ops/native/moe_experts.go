// The feed-forward of a mixture of experts as a whole, with its gradient.

package native

// Experts is the geometry of a mixture of SwiGLU experts: tokens of D numbers,
// TopK of E experts each, hidden width F.
type Experts struct{ Tokens, TopK, E, D, F int }

var scratchChoices scratch[int32]

// choices are the choices of a call sorted by expert.
type choices struct {
	order, position, offsets, token []int32
	buf                             []int32
}

func (x Experts) sort(ids []int32) choices {
	m := x.Tokens * x.TopK
	buf := scratchChoices.take(3*m + x.E + 1)
	c := choices{order: buf[:m], position: buf[m : 2*m], token: buf[2*m : 3*m], offsets: buf[3*m:], buf: buf}
	SortByExpert(c.order, c.position, c.offsets, ids[:m], x.E)
	for i, choice := range c.order {
		c.token[i] = choice / int32(x.TopK)
	}
	return c
}

// in is the product that reads tokens, out the one that reads hidden rows.
func (x Experts) in(c choices) Grouped {
	return Grouped{Offsets: c.offsets, Rows: c.token, N: x.F, K: x.D}
}
func (x Experts) out(c choices) Grouped { return Grouped{Offsets: c.offsets, N: x.D, K: x.F} }

// ExpertsForward computes, for every token t,
//
//	y[t] = sum_c weights[t,c] down_e (silu(gate_e x[t]) up_e x[t]),  e = ids[t,c]
//
// with x, y [T,D], ids and weights [T,TopK], gate and up [E,F,D], down [E,D,F]; u
// not nil: with its biases and its unit.
func ExpertsForward[T Float](y, tokens, weights []T, ids []int32, gate, up, down []T, x Experts, u *Clamped[T]) {
	c, m := x.sort(ids), x.Tokens*x.TopK
	a, b, rows := takeScratch[T](m*x.F), takeScratch[T](m*x.F), takeScratch[T](m*x.D)
	GroupedLinear(a, tokens, gate, x.in(c))
	GroupedLinear(b, tokens, up, x.in(c))
	u.unit(a, a, b, c.offsets, x.F)
	GroupedLinear(rows, a, down, x.out(c))
	if u != nil {
		addExpertBias(rows, u.Down, c.offsets, x.D)
	}
	CombineExperts(y, rows, weights, c.position, x.Tokens, x.TopK, x.D)
	giveScratch(a)
	giveScratch(b)
	giveScratch(rows)
	scratchChoices.give(c.buf)
}

// ExpertsGrads are the gradients of the operands of ExpertsForward.
type ExpertsGrads[T Float] struct {
	Tokens, Weights, Gate, Up, Down []T
	GateBias, UpBias, DownBias      []T
}

// ExpertsGrad writes the gradients for dy [T,D]. It recomputes what the forward
// pass computed, so that nothing but the operands is kept between the two.
func ExpertsGrad[T Float](g ExpertsGrads[T], dy, tokens, weights []T, ids []int32, gate, up, down []T, x Experts, u *Clamped[T]) {
	c, m := x.sort(ids), x.Tokens*x.TopK
	a, b, h := takeScratch[T](m*x.F), takeScratch[T](m*x.F), takeScratch[T](m*x.F)
	rows, drows := takeScratch[T](m*x.D), takeScratch[T](m*x.D)
	GroupedLinear(a, tokens, gate, x.in(c))
	GroupedLinear(b, tokens, up, x.in(c))
	u.unit(h, a, b, c.offsets, x.F)
	GroupedLinear(rows, h, down, x.out(c))
	if u != nil {
		addExpertBias(rows, u.Down, c.offsets, x.D)
	}
	CombineExpertsGrad(drows, g.Weights, dy, rows, weights, c.position, x.Tokens, x.TopK, x.D)

	GroupedLinearGradWeight(g.Down, drows, h, x.out(c))
	GroupedLinearGradInput(h, drows, down, x.out(c))
	u.unitGrad(a, b, h, a, b)
	if u != nil {
		expertBiasGrad(g.DownBias, drows, c.offsets, x.D)
		expertBiasGrad(g.GateBias, a, c.offsets, x.F)
		expertBiasGrad(g.UpBias, b, c.offsets, x.F)
	}
	GroupedLinearGradWeight(g.Gate, a, tokens, x.in(c))
	GroupedLinearGradWeight(g.Up, b, tokens, x.in(c))
	GroupedLinearGradInput(rows, a, gate, x.in(c))
	GroupedLinearGradInput(drows, b, up, x.in(c))
	Add(rows, rows, drows, m*x.D)
	CombineExperts(g.Tokens, rows, nil, c.position, x.Tokens, x.TopK, x.D)
	giveScratch(a)
	giveScratch(b)
	giveScratch(h)
	giveScratch(rows)
	giveScratch(drows)
	scratchChoices.give(c.buf)
}
