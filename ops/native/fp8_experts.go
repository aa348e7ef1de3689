// The feed-forward of a mixture of experts whose weights are in 8 bits.

package native

// fp8ExpertsBlock is the side of the blocks that share a step.
const fp8ExpertsBlock = 128

// FP8Stack is a matrix [N,K] for each of several experts in E4M3, with a step
// for each 128 x 128 block of a matrix: Codes [E,N,K], Steps
// [E,ceil(N/128),ceil(K/128)].
type FP8Stack struct {
	Codes []byte
	Steps []float32
	N, K  int
}

// FP8StackBlocks says how one matrix of a stack shares its steps.
func FP8StackBlocks(n, k int) FP8Blocks {
	return FP8Blocks{Rows: n, Cols: k, BlockRows: fp8ExpertsBlock, BlockCols: fp8ExpertsBlock}
}

// Expert is the matrix of one expert.
func (s FP8Stack) Expert(e int) FP8Matrix {
	b := FP8StackBlocks(s.N, s.K)
	steps, codes := b.Steps(), s.N*s.K
	return FP8Matrix{FP8Blocks: b, Format: E4M3, Codes: s.Codes[e*codes:][:codes], Steps: s.Steps[e*steps:][:steps]}
}

// FP8Fit quantises x to E4M3 with steps from the largest magnitude of each
// block; a block whose maximum is 0 or infinite gets 1.
func FP8Fit[T Float](codes []byte, steps []float32, x []T, b FP8Blocks) {
	FP8Amax(steps, x, b)
	for i, a := range steps[:b.Steps()] {
		s, ok := FP8Step(a, E4M3, 0)
		if !ok {
			s = 1
		}
		steps[i] = s
	}
	FP8Quantize(codes, nil, x, steps, b, E4M3)
}

// FP8ExpertsForward is ExpertsForward with stacks in 8 bits. Tokens and what the
// gate gives stay as they are, and products have the bits of Linear on the
// widened weights; or with blocks set they are quantised too, with a step for
// each 1 x 128 of them, and codes are multiplied as FP8MatMul does.
func FP8ExpertsForward[T Float](y, tokens, weights []T, ids []int32, gate, up, down FP8Stack, x Experts, blocks bool) {
	c, m := x.sort(ids), x.Tokens*x.TopK
	in, a, b, rows := takeScratch[T](m*x.D), takeScratch[T](m*x.F), takeScratch[T](m*x.F), takeScratch[T](m*x.D)
	for r, token := range c.token {
		copy(in[r*x.D:][:x.D], tokens[int(token)*x.D:][:x.D])
	}
	coded := fp8Rows[T]{blocks: blocks}
	coded.take(m, max(x.D, x.F))
	for e := range x.E {
		from, to := int(c.offsets[e]), int(c.offsets[e+1])
		n := to - from
		if n == 0 {
			continue
		}
		h := a[from*x.F : to*x.F]
		coded.set(in[from*x.D:to*x.D], n, x.D)
		coded.product(h, gate.Expert(e))
		coded.product(b[:n*x.F], up.Expert(e))
		SwiGLU(h, h, b[:n*x.F], n*x.F)
		coded.set(h, n, x.F)
		coded.product(rows[from*x.D:to*x.D], down.Expert(e))
	}
	CombineExperts(y, rows, weights, c.position, x.Tokens, x.TopK, x.D)
	coded.give()
	giveScratch(in)
	giveScratch(a)
	giveScratch(b)
	giveScratch(rows)
	scratchChoices.give(c.buf)
}

// fp8Rows are the rows of one expert on their way into its products, as they are
// or in codes.
type fp8Rows[T Float] struct {
	blocks bool
	x      []T
	n, k   int
	codes  []byte
	steps  []float32
}

func (r *fp8Rows[T]) take(n, k int) {
	if r.blocks {
		r.codes, r.steps = scratch8.take(n*k), scratch32.take(n*ceilDiv(k, fp8ExpertsBlock))
	}
}

func (r *fp8Rows[T]) give() {
	if r.blocks {
		scratch8.give(r.codes)
		scratch32.give(r.steps)
	}
}

func (r *fp8Rows[T]) set(x []T, n, k int) {
	r.x, r.n, r.k = x, n, k
	if r.blocks {
		FP8Fit(r.codes, r.steps, x, r.of())
	}
}

func (r *fp8Rows[T]) of() FP8Blocks {
	return FP8Blocks{Rows: r.n, Cols: r.k, BlockRows: 1, BlockCols: fp8ExpertsBlock}
}

// product is y = x w^T.
func (r *fp8Rows[T]) product(y []T, w FP8Matrix) {
	if !r.blocks {
		FP8WeightLinear(y, r.x, w, nil, r.n, w.Rows, w.Cols)
		return
	}
	FP8MatMul(y, FP8Matrix{FP8Blocks: r.of(), Format: E4M3, Codes: r.codes, Steps: r.steps}, w, nil, r.n, w.Rows, w.Cols, false, true)
}
