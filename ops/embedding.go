package ops

import (
	"fmt"
	"sync/atomic"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "embedding",
		Doc:    "rows of a table by index",
		Native: floats(embedding[float32], embedding[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			if g.Op.(EmbeddingOp).Coding != 0 || isHalf(g.In[1].Type()) {
				return []*graph.Node{nil, nil}
			}
			return []*graph.Node{nil, graph.Apply(embeddingGrad{g.In[1].Dim(0)}, g.Out(0), g.In[0])}
		},
	})
	graph.Register(graph.Def{Name: "embedding_grad", Native: floats(embeddingGradBody[float32], embeddingGradBody[float64])})
}

// EmbeddingOp reads rows of a table: y[..., d] = table[ids[...], d]. ids is an
// int32 of any shape, table [V,D], y [...,D]. An id outside 0..V-1 is an error
// of the run. The gradient of the table sums the rows that one id was read for.
// A table stored as bfloat16 or float16, or in the blocks of Coding, gives
// float32 rows and has no gradient.
type EmbeddingOp struct{ Coding Coding }

// Embedding adds an EmbeddingOp.
func Embedding(ids, table *graph.Node) *graph.Node {
	if p := table.Param(); p != nil {
		isTable(p).Store(true)
	}
	return graph.Apply(EmbeddingOp{codingOf(table)}, ids, table)
}

func isTable(p *graph.Param) *atomic.Bool {
	return p.Attach("table", func() any { return new(atomic.Bool) }).(*atomic.Bool)
}

// IsTable reports whether Embedding has read p, in any graph, since it was last
// stored anew: such a weight has no form in 8-bit floats.
func IsTable(p *graph.Param) bool { return p != nil && isTable(p).Load() }

// Name is "embedding".
func (EmbeddingOp) Name() string { return "embedding" }

// Infer requires int32 ids and a two-dimensional table.
func (o EmbeddingOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "ids", "table"); err != nil {
		return nil, err
	}
	ids, table := in[0], in[1]
	if ids.DType != dtype.Int32 || table.Rank() != 2 {
		return nil, fmt.Errorf("ids must be int32 and table [V,D], got ids %s, table %s", ids, table)
	}
	table, err := asWide(table, o.Coding)
	if err != nil {
		return nil, err
	}
	if err := activation("table", table); err != nil {
		return nil, err
	}
	return []graph.Type{graph.T(table.DType, append(append([]int(nil), ids.Shape...), table.Shape[1])...)}, nil
}

func embedding[T native.Float](c *graph.Call) error {
	table := c.In[1]
	if mem, coding, ok := coded(table, c.Op.(EmbeddingOp).Coding); ok {
		return native.EmbeddingCoded(graph.Data[float32](c.Out[0]), mem, coding, graph.Data[int32](c.In[0]), c.In[0].Size(), table.Shape[0], last(c.Out[0].Type))
	}
	return native.Embedding(graph.Data[T](c.Out[0]), graph.Data[T](table), graph.Data[int32](c.In[0]), c.In[0].Size(), table.Shape[0], table.Shape[1])
}

// embeddingGrad is the gradient of the table [V,D] from dy [...,D] and the ids.
type embeddingGrad struct{ V int }

func (embeddingGrad) Name() string { return "embedding_grad" }
func (e embeddingGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, e.V, last(in[0]))}, nil
}

func embeddingGradBody[T native.Float](c *graph.Call) error {
	dy, ids, dw := c.In[0], c.In[1], c.Out[0]
	return native.EmbeddingGrad(graph.Data[T](dw), graph.Data[T](dy), graph.Data[int32](ids), ids.Size(), dw.Shape[0], dw.Shape[1])
}
