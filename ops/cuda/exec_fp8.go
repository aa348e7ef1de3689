package cuda

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// The bodies of the FP8 ops.
func init() {
	Register("fp8_weight_linear", func(c *Call) error { return productBody(c, nil) })
	Register("fp8_linear", fp8LinearBody)
	Register("fp8_steps", fp8StepsBody)
	Register("amax", amaxBody)
	Register("quantize", quantizeBody)
	Register("fp8_matmul", fp8MatMulBody)
}

func up16(n int) int64    { return int64(ceilDiv(n, 16) * 16) }
func up256(n int64) int64 { return (n + 255) &^ 255 }

func codesOf(t dtype.DType) DType {
	if t == dtype.Float8E5M2 {
		return E5M2
	}
	return E4M3
}

// isLinear says whether a node is a linear that products launches.
func isLinear(n *graph.Node) bool {
	if n == nil {
		return false
	}
	switch n.Op().(type) {
	case ops.LinearOp, ops.FP8WeightLinearOp:
		return true
	}
	return false
}

// biasOf is the bias of a linear, nil without one.
func biasOf(n *graph.Node) *graph.Node {
	at := 2
	if _, ok := n.Op().(ops.FP8WeightLinearOp); ok && n.In()[1].Type().DType.IsFloat8() {
		at = 3
	}
	if at < len(n.In()) {
		return n.In()[at]
	}
	return nil
}

// productBody is a linear; with a residual [M,N] it is added in front of the rounding, and the sum goes to sum's place.
func productBody(c *Call, add *Call) error {
	if err := c.routerLogits(); !errors.Is(err, ErrUnsupported) {
		return err
	}
	g := Gemm{M: rowsOf(c.In[0].Type()), N: c.In[1].Dim(0), K: lastDim(c.In[0].Type()), Y: c.Output(0), F32Out: c.OutputType() == F32 && c.Type() != F32}
	if add != nil {
		residual := 0
		if add.In[0] == c.Node {
			residual = 1
		}
		var err error
		if g.Residual, err = add.Input(residual); err != nil {
			return err
		}
		g.Y = add.Output(0)
	}
	return c.products(g, c.Node)
}

// products launches one product of linears of one x, the rows of whose weights follow each other: g lacks x, weights and bias.
func (c *Call) products(g Gemm, linears ...*graph.Node) error {
	g.Type, g.Computed = c.Type(), c.computed(1)
	if err := c.inputs(0, &g.X); err != nil {
		return err
	}
	var w, bias []*graph.Node
	for _, n := range linears {
		w = append(w, n.In()[1])
		if b := biasOf(n); b != nil {
			bias = append(bias, b)
		}
	}
	if o, ok := c.Node.Op().(ops.FP8WeightLinearOp); ok {
		return c.fp8Products(g, o, linears, bias)
	}
	var err error
	if g.W, err = c.p.rows(c.Type(), w...); err != nil {
		return err
	}
	if bias != nil {
		if g.Bias, err = c.p.rows(c.Type(), bias...); err != nil {
			return err
		}
	}
	return g.Launch(c)
}

// rows is a value in a type, or several weights one after the other.
func (p *program) rows(dt DType, nodes ...*graph.Node) (Pointer, error) {
	if len(nodes) == 1 {
		return p.read("linear", nodes[0], dt)
	}
	return p.join(dt, nodes...)
}

func (c *Call) fp8Products(m Gemm, o ops.FP8WeightLinearOp, linears, bias []*graph.Node) error {
	const op = "fp8_weight_linear"
	exact := o.Activations == ops.Exact
	lacks := hasFP8(op, c.Target())
	if lacks == nil && exact && c.Type() == F32 {
		lacks = unsupported(op, "f32 activations")
	}
	if w := linears[0].In()[1].Type().DType; lacks == nil && exact && w == dtype.Float8E5M2 {
		lacks = unsupported(op, "activations as they are with %s weights", w)
	}
	if lacks != nil {
		if c.p.strict && c.Type() != F32 {
			return lacks
		}
		c.note = fmt.Sprintf("weights widened to %v, activations as they are: %v", c.Type(), lacks)
		if o.Activations != ops.Exact && c.Type() == F32 {
			return lacks // natively, with the steps that were asked for
		}
		var err error
		if m.W, err = c.p.fp8Wide(linears); err != nil {
			return err
		}
		if bias != nil {
			if m.Bias, err = c.p.rows(c.Type(), bias...); err != nil {
				return err
			}
		}
		return m.Launch(c)
	}
	w, err := c.p.fp8Weights(linears, exact, nil)
	if err != nil {
		return err
	}
	g := FP8Gemm{M: m.M, N: m.N, K: m.K, X: m.X, XType: m.Type, W: w.codes, WType: w.dt, WStride: w.stride, WSteps: w.steps, Y: m.Y, Out: m.Type, Residual: m.Residual, SwiGLU: m.SwiGLU}
	if m.F32Out {
		g.Out = F32
	}
	if bias != nil {
		dt := F32
		if exact {
			dt = c.Type()
		}
		if g.Bias, err = c.p.rows(dt, bias...); err != nil {
			return err
		}
	}
	if exact {
		return c.fp8Product(g, nil)
	}
	z := Quantize{Type: m.Type, Format: E4M3, Rows: m.M, Cols: m.K, X: m.X}
	if o.Activations == ops.StaticSteps {
		z.Steps.At = c.p.scalar(o.StepX)
	} else {
		z.Steps.Rows, z.Dynamic = 1, true
	}
	return c.fp8Product(g, &z)
}

// fp8Product launches a product with its scratch, behind the codes of its x when those are to be made.
func (c *Call) fp8Product(g FP8Gemm, z *Quantize) error {
	if z != nil {
		g.XType, g.XStride, g.XSteps = z.Format, up16(g.K), z.Steps
	}
	scratch := g.ScratchBytes(c.Target())
	if z != nil {
		codes := up256(scratch)
		steps := codes + up256(int64(g.M)*g.XStride)
		all := c.Scratch(steps + 4*int64(max(g.M, 1)))
		z.Codes, z.CodesStride = all.At(codes), g.XStride
		if z.Dynamic {
			z.Steps.At = all.At(steps)
			if z.Steps.tensor() {
				z.Flags = c.Flags(QuantizeFlags)
			}
		}
		g.X, g.XSteps = z.Codes, z.Steps
		if err := z.Launch(c); err != nil {
			return err
		}
	}
	if scratch > 0 {
		g.Scratch = c.Scratch(scratch)
	}
	return g.Launch(c)
}

// fp8LinearBody is the forward pass of a training linear: evaluation, which leaves the states as they are. An x whose largest
// magnitude is infinite gets the step 1.
func fp8LinearBody(c *Call) error {
	const op = "fp8_linear"
	r := c.Node.Op().(ops.FP8LinearOp).Recipe
	if err := errors.Join(hasFP8(op, c.Target()), c.firstOnly()); err != nil {
		return err
	}
	if r.History > 0 {
		return unsupported(op, "%s: steps from a history are for training", r)
	}
	w, err := c.p.fp8Weights([]*graph.Node{c.Node}, false, &r)
	if err != nil {
		return err
	}
	g := FP8Gemm{M: rowsOf(c.In[0].Type()), N: c.In[1].Dim(0), K: lastDim(c.In[0].Type()), W: w.codes, WType: w.dt, WStride: w.stride, WSteps: w.steps, Y: c.Output(0), Out: c.OutputType()}
	z := Quantize{Type: c.Type(), Format: w.dt, Rows: g.M, Cols: g.K, Dynamic: true, Margin: r.Margin}
	if err := c.inputs(0, &z.X); err != nil {
		return err
	}
	if len(c.In) > 5 {
		if g.Bias, err = c.InputAs(5, F32); err != nil {
			return err
		}
	}
	return c.fp8Product(g, &z)
}

func stepsOfBlock(k ops.FP8Block) FP8Steps { return FP8Steps{Rows: k.Rows, Cols: k.Cols} }

func formatOfNode(n *graph.Node) DType { return codesOf(n.Type().DType) }

func fp8StepsBody(c *Call) error {
	o := c.Node.Op().(ops.FP8StepsOp)
	z := Quantize{Format: E4M3, Steps: stepsOfBlock(o.Block), Dynamic: true, Margin: o.Margin}
	if o.Format != 0 {
		z.Format = E5M2
	}
	z.Steps.At = c.Output(0)
	return c.measure(z)
}

func amaxBody(c *Call) error {
	z := Quantize{Format: E4M3, Steps: stepsOfBlock(c.Node.Op().(ops.AmaxOp).Block), Amax: c.Output(0)}
	return c.measure(z)
}

// measure launches a Quantize of input 0 that makes no codes.
func (c *Call) measure(z Quantize) error {
	z.Type, z.Rows, z.Cols = c.Type(), rowsOf(c.In[0].Type()), lastDim(c.In[0].Type())
	if z.Steps.tensor() {
		z.Flags = c.Flags(QuantizeFlags)
	}
	if err := c.inputs(0, &z.X); err != nil {
		return err
	}
	return z.Launch(c)
}

func quantizeBody(c *Call) error {
	o := c.Node.Op().(ops.QuantizeOp)
	z := Quantize{Type: c.Type(), Format: formatOfNode(c.Node), Rows: rowsOf(c.In[0].Type()), Cols: lastDim(c.In[0].Type()), Codes: c.Output(0), Steps: stepsOfBlock(o.Block)}
	if o.Transposed {
		z.Codes, z.Turned = Pointer{}, z.Codes
	}
	var err error
	if z.Steps.At, err = c.InputAs(1, F32); err != nil {
		return err
	}
	if err := c.inputs(0, &z.X); err != nil {
		return err
	}
	return z.Launch(c)
}

func fp8MatMulBody(c *Call) error {
	const op = "fp8_matmul"
	o := c.Node.Op().(ops.FP8MatMulOp)
	if err := hasFP8(op, c.Target()); err != nil {
		return err
	}
	t := c.Node.Type()
	g := FP8Gemm{M: t.Shape[0], N: t.Shape[1], K: lastDim(c.In[0].Type()), XType: formatOfNode(c.In[0]), WType: formatOfNode(c.In[1]), XSteps: stepsOfBlock(o.BlockA), WSteps: stepsOfBlock(o.BlockB), Y: c.Output(0), Out: c.OutputType()}
	if o.TransA {
		g.K = c.In[0].Dim(0)
	}
	switch o.Output {
	case dtype.BFloat16:
		g.Out = BF16
	case dtype.Float16:
		g.Out = F16
	}
	if g.N == 0 || g.M == 0 || g.K == 0 {
		return unsupported(op, "M %d, N %d, K %d", g.M, g.N, g.K)
	}
	if o.TransA && !g.XSteps.tensor() || !o.TransB && !g.WSteps.tensor() {
		return unsupported(op, "steps for blocks of %dx%d of a and %dx%d of b where those lie transposed", o.BlockA.Rows, o.BlockA.Cols, o.BlockB.Rows, o.BlockB.Cols)
	}
	var err error
	if g.XSteps.At, err = c.InputAs(2, F32); err != nil {
		return err
	}
	if g.WSteps.At, err = c.InputAs(3, F32); err != nil {
		return err
	}
	if len(c.In) > 4 {
		if g.Bias, err = c.InputAs(4, F32); err != nil {
			return err
		}
	}
	if err := c.inputs(0, &g.X, &g.W); err != nil {
		return err
	}
	// Both with k innermost, rows at multiples of 16 bytes; weights are not read early.
	g.Computed = true
	stride := up16(g.K)
	g.XStride, g.WStride = stride, stride
	atW := up256(int64(g.M) * stride)
	all := c.Scratch(atW + int64(g.N)*stride)
	if g.X, err = c.alongK(g.X, all, g.M, g.K, stride, o.TransA); err != nil {
		return err
	}
	if g.W, err = c.alongK(g.W, all.At(atW), g.N, g.K, stride, !o.TransB); err != nil {
		return err
	}
	return g.Launch(c)
}

// alongK is a matrix of codes [rows,k], or [k,rows] when turned, with k innermost and rows at a stride: to is for a copy.
func (c *Call) alongK(from, to Pointer, rows, k int, stride int64, turned bool) (Pointer, error) {
	switch {
	case turned:
		return to, TurnCodes{Rows: k, Cols: rows, Codes: from, Y: to, YStride: stride}.Launch(c)
	case int64(k) == stride:
		return from, nil
	}
	return to, AlignCodes{Rows: rows, Cols: k, Codes: from, Y: to, YStride: stride}.Launch(c)
}
