package graph

import "slices"

// This file finds the steps of a plan that the native executor runs in one go: calls
// of one op and one first input, and what stands right before and behind them.

// gather finds the steps that run together.
func (r *Native) gather() {
	r.group = make([]int, len(r.calls))
	for i := 0; i < len(r.calls); {
		n := 1
		for i+n < len(r.calls) && r.joins(i, i+n) {
			n++
		}
		r.group[i] = n
		i += n
	}
	r.fuse()
}

// joins reports whether step j can run together with the steps from i on.
func (r *Native) joins(i, j int) bool {
	a, b := r.plan.Steps[i].Node, r.plan.Steps[j].Node
	if a.def != b.def || a.def.Together == nil || len(a.in) == 0 || len(b.in) == 0 || a.in[0] != b.in[0] {
		return false
	}
	c := &r.calls[j]
	for _, earlier := range r.calls[i:j] {
		if anyOverlap(earlier.Out, c.In) || anyOverlap(earlier.Out, c.Out) || anyOverlap(earlier.In, c.Out) {
			return false
		}
	}
	return true
}

// fused are calls that run in one go with the step before them and the one behind
// them; either may be nil.
type fused struct {
	lead, tail *Call
	calls      []Call
	at, steps  int // the first call; how many steps they are
}

// run runs them, if their op can.
func (f *fused) run() (done bool, err error) {
	defer f.calls[0].rescue(&err)
	return f.calls[0].def.Fused(f.lead, f.calls, f.tail), nil
}

// fuse finds them.
func (r *Native) fuse() {
	r.fused = make([]*fused, len(r.calls))
	if r.plan.spread != nil {
		return
	}
	uses := map[*Node]int{} // by root
	for _, s := range r.plan.Steps {
		for _, x := range s.Node.in {
			uses[x.root()]++
		}
	}
	for _, o := range r.plan.Outputs {
		uses[o.root()]++
	}
	free := 0 // the first step that is in none yet
	for i, n := range r.group {
		if n == 0 || i < free || r.calls[i].def.Fused == nil {
			continue
		}
		first, f := i, &fused{calls: r.calls[i : i+n], at: i, steps: n}
		if n == 1 && i+1 < len(r.calls) && f.takesTail(&r.calls[i+1], uses) {
			f.tail = &r.calls[i+1]
			f.steps++
		}
		if i > free && r.group[i-1] == 1 && f.takesLead(&r.calls[i-1], uses) {
			f.lead = &r.calls[i-1]
			first--
			f.steps++
		}
		r.fused[first], free = f, first+f.steps
	}
}

// takesTail reports whether c can be the tail: the only use of the one call.
func (f *fused) takesTail(c *Call, uses map[*Node]int) bool {
	of := &f.calls[0]
	if !slices.Contains(of.def.Tails, c.def.Name) || uses[of.node] != 1 || len(of.Out) != 1 || len(c.Out) != 1 {
		return false
	}
	used := false
	for i, x := range c.node.in {
		if x.root() == of.node {
			used = same(c.In[i].mem, of.Out[0].mem)
		} else if overlap(c.In[i].mem, c.Out[0].mem) && !same(c.In[i].mem, c.Out[0].mem) {
			return false
		}
	}
	return used && !anyOverlap(of.In, c.Out)
}

// takesLead reports whether c can be the lead: of one use, that of the calls.
func (f *fused) takesLead(c *Call, uses map[*Node]int) bool {
	if !slices.Contains(f.calls[0].def.Leads, c.def.Name) || uses[c.node] != len(f.calls) {
		return false
	}
	for _, x := range f.calls {
		if x.node.in[0].root() != c.node || !same(x.In[0].mem, c.Out[0].mem) || f.tail == nil && anyOverlap(c.In, x.Out) {
			return false
		}
	}
	return f.tail == nil || !anyOverlap(c.In, f.tail.Out)
}

func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// anyOverlap reports whether one of xs shares memory with one of ys.
func anyOverlap(xs, ys []Tensor) bool {
	for _, x := range xs {
		for _, y := range ys {
			if overlap(x.mem, y.mem) {
				return true
			}
		}
	}
	return false
}
