package graph

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/seafan/seafan/graph/dtype"
)

// Type is the element type and shape of a value. A scalar has no dimensions.
type Type struct {
	DType dtype.DType
	Shape []int
}

// T is a Type literal: T(dtype.Float32, 2, 3).
func T(dt dtype.DType, shape ...int) Type { return Type{dt, shape} }

// Size is the number of elements.
func (t Type) Size() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes is the size in memory.
func (t Type) Bytes() int { return t.Size() * t.DType.Size() }

// Rank is the number of dimensions.
func (t Type) Rank() int { return len(t.Shape) }

// Equal reports whether element type and shape agree.
func (t Type) Equal(u Type) bool {
	return t.DType == u.DType && slices.Equal(t.Shape, u.Shape)
}

// Dims prints the shape as errors and plans show it: [2,16,12,64].
func (t Type) Dims() string { return Dims(t.Shape) }

// Dims prints a shape: [2,16,12,64].
func Dims(shape []int) string {
	s := make([]string, len(shape))
	for i, d := range shape {
		s[i] = strconv.Itoa(d)
	}
	return "[" + strings.Join(s, ",") + "]"
}

func (t Type) clone() Type { return Type{t.DType, slices.Clone(t.Shape)} }

func (t Type) String() string { return t.DType.String() + t.Dims() }

// maxElements keeps sizes and byte offsets of one value inside an int64.
const maxElements = 1 << 48

// check refuses a type that no value can have.
func (t Type) check() error {
	if !t.DType.Valid() {
		return fmt.Errorf("%s is no element type", t.DType)
	}
	n := 1
	for i, d := range t.Shape {
		if d < 1 {
			return fmt.Errorf("dimension %d of %s is %d, every dimension must be at least 1", i, t.Dims(), d)
		}
		if d > maxElements/n {
			return fmt.Errorf("%s has more than 2^48 elements", t.Dims())
		}
		n *= d
	}
	return nil
}

// Tensor is a value in memory: row-major, without gaps. It does not own the
// memory; a Tensor handed to a body is valid during the call.
type Tensor struct {
	Type
	mem []byte
}

// Element is what a Tensor can hold.
type Element interface {
	~float32 | ~float64 | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~bool
}

// NewTensor allocates a zeroed Tensor, aligned to 64 bytes.
func NewTensor(t Type) Tensor { return Tensor{t, alignedBytes(t.Bytes())} }

// Bytes is the memory of t.
func (t Tensor) Bytes() []byte { return t.mem }

// Data is the memory of t as a slice of E, whose size must be that of t's
// element type: like a type assertion, it panics where it is not.
func Data[E Element](t Tensor) []E {
	var e E
	size := int(unsafe.Sizeof(e))
	if size != t.DType.Size() {
		panic(fmt.Sprintf("graph: %s read as %T", t.Type, e))
	}
	if len(t.mem) == 0 {
		return nil
	}
	return unsafe.Slice((*E)(unsafe.Pointer(&t.mem[0])), len(t.mem)/size)
}

// sparseBytes is alignedBytes for memory of which little may ever be written to:
// pages of a cache.
func sparseBytes(n int) []byte {
	b := alignedSlice(n)
	dropPages(b)
	adviseHugePages(b)
	return b
}

func alignedBytes(n int) []byte {
	b := alignedSlice(n)
	adviseHugePages(b)
	return b
}

func alignedSlice(n int) []byte {
	const align = 64
	b := make([]byte, n+align)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & (align - 1)
	return b[off : off+n : off+n]
}

// Memory is n bytes of zeros from the start of a cache line on, in large pages
// where the system has them.
func Memory(n int) []byte { return alignedBytes(n) }

// MachineMemory is the memory of the machine, or what the process may have of
// it, in bytes; 0: not known.
func MachineMemory() int { return machineMemory() }

// CheckMemory is an error for what cannot be held in the memory of this machine,
// where that is known (on Linux): asking for it would end the process.
func CheckMemory(what string, bytes int) error {
	if have := machineMemory(); have > 0 && bytes > have {
		return fmt.Errorf("%s of %s cannot be had: this machine has %s of memory", what, sizeText(bytes), sizeText(have))
	}
	return nil
}

// bytesOf is the memory of a slice that a caller feeds, with its element type.
func bytesOf(v any) ([]byte, dtype.DType, bool) {
	switch s := v.(type) {
	case []float32:
		return sliceBytes(s), dtype.Float32, true
	case []float64:
		return sliceBytes(s), dtype.Float64, true
	case []int32:
		return sliceBytes(s), dtype.Int32, true
	case []int64:
		return sliceBytes(s), dtype.Int64, true
	case []bool:
		return sliceBytes(s), dtype.Bool, true
	}
	return nil, 0, false
}

// overlap reports whether a and b share memory.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	from, to := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return from < to+uintptr(len(b)) && to < from+uintptr(len(a))
}

func sliceBytes[E Element](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
