package graph

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
)

// Tape runs a graph on gorgonia's TapeMachine. A plan is faster and uses less
// memory; the tape is there because a graph of ours is one of gorgonia's, and
// because two ways to run it check each other.
type Tape struct {
	b       *Builder
	vm      gorgonia.VM
	inputs  []feedSlot
	outputs []*Node // as asked for
	copies  []*Node // their copies in the tape's graph
}

// Tape compiles what the outputs need. It runs a copy of the graph in which the
// sums that gorgonia made are ours: gorgonia's own may overwrite an operand
// whose memory a view still shows.
func (b *Builder) Tape(outputs ...*Node) (t *Tape, err error) {
	p, err := b.Plan(outputs...) // for its checks
	if err != nil {
		return nil, err
	}
	nb, became, err := rewrite(b, p.nodes, nil)
	if err != nil {
		return nil, err
	}
	t = &Tape{b: nb, outputs: slices.Clone(outputs)}
	for _, o := range outputs {
		t.copies = append(t.copies, became[o][0])
	}
	for _, n := range nb.nodes {
		if !tapeRuns(n.typ.DType) {
			return nil, fmt.Errorf("graph: Tape: %s is %s, which gorgonia cannot hold", n.name, n.typ)
		}
		if n.op != nil {
			continue
		}
		v := Tensor{n.typ, n.value}
		switch {
		case n.param != nil:
			v = n.param.Tensor()
		case n.feed():
			v = NewTensor(n.typ)
			t.inputs = append(t.inputs, feedSlot{n.name, v})
		}
		val, err := tensorValue(v)
		if err != nil {
			return nil, fmt.Errorf("graph: Tape: %s: %w", n.name, err)
		}
		if err := gorgonia.Let(n.g, val); err != nil {
			return nil, fmt.Errorf("graph: Tape: %s: %w", n.name, err)
		}
	}
	defer recoverTo(&err)
	t.vm = gorgonia.NewTapeMachine(nb.g)
	return t, nil
}

var errNoTape = errors.New("the tape is missing: Builder.Tape makes one")

// Do runs the graph.
func (t *Tape) Do(feeds Feeds) (err error) {
	if t == nil || t.vm == nil {
		return fmt.Errorf("graph: Do: %w", errNoTape)
	}
	if err := t.b.params.Hold(); err != nil {
		return fmt.Errorf("graph: Do: %w", err)
	}
	defer t.b.params.Release()
	r := Native{inputs: t.inputs}
	if err := r.checkFeeds(feeds); err != nil {
		return err
	}
	for _, in := range t.inputs {
		b, _, _ := bytesOf(feeds[in.name])
		copy(in.to.mem, b)
	}
	defer recoverTo(&err)
	t.vm.Reset() // without it a second RunAll does nothing
	return t.vm.RunAll()
}

// Value is the value of an output after a run.
func (t *Tape) Value(n *Node) (Tensor, error) {
	if t == nil || t.vm == nil {
		return Tensor{}, fmt.Errorf("graph: Value: %w", errNoTape)
	}
	i := slices.Index(t.outputs, n)
	if i < 0 {
		return Tensor{}, fmt.Errorf("graph: Value: %s is not an output of the tape", n.text())
	}
	v := t.copies[i].g.Value()
	if v == nil {
		return Tensor{}, errors.New("graph: Value: the tape has not run")
	}
	return valueTensor(v, n.typ)
}

// Close ends the machine.
func (t *Tape) Close() error {
	if t == nil || t.vm == nil {
		return fmt.Errorf("graph: Close: %w", errNoTape)
	}
	return t.vm.Close()
}
