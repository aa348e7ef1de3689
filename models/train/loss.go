// The graphs of a model, one a shape, and what is run on them.

package train

import (
	"context"
	"fmt"

	"github.com/seafan/seafan/graph"
)

// ignored is the label that does not count, ops.IgnoreIndex.
const ignored = -100

// graphKey is what the graphs of one model differ in.
type graphKey struct {
	rows  int
	train bool
}

// loss is a graph of the model with its memory: the loss of a batch of one
// shape and, for training, its gradient.
type loss struct {
	exec   *graph.Native
	params []*graph.Param
	grads  [][]float32 // of params; the next run writes to them
	loss   []float32
	count  []float32
	tokens []int32
	labels []int32
	step   []int64
	feeds  graph.Feeds
}

// graph returns the graph of a batch of rows, built the first time. All share
// the parameters, so an update shows in every one.
func (t *Trainer) graph(rows int, training bool) (*loss, error) {
	key := graphKey{rows, training}
	if g := t.graphs[key]; g != nil {
		return g, nil
	}
	g, err := newLoss(t.model, rows, t.opts, training)
	if err != nil {
		return nil, err
	}
	t.graphs[key] = g
	return g, nil
}

func newLoss(m Model, rows int, o Options, training bool) (*loss, error) {
	b := graph.New(graph.Share(m.Params()))
	dropout := 0.0
	if training {
		dropout = o.Dropout
	}
	mean, count := m.Loss(b, rows, o.Context, dropout, o.Seed)
	if err := b.Err(); err != nil {
		return nil, err
	}
	l := &loss{
		tokens: make([]int32, rows*o.Context),
		labels: make([]int32, rows*o.Context),
		step:   make([]int64, 1),
	}
	outputs := []*graph.Node{mean, count}
	if training {
		params := b.Params()
		grads, err := b.Grad(mean, params...)
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, grads...)
		for _, p := range params {
			l.params = append(l.params, p.Param())
		}
	}
	if err := graph.Verify(b); err != nil {
		return nil, err
	}
	plan, err := b.Plan(outputs...)
	if err != nil {
		return nil, err
	}
	if l.exec, err = plan.Native(); err != nil {
		return nil, err
	}
	l.feeds = graph.Feeds{"tokens": l.tokens, "labels": l.labels}
	for _, in := range plan.Inputs() {
		if in.Name() == "step" {
			l.feeds["step"] = l.step
		}
	}
	values := make([][]float32, len(outputs))
	for i, n := range outputs {
		v, err := l.exec.Value(n)
		if err != nil {
			return nil, err
		}
		values[i] = graph.Data[float32](v)
	}
	l.loss, l.count, l.grads = values[0], values[1], values[2:]
	return l, nil
}

// run computes the mean loss of what stands in tokens and labels, the number
// of counted labels, and the gradient. step is the counter of dropout.
func (l *loss) run(ctx context.Context, step int64) (mean, count float64, err error) {
	l.step[0] = step
	if err := l.exec.Do(ctx, l.feeds); err != nil {
		return 0, 0, err
	}
	return float64(l.loss[0]), float64(l.count[0]), nil
}

// Loss is the mean loss of any number of rows, tokens and labels being [rows,
// context], and the number of labels that count. There is no dropout and no
// gradient. Every number of rows gets a graph of its own, once; the weights
// are shared.
func (t *Trainer) Loss(ctx context.Context, tokens, labels []int32) (mean float64, count int64, err error) {
	rows := len(tokens) / t.opts.Context
	if rows < 1 || len(tokens) != rows*t.opts.Context || len(labels) != len(tokens) {
		return 0, 0, fmt.Errorf("train: Loss: tokens and labels must be [rows,%d], got %d tokens and %d labels", t.opts.Context, len(tokens), len(labels))
	}
	g, err := t.graph(rows, false)
	if err != nil {
		return 0, 0, err
	}
	copy(g.tokens, tokens)
	copy(g.labels, labels)
	m, n, err := g.run(ctx, 0)
	return m, int64(n), err
}

func (t *Trainer) heldRows() int {
	n := t.data.Held()
	if t.opts.EvalRows > 0 {
		n = min(n, t.opts.EvalRows)
	}
	return n
}

// Evaluate is the mean loss over the counted labels of the held-out rows, in
// nats. The last batch is filled up with rows that do not count.
func (t *Trainer) Evaluate(ctx context.Context) (float64, error) {
	rows, c := t.heldRows(), t.opts.Context
	if rows == 0 {
		return 0, fmt.Errorf("train: Evaluate: the data holds nothing out")
	}
	var tokens, total float64
	for at := 0; at < rows; at += t.opts.Batch {
		for r := range t.opts.Batch {
			tok, lab := t.eval.tokens[r*c:(r+1)*c], t.eval.labels[r*c:(r+1)*c]
			if at+r >= rows {
				for i := range lab {
					tok[i], lab[i] = 0, ignored
				}
				continue
			}
			if err := t.data.HeldRow(at+r, tok, lab); err != nil {
				return 0, fmt.Errorf("train: evaluation: %w", err)
			}
		}
		m, n, err := t.eval.run(ctx, 0)
		if err != nil {
			return 0, err
		}
		if n > 0 {
			tokens += n
			total += n * m
		}
	}
	if tokens == 0 {
		return 0, fmt.Errorf("train: evaluation: no label of the %d held-out rows counts", rows)
	}
	return total / tokens, nil
}
