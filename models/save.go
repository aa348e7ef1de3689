// Writing a model as a Hugging Face folder.

package models

import (
	"bytes"
	"iter"
	"os"
	"path/filepath"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
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
