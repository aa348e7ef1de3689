package ops

import (
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "kda",
		Doc:    "Kimi Delta Attention, chunked or recurrent, with initial and final state",
		Native: floats(kda[float32], kda[float64]),
		FLOPs:  func(op graph.Op, in, _ []graph.Type) int64 { return op.(KDAOp).flops(in) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := kdaGrad{g.Op.(KDAOp), resultGrads{g.Out(0) != nil, g.Out(1) != nil}}
			rs := graph.ApplyAll("kda_grad", o, append(o.inputs(g), g.Results[2])...)
			grads := make([]*graph.Node, len(g.In))
			copy(grads, rs[:5])
			if o.S0 {
				grads[5] = rs[5]
			}
			return grads
		},
	})
	graph.Register(graph.Def{
		Name:   "kda_grad",
		Native: floats(kdaGradBody[float32], kdaGradBody[float64]),
		FLOPs: func(op graph.Op, in, _ []graph.Type) int64 {
			o := op.(kdaGrad)
			return 3 * o.flops(in[o.count():])
		},
	})
}

// KDAOp is the core of Kimi Delta Attention. For each sequence and value head,
// from S = s0 (a K x V matrix, 0 without):
//
//	S <- diag(exp g_t) S
//	S <- S + k_t (beta_t (v_t - S' k_t))'
//	o_t = Scale S' q_t
//
// q and k [B,T,H,K] normalised, v [B,T,HV,V], log-decay g [B,T,HV,K] (natural
// logarithm, never above 0: a positive or infinite one is an error of the run),
// beta [B,T,HV] activated; value head hv reads query and key of head
// hv/(HV/H). Packed tokens are [T,...] with cu_seqlens, int32 [N+1]. s0 and the
// final state are [N,HV,K,V]. Results: o [B,T,HV,V], the final state, and the
// states at the chunk borders that the gradient starts from. Source: Kimi Team,
// Kimi Linear (arXiv:2510.26692).
type KDAOp struct {
	Scale     float64 // 0: K^-1/2
	Chunk     int     // tokens of a chunk, a multiple of 16; 0: 64
	Recurrent bool    // token by token: the definition, for comparison

	S0, Packed bool // which of the further inputs there are
}

// KDAOptions are the attributes and the optional inputs of KDA.
type KDAOptions struct {
	Scale     float64
	Chunk     int
	Recurrent bool
	S0, Cu    *graph.Node
}

// KDA adds a KDAOp and returns o and the final state.
func KDA(q, k, v, g, beta *graph.Node, opts KDAOptions) (o, state *graph.Node) {
	op := KDAOp{Scale: opts.Scale, Chunk: opts.Chunk, Recurrent: opts.Recurrent, S0: opts.S0 != nil, Packed: opts.Cu != nil}
	rs := graph.ApplyAll("kda", op, given(q, k, v, g, beta, opts.S0, opts.Cu)...)
	return rs[0], rs[1]
}

// maxChunk is the longest chunk that the native body works on.
const maxChunk = 1024

// Name is "kda".
func (KDAOp) Name() string { return "kda" }

// Infer checks heads, dims, state and sequences.
func (o KDAOp) Infer(in []graph.Type) ([]graph.Type, error) {
	names := append([]string{"q", "k", "v", "g", "beta"}, optional(o.S0, "s0", o.Packed, "cu_seqlens")...)
	if err := arity(in, len(names), names...); err != nil {
		return nil, err
	}
	q, k, v, g, beta := in[0], in[1], in[2], in[3], in[4]
	if err := activation("q", q); err != nil {
		return nil, err
	}
	if err := alike(q, names[1:5], in[1:5]...); err != nil {
		return nil, err
	}
	shapes := fmt.Sprintf("q %s, k %s, v %s, g %s, beta %s", q.Dims(), k.Dims(), v.Dims(), g.Dims(), beta.Dims())
	n, err := sequences(q, 3, o.Packed, in)
	if err != nil {
		return nil, fmt.Errorf("%w (%s)", err, shapes)
	}
	r := q.Rank()
	tokens := q.Shape[:r-2]
	if !q.Equal(k) || v.Rank() != r || g.Rank() != r || beta.Rank() != r-1 ||
		!slices.Equal(v.Shape[:r-2], tokens) || !slices.Equal(g.Shape[:r-1], v.Shape[:r-1]) || !slices.Equal(beta.Shape, v.Shape[:r-1]) || last(g) != last(q) {
		return nil, fmt.Errorf("q and k must be [...,H,K], v [...,HV,V], g [...,HV,K] and beta [...,HV] of the same tokens (%s)", shapes)
	}
	h, hv, dk, dv := q.Shape[r-2], v.Shape[r-2], last(q), last(v)
	state := graph.T(q.DType, n, hv, dk, dv)
	switch {
	case hv%h != 0:
		return nil, fmt.Errorf("v has %d heads, not a multiple of q's %d (%s)", hv, h, shapes)
	case dk > maxHeadDim || dv > maxHeadDim:
		return nil, fmt.Errorf("head dims go up to %d (%s)", maxHeadDim, shapes)
	case o.Chunk < 0 || o.Chunk%16 != 0 || o.Chunk > maxChunk:
		return nil, fmt.Errorf("chunk must be a multiple of 16 up to %d (0: 64), got %d", maxChunk, o.Chunk)
	case o.Scale < 0 || math.IsInf(o.Scale, 0) || o.Scale != o.Scale:
		return nil, fmt.Errorf("scale must be 0 (K^-1/2) or above, got %g", o.Scale)
	case o.S0 && !in[5].Equal(state):
		return nil, fmt.Errorf("s0 must be %s, got %s (%s)", state, in[5], shapes)
	}
	all := 1
	for _, d := range tokens {
		all *= d
	}
	kept := graph.T(q.DType, native.KDACheckpoints(n, all, o.Chunk), hv, dk, dv)
	return []graph.Type{v, state, kept}, nil
}

func (o KDAOp) flops(in []graph.Type) int64 {
	chunk := o.Chunk
	if chunk == 0 {
		chunk = 64
	}
	// Per token and value head: products of a chunk with K and V, and with the state.
	dk, dv := int64(last(in[0])), int64(last(in[2]))
	return int64(in[4].Size()) * (2*int64(chunk)*(2*dk+dv) + 6*dk*dv)
}

// kdaOperands fills what forward and backward share.
func kdaOperands[T native.Float](o KDAOp, in []graph.Tensor) (native.KDA[T], error) {
	q, v := in[0], in[2]
	r := q.Rank()
	a := native.KDA[T]{
		Q: graph.Data[T](q), K: graph.Data[T](in[1]), V: graph.Data[T](v), G: graph.Data[T](in[3]), Beta: graph.Data[T](in[4]),
		H: q.Shape[r-2], HV: v.Shape[r-2], DK: last(q.Type), DV: last(v.Type), Scale: o.Scale, Chunk: o.Chunk,
	}
	a.Tokens = len(a.Q) / (a.H * a.DK)
	if o.S0 {
		a.S0 = graph.Data[T](in[5])
	}
	if !o.Packed {
		a.Seqs = q.Shape[0]
		return a, nil
	}
	a.Cu = graph.Data[int32](in[o.cu()])
	a.Seqs = len(a.Cu) - 1
	return a, native.CheckCuSeqlens(a.Cu, a.Tokens)
}

// cu is the place of cu_seqlens among the inputs.
func (o KDAOp) cu() int {
	if o.S0 {
		return 6
	}
	return 5
}

func kda[T native.Float](c *graph.Call) error {
	o := c.Op.(KDAOp)
	a, err := kdaOperands[T](o, c.In)
	if err != nil {
		return err
	}
	if err := native.CheckKDADecay(a.G, a.HV, a.DK); err != nil {
		return err
	}
	run := native.KDAChunked[T]
	if o.Recurrent {
		run = native.KDARecurrent[T]
	}
	run(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.Out[2]), a)
	return nil
}

// kdaGrad gives the gradients of the float inputs, from those of o and the final
// state that the loss depends on, the inputs of the forward op and its kept
// states.
type kdaGrad struct {
	KDAOp
	resultGrads
}

func (kdaGrad) Name() string { return "kda_grad" }
func (o kdaGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	in = in[o.count():]
	if o.S0 {
		return in[:6], nil
	}
	return in[:5], nil
}

func kdaGradBody[T native.Float](c *graph.Call) error {
	o := c.Op.(kdaGrad)
	in := c.In[o.count():]
	a, err := kdaOperands[T](o.KDAOp, in)
	if err != nil {
		return err
	}
	do, dst := readResultGrads[T](o.resultGrads, c.In, in[2].Size())
	run := native.KDAChunkedGrad[T]
	if o.Recurrent {
		run = native.KDARecurrentGrad[T]
	}
	run(native.KDAGrads[T]{
		Q: graph.Data[T](c.Out[0]), K: graph.Data[T](c.Out[1]), V: graph.Data[T](c.Out[2]), G: graph.Data[T](c.Out[3]),
		Beta: graph.Data[T](c.Out[4]), S0: data[T](c.Out, 5),
	}, do, dst, graph.Data[T](in[len(in)-1]), a)
	return nil
}
