package cuda

import (
	"errors"
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

// fuseNorm: a norm of one row and the one launch of products that reads it, where those make codes on their way. What the norm reads
// must outlive that launch: else its result may lie there.
func (p *program) fuseNorm(i int) (*Call, int, error) {
	norm := p.at(i)
	o, ok := opOf[ops.RMSNormOp](norm)
	if !ok || rowsOf(norm.In()[0].Type()) > 1 || lastDim(norm.In()[0].Type()) > widestCoded || p.computedNode(norm.In()[1]) || p.needs(norm, 1) {
		return nil, 0, nil
	}
	if z, ok := p.codesOf(norm, norm.In()[0].Type()); !ok || !z.steps.row() {
		return nil, 0, nil
	}
	c := &Call{Node: norm, In: norm.In(), p: p}
	n, x := RMSNorm{Eps: float32(o.Eps)}, rootOf(norm.In()[0])
	if err := errors.Join(c.firstOnly(), c.inputs(0, &n.X, &n.W)); err != nil {
		return nil, 0, err
	}
	p.normed[norm] = n
	defer delete(p.normed, norm)
	for _, f := range []func(int) (*Call, int, error){p.fuseHeads, p.fuseGate} {
		c, count, err := f(i + 1)
		if err != nil {
			return nil, 0, err
		}
		if c == nil {
			continue
		}
		reads := func(n *graph.Node, steps []graph.Step) (readers int) {
			for _, s := range steps {
				if slices.Contains(p.consumers[n], s.Node) {
					readers++
				}
			}
			return readers
		}
		if behind := p.plan.Steps[i+1:]; reads(norm, behind[:count]) == len(p.consumers[norm]) && reads(x, behind[count:]) > 0 {
			return c, count + 1, nil
		}
	}
	return nil, 0, nil
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
