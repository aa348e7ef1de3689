package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// This file is the launches of linears of few rows with what stands around them: a
// norm or a gate before them, which each worker computes for itself, and the sum with
// a residual behind them. A launch is made once and kept with its first call: between
// two launches of a token every look at memory that the weights have driven out of
// the caches counts.

// keptLinears is a launch. It stands for the panels that its weights had when it was
// made.
type keptLinears struct {
	run     *native.Linears
	before  *graph.Call // the lead, where it runs before the launch
	behind  *graph.Call // the tail, where it runs behind it
	weights []keptWeight
}

type keptWeight struct {
	of     *weightPanels
	filled *filledPanels // nil: none of its value
}

// linearFused runs linears on weights that are read as they are stored.
func linearFused(lead *graph.Call, calls []graph.Call, tail *graph.Call) bool {
	l, ok := calls[0].Kept.(*keptLinears)
	if !ok || !l.current() {
		if l = keepLinears(lead, calls, tail); l == nil {
			return false
		}
		calls[0].Kept = l
	}
	if c := l.before; c != nil {
		if _, norm := c.Op.(RMSNormOp); norm {
			_ = rmsNorm[float32](c) // neither these nor the sum fail
		} else {
			_ = swiGLU[float32](c)
		}
	}
	l.run.Run()
	if l.behind != nil {
		_ = add[float32](l.behind)
	}
	return true
}

// current says that the weights have the panels they had.
func (l *keptLinears) current() bool {
	for _, w := range l.weights {
		if w.of.current() != w.filled {
			return false
		}
	}
	return true
}

// keepLinears makes a launch that takes in as much as it can, nil where a product has
// no tiles. With lead it has tail too, as graph.Def.Fused asks for.
func keepLinears(lead *graph.Call, calls []graph.Call, tail *graph.Call) *keptLinears {
	var ps [4]native.CodedLinear
	if n := front(ps[:], calls, storedLinear); n < len(calls) {
		return nil
	}
	x, made := graph.Data[float32](calls[0].In[0]), leadOf(lead)
	launch := func(lead native.Lead, tail *graph.Call) *native.Linears {
		ps := ps
		var sum []float32
		if tail != nil {
			sum = graph.Data[float32](tail.In[0])
			if &sum[0] == &ps[0].Y[0] {
				sum = graph.Data[float32](tail.In[1])
			}
			ps[0].Y = graph.Data[float32](tail.Out[0])
		}
		t := calls[0].In[0].Type
		return native.NewLinears(x, rows(t), last(t), ps[:len(calls)], lead, sum)
	}
	var before, behind *graph.Call
	run := launch(made, tail)
	if run == nil {
		before, run = lead, launch(native.Lead{}, tail)
	}
	if run == nil {
		behind, run = tail, launch(native.Lead{}, nil)
	}
	if run == nil {
		return nil
	}
	l := &keptLinears{run: run, before: before, behind: behind}
	for i := range calls {
		if p := calls[i].Param(1); p != nil {
			w := weightPanelsOf(p)
			l.weights = append(l.weights, keptWeight{w, w.current()})
		}
	}
	return l
}

// leadOf is what makes x, if anything does.
func leadOf(c *graph.Call) native.Lead {
	if c == nil {
		return native.Lead{}
	}
	x, w := graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1])
	if o, ok := c.Op.(RMSNormOp); ok {
		return native.RMSNormLead(x, w, last(c.In[0].Type), o.Eps)
	}
	return native.SwiGLULead(x, w)
}
