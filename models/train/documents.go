// Documents: windows that know where documents end.

package train

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sort"
)

// Documents are Windows of packed documents: a row is filled to its end with
// whole documents and the parts of those that a row ends in or begins in, so
// nothing is padding. Each is a sequence of its own, at positions from 0, and
// the last token of a document has no label. The rows are those of Windows: a
// function of seed and number.
//
// The held-out part begins with the document that is nearest to its share,
// when that leaves a row on both sides.
type Documents struct {
	*Windows
	starts []int64
	most   int
}

// NewDocuments packs the documents of the tokens, two or more.
func NewDocuments(tokens *Tokens, vocab int, o WindowOptions) (*Documents, error) {
	w, err := NewWindows(tokens, vocab, o)
	if err != nil {
		return nil, err
	}
	starts := tokens.starts
	if len(starts) < 2 {
		return nil, fmt.Errorf("%s: is one document, at least 2 are required to be packed: each is a file, or ends with the separator (%q)", tokens.name(), tokens.separator)
	}
	t := int64(o.Context)
	if o.Validation > 0 {
		i := sort.Search(len(starts), func(i int) bool { return starts[i] >= w.train })
		cut := starts[i-1] // the first is at 0
		if i < len(starts) && starts[i]-w.train < w.train-cut {
			cut = starts[i]
		}
		if rest := tokens.Len() - cut; cut > t && rest > t {
			w.train, w.held = cut, int((rest-1)/t)
		}
	}
	return &Documents{w, starts, most(starts, t)}, nil
}

// most is the largest number of documents that a row of t tokens meets. A row
// that begins with the last token of a document meets most.
func most(starts []int64, t int64) int {
	n, j := 1, 0
	for i := range starts[1:] {
		for end := starts[i+1] - 1 + t; j < len(starts) && starts[j] < end; {
			j++
		}
		n = max(n, j-i)
	}
	return n
}

func (d *Documents) usable() error {
	if d == nil {
		return (*Windows)(nil).usable()
	}
	return d.Windows.usable()
}

// Sequences is the largest number of documents in a row.
func (d *Documents) Sequences() int { return d.most }

// from is the first document that begins at a token or after it.
func (d *Documents) from(at int64) int {
	return sort.Search(len(d.starts), func(i int) bool { return d.starts[i] >= at })
}

// close takes the labels from the last tokens of documents, in the row that
// begins at a token.
func (d *Documents) close(at int64, labels []int32) {
	for _, s := range d.starts[d.from(at+1):] {
		if s > at+int64(len(labels)) {
			return
		}
		labels[s-at-1] = ignored
	}
}

// number writes the positions of the row that begins at a token.
func (d *Documents) number(at int64, positions []int32) {
	next := d.from(at)
	p := int32(0)
	for i := range positions {
		if next < len(d.starts) && d.starts[next] == at+int64(i) {
			p = 0
			next++
		}
		positions[i] = p
		p++
	}
}

// Batch fills micro-batch i.
func (d *Documents) Batch(i int64, rows int, tokens, labels []int32) error {
	if err := d.usable(); err != nil {
		return err
	}
	if err := d.Windows.Batch(i, rows, tokens, labels); err != nil {
		return err
	}
	t := d.o.Context
	for r := range rows {
		d.close(d.start(i*int64(rows)+int64(r)), labels[r*t:(r+1)*t])
	}
	return nil
}

// Positions fills the positions of micro-batch i.
func (d *Documents) Positions(i int64, rows int, positions []int32) error {
	if err := d.usable(); err != nil {
		return err
	}
	t := d.o.Context
	if len(positions) != rows*t {
		return fmt.Errorf("train: a batch of %d rows of %d needs %d positions, got room for %d", rows, t, rows*t, len(positions))
	}
	for r := range rows {
		d.number(d.start(i*int64(rows)+int64(r)), positions[r*t:(r+1)*t])
	}
	return nil
}

// HeldRow fills held-out row i.
func (d *Documents) HeldRow(i int, tokens, labels []int32) error {
	if err := d.usable(); err != nil {
		return err
	}
	if err := d.Windows.HeldRow(i, tokens, labels); err != nil {
		return err
	}
	d.close(d.heldStart(i), labels)
	return nil
}

// HeldPositions fills the positions of held-out row i.
func (d *Documents) HeldPositions(i int, positions []int32) error {
	if err := d.usable(); err != nil {
		return err
	}
	if i < 0 || i >= d.held || len(positions) != d.o.Context {
		return fmt.Errorf("train: held-out rows are 0 to %d of %d positions, got row %d and room for %d", d.held-1, d.o.Context, i, len(positions))
	}
	d.number(d.heldStart(i), positions)
	return nil
}

// Digest names what Windows do, and the documents.
func (d *Documents) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s documents %d\n", d.Windows.Digest(), d.train)
	var raw [8]byte
	for _, s := range d.starts {
		binary.LittleEndian.PutUint64(raw[:], uint64(s))
		h.Write(raw[:]) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
