package cuda

import "github.com/seafan/seafan/graph"

// Steps that become one launch. Both patterns need the steps to follow each other and the values between them to have no
// other reader; then nothing else runs while the operands are needed longer than the plan knows, and only the result itself
// could lie over them, which is checked.

// fused queues steps i and following as one launch and returns how many they are, 0 when no pattern fits.
func (c *compilation) fused(q Queue, i int) (int, error) {
	if g, ok := c.gatedProducts(i); ok {
		return 3, c.product(q, g)
	}
	if g, ok := c.addedProduct(i); ok {
		return 2, c.product(q, g)
	}
	return 0, nil
}

func (c *compilation) node(i int, op string) *graph.Node {
	if i < len(c.plan.Steps) && c.plan.Steps[i].Node.Op().Name() == op {
		return c.plan.Steps[i].Node
	}
	return nil
}

// plainProduct is a linear step without bias, of a weight, whose value only the next steps read.
func (c *compilation) plainProduct(i int) (n *graph.Node, g Gemm, ok bool) {
	n = c.node(i, "linear")
	if n == nil || len(n.In()) != 2 || c.readers[n] != 1 || n.In()[1].Param() == nil {
		return n, g, false
	}
	m, k := rowsOf(n.In()[0].Type())
	g = Gemm{Type: c.options.Type, M: m, N: n.In()[1].Dim(0), K: k}
	return n, g, true
}

// apart says whether two values share no memory of the arena.
func (c *compilation) apart(a, b *graph.Node) bool {
	p, ok := c.plan.Place(a)
	r, found := c.plan.Place(b)
	if !ok || !found || p.Leaf != nil || r.Leaf != nil {
		return ok && found
	}
	return p.Offset+a.Type().Bytes() <= r.Offset || r.Offset+b.Type().Bytes() <= p.Offset
}

// addedProduct is add(linear(x, w), residual) in either order.
func (c *compilation) addedProduct(i int) (Gemm, bool) {
	n, g, ok := c.plainProduct(i)
	add := c.node(i+1, "add")
	if !ok || add == nil || !c.apart(add, n.In()[0]) {
		return g, false
	}
	residual := add.In()[0]
	if residual == n {
		residual = add.In()[1]
	}
	if residual == n || add.In()[0] != n && add.In()[1] != n {
		return g, false
	}
	ok = c.operands(&g, add, n.In()[0], func() (err error) {
		if g.Residual, err = c.pointer(residual); err != nil {
			return err
		}
		g.W, err = c.pointer(n.In()[1])
		return err
	})
	return g, ok
}

// gatedProducts is swiglu(linear(x, w1), linear(x, w2)): the rows of w1 and w2 go up as one weight.
func (c *compilation) gatedProducts(i int) (Gemm, bool) {
	gate, g, ok := c.plainProduct(i)
	up, _, also := c.plainProduct(i + 1)
	n := c.node(i+2, "swiglu")
	if !ok || !also || n == nil || gate.In()[0] != up.In()[0] || gate.In()[1] == up.In()[1] || !c.apart(n, gate.In()[0]) {
		return g, false
	}
	if n.In()[0] == up && n.In()[1] == gate {
		gate, up = up, gate
	}
	if n.In()[0] != gate || n.In()[1] != up || !gate.Type().Equal(up.Type()) {
		return g, false
	}
	g.SwiGLU = true
	ok = c.operands(&g, n, gate.In()[0], func() (err error) {
		g.W, err = c.mem.pair(gate.In()[1].Param(), up.In()[1].Param(), c.options.Type)
		return err
	})
	return g, ok
}

// operands fills in where the operands lie; a failure leaves the steps to be lowered one by one, which reports it.
func (c *compilation) operands(g *Gemm, y, x *graph.Node, more func() error) bool {
	var err error
	if g.Y, err = c.pointer(y); err != nil {
		return false
	}
	if g.X, err = c.pointer(x); err != nil {
		return false
	}
	return more() == nil
}
