package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:     "bf16_linear",
		Doc:      "linear with products of bf16",
		Native:   bf16Body,
		Together: bf16Together,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(in[1].Shape[0])
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			dy := g.Out(0)
			grads := []*graph.Node{graph.ApplyAs("bf16_linear_grad_x", bf16LinearGradX{}, dy, g.In[1]), nil}
			if !isStoredBF16(g.In[1].Type()) {
				grads[1] = graph.ApplyAs("bf16_linear_grad_w", bf16LinearGradW{}, dy, g.In[0])
			}
			if len(g.In) == 3 {
				grads = append(grads, graph.ApplyAs("linear_grad_b", linearGradB{}, dy))
			}
			return grads
		},
	})
	graph.Register(graph.Def{
		Name:   "bf16_linear_grad_x",
		Native: floats(bf16LinearGradXBody[float32], bf16LinearGradXBody[float64]),
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(in[1].Shape[1])
		},
	})
	graph.Register(graph.Def{
		Name:   "bf16_linear_grad_w",
		Native: floats(bf16LinearGradWBody[float32], bf16LinearGradWBody[float64]),
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(last(in[1]))
		},
	})
}

// BF16LinearOp is a linear layer with products in bf16:
//
//	y[..., n] = sum_k bf16(x[..., k]) bf16(w[n, k]) + b[n]
//	dx = bf16(dy) bf16(w),  dw = bf16(dy)^T bf16(x),  db = sum of dy over the rows
//
// bf16 rounds to nearest even; sums and results have the float type of the
// graph. Rounding counts as the identity in the gradient; subnormal numbers count
// as zero. Shapes are those of LinearOp. For float32 activations w may be stored
// as bfloat16: it is read as it is stored and has no gradient.
type BF16LinearOp struct{}

// BF16Linear adds a BF16LinearOp named after the weight.
func BF16Linear(x, w *graph.Node, bias ...*graph.Node) *graph.Node {
	return BF16LinearAs(linearLabel(w), x, w, bias...)
}

// BF16LinearAs is BF16Linear with another label.
func BF16LinearAs(label string, x, w *graph.Node, bias ...*graph.Node) *graph.Node {
	return graph.ApplyAs(label, BF16LinearOp{}, append([]*graph.Node{x, w}, bias...)...)
}

// Name is "bf16_linear".
func (BF16LinearOp) Name() string { return "bf16_linear" }

// isStoredBF16 reports a weight stored as bfloat16.
func isStoredBF16(t graph.Type) bool { return t.DType == dtype.BFloat16 }

// Infer requires the shapes of a linear, and a weight of the type of x or in
// bfloat16.
func (BF16LinearOp) Infer(in []graph.Type) ([]graph.Type, error) {
	y, err := LinearOp{}.Infer(in)
	if err == nil && !isStoredBF16(in[1]) {
		err = alike(in[0], []string{"w"}, in[1])
	}
	return y, err
}

var bf16Body = floats(bf16Linear[float32], bf16Linear[float64])

func bf16Linear[T native.Float](c *graph.Call) error {
	x, w := c.In[0], c.In[1]
	if p, ok := storedBF16Linear(c); ok {
		native.BF16LinearsStored(graph.Data[float32](x), rows(x.Type), last(x.Type), []native.CodedLinear{p})
		return nil
	}
	native.BF16Linear(graph.Data[T](c.Out[0]), graph.Data[T](x), graph.Data[T](w), data[T](c.In, 2), rows(x.Type), w.Shape[0], w.Shape[1])
	return nil
}

// storedBF16Linear is codedLinear where the weight is stored in bfloat16.
func storedBF16Linear(c *graph.Call) (p native.CodedLinear, ok bool) {
	if ok = isStoredBF16(c.In[1].Type); ok {
		p = codedLinear(c, c.In[1].Bytes(), native.CodedBF16)
	}
	return p, ok
}

// wideBF16Linear is wideLinear where there is one.
func wideBF16Linear(c *graph.Call) (l native.BF16LinearOf, ok bool) {
	if ok = c.In[1].DType == dtype.Float32; ok {
		l = wideLinear(c)
	}
	return l, ok
}

// bf16Together runs linears of one x, up to four at a time.
func bf16Together(calls []graph.Call) error {
	var stored [4]native.CodedLinear
	var wide [4]native.BF16LinearOf
	x := calls[0].In[0]
	for len(calls) > 0 {
		n := front(stored[:], calls, storedBF16Linear)
		if n > 0 {
			native.BF16LinearsStored(graph.Data[float32](x), rows(x.Type), last(x.Type), stored[:n])
		} else if n = front(wide[:], calls, wideBF16Linear); n > 0 {
			native.BF16Linears(graph.Data[float32](x), rows(x.Type), last(x.Type), wide[:n])
		} else if err := bf16Body(&calls[0]); err != nil {
			return err
		}
		calls = calls[max(1, n):]
	}
	return nil
}

// bf16LinearGradX is dx from dy and w.
type bf16LinearGradX struct{}

func (bf16LinearGradX) Name() string { return "bf16_linear_grad_x" }
func (bf16LinearGradX) Infer(in []graph.Type) ([]graph.Type, error) {
	return linearGradX{}.Infer(in)
}

func bf16LinearGradXBody[T native.Float](c *graph.Call) error {
	dy, w := c.In[0], c.In[1]
	if isStoredBF16(w.Type) {
		native.BF16LinearStoredGradInput(graph.Data[float32](c.Out[0]), graph.Data[float32](dy), graph.Data[uint16](w), rows(dy.Type), w.Shape[0], w.Shape[1])
		return nil
	}
	native.BF16LinearGradInput(graph.Data[T](c.Out[0]), graph.Data[T](dy), graph.Data[T](w), rows(dy.Type), w.Shape[0], w.Shape[1])
	return nil
}

// bf16LinearGradW is dw from dy and x.
type bf16LinearGradW struct{}

func (bf16LinearGradW) Name() string { return "bf16_linear_grad_w" }
func (bf16LinearGradW) Infer(in []graph.Type) ([]graph.Type, error) {
	return linearGradW{}.Infer(in)
}

func bf16LinearGradWBody[T native.Float](c *graph.Call) error {
	dy, x := c.In[0], c.In[1]
	native.BF16LinearGradWeight(graph.Data[T](c.Out[0]), graph.Data[T](dy), graph.Data[T](x), rows(x.Type), last(dy.Type), last(x.Type))
	return nil
}
