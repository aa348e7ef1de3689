// The GGUF header, versions 2 and 3, little-endian.
//
// A file is: "GGUF", version, number of tensors, number of keys; the keys with
// typed values; for each tensor its name, dimensions (fastest first), type and
// offset; padding to the alignment; the data, each tensor at a multiple of the
// alignment.
//
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

package checkpoint

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/seafan/seafan/graph/dtype"
)

const (
	ggufMagic        = "GGUF"
	ggufAlignment    = 32 // when general.alignment is absent
	ggufMaxDims      = 4
	ggufMaxName      = 1<<16 - 1
	ggufMinKey       = 8 + 4 + 1     // bytes of a key with the shortest value
	ggufMinTensor    = 8 + 4 + 4 + 8 // bytes of a tensor's description
	ggufAlignmentKey = "general.alignment"
	ggufSplitKey     = "split.count"
)

// ggufTypes are the tensor types by number: an element type or a coding.
var ggufTypes = map[uint32]struct {
	dtype  dtype.DType
	coding Coding
}{
	0: {dtype: dtype.Float32}, 1: {dtype: dtype.Float16}, 30: {dtype: dtype.BFloat16}, 28: {dtype: dtype.Float64},
	24: {dtype: dtype.Int8}, 25: {dtype: dtype.Int16}, 26: {dtype: dtype.Int32}, 27: {dtype: dtype.Int64},
	2: {coding: Q4_0}, 3: {coding: Q4_1}, 6: {coding: Q5_0}, 7: {coding: Q5_1}, 8: {coding: Q8_0},
	10: {coding: Q2_K}, 11: {coding: Q3_K}, 12: {coding: Q4_K}, 13: {coding: Q5_K}, 14: {coding: Q6_K},
	20: {coding: IQ4_NL}, 23: {coding: IQ4_XS}, 39: {coding: MXFP4},
}

// ggufUnread names the types that are known and not read.
var ggufUnread = map[uint32]string{
	9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
	29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}

func (c *Checkpoint) parseGGUF(s *source) error {
	r := &ggufReader{src: s, left: newBudget(s.size)}
	err := r.tensors(c)
	if err != nil && r.failed != nil {
		return r.failed // reading failed, the contents are not to blame
	}
	return err
}

func (r *ggufReader) tensors(c *Checkpoint) error {
	fail := func(tensor string, format string, args ...any) error {
		return &FormatError{r.src.path, "gguf", tensor, fmt.Sprintf(format, args...)}
	}
	tensorCount, keyCount, err := r.preamble()
	if err != nil {
		return fail("", "%v", err)
	}
	if c.metadata, err = r.metadata(keyCount); err != nil {
		return fail("", "%v", err)
	}
	align, err := alignment(c.metadata)
	if err != nil {
		return fail("", "%v", err)
	}
	if tensorCount > uint64(r.rest()/ggufMinTensor) {
		return fail("", "%d tensors announced, the %d bytes left cannot describe so many", tensorCount, r.rest())
	}
	if err := r.left.spend(8 * int(tensorCount)); err != nil {
		return fail("", "%v", err)
	}
	list := make([]*Tensor, 0, tensorCount)
	for i := range tensorCount {
		t, err := r.tensor()
		if err == nil {
			err = r.left.spend(tensorMemory / 2)
		}
		if err != nil {
			return fail(t.name, "description %d of %d: %v", i+1, tensorCount, err)
		}
		list = append(list, t)
	}
	start := padded(r.off, align)
	forget(r.src.mem, 0, r.off) // the header was copied and may be megabytes
	if start > r.src.size && len(list) > 0 {
		return fail("", "the data begins at %d, the file has %d bytes", start, r.src.size)
	}
	// Sorted by offset the tensors follow each other with padding between.
	slices.SortStableFunc(list, func(a, b *Tensor) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.bytes, b.bytes))
	})
	next, last := int64(0), ""
	for _, t := range list {
		switch data := r.src.size - start; {
		case t.offset%align != 0:
			return fail(t.name, "offset %d is not a multiple of the alignment %d", t.offset, align)
		case t.offset > data || t.bytes > data-t.offset:
			return fail(t.name, "%v of %s needs %d bytes at offset %d, the data has %d (the file is truncated or the offset wrong)", t.shape, t.Type(), t.bytes, t.offset, data)
		case t.offset < next:
			return fail(t.name, "offset %d overlaps %q, which ends at %d with its padding", t.offset, last, next)
		case t.offset > next:
			return fail(t.name, "offset %d leaves a hole after %d", t.offset, next)
		}
		next, last = padded(t.offset+t.bytes, align), t.name
		t.offset += start
		if !c.add(t) {
			return fail(t.name, "it is described twice")
		}
	}
	return nil
}

// preamble reads magic, version and the two counts.
func (r *ggufReader) preamble() (tensors, keys uint64, err error) {
	magic := string(r.bytes(4))
	version := r.uint32()
	tensors, keys = r.uint64(), r.uint64()
	switch {
	case r.err != nil:
		return 0, 0, r.err
	case magic != ggufMagic:
		return 0, 0, fmt.Errorf("a file starts with %q, this one with %q", ggufMagic, magic)
	case version&0xFFFF == 0 && version != 0:
		return 0, 0, fmt.Errorf("the file is big-endian, only little-endian files are read")
	case version != 2 && version != 3:
		return 0, 0, fmt.Errorf("version %d: versions 2 and 3 are read", version)
	case keys > uint64(r.rest()/ggufMinKey):
		return 0, 0, fmt.Errorf("%d keys announced, the %d bytes left cannot hold so many", keys, r.rest())
	}
	return tensors, keys, nil
}

func (r *ggufReader) metadata(count uint64) (Metadata, error) {
	m := Metadata{}
	for i := range count {
		key := r.string(ggufMaxName)
		if r.err == nil && (key == "" || !utf8.ValidString(key)) {
			r.fail("the name is %q: UTF-8 that is not empty is required", key)
		}
		if _, ok := m[key]; ok && r.err == nil {
			r.fail("%q: duplicate key", key)
		}
		v := r.value(r.uint32(), 0)
		if r.err != nil {
			return nil, fmt.Errorf("key %d of %d (%q): %w", i+1, count, key, r.err)
		}
		if err := r.left.spend(keyMemory); err != nil {
			return nil, err
		}
		m[key] = v
	}
	if v, ok := m[ggufSplitKey]; ok {
		if n, ok := asInt(v); !ok || n > 1 {
			return nil, fmt.Errorf("%s is %v: a model in one file is required, join the parts first", ggufSplitKey, v)
		}
	}
	return m, nil
}

func alignment(m Metadata) (int64, error) {
	v, ok := m[ggufAlignmentKey]
	if !ok {
		return ggufAlignment, nil
	}
	n, ok := v.(uint32)
	if !ok || n < 8 || n > 1<<30 || n&(n-1) != 0 {
		return 0, fmt.Errorf("%s is %v (%T): a uint32 power of two from 8 to 2^30 is required", ggufAlignmentKey, v, v)
	}
	return int64(n), nil
}

// padded rounds up to a multiple of align, a power of two.
func padded(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }

// tensor reads one description; offset is still relative to the data. On an
// error the name is set as far as it is known.
func (r *ggufReader) tensor() (*Tensor, error) {
	t := &Tensor{src: r.src, name: r.string(ggufMaxName)}
	rank := r.uint32()
	if r.err == nil && rank > ggufMaxDims {
		return t, fmt.Errorf("it has %d dimensions, at most %d are allowed", rank, ggufMaxDims)
	}
	dims := make([]uint64, min(rank, ggufMaxDims))
	for i := range dims {
		dims[i] = r.uint64()
	}
	kind, offset := r.uint32(), r.uint64()
	if r.err != nil {
		return t, r.err
	}
	if !utf8.ValidString(t.name) {
		return t, fmt.Errorf("the name is not UTF-8")
	}
	how, ok := ggufTypes[kind]
	if !ok {
		if name, ok := ggufUnread[kind]; ok {
			return t, fmt.Errorf("its type %s is not supported", name)
		}
		return t, fmt.Errorf("its type %d is unknown", kind)
	}
	t.dtype, t.coding = how.dtype, how.coding
	b := t.block()
	count, ok := product(dims)
	row := uint64(1)
	if rank > 0 {
		row = dims[0]
	}
	switch {
	case !ok || count > math.MaxInt/uint64(b.bytes):
		return t, fmt.Errorf("the product of dimensions %v exceeds 2^63 bytes of %s", dims, t.Type())
	case row%uint64(b.elements) != 0:
		return t, fmt.Errorf("rows of %d elements are not whole blocks of %d (%s)", row, b.elements, t.Type())
	case offset > math.MaxInt64:
		return t, fmt.Errorf("offset %d exceeds 2^63", offset)
	}
	t.n, t.bytes, t.offset = int(count), int64(count)/int64(b.elements)*int64(b.bytes), int64(offset)
	for i := range dims {
		dim := dims[len(dims)-1-i]
		if dim > math.MaxInt { // next to a dimension of 0
			return t, fmt.Errorf("dimensions %v exceed the integers of this machine", dims)
		}
		t.shape = append(t.shape, int(dim))
	}
	return t, nil
}

func isGGUF(s *source) (bool, error) {
	if s.size < int64(len(ggufMagic)) {
		return false, nil
	}
	var b [4]byte
	err := s.read(b[:], 0)
	return string(b[:]) == ggufMagic, err
}

// ggufReader takes values off the header. After the first error all it gives
// is zero.
type ggufReader struct {
	src    *source
	off    int64  // of the next byte
	buf    []byte // bytes read ahead, the first at off
	err    error
	failed error // an error of reading, not of the contents
	left   *budget
}

func (r *ggufReader) rest() int64 { return r.src.size - r.off }

// spend is for what a value takes in memory.
func (r *ggufReader) spend(bytes int) {
	if err := r.left.spend(bytes); err != nil {
		r.fail("%w", err)
	}
}

func (r *ggufReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// bytes returns the next n bytes, valid until the next call.
func (r *ggufReader) bytes(n int) []byte {
	if r.err != nil {
		return nil
	}
	if int64(n) > r.rest() {
		r.fail("the file ends at %d, %d more bytes are needed at %d", r.src.size, n, r.off)
		return nil
	}
	if n > len(r.buf) {
		r.buf = make([]byte, min(r.rest(), int64(max(n, 64<<10))))
		if err := r.src.read(r.buf, r.off); err != nil {
			r.err, r.failed = err, err
			return nil
		}
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	r.off += int64(n)
	return b
}

func (r *ggufReader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *ggufReader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// string reads a string of at most limit bytes.
func (r *ggufReader) string(limit int64) string {
	n := r.uint64()
	if r.err != nil {
		return ""
	}
	if n > uint64(r.rest()) {
		r.fail("a string of %d bytes at %d is longer than the file, which has %d", n, r.off, r.src.size)
		return ""
	}
	if int64(n) > limit {
		r.fail("a string of %d bytes at %d, at most %d are allowed", n, r.off, limit)
		return ""
	}
	b := r.bytes(int(n))
	r.spend(int(n))
	return string(b)
}
