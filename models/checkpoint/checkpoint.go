// Package checkpoint reads and writes the weight files of language models:
// safetensors (one file, or an index with shards) and GGUF (reading).
//
// Opening a checkpoint reads and checks headers only; files are mapped where
// the system can map them, and the bytes of a tensor are touched when it is
// read. Every header is treated as hostile: whatever it says is checked
// against the size of the file before anything is allocated for it.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Checkpoint is an open set of named tensors. Its methods, and those of its
// tensors, may be called from several goroutines.
type Checkpoint struct {
	path     string
	format   string
	metadata Metadata
	tensors  []*Tensor
	byName   map[string]*Tensor
	sources  []*source
}

// FormatError says what is wrong with the contents of a checkpoint file.
type FormatError struct {
	Path    string // the file, empty when it was opened from an io.ReaderAt
	Format  string // "safetensors", "safetensors index", "gguf"
	Tensor  string // the tensor it concerns, empty for the file as a whole
	Problem string
}

func (e *FormatError) Error() string {
	s := e.Format + ": "
	if e.Path != "" {
		s = e.Path + ": " + s
	}
	if e.Tensor != "" {
		s += fmt.Sprintf("tensor %q: ", e.Tensor)
	}
	return s + e.Problem
}

// Open opens a .safetensors or .gguf file, an index (.json), or a folder that
// holds model.safetensors, or else model.safetensors.index.json with its
// shards, or else one .gguf file. Files of the folder that the index does not
// name are ignored. Whether a file is GGUF is told by its first bytes.
func Open(path string) (*Checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	switch {
	case info.IsDir():
		return openFolder(path)
	case filepath.Ext(path) == ".json":
		return openIndex(path)
	}
	s, err := openSource(path)
	if err != nil {
		return nil, err
	}
	c, err := openOne(s)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return c, nil
}

// OpenReaderAt opens a safetensors or GGUF file of size bytes behind r, which
// must allow calls from several goroutines and outlive the checkpoint.
func OpenReaderAt(r io.ReaderAt, size int64) (*Checkpoint, error) {
	if r == nil {
		return nil, errors.New("checkpoint: the reader is missing (nil)")
	}
	return openOne(&source{r: r, size: size})
}

func openOne(s *source) (*Checkpoint, error) {
	c := &Checkpoint{path: s.path, byName: map[string]*Tensor{}, sources: []*source{s}}
	if err := c.parse(s); err != nil {
		return nil, err
	}
	return c, nil
}

// parse adds the tensors of one file.
func (c *Checkpoint) parse(s *source) error {
	gguf, err := isGGUF(s)
	if err != nil {
		return err
	}
	if gguf {
		c.format = "gguf"
		return c.parseGGUF(s)
	}
	c.format = "safetensors"
	return c.parseSafetensors(s)
}

// add enters a tensor that passed the checks of its format.
func (c *Checkpoint) add(t *Tensor) bool {
	if _, ok := c.byName[t.name]; ok {
		return false
	}
	c.byName[t.name] = t
	c.tensors = append(c.tensors, t)
	return true
}

// Path is the file or folder that was opened, empty for an io.ReaderAt.
func (c *Checkpoint) Path() string { return c.path }

// Format is "safetensors" or "gguf".
func (c *Checkpoint) Format() string { return c.format }

// Metadata is the free part of the header: the __metadata__ strings of a
// safetensors file (of the first shard), the keys and values of a GGUF file.
// It must not be changed.
func (c *Checkpoint) Metadata() Metadata { return c.metadata }

// TakeMetadata is Metadata for a caller who will change it: the checkpoint keeps
// none, so that what the caller drops leaves memory.
func (c *Checkpoint) TakeMetadata() Metadata {
	m := c.metadata
	c.metadata = nil
	return m
}

// Tensors lists all tensors in the order of their bytes, file by file. The
// slice must not be changed.
func (c *Checkpoint) Tensors() []*Tensor { return c.tensors }

// Lookup finds a tensor by name.
func (c *Checkpoint) Lookup(name string) (*Tensor, bool) {
	t, ok := c.byName[name]
	return t, ok
}

var errNoCheckpoint = errors.New("checkpoint: the checkpoint is missing (nil): Open gives one")

// Close unmaps and closes the files. Reads that follow fail; slices from View
// must not be used any more.
func (c *Checkpoint) Close() error {
	if c == nil {
		return errNoCheckpoint
	}
	var errs []error
	for _, s := range c.sources {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
