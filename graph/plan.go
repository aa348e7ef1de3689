package graph

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Plan is the static schedule of some outputs: the steps in order and a place
// in memory for every value. It knows nothing of the executor that walks it.
type Plan struct {
	Outputs []*Node
	Steps   []Step
	Arena   int // bytes of the arena
	Values  int // bytes of all values in the arena, were each to have its own

	b      *Builder
	nodes  []*Node
	places map[*Node]Place
	bufs   []*buffer
	spread map[*Node][]*buffer // by op: those of its results; nil: results lie packed
}

// Step is one execution of a body.
type Step struct {
	Node  *Node
	FLOPs int64
}

// Place is where a value lies: in the memory of a parameter or constant (Leaf
// not nil), else in the arena.
type Place struct {
	Leaf   *Node
	Offset int // bytes
}

// buffer is a stretch of memory that one or more values share: a node, its
// views, and results that take its place.
type buffer struct {
	root        *Node
	bytes       int
	first, last int // steps; first is -1 for inputs
	offset      int
}

// Plan orders what the outputs need, drops the rest, and places the values.
func (b *Builder) Plan(outputs ...*Node) (*Plan, error) {
	if err := b.Err(); err != nil {
		return nil, err
	}
	if len(outputs) == 0 {
		return nil, errors.New("graph: Plan: no outputs")
	}
	for i, o := range outputs {
		if o == nil || o.bad() || o.b != b.shared {
			return nil, fmt.Errorf("graph: Plan: output %d is not a node of this graph", i)
		}
	}
	p := &Plan{Outputs: slices.Clone(outputs), b: b, nodes: ancestors(b, outputs)}
	if err := checkStates(p.nodes, outputs...); err != nil {
		return nil, err
	}
	for _, n := range p.nodes {
		if n.def == nil || n.isView() {
			continue
		}
		if n.def.Symbolic {
			return nil, fmt.Errorf("graph: Plan: %s: %s exists only while a gradient is taken", n.name, n.op.Name())
		}
		flops, err := n.flops()
		if err != nil {
			return nil, fmt.Errorf("graph: Plan: %w", located(n.name, n.op.Name(), err))
		}
		p.Steps = append(p.Steps, Step{n, flops})
	}
	p.place()
	return p, nil
}

// Spread places the values anew, each result of an op that has several by itself: it
// lives no longer than it is read, and can take over the memory of an input, or give
// its own. Native alone runs such a plan; an executor that was made before goes by
// places that are gone.
func (p *Plan) Spread() {
	p.spread = map[*Node][]*buffer{}
	for _, n := range p.nodes {
		if len(n.outs) > 1 {
			p.spread[n] = make([]*buffer, len(n.outs))
		}
	}
	for _, n := range p.nodes {
		for _, in := range n.in {
			if _, part := n.op.(result); !part {
				delete(p.spread, in) // it reads all results as one
			}
		}
	}
	for _, o := range p.Outputs {
		delete(p.spread, o)
	}
	p.place()
}

// IsSpread reports whether Spread has placed the values.
func (p *Plan) IsSpread() bool { return p.spread != nil }

// Hold is Params.Hold of the plan's parameters; a plan that is missing is an error
// too. An Executor holds its plan while it runs.
func (p *Plan) Hold() error {
	if p == nil || p.b == nil {
		return errors.New("there is no plan: see the error of Plan")
	}
	return p.b.params.Hold()
}

// Release ends one successful Hold.
func (p *Plan) Release() { p.b.params.Release() }

// ancestors lists what the outputs depend on, inputs before users.
func ancestors(b *Builder, outputs []*Node) []*Node {
	live := make(map[*Node]bool, len(b.nodes))
	for _, o := range outputs {
		live[o] = true
	}
	var list []*Node
	for i := len(b.nodes) - 1; i >= 0; i-- {
		n := b.nodes[i]
		if !live[n] {
			continue
		}
		for _, in := range n.in {
			live[in] = true
		}
		list = append(list, n)
	}
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// isView reports whether n needs no work: its value is in its input's memory.
func (n *Node) isView() bool {
	_, ok := n.op.(Aliaser)
	return ok && n.def.Native == nil
}

// place gives every value a buffer and every buffer an offset.
func (p *Plan) place() {
	p.places, p.bufs, p.Arena, p.Values = map[*Node]Place{}, nil, 0, 0
	stepOf := make(map[*Node]int, len(p.Steps))
	for i, s := range p.Steps {
		stepOf[s.Node] = i
	}
	end := len(p.Steps)
	last := p.lastUses(stepOf, end)
	of := map[*Node]*buffer{} // by root
	for _, n := range p.nodes {
		if n.param != nil || n.value != nil {
			p.places[n] = Place{Leaf: n}
			continue
		}
		if n.op == nil {
			of[n] = p.newBuffer(n, -1, last[n], n.typ.Bytes())
			continue
		}
		at := stepOf[n]
		if r, ok := n.op.(result); ok && p.spread[n.in[0]] != nil {
			of[n] = p.spread[n.in[0]][r.Index]
			of[n].last = max(last[n], of[n].last)
			continue
		}
		if n.root() != n {
			continue // placed below, with its root
		}
		if parts := p.spread[n]; parts != nil {
			for i, t := range n.outs {
				var over []int
				if i < len(n.def.InPlace) {
					over = n.def.InPlace[i : i+1]
				}
				parts[i] = p.bufferFor(n, over, at, at, t.Bytes(), of)
			}
			continue
		}
		over := n.def.InPlace
		if len(n.outs) > 1 {
			over = nil
		}
		of[n] = p.bufferFor(n, over, at, max(last[n], at), n.typ.Bytes(), of)
	}
	p.assign()
	for _, n := range p.nodes {
		if buf := of[n]; buf != nil {
			p.places[n] = Place{Offset: buf.offset}
		} else if parts := p.spread[n]; parts != nil {
			p.places[n] = Place{Offset: parts[0].offset}
		} else if n.op != nil {
			place := p.places[n.in[n.op.(Aliaser).Alias()]]
			place.Offset += n.aliasOffset()
			p.places[n] = place
		}
	}
}

// bufferFor is the buffer of so many bytes for a result of n: that of one of the
// inputs over if it can be had, else a new one.
func (p *Plan) bufferFor(n *Node, over []int, at, last, bytes int, of map[*Node]*buffer) *buffer {
	if buf := p.takeOver(n, over, at, bytes, of); buf != nil {
		buf.last = last
		return buf
	}
	return p.newBuffer(n, at, last, bytes)
}

func (p *Plan) newBuffer(n *Node, first, last, bytes int) *buffer {
	buf := &buffer{root: n, bytes: align64(bytes), first: first, last: last}
	p.bufs = append(p.bufs, buf)
	p.Values += buf.bytes
	return buf
}

// lastUses tells for each root the last step that reads its memory.
func (p *Plan) lastUses(stepOf map[*Node]int, end int) map[*Node]int {
	last := map[*Node]int{}
	for _, n := range p.nodes {
		if at, ok := stepOf[n]; ok {
			for _, in := range n.in {
				last[p.home(in)] = at
			}
		}
	}
	for _, o := range p.Outputs {
		last[p.home(o)] = end
	}
	return last
}

// home is the root of n, or, on the way there, the result that has a place of its
// own.
func (p *Plan) home(n *Node) *Node {
	for {
		al, ok := n.op.(Aliaser)
		if !ok {
			return n
		}
		in := n.in[al.Alias()]
		if _, ok := n.op.(result); ok && p.spread[in] != nil {
			return n
		}
		n = in
	}
}

// takeOver finds one of the inputs over whose buffer a result of n can have: one
// that has the same size, and that nothing reads after this step.
func (p *Plan) takeOver(n *Node, over []int, at, bytes int, of map[*Node]*buffer) *buffer {
	for _, i := range over {
		if i >= len(n.in) {
			continue
		}
		in := n.in[i]
		buf := of[p.home(in)]
		// A value inside a packed one does not have the buffer to itself.
		if buf == nil || buf.first < 0 || buf.last != at || in.typ.Bytes() != bytes || buf.bytes != align64(bytes) {
			continue
		}
		shared := false
		for j, other := range n.in {
			shared = shared || j != i && of[p.home(other)] == buf
		}
		if !shared {
			return buf
		}
	}
	return nil
}

func align64(n int) int { return (n + 63) &^ 63 }

// assign places the buffers: the largest first, each at the lowest offset
// where nothing that lives at the same time lies.
func (p *Plan) assign() {
	order := slices.Clone(p.bufs)
	sort.SliceStable(order, func(i, j int) bool { return order[i].bytes > order[j].bytes })
	var placed []*buffer // by offset
	for _, b := range order {
		at := 0
		for _, q := range placed {
			if q.last < b.first || b.last < q.first {
				continue
			}
			if at+b.bytes <= q.offset {
				break
			}
			at = max(at, q.offset+q.bytes)
		}
		b.offset = at
		i := sort.Search(len(placed), func(i int) bool { return placed[i].offset > at })
		placed = slices.Insert(placed, i, b)
		p.Arena = max(p.Arena, at+b.bytes)
	}
}

// Place tells where the value of n lies.
func (p *Plan) Place(n *Node) (Place, bool) {
	pl, ok := p.places[n]
	return pl, ok
}

// Nodes lists the nodes of the plan in order, leaves and views included.
func (p *Plan) Nodes() []*Node { return slices.Clone(p.nodes) }

// Inputs lists the values that every run must be given.
func (p *Plan) Inputs() []*Node {
	var in []*Node
	for _, n := range p.nodes {
		if n.feed() {
			in = append(in, n)
		}
	}
	return in
}

// FLOPs is the work of one run.
func (p *Plan) FLOPs() int64 {
	var f int64
	for _, s := range p.Steps {
		f += s.FLOPs
	}
	return f
}

// ParamBytes is the size of the parameters and states that the plan reads.
func (p *Plan) ParamBytes() int {
	n := 0
	for _, m := range p.nodes {
		if m.param != nil {
			n += m.typ.Bytes()
		}
	}
	return n
}
