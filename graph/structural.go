package graph

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph/dtype"
)

// The ops that graph itself needs: reshape and the parts of a packed value
// (views, which no executor runs), and add (which gradients sum with; its body
// is registered by package ops).

func init() {
	Register(Def{Name: "reshape", Doc: "the same elements under another shape, a view", Grad: func(g *GradCall) []*Node {
		return []*Node{Apply(Reshape{g.In[0].Shape()}, g.Out(0))}
	}})
	Register(Def{Name: "result", Grad: func(g *GradCall) []*Node {
		r := g.Op.(result)
		return []*Node{Apply(scatter{r.Index, g.In[0].typ}, g.Out(0))}
	}})
	Register(Def{Name: "scatter", Symbolic: true})
}

// Reshape is the same elements under another shape. It is a view.
type Reshape struct{ Shape []int }

// Name is "reshape".
func (Reshape) Name() string { return "reshape" }

// Alias makes the result a view of the input.
func (Reshape) Alias() int { return 0 }

// Infer requires the number of elements to stay the same.
func (r Reshape) Infer(in []Type) ([]Type, error) {
	if len(in) != 1 {
		return nil, fmt.Errorf("takes one input, got %d", len(in))
	}
	t := Type{in[0].DType, slices.Clone(r.Shape)}
	if err := t.check(); err != nil {
		return nil, err
	}
	if t.Size() != in[0].Size() {
		return nil, fmt.Errorf("%s has %d elements, %s has %d", in[0].Dims(), in[0].Size(), t.Dims(), t.Size())
	}
	return []Type{t}, nil
}

// Add is the elementwise sum of two values of one float type. Gradients that meet in
// a node are summed with it.
type Add struct{}

// Name is "add".
func (Add) Name() string { return "add" }

// Infer requires equal types, float32 or float64.
func (Add) Infer(in []Type) ([]Type, error) {
	if len(in) != 2 {
		return nil, fmt.Errorf("takes two inputs, got %d", len(in))
	}
	if !in[0].Equal(in[1]) {
		return nil, fmt.Errorf("inputs must have one type, got %s and %s", in[0], in[1])
	}
	if d := in[0].DType; d != dtype.Float32 && d != dtype.Float64 {
		return nil, fmt.Errorf("inputs must be float32 or float64, got %s", in[0])
	}
	return []Type{in[0]}, nil
}

// packed is the type of a node's value: its result, or several results one
// after the other, each aligned to 64 bytes.
func packed(outs []Type) Type {
	if len(outs) == 1 {
		return outs[0]
	}
	return T(outs[0].DType, partOffset(outs, len(outs)))
}

// partOffset is where result i starts in a packed value, in elements.
func partOffset(outs []Type, i int) int {
	n := 0
	for _, t := range outs[:i] {
		per := 64 / t.DType.Size()
		n += (t.Size() + per - 1) / per * per
	}
	return n
}

// split gives the results of n inside the memory of its value.
func (n *Node) split(t Tensor) []Tensor {
	outs := make([]Tensor, len(n.outs))
	for i, o := range n.outs {
		at := partOffset(n.outs, i) * o.DType.Size()
		outs[i] = Tensor{o, t.mem[at : at+o.Bytes() : at+o.Bytes()]}
	}
	return outs
}

// alias is the value of an Aliaser node inside the memory of its input.
func (n *Node) alias(in Tensor) Tensor {
	at := n.aliasOffset()
	return Tensor{n.typ, in.mem[at : at+n.typ.Bytes()]}
}

// checkAlias holds an Aliaser to its contract: one result, inside the input
// that it shows or writes to.
func checkAlias(op Op, def *Def, in, outs []Type) error {
	al, ok := op.(Aliaser)
	if !ok {
		return nil
	}
	i := al.Alias()
	if i < 0 || i >= len(in) {
		return fmt.Errorf("shares the memory of input %d, it has %d inputs", i, len(in))
	}
	if len(outs) != 1 {
		return fmt.Errorf("shares the memory of an input, so it must have one result, Infer gave %d", len(outs))
	}
	at := 0
	if r, ok := op.(result); ok {
		at = r.Offset * r.Type.DType.Size()
	}
	if need := at + outs[0].Bytes(); need > in[i].Bytes() {
		return fmt.Errorf("the result %s lies in input %d, which has %d bytes of the %d needed (%s)", outs[0], i, in[i].Bytes(), need, in[i])
	}
	return nil
}

func (n *Node) aliasOffset() int {
	if r, ok := n.op.(result); ok {
		return r.Offset * n.typ.DType.Size()
	}
	return 0
}

// result is one result of an op that has several: a view of the packed value.
type result struct {
	Index  int
	Type   Type
	Offset int
}

// ResultOf says that n is result i of an op that has several, the node of.
func (n *Node) ResultOf() (of *Node, i int, ok bool) {
	r, ok := n.Op().(result)
	if !ok {
		return nil, 0, false
	}
	return n.in[0], r.Index, true
}

func (result) Name() string                   { return "result" }
func (result) Alias() int                     { return 0 }
func (r result) Infer([]Type) ([]Type, error) { return []Type{r.Type}, nil }

// scatter is the gradient of result: the gradient of one part, zero elsewhere.
// GradCall.Out reads it (and sums of it) before anything could run it.
type scatter struct {
	Index int
	Type  Type
}

func (scatter) Name() string                   { return "scatter" }
func (s scatter) Infer([]Type) ([]Type, error) { return []Type{s.Type}, nil }
