package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"

	"github.com/seafan/seafan/graph/dtype"
)

// GradCall is one use of an op's gradient rule.
type GradCall struct {
	Op      Op
	In      []*Node // the inputs of the node
	Results []*Node // its results, for rules that reuse them

	node *Node
	grad *Node
}

// Out is the gradient of result i; nil when the loss does not depend on it. A
// result that the op does not have makes the rule fail.
func (g *GradCall) Out(i int) *Node {
	if i < 0 || i >= len(g.node.outs) { // rule makes it an error
		panic(fmt.Sprintf("Out(%d) is asked for, results are counted from 0 to %d", i, len(g.node.outs)-1))
	}
	if len(g.node.outs) == 1 {
		return g.grad
	}
	return partGrad(g.grad, i)
}

// partGrad reads the gradient of part i out of a sum of scatters.
func partGrad(d *Node, i int) *Node {
	switch op := d.op.(type) {
	case scatter:
		if op.Index == i {
			return d.in[0]
		}
		return nil
	case Add:
		a, b := partGrad(d.in[0], i), partGrad(d.in[1], i)
		switch {
		case a == nil:
			return b
		case b == nil:
			return a
		}
		return Apply(Add{}, a, b)
	}
	return nil
}

// Grad differentiates the scalar loss and returns one node for each of wrt,
// which are leaves, usually b.Params(). It is gorgonia's symbolic
// differentiation over the gradient rules of the ops, and is taken once on a
// graph, after the passes.
func (b *Builder) Grad(loss *Node, wrt ...*Node) ([]*Node, error) {
	if err := b.Err(); err != nil {
		return nil, err
	}
	if err := b.checkGrad(loss, wrt); err != nil {
		return nil, fmt.Errorf("graph: Grad: %w", err)
	}
	b.graded, b.forward = true, len(b.nodes)
	seed := (&Builder{shared: b.shared}).Const("loss_grad", 1)
	if b.err != nil {
		return nil, b.err
	}
	targets := make(gorgonia.Nodes, len(wrt))
	for i, n := range wrt {
		targets[i] = n.g
	}
	var gs gorgonia.Nodes
	err := func() (err error) {
		defer recoverTo(&err)
		gs, err = gorgonia.Backpropagate(gorgonia.Nodes{loss.g}, gorgonia.Nodes{seed.g}, targets)
		return err
	}()
	b.within = nil
	if b.err != nil { // a rule failed: its own words say more
		return nil, b.err
	}
	if err != nil {
		b.err = fmt.Errorf("graph: Grad: %w", err)
		return nil, b.err
	}
	grads := make([]*Node, len(gs))
	for i, gn := range gs {
		if grads[i], err = b.wrap(gn); err != nil {
			b.err = fmt.Errorf("graph: Grad: %w", err)
			return nil, b.err
		}
	}
	return grads, nil
}

// Graded reports whether the gradient was taken: passes come before it.
func (b *Builder) Graded() bool { return b.made().graded }

func (b *Builder) checkGrad(loss *Node, wrt []*Node) error {
	switch {
	case b.graded:
		return errors.New("the gradient was taken already: build the graph again, sharing its parameters, for another one")
	case loss == nil || loss.bad() || loss.b != b.shared:
		return errors.New("the loss is not a node of this graph")
	case loss.typ.Rank() != 0 || loss.typ.DType != b.float:
		return fmt.Errorf("the loss must be a scalar of %s, got %s %s", b.float, loss.name, loss.typ)
	case len(wrt) == 0:
		return errors.New("nothing to differentiate by: the graph has no trainable parameters")
	}
	reach := map[*Node]bool{}
	differentiates(loss, reach)
	var lost []string
	for _, n := range wrt {
		if n == nil || n.bad() || n.b != b.shared || n.op != nil {
			return errors.New("can only differentiate by inputs and parameters of this graph")
		}
		if !reach[n] {
			lost = append(lost, n.name)
		}
	}
	if lost != nil {
		return fmt.Errorf("the loss does not depend on %s", strings.Join(lost, ", "))
	}
	return nil
}

// differentiates collects the nodes that the loss has a gradient for.
func differentiates(n *Node, seen map[*Node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	for i, in := range n.in {
		if n.differentiable(i) {
			differentiates(in, seen)
		}
	}
}

// differentiable reports whether n's rule gives a gradient for input i.
func (n *Node) differentiable(i int) bool {
	dt := n.in[i].typ.DType
	return n.def.Grad != nil && (dt == dtype.Float32 || dt == dtype.Float64) && !slices.Contains(n.def.NoGrad, i)
}

// gradient is SymDiff: it applies the rule of n to the gradient of its value.
func (n *Node) gradient(gn *gorgonia.Node) (out gorgonia.Nodes, err error) {
	b := n.Builder()
	defer func() {
		if err != nil && b.err == nil { // gorgonia would put words of its own before it
			b.err = fmt.Errorf("graph: Grad: %w", err)
		}
	}()
	d, err := b.wrap(gn)
	if err != nil {
		return nil, err
	}
	n.b.within = n
	defer func() { n.b.within = nil }()
	g := &GradCall{Op: n.op, In: n.In(), Results: n.results(), node: n, grad: d}
	grads, err := n.rule(g)
	if b.err != nil {
		return nil, b.err
	}
	if err != nil {
		return nil, err
	}
	if len(grads) != len(n.in) {
		return nil, fmt.Errorf("%s: the gradient rule gave %d nodes for %d inputs", n.name, len(grads), len(n.in))
	}
	out = make(gorgonia.Nodes, len(grads))
	for i, d := range grads {
		if !n.differentiable(i) {
			continue
		}
		if d == nil {
			return nil, fmt.Errorf("%s: the gradient rule gave nothing for input %d, %s", n.name, i, n.in[i].name)
		}
		if d.b != n.b {
			return nil, fmt.Errorf("%s: the gradient of input %d, %s, belongs to another graph", n.name, i, d.name)
		}
		if !d.typ.Equal(n.in[i].typ) {
			return nil, fmt.Errorf("%s: the gradient of input %d is %s, the input is %s", n.name, i, d.typ, n.in[i].typ)
		}
		out[i] = d.g
	}
	return out, nil
}

// rule calls the gradient rule; a panic in it is its error.
func (n *Node) rule(g *GradCall) (grads []*Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: the gradient rule failed: %v", n.name, p)
		}
	}()
	return n.def.Grad(g), nil
}

// results are the nodes that hold the results of n.
func (n *Node) results() []*Node {
	if len(n.outs) == 1 {
		return []*Node{n}
	}
	rs := make([]*Node, len(n.outs))
	for _, m := range n.b.nodes {
		if r, ok := m.op.(result); ok && m.in[0] == n {
			rs[r.Index] = m
		}
	}
	return rs
}

// wrap finds or makes our node for one of gorgonia's. Those that gorgonia makes
// are the sums of gradients that meet.
func (b *Builder) wrap(gn *gorgonia.Node) (*Node, error) {
	if n := b.byID[gn.ID()]; n != nil {
		return n, nil
	}
	if gn.Op() == nil || !strings.HasPrefix(gn.Op().String(), "+") || b.g.From(gn.ID()).Len() != 2 {
		return nil, fmt.Errorf("node %v is not of ours, and only sums of gradients may be gorgonia's own", gn)
	}
	var in []*Node
	for _, c := range children(b.g, gn) {
		n, err := b.wrap(c)
		if err != nil {
			return nil, err
		}
		in = append(in, n)
	}
	n := &Node{b: b.shared, g: gn, name: b.uniqueName(join(in[0].scope, "grad_sum")), scope: in[0].scope, typ: in[0].typ, op: Add{}, def: lookup("add"), in: in}
	n.outs = []Type{n.typ}
	if b.sharesHash(gn) {
		return nil, fmt.Errorf("the sum of the gradients %s and %s has the hash of another node", in[0].name, in[1].name)
	}
	return b.keep(n), nil
}

// children are the inputs of a gorgonia node in order.
func children(g *gorgonia.ExprGraph, gn *gorgonia.Node) []*gorgonia.Node {
	var cs []*gorgonia.Node
	for it := g.From(gn.ID()); it.Next(); {
		cs = append(cs, it.Node().(*gorgonia.Node))
	}
	return cs
}
