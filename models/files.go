package models

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/tokenizer"
)

// Save writes the model as a Hugging Face folder: config.json and
// model.safetensors. The folder is replaced as a whole; on an error the old one
// is as it was.
func (m *Transformer) Save(dir string) error {
	return checkpoint.WriteDir(dir, m.WriteFiles)
}

// WriteFiles writes config.json and model.safetensors into a folder that is
// there, for callers that put more files beside them.
func (m *Transformer) WriteFiles(dir string) error {
	var config bytes.Buffer
	if err := m.Config.Write(&config); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config.Bytes(), 0o666); err != nil {
		return err
	}
	return checkpoint.Save(filepath.Join(dir, "model.safetensors"), Entries(m.params.All()), checkpoint.SaveOptions{})
}

// Entries are the weights among params, to be saved as they are stored.
func Entries(params []*graph.Param) iter.Seq[checkpoint.Entry] {
	return func(yield func(checkpoint.Entry) bool) {
		for _, p := range params {
			if p.State {
				continue
			}
			if !yield(checkpoint.Values(p.Name, graph.Data[float32](p.Tensor()), p.Type.Shape...)) {
				return
			}
		}
	}
}

// LoadReport says what Load did beyond copying tensors of the same name.
type LoadReport struct {
	Tied    string   // the tensor that serves as table and head, when they are tied
	Ignored []string // tensors that hold nothing of the model's own
}

// Load opens a Hugging Face folder. Weights are widened to float32. A tensor
// that is missing, has another shape than the config says, or belongs to
// nothing is an error that lists it.
func Load(dir string) (*Transformer, LoadReport, error) {
	var report LoadReport
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, report, err
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return nil, report, fmt.Errorf("models: %w", err)
	}
	defer ck.Close() // everything is copied
	m, err := New(c)
	if err != nil {
		return nil, report, err
	}
	if err := m.Declare(); err != nil {
		return nil, report, err
	}
	if report, err = m.assign(ck); err != nil {
		return nil, report, fmt.Errorf("models: %s: %w", dir, err)
	}
	return m, report, nil
}

const (
	tableName = "model.embed_tokens.weight"
	headName  = "lm_head.weight"
)

// assign copies the tensors of a checkpoint to the parameters.
func (m *Transformer) assign(ck *checkpoint.Checkpoint) (LoadReport, error) {
	var report LoadReport
	params := m.params.All()
	from := map[string]*checkpoint.Tensor{}
	var missing, shapes []string
	used := map[string]bool{}
	for _, p := range params {
		name := p.Name
		t, ok := ck.Lookup(name)
		if m.Config.Tied && name == tableName {
			if !ok {
				name = headName
				t, ok = ck.Lookup(name)
			}
			report.Tied = name
		}
		switch {
		case !ok:
			missing = append(missing, p.Name)
		case !slices.Equal(t.Shape(), p.Type.Shape):
			shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", name, graph.Dims(t.Shape()), p.Type.Dims()))
		case !t.DType().IsFloat() || t.DType().IsFloat8():
			shapes = append(shapes, fmt.Sprintf("%s is stored as %s, must be a float of 16 bits or more", name, t.DType()))
		}
		from[p.Name] = t
		used[name] = true
	}
	var unexpected []string
	for _, t := range ck.Tensors() {
		switch {
		case used[t.Name()]:
		case strings.HasSuffix(t.Name(), ".rotary_emb.inv_freq"), m.Config.Tied && t.Name() == headName:
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
		if err := from[p.Name].Float32(graph.Data[float32](p.Tensor())); err != nil {
			return report, err
		}
		p.Touch()
	}
	return report, nil
}

// Float64 returns the model with its weights widened to float64: its graphs,
// built with graph.Float(dtype.Float64), are the same computation in float64.
func (m *Transformer) Float64() (*Transformer, error) {
	w, err := New(m.Config)
	if err != nil {
		return nil, err
	}
	for _, p := range m.params.All() {
		q, err := w.params.Add(p.Name, graph.T(dtype.Float64, p.Type.Shape...), p.State)
		if err != nil {
			return nil, err
		}
		dst := graph.Data[float64](q.Tensor())
		for i, v := range graph.Data[float32](p.Tensor()) {
			dst[i] = float64(v)
		}
		q.Touch()
	}
	return w, nil
}

// Tokenizer opens the tokenizer of a model folder. A folder without one belongs
// to a model of bytes, if its vocabulary has 256 tokens.
func Tokenizer(dir string, c Config) (*tokenizer.Tokenizer, error) {
	for _, name := range []string{"tokenizer.json", "tokenizer.model"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return tokenizer.Open(dir)
		}
	}
	if c.Vocab != 256 {
		return nil, fmt.Errorf("models: %s has neither tokenizer.json nor tokenizer.model, and a vocabulary of %d is not one of bytes", dir, c.Vocab)
	}
	return tokenizer.Byte(), nil
}
