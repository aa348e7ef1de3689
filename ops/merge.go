package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	flops := func(_ graph.Op, in, _ []graph.Type) int64 { return 4 * int64(in[0].Size()) }
	graph.Register(graph.Def{
		Name:   "merge_states",
		Doc:    "attention over two sets of keys from the attention over each",
		Native: floats(mergeStates[float32], mergeStates[float64]),
		FLOPs:  flops,
		Grad: func(g *graph.GradCall) []*graph.Node {
			in := append(g.In, g.Results[0], g.Results[1])
			o := mergeStatesGrad{DOut: g.Out(0) != nil, DLSE: g.Out(1) != nil}
			for _, d := range []*graph.Node{g.Out(0), g.Out(1)} {
				if d != nil {
					in = append(in, d)
				}
			}
			return graph.ApplyAll("merge_states_grad", o, in...)[:4]
		},
	})
	graph.Register(graph.Def{Name: "merge_states_grad", Native: floats(mergeStatesGradBody[float32], mergeStatesGradBody[float64]), FLOPs: flops})
}

// MergeStatesOp joins two results of attention over disjoint keys: with
// w = exp(lse_a - lse) and lse = log(exp(lse_a) + exp(lse_b)),
//
//	out = w out_a + (1 - w) out_b
//
// outs [B,L,H,Dv] with lses [B,H,L], or packed [T,H,Dv] with [H,T]. A row whose
// lse is -Inf takes no part. Only one of the two may have counted sinks.
// Source: Ye et al., FlashInfer (arXiv:2501.01005).
type MergeStatesOp struct{}

// MergeStates adds a MergeStatesOp and returns out and lse over all keys.
func MergeStates(outA, lseA, outB, lseB *graph.Node) (out, lse *graph.Node) {
	rs := graph.ApplyAll("merge_states", MergeStatesOp{}, outA, lseA, outB, lseB)
	return rs[0], rs[1]
}

// Name is "merge_states".
func (MergeStatesOp) Name() string { return "merge_states" }

// Infer requires two states of one shape.
func (MergeStatesOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 4, "out_a", "lse_a", "out_b", "lse_b"); err != nil {
		return nil, err
	}
	out, lse := in[0], in[1]
	if err := activation("out_a", out); err != nil {
		return nil, err
	}
	want := graph.Type{DType: out.DType}
	switch s := out.Shape; len(s) {
	case 3:
		want.Shape = []int{s[1], s[0]}
	case 4:
		want.Shape = []int{s[0], s[2], s[1]}
	}
	if want.Shape == nil || !lse.Equal(want) || !in[2].Equal(out) || !in[3].Equal(lse) {
		return nil, fmt.Errorf("states must be out [B,L,H,Dv] with lse [B,H,L], or [T,H,Dv] with [H,T], and both alike, got out_a %s, lse_a %s, out_b %s, lse_b %s", out, lse, in[2], in[3])
	}
	return in[:2], nil
}

// mergeShape is B, L, H and Dv of a state.
func mergeShape(out graph.Type) (b, l, h, dv int) {
	s := out.Shape
	if len(s) == 3 {
		return 1, s[0], s[1], s[2]
	}
	return s[0], s[1], s[2], s[3]
}

func mergeStates[T native.Float](c *graph.Call) error {
	b, l, h, dv := mergeShape(c.Out[0].Type)
	native.MergeStates(attentionState[T](c.Out[0], c.Out[1]), attentionState[T](c.In[0], c.In[1]), attentionState[T](c.In[2], c.In[3]), b, l, h, dv)
	return nil
}

func attentionState[T native.Float](out, lse graph.Tensor) native.AttentionState[T] {
	return native.AttentionState[T]{Out: graph.Data[T](out), LSE: graph.Data[T](lse)}
}

// mergeStatesGrad gives the gradients of the four inputs from them, the merged
// state, and those of dout and dlse that the loss depends on.
type mergeStatesGrad struct{ DOut, DLSE bool }

func (mergeStatesGrad) Name() string                                { return "merge_states_grad" }
func (mergeStatesGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:4], nil }

func mergeStatesGradBody[T native.Float](c *graph.Call) error {
	o := c.Op.(mergeStatesGrad)
	b, l, h, dv := mergeShape(c.Out[0].Type)
	dout, dlse := lossParts[T](o.DOut, c.In[6:], c.Out[0].Size())
	native.MergeStatesGrad(attentionState[T](c.Out[0], c.Out[1]), attentionState[T](c.Out[2], c.Out[3]), attentionState[T](c.In[4], c.In[5]),
		attentionState[T](c.In[0], c.In[1]), attentionState[T](c.In[2], c.In[3]), dout, dlse, b, l, h, dv)
	return nil
}

// lossParts reads the gradients of out and lse behind the other inputs; a loss
// that depends on lse alone has a dout of n zeros.
func lossParts[T native.Float](hasOut bool, rest []graph.Tensor, n int) (dout, dlse []T) {
	if hasOut {
		return graph.Data[T](rest[0]), data[T](rest, 1)
	}
	return make([]T, n), graph.Data[T](rest[0])
}
