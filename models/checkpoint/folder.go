// Folders: one file, or an index and its shards.

package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
)

func openFolder(dir string) (*Checkpoint, error) {
	for _, name := range []string{singleName, indexName} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return Open(path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var gguf []string
	for _, f := range list {
		if filepath.Ext(f.Name()) == ".gguf" {
			gguf = append(gguf, f.Name())
		}
	}
	switch len(gguf) {
	case 0:
		return nil, fmt.Errorf("checkpoint: %s: a folder holds %s, %s or one .gguf file, this one none: %w", dir, singleName, indexName, os.ErrNotExist)
	case 1:
		return Open(filepath.Join(dir, gguf[0]))
	}
	return nil, fmt.Errorf("checkpoint: %s: a folder with one .gguf file is opened, this one has %s: name the file", dir, strings.Join(gguf, ", "))
}

// index is the content of model.safetensors.index.json.
type index struct {
	shardOf map[string]string // tensor to file name
	shards  []string          // sorted
}

// openIndex opens all shards of an index. What the index says and what the
// shards hold must agree both ways.
func openIndex(path string) (*Checkpoint, error) {
	idx, err := readIndex(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	var absent []string
	for _, shard := range idx.shards {
		if info, err := os.Stat(filepath.Join(dir, shard)); err != nil || !info.Mode().IsRegular() {
			absent = append(absent, shard)
		}
	}
	if len(absent) > 0 {
		return nil, &FormatError{path, "safetensors index", "", fmt.Sprintf("it names %d shards, missing: %s", len(idx.shards), strings.Join(absent, ", "))}
	}
	c := &Checkpoint{path: dir, format: "safetensors", byName: make(map[string]*Tensor, len(idx.shardOf))}
	for _, shard := range idx.shards {
		s, err := openSource(filepath.Join(dir, shard))
		if err == nil {
			c.sources = append(c.sources, s)
			err = c.parseSafetensors(s)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := idx.check(path, c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// check compares the map of the index with the tensors of the shards.
func (idx *index) check(path string, c *Checkpoint) error {
	fail := func(tensor, format string, args ...any) error {
		return &FormatError{path, "safetensors index", tensor, fmt.Sprintf(format, args...)}
	}
	for _, name := range slices.Sorted(maps.Keys(idx.shardOf)) {
		shard := idx.shardOf[name]
		switch t, ok := c.Lookup(name); {
		case !ok:
			return fail(name, "%s does not hold it, nor does another shard", shard)
		case t.File() != filepath.Join(filepath.Dir(path), shard):
			return fail(name, "the index puts it in %s, it is in %s", shard, filepath.Base(t.File()))
		}
	}
	for _, t := range c.tensors {
		if _, ok := idx.shardOf[t.name]; !ok {
			return fail(t.name, "%s holds it, the index does not list it", filepath.Base(t.File()))
		}
	}
	return nil
}

func readIndex(path string) (*index, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	fail := func(format string, args ...any) (*index, error) {
		return nil, &FormatError{path, "safetensors index", "", fmt.Sprintf(format, args...)}
	}
	if info.Size() > MaxHeader {
		return fail("an index has at most %d bytes, this one %d", MaxHeader, info.Size())
	}
	raw, err := io.ReadAll(io.LimitReader(f, info.Size()))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	idx, err := parseIndex(raw)
	if err != nil {
		return fail("%v", err)
	}
	return idx, nil
}

func parseIndex(raw []byte) (*index, error) {
	r, err := newJSONReader(raw)
	if err != nil {
		return nil, err
	}
	idx := &index{}
	err = r.object(func(key string) error {
		if key != "weight_map" {
			return r.skip()
		}
		idx.shardOf = map[string]string{}
		err := r.object(func(tensor string) error {
			shard, err := r.string()
			if err == nil {
				err = checkShardName(shard)
			}
			idx.shardOf[tensor] = shard
			return in(fmt.Sprintf("tensor %q", tensor), err)
		})
		return in("weight_map", err)
	})
	if err != nil {
		return nil, err
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if len(idx.shardOf) == 0 {
		return nil, errors.New("a weight_map with tensors is required, there is none")
	}
	idx.shards = slices.Compact(slices.SortedFunc(maps.Values(idx.shardOf), cmp.Compare))
	return idx, nil
}

// checkShardName allows plain file names and names in folders below.
func checkShardName(name string) error {
	if name == "" || strings.ContainsAny(name, "\\\x00") || !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("file name %q: a name inside the folder of the index is required", name)
	}
	return nil
}
