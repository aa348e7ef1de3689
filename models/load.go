// Loading weights: every tensor is accounted for.

package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
)

// LoadReport says what loading did beyond copying tensors of the same name.
type LoadReport struct {
	Tied    string   // the tensor that serves as table and head, when they are tied
	Ignored []string // tensors that hold nothing of the model's own
}

// Load opens a Hugging Face folder. Weights are widened to float32. A tensor
// that is missing, has another shape than the config says, or belongs to
// nothing is an error that lists it.
func Load(dir string) (*Transformer, LoadReport, error) {
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, LoadReport{}, err
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return nil, LoadReport{}, fmt.Errorf("models: %w", err)
	}
	defer ck.Close() // everything is copied
	m, report, err := load(c, &source{ck: ck})
	if err != nil {
		return nil, report, fmt.Errorf("models: %s: %w", dir, err)
	}
	return m, report, nil
}

const (
	tableName = "model.embed_tokens.weight"
	headName  = "lm_head.weight"
)

// source gives the tensors of a checkpoint by their Hugging Face names.
type source struct {
	ck   *checkpoint.Checkpoint
	gguf *ggufForm // nil: the names are those of the file
}

func (s *source) lookup(name string) (*checkpoint.Tensor, bool) {
	if s.gguf != nil {
		name = s.gguf.tensor(name)
	}
	return s.ck.Lookup(name)
}

func load(c Config, s *source) (*Transformer, LoadReport, error) {
	// A layer has nine tensors at least: the size of the file bounds the work
	// that a config can ask for.
	if n := len(s.ck.Tensors()); c.Layers > n {
		return nil, LoadReport{}, fmt.Errorf("num_hidden_layers is %d, the checkpoint has %d tensors in all", c.Layers, n)
	}
	m, err := New(c)
	if err != nil {
		return nil, LoadReport{}, err
	}
	if err := m.Declare(); err != nil {
		return nil, LoadReport{}, err
	}
	report, err := m.assign(s)
	return m, report, err
}

// assign copies the tensors of a checkpoint to the parameters.
func (m *Transformer) assign(s *source) (LoadReport, error) {
	var report LoadReport
	params := m.params.All()
	from := map[string]*checkpoint.Tensor{}
	var missing, shapes, unexpected []string
	used := map[string]bool{}
	for _, p := range params {
		t, ok := s.lookup(p.Name)
		if m.Config.Tied && p.Name == tableName {
			if !ok {
				t, ok = s.lookup(headName)
			}
			if ok {
				report.Tied = t.Name()
			}
		}
		if !ok {
			missing = append(missing, p.Name)
			continue
		}
		from[p.Name] = t
		used[t.Name()] = true
		switch {
		case !slices.Equal(t.Shape(), p.Type.Shape):
			shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", t.Name(), graph.Dims(t.Shape()), p.Type.Dims()))
		case t.Coding() == checkpoint.Plain && (!t.DType().IsFloat() || t.DType().IsFloat8()):
			shapes = append(shapes, fmt.Sprintf("%s is stored as %s, must be a float of 16 bits or more", t.Name(), t.DType()))
		}
	}
	head, hasHead := s.lookup(headName)
	for _, t := range s.ck.Tensors() {
		switch {
		case used[t.Name()]:
		case strings.HasSuffix(t.Name(), ".rotary_emb.inv_freq"), s.gguf != nil && t.Name() == ropeFactors,
			m.Config.Tied && hasHead && t == head:
			report.Ignored = append(report.Ignored, t.Name())
		default:
			unexpected = append(unexpected, t.Name())
		}
	}
	for _, x := range []struct {
		what string
		list []string
	}{{"missing tensors", missing}, {"tensors that do not fit", shapes}, {"unexpected tensors", unexpected}} {
		if x.list != nil {
			return report, fmt.Errorf("%s: %s", x.what, strings.Join(x.list, ", "))
		}
	}
	for _, p := range params {
		if err := m.read(p, from[p.Name], s); err != nil {
			return report, err
		}
		p.Touch()
	}
	return report, nil
}

// read gives a parameter its value, in the order and scale of Hugging Face.
func (m *Transformer) read(p *graph.Param, t *checkpoint.Tensor, s *source) error {
	w := graph.Data[float32](p.Tensor())
	if s.gguf == nil {
		return t.Float32(w)
	}
	if heads := m.turnedHeads(p.Name); s.gguf.turned && heads > 0 {
		turned := make([]float32, len(w))
		if err := t.Float32(turned); err != nil {
			return err
		}
		return checkpoint.UndoLlamaPermutation(w, turned, heads, m.Config.HeadDim, t.RowLen())
	}
	if err := t.Float32(w); err != nil {
		return err
	}
	if architectures[m.Config.Type].unitNorm && strings.HasSuffix(p.Name, "norm.weight") {
		for i := range w {
			w[i]-- // the file has the 1 added
		}
	}
	return nil
}

// turnedHeads is the number of heads of a projection to queries or keys, and 0
// for other tensors.
func (m *Transformer) turnedHeads(name string) int {
	switch {
	case strings.Contains(name, ".q_proj."):
		return m.Config.Heads
	case strings.Contains(name, ".k_proj."):
		return m.Config.KVHeads
	}
	return 0
}
