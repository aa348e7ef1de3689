// The feed-forward of a mixture of experts whose weights are read as they are
// stored.

package native

// CodedStack is a matrix [N,K] for each of several experts in a coding, one
// after the other.
type CodedStack struct {
	Data   []byte
	Coding Coding
}

// expert is the matrix [n,k] of one expert.
func (s CodedStack) expert(e, n, k int) []byte {
	size := n * s.Coding.Bytes(k)
	return s.Data[e*size:][:size]
}

// ExpertsCodedForward is ExpertsForward with stacks in a coding; its products have
// the bits of Linear on the widened weights.
func ExpertsCodedForward(y, tokens, weights []float32, ids []int32, gate, up, down CodedStack, x Experts, u *Clamped[float32]) {
	r := x.codedRows(tokens, ids)
	r.products(gate, up, down, u)
	CombineExperts(y, r.rows, weights, r.position, x.Tokens, x.TopK, x.D)
	r.give()
}

// ExpertsCodedGradInput writes the gradients of the tokens, of the weights of the
// choices and of the biases for dy [T,D]; stored stacks have none.
func ExpertsCodedGradInput(g ExpertsGrads[float32], dy, tokens, weights []float32, ids []int32, gate, up, down CodedStack, x Experts, u *Clamped[float32]) {
	r := x.codedRows(tokens, ids)
	r.products(gate, up, down, u)
	drows := takeScratch[float32](len(r.rows))
	CombineExpertsGrad(drows, g.Weights, dy, r.rows, weights, r.position, x.Tokens, x.TopK, x.D)
	if u != nil {
		expertBiasGrad(g.DownBias, drows, r.offsets, x.D)
	}
	for e := range x.E {
		from, to := int(r.offsets[e]), int(r.offsets[e+1])
		n := to - from
		if n == 0 {
			continue
		}
		in, out := r.rows[from*x.D:to*x.D], drows[from*x.D:to*x.D]
		a, b, h := r.gate[from*x.F:to*x.F], r.up[from*x.F:to*x.F], r.hidden[from*x.F:to*x.F]
		LinearCodedGradInput(h, out, down.expert(e, x.D, x.F), down.Coding, 0, n, x.D, x.F)
		u.unitGrad(a, b, h, a, b)
		LinearCodedGradInput(in, a, gate.expert(e, x.F, x.D), gate.Coding, 0, n, x.F, x.D)
		LinearCodedGradInput(out, b, up.expert(e, x.F, x.D), up.Coding, 0, n, x.F, x.D)
		Add(in, in, out, n*x.D)
	}
	if u != nil {
		expertBiasGrad(g.GateBias, r.gate, r.offsets, x.F)
		expertBiasGrad(g.UpBias, r.up, r.offsets, x.F)
	}
	CombineExperts(g.Tokens, r.rows, nil, r.position, x.Tokens, x.TopK, x.D)
	giveScratch(drows)
	r.give()
}

// codedRows are the rows of all choices, sorted by expert: tokens, then what the
// experts make of them.
type codedRows struct {
	choices
	x                Experts
	rows             []float32 // [T TopK,D]
	gate, up, hidden []float32 // [T TopK,F]
}

func (x Experts) codedRows(tokens []float32, ids []int32) *codedRows {
	m := x.Tokens * x.TopK
	r := &codedRows{choices: x.sort(ids), x: x, rows: takeScratch[float32](m * x.D),
		gate: takeScratch[float32](m * x.F), up: takeScratch[float32](m * x.F), hidden: takeScratch[float32](m * x.F)}
	for i, token := range r.token {
		copy(r.rows[i*x.D:][:x.D], tokens[int(token)*x.D:][:x.D])
	}
	return r
}

func (r *codedRows) give() {
	for _, s := range [][]float32{r.rows, r.gate, r.up, r.hidden} {
		giveScratch(s)
	}
	scratchChoices.give(r.buf)
}

// products puts the results of the experts in the place of the tokens.
func (r *codedRows) products(gate, up, down CodedStack, u *Clamped[float32]) {
	d, f := r.x.D, r.x.F
	for e := range r.x.E {
		from, to := int(r.offsets[e]), int(r.offsets[e+1])
		n := to - from
		if n == 0 {
			continue
		}
		in := r.rows[from*d : to*d]
		a, b, h := r.gate[from*f:to*f], r.up[from*f:to*f], r.hidden[from*f:to*f]
		gateBias, upBias, downBias := u.of(e, f, d)
		LinearCoded(a, in, gate.expert(e, f, d), gateBias, gate.Coding, 0, n, f, d)
		LinearCoded(b, in, up.expert(e, f, d), upBias, up.Coding, 0, n, f, d)
		if u == nil {
			SwiGLU(h, a, b, n*f)
		} else {
			ClampedGLU(h, a, b, u.Clamp)
		}
		LinearCoded(in, h, down.expert(e, d, f), downBias, down.Coding, 0, n, d, f)
	}
}
