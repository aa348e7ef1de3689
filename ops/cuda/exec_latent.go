package cuda

import (
	"errors"

	"github.com/seafan/seafan/ops"
)

// The small steps of latent attention.
func init() {
	Register("split", splitBody)
	Register("join", joinBody)
	Register("latent_kv", latentKVBody)
	Register("latent_query", func(c *Call) error {
		o := c.Node.Op().(ops.LatentQueryOp)
		return latentProductBody(c, LatentProduct{N: o.N, V: o.V, P: lastDim(c.In[0].Type()) - o.N})
	})
	Register("latent_value", func(c *Call) error {
		o := c.Node.Op().(ops.LatentValueOp)
		return latentProductBody(c, LatentProduct{N: o.N, V: o.V, Value: true})
	})
}

// severalActivations says that all results of an op are activations, in the compute dtype.
func severalActivations(op string) bool { return op == "split" || op == "latent_kv" }

// moves launches any number of parts.
func (c *Call) moves(rows int, parts []MovePart) error {
	for at := 0; at < len(parts); at += 4 {
		if err := (Moves{Type: c.Type(), Rows: rows, Parts: parts[at:min(at+4, len(parts))]}).Launch(c); err != nil {
			return err
		}
	}
	return nil
}

func splitBody(c *Call) error {
	x, err := c.Input(0)
	if err != nil {
		return err
	}
	t := c.In[0].Type()
	var parts []MovePart
	at := 0
	for i, n := range c.Node.Op().(ops.SplitOp).Sizes {
		if c.Needs(i) {
			parts = append(parts, MovePart{To: c.Output(i), ToStride: int64(n), From: x.At(int64(at * c.Type().Size())), FromStride: int64(lastDim(t)), N: n})
		}
		at += n
	}
	return c.moves(rowsOf(t), parts)
}

func joinBody(c *Call) error {
	y, t := c.Output(0), c.Node.Type()
	var parts []MovePart
	at := 0
	for i, in := range c.In {
		x, err := c.Input(i)
		if err != nil {
			return err
		}
		n := lastDim(in.Type())
		parts = append(parts, MovePart{To: y.At(int64(at * c.Type().Size())), ToStride: int64(lastDim(t)), From: x, FromStride: int64(n), N: n})
		at += n
	}
	return c.moves(rowsOf(t), parts)
}

func latentKVBody(c *Call) error {
	o, p := c.Node.Op().(ops.LatentKVOp), lastDim(c.In[1].Type())
	var kv, shared Pointer
	if err := c.inputs(0, &kv, &shared); err != nil {
		return err
	}
	size := int64(c.Type().Size())
	k, v, n := c.Output(0), c.Output(1), int64(o.N)
	var parts []MovePart
	if c.Needs(0) {
		parts = append(parts, MovePart{To: k, ToStride: n + int64(p), From: kv, FromStride: n + int64(o.V), N: o.N},
			MovePart{To: k.At(n * size), ToStride: n + int64(p), From: shared, FromStride: int64(p), N: p, Divide: o.H})
	}
	if c.Needs(1) {
		parts = append(parts, MovePart{To: v, ToStride: int64(o.V), From: kv.At(n * size), FromStride: n + int64(o.V), N: o.V})
	}
	return c.moves(rowsOf(c.In[1].Type())*o.H, parts)
}

func latentProductBody(c *Call, l LatentProduct) error {
	x := c.In[0].Type()
	l.Type, l.H, l.T, l.R, l.Y = c.Type(), c.In[0].Dim(-2), rowsOf(x)/c.In[0].Dim(-2), lastDim(c.In[1].Type()), c.Output(0)
	if param := c.In[1].Param(); param != nil && !floatWeight(param) {
		return unsupported(c.Node.Op().Name(), "a weight of %s", param.Type.DType)
	}
	return errors.Join(c.inputs(0, &l.X, &l.W), l.Launch(c))
}
