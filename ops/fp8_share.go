package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// This file holds the ops that Share puts into a training graph in float32: a
// SwiGLU that measures its results for the FP8 linears that read them, and FP8
// linears of measured operands.

func init() {
	graph.Register(graph.Def{Name: "swiglu_measured", Native: swiGLUMeasured,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 { return 7 * int64(in[0].Size()) }})
	graph.Register(graph.Def{Name: "swiglu_grad_measured", InPlace: []int{1, 2}, Native: swiGLUGradMeasured,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 { return 14 * int64(in[0].Size()) }})
	graph.Register(graph.Def{Name: "fp8_linear_measured", Native: fp8LinearMeasuredBody,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) * int64(in[1].Shape[0]) }})
	graph.Register(graph.Def{Name: "fp8_linear_grad_g_measured", Native: fp8LinearGradGMeasuredBody,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 { return int64(in[0].Size()) }})
}

// swiGLUWithAmax is SwiGLU, or its gradient, with a further result: for each
// result the largest magnitude and the number of NaN (see native.FP8TensorAmax).
type swiGLUWithAmax struct{ Kind string }

func (o swiGLUWithAmax) Name() string { return o.Kind }
func (o swiGLUWithAmax) Infer(in []graph.Type) ([]graph.Type, error) {
	if o.Kind == "swiglu_grad_measured" {
		return []graph.Type{in[1], in[2], graph.T(in[1].DType, 4)}, nil
	}
	return []graph.Type{in[0], graph.T(in[0].DType, 2)}, nil
}

func swiGLUMeasured(c *graph.Call) error {
	amax, nan := native.SwiGLUMeasured(graph.Data[float32](c.Out[0]), graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]))
	found := graph.Data[float32](c.Out[1])
	found[0], found[1] = amax, float32(nan)
	return nil
}

func swiGLUGradMeasured(c *graph.Call) error {
	amax, nan := native.SwiGLUGradMeasured(graph.Data[float32](c.Out[0]), graph.Data[float32](c.Out[1]),
		graph.Data[float32](c.In[0]), graph.Data[float32](c.In[1]), graph.Data[float32](c.In[2]))
	found := graph.Data[float32](c.Out[2])
	for i := range amax {
		found[2*i], found[2*i+1] = amax[i], float32(nan[i])
	}
	return nil
}

// fp8LinearMeasured is FP8LinearOp in float32 with a further input: the amax of
// x and the number of its NaN.
type fp8LinearMeasured struct{ FP8LinearOp }

func (fp8LinearMeasured) Name() string { return "fp8_linear_measured" }
func (o fp8LinearMeasured) Infer(in []graph.Type) ([]graph.Type, error) {
	return o.FP8LinearOp.Infer(in[:len(in)-1])
}

func fp8LinearMeasuredBody(c *graph.Call) error {
	at := len(c.In) - 1
	found := graph.Data[float32](c.In[at])
	x := fp8Operand[float32]{x: graph.Data[float32](c.In[0]), measured: true, amax: found[0], nan: int(found[1])}
	defer x.give()
	return x.linear(c, c.Op.(fp8LinearMeasured).FP8LinearOp, c.In[:at])
}

// fp8LinearGradGMeasured is fp8LinearGradG in float32 with a further input, the
// amax and the number of NaN of two values; dy is that of Index.
type fp8LinearGradGMeasured struct {
	fp8LinearGradG
	Index int
}

func (fp8LinearGradGMeasured) Name() string { return "fp8_linear_grad_g_measured" }

func fp8LinearGradGMeasuredBody(c *graph.Call) error {
	o := c.Op.(fp8LinearGradGMeasured)
	found := graph.Data[float32](c.In[len(c.In)-1])[2*o.Index:]
	return fp8GradG[float32](c, o.Recipe, found[0], int(found[1]))
}

// Share returns what became of the outputs in a graph in which SwiGLU and its
// gradient measure their results where FP8 linears read them and nothing else
// does: those then need not. It comes after Grad, and after graph.Recompute;
// every bit is as before.
func Share(outputs ...*graph.Node) ([]*graph.Node, error) {
	s := sharing{users: map[*graph.Node][]*graph.Node{}, parts: map[*graph.Node][]*graph.Node{}}
	seen := map[*graph.Node]bool{}
	for i, o := range outputs {
		if o == nil {
			return nil, fmt.Errorf("ops: Share: output %d is missing (nil)", i)
		}
		s.users[o] = append(s.users[o], nil) // somebody outside the graph
		s.visit(o, seen)
	}
	list, err := graph.RewriteOutputs(s.substitute, outputs...)
	if err != nil {
		return nil, fmt.Errorf("ops: Share: %w", err)
	}
	return list, nil
}

// sharing is what Share knows of the old graph: who reads a node, and the results
// of the op that measures in its place.
type sharing struct {
	users map[*graph.Node][]*graph.Node
	parts map[*graph.Node][]*graph.Node
}

func (s *sharing) visit(n *graph.Node, seen map[*graph.Node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	for _, in := range n.In() {
		s.users[in] = append(s.users[in], n)
		s.visit(in, seen)
	}
}

func (s *sharing) substitute(n *graph.Node, in []*graph.Node) []*graph.Node {
	if n.Type().DType != dtype.Float32 {
		return nil
	}
	switch o := n.Op().(type) {
	case SwiGLUOp:
		if s.readBy(n, "fp8_linear") {
			s.parts[n] = graph.ApplyAll(n.Label(), swiGLUWithAmax{"swiglu_measured"}, in...)
			return s.parts[n]
		}
	case swiGLUGrad:
		for _, r := range s.users[n] {
			if r == nil || !s.readBy(r, "fp8_linear_grad_g") {
				return nil
			}
		}
		s.parts[n] = graph.ApplyAll(n.Label(), swiGLUWithAmax{"swiglu_grad_measured"}, in...)
		return s.parts[n]
	case FP8LinearOp:
		if p := s.parts[n.In()[0]]; p != nil {
			return graph.ApplyAll(n.Label(), fp8LinearMeasured{o}, append(slices.Clone(in), p[1])...)
		}
	case fp8LinearGradG:
		if of, i, ok := n.In()[0].ResultOf(); ok && s.parts[of] != nil {
			return graph.ApplyAll(n.Label(), fp8LinearGradGMeasured{o, i}, append(slices.Clone(in), s.parts[of][2])...)
		}
	}
	return nil
}

// readBy says that ops of a name, and nothing else, read n.
func (s *sharing) readBy(n *graph.Node, name string) bool {
	return !slices.ContainsFunc(s.users[n], func(u *graph.Node) bool { return u == nil || u.Op().Name() != name })
}
