// The safetensors header.
//
// A file is the header's length n (8 bytes, little-endian), n bytes of JSON,
// and the data. The JSON maps each name to {"dtype", "shape", "data_offsets"},
// offsets counted from the end of the header, and may hold a "__metadata__"
// object of strings. The tensors cover the data without hole or overlap.
//
// Source: https://github.com/huggingface/safetensors#format

package checkpoint

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/seafan/seafan/graph/dtype"
)

// MaxHeader is the largest header of a safetensors file, in bytes: the limit
// of the format's own library.
const MaxHeader = 100_000_000

// maxRank bounds the dimensions of a tensor.
const maxRank = 32

const metadataKey = "__metadata__"

func (c *Checkpoint) parseSafetensors(s *source) error {
	fail := func(tensor, format string, args ...any) error {
		return &FormatError{s.path, "safetensors", tensor, fmt.Sprintf(format, args...)}
	}
	if s.size < 8 {
		return fail("", "a file starts with the 8-byte length of its header, this one has %d bytes", s.size)
	}
	var head [8]byte
	if err := s.read(head[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(head[:])
	switch {
	case n > MaxHeader:
		return fail("", "a header has at most %d bytes, the length field says %d", MaxHeader, n)
	case n > uint64(s.size-8):
		return fail("", "the header has %d bytes, the file only %d after the length field", n, s.size-8)
	}
	left := newBudget(s.size)
	if err := left.spend(int(n)); err != nil {
		return fail("", "header: %v", err)
	}
	raw := make([]byte, n)
	if err := s.read(raw, 8); err != nil {
		return err
	}
	h, err := parseHeader(raw, left)
	if err != nil {
		return fail("", "header: %v", err)
	}
	start := int64(8 + n)
	data := uint64(s.size - start)
	if c.metadata == nil {
		c.metadata = h.metadata
	}
	slices.SortFunc(h.entries, func(a, b headerEntry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	covered, last := uint64(0), ""
	for _, e := range h.entries {
		d, ok := dtype.FromSafetensors(e.dtype)
		if !ok {
			return fail(e.name, "dtype %q is unknown", e.dtype)
		}
		count, ok := product(e.shape)
		size, ok2 := product([]uint64{count, uint64(d.Size())})
		if !ok || !ok2 {
			return fail(e.name, "the product of shape %v and %d bytes of %s exceeds 2^63", e.shape, d.Size(), e.dtype)
		}
		switch {
		case e.begin > e.end:
			return fail(e.name, "data_offsets [%d, %d] begin after they end", e.begin, e.end)
		case e.end > data:
			return fail(e.name, "data_offsets [%d, %d] end after the data, which has %d bytes (the file is truncated or the offset wrong)", e.begin, e.end, data)
		case e.end-e.begin != size:
			return fail(e.name, "shape %v of %s needs %d bytes, data_offsets [%d, %d] hold %d", e.shape, e.dtype, size, e.begin, e.end, e.end-e.begin)
		case e.begin < covered:
			return fail(e.name, "data_offsets [%d, %d] overlap those of %q, which end at %d", e.begin, e.end, last, covered)
		case e.begin > covered:
			return fail(e.name, "data_offsets [%d, %d] leave a hole after %d", e.begin, e.end, covered)
		}
		covered, last = e.end, e.name
		shape := make([]int, len(e.shape))
		for i, dim := range e.shape {
			if dim > math.MaxInt { // next to a dimension of 0
				return fail(e.name, "dimension %d of shape %v exceeds the integers of this machine", i, e.shape)
			}
			shape[i] = int(dim)
		}
		t := &Tensor{name: e.name, dtype: d, shape: shape, n: int(count), offset: start + int64(e.begin), bytes: int64(size), src: s}
		if !c.add(t) {
			return fail(e.name, "it is also in %s", c.byName[e.name].File())
		}
	}
	if covered != data {
		return fail("", "the tensors end at byte %d of the data, which has %d (the rest belongs to none)", covered, data)
	}
	return nil
}

// product multiplies dimensions; false when the result exceeds an int.
func product(dims []uint64) (uint64, bool) {
	n, overflow := uint64(1), false
	for _, d := range dims {
		if d == 0 {
			return 0, true
		}
		hi, lo := bits.Mul64(n, d)
		overflow = overflow || hi != 0 || lo > math.MaxInt
		n = lo
	}
	return n, !overflow
}
