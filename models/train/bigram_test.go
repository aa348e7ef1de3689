package train

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
)

// bigram is the model of these tests: the logits of a token are a row of a
// table plus a bias. It is one op with its gradient, small enough to be
// followed by hand.
type bigram struct {
	vocab  int
	params *graph.Params
	fail   func() error // of WriteFiles
}

func newBigram(t testing.TB, vocab int) *bigram {
	m := &bigram{vocab: vocab, params: graph.NewParams()}
	for name, shape := range map[string][]int{"table": {vocab, vocab}, "bias": {vocab}} {
		p, err := m.params.Add(name, graph.T(dtype.Float32, shape...), false)
		require.NoError(t, err)
		for i, w := 0, graph.Data[float32](p.Tensor()); i < len(w); i++ {
			w[i] = float32(math.Sin(float64(7*i + len(name))))
		}
		p.Touch()
	}
	return m
}

func (m *bigram) Params() *graph.Params { return m.params }

func (m *bigram) Loss(b *graph.Builder, batch, context int, _ float64, _ uint64) (loss, tokens *graph.Node) {
	r := graph.ApplyAll("bigram", bigramOp{}, b.Param("table", m.vocab, m.vocab), b.Param("bias", m.vocab),
		b.Input("tokens", dtype.Int32, batch, context), b.Input("labels", dtype.Int32, batch, context))
	return r[0], r[1]
}

func (m *bigram) WriteFiles(dir string) error {
	if m.fail != nil {
		if err := m.fail(); err != nil {
			return err
		}
	}
	entries := func(yield func(checkpoint.Entry) bool) {
		for _, p := range m.params.All() {
			if !yield(checkpoint.Values(p.Name, graph.Data[float32](p.Tensor()), p.Type.Shape...)) {
				return
			}
		}
	}
	return checkpoint.Save(filepath.Join(dir, "model.safetensors"), entries, checkpoint.SaveOptions{})
}

// weights are the bits of all parameters.
func (m *bigram) weights() map[string][]float32 {
	w := map[string][]float32{}
	for _, p := range m.params.All() {
		w[p.Name] = append([]float32(nil), graph.Data[float32](p.Tensor())...)
	}
	return w
}

type bigramOp struct{}

func (bigramOp) Name() string { return "test_bigram" }
func (bigramOp) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(dtype.Float32), graph.T(dtype.Float32)}, nil
}

type bigramGrad struct{}

func (bigramGrad) Name() string                                { return "test_bigram_grad" }
func (bigramGrad) Infer(in []graph.Type) ([]graph.Type, error) { return in[:2], nil }

// bigramTerms calls f with the probability of every next token for each label
// that counts, and returns the mean loss and how many do.
func bigramTerms(in []graph.Tensor, f func(token, label int, p []float64)) (mean, n float64) {
	w, b := graph.Data[float32](in[0]), graph.Data[float32](in[1])
	tokens, labels := graph.Data[int32](in[2]), graph.Data[int32](in[3])
	v := len(b)
	p := make([]float64, v)
	for i, t := range tokens {
		if labels[i] == ignored {
			continue
		}
		var sum float64
		for j := range p {
			p[j] = math.Exp(float64(w[int(t)*v+j]) + float64(b[j]))
			sum += p[j]
		}
		for j := range p {
			p[j] /= sum
		}
		n++
		mean -= math.Log(p[labels[i]])
		if f != nil {
			f(int(t), int(labels[i]), p)
		}
	}
	if n > 0 {
		mean /= n
	}
	return mean, n
}

func init() {
	graph.Register(graph.Def{Name: "test_bigram",
		Native: func(c *graph.Call) error {
			mean, n := bigramTerms(c.In, nil)
			graph.Data[float32](c.Out[0])[0], graph.Data[float32](c.Out[1])[0] = float32(mean), float32(n)
			return nil
		},
		Grad: func(g *graph.GradCall) []*graph.Node {
			d := graph.ApplyAll("bigram_grad", bigramGrad{}, g.In...)
			return []*graph.Node{d[0], d[1], nil, nil}
		}})
	graph.Register(graph.Def{Name: "test_bigram_grad",
		Native: func(c *graph.Call) error {
			dw, db := graph.Data[float32](c.Out[0]), graph.Data[float32](c.Out[1])
			clear(dw)
			clear(db)
			_, n := bigramTerms(c.In, nil)
			v := len(db)
			bigramTerms(c.In, func(token, label int, p []float64) {
				for j, q := range p {
					if j == label {
						q--
					}
					dw[token*v+j] += float32(q / n)
					db[j] += float32(q / n)
				}
			})
			return nil
		}})
}

// rows is Data that stands in memory: each row has its labels, and micro-batch
// i takes the rows from i*B on, around and around.
type rows struct {
	context        int
	tokens, labels [][]int32
	held           int // the last rows
	digest         string
	batches        int
}

func (d *rows) Batch(i int64, n int, tokens, labels []int32) error {
	d.batches++
	for r := range n {
		k := (int(i)*n + r) % (len(d.tokens) - d.held)
		copy(tokens[r*d.context:(r+1)*d.context], d.tokens[k])
		copy(labels[r*d.context:(r+1)*d.context], d.labels[k])
	}
	return nil
}

func (d *rows) Held() int { return d.held }

func (d *rows) HeldRow(i int, tokens, labels []int32) error {
	k := len(d.tokens) - d.held + i
	copy(tokens, d.tokens[k])
	copy(labels, d.labels[k])
	return nil
}

func (d *rows) Digest() string { return d.digest }
