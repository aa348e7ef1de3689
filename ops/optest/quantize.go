package optest

import "math"

// Blocks says how a matrix [Rows, Cols] shares its quantisation steps: one for
// each block of BlockRows x BlockCols, the last ones cut off by the edge. The
// steps are [ceil(Rows/BlockRows), ceil(Cols/BlockCols)].
type Blocks struct{ Rows, Cols, BlockRows, BlockCols int }

// PerTensor is one step for everything.
func PerTensor(rows, cols int) Blocks { return Blocks{rows, cols, max(rows, 1), max(cols, 1)} }

// PerRow is one step for each row.
func PerRow(rows, cols int) Blocks { return Blocks{rows, cols, 1, max(cols, 1)} }

// Steps is the number of steps.
func (b Blocks) Steps() int { return b.down() * b.across() }

func (b Blocks) down() int   { return (b.Rows + b.BlockRows - 1) / b.BlockRows }
func (b Blocks) across() int { return (b.Cols + b.BlockCols - 1) / b.BlockCols }

// Step returns which step element (i, j) uses.
func (b Blocks) Step(i, j int) int { return i/b.BlockRows*b.across() + j/b.BlockCols }

// Amax returns max|x| of every block of the raw values, and how many elements
// are NaN: they take no part. A block without numbers has 0.
func (b Blocks) Amax(x []float64) (amax []float64, nan int) {
	amax = make([]float64, b.Steps())
	for i := range b.Rows {
		for j := range b.Cols {
			v := x[i*b.Cols+j]
			if math.IsNaN(v) {
				nan++
				continue
			}
			s := b.Step(i, j)
			amax[s] = max(amax[s], math.Abs(v))
		}
	}
	return amax, nan
}

// Quantize returns the codes of x / step, row-major. The quotient is the one
// float32 division of a float32 x and step (a float64 quotient of two float32
// numbers, rounded to float32, is that exactly); the cast saturates.
func (b Blocks) Quantize(x, steps []float64, f *Format) []uint8 {
	codes := make([]uint8, len(x))
	for i := range b.Rows {
		for j := range b.Cols {
			quotient := float32(x[i*b.Cols+j] / steps[b.Step(i, j)])
			codes[i*b.Cols+j] = uint8(f.Encode(float64(quotient)))
		}
	}
	return codes
}

// Dequantize returns step * value of every code.
func (b Blocks) Dequantize(codes []uint8, steps []float64, f *Format) []float64 {
	x := make([]float64, len(codes))
	for i := range b.Rows {
		for j := range b.Cols {
			x[i*b.Cols+j] = steps[b.Step(i, j)] * f.Decode(uint16(codes[i*b.Cols+j]))
		}
	}
	return x
}

// QuantStep is the step of a recipe, amax / max(format) * 2^margin. An amax of
// 0, an infinity or NaN keeps the previous step. The step is a float32 and
// never 0: the least is the smallest normal float32.
func QuantStep(amax, previous float64, f *Format, margin int) float64 {
	if amax == 0 || math.IsInf(amax, 0) || math.IsNaN(amax) {
		return previous
	}
	return max(float64(float32(math.Ldexp(amax/f.Max(), margin))), 0x1p-126)
}

// Quantized is a matrix of codes with its steps.
type Quantized struct {
	Blocks
	Format *Format
	Codes  []uint8
	Steps  []float64
}

// Values returns the matrix in float64.
func (q Quantized) Values() []float64 { return q.Dequantize(q.Codes, q.Steps, q.Format) }

// FP8MatMul returns op(a) op(b) + bias in float64 on the decoded values: op(a)
// [M,K], op(b) [K,N], bias [N] or nil, and each side stored transposed or not
// (see MatMul), so that b of a linear layer is [N,K] with transB.
func FP8MatMul(a, b Quantized, bias []float64, m, n, k int, transA, transB bool) []float64 {
	c := MatMul(a.Values(), b.Values(), m, n, k, transA, transB)
	for i := range c {
		if bias != nil {
			c[i] += bias[i%n]
		}
	}
	return c
}

// FP8Linear returns y = x w^T + b with both operands on the grid of their
// steps, x [M,K] and w [N,K].
func FP8Linear(x, w Quantized, b []float64, m, n, k int) []float64 {
	return FP8MatMul(x, w, b, m, n, k, false, true)
}

// FP8LinearGrad is the straight-through gradient: rounding counts as the
// identity, the products use the quantised x, w and g [M,N], and db is the
// column sum of the gradient as it came, dy.
func FP8LinearGrad(dy []float64, g, x, w Quantized, m, n, k int) (dx, dw, db []float64) {
	dx = MatMul(g.Values(), w.Values(), m, k, n, false, false)
	dw = MatMul(g.Values(), x.Values(), n, k, m, true, false)
	db = make([]float64, n)
	for i := range dy {
		db[i%n] += dy[i]
	}
	return dx, dw, db
}
