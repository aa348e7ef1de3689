package graph

import (
	"errors"
	"fmt"
)

// Recompute returns the graph of the outputs in which the backward pass computes
// activations again instead of keeping them, and what became of the outputs:
// memory for time. It comes after Grad.
//
// segment names the part of the model that a forward node belongs to, by its
// scope; "" is none. What one part hands to the rest of the forward pass is kept.
// Of all else in a part the backward pass uses a copy, made of the same ops on
// the same values when it first needs it, so every bit is as before. Nodes that
// write to a state are never repeated.
func Recompute(segment func(scope string) string, outputs ...*Node) ([]*Node, error) {
	if len(outputs) == 0 || outputs[0].missing() {
		return nil, errors.New("graph: Recompute: no outputs")
	}
	b := outputs[0].Builder()
	switch {
	case b.err != nil:
		return nil, b.err
	case !b.graded:
		return nil, errors.New("graph: Recompute: there is no backward pass yet: take the gradient first")
	}
	for i, o := range outputs {
		if o.bad() || o.b != b.shared {
			return nil, fmt.Errorf("graph: Recompute: output %d is not a node of this graph", i)
		}
	}
	nb := b.Sibling()
	r := recomputation{
		segment: map[*Node]string{}, became: map[*Node][]*Node{}, again: map[*Node][]*Node{},
		nb: nb.shared,
	}
	nodes := ancestors(b, outputs)
	r.find(b.nodes[:b.forward], segment)
	sub := func(n *Node, in []*Node) []*Node {
		if _, forward := r.segment[n]; forward {
			return nil
		}
		repeats := false
		for i, c := range n.in {
			if m := r.repeat(c)[0]; m != in[i] {
				in[i], repeats = m, true
			}
		}
		if !repeats {
			return nil
		}
		nb.within = n
		return ApplyAll(n.Label(), n.op, in...)
	}
	if err := rewriteInto(nb, b, nodes, r.became, sub); err != nil {
		return nil, fmt.Errorf("graph: Recompute: %w", err)
	}
	nb.graded, nb.forward = true, b.forward
	list := make([]*Node, len(outputs))
	for i, o := range outputs {
		list[i] = r.became[o][0]
	}
	return list, nil
}

// recomputation is what Recompute knows of the old graph and the new one.
type recomputation struct {
	segment map[*Node]string  // of every forward op; "": it is kept
	became  map[*Node][]*Node // of every node rebuilt so far
	again   map[*Node][]*Node // the copies
	nb      *shared
}

// find sorts the forward nodes: those that a later part reads are kept, and so
// is what writes to a state.
func (r *recomputation) find(forward []*Node, segment func(string) string) {
	for _, n := range forward {
		if n.op == nil {
			continue
		}
		s := segment(n.scope)
		if _, writes := n.op.(Writer); writes || n.isWritingView() {
			s = ""
		}
		for _, in := range n.in {
			if r.segment[in] != s {
				r.keep(in)
			}
		}
		r.segment[n] = s
	}
}

// keep keeps n. What it is a view or a result of stays with it, as memory.
func (r *recomputation) keep(n *Node) {
	for n.op != nil {
		r.segment[n] = ""
		al, ok := n.op.(Aliaser)
		if !ok {
			return
		}
		n = n.in[al.Alias()]
	}
}

// isWritingView reports a node that writes to the state whose memory it shows.
func (n *Node) isWritingView() bool {
	_, ok := n.op.(Aliaser)
	return ok && n.def.Native != nil
}

// repeat is what the backward pass reads instead of n: a copy, or n itself.
func (r *recomputation) repeat(n *Node) []*Node {
	if r.segment[n] == "" {
		return r.became[n]
	}
	if res, ok := n.op.(result); ok { // its op may be kept for another result
		return r.repeat(n.in[0])[res.Index : res.Index+1]
	}
	if c := r.again[n]; c != nil {
		return c
	}
	in := make([]*Node, len(n.in))
	for i, c := range n.in {
		in[i] = r.repeat(c)[0]
	}
	r.nb.within = n
	r.again[n] = ApplyAll(n.Label()+".again", n.op, in...)
	return r.again[n]
}
