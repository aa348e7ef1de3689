package ops

import (
	"sync/atomic"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// This file keeps panels beside weights of linears that are stored in 16 bits: a
// copy in the order in which a product of few rows reads memory, and the only one
// that products read while it is there.

const panelsKey = "panels"

// weightPanels are those of a weight.
type weightPanels struct {
	p   *graph.Param
	now atomic.Pointer[filledPanels]
}

// filledPanels are those of a version of a weight.
type filledPanels struct {
	version uint64
	of      *byte // where that value lies
	mem     []byte
	after   native.After // the launch of its linear
}

func weightPanelsOf(p *graph.Param) *weightPanels {
	return p.Attach(panelsKey, func() any { return &weightPanels{p: p} }).(*weightPanels)
}

// current are the panels of the value as it is, nil where there are none.
func (w *weightPanels) current() *filledPanels {
	if f := w.now.Load(); f != nil && f.version == w.p.Version() {
		return f
	}
	return nil
}

// panelsOf are the panels of the weight of a linear, its input 1, none where there
// are none of its value, and those of the launch after it. The call keeps where they
// are found: between two launches of a token every look at memory that the weights
// have driven out of the caches counts. An executor that goes on with the value
// before Store or Adopt has none of those of the new one.
func panelsOf(c *graph.Call) (panels []byte, after native.After) {
	w, ok := c.Kept.(*weightPanels)
	if !ok {
		p := c.Param(1)
		if p == nil {
			return nil, after
		}
		w = weightPanelsOf(p)
		c.Kept = w
	}
	if f := w.current(); f != nil && f.of == &c.In[1].Bytes()[0] {
		return f.mem, f.after
	}
	return nil, after
}

// FillPanels makes panels of the weights in 16 bits that the linears of a plan
// read, all in one piece of memory in the order of the steps. They are used by
// native runs of any plan on the same parameters until a value changes, and
// change no bit of a result. The pages of a mapped file that hold such a weight
// are given back: what else reads it reads the file again. Where this CPU has no
// use for panels, or they and the weights that stay beside them would take more
// than share of the machine's memory or that is not known, or the model is closed,
// it makes none.
func FillPanels(plan *graph.Plan, share float64) {
	type job struct {
		p      *graph.Param
		to     *weightPanels
		coding Coding
		bytes  int
		launch int
	}
	if plan.Hold() != nil { // no plan, or no weights to read any more
		return
	}
	defer plan.Release()
	var jobs []job
	var launches []native.After // of linears of one x
	var x *graph.Node
	total, staying := 0, 0
	seen := map[*graph.Param]bool{}
	for _, s := range plan.Steps {
		switch s.Node.Op().(type) {
		case LinearOp, BF16LinearOp:
		default:
			continue
		}
		p := s.Node.In()[1].Param()
		if p == nil || seen[p] || !p.HasValue() || !isHalf(p.Type) {
			continue
		}
		seen[p] = true
		_, coding, _ := coded(p.Tensor(), 0)
		to := weightPanelsOf(p)
		if n := coding.Panels(p.Type.Shape[0], p.Type.Shape[1]); n > 0 && to.current() == nil {
			if in := s.Node.In()[0]; x != in {
				x, launches = in, append(launches, native.After{K: p.Type.Shape[1]})
			}
			jobs, total = append(jobs, job{p, to, coding, n, len(launches) - 1}), total+n
			if p.Forget == nil {
				staying += p.Type.Bytes()
			}
		}
	}
	if total == 0 || float64(total+staying) > share*float64(graph.MachineMemory()) {
		return
	}
	mem, at := graph.Memory(total), 0
	for _, j := range jobs {
		of := &launches[j.launch]
		first := at - len(of.Panels)
		at += j.bytes
		of.Panels = mem[first:at:at]
	}
	for _, j := range jobs {
		version := j.p.Version()
		part := mem[:j.bytes:j.bytes]
		mem = mem[j.bytes:]
		w := j.p.Tensor().Bytes()
		native.FillPanels(part, w, j.p.Type.Shape[0], j.p.Type.Shape[1])
		j.to.now.Store(&filledPanels{version, &w[0], part, launches[(j.launch+1)%len(launches)]})
		if j.p.Forget != nil {
			j.p.Forget()
		}
	}
}
