package cuda

import (
	"errors"
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// The bodies of the FP8 ops.
func init() {
	Register("fp8_weight_linear", func(c *Call) error { return productBody(c, nil) })
	Register("fp8_linear", fp8LinearBody)
	Register("fp8_steps", fp8StepsBody)
	Register("amax", amaxBody)
	Register("quantize", quantizeBody)
	Register("dequantize", dequantizeBody)
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
	case ops.LinearOp, ops.BF16LinearOp, ops.FP8WeightLinearOp:
		return true
	}
	return false
}

// plain says whether a node is a linear that multiplies in the compute dtype.
func (p *program) plain(n *graph.Node) bool {
	_, ok := opOf[ops.LinearOp](n)
	_, half := opOf[ops.BF16LinearOp](n)
	return ok || half && p.compute == BF16
}

// quantises says whether a node is an FP8 linear that multiplies codes.
func quantises(n *graph.Node) bool {
	o, ok := n.Op().(ops.FP8WeightLinearOp)
	return ok && o.Activations != ops.Exact
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
	if _, half := c.Node.Op().(ops.BF16LinearOp); half && c.Type() != BF16 {
		return unsupported("bf16_linear", "products of bf16 where the compute dtype is %v", c.Type())
	}
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
	if err := c.lengthen(&g, w); err != nil {
		return err
	}
	if bias != nil {
		if g.Bias, err = c.p.rows(c.Type(), bias...); err != nil {
			return err
		}
	}
	return g.Launch(c)
}

// lengthen puts zeros behind the rows of x and of the weights w, up to the multiple of 8 that products read.
func (c *Call) lengthen(g *Gemm, w []*graph.Node) error {
	k, row := g.K, ceilDiv(g.K, 8)*8
	if k == row {
		return nil
	}
	long, err := c.p.join(c.Type(), row, w...)
	if err != nil {
		return nil // the product says what it lacks
	}
	g.K, g.W = row, long
	r := c.p.longer[k]
	if r == nil {
		r = c.p.region(region{label: fmt.Sprintf("rows of %d", k)}) // zeros at the start, and behind the rows for good
		c.p.longer[k] = r
	}
	r.bytes = max(r.bytes, int64(g.M*g.K*c.Type().Size()))
	x := g.X
	g.X = r.pointer()
	return c.moves(g.M, []MovePart{{To: g.X, ToStride: int64(g.K), From: x, FromStride: int64(k), N: k}})
}

// rows is a value in a type, or several weights one after the other.
func (p *program) rows(dt DType, nodes ...*graph.Node) (Pointer, error) {
	if len(nodes) == 1 {
		return p.read("linear", nodes[0], dt)
	}
	return p.join(dt, 0, nodes...)
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
	g := FP8Gemm{M: m.M, N: m.N, K: m.K, X: m.X, XType: m.Type, WType: E4M3, Y: m.Y, Out: m.Type, Residual: m.Residual, SwiGLU: m.SwiGLU, Exact: m.Type == F32}
	var err error
	var zw *Quantize
	if at := linears[0].In()[1]; !exact && len(linears) == 1 && at.Param() == nil && at.Type().DType == dtype.Float32 {
		zw = &Quantize{Type: m.Type, Format: E4M3, Rows: m.N, Cols: m.K, Dynamic: true, Steps: FP8Steps{Rows: 1}}
		if zw.X, err = c.Input(1); err != nil {
			return err
		}
	} else {
		w, err := c.p.fp8Weights(linears, exact, nil)
		if err != nil {
			return err
		}
		g.W, g.WType, g.WStride, g.WSteps = w.codes, w.dt, w.stride, w.steps
	}
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
		return c.fp8Product(g, nil, nil)
	}
	if c.codes != nil {
		g.Out, g.OutStep, g.Y, g.YStride = E4M3, c.codes.steps.At, c.codes.codes, c.codes.stride
	}
	if x, ok := c.p.coded[rootOf(c.In[0])]; ok {
		g.X, g.XType, g.XStride, g.XSteps = x.codes, E4M3, x.stride, x.steps
		return c.fp8Product(g, nil, zw)
	}
	z := Quantize{Type: m.Type, Format: E4M3, Rows: m.M, Cols: m.K, X: m.X}
	if o.Activations == ops.StaticSteps {
		z.Steps.At = c.p.scalar(o.StepX)
	} else {
		z.Steps.Rows, z.Dynamic = 1, true
	}
	return c.fp8Product(g, &z, zw)
}

// widestCoded is the K up to which a product makes the codes of its one row: a launch in front is quicker beyond.
const widestCoded = 8192

// fp8Product launches a product with its scratch, behind the codes of its x and w when those are to be made, and a copy of a wide
// x whose rows do not lie at multiples of 16 bytes. Codes of one row are the product's own to make: of more, a launch in front is
// about as quick.
func (c *Call) fp8Product(g FP8Gemm, x, w *Quantize) error {
	if w != nil {
		g.WType, g.WSteps = w.Format, w.Steps
	}
	if x != nil {
		g.XType = x.Type
		if g.M == 1 && g.K <= widestCoded && x.Dynamic && x.Steps.row() && x.Format == E4M3 && x.Margin == 0 && x.X.Addr%16 == 0 && g.codes(c.Target()) {
			g.X, g.XSteps, g.Coding, x = x.X, FP8Steps{}, true, nil
		} else {
			g.XType, g.XSteps = x.Format, x.Steps
		}
	}
	scratch := g.ScratchBytes(c.Target())
	end := up256(scratch)
	take := func(n int64) int64 {
		at := end
		end += up256(n)
		return at
	}
	// Each is told where its part of the scratch starts, once that is as large as all need.
	var order []func(Pointer) error
	quantize := func(z *Quantize, at *Pointer, stride *int64, steps *FP8Steps) {
		*stride = up16(g.K)
		codes, made := take(int64(z.Rows)**stride), take(4*int64(max(z.Rows, 1)))
		order = append(order, func(all Pointer) error {
			z.Codes, z.CodesStride = all.At(codes), *stride
			if z.Dynamic {
				z.Steps.At = all.At(made)
				if z.Steps.tensor() {
					z.Flags = c.Flags(QuantizeFlags)
				}
			}
			*at, *steps = z.Codes, z.Steps
			return z.Launch(c)
		})
	}
	if x != nil {
		quantize(x, &g.X, &g.XStride, &g.XSteps)
	}
	if w != nil {
		quantize(w, &g.W, &g.WStride, &g.WSteps)
		g.Computed = true
	}
	if size := int64(g.XType.Size()); g.wide() && int64(g.K)*size%16 != 0 {
		row := up16(g.K * int(size))
		copied := take(int64(g.M) * row)
		order = append(order, func(all Pointer) error {
			from := g.X
			g.X, g.XStride = all.At(copied), row/size
			return AlignCodes{Rows: g.M, Cols: g.K * int(size), Codes: from, Y: g.X, YStride: row}.Launch(c)
		})
	}
	if end > 0 {
		all := c.Scratch(end)
		for _, f := range order {
			if err := f(all); err != nil {
				return err
			}
		}
		if scratch > 0 {
			g.Scratch = all
		}
	}
	return g.Launch(c)
}

// historyStep is where a run finds the step of x that the state of an FP8Linear leads to, or own: x's largest magnitude decides.
// Which of the two it is must not change from the compilation on.
func (c *Call) historyStep(r ops.FP8Recipe) (at Pointer, own bool) {
	w, x, sw := c.In[1].Param(), c.In[2].Param(), c.In[3].Param()
	if r.History == 0 {
		return at, true
	}
	version, replaced := uint64(0), false
	now := func() (step float32, known bool) {
		if v := w.Version() + sw.Version() + 1; v != version {
			amax, _ := native.FP8TensorAmax(as[float32](weightBytes(w, F32)))
			_, replaced = r.WeightStep(graph.Data[float32](sw.Tensor()), amax)
			version = v
		}
		step, known = r.HistoryStep(graph.Data[float32](x.Tensor()))
		return step, known && !replaced
	}
	_, known := now()
	c.Check([2]any{"history", c.Node}, func(graph.Feeds) error {
		if _, is := now(); is != known {
			return fmt.Errorf("fp8_linear: the state %s has a history to take the step from: %t, when the plan was compiled: %t; compile it again", x.Name, is, known)
		}
		return nil
	})
	if !known {
		return at, true
	}
	return c.Prepared([2]any{"step", c.Node}, x.Name, 1, func(dst []int32, _ graph.Feeds) {
		step, _ := now()
		dst[0] = int32(math.Float32bits(step))
	}), false
}

// fp8LinearBody is the forward pass of a training linear: evaluation, which leaves the states as they are. A recipe with a history
// takes the steps from the states as they are when a run begins. An x whose largest magnitude is infinite, measured here, gets the
// step 1.
func fp8LinearBody(c *Call) error {
	const op = "fp8_linear"
	r := c.Node.Op().(ops.FP8LinearOp).Recipe
	if err := errors.Join(hasFP8(op, c.Target()), c.firstOnly()); err != nil {
		return err
	}
	g := FP8Gemm{M: rowsOf(c.In[0].Type()), N: c.In[1].Dim(0), K: lastDim(c.In[0].Type()), WType: E4M3, Y: c.Output(0), Out: c.OutputType(), Exact: c.Type() == F32}
	if r.Format.Forward() == native.E5M2 {
		g.WType = E5M2
	}
	z := Quantize{Type: c.Type(), Format: g.WType, Rows: g.M, Cols: g.K, Dynamic: true, Margin: r.Margin}
	var zw *Quantize
	if w := c.In[1].Param(); w == nil {
		if r.History > 0 {
			return unsupported(op, "%s of a weight that is computed", r)
		}
		zw = &Quantize{Type: c.Type(), Format: g.WType, Rows: g.N, Cols: g.K, Dynamic: true, Margin: r.Margin}
		if err := c.inputs(1, &zw.X); err != nil {
			return err
		}
	} else {
		w, err := c.p.fp8Weights([]*graph.Node{c.Node}, false, &r)
		if err != nil {
			return err
		}
		g.W, g.WStride, g.WSteps = w.codes, w.stride, w.steps
		if z.Steps.At, z.Dynamic = c.historyStep(r); z.Dynamic {
			z.Steps.At = Pointer{}
		}
	}
	var err error
	if err := c.inputs(0, &z.X); err != nil {
		return err
	}
	if len(c.In) > 5 {
		if g.Bias, err = c.InputAs(5, F32); err != nil {
			return err
		}
	}
	return c.fp8Product(g, &z, zw)
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

func dequantizeBody(c *Call) error {
	t := c.In[0].Type()
	d := Dequantize{Type: c.Type(), Format: formatOfNode(c.In[0]), Rows: rowsOf(t), Cols: lastDim(t), Y: c.Output(0), Steps: stepsOfBlock(c.Node.Op().(ops.DequantizeOp).Block)}
	var err error
	if d.Steps.At, err = c.InputAs(1, F32); err != nil {
		return err
	}
	if err := c.inputs(0, &d.Codes); err != nil {
		return err
	}
	return d.Launch(c)
}

func fp8MatMulBody(c *Call) error {
	const op = "fp8_matmul"
	o := c.Node.Op().(ops.FP8MatMulOp)
	if err := hasFP8(op, c.Target()); err != nil {
		return err
	}
	t := c.Node.Type()
	g := FP8Gemm{M: t.Shape[0], N: t.Shape[1], K: lastDim(c.In[0].Type()), XType: formatOfNode(c.In[0]), WType: formatOfNode(c.In[1]), XSteps: stepsOfBlock(o.BlockA), WSteps: stepsOfBlock(o.BlockB), Y: c.Output(0), Out: c.OutputType(), Exact: c.Type() == F32}
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
