package cuda

import (
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Values that exist as codes alone: where every reader of a norm or a gated unit is an FP8 linear that would quantise it the same
// way, the kernel that makes it writes the codes, and the steps behind them, in the value's own place.

// coded is a value in codes: rows at a stride, with their steps.
type coded struct {
	codes  Pointer
	stride int64
	steps  FP8Steps
}

// codesOf says how the readers of n, whose first result is of type t, want its codes, when all of them do.
func (p *program) codesOf(n *graph.Node, t graph.Type) (coded, bool) {
	var z coded
	readers := p.consumers[n]
	if len(readers) == 0 || p.noCodes[n] || p.wide[n] || hasFP8("", p.gpu) != nil || slices.ContainsFunc(p.plan.Outputs, func(o *graph.Node) bool { return rootOf(o) == n }) {
		return z, false
	}
	first, ok := readers[0].Op().(ops.FP8WeightLinearOp)
	if !ok || first.Activations == ops.Exact {
		return z, false
	}
	for _, r := range readers {
		x := r.In()[0]
		if r.Op() != first || rootOf(x) != n || p.offset(x) != 0 || lastDim(x.Type()) != lastDim(t) || x.Type().Size() != t.Size() ||
			slices.ContainsFunc(r.In()[1:], func(in *graph.Node) bool { return rootOf(in) == n }) {
			return z, false
		}
	}
	rows := int64(rowsOf(t))
	z = coded{codes: p.pointer(n), stride: up16(lastDim(t))}
	if rows*(z.stride+4) > int64(t.Size()*p.compute.Size()) {
		return z, false
	}
	if z.steps.At = z.codes.At(rows * z.stride); first.Activations == ops.StaticSteps {
		z.steps.At = p.scalar(first.StepX)
	} else {
		z.steps.Rows = 1
	}
	return z, true
}

// launchCodes launches what leaves the codes z in the place of a node's result, if there is a kernel.
func (c *Call) launchCodes(z coded, l interface{ Launch(Queue) error }) error {
	err := l.Launch(c)
	if err == nil {
		c.p.coded[c.Node] = z
	}
	return err
}

// missedCodes are the values in codes of which a reader became native after all.
func (p *program) missedCodes() (missed []*graph.Node) {
	for _, s := range p.steps {
		for _, n := range s.nodes {
			for _, in := range n.In() {
				if _, ok := p.coded[rootOf(in)]; ok && s.host != nil {
					missed = append(missed, rootOf(in))
				}
			}
		}
	}
	return missed
}
