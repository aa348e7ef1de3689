package graph

import (
	"errors"
	"fmt"
)

// Substitute decides what becomes of an op node n in a pass: its results built
// anew from the rebuilt inputs (with ApplyAll), or nil to keep the node.
type Substitute func(n *Node, in []*Node) []*Node

// Rewrite is how a pass changes a graph: it builds a new one, node by node,
// with the substitutes in place of their originals. Parameters are shared, and
// names and outputs stay.
func Rewrite(b *Builder, sub Substitute) (*Builder, error) {
	if err := b.Err(); err != nil {
		return nil, err
	}
	nb, _, err := rewrite(b, b.nodes, sub)
	return nb, err
}

// RewriteInto is Rewrite into an empty graph that has the parameters, states
// and element type of src: for callers that hand out a builder and want a pass
// between the model and themselves.
func RewriteInto(dst, src *Builder, sub Substitute) error {
	for _, b := range []*Builder{dst, src} {
		if err := b.Err(); err != nil {
			return err
		}
	}
	switch {
	case len(dst.nodes) > 0:
		return fmt.Errorf("rewrite: the target must be empty, it has %d nodes", len(dst.nodes))
	case dst.params != src.params || dst.states != src.states || dst.float != src.float:
		return errors.New("rewrite: the target must share parameters, states and element type with the graph")
	}
	return rewriteInto(dst, src, src.nodes, map[*Node][]*Node{}, sub)
}

// RewriteOutputs is Rewrite of what the outputs need, before or after Grad, and
// returns what became of them. After it no gradient is taken of the new graph and
// Recompute finds nothing to do: both come before.
func RewriteOutputs(sub Substitute, outputs ...*Node) ([]*Node, error) {
	if len(outputs) == 0 || outputs[0].missing() {
		return nil, errors.New("rewrite: no outputs")
	}
	b := outputs[0].Builder()
	if b.err != nil {
		return nil, b.err
	}
	for i, o := range outputs {
		if o.bad() || o.b != b.shared {
			return nil, fmt.Errorf("rewrite: output %d is not a node of this graph", i)
		}
	}
	nb, became, err := rewrite(b, ancestors(b, outputs), sub)
	if err != nil {
		return nil, err
	}
	nb.graded = true
	list := make([]*Node, len(outputs))
	for i, o := range outputs {
		list[i] = became[o][0]
	}
	return list, nil
}

// rewrite rebuilds the given nodes, inputs before users, and tells what became
// of each.
func rewrite(b *Builder, nodes []*Node, sub Substitute) (*Builder, map[*Node][]*Node, error) {
	nb, became := b.Sibling(), make(map[*Node][]*Node, len(nodes))
	if err := rewriteInto(nb, b, nodes, became, sub); err != nil {
		return nil, nil, err
	}
	nb.scope = b.scope
	return nb, became, nil
}

// rewriteInto is rewrite into nb; became is filled on the way.
func rewriteInto(nb, b *Builder, nodes []*Node, became map[*Node][]*Node, sub Substitute) error {
	if b.err != nil {
		return b.err
	}
	nb = &Builder{shared: nb.shared} // its scope changes on the way
	for _, n := range nodes {
		nb.scope = n.scope
		if n.op == nil {
			m := nb.leaf(n.Label(), n.typ, n.param, n.value)
			became[n] = []*Node{m}
			continue
		}
		if r, ok := n.op.(result); ok {
			became[n] = became[n.in[0]][r.Index : r.Index+1]
			continue
		}
		in := make([]*Node, len(n.in))
		for i, c := range n.in {
			in[i] = became[c][0]
		}
		nb.within = n
		var out []*Node
		if sub != nil {
			out = sub(n, in)
		}
		if out == nil {
			out = ApplyAll(n.Label(), n.op, in...)
		}
		nb.within = nil
		if nb.err != nil {
			return nb.err
		}
		if err := fits(nb, n, out); err != nil {
			return located(n.name, n.op.Name(), err)
		}
		became[n] = out
	}
	for _, o := range b.outputs {
		if m := became[o.node]; m != nil {
			nb.Output(o.name, m[0])
		}
	}
	return nb.err
}

// fits holds a substitute to the results of the node it stands for.
func fits(nb *Builder, n *Node, out []*Node) error {
	if len(out) < len(n.outs) {
		return fmt.Errorf("rewrite: the substitute has %d results, the node has %d", len(out), len(n.outs))
	}
	for i, t := range n.outs {
		switch {
		case out[i].bad():
			return errors.New("rewrite: the substitute is not a node")
		case out[i].b != nb.shared:
			return fmt.Errorf("rewrite: the substitute %s belongs to another graph: build it from the rebuilt inputs", out[i].name)
		case !out[i].typ.Equal(t):
			return fmt.Errorf("rewrite: result %d of the substitute is %s, must be %s", i, out[i].typ, t)
		}
	}
	return nil
}
