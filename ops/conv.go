package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	flops := func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) * int64(last(in[1])) }
	graph.Register(graph.Def{
		Name:   "short_conv",
		Doc:    "depthwise causal convolution with SiLU, with a state",
		Native: floats(shortConv[float32], shortConv[float64]),
		FLOPs:  flops,
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := shortConvGrad{ShortConvOp: g.Op.(ShortConvOp)}
			rs := graph.ApplyAll("short_conv_grad", o.of(g), o.inputs(g)...)
			grads := make([]*graph.Node, len(g.In))
			copy(grads, rs[:2])
			if o.State {
				grads[2] = rs[2]
			}
			return grads
		},
	})
	graph.Register(graph.Def{Name: "short_conv_grad", Native: floats(shortConvGradBody[float32], shortConvGradBody[float64]), FLOPs: flops})
}

// ShortConvOp is the short convolution in front of KDA: for every channel c
//
//	a_t = sum_j w[c,j] x[t-W+1+j, c],  y_t = a_t sigmoid(a_t)
//
// x is [B,T,C], or [T,C] with sequences packed at cu_seqlens (int32 [N+1]); w
// [C,W], its last column on the newest sample. Samples before a sequence are
// those of the state [N,C,W-1], oldest first, or 0. Results: y and the state
// [N,C,W-1] that continues each sequence.
type ShortConvOp struct {
	State, Packed bool // which of the further inputs, state and cu_seqlens, there are
}

// ShortConv adds a ShortConvOp; state and cu may be nil.
func ShortConv(x, w, state, cu *graph.Node) (y, next *graph.Node) {
	rs := graph.ApplyAll("short_conv", ShortConvOp{state != nil, cu != nil}, given(x, w, state, cu)...)
	return rs[0], rs[1]
}

// given drops the optional inputs that are not there.
func given(in ...*graph.Node) []*graph.Node {
	var there []*graph.Node
	for _, n := range in {
		if n != nil {
			there = append(there, n)
		}
	}
	return there
}

// Name is "short_conv".
func (ShortConvOp) Name() string { return "short_conv" }

// Infer checks the channels, the state and the sequences.
func (o ShortConvOp) Infer(in []graph.Type) ([]graph.Type, error) {
	names := append([]string{"x", "w"}, optional(o.State, "state", o.Packed, "cu_seqlens")...)
	if err := arity(in, len(names), names...); err != nil {
		return nil, err
	}
	x, w := in[0], in[1]
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if w.DType != x.DType || w.Rank() != 2 || last(x) != w.Shape[0] {
		return nil, fmt.Errorf("w must be %s [C,W] for x [...,C], got x %s, w %s", x.DType, x.Dims(), w)
	}
	n, err := sequences(x, 2, o.Packed, in)
	if err != nil {
		return nil, err
	}
	if w.Shape[1] < 2 {
		return nil, fmt.Errorf("the width must be 2 or more, got w %s", w.Dims())
	}
	next := graph.T(x.DType, n, w.Shape[0], w.Shape[1]-1)
	if o.State && !in[2].Equal(next) {
		return nil, fmt.Errorf("state must be %s, got %s", next, in[2])
	}
	return []graph.Type{x, next}, nil
}

// optional lists the names of the inputs that are there.
func optional(a bool, nameA string, b bool, nameB string) []string {
	var names []string
	if a {
		names = append(names, nameA)
	}
	if b {
		names = append(names, nameB)
	}
	return names
}

// sequences is how many sequences x holds: [B,T,...] has B of equal length, and
// packed tokens [T,...] are cut by cu_seqlens, the last of the inputs. rank is
// that of x without the batch.
func sequences(x graph.Type, rank int, packed bool, in []graph.Type) (int, error) {
	if !packed {
		if x.Rank() != rank+1 {
			return 0, fmt.Errorf("the first input must have %d dimensions, batch and tokens first, got %s", rank+1, x.Dims())
		}
		return x.Shape[0], nil
	}
	cu := in[len(in)-1]
	if x.Rank() != rank || cu.DType != dtype.Int32 || cu.Rank() != 1 || cu.Shape[0] < 2 {
		return 0, fmt.Errorf("packed tokens must have %d dimensions, tokens first, and cu_seqlens be int32[N+1] with N of 1 or more, got %s and %s", rank, x.Dims(), cu)
	}
	return cu.Shape[0] - 1, nil
}

func (o ShortConvOp) shape(in []graph.Tensor) (native.ShortConvShape, error) {
	x, w := in[0], in[1]
	s := native.ShortConvShape{Tokens: rows(x.Type), Channels: w.Shape[0], Width: w.Shape[1]}
	if !o.Packed {
		s.Seqs = x.Shape[0]
		return s, nil
	}
	s.Cu = graph.Data[int32](in[len(in)-1])
	return s, native.CheckCuSeqlens(s.Cu, s.Tokens)
}

func shortConv[T native.Float](c *graph.Call) error {
	o := c.Op.(ShortConvOp)
	s, err := o.shape(c.In)
	if err != nil {
		return err
	}
	var state []T
	if o.State {
		state = graph.Data[T](c.In[2])
	}
	native.ShortConv(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), state, s)
	return nil
}

// shortConvGrad gives dx, dw and, with a state, its gradient, from those of dy
// and dnext that the loss depends on and then the inputs of the forward op.
type shortConvGrad struct {
	ShortConvOp
	resultGrads
}

// resultGrads says which of an op's first two results the loss depends on;
// their gradients are the first inputs of the backward op.
type resultGrads struct{ First, Second bool }

// of is o for one use of the forward op.
func (o shortConvGrad) of(g *graph.GradCall) shortConvGrad {
	o.resultGrads = resultGrads{g.Out(0) != nil, g.Out(1) != nil}
	return o
}

// inputs are the gradients that there are and the inputs of the forward op.
func (resultGrads) inputs(g *graph.GradCall) []*graph.Node {
	return append(given(g.Out(0), g.Out(1)), g.In...)
}

// count is how many of the two there are.
func (r resultGrads) count() int { return len(optional(r.First, "", r.Second, "")) }

// readResultGrads gives the gradients; one that the loss does not depend on is n zeros
// (the first) or nil (the second).
func readResultGrads[T native.Float](r resultGrads, in []graph.Tensor, n int) (first, second []T) {
	return lossParts[T](r.First, in[:r.count()], n)
}

func (shortConvGrad) Name() string { return "short_conv_grad" }
func (o shortConvGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	in = in[o.count():]
	if o.State {
		return in[:3], nil
	}
	return in[:2], nil
}

func shortConvGradBody[T native.Float](c *graph.Call) error {
	o := c.Op.(shortConvGrad)
	in := c.In[o.count():]
	s, err := o.shape(in)
	if err != nil {
		return err
	}
	dy, dnext := readResultGrads[T](o.resultGrads, c.In, in[0].Size())
	var state []T
	if o.State {
		state = graph.Data[T](in[2])
	}
	native.ShortConvGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), data[T](c.Out, 2), dy, dnext, graph.Data[T](in[0]), graph.Data[T](in[1]), state, s)
	return nil
}
