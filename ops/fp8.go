package ops

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{Name: "fp8_steps", Doc: "steps that use the range of a format", Native: floatInput(fp8Steps[float32], fp8Steps[float64])})
	graph.Register(graph.Def{Name: "quantize", Doc: "8-bit float codes, steps a tensor, a row or a block", Native: floatInput(quantize[float32], quantize[float64])})
	graph.Register(graph.Def{Name: "dequantize", Doc: "the values of codes", Native: floats(dequantize[float32], dequantize[float64])})
	graph.Register(graph.Def{
		Name:   "fp8_matmul",
		Doc:    "product of codes, four layouts, mixed formats",
		Native: fp8MatMul,
		FLOPs: func(op graph.Op, in, _ []graph.Type) int64 {
			m, n, k := op.(FP8MatMulOp).sizes(in)
			return 2 * int64(m) * int64(n) * int64(k)
		},
	})
}

// floatInput makes one body of a generic one's two forms, by the first input.
func floatInput(f32, f64 func(c *graph.Call) error) func(c *graph.Call) error {
	return func(c *graph.Call) error {
		if c.In[0].DType == dtype.Float64 {
			return f64(c)
		}
		return f32(c)
	}
}

// FP8Block is how many rows and columns share a quantisation step; 0 is all of
// them. {0, 0} is one step for the tensor, {1, 0} one for each row, {1, 128} and
// {128, 128} are blocks. The rows of a tensor are all its dimensions but the
// last.
type FP8Block struct{ Rows, Cols int }

func (k FP8Block) check() error {
	if k.Rows < 0 || k.Cols < 0 {
		return fmt.Errorf("a block must have 0 (all) or more rows and columns, got %dx%d", k.Rows, k.Cols)
	}
	return nil
}

// of lays the blocks over a tensor.
func (k FP8Block) of(t graph.Type) native.FP8Blocks {
	b := native.FP8PerTensor(rows(t), last(t))
	if k.Rows > 0 {
		b.BlockRows = k.Rows
	}
	if k.Cols > 0 {
		b.BlockCols = k.Cols
	}
	return b
}

// steps is the type of the steps of a tensor: float32, one each.
func (k FP8Block) steps(t graph.Type) graph.Type {
	b := k.of(t)
	return graph.T(dtype.Float32, (b.Rows+b.BlockRows-1)/b.BlockRows, (b.Cols+b.BlockCols-1)/b.BlockCols)
}

func fp8DType(f native.FP8) dtype.DType {
	if f == native.E5M2 {
		return dtype.Float8E5M2
	}
	return dtype.Float8E4M3
}

func fp8FormatOf(d dtype.DType) native.FP8 {
	if d == dtype.Float8E5M2 {
		return native.E5M2
	}
	return native.E4M3
}

// FP8StepsOp computes the steps that use a format's range up to 2^-Margin:
//
//	step = max|x| / max(format) * 2^Margin
//
// over each block of the raw x [...,C]; NaN takes no part. A block whose maximum
// is 0 or infinite gets 1. The result is float32 [ceil(rows/Rows), ceil(C/Cols)].
type FP8StepsOp struct {
	Format native.FP8
	Block  FP8Block
	Margin int
}

// FP8Steps adds an FP8StepsOp.
func FP8Steps(x *graph.Node, f native.FP8, k FP8Block, margin int) *graph.Node {
	return graph.Apply(FP8StepsOp{f, k, margin}, x)
}

// Name is "fp8_steps".
func (FP8StepsOp) Name() string { return "fp8_steps" }

// Infer takes any float x.
func (o FP8StepsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	if err := o.Block.check(); err != nil {
		return nil, err
	}
	return []graph.Type{o.Block.steps(in[0])}, nil
}

func fp8Steps[T native.Float](c *graph.Call) error {
	o := c.Op.(FP8StepsOp)
	steps := graph.Data[float32](c.Out[0])
	native.FP8Amax(steps, graph.Data[T](c.In[0]), o.Block.of(c.In[0].Type))
	for i, amax := range steps {
		s, ok := native.FP8Step(amax, o.Format, o.Margin)
		if !ok {
			s = 1
		}
		steps[i] = s
	}
	return nil
}

// checkSteps refuses steps that no recipe gives.
func checkSteps(name string, steps []float32) error {
	for i, s := range steps {
		if !(s > 0) || math.IsInf(float64(s), 0) {
			return fmt.Errorf("%s must be positive and finite, number %d is %g", name, i, s)
		}
	}
	return nil
}

// QuantizeOp encodes x [...,C] in 8 bits: the code nearest to x / step, ties to
// even, magnitudes beyond the largest finite value saturating. steps are those
// of FP8StepsOp with the same Block. The result is codes as x, or [C,rows] when
// Transposed. It is not differentiable; FP8Linear is.
type QuantizeOp struct {
	Format     native.FP8
	Block      FP8Block
	Transposed bool
}

// Quantize adds a QuantizeOp.
func Quantize(x, steps *graph.Node, f native.FP8, k FP8Block, transposed bool) *graph.Node {
	return graph.Apply(QuantizeOp{f, k, transposed}, x, steps)
}

// Name is "quantize".
func (QuantizeOp) Name() string { return "quantize" }

// Infer requires the steps of the blocks.
func (o QuantizeOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "x", "steps"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	if err := o.Block.check(); err != nil {
		return nil, err
	}
	if want := o.Block.steps(in[0]); !in[1].Equal(want) {
		return nil, fmt.Errorf("steps must be %s for x %s in blocks of %dx%d, got %s", want, in[0].Dims(), o.Block.Rows, o.Block.Cols, in[1])
	}
	t := graph.T(fp8DType(o.Format), in[0].Shape...)
	if o.Transposed {
		t.Shape = []int{last(in[0]), rows(in[0])}
	}
	return []graph.Type{t}, nil
}

func quantize[T native.Float](c *graph.Call) error {
	o := c.Op.(QuantizeOp)
	steps := graph.Data[float32](c.In[1])
	if err := checkSteps("steps", steps); err != nil {
		return err
	}
	codes, turned := c.Out[0].Bytes(), []byte(nil)
	if o.Transposed {
		codes, turned = nil, codes
	}
	native.FP8Quantize(codes, turned, graph.Data[T](c.In[0]), steps, o.Block.of(c.In[0].Type), o.Format)
	return nil
}

// DequantizeOp is the inverse of QuantizeOp: step times the value of the code,
// in the float type of the graph.
type DequantizeOp struct {
	DType dtype.DType
	Block FP8Block
}

// Dequantize adds a DequantizeOp to codes in row-major order.
func Dequantize(codes, steps *graph.Node, k FP8Block) *graph.Node {
	return graph.Apply(DequantizeOp{codes.Builder().Float(), k}, codes, steps)
}

// Name is "dequantize".
func (DequantizeOp) Name() string { return "dequantize" }

// Infer requires codes and the steps of their blocks.
func (o DequantizeOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "codes", "steps"); err != nil {
		return nil, err
	}
	if !in[0].DType.IsFloat8() {
		return nil, fmt.Errorf("codes must be float8, got %s", in[0])
	}
	if err := o.Block.check(); err != nil {
		return nil, err
	}
	if want := o.Block.steps(in[0]); !in[1].Equal(want) {
		return nil, fmt.Errorf("steps must be %s for codes %s in blocks of %dx%d, got %s", want, in[0].Dims(), o.Block.Rows, o.Block.Cols, in[1])
	}
	t := graph.T(o.DType, in[0].Shape...)
	return []graph.Type{t}, activation("the result", t)
}

func dequantize[T native.Float](c *graph.Call) error {
	steps := graph.Data[float32](c.In[1])
	if err := checkSteps("steps", steps); err != nil {
		return err
	}
	codes := c.In[0]
	native.FP8Dequantize(graph.Data[T](c.Out[0]), codes.Bytes(), steps, c.Op.(DequantizeOp).Block.of(codes.Type), fp8FormatOf(codes.DType))
	return nil
}

// FP8MatMulOp multiplies matrices of codes, each of either format:
//
//	c[m,n] = sum_k a[m,k] step_a b[k,n] step_b + bias[n]
//
// a is stored [M,K], or [K,M] when TransA; b [K,N], or [N,K] when TransB, as a
// weight is; BlockA and BlockB lie over the matrices as stored. Sums are in the
// float type of the graph (see native.FP8MatMul for their order) and are rounded
// once to Output: float32, bfloat16, float16, or float64 in a float64 graph.
type FP8MatMulOp struct {
	TransA, TransB bool
	BlockA, BlockB FP8Block
	Output         dtype.DType
}

// FP8MatMul adds an FP8MatMulOp; without an Output the result has the float type
// of the graph.
func FP8MatMul(a, b, stepsA, stepsB *graph.Node, o FP8MatMulOp, bias ...*graph.Node) *graph.Node {
	if o.Output == dtype.Invalid {
		o.Output = a.Builder().Float()
	}
	return graph.Apply(o, append([]*graph.Node{a, b, stepsA, stepsB}, bias...)...)
}

// Name is "fp8_matmul".
func (FP8MatMulOp) Name() string { return "fp8_matmul" }

func (o FP8MatMulOp) sizes(in []graph.Type) (m, n, k int) {
	m, k, n = in[0].Shape[0], in[0].Shape[1], in[1].Shape[1]
	if o.TransA {
		m, k = k, m
	}
	if o.TransB {
		n = in[1].Shape[0]
	}
	return m, n, k
}

// Infer requires matrices of codes that share K, and the steps of their blocks.
func (o FP8MatMulOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 4, "a", "b", "steps of a", "steps of b", "bias"); err != nil {
		return nil, err
	}
	a, b := in[0], in[1]
	if !a.DType.IsFloat8() || !b.DType.IsFloat8() || a.Rank() != 2 || b.Rank() != 2 {
		return nil, fmt.Errorf("a and b must be float8 with two dimensions, got a %s, b %s", a, b)
	}
	m, n, k := o.sizes(in)
	kb := b.Shape[0]
	if o.TransB {
		kb = b.Shape[1]
	}
	if k != kb {
		return nil, fmt.Errorf("a and b must have one K, got a %s%s, b %s%s", a.Dims(), turned(o.TransA), b.Dims(), turned(o.TransB))
	}
	for i, x := range []struct {
		name  string
		block FP8Block
	}{{"a", o.BlockA}, {"b", o.BlockB}} {
		if err := x.block.check(); err != nil {
			return nil, err
		}
		if want := x.block.steps(in[i]); !in[2+i].Equal(want) {
			return nil, fmt.Errorf("steps of %s must be %s for %s in blocks of %dx%d, got %s", x.name, want, in[i].Dims(), x.block.Rows, x.block.Cols, in[2+i])
		}
	}
	switch o.Output {
	case dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float64:
	default:
		return nil, fmt.Errorf("the result must be float32, bfloat16, float16 or float64, got %s", o.Output)
	}
	if len(in) == 5 {
		want := dtype.Float32
		if o.Output == dtype.Float64 {
			want = dtype.Float64
		}
		if !in[4].Equal(graph.T(want, n)) {
			return nil, fmt.Errorf("bias must be %s, got %s", graph.T(want, n), in[4])
		}
	}
	return []graph.Type{graph.T(o.Output, m, n)}, nil
}

func turned(t bool) string {
	if t {
		return " transposed"
	}
	return ""
}

func fp8MatMul(c *graph.Call) error {
	switch out := c.Out[0]; out.DType {
	case dtype.Float64:
		return fp8MatMulOf(graph.Data[float64](out), c)
	case dtype.Float32:
		return fp8MatMulOf(graph.Data[float32](out), c)
	case dtype.BFloat16:
		sum := make([]float32, out.Size())
		err := fp8MatMulOf(sum, c)
		dtype.FromFloat32(graph.Data[dtype.BF16](out), sum)
		return err
	default:
		sum := make([]float32, out.Size())
		err := fp8MatMulOf(sum, c)
		dtype.FromFloat32(graph.Data[dtype.F16](out), sum)
		return err
	}
}

func fp8MatMulOf[T native.Float](out []T, c *graph.Call) error {
	o := c.Op.(FP8MatMulOp)
	operand := func(i int, k FP8Block) native.FP8Matrix {
		t := c.In[i]
		return native.FP8Matrix{FP8Blocks: k.of(t.Type), Format: fp8FormatOf(t.DType), Codes: t.Bytes(), Steps: graph.Data[float32](c.In[2+i])}
	}
	a, b := operand(0, o.BlockA), operand(1, o.BlockB)
	if err := checkSteps("steps of a", a.Steps); err != nil {
		return err
	}
	if err := checkSteps("steps of b", b.Steps); err != nil {
		return err
	}
	m, n, k := o.sizes([]graph.Type{c.In[0].Type, c.In[1].Type})
	native.FP8MatMul(out, a, b, data[T](c.In, 4), m, n, k, o.TransA, o.TransB)
	return nil
}
