// Writing safetensors: one file or shards with an index, replaced atomically.

package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// SaveOptions of Save. The zero value writes one file.
type SaveOptions struct {
	// MaxShardBytes is the most tensor bytes of one file of a folder; a
	// larger tensor gets a file of its own. 0 means no limit.
	MaxShardBytes int64
	// Metadata goes into the header of each file. "format" is "pt" unless
	// given: transformers refuses a file without it.
	Metadata map[string]string
}

// Save writes tensors to path: a file when it ends in .safetensors, else a
// folder (made if need be) that gets model.safetensors, or shards named
// model-00001-of-00003.safetensors and model.safetensors.index.json when the
// tensors exceed MaxShardBytes. Tensors go to the shards in the order given.
//
// Data is streamed to temporary files beside the target, synced, and renamed.
// On an error the old checkpoint is as it was and the temporaries are gone. A
// crash leaves the old checkpoint or the new one: shards never take the name
// of a file that is there (a second save of as many shards is called
// model-2-00001-of-...), the index or file that decides is renamed last, and
// only then are the superseded files removed. Temporaries that a crash left
// behind are removed by the next Save, so two must not write to one path at
// the same time.
func Save(path string, tensors iter.Seq[Entry], opt SaveOptions) error {
	if opt.MaxShardBytes < 0 {
		return fmt.Errorf("checkpoint: save %s: MaxShardBytes must not be negative, it is %d", path, opt.MaxShardBytes)
	}
	if tensors == nil {
		return fmt.Errorf("checkpoint: save %s: the tensors are missing (nil)", path)
	}
	var entries []Entry
	err := mapped(func() (err error) {
		entries, err = collect(tensors)
		return err
	})
	if err != nil {
		return fmt.Errorf("checkpoint: save %s: %w", path, err)
	}
	shards := split(entries, opt.MaxShardBytes)
	if filepath.Ext(path) == ".safetensors" {
		if len(shards) > 1 {
			return fmt.Errorf("checkpoint: save %s: tensors exceed MaxShardBytes %d, shards need a folder as path", path, opt.MaxShardBytes)
		}
		err = saveFile(path, shards[0], opt)
	} else {
		err = saveFolder(path, shards, opt)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: save %s: %w", path, err)
	}
	return nil
}

func saveFile(path string, entries []Entry, opt SaveOptions) error {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	if err := removeTemporaries(dir, base+".tmp-"); err != nil {
		return err
	}
	var s stage
	defer s.discard()
	if err := s.write(path, func(w io.Writer) error { return writeFile(w, entries, opt.Metadata) }); err != nil {
		return err
	}
	return s.publish(dir)
}

func saveFolder(dir string, shards [][]Entry, opt SaveOptions) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := removeTemporaries(dir, "model"); err != nil {
		return err
	}
	single, indexPath := filepath.Join(dir, singleName), filepath.Join(dir, indexName)
	obsolete, err := shardsOf(indexPath)
	if err != nil {
		return err
	}
	var s stage
	defer s.discard()
	if len(shards) == 1 {
		err = s.write(single, func(w io.Writer) error { return writeFile(w, shards[0], opt.Metadata) })
		obsolete = append(obsolete, indexPath)
	} else {
		err = s.writeShards(dir, shards, opt)
		obsolete = append(obsolete, single)
	}
	if err != nil {
		return err
	}
	if err := s.publish(dir); err != nil {
		return err
	}
	slices.Reverse(obsolete) // what Open would prefer goes first
	for _, old := range obsolete {
		if err := os.Remove(old); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("the new checkpoint is written, a file of the old one is in its way: %w", err)
		}
	}
	return syncPath(dir)
}

// writeShards stages all shards and, last, the index.
func (s *stage) writeShards(dir string, shards [][]Entry, opt SaveOptions) error {
	names, err := shardNames(dir, len(shards))
	if err != nil {
		return err
	}
	weightMap := map[string]string{}
	total := int64(0)
	for i, entries := range shards {
		if err := s.write(filepath.Join(dir, names[i]), func(w io.Writer) error { return writeFile(w, entries, opt.Metadata) }); err != nil {
			return err
		}
		for _, e := range entries {
			weightMap[e.Name] = names[i]
			total += e.bytes
		}
	}
	text, err := json.MarshalIndent(map[string]any{
		"metadata":   map[string]any{"total_size": total},
		"weight_map": weightMap,
	}, "", "  ")
	if err != nil {
		return err
	}
	return s.write(filepath.Join(dir, indexName), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// shardNames picks names that no file of the folder has.
func shardNames(dir string, n int) ([]string, error) {
	for try := 1; ; try++ {
		stem := "model"
		if try > 1 {
			stem = fmt.Sprintf("model-%d", try)
		}
		names, free := make([]string, n), true
		for i := range names {
			names[i] = fmt.Sprintf("%s-%05d-of-%05d.safetensors", stem, i+1, n)
			if _, err := os.Lstat(filepath.Join(dir, names[i])); !os.IsNotExist(err) {
				free = false
			}
		}
		if free {
			return names, nil
		}
		if try == 1000 {
			return nil, fmt.Errorf("a free name for shards is required, model-%d-... is taken too", try)
		}
	}
}

// shardsOf lists the files of the index that is to be superseded. One that
// cannot be read names none.
func shardsOf(indexPath string) ([]string, error) {
	if _, err := os.Stat(indexPath); err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	var paths []string
	if idx, err := readIndex(indexPath); err == nil {
		for _, shard := range idx.shards {
			if filepath.Ext(shard) == ".safetensors" && shard != singleName {
				paths = append(paths, filepath.Join(filepath.Dir(indexPath), shard))
			}
		}
	}
	return paths, nil
}

// collect checks the entries and sizes them.
func collect(tensors iter.Seq[Entry]) ([]Entry, error) {
	var out []Entry
	seen := map[string]struct{}{}
	for e := range tensors {
		if _, ok := seen[e.Name]; ok {
			return nil, fmt.Errorf("tensor %q: given twice", e.Name)
		}
		seen[e.Name] = struct{}{}
		if e.Name == metadataKey || !utf8.ValidString(e.Name) {
			return nil, fmt.Errorf("tensor %q: the name must be UTF-8 and not %s", e.Name, metadataKey)
		}
		if !e.DType.Valid() || e.Write == nil {
			return nil, fmt.Errorf("tensor %q: a dtype and a Write function are required (dtype %s)", e.Name, e.DType)
		}
		if len(e.Shape) > maxRank {
			return nil, fmt.Errorf("tensor %q: at most %d dimensions, got %d", e.Name, maxRank, len(e.Shape))
		}
		dims := []uint64{uint64(e.DType.Size())}
		for _, d := range e.Shape {
			if d < 0 {
				return nil, fmt.Errorf("tensor %q: shape %v has a negative dimension", e.Name, e.Shape)
			}
			dims = append(dims, uint64(d))
		}
		n, ok := product(dims)
		if !ok {
			return nil, fmt.Errorf("tensor %q: shape %v of %s exceeds 2^63 bytes", e.Name, e.Shape, e.DType)
		}
		e.bytes = int64(n)
		out = append(out, e)
	}
	return out, nil
}

// split cuts the entries into files, at least one.
func split(entries []Entry, limit int64) [][]Entry {
	shards, size := [][]Entry{nil}, int64(0)
	for _, e := range entries {
		last := len(shards) - 1
		if limit > 0 && len(shards[last]) > 0 && e.bytes > limit-size {
			shards = append(shards, nil)
			last, size = last+1, 0
		}
		shards[last] = append(shards[last], e)
		size += e.bytes
	}
	return shards
}

// writeFile writes one safetensors file. Wide types come first, so every
// tensor is aligned to its element: the order of the format's own library.
func writeFile(w io.Writer, entries []Entry, metadata map[string]string) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), strings.Compare(a.Name, b.Name))
	})
	head, err := encodeHeader(entries, metadata)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(w, 1<<20)
	if _, err := buf.Write(head); err != nil {
		return err
	}
	for _, e := range entries {
		count := &exactWriter{w: buf, left: e.bytes}
		if err := mapped(func() error { return e.Write(count) }); err != nil {
			return fmt.Errorf("tensor %q: %w", e.Name, err)
		}
		if count.left != 0 {
			return fmt.Errorf("tensor %q: shape %v of %s needs %d bytes, %d were written", e.Name, e.Shape, e.DType, e.bytes, e.bytes-count.left)
		}
	}
	return buf.Flush()
}

// encodeHeader is the length field and the JSON, padded with spaces so that
// the data begins at a multiple of 8.
func encodeHeader(entries []Entry, metadata map[string]string) ([]byte, error) {
	meta := map[string]string{"format": "pt"}
	maps.Copy(meta, metadata)
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, "{%q:%s", metadataKey, text)
	offset := int64(0)
	for _, e := range entries {
		name, err := json.Marshal(e.Name)
		if err != nil {
			return nil, err
		}
		shape, err := json.Marshal(append([]int{}, e.Shape...))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, e.DType.Safetensors(), shape, offset, offset+e.bytes)
		if offset += e.bytes; offset < 0 {
			return nil, fmt.Errorf("tensor %q: the file exceeds 2^63 bytes", e.Name)
		}
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if n := b.Len() - 8; n > MaxHeader {
		return nil, fmt.Errorf("a header has at most %d bytes, %d tensors need %d", MaxHeader, len(entries), n)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

// exactWriter refuses more bytes than a tensor has.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%d bytes more than its shape needs", int64(len(p))-e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
