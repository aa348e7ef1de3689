// What a run of adapters keeps of the model under them, to go on with no other.

package models

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

const baseName = "base.json"

// baseRecord is base.json.
type baseRecord struct {
	Digest string          `json:"digest"`
	Config json.RawMessage `json:"config"`
}

// writeBase tells in dir which model is under the adapters.
func (ad *Adapted) writeBase(dir string) error {
	var r baseRecord
	var err error
	if r.Digest, err = ad.baseDigest(); err != nil {
		return err
	}
	var config bytes.Buffer
	if err := ad.Config.Write(&config); err != nil {
		return err
	}
	r.Config = config.Bytes()
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, baseName), append(raw, '\n'), 0o666)
}

// checkBase fails where dir tells of another model than the one under the
// adapters, which was called was.
func (ad *Adapted) checkBase(dir, was string) error {
	raw, err := os.ReadFile(filepath.Join(dir, baseName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a folder of other software
	}
	var r baseRecord
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return fmt.Errorf("models: %s: %w", baseName, err)
	}
	config, err := ParseConfig(bytes.NewReader(r.Config))
	if err != nil {
		return fmt.Errorf("models: %s: %w", baseName, err)
	}
	if err := ad.computes(config); err != nil {
		return err
	}
	is, err := ad.baseDigest()
	if err != nil {
		return err
	}
	if is != r.Digest {
		return fmt.Errorf("models: the base under the adapters must have the weights of that of the checkpoint, %q (digest %.12s), got %q (digest %.12s): a run goes on with its own base; OpenAdapter takes its adapters to another one", was, r.Digest, ad.Base, is)
	}
	return nil
}

// What baseDigest reads of a weight with more numbers: many in a row, at few places,
// which each may be a read from a disk.
const digestRow, digestPlaces = 1024, 4

// baseDigest tells the model under the adapters from others of its shape: it is over
// names, shapes and samples of all weights that are not trained, as float32 where
// they are stored as floats of 16 bits or more, so that widening does not change it.
// Training moves numbers all over a weight; that a change of a few is seen is not
// certain.
func (ad *Adapted) baseDigest() (string, error) {
	if err := ad.hold(); err != nil {
		return "", err
	}
	defer ad.params.Release()
	h := sha256.New()
	all := slices.DeleteFunc(ad.params.All(), func(p *graph.Param) bool { return p.State || ofAdapter(p.Name) || p.Trainable() })
	slices.SortFunc(all, func(a, b *graph.Param) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range all {
		sample(h, p)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sample writes the part of a weight that its digest is over.
func sample(h hash.Hash, p *graph.Param) {
	t := p.Tensor()
	n, stored := t.Size(), t.DType
	wide := stored == dtype.Float32 || stored == dtype.BFloat16 || stored == dtype.Float16
	if wide {
		stored = dtype.Float32
	}
	fmt.Fprintf(h, "%s %s\n", p.Name, graph.T(stored, t.Shape...))
	part := graph.NewTensor(graph.T(t.DType, min(n, digestRow)))
	places := min(digestPlaces, blocks(n, digestRow))
	for i := range places {
		at := i * (n - part.Size()) / max(places-1, 1)
		copy(part.Bytes(), t.Bytes()[at*t.DType.Size():])
		if wide {
			binary.Write(h, binary.LittleEndian, widened(part)) // a hash takes all
		} else {
			h.Write(part.Bytes())
		}
	}
}
