// The graphs of a model, one a shape, and what is run on them.

package train

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// ignored is the label that does not count, ops.IgnoreIndex.
const ignored = -100

// graphKey is what the graphs of one model differ in.
type graphKey struct {
	rows      int
	train     bool
	sequences int // that a row may hold; 0: a row is one and no data are asked
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

	positions, seqlens []int32 // nil where a row is a sequence

	states []*graph.Param // that training moves on
	before [][]byte       // what was in them before the step
}

// graph returns the graph of a batch of rows, built the first time. All share
// the parameters, so an update shows in every one.
func (t *Trainer) graph(key graphKey) (*loss, error) {
	if g := t.graphs[key]; g != nil {
		return g, nil
	}
	g, err := newLoss(t.model, key, t.opts)
	if err != nil {
		return nil, err
	}
	t.graphs[key] = g
	return g, nil
}

func newLoss(m Model, key graphKey, o Options) (*loss, error) {
	b := graph.New(graph.Share(m.Params()))
	dropout := 0.0
	if key.train {
		dropout = o.Dropout
	}
	n, shape := key.rows*o.Context, graph.Dims([]int{key.rows, o.Context})
	mean, count := m.Loss(b, key.rows, o.Context, dropout, o.Seed)
	if err := b.Err(); err != nil {
		return nil, err
	}
	for i, n := range []*graph.Node{mean, count} {
		if n == nil || b.Node(n.Name()) != n || !n.Type().Equal(graph.T(dtype.Float32)) {
			return nil, fmt.Errorf("train: Loss of the model must give the loss and the number of labels that count, float32 scalars of its graph, got as number %d %s", i+1, n)
		}
	}
	l := &loss{
		tokens: make([]int32, n),
		labels: make([]int32, n),
		step:   make([]int64, 1),
	}
	outputs := []*graph.Node{mean, count}
	if key.sequences > 0 {
		var err error
		sequences := key.rows * key.sequences
		if outputs, err = models.Pack(sequences, outputs...); err != nil {
			return nil, err
		}
		b, mean = outputs[0].Builder(), outputs[0]
		l.positions, l.seqlens = make([]int32, n), make([]int32, sequences+1)
	}
	if o.Compute != F32 {
		cast := autocast.BF16
		if o.Compute == BF16x6 {
			cast = autocast.BF16x6
		}
		var err error
		if b, _, err = cast(b, autocast.Filter{}); err != nil {
			return nil, err
		}
		for i, n := range outputs {
			outputs[i] = b.Node(n.Name())
		}
		mean = outputs[0]
	}
	if key.train {
		params := b.Params()
		if len(params) == 0 {
			return nil, fmt.Errorf("train: the model has no weight to train, %d are frozen: models.Open freezes all unless models.Widen is among its options, Adapt and OpenAdapter all but the adapters of the model that they return", len(m.Params().All()))
		}
		grads, err := b.Grad(mean, params...)
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, grads...)
		for _, p := range params {
			l.params = append(l.params, p.Param())
		}
		if o.Recompute {
			if outputs, err = graph.Recompute(layerOf, outputs...); err != nil {
				return nil, err
			}
		}
		if outputs, err = ops.Share(outputs...); err != nil {
			return nil, err
		}
		b = outputs[0].Builder()
	}
	if err := graph.Verify(b); err != nil {
		return nil, err
	}
	plan, err := b.Plan(outputs...)
	if err != nil {
		return nil, err
	}
	plan.Spread()
	if l.exec, err = plan.Native(); err != nil {
		return nil, err
	}
	for _, n := range plan.Nodes() {
		if p := n.Param(); key.train && p != nil && p.State {
			l.states, l.before = append(l.states, p), append(l.before, make([]byte, p.Type.Bytes()))
		}
	}
	may := graph.Feeds{"tokens": l.tokens, "labels": l.labels, "step": l.step}
	if key.sequences > 0 {
		may[models.PackedPositions], may[models.PackedSeqlens] = l.positions, l.seqlens
	}
	l.feeds = graph.Feeds{}
	for _, in := range plan.Inputs() {
		if _, err := in.Fed(may); err != nil {
			return nil, fmt.Errorf("train: Loss of the model may read %s (int32%s, step int64[1]), not the input %s", strings.Join(slices.Sorted(maps.Keys(may)), ", "), shape, in)
		}
		l.feeds[in.Name()] = may[in.Name()]
	}
	for _, name := range []string{"tokens", "labels"} {
		if l.feeds[name] == nil {
			return nil, fmt.Errorf("train: Loss of the model must read the input %s int32%s, it has none of that name", name, shape)
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

// layerOf is the layer that a scope such as model.layers.3.mlp lies in.
func layerOf(scope string) string { return layerScope.FindString(scope) }

var layerScope = regexp.MustCompile(`^(.*\.)?layers\.\d+`)

// cut fills seqlens from positions: a sequence begins with every row of so many
// tokens, and wherever the position is 0. What is left over are empty ones.
func (l *loss) cut(context int) error {
	n := 0
	for i, p := range l.positions {
		if p != 0 && i%context != 0 {
			continue
		}
		if n == len(l.seqlens)-1 {
			return fmt.Errorf("train: the batch has more than the %d sequences that the data announced", n)
		}
		l.seqlens[n] = int32(i)
		n++
	}
	for ; n < len(l.seqlens); n++ {
		l.seqlens[n] = int32(len(l.positions))
	}
	return nil
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

// keep notes what is in the states, and takeBack undoes what was done to them
// since.
func (l *loss) keep() {
	for i, p := range l.states {
		copy(l.before[i], p.Tensor().Bytes())
	}
}

func (l *loss) takeBack() {
	for i, p := range l.states {
		copy(p.Tensor().Bytes(), l.before[i])
		p.Touch()
	}
}

// Loss is the mean loss of any number of rows, tokens and labels being [rows,
// context], and the number of labels that count. There is no dropout and no
// gradient, and a row is one sequence, packed data or not. Every number of
// rows gets a graph of its own, once; the weights are shared.
func (t *Trainer) Loss(ctx context.Context, tokens, labels []int32) (mean float64, count int64, err error) {
	if err := t.usable(); err != nil {
		return 0, 0, err
	}
	rows := len(tokens) / t.opts.Context
	if rows < 1 || len(tokens) != rows*t.opts.Context || len(labels) != len(tokens) {
		return 0, 0, fmt.Errorf("train: Loss: tokens and labels must be [rows,%d], got %d tokens and %d labels", t.opts.Context, len(tokens), len(labels))
	}
	g, err := t.graph(graphKey{rows: rows})
	if err != nil {
		return 0, 0, err
	}
	copy(g.tokens, tokens)
	copy(g.labels, labels)
	m, n, err := g.run(ctx, 0)
	return m, int64(n), err
}

// draw puts micro-batch i into the graph of training.
func (t *Trainer) draw(i int64) error {
	l := t.train
	if err := t.data.Batch(i, t.opts.Batch, l.tokens, l.labels); err != nil || t.packed == nil {
		return err
	}
	if err := t.packed.Positions(i, t.opts.Batch, l.positions); err != nil {
		return err
	}
	return l.cut(t.opts.Context)
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
	if err := t.usable(); err != nil {
		return 0, err
	}
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
				if t.packed != nil {
					for i := range c {
						t.eval.positions[r*c+i] = int32(i)
					}
				}
				continue
			}
			err := t.data.HeldRow(at+r, tok, lab)
			if err == nil && t.packed != nil {
				err = t.packed.HeldPositions(at+r, t.eval.positions[r*c:(r+1)*c])
			}
			if err != nil {
				return 0, fmt.Errorf("train: evaluation: %w", err)
			}
		}
		if err := t.eval.cut(c); err != nil {
			return 0, err
		}
		m, n, err := t.eval.run(ctx, 0)
		if err != nil && ctx != nil && ctx.Err() == nil {
			err = fmt.Errorf("train: evaluation after step %d: %w", t.state.Step, err)
		}
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
