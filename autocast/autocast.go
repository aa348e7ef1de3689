// Package autocast changes the precision of the linear layers of a whole graph.
//
// A pass takes a graph and returns one in which the linears it finds eligible
// multiply in fewer bits (FP8, BF16), or in float32 by several products of bf16
// (BF16x6); everything else, names, order and parameters included, is the same,
// and every decision stands in a Report. A pass runs before the gradient is taken,
// so forward and backward agree.
package autocast

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Format says which 8-bit float an operand of a training linear has.
type Format = ops.FP8Policy

// The formats: E4M3 forward and E5M2 for the gradient, or one for both.
const (
	Hybrid = ops.Hybrid
	E4M3   = ops.OnlyE4M3
	E5M2   = ops.OnlyE5M2
)

// Recipe is how the steps of the operands are found: Dynamic or Delayed.
type Recipe interface {
	recipe(f Format) (ops.FP8Recipe, error)
}

// Dynamic takes the largest magnitude of the tensor being quantised:
//
//	step = amax / max(format) * 2^Margin
type Dynamic struct {
	Margin int // headroom in powers of 2
}

func (d Dynamic) recipe(f Format) (ops.FP8Recipe, error) {
	r := ops.FP8Recipe{Format: f, Margin: d.Margin}
	return r, r.Check()
}

// Algo picks the amax of a history.
type Algo uint8

const (
	Max        Algo = iota // the largest
	MostRecent             // the newest
)

// Delayed takes it from the last History training steps before this one; the
// first uses its own. Each operand of each linear has a history of its own.
type Delayed struct {
	History int // 1 or more; 16 is usual
	Margin  int
	Algo    Algo
}

func (d Delayed) recipe(f Format) (ops.FP8Recipe, error) {
	r := ops.FP8Recipe{Format: f, History: d.History, Margin: d.Margin, MostRecent: d.Algo == MostRecent}
	if d.History < 1 {
		return r, fmt.Errorf("Delayed needs a History of 1 or more, got %d", d.History)
	}
	if d.Algo > MostRecent {
		return r, fmt.Errorf("the Algo must be Max or MostRecent, got %d", d.Algo)
	}
	return r, r.Check()
}

// Filter chooses linears by the name of their weight. In a pattern * stands for
// any characters, ? for one, [a-c] for one of a class.
//
// Without Include every linear is a candidate but those of the default
// exclusions: the output head, embedding tables, routers, norms, and weights
// of fewer than MinSize elements. With Include only the linears it matches
// are, whatever they are. Exclude takes candidates away; a weight that both
// match is an error, and so is a pattern that matches no linear.
type Filter struct {
	Include []string
	Exclude []string
	MinSize int // 0: the default of the pass; 1: no threshold
}

// DefaultMinSize is the least number of elements of a weight that FP8 takes:
// below it, quantising costs more than the product.
const DefaultMinSize = 128 * 128

// Options of FP8.
type Options struct {
	Recipe Recipe // nil: Dynamic{}
	Format Format
	Filter
}

func (o Options) recipe() (ops.FP8Recipe, error) {
	switch {
	case o.Recipe == nil:
		return Dynamic{}.recipe(o.Format)
	case graph.Missing(o.Recipe):
		return ops.FP8Recipe{}, fmt.Errorf("the recipe is missing: a nil %T", o.Recipe)
	}
	return o.Recipe.recipe(o.Format)
}

// FP8 returns the graph with its eligible linears as FP8 linears (see
// ops.FP8LinearOp), for training and its evaluation. Apply it with the same
// options to every graph of a model, before Grad. Running it again changes
// nothing.
func FP8(b *graph.Builder, o Options) (*graph.Builder, *Report, error) {
	nb, report, err := fp8(b, o, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("autocast: FP8: %w", err)
	}
	return nb, report, nil
}

// fp8 builds into an empty graph, or a new one.
func fp8(b *graph.Builder, o Options, into *graph.Builder) (*graph.Builder, *Report, error) {
	r, err := o.recipe()
	if err != nil {
		return nil, nil, err
	}
	p := pass{
		name: "fp8", mode: r.String(), done: []string{"fp8_linear"}, minSize: DefaultMinSize,
		keeps: []role{head, embedding, router, norm},
		build: func(n *graph.Node, in []*graph.Node) *graph.Node {
			return ops.FP8LinearAs(n.Label(), in[0], in[1], r, in[2:]...)
		},
	}
	return p.run(b, o.Filter, into)
}

// pass is what the passes differ in.
type pass struct {
	name, mode string
	done       []string // ops that the pass has made of linears before
	minSize    int
	keeps      []role // default exclusions
	build      func(n *graph.Node, in []*graph.Node) *graph.Node
	experts    bool                     // stacks of experts too
	narrow     func(t dtype.DType) bool // the weight may be stored so; nil: never
	again      func(n *graph.Node) bool // a linear done before is to be done anew; nil: never

	others func(n *graph.Node, in []*graph.Node) []*graph.Node // what becomes of nodes that are no linears, where no Include says what alone is; nil: nothing
}

func (p pass) run(b *graph.Builder, f Filter, into *graph.Builder) (*graph.Builder, *Report, error) {
	if err := b.Err(); err != nil {
		return nil, nil, err
	}
	if b.Graded() {
		return nil, nil, errors.New("the gradient of the graph was taken already: run the pass before Grad, or the backward pass would keep the old precision")
	}
	report, chosen, err := p.decide(b, f)
	if err != nil {
		return nil, nil, err
	}
	sub := func(n *graph.Node, in []*graph.Node) []*graph.Node {
		switch {
		case chosen[n]:
			return []*graph.Node{p.build(n, in)}
		case p.others != nil && len(f.Include) == 0:
			return p.others(n, in)
		}
		return nil
	}
	var nb *graph.Builder
	if into == nil {
		nb, err = graph.Rewrite(b, sub)
	} else {
		nb, err = into, graph.RewriteInto(into, b, sub)
	}
	if err != nil {
		return nil, nil, err
	}
	return nb, report, nil
}
