package cuda

import (
	"errors"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// The bodies of the ops that have kernels, attention apart.
func init() {
	Register("embedding", embeddingBody)
	Register("linear", func(c *Call) error { return productBody(c, nil) })
	Register("bf16_linear", func(c *Call) error { return productBody(c, nil) })
	Register("rmsnorm", rmsNormBody)
	Register("layernorm", layerNormBody)
	Register("rotary", rotaryBody)
	Register("add", addBody)
	Register("mul", mulBody)
	Register("swiglu", func(c *Call) error { return gatedBody(c, SwiGLU) })
	Register("geglu", func(c *Call) error {
		if c.Node.Op().(ops.GeGLUOp).Tanh {
			return gatedBody(c, GeGLUTanh)
		}
		return gatedBody(c, GeGLUErf)
	})
}

// lastDim is the innermost dimension, 1 for a scalar; rowsOf is the number of rows.
func lastDim(t graph.Type) int {
	if t.Rank() == 0 {
		return 1
	}
	return t.Shape[t.Rank()-1]
}

func rowsOf(t graph.Type) int { return t.Size() / lastDim(t) }

// inputs reads inputs from first on; those that are not there stay nil pointers.
func (c *Call) inputs(first int, to ...*Pointer) error {
	for i, q := range to {
		if first+i >= len(c.In) {
			return nil
		}
		var err error
		if *q, err = c.Input(first + i); err != nil {
			return err
		}
	}
	return nil
}

// firstOnly refuses a node of which a result behind the first is read: kernels do not write those.
func (c *Call) firstOnly() error {
	for i := 1; i < len(c.Node.Results()); i++ {
		if c.Needs(i) {
			return unsupported(c.Node.Op().Name(), "result %d is read, kernels give the first alone", i)
		}
	}
	return nil
}

func embeddingBody(c *Call) error {
	e := Embedding{Type: c.Type(), T: c.In[0].Type().Size(), D: lastDim(c.Node.Type()), Vocabulary: c.In[1].Dim(0), Scale: 1, Y: c.Output(0)}
	if err := c.inputs(0, &e.IDs, &e.Table); err != nil {
		return err
	}
	c.checkInts(0, 0, e.Vocabulary-1, "ids")
	return e.Launch(c)
}

func rmsNormBody(c *Call) error {
	t := c.In[0].Type()
	n := RMSNorm{Type: c.Type(), Rows: rowsOf(t), D: lastDim(t), Eps: float32(c.Node.Op().(ops.RMSNormOp).Eps), Y: c.Output(0), Computed: c.computed(1)}
	if err := c.firstOnly(); err != nil {
		return err
	}
	if err := c.inputs(0, &n.X, &n.W); err != nil {
		return err
	}
	if z, ok := c.p.codesOf(c.Node, t); ok {
		n.Codes, n.CodesStride = z.codes, z.stride
		if n.Made = z.steps.At; z.steps.tensor() {
			n.Made, n.Given = Pointer{}, z.steps.At
		}
		if err := c.launchCodes(z, n); !errors.Is(err, ErrUnsupported) {
			return err
		}
		n.Codes = Pointer{}
	}
	return n.Launch(c)
}

func layerNormBody(c *Call) error {
	t := c.In[0].Type()
	n := LayerNorm{Type: c.Type(), Rows: rowsOf(t), D: lastDim(t), Eps: float32(c.Node.Op().(ops.LayerNormOp).Eps), Y: c.Output(0)}
	if err := c.firstOnly(); err != nil {
		return err
	}
	if err := c.inputs(0, &n.X, &n.W, &n.B); err != nil {
		return err
	}
	return n.Launch(c)
}

// computed says whether the launch in front may write input i: it is neither a weight nor fed.
func (c *Call) computed(i int) bool { return c.p.computedNode(c.In[i]) }

func (p *program) computedNode(n *graph.Node) bool { return !p.constant[n] && rootOf(n).Op() != nil }

func addBody(c *Call) error {
	a := Add{Type: c.Type(), N: int64(c.Node.Type().Size()), Y: c.Output(0)}
	if c.Node.Type().DType != dtype.Float32 {
		return unsupported("add", "%s", c.Node.Type())
	}
	if err := c.inputs(0, &a.A, &a.B); err != nil {
		return err
	}
	return a.Launch(c)
}

func mulBody(c *Call) error {
	x, y := c.In[0].Type(), c.In[1].Type()
	m := Mul{Type: c.Type(), N: int64(x.Size()), D: x.Size() / max(y.Size(), 1), Y: c.Output(0)}
	var errs [2]error
	m.X, errs[0] = c.Input(0)
	m.B, m.BType, errs[1] = c.scores(1)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	to, _ := c.p.plan.Place(c.Node)
	if from, _ := c.p.plan.Place(rootOf(c.In[1])); m.BType != m.Type && to == from && !c.p.constant[c.In[1]] {
		return unsupported("mul", "a result in the place of factors of another type")
	}
	return m.Launch(c)
}

func gatedBody(c *Call, gate Gate) error {
	t := c.Node.Type()
	g := Gated{Type: c.Type(), Gate: gate, Rows: rowsOf(t), F: lastDim(t), Y: c.Output(0)}
	if err := c.inputs(0, &g.G, &g.Up); err != nil {
		return err
	}
	if z, ok := c.p.codesOf(c.Node, t); ok {
		// A row's codes lie in the place of the row, which may be that of gate or up.
		if z.stride = int64(g.F * c.Type().Size()); z.steps.row() {
			z.steps.At = c.p.region(region{label: "steps", bytes: int64(4 * g.Rows)}).pointer()
		}
		g.Codes, g.CodesStride, g.Steps = z.codes, z.stride, z.steps
		if err := c.launchCodes(z, g); !errors.Is(err, ErrUnsupported) {
			return err
		}
		g.Codes = Pointer{}
	}
	return g.Launch(c)
}

// rotation is a Rotary of one node: heads, table and positions; x is input at of the node, its positions come behind.
func (c *Call) rotation(x *graph.Node, positions int, table *ops.RotaryTable, interleaved, back bool) (Rotary, error) {
	t := x.Type()
	r := t.Rank()
	rot := Rotary{Type: c.Type(), T: t.Size() / (t.Shape[r-1] * t.Shape[r-2]), D: t.Shape[r-1], Rot: table.Width, MaxPositions: table.Positions}
	if interleaved {
		rot.Pairing = Interleaved
	}
	if back {
		return rot, unsupported("rotary", "the way back is for gradients")
	}
	rot.Cos, rot.Sin = c.Table(table)
	length := t.Shape[r-3]
	if positions >= len(c.In) {
		n := rot.T
		rot.Positions = c.Prepared([3]any{"positions", n, length}, "positions", n, func(dst []int32, _ graph.Feeds) {
			for i := range dst {
				dst[i] = int32(i % length)
			}
		})
		return rot, nil
	}
	c.checkInts(positions, 0, table.Positions-1, "positions")
	pos := c.In[positions]
	rot.Computed = !c.fed(positions)
	if pos.Type().Size() == rot.T {
		var err error
		rot.Positions, err = c.Input(positions)
		return rot, err
	}
	if !c.fed(positions) {
		return rot, unsupported("rotary", "positions %s for every sequence are not fed", pos.Name())
	}
	rot.Positions = c.Prepared([3]any{pos, rot.T, length}, pos.Name()+" of every sequence", rot.T, func(dst []int32, f graph.Feeds) {
		for v := ints(f, pos); len(dst) > 0; dst = dst[len(v):] {
			copy(dst, v)
		}
	})
	return rot, nil
}

func rotaryBody(c *Call) error {
	o, x := c.Node.Op().(ops.RotaryOp), c.In[0]
	r, err := c.rotation(x, 1, o.Table, o.Pairing == ops.Interleaved, o.Back)
	if err != nil {
		return err
	}
	r.Hq, r.QOut = x.Dim(-2), c.Output(0)
	if r.Q, err = c.Input(0); err != nil {
		return err
	}
	return r.Launch(c)
}
