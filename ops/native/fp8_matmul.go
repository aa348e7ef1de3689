package native

import "math"

// This file is the matrix product of 8-bit floats, emulated exactly: operands
// are the values of the codes, sums are those of Gemm in the element type. The
// values are exact in bf16 and products of them in float32, so where the CPU
// multiplies bf16 that gives the same bits (no sum of such products is
// subnormal).

// FP8Matrix is a matrix of codes with its steps, as it is stored.
type FP8Matrix struct {
	FP8Blocks
	Format FP8
	Codes  []byte
	Steps  []float32
}

// FP8MatMul computes c[M,N] = op(a) op(b) + bias with op(a) [M,K], op(b) [K,N],
// bias [N] or nil. op(x) is x, or its transpose when the flag is set: a linear
// layer has b [N,K] and transB.
//
// Where no step changes along K (one a tensor, one a row of op(a), one a column
// of op(b)) the sum runs over the values of the codes, in the order of Gemm, and
// is multiplied by step_a step_b, rounded once as a float32. Else K is cut
// wherever a step changes, and the cuts, each such a sum with its factor, are
// added in the order of K. The bias is added last.
func FP8MatMul[T Float](c []T, a, b FP8Matrix, bias []T, m, n, k int, transA, transB bool) {
	if m <= 0 || n <= 0 {
		return
	}
	av, bv := takeDecoded[T](a.Codes[:m*k], a.Format), takeDecoded[T](b.Codes[:k*n], b.Format)
	fp8Products(c, av, bv, a.along(transA), b.along(!transB), bias, m, n, k, transA, transB)
	av.give()
	bv.give()
}

// FP8TensorMatMul is FP8MatMul where both operands have one step for all.
func FP8TensorMatMul[T Float](c []T, a []byte, formatA FP8, stepA float32, b []byte, formatB FP8, stepB float32, bias []T, m, n, k int, transA, transB bool) {
	av, bv := takeDecoded[T](a[:m*k], formatA), takeDecoded[T](b[:k*n], formatB)
	fp8Product(c, av, bv, stepA, stepB, bias, m, n, k, transA, transB)
	av.give()
	bv.give()
}

// FP8Rows is x[M,K], quantised with one step for all, as the products of several
// linears of x want it: what is made of the codes is made once.
type FP8Rows[T Float] struct {
	x     fp8Decoded[T]
	step  float32
	m, k  int
	words pairArgs // where bf16 is multiplied
}

// TakeFP8Rows makes them of the codes of x, which must stay until Give.
func TakeFP8Rows[T Float](codes []byte, f FP8, step float32, m, k int) (r FP8Rows[T]) {
	r = FP8Rows[T]{x: takeDecoded[T](codes[:m*k], f), step: step, m: m, k: k}
	if multipliesPairs[T]() && m > 0 {
		r.words = wordsOf(false, m, k, pairSource{codes: r.x.codes, format: f, ld: k})
	}
	return r
}

// Linear is FP8TensorMatMul of x and w[N,K], transposed.
func (r *FP8Rows[T]) Linear(y []T, w []byte, format FP8, step float32, bias []T, n int) {
	wv := takeDecoded[T](w[:n*r.k], format)
	if r.words.dst == nil {
		fp8Product(y, r.x, wv, r.step, step, bias, r.m, n, r.k, false, true)
	} else {
		b := pairSource{codes: wv.codes, format: format, ld: r.k}
		r.words.linear(b, float32(fp8Factor[T](r.step, step)), any(bias).([]float32), any(y).([]float32), n)
	}
	wv.give()
}

// Give gives back what TakeFP8Rows took.
func (r *FP8Rows[T]) Give() {
	if r.words.dst != nil {
		r.words.free()
	}
	r.x.give()
}

// fp8Decoded holds the values of codes in T, or the codes themselves where words
// of bf16 are made of them on the way.
type fp8Decoded[T Float] struct {
	wide   []T
	codes  []byte
	format FP8
}

// takeDecoded decodes into scratch.
func takeDecoded[T Float](codes []byte, f FP8) (d fp8Decoded[T]) {
	if multipliesPairs[T]() {
		return fp8Decoded[T]{codes: codes, format: f}
	}
	d.wide = takeScratch[T](len(codes))
	FP8Decode(d.wide, codes, f)
	return d
}

func (d fp8Decoded[T]) give() {
	if d.wide != nil {
		giveScratch(d.wide)
	}
}

// from is the values from at on.
func (d fp8Decoded[T]) from(at int) fp8Decoded[T] {
	if d.wide != nil {
		d.wide = d.wide[at:]
		return d
	}
	d.codes = d.codes[at:]
	return d
}

// fp8Words are the two bytes of the bf16 of each magnitude, for fp8_words_amd64.s.
type fp8Words struct{ lower, upper [128]byte }

var fp8WordsOf = [...]fp8Words{E4M3: newFP8Words(E4M3), E5M2: newFP8Words(E5M2)}

func newFP8Words(f FP8) (w fp8Words) {
	for v := range w.lower {
		x := fp8Values[f][v]
		bits := math.Float32bits(x) >> 16
		if x != x {
			bits = 0x7FC0
		}
		w.lower[v], w.upper[v] = byte(bits), byte(bits>>8)
	}
	return w
}

// fp8Gemm is gemmAdd on decoded operands.
func fp8Gemm[T Float](transA, transB bool, m, n, k int, alpha T, a fp8Decoded[T], lda int, b fp8Decoded[T], ldb int, beta T, s []T, lds int, c []T, ldc int) {
	if multipliesPairs[T]() {
		gemmBF16(transA, transB, m, n, k, float32(alpha), pairSource{codes: a.codes, format: a.format, ld: lda}, pairSource{codes: b.codes, format: b.format, ld: ldb},
			float32(beta), any(s).([]float32), lds, any(c).([]float32), ldc)
		return
	}
	gemmAdd(transA, transB, m, n, k, alpha, a.wide, lda, b.wide, ldb, beta, s, lds, c, ldc)
}

// fp8Product multiplies decoded operands of one step each.
func fp8Product[T Float](c []T, a, b fp8Decoded[T], stepA, stepB float32, bias []T, m, n, k int, transA, transB bool) {
	lda, ldb := k, n
	if transA {
		lda = m
	}
	if transB {
		ldb = k
	}
	alpha := fp8Factor[T](stepA, stepB)
	if bias == nil {
		fp8Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, 0, c, n, c, n)
		return
	}
	fp8Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, 1, bias, 0, c, n)
}

// fp8Factor is the product of two steps in T.
func fp8Factor[T Float](a, b float32) T { return T(a) * T(b) }

// fp8Steps are the steps of one operand seen from the product: outer runs along
// M or N, inner along K.
type fp8Steps struct {
	steps                  []float32
	outerBlock, innerBlock int
	outerStride            int // between steps that follow each other along M or N
	innerStride            int
}

// along turns the steps so that K is the inner dimension; stored rows run along
// M or N unless turned.
func (x FP8Matrix) along(turned bool) fp8Steps {
	if turned {
		return fp8Steps{x.Steps, x.BlockCols, x.BlockRows, 1, x.across()}
	}
	return fp8Steps{x.Steps, x.BlockRows, x.BlockCols, x.across(), 1}
}

func (s fp8Steps) at(outer, inner int) float32 {
	return s.steps[outer/s.outerBlock*s.outerStride+inner/s.innerBlock*s.innerStride]
}

func fp8Products[T Float](c []T, a, b fp8Decoded[T], sa, sb fp8Steps, bias []T, m, n, k int, transA, transB bool) {
	if k == 0 || sa.outerBlock >= m && sa.innerBlock >= k && sb.outerBlock >= n && sb.innerBlock >= k {
		var stepA, stepB float32
		if k > 0 {
			stepA, stepB = sa.steps[0], sb.steps[0]
		}
		fp8Product(c, a, b, stepA, stepB, bias, m, n, k, transA, transB)
		return
	}
	lda, rowA, ldb, rowB := k, 1, n, n // rowA, rowB: distance of neighbours along K
	if transA {
		lda, rowA = m, m
	}
	if transB {
		ldb, rowB = k, 1
	}
	sum := takeScratch[T](m * n)
	for p := 0; p < k; {
		next := min(k, p-p%sa.innerBlock+sa.innerBlock, p-p%sb.innerBlock+sb.innerBlock)
		fp8Gemm(transA, transB, m, n, next-p, 1, a.from(p*rowA), lda, b.from(p*rowB), ldb, 0, sum, n, sum, n)
		args := fp8AddArgs[T]{c: c, sum: sum, a: sa, b: sb, m: m, n: n, p: p}
		if next == k {
			args.bias = bias
		}
		pick[fp8AddArgs[T]](fp8Add32, fp8Add64).launch(ceilDiv(m, fp8AddRows), args)
		p = next
	}
	giveScratch(sum)
}

const fp8AddRows = 16

type fp8AddArgs[T Float] struct {
	c, sum, bias []T
	a, b         fp8Steps
	m, n, p      int
}

var (
	fp8Add32 = newKernel(fp8AddUnit[float32])
	fp8Add64 = newKernel(fp8AddUnit[float64])
)

// fp8AddUnit adds the sums of the cut at p to c, each times its factor.
func fp8AddUnit[T Float](g *fp8AddArgs[T], i int) {
	factors := takeScratch[T](g.n)
	last := float32(-1)
	for r := i * fp8AddRows; r < min((i+1)*fp8AddRows, g.m); r++ {
		if step := g.a.at(r, g.p); step != last {
			for j := range factors {
				factors[j] = fp8Factor[T](step, g.b.at(j, g.p))
			}
			last = step
		}
		c, sum := g.c[r*g.n:][:g.n], g.sum[r*g.n:][:g.n]
		if g.p == 0 {
			for j, v := range sum {
				c[j] = v * factors[j]
			}
		} else {
			addMul(c, sum, factors)
		}
		for j, v := range g.bias {
			c[j] += v
		}
	}
	giveScratch(factors)
}

// addMul adds x w to y, each product rounded.
func addMul[T Float](y, x, w []T) {
	for j, v := range x {
		p := v * w[j]
		y[j] += T(p)
	}
}
