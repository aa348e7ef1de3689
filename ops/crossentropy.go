package ops

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "cross_entropy",
		Doc:    "mean negative log-likelihood, ignored labels, z-loss",
		Native: floats(crossEntropy[float32], crossEntropy[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 5 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			if g.Out(0) == nil {
				return []*graph.Node{g.In[0].Builder().Fail(errors.New("cross_entropy: of its results only the loss has a gradient")), nil}
			}
			return []*graph.Node{graph.Apply(crossEntropyGrad{g.Op.(CrossEntropyOp)}, g.Out(0), g.In[0], g.In[1], g.Results[2]), nil}
		},
	})
	graph.Register(graph.Def{
		Name:    "cross_entropy_grad",
		InPlace: []int{1},
		Native:  floats(crossEntropyGradBody[float32], crossEntropyGradBody[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 4 * int64(in[1].Size()) },
	})
}

func init() {
	graph.Register(graph.Def{
		Name:   "nll",
		Doc:    "negative log-likelihood of one token a row",
		Native: floats(nll[float32], nll[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 5 * int64(in[0].Size()) },
	})
}

// IgnoreIndex is the label of a token that has no target.
const IgnoreIndex = -100

// CrossEntropyOp is the mean negative log-likelihood of the labels, in nats,
// over the tokens that are counted (label not Ignore):
//
//	loss = mean_i (lse_i - z[i, label_i]) + ZLoss mean_i lse_i^2,  lse_i = log sum_v exp z[i,v]
//
// logits [...,V], labels int32 [...]. Results: the loss (a scalar), the number
// of counted tokens (a scalar of the same float type) and lse [N]. With no
// counted token the loss and its gradient are 0. A label outside 0..V-1 that is
// not Ignore is an error of the run.
type CrossEntropyOp struct {
	Ignore int32
	ZLoss  float64
}

// CrossEntropyOptions are the attributes that most models leave alone.
type CrossEntropyOptions struct {
	ZLoss float64 // weight of the mean of lse^2
}

// CrossEntropy adds a CrossEntropyOp that ignores the label IgnoreIndex. It
// returns the loss and the number of tokens that it is the mean of.
func CrossEntropy(logits, labels *graph.Node, opts ...CrossEntropyOptions) (loss, tokens *graph.Node) {
	op := CrossEntropyOp{Ignore: IgnoreIndex}
	for _, o := range opts {
		op.ZLoss = o.ZLoss
	}
	rs := graph.ApplyAll("cross_entropy", op, logits, labels)
	return rs[0], rs[1]
}

// Name is "cross_entropy".
func (CrossEntropyOp) Name() string { return "cross_entropy" }

// Infer requires one label for each row of logits.
func (o CrossEntropyOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "logits", "labels"); err != nil {
		return nil, err
	}
	logits, labels := in[0], in[1]
	if err := activation("logits", logits); err != nil {
		return nil, err
	}
	if labels.DType != dtype.Int32 || logits.Rank() < 1 || !slices.Equal(logits.Shape[:logits.Rank()-1], labels.Shape) {
		return nil, fmt.Errorf("labels must be int32 [...] for logits [...,V], got logits %s, labels %s", logits, labels)
	}
	if !(o.ZLoss >= 0) || !finite(o.ZLoss) {
		return nil, fmt.Errorf("z-loss weight must be 0 or more, got %g", o.ZLoss)
	}
	one := graph.T(logits.DType)
	return []graph.Type{one, one, graph.T(logits.DType, rows(logits))}, nil
}

func crossEntropy[T native.Float](c *graph.Call) error {
	o, logits := c.Op.(CrossEntropyOp), c.In[0]
	n, err := native.CrossEntropy(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[2]), graph.Data[T](logits),
		graph.Data[int32](c.In[1]), rows(logits.Type), last(logits.Type), o.Ignore, o.ZLoss)
	graph.Data[T](c.Out[1])[0] = T(n)
	return err
}

// crossEntropyGrad is the gradient of the logits.
type crossEntropyGrad struct{ CrossEntropyOp }

func (crossEntropyGrad) Name() string                                { return "cross_entropy_grad" }
func (crossEntropyGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[1:2], nil }

func crossEntropyGradBody[T native.Float](c *graph.Call) error {
	o, logits := c.Op.(crossEntropyGrad), c.In[1]
	return native.CrossEntropyGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](logits), graph.Data[T](c.In[3]),
		graph.Data[int32](c.In[2]), rows(logits.Type), last(logits.Type), o.Ignore, o.ZLoss)
}

// NLLOp is y[i] = log sum_v exp z[i,v] - z[i, ids[i]], in nats: what the token
// ids[i] costs. logits [...,V], ids int32 [...], y as ids; 0 where an id is
// below 0, and an id of V or above is an error of the run. It has no gradient:
// CrossEntropy has.
type NLLOp struct{}

// NLL adds an NLLOp.
func NLL(logits, ids *graph.Node) *graph.Node { return graph.Apply(NLLOp{}, logits, ids) }

// Name is "nll".
func (NLLOp) Name() string { return "nll" }

// Infer requires one id for each row of logits.
func (NLLOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "logits", "ids"); err != nil {
		return nil, err
	}
	logits, ids := in[0], in[1]
	if err := activation("logits", logits); err != nil {
		return nil, err
	}
	if ids.DType != dtype.Int32 || logits.Rank() < 1 || !slices.Equal(logits.Shape[:logits.Rank()-1], ids.Shape) {
		return nil, fmt.Errorf("ids must be int32 [...] for logits [...,V], got logits %s, ids %s", logits, ids)
	}
	return []graph.Type{graph.T(logits.DType, ids.Shape...)}, nil
}

func nll[T native.Float](c *graph.Call) error {
	return native.NLL(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[int32](c.In[1]), rows(c.In[0].Type), last(c.In[0].Type))
}
