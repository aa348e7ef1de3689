package ops

import (
	"fmt"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:     "linear",
		Doc:      "y = x w^T + b",
		Native:   linearBody,
		Together: linearTogether,
		Fused:    linearFused,
		Leads:    []string{"rmsnorm", "swiglu"},
		Tails:    []string{"add"},
		FLOPs:    func(_ graph.Op, in, out []graph.Type) int64 { return 2 * int64(out[0].Size()) * int64(last(in[0])) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			dy := g.Out(0)
			o := g.Op.(LinearOp)
			grads := []*graph.Node{graph.ApplyAs("linear_grad_x", linearGradX(o), dy, g.In[1]), nil}
			if o.Coding == 0 && !isHalf(g.In[1].Type()) {
				grads[1] = graph.ApplyAs("linear_grad_w", linearGradW{o.BF16x6}, dy, g.In[0])
			}
			if len(g.In) == 3 {
				grads = append(grads, graph.ApplyAs("linear_grad_b", linearGradB{}, dy))
			}
			return grads
		},
	})
	graph.Register(graph.Def{
		Name:   "linear_grad_x",
		Native: floats(linearGradXBody[float32], linearGradXBody[float64]),
		FLOPs:  func(_ graph.Op, in, out []graph.Type) int64 { return 2 * int64(in[0].Size()) * int64(last(out[0])) },
	})
	graph.Register(graph.Def{
		Name:   "linear_grad_w",
		Native: floats(linearGradWBody[float32], linearGradWBody[float64]),
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(last(in[1]))
		},
	})
	graph.Register(graph.Def{
		Name:   "linear_grad_b",
		Native: floats(linearGradBBody[float32], linearGradBBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return int64(in[0].Size()) },
	})
}

// LinearOp applies a weight matrix to the last dimension:
//
//	y[..., n] = sum_k x[..., k] w[n, k] + b[n]
//
// x is [...,K], w [N,K] as checkpoints store it, b [N], y [...,N]. For float32
// activations w may be stored as bfloat16 or float16, or in the blocks of
// Coding: it is read as it is stored, gives the bits that the widened weight
// would give, and has no gradient. The rows of one in blocks may lie in another
// order, as Rows says. BF16x6 lets float32 products, those of the gradient too,
// go through AMX where it is (see native.BF16x6Linear); weights that are read as
// they are stored have no part in it.
type LinearOp struct {
	Coding Coding
	Rows   native.Rows
	BF16x6 bool
}

// Linear adds a LinearOp: y = x w^T, plus bias when one is given. The node is
// named after the weight. A weight stored in 8 bits is read as it is: then it
// is an FP8WeightLinearOp.
func Linear(x, w *graph.Node, bias ...*graph.Node) *graph.Node {
	if w.Type().DType.IsFloat8() {
		return FP8WeightLinear(x, w, FP8WeightLinearOp{}, bias...)
	}
	return graph.ApplyAs(linearLabel(w), LinearOp{Coding: codingOf(w), Rows: rowsOf(w)}, append([]*graph.Node{x, w}, bias...)...)
}

// linearLabel is the weight's name without its ".weight".
func linearLabel(w *graph.Node) string {
	label := strings.TrimSuffix(w.Label(), ".weight")
	if label == "weight" || label == "" {
		return "linear"
	}
	return label
}

// Name is "linear".
func (LinearOp) Name() string { return "linear" }

// Infer requires the last dimension of x to be that of w.
func (o LinearOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "x", "w", "bias"); err != nil {
		return nil, err
	}
	x, w := in[0], in[1]
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if x.DType == dtype.Float32 {
		var err error
		if w, err = asWide(w, o.Coding); err != nil {
			return nil, err
		}
	}
	if err := alike(x, []string{"w", "bias"}, append([]graph.Type{w}, in[2:]...)...); err != nil {
		return nil, err
	}
	if w.Rank() != 2 || x.Rank() < 1 || last(x) != w.Shape[1] {
		return nil, fmt.Errorf("x must be [...,K] and w [N,K] with one K, got x %s, w %s", x.Dims(), w.Dims())
	}
	if len(in) == 3 && (in[2].Rank() != 1 || in[2].Shape[0] != w.Shape[0]) {
		return nil, fmt.Errorf("bias must be [%d] for w %s, got %s", w.Shape[0], w.Dims(), in[2].Dims())
	}
	if n := int(o.Rows); n < 0 || n%2 != 0 || n > 0 && w.Shape[0]%n != 0 {
		return nil, fmt.Errorf("rows in heads must be an even number that divides those of w %s, got %d", w.Dims(), n)
	}
	return []graph.Type{withLast(x, w.Shape[0])}, nil
}

var linearBody = floats(linear[float32], linear[float64])

func linear[T native.Float](c *graph.Call) error {
	x, w := c.In[0], c.In[1]
	if p, ok := storedLinear(c); ok {
		native.LinearsCoded(graph.Data[float32](x), rows(x.Type), last(x.Type), []native.CodedLinear{p})
		return nil
	}
	body := native.Linear[T]
	if c.Op.(LinearOp).BF16x6 {
		body = native.BF16x6Linear[T]
	}
	body(graph.Data[T](c.Out[0]), graph.Data[T](x), graph.Data[T](w), data[T](c.In, 2), rows(x.Type), w.Shape[0], w.Shape[1])
	return nil
}

// codedLinear is a linear on a weight that is read as it is stored.
func codedLinear(c *graph.Call, mem []byte, coding Coding) native.CodedLinear {
	o, _ := c.Op.(LinearOp) // a BF16LinearOp has no order of rows
	panels, after := panelsOf(c)
	return native.CodedLinear{
		Y: graph.Data[float32](c.Out[0]), W: mem, Panels: panels, Bias: data[float32](c.In, 2),
		Coding: coding, Rows: o.Rows, N: c.In[1].Shape[0], After: after,
	}
}

// storedLinear is codedLinear where the weight is read as it is stored.
func storedLinear(c *graph.Call) (p native.CodedLinear, ok bool) {
	mem, coding, ok := coded(c.In[1], c.Op.(LinearOp).Coding)
	if ok {
		p = codedLinear(c, mem, coding)
	}
	return p, ok
}

// splitLinear is wideLinear where it goes by BF16x6.
func splitLinear(c *graph.Call) (l native.BF16LinearOf, ok bool) {
	if ok = c.In[0].DType == dtype.Float32 && c.Op.(LinearOp).BF16x6; ok {
		l = wideLinear(c)
	}
	return l, ok
}

// wideLinear is a linear on a weight in float32.
func wideLinear(c *graph.Call) native.BF16LinearOf {
	return native.BF16LinearOf{
		Y: graph.Data[float32](c.Out[0]), W: graph.Data[float32](c.In[1]), B: data[float32](c.In, 2), N: c.In[1].Shape[0],
	}
}

// front puts the linears at the front of calls that of takes into ls, as many as
// there is room for, and says how many they are.
func front[L any](ls []L, calls []graph.Call, of func(c *graph.Call) (L, bool)) int {
	most := min(len(ls), len(calls))
	for i := range most {
		l, ok := of(&calls[i])
		if !ok {
			return i
		}
		ls[i] = l
	}
	return most
}

// linearTogether runs linears of one x, up to four in a launch: those on weights
// that are read as they are stored, of a few rows each is too short for several
// workers, and those by BF16x6, which share what is made of x.
func linearTogether(calls []graph.Call) error {
	var stored [4]native.CodedLinear
	var split [4]native.BF16LinearOf
	x := calls[0].In[0]
	for len(calls) > 0 {
		n := front(stored[:], calls, storedLinear)
		if n > 0 {
			native.LinearsCoded(graph.Data[float32](x), rows(x.Type), last(x.Type), stored[:n])
		} else if n = front(split[:], calls, splitLinear); n > 0 {
			native.BF16x6Linears(graph.Data[float32](x), rows(x.Type), last(x.Type), split[:n])
		} else if err := linearBody(&calls[0]); err != nil {
			return err
		}
		calls = calls[max(1, n):]
	}
	return nil
}

// linearGradX is dx = dy w.
type linearGradX LinearOp

func (linearGradX) Name() string { return "linear_grad_x" }
func (o linearGradX) Infer(in []graph.Type) ([]graph.Type, error) {
	w, err := asWide(in[1], o.Coding)
	if err != nil {
		return nil, err
	}
	return []graph.Type{withLast(in[0], w.Shape[1])}, nil
}

func linearGradXBody[T native.Float](c *graph.Call) error {
	dy, w := c.In[0], c.In[1]
	o := c.Op.(linearGradX)
	if mem, coding, ok := coded(w, o.Coding); ok {
		native.LinearCodedGradInput(graph.Data[float32](c.Out[0]), graph.Data[float32](dy), mem, coding, o.Rows, rows(dy.Type), w.Shape[0], last(c.Out[0].Type))
		return nil
	}
	body := native.LinearGradInput[T]
	if o.BF16x6 {
		body = native.BF16x6LinearGradInput[T]
	}
	body(graph.Data[T](c.Out[0]), graph.Data[T](dy), graph.Data[T](w), rows(dy.Type), w.Shape[0], w.Shape[1])
	return nil
}

// linearGradW is dw = dy^T x.
type linearGradW struct{ BF16x6 bool }

func (linearGradW) Name() string { return "linear_grad_w" }
func (linearGradW) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, last(in[0]), last(in[1]))}, nil
}

func linearGradWBody[T native.Float](c *graph.Call) error {
	dy, x := c.In[0], c.In[1]
	body := native.LinearGradWeight[T]
	if c.Op.(linearGradW).BF16x6 {
		body = native.BF16x6LinearGradWeight[T]
	}
	body(graph.Data[T](c.Out[0]), graph.Data[T](dy), graph.Data[T](x), rows(x.Type), last(dy.Type), last(x.Type))
	return nil
}

// linearGradB is db, the sum of dy over the rows.
type linearGradB struct{}

func (linearGradB) Name() string { return "linear_grad_b" }
func (linearGradB) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, last(in[0]))}, nil
}

func linearGradBBody[T native.Float](c *graph.Call) error {
	native.LinearGradBias(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), rows(c.In[0].Type), last(c.In[0].Type))
	return nil
}
