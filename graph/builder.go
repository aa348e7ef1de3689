// Package graph is the model as data: a gorgonia graph whose heavy steps are
// single nodes of ours.
//
// A Builder names the nodes, checks shapes once and keeps the first error.
// Passes rebuild a graph (Rewrite), Grad differentiates it, Plan orders it and
// places every value in one arena, and an executor walks the plan. This is the
// only package that knows gorgonia; what an op means stands in the tables of
// op.go.
package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"

	"github.com/seafan/seafan/graph/dtype"
)

// Builder builds one graph. The builders that Scope returns build the same
// graph under another path. Model code reads straight down: after the first
// error every call does nothing, and Err tells it.
type Builder struct {
	*shared
	scope string
}

// shared is what all scopes of one graph have in common.
type shared struct {
	g       *gorgonia.ExprGraph
	float   dtype.DType
	params  *Params
	states  *Params
	nodes   []*Node
	byID    map[int64]*Node
	names   map[string]int
	hashes  map[uint32]struct{}
	outputs []output
	unique  int64
	within  *Node // while its gradient is taken: new nodes belong to its scope
	graded  bool
	forward int // nodes that were there when the gradient was taken
	err     error
}

type output struct {
	name string
	node *Node
}

// Option changes a new Builder; one that is nil is an error of the Builder.
type Option func(*shared)

// Share makes the graph use the parameters of another.
func Share(p *Params) Option { return func(s *shared) { s.params = p } }

// States keeps the states of the graph apart from its weights: two sessions of
// one model share the weights and nothing else.
func States(p *Params) Option { return func(s *shared) { s.states = p } }

// Float sets the element type of parameters and activations: Float32, or
// Float64 to run the same model as its own oracle.
func Float(dt dtype.DType) Option { return func(s *shared) { s.float = dt } }

// New starts a graph.
func New(opts ...Option) *Builder {
	s := &shared{
		g:      gorgonia.NewGraph(),
		float:  dtype.Float32,
		byID:   map[int64]*Node{},
		names:  map[string]int{},
		hashes: map[uint32]struct{}{},
	}
	for i, o := range opts {
		if o == nil {
			s.err = fmt.Errorf("graph: New: option %d is missing (nil)", i)
			continue
		}
		o(s)
	}
	if s.params == nil {
		s.params = NewParams()
	}
	if s.states == nil {
		s.states = s.params
	}
	if s.float != dtype.Float32 && s.float != dtype.Float64 {
		s.err = fmt.Errorf("graph: Float: activations are float32 or float64, not %s", s.float)
	}
	return &Builder{shared: s}
}

// Sibling returns an empty graph with the parameters, states and element type
// of b.
func (b *Builder) Sibling() *Builder {
	b = b.made()
	return New(Share(b.params), States(b.states), Float(b.float))
}

// Scope returns a builder whose names start with the given path.
func (b *Builder) Scope(format string, args ...any) *Builder {
	b = b.made()
	return &Builder{b.shared, join(b.scope, fmt.Sprintf(format, args...))}
}

func join(path, name string) string {
	switch {
	case path == "":
		return name
	case name == "":
		return path
	}
	return path + "." + name
}

// Err is the first error of any call on this graph.
func (b *Builder) Err() error {
	return b.made().err
}

// made is b, and for one that New did not make a builder that has failed.
func (b *Builder) made() *Builder {
	if b == nil || b.shared == nil {
		b = New()
		b.err = errors.New("graph: the builder is missing: New makes one")
	}
	return b
}

// Float is the element type of activations.
func (b *Builder) Float() dtype.DType { return b.made().float }

// Fail records an error of the caller's, for constructors and models that
// check more than Infer can see.
func (b *Builder) Fail(err error) *Node {
	b = b.made()
	return b.fail(b.scope, "", err)
}

func (b *Builder) fail(path, op string, err error) *Node {
	if b.err == nil {
		b.err = located(path, op, err)
	}
	return b.dummy()
}

// located is the form of every error about a node: "path: op: reason".
func located(path, op string, err error) error {
	for _, s := range []string{op, path} {
		if s != "" {
			err = fmt.Errorf("%s: %w", s, err)
		}
	}
	return err
}

// dummy stands for a node that could not be built.
func (b *Builder) dummy() *Node { return &Node{b: b.shared} }

// Node is a value of the graph: an input, a parameter, a constant, or the
// result of an op.
type Node struct {
	b     *shared
	g     *gorgonia.Node
	name  string
	scope string
	typ   Type
	op    Op
	def   *Def
	outs  []Type // results of the op; more than one are packed in this value
	in    []*Node
	param *Param
	value []byte // of a constant
}

// some is n, and an empty node for nil, which Out and Node return for a name
// that there is not.
func (n *Node) some() *Node {
	if n == nil {
		return &noNode
	}
	return n
}

var noNode Node // never written to

// Name is unique in the graph: the scope and the label.
func (n *Node) Name() string { return n.some().name }

// text is n in an error.
func (n *Node) text() string {
	if n == nil {
		return "a node that is missing (nil)"
	}
	return n.name
}

// String is the name and type of n, as errors say what was got.
func (n *Node) String() string {
	if n == nil {
		return "none (nil)"
	}
	return n.name + " " + n.typ.String()
}

// Label is the name inside the scope.
func (n *Node) Label() string {
	return strings.TrimPrefix(strings.TrimPrefix(n.Name(), n.Scope()), ".")
}

// Scope is the path that the node was built under.
func (n *Node) Scope() string { return n.some().scope }

// Type is the element type and shape, for the caller to keep and change.
func (n *Node) Type() Type { return n.some().typ.clone() }

// Shape is the list of dimensions, for the caller to keep and change.
func (n *Node) Shape() []int { return n.Type().Shape }

// Dim is dimension i; a negative i counts from the end. It is 1 on a node that
// could not be built.
func (n *Node) Dim(i int) int {
	shape := n.some().typ.Shape
	if i < 0 {
		i += len(shape)
	}
	if i < 0 || i >= len(shape) {
		return 1
	}
	return shape[i]
}

// Op is the operation; nil for a leaf.
func (n *Node) Op() Op { return n.some().op }

// In lists the inputs of the operation.
func (n *Node) In() []*Node { return slices.Clone(n.some().in) }

// Param is the parameter behind a leaf, or nil.
func (n *Node) Param() *Param { return n.some().param }

// Builder returns a builder in the node's scope.
func (n *Node) Builder() *Builder {
	if n.missing() {
		// Of no graph: the error goes with the nodes that come of it.
		b := New()
		b.err = errors.New("a node is missing (nil)")
		return b
	}
	return &Builder{n.b, n.scope}
}

// missing reports that n is not a node of any graph.
func (n *Node) missing() bool { return n == nil || n.b == nil }

// bad reports that n could not be built.
func (n *Node) bad() bool { return n == nil || n.g == nil }

// feed reports that n is an input that every run must be given.
func (n *Node) feed() bool { return n.op == nil && n.param == nil && n.value == nil }

// Input declares a value that every run is given by name.
func (b *Builder) Input(name string, dt dtype.DType, shape ...int) *Node {
	return b.made().leaf(name, T(dt, shape...), nil, nil)
}

// Param declares a weight of the given shape, or finds it when the model has
// it already; its stored element type is then the one it was loaded with.
func (b *Builder) Param(name string, shape ...int) *Node {
	return b.made().stored(name, T(b.Float(), shape...), false)
}

// Stored finds a parameter of the model by its name in this scope; nil when it
// has none of that name yet.
func (b *Builder) Stored(name string) *Param {
	b = b.made()
	return b.params.Get(join(b.scope, name))
}

// State declares memory that ops write to and that outlives a run. It starts
// as zeros.
func (b *Builder) State(name string, dt dtype.DType, shape ...int) *Node {
	return b.made().stored(name, T(dt, shape...), true)
}

func (b *Builder) stored(name string, t Type, state bool) *Node {
	if b.err != nil {
		return b.dummy()
	}
	full := join(b.scope, name)
	for _, n := range b.nodes {
		if n.param != nil && n.param.Name == full { // used twice in one graph: tied
			if err := n.param.allows(t, state); err != nil {
				return b.fail("", "", err)
			}
			return n
		}
	}
	store := b.params
	if state {
		store = b.states
	}
	p, err := store.Add(full, t, state)
	if err != nil {
		return b.fail("", "", err)
	}
	return b.leaf(name, p.Type, p, nil)
}

// Const is a scalar that never changes.
func (b *Builder) Const(name string, v float64) *Node {
	b = b.made()
	t := NewTensor(T(b.float))
	if b.float == dtype.Float64 {
		Data[float64](t)[0] = v
	} else {
		Data[float32](t)[0] = float32(v)
	}
	return b.leaf(name, t.Type, nil, t.mem)
}

func (b *Builder) leaf(name string, t Type, p *Param, value []byte) *Node {
	if b.err != nil {
		return b.dummy()
	}
	if name == "" {
		return b.fail(b.scope, "", errors.New("an input needs a name"))
	}
	full := join(b.scope, name)
	if b.names[full] > 0 {
		return b.fail(b.scope, "", fmt.Errorf("the name %q is taken", full))
	}
	if err := t.check(); err != nil {
		return b.fail(full, "", err)
	}
	gn, err := b.newLeaf(full, t)
	if err != nil {
		return b.fail(full, "", err)
	}
	b.names[full] = 1
	n := &Node{b: b.shared, g: gn, name: full, scope: b.scope, typ: t.clone(), param: p, value: value}
	return b.keep(n)
}

func (s *shared) keep(n *Node) *Node {
	s.nodes = append(s.nodes, n)
	s.byID[n.g.ID()] = n
	return n
}

// Apply adds a node: op on the inputs, which come from one graph. The node
// belongs to the scope of the latest weight or result among its inputs and is
// labelled with the op's name. For an op with several results it returns the first; use ApplyAll.
func Apply(op Op, in ...*Node) *Node { return ApplyAs(nameOf(op), op, in...) }

func nameOf(op Op) string {
	if op == nil {
		return ""
	}
	return op.Name()
}

// ApplyAs is Apply with another label.
func ApplyAs(label string, op Op, in ...*Node) *Node { return ApplyAll(label, op, in...)[0] }

// ApplyAll adds a node and returns all its results.
func ApplyAll(label string, op Op, in ...*Node) []*Node {
	b := builderOf(in)
	if b == nil { // of no graph: the error goes with the nodes that come of it
		b = New()
		b.fail("", nameOf(op), errors.New("none of the inputs is a node"))
	}
	n := b.node(label, op, in)
	if n.bad() {
		// As many dummies as a caller can ask for.
		return slices.Repeat([]*Node{n}, maxResults)
	}
	if len(n.outs) == 1 {
		return []*Node{n}
	}
	res := make([]*Node, len(n.outs))
	for i := range res {
		res[i] = b.node(fmt.Sprintf("%s.%d", n.Label(), i), result{i, n.outs[i], partOffset(n.outs, i)}, []*Node{n})
	}
	return res
}

// after orders the inputs by how much they say about the scope.
func (n *Node) after(m *Node) bool {
	if n.bad() || n.outside() != m.outside() {
		return !n.bad() && m.outside()
	}
	return n.g.ID() > m.g.ID()
}

// outside reports that n is fed, constant or a state.
func (n *Node) outside() bool { return n.op == nil && (n.param == nil || n.param.State) }

const maxResults = 16

// builderOf picks the scope of a new node: that of the latest input, weights
// and results before fed inputs and states, which often come from outside.
func builderOf(in []*Node) *Builder {
	var last *Node
	for _, n := range in {
		if !n.missing() && (last == nil || last.bad() || n.after(last)) {
			last = n
		}
	}
	if last == nil {
		return nil
	}
	b := last.Builder()
	if w := b.within; w != nil {
		b.scope = w.scope
	}
	return b
}

func (b *Builder) node(label string, op Op, in []*Node) *Node {
	if b.err != nil {
		return b.dummy()
	}
	if op == nil {
		return b.fail(b.scope, "", errors.New("the op is missing (nil)"))
	}
	path := b.scope
	if label != op.Name() {
		path = join(path, label)
	}
	types := make([]Type, len(in))
	for i, n := range in {
		switch {
		case n.missing():
			return b.fail(path, op.Name(), fmt.Errorf("input %d is missing", i))
		case n.b != b.shared && n.b.err != nil:
			return b.fail(path, op.Name(), fmt.Errorf("input %d: %w", i, n.b.err))
		case n.b != b.shared:
			return b.fail(path, op.Name(), fmt.Errorf("input %d, %s, belongs to another graph", i, n.name))
		}
		types[i] = n.typ.clone() // Infer may keep and change it
	}
	def := lookup(op.Name())
	if def == nil {
		return b.fail(path, op.Name(), fmt.Errorf("no op of this name is registered (there are: %s)", strings.Join(Registered(), ", ")))
	}
	outs, err := infer(op, types)
	if err == nil {
		err = checkAlias(op, def, types, outs)
	}
	if err != nil {
		return b.fail(path, op.Name(), err)
	}
	n := &Node{b: b.shared, name: b.uniqueName(join(b.scope, label)), scope: b.scope, typ: packed(outs), op: op, def: def, outs: outs, in: slices.Clone(in)}
	if err := b.link(n); err != nil {
		return b.fail(path, op.Name(), err)
	}
	return b.keep(n)
}

// infer calls op.Infer and holds it to its contract.
func infer(op Op, in []Type) (outs []Type, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Infer failed on %v: %v", in, p)
		}
	}()
	if outs, err = op.Infer(in); err != nil {
		return nil, err
	}
	if len(outs) == 0 || len(outs) > maxResults {
		return nil, fmt.Errorf("Infer gave %d results, must be 1 to %d", len(outs), maxResults)
	}
	for _, t := range outs {
		if err := t.check(); err != nil {
			return nil, err
		}
		if t.DType != outs[0].DType {
			return nil, fmt.Errorf("Infer gave results of %s and %s, must be one element type", outs[0].DType, t.DType)
		}
	}
	return outs, nil
}

func (s *shared) uniqueName(name string) string {
	s.names[name]++
	if k := s.names[name]; k > 1 {
		return s.uniqueName(fmt.Sprintf("%s#%d", name, k))
	}
	return name
}

// Output gives a node a name of its own, by which passes and callers find it.
func (b *Builder) Output(name string, n *Node) *Node {
	b = b.made()
	switch {
	case b.err != nil:
		return n
	case n.missing():
		return b.fail(b.scope, "", fmt.Errorf("output %q is missing", name))
	case n.b != b.shared && n.b.err != nil:
		return b.fail(b.scope, "", fmt.Errorf("output %q: %w", name, n.b.err))
	case n.b != b.shared:
		return b.fail(b.scope, "", fmt.Errorf("output %q, %s, belongs to another graph", name, n.name))
	}
	for _, o := range b.outputs {
		if o.name == name {
			return b.fail(b.scope, "", fmt.Errorf("there are two outputs named %q", name))
		}
	}
	b.outputs = append(b.outputs, output{name, n})
	return n
}

// Out is the output of that name; nil when there is none.
func (b *Builder) Out(name string) *Node {
	for _, o := range b.made().outputs {
		if o.name == name {
			return o.node
		}
	}
	return nil
}

// Nodes lists all nodes in the order they were built: inputs before users.
func (b *Builder) Nodes() []*Node { return slices.Clone(b.made().nodes) }

// Node finds a node by name; nil when there is none.
func (b *Builder) Node(name string) *Node {
	for _, n := range b.made().nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Store is the set of parameters that the graph uses.
func (b *Builder) Store() *Params { return b.made().params }

// Params lists the trainable parameters of this graph, in the order of use.
func (b *Builder) Params() []*Node {
	var ps []*Node
	for _, n := range b.Nodes() {
		if n.param != nil && n.param.Trainable() && n.typ.DType == b.float {
			ps = append(ps, n)
		}
	}
	return ps
}

// ExprGraph is the gorgonia graph underneath, for reading.
func (b *Builder) ExprGraph() *gorgonia.ExprGraph { return b.made().g }
