// Packed training: rows that hold several sequences which do not see each other.

package models

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// PackedSeqlens is the input that says where sequences end: prefix sums of their
// lengths over all tokens of the batch, int32 [sequences+1]. Empty sequences
// are legal, so one graph serves any number of them: repeat the end.
const PackedSeqlens = "cu_seqlens"

// Pack is a pass over the loss of a model, of whatever architecture, with
// adapters or in 8 bits: it returns the outputs in a graph whose rows hold
// several sequences each. That graph has two more inputs where it needs them,
// "positions" (int32 [B,T], counted from 0 in each sequence) and "cu_seqlens",
// with room for the given number of sequences in all rows together. A sequence
// must not cross the end of a row, so that each row end is the end of one.
//
// Attention, KDA and the short convolution get their packed forms, rotary the
// positions; every other op works on tokens one by one and stays. The ops of
// generation, positions or states of the model's own, and a use of a second
// result such as lse are refused. An op from outside the module must not let
// tokens meet.
//
// The outputs are those of one graph, with the input "tokens" [B,T], before its
// gradient is taken.
func Pack(sequences int, outputs ...*graph.Node) ([]*graph.Node, error) {
	fail := func(format string, args ...any) ([]*graph.Node, error) {
		return nil, fmt.Errorf("models: pack: "+format, args...)
	}
	if len(outputs) == 0 {
		return fail("at least one output is required")
	}
	b := outputs[0].Builder()
	if err := b.Err(); err != nil {
		return nil, err
	}
	tokens := b.Node("tokens")
	switch {
	case sequences < 1:
		return fail("the number of sequences must be at least 1, got %d", sequences)
	case b.Graded():
		return fail("the gradient of the graph must be taken after the pass")
	case tokens == nil || len(tokens.Shape()) != 2:
		return fail(`the graph must have an input "tokens" [B,T]`)
	}
	name := func(i int) string { return fmt.Sprintf("packed.%d", i) }
	for i, o := range outputs {
		b.Output(name(i), o)
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	p := &packing{b: b.Sibling(), sequences: sequences, rows: tokens.Dim(0), length: tokens.Dim(1)}
	err := graph.RewriteInto(p.b, b, p.substitute)
	if p.err != nil {
		err = p.err
	}
	if err != nil {
		return fail("%w", err)
	}
	packed := make([]*graph.Node, len(outputs))
	for i := range outputs {
		packed[i] = p.b.Out(name(i))
	}
	return packed, meetings(packed)
}

// packing is the pass at work.
type packing struct {
	b                       *graph.Builder
	sequences, rows, length int
	positions, seqlens      *graph.Node // made when they are first needed
	err                     error
}

// substitute gives the ops in which tokens meet their packed forms. Results
// after the first have no packed form of their type: they stay those of the
// first op, which no output may need.
func (p *packing) substitute(n *graph.Node, in []*graph.Node) []*graph.Node {
	switch o := n.Op().(type) {
	case ops.RotaryOp:
		if len(in) > 1 {
			return p.refuse(n, "has positions of its own")
		}
		if p.positions == nil {
			p.positions = p.b.Input(PackedPositions, dtype.Int32, p.rows, p.length)
		}
		return []*graph.Node{graph.ApplyAs(n.Label(), o, in[0], p.positions)}
	case ops.AttentionOp:
		if o.Mask || o.KVLen || o.Ragged {
			return p.refuse(n, "has a mask or lengths of its own")
		}
		o.Ragged = true
		return p.repack(n, o, in, 3, 2)
	case ops.KDAOp:
		if o.S0 || o.Packed {
			return p.refuse(n, "has a state or sequences of its own")
		}
		o.Packed = true
		return p.repack(n, o, in, 5, 1)
	case ops.ShortConvOp:
		if o.State || o.Packed {
			return p.refuse(n, "has a state or sequences of its own")
		}
		o.Packed = true
		return p.repack(n, o, in, 1, 1)
	}
	return nil
}

// repack applies op, the packed form of n, to its first inputs as [B*T,...], to
// the others as they are, and to cu_seqlens a number of times.
func (p *packing) repack(n *graph.Node, op graph.Op, in []*graph.Node, first, times int) []*graph.Node {
	if p.seqlens == nil {
		p.seqlens = p.b.Input(PackedSeqlens, dtype.Int32, p.sequences+1)
	}
	flat := slices.Clone(in)
	for i, x := range in[:first] {
		s := x.Shape()
		if len(s) < 3 || s[0] != p.rows || s[1] != p.length {
			return p.refuse(n, fmt.Sprintf("is on %s, not on the %d rows of %d tokens", graph.Dims(s), p.rows, p.length))
		}
		flat[i] = ops.Reshape(x, append([]int{s[0] * s[1]}, s[2:]...)...)
	}
	for range times {
		flat = append(flat, p.seqlens)
	}
	plain := graph.ApplyAll(n.Label(), n.Op(), in...)
	out := graph.ApplyAll(n.Label(), op, flat...)[0]
	if s := out.Shape(); len(s) > 0 { // else it failed
		out = ops.Reshape(out, append([]int{p.rows, p.length}, s[1:]...)...)
	}
	return append([]*graph.Node{out}, plain[1:]...)
}

func (p *packing) refuse(n *graph.Node, why string) []*graph.Node {
	if p.err == nil {
		p.err = fmt.Errorf("%s: %s %s: it cannot be packed", n.Name(), n.Op().Name(), why)
	}
	return nil
}

// meetings refuses outputs that depend on an op in which the tokens of a row
// meet, whatever sequence they are of.
func meetings(outputs []*graph.Node) error {
	seen := map[*graph.Node]bool{}
	var walk func(n *graph.Node) error
	walk = func(n *graph.Node) error {
		if seen[n] {
			return nil
		}
		seen[n] = true
		meet := false
		switch o := n.Op().(type) {
		case ops.AttentionOp:
			meet = !o.Ragged
		case ops.KDAOp:
			meet = !o.Packed
		case ops.ShortConvOp:
			meet = !o.Packed
		case ops.PagedAttentionOp, ops.KDASlotsOp, ops.ShortConvSlotsOp:
			meet = true
		}
		if meet {
			return fmt.Errorf("models: pack: %s: all results of %s but the first, and the ops of generation, have no packed form", n.Name(), n.Op().Name())
		}
		for _, in := range n.In() {
			if err := walk(in); err != nil {
				return err
			}
		}
		return nil
	}
	for _, o := range outputs {
		if err := walk(o); err != nil {
			return err
		}
	}
	return nil
}
