// Reading tensors: raw bytes, typed elements, widened to float32, by rows.

package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"github.com/seafan/seafan/graph/dtype"
)

// Tensor is one tensor of an open checkpoint. Nothing of its data is read
// before one of the reading methods is called.
type Tensor struct {
	name   string
	dtype  dtype.DType
	coding Coding
	shape  []int
	n      int   // elements
	offset int64 // of its bytes in the source
	bytes  int64
	src    *source
}

// Name is the name in the file.
func (t *Tensor) Name() string { return t.name }

// DType is the stored element type; dtype.Invalid for the block codings of
// GGUF, whose elements have no storage of their own.
func (t *Tensor) DType() dtype.DType { return t.dtype }

// Coding is Plain, or the block coding of a quantised GGUF tensor.
func (t *Tensor) Coding() Coding { return t.coding }

// Type is the spelling of the storage: "BF16", "F8_E4M3", "Q4_1".
func (t *Tensor) Type() string {
	if t.coding == Plain {
		return t.dtype.Safetensors()
	}
	return t.coding.String()
}

// Shape is row-major, outermost first; empty for a scalar.
func (t *Tensor) Shape() []int { return slices.Clone(t.shape) }

// Len is the number of elements.
func (t *Tensor) Len() int { return t.n }

// Bytes is the size in the file.
func (t *Tensor) Bytes() int64 { return t.bytes }

// File is the path of the file that holds the tensor.
func (t *Tensor) File() string { return t.src.path }

// Rows is the first dimension, 1 for a scalar.
func (t *Tensor) Rows() int {
	if t == nil || len(t.shape) == 0 {
		return 1
	}
	return t.shape[0]
}

// RowLen is the number of elements of one row: the product of all dimensions
// but the first.
func (t *Tensor) RowLen() int {
	if len(t.shape) == 0 {
		return 1
	}
	n := 1
	for _, d := range t.shape[1:] {
		n *= d
	}
	return n
}

func (t *Tensor) String() string {
	return fmt.Sprintf("%s %s %v", t.name, t.Type(), t.shape)
}

func (t *Tensor) errorf(format string, args ...any) error {
	err := fmt.Errorf("tensor %q (%s %v): "+format, append([]any{t.name, t.Type(), t.shape}, args...)...)
	if t.src.path != "" {
		err = fmt.Errorf("%s: %w", t.src.path, err)
	}
	return err
}

// usable refuses a tensor of no file.
func (t *Tensor) usable() error {
	if t == nil || t.src == nil {
		return errors.New("checkpoint: the tensor is missing: Checkpoint.Lookup finds one")
	}
	return nil
}

// span is the byte range of rows [first, first+n).
func (t *Tensor) span(first, n int) (off, size int64, err error) {
	if err := t.usable(); err != nil {
		return 0, 0, err
	}
	if first < 0 || n < 0 || first > t.Rows()-n {
		return 0, 0, t.errorf("%d rows from %d on asked for, it has %d", n, first, t.Rows())
	}
	if n == t.Rows() {
		return t.offset, t.bytes, nil
	}
	b, row := t.block(), t.RowLen()
	if row%b.elements != 0 {
		return 0, 0, t.errorf("a row of %d elements is not a whole number of blocks of %d", row, b.elements)
	}
	rowBytes := int64(row/b.elements) * int64(b.bytes)
	return t.offset + int64(first)*rowBytes, int64(n) * rowBytes, nil
}

// block is the smallest unit that can be decoded on its own.
func (t *Tensor) block() block {
	if t.coding == Plain {
		return block{1, t.dtype.Size()}
	}
	return codings[t.coding].block
}

// Forget lets the tensor's part of a mapped file go from memory, after its values
// were copied; reading it again brings it back.
func (t *Tensor) Forget() {
	t.src.mu.RLock()
	defer t.src.mu.RUnlock()
	if t.src.mem != nil {
		forget(t.src.mem, t.offset, t.bytes)
	}
}

// Float32 reads the whole tensor into dst, which must have Len elements.
//
// F16, BF16, the 8-bit floats, integers of up to 16 bits, Bool (0 and 1) and
// the block codings widen exactly. F64 is rounded to nearest even. A wider
// integer that float32 cannot hold is an error. FP8 codes are widened as they
// are, without their steps: see FP8.
func (t *Tensor) Float32(dst []float32) error { return t.Float32Rows(dst, 0, t.Rows()) }

// Float32Rows reads rows [first, first+n) as Float32 does; dst must have
// n x RowLen elements.
func (t *Tensor) Float32Rows(dst []float32, first, n int) error {
	off, size, err := t.span(first, n)
	if err != nil {
		return err
	}
	if want := n * t.RowLen(); len(dst) != want {
		return t.errorf("%d rows need a destination of %d elements, it has %d", n, want, len(dst))
	}
	b := t.block()
	bad := -1
	done := 0
	err = t.src.pieces(off, size, b.bytes, func(p []byte) {
		k := len(p) / b.bytes * b.elements
		if bad < 0 {
			if i := t.widen(dst[done:done+k], p); i >= 0 {
				bad = done + i
			}
		}
		done += k
	})
	if err == nil && bad >= 0 {
		err = t.errorf("element %d has no exact float32 value", first*t.RowLen()+bad)
	}
	return err
}

// Raw reads the stored bytes (little-endian) of the whole tensor into dst,
// which must have Bytes bytes.
func (t *Tensor) Raw(dst []byte) error { return t.RawRows(dst, 0, t.Rows()) }

// RawRows reads the stored bytes of rows [first, first+n).
func (t *Tensor) RawRows(dst []byte, first, n int) error {
	off, size, err := t.span(first, n)
	if err != nil {
		return err
	}
	if int64(len(dst)) != size {
		return t.errorf("%d rows need a destination of %d bytes, it has %d", n, size, len(dst))
	}
	return t.src.read(dst, off)
}

// WriteTo writes the stored bytes to w.
func (t *Tensor) WriteTo(w io.Writer) (written int64, err error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	rerr := t.src.pieces(t.offset, t.bytes, 1, func(p []byte) {
		if err == nil {
			var n int
			n, err = w.Write(p)
			written += int64(n)
		}
	})
	if err == nil {
		err = rerr
	}
	return written, err
}

// Element is a Go type that stores the elements of a tensor.
type Element interface {
	float64 | float32 | dtype.F16 | dtype.BF16 | dtype.E4M3 | dtype.E5M2 |
		int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8 | bool
}

// DTypeOf is the DType of a Go element type.
func DTypeOf[T Element]() dtype.DType {
	var z T
	switch any(z).(type) {
	case float64:
		return dtype.Float64
	case float32:
		return dtype.Float32
	case dtype.F16:
		return dtype.Float16
	case dtype.BF16:
		return dtype.BFloat16
	case dtype.E4M3:
		return dtype.Float8E4M3
	case dtype.E5M2:
		return dtype.Float8E5M2
	case int64:
		return dtype.Int64
	case int32:
		return dtype.Int32
	case int16:
		return dtype.Int16
	case int8:
		return dtype.Int8
	case uint64:
		return dtype.UInt64
	case uint32:
		return dtype.UInt32
	case uint16:
		return dtype.UInt16
	case uint8:
		return dtype.UInt8
	}
	return dtype.Bool
}

// Read reads the elements of t as they are stored; T must be its type and dst
// must have Len elements. A Bool byte other than 0 is true.
func Read[T Element](t *Tensor, dst []T) error {
	if err := t.usable(); err != nil {
		return err
	}
	if d := DTypeOf[T](); t.coding != Plain || t.dtype != d {
		return t.errorf("read as %s", d)
	}
	if len(dst) != t.n {
		return t.errorf("the whole tensor needs a destination of %d elements, it has %d", t.n, len(dst))
	}
	done, size := 0, t.dtype.Size()
	return t.src.pieces(t.offset, t.bytes, size, func(p []byte) {
		k := len(p) / size
		decodeElements(dst[done:done+k], p)
		done += k
	})
}

func decodeElements[T Element](dst []T, p []byte) {
	if d, ok := any(dst).([]bool); ok {
		for i := range d {
			d[i] = p[i] != 0
		}
		return
	}
	if len(dst) == 0 {
		return
	}
	copy(bytesOf(dst), p)
	if !littleEndian {
		swapBytes(bytesOf(dst), int(unsafe.Sizeof(dst[0])))
	}
}

// View is the tensor's memory in the mapped file, without a copy: read-only,
// valid until Close, and a crash if another process shortens the file. It is
// not available (false) when the file is not mapped, T is not the stored type
// (use uint8 for the bytes of any tensor), the data is not aligned for T, or
// the machine is big-endian. The element type bool has no view.
func View[T Element](t *Tensor) ([]T, bool) {
	var z T
	d, size := DTypeOf[T](), int64(unsafe.Sizeof(z))
	asBytes := d == dtype.UInt8
	if t.usable() != nil || d == dtype.Bool || !asBytes && (t.coding != Plain || t.dtype != d || !littleEndian) {
		return nil, false
	}
	t.src.mu.RLock()
	defer t.src.mu.RUnlock()
	if t.src.mem == nil {
		return nil, false
	}
	if t.bytes == 0 {
		return []T{}, true
	}
	p := unsafe.Pointer(&t.src.mem[t.offset])
	if uintptr(p)%unsafe.Alignof(z) != 0 {
		return nil, false
	}
	return unsafe.Slice((*T)(p), t.bytes/size), true
}

// littleEndian is the byte order of this machine; files are little-endian.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// bytesOf is the memory of a slice.
func bytesOf[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// swapBytes reverses the bytes of each element of size bytes.
func swapBytes(p []byte, size int) {
	for ; len(p) >= size; p = p[size:] {
		slices.Reverse(p[:size])
	}
}
