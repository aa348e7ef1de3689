package ops

import (
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// This file keeps panels beside weights of linears that are stored in 16 bits: a
// copy in the order in which a product of few rows reads memory, and the only one
// that products read while it is there.

const panelsKey = "panels"

// weightPanels are those of a version of a weight.
type weightPanels struct {
	mu      sync.RWMutex
	version uint64
	mem     []byte
}

func newWeightPanels() any { return &weightPanels{} }

// panelsOf are the panels of input i, nil where there are none of its value.
func panelsOf(c *graph.Call, i int) []byte {
	p := c.Param(i)
	if p == nil {
		return nil
	}
	w := p.Attach(panelsKey, newWeightPanels).(*weightPanels)
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.version != p.Version() {
		return nil
	}
	return w.mem
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
	}
	if plan.Hold() != nil { // no plan, or no weights to read any more
		return
	}
	defer plan.Release()
	var jobs []job
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
		to := p.Attach(panelsKey, newWeightPanels).(*weightPanels)
		to.mu.RLock()
		there := to.mem != nil && to.version == p.Version()
		to.mu.RUnlock()
		if n := coding.Panels(p.Type.Shape[0], p.Type.Shape[1]); n > 0 && !there {
			jobs, total = append(jobs, job{p, to, coding, n}), total+n
			if p.Forget == nil {
				staying += p.Type.Bytes()
			}
		}
	}
	if total == 0 || float64(total+staying) > share*float64(graph.MachineMemory()) {
		return
	}
	mem := graph.Memory(total)
	for _, j := range jobs {
		version := j.p.Version()
		part := mem[:j.bytes:j.bytes]
		mem = mem[j.bytes:]
		native.FillPanels(part, j.p.Tensor().Bytes(), j.p.Type.Shape[0], j.p.Type.Shape[1])
		j.to.mu.Lock()
		j.to.mem, j.to.version = part, version
		j.to.mu.Unlock()
		if j.p.Forget != nil {
			j.p.Forget()
		}
	}
}
