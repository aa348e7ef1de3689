package autocast

import "github.com/seafan/seafan/graph"

// Trainable is a model that a trainer trains, as train.Model has it.
type Trainable interface {
	Params() *graph.Params
	Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node)
	WriteFiles(dir string) error
}

// Model is a model whose loss goes through FP8: every graph that a trainer asks
// for, for training and for evaluation, comes with FP8 linears. The states of
// the recipe are among Params, beside the weights.
type Model struct {
	Trainable
	options Options
	report  *Report
}

// Train wraps a model.
func Train(m Trainable, o Options) *Model { return &Model{Trainable: m, options: o} }

// Loss builds the loss of the model beside b and rebuilds it in b, which must be
// empty, with FP8 linears.
func (m *Model) Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node) {
	src := b.Sibling()
	loss, tokens = m.Trainable.Loss(src, batch, context, dropout, seed)
	_, report, err := fp8(src, m.options, b)
	if err != nil {
		return b.Fail(err), b.Fail(err)
	}
	m.report = report
	return b.Node(loss.Name()), b.Node(tokens.Name())
}

// Report is that of the last graph; nil before the first.
func (m *Model) Report() *Report { return m.report }
