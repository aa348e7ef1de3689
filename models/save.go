// Writing a model as a Hugging Face folder.

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
)

// SaveOption changes how Save writes the weights.
type SaveOption func(*saving)

type saving struct {
	shard int64
	as    dtype.DType
}

// Shards cuts the weights into files of at most that many bytes of tensors, or of
// one tensor that has more, with an index; 0: one file.
func Shards(bytes int64) SaveOption { return func(s *saving) { s.shard = bytes } }

// As stores the weights as that float type of 16 bits or more, rounded to nearest,
// and not as they are in memory.
func As(dt dtype.DType) SaveOption { return func(s *saving) { s.as = dt } }

// Save writes the model as a Hugging Face folder: config.json and
// model.safetensors, or its shards with their index. The folder is replaced as a
// whole; on an error the old one is as it was. Adapters on the model are not in
// it: Adapted.Save writes those, Adapted.Merge adds them to the weights.
func (m *Transformer) Save(dir string, opts ...SaveOption) error {
	var s saving
	for i, o := range opts {
		if o == nil {
			return fmt.Errorf("models: Save: option %d is missing (nil)", i)
		}
		o(&s)
	}
	if s.shard < 0 {
		return fmt.Errorf("models: Save: Shards takes 0 (one file) or a number of bytes, not %d", s.shard)
	}
	switch s.as {
	case dtype.Invalid, dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16:
	default: // 8-bit floats have no steps here, and no other type holds a weight
		return fmt.Errorf("models: Save: weights are stored as float32, float64, bfloat16 or float16, not %s", s.as)
	}
	return checkpoint.WriteDir(dir, func(tmp string) error { return m.writeFiles(tmp, s) })
}

// WriteFiles writes config.json and the weights into a folder that is there,
// for callers that put more files beside them.
func (m *Transformer) WriteFiles(dir string) error { return m.writeFiles(dir, saving{}) }

func (m *Transformer) writeFiles(dir string, s saving) error {
	if err := m.hold(); err != nil {
		return err
	}
	defer m.params.Release()
	stored := dtype.Float32
	if table := m.params.Get(tableName); table != nil && table.Type.DType != dtype.UInt8 {
		stored = table.Type.DType
	}
	c := m.Config
	if s.as != dtype.Invalid {
		stored, c.Quantization = s.as, nil
	}
	var config bytes.Buffer
	if err := c.write(&config, stored.String()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config.Bytes(), 0o666); err != nil {
		return err
	}
	return checkpoint.Save(dir, m.tensors(s.as), checkpoint.SaveOptions{MaxShardBytes: s.shard})
}

// aside are the fields of a Config that decide no loss.
var aside = []string{"Context", "Skipped", "Quantization", "BOS", "EOS", "Pad"}

// CheckFiles fails where the config.json in dir, if there is one, is of a model that
// computes something else with the same weights. A trainer that resumes calls it.
func (m *Transformer) CheckFiles(dir string) error {
	if err := m.usable(); err != nil {
		return err
	}
	was, err := ReadConfig(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return m.computes(was)
}

// computes fails where the model's Config is of another computation.
func (m *Transformer) computes(was Config) error {
	var text bytes.Buffer
	if err := m.Config.Write(&text); err != nil {
		return err
	}
	is, err := ParseConfig(&text)
	if err != nil {
		return err
	}
	a, b := reflect.ValueOf(was), reflect.ValueOf(is)
	for _, f := range reflect.VisibleFields(a.Type()) {
		then, now := a.FieldByIndex(f.Index).Interface(), b.FieldByIndex(f.Index).Interface()
		if !slices.Contains(aside, f.Name) && !reflect.DeepEqual(then, now) {
			then, _ := json.Marshal(then) // numbers and names, for people
			now, _ := json.Marshal(now)
			return fmt.Errorf("models: Config.%s must be %s as in the checkpoint, got %s", f.Name, then, now)
		}
	}
	return nil
}

// tensors lists those of the model's files: stacks of experts one by one.
func (m *Transformer) tensors(as dtype.DType) iter.Seq[checkpoint.Entry] {
	return func(yield func(checkpoint.Entry) bool) {
		for _, p := range m.params.All() {
			if p.State || ofAdapter(p.Name) || as != dtype.Invalid && m.isSteps(p) {
				continue
			}
			stored := as
			if as == dtype.Invalid {
				stored = p.Type.DType
			}
			if stored == dtype.UInt8 {
				stored = dtype.Float32 // blocks have no form in safetensors
			}
			if s, ok := m.Config.ossStack(p.Name); ok {
				if s.half == 0 && !yield(m.ossEntry(s, p, stored)) {
					return
				}
				continue
			}
			names := m.Config.onDisk(p.Name)
			if len(names) == 1 && stored == p.Type.DType {
				if !yield(entry(names[0], p.Tensor())) {
					return
				}
				continue
			}
			if stored == p.Type.DType && stored == dtype.Float8E4M3 { // a stack as codes, its steps beside it
				codes, shape := graph.Data[dtype.E4M3](p.Tensor()), p.Type.Shape[1:]
				n := len(codes) / len(names)
				for i, name := range names {
					if !yield(checkpoint.Values(name, codes[i*n:(i+1)*n], shape...)) {
						return
					}
				}
				continue
			}
			w, shape := m.wide(p), shapeOf(p)
			if len(names) > 1 {
				shape = shape[1:]
			}
			n := len(w) / len(names)
			for i, name := range names {
				if !yield(checkpoint.Rounded(name, stored, w[i*n:(i+1)*n], shape...)) {
					return
				}
			}
		}
	}
}

// entry is a tensor to be saved as it is stored.
func entry(name string, t graph.Tensor) checkpoint.Entry {
	switch t.DType {
	case dtype.BFloat16:
		return checkpoint.Values(name, graph.Data[dtype.BF16](t), t.Shape...)
	case dtype.Float16:
		return checkpoint.Values(name, graph.Data[dtype.F16](t), t.Shape...)
	case dtype.Float8E4M3:
		return checkpoint.Values(name, graph.Data[dtype.E4M3](t), t.Shape...)
	case dtype.Float8E5M2:
		return checkpoint.Values(name, graph.Data[dtype.E5M2](t), t.Shape...)
	}
	return checkpoint.Values(name, graph.Data[float32](t), t.Shape...)
}
