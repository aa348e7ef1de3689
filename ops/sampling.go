package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "sampling",
		Doc:    "the next token: penalty, temperature, top-k, top-p, min-p, seeded",
		Native: sampling,
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 5 * int64(in[0].Size()) },
	})
}

// Draw says how the next token of a request is drawn: see native.Draw.
type Draw = native.Draw

// SamplingOp draws the next token of each of R requests: logits [R,V], draws
// int32 [R,8] as Draw.Put writes them, and, for the penalty, seen: bits of the
// tokens that prompt and text hold, int32 [R,ceil(V/32)]. The result, int32 [R],
// has native.NoDraw, NaNLogit or NoneDrawn where it has no token. A row depends
// on its own inputs alone. It has no gradient.
type SamplingOp struct{}

// Sampling adds a SamplingOp; seen may be left out.
func Sampling(logits, draws *graph.Node, seen ...*graph.Node) *graph.Node {
	return graph.Apply(SamplingOp{}, append([]*graph.Node{logits, draws}, seen...)...)
}

// Name is "sampling".
func (SamplingOp) Name() string { return "sampling" }

// Infer requires a row of draws, and of seen, for each row of logits.
func (SamplingOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "logits", "draws", "seen"); err != nil {
		return nil, err
	}
	logits, draws := in[0], in[1]
	if err := activation("logits", logits); err != nil {
		return nil, err
	}
	if logits.Rank() != 2 || !draws.Equal(graph.T(dtype.Int32, logits.Shape[0], native.DrawWords)) {
		return nil, fmt.Errorf("draws must be int32 [R,%d] for logits [R,V], got logits %s, draws %s", native.DrawWords, logits, draws)
	}
	if words := (last(logits) + 31) / 32; len(in) > 2 && !in[2].Equal(graph.T(dtype.Int32, logits.Shape[0], words)) {
		return nil, fmt.Errorf("seen must be int32[%d,%d], a bit for each of logits %s, got %s", logits.Shape[0], words, logits, in[2])
	}
	return []graph.Type{graph.T(dtype.Int32, logits.Shape[0])}, nil
}

func sampling(c *graph.Call) error {
	if c.In[0].DType == dtype.Float64 {
		return draw[float64](c)
	}
	return draw[float32](c)
}

func draw[T native.Float](c *graph.Call) error {
	var seen []int32
	if len(c.In) > 2 {
		seen = graph.Data[int32](c.In[2])
	}
	logits := c.In[0]
	return native.Sampling(graph.Data[int32](c.Out[0]), graph.Data[T](logits), graph.Data[int32](c.In[1]), seen, rows(logits.Type), last(logits.Type))
}
