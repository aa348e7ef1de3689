package graph

import (
	"fmt"
	"slices"
	"sync"
)

// Op is one operation with its attributes: a noun struct such as
// Attention{Causal: true}. Its meanings (gradient, bodies) stand in tables
// keyed by its name, so that code outside the module can add an op, or a body
// for an op, with the same calls as ours.
type Op interface {
	// Name is the key of the tables: "attention".
	Name() string
	// Infer gives the types of the results, or the reason why the inputs do
	// not fit: what is required and what was got, with every shape. The
	// caller adds path and name. Several results must have one element type.
	Infer(in []Type) ([]Type, error)
}

// Aliaser is an Op whose one result is the memory of an input: a view, or a
// state that the body writes to. Only an Op that writes has a body.
type Aliaser interface {
	Op
	Alias() int
}

// Writer is an Op that writes to states beside computing its results: the
// inputs that Writes lists. Nothing may read such a state after it in the same
// run, so who wants the new content reads it in the next one.
type Writer interface {
	Op
	Writes() []int
}

// Def is what graph knows of an op by name.
type Def struct {
	Name string

	// Doc says in half a line what the op does, for the table of supported
	// ops. Ops that only gradients use have none.
	Doc string

	// Grad builds the gradient of the inputs from the gradient of the result,
	// one node an input, nil where it is not differentiable. For an op with
	// several results use g.Out. Nil: not differentiable.
	Grad func(g *GradCall) []*Node

	// NoGrad lists inputs that have no gradient although they are floats.
	NoGrad []int

	// Native is the body in Go.
	Native func(c *Call) error

	// Together runs calls of the op that follow each other in a plan and have one
	// first input, in one go: no call reads or writes what another writes. Nil:
	// one by one. A body that cannot take some calls together runs them so. Not for
	// ops that write to an input.
	Together func(calls []Call) error

	// Fused runs calls, one or several that Together could have, in one go with what
	// stands around them: lead, an op named in Leads whose one use is as their first
	// input, and tail, one named in Tails that alone uses the result of the one call.
	// Either may be nil. Where it reports false it has done nothing, and all run one
	// after the other. Nothing else reads the results of lead, or of the call before
	// tail: they need not be written. The results that remain lie where nothing here
	// reads, but what tail adds to in place, so that workers may compute lead each for
	// itself while others write; the result of the call is not such a one, so who
	// takes lead in takes tail in too.
	Fused        func(lead *Call, calls []Call, tail *Call) bool
	Leads, Tails []string

	// FLOPs counts the floating-point operations of one run; nil: one for
	// each element of the results.
	FLOPs func(op Op, in, out []Type) int64

	// InPlace lists inputs whose memory the result may take over when nothing
	// reads them later: the body reads element i of them before it writes
	// element i. Of an op with several results, input InPlace[i] is for result i,
	// all at once, where the plan is Spread.
	InPlace []int

	// Symbolic ops stand in a gradient while it is taken and are never run.
	Symbolic bool
}

// Call is one execution of a body. The tensors do not overlap, except as
// Def.InPlace and Aliaser allow.
type Call struct {
	Op  Op
	In  []Tensor
	Out []Tensor

	// Kept is what the body keeps with the call, if anything: an executor makes a
	// call once and runs it many times. It starts as nil.
	Kept any

	node *Node
	def  *Def
}

// CallOf is a call of n that lacks its tensors, for an executor of one's own.
func CallOf(n *Node) Call {
	n = n.some()
	return Call{Op: n.op, node: n, def: n.def}
}

// Param is the parameter that input i is, nil where it is not a leaf with
// memory of its own, or is a value from before Store or Adopt. Through it a body
// finds what it keeps with a weight.
func (c *Call) Param(i int) *Param {
	if c.node == nil || i >= len(c.node.in) {
		return nil
	}
	p := c.node.in[i].param
	if p == nil || i < len(c.In) && !same(c.In[i].mem, p.Tensor().mem) {
		return nil
	}
	return p
}

// Fed reports whether input i, or what it is a view of, is given to each run, and not
// computed in the graph: what is wrong with its numbers is the caller's doing.
func (c *Call) Fed(i int) bool {
	return c.node != nil && i < len(c.node.in) && c.node.in[i].root().feed()
}

var registry = struct {
	sync.RWMutex
	defs map[string]*Def
}{defs: map[string]*Def{}}

// Register adds an op to the tables. It panics when the name is taken: that is
// a mistake in the program, found when it starts.
func Register(d Def) {
	registry.Lock()
	defer registry.Unlock()
	if d.Name == "" || registry.defs[d.Name] != nil {
		panic(fmt.Sprintf("graph: Register: the name %q is empty or taken", d.Name))
	}
	registry.defs[d.Name] = &d
}

// Lookup finds an op by name.
func Lookup(name string) (Def, bool) {
	if d := lookup(name); d != nil {
		return *d, true
	}
	return Def{}, false
}

func lookup(name string) *Def {
	registry.RLock()
	defer registry.RUnlock()
	return registry.defs[name]
}

// Registered lists the names of all ops, sorted.
func Registered() []string {
	registry.RLock()
	defer registry.RUnlock()
	names := make([]string, 0, len(registry.defs))
	for n := range registry.defs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// flops is the work of n.
func (n *Node) flops() (count int64, err error) {
	if n.def.FLOPs == nil {
		for _, t := range n.outs {
			count += int64(t.Size())
		}
		return count, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("FLOPs failed: %v", p)
		}
	}()
	in := make([]Type, len(n.in))
	for i, m := range n.in {
		in[i] = m.typ
	}
	return n.def.FLOPs(n.op, in, n.outs), nil
}
