package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrUnsupported marks the one kind of failure that a fallback may answer: no kernel exists for these sizes, types or
// this GPU. The wrapping error carries the reason.
var ErrUnsupported = errors.New("no CUDA kernel")

func unsupported(op, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", op, ErrUnsupported, fmt.Sprintf(format, args...))
}

// DType is the element type of a device buffer.
type DType uint8

// The element types that kernels exist for.
const (
	BF16 DType = iota
	F16
	F32
	E4M3 // codes; their steps lie elsewhere
	E5M2
)

// String is the suffix of the kernel names.
func (t DType) String() string {
	switch t {
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	case F32:
		return "f32"
	case E4M3:
		return "e4m3"
	case E5M2:
		return "e5m2"
	}
	return fmt.Sprintf("DType(%d)", uint8(t))
}

// Size is the number of bytes of one element.
func (t DType) Size() int {
	switch t {
	case F32:
		return 4
	case E4M3, E5M2:
		return 1
	}
	return 2
}

// Pointer is a device address with the name that text shows for it.
type Pointer struct {
	Addr  uint64
	Label string
}

// At is the address n bytes further on; a nil pointer stays nil.
func (p Pointer) At(n int64) Pointer {
	if p.Addr == 0 || n == 0 {
		return p
	}
	q := Pointer{Addr: p.Addr + uint64(n)}
	if p.Label != "" {
		q.Label = fmt.Sprintf("%s+%d", p.Label, n)
	}
	return q
}

// IsNil says whether the pointer names no memory; optional arguments are left so.
func (p Pointer) IsNil() bool { return p.Addr == 0 }

func (p Pointer) String() string {
	switch {
	case p.Addr == 0:
		return "nil"
	case p.Label != "":
		return p.Label
	}
	return fmt.Sprintf("%#x", p.Addr)
}

// TensorMap describes a tensor to the copy engine: Dims from the fastest, Strides in bytes of every dim but the first.
// The driver encodes it when the launch is sent.
type TensorMap struct {
	Base    Pointer
	Type    DType
	Dims    []uint64
	Strides []uint64
	Box     []uint32
	Swizzle int // bytes: 0, 32, 64 or 128
}

func (m TensorMap) String() string {
	return fmt.Sprintf("map(%s %s dims%v strides%v box%v swizzle %d)", m.Base, m.Type, m.Dims, m.Strides, m.Box, m.Swizzle)
}

// Arg is a kernel argument: Value is a Pointer, int32, uint32, int64, uint64, float32 or TensorMap, or nil in the place of a
// TensorMap that the kernel does not read on this GPU.
type Arg struct {
	Name  string
	Value any
}

// Launch is one kernel launch as data.
type Launch struct {
	Kernel  string
	Grid    [3]int
	Block   int
	Shared  int  // dynamic shared memory of a block in bytes
	Cluster int  // blocks of a cluster along x; 0 or 1: none
	Overlap bool // programmatic dependent launch: may start before the launch in front of it has finished
	Args    []Arg
}

func (l Launch) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s grid[%d,%d,%d] block %d shared %d", l.Kernel, l.Grid[0], l.Grid[1], l.Grid[2], l.Block, l.Shared)
	if l.Cluster > 1 {
		fmt.Fprintf(&b, " cluster %d", l.Cluster)
	}
	if l.Overlap {
		b.WriteString(" overlap")
	}
	for i, a := range l.Args {
		sep := " "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s=%v", sep, a.Name, a.Value)
	}
	return b.String()
}

// check refuses what the driver would refuse with a bare number.
func (l Launch) check() error {
	for i, n := range l.Grid {
		limit := math.MaxInt32
		if i > 0 {
			limit = 65535
		}
		if n < 1 || n > limit {
			return fmt.Errorf("%s: grid %v: every side must be from 1 to %d along %c", l.Kernel, l.Grid, limit, "xyz"[i])
		}
	}
	if l.Block < 1 || l.Block > 1024 {
		return fmt.Errorf("%s: a block has 1 to 1024 threads, got %d", l.Kernel, l.Block)
	}
	return nil
}

// fits answers ErrUnsupported when a block of the GPU cannot have the shared memory.
func (l Launch) fits(gpu Target) error {
	if l.Shared <= gpu.MaxShared {
		return nil
	}
	return unsupported(l.Kernel, "it needs %d bytes of shared memory, %s gives a block %d", l.Shared, gpu.Name, gpu.MaxShared)
}

// mapSize is the size and twice the alignment of an encoded tensor map.
const mapSize = 128

// pack lays the arguments out as the kernel's parameter block: each at its natural alignment. encode writes a tensor map
// into 128 bytes.
func (l Launch) pack(encode func(dst []byte, m TensorMap) error) ([]byte, error) {
	var block []byte
	align := func(n int) {
		for len(block)%n != 0 {
			block = append(block, 0)
		}
	}
	for _, a := range l.Args {
		switch v := a.Value.(type) {
		case Pointer:
			align(8)
			block = binary.LittleEndian.AppendUint64(block, v.Addr)
		case int32:
			align(4)
			block = binary.LittleEndian.AppendUint32(block, uint32(v))
		case uint32:
			align(4)
			block = binary.LittleEndian.AppendUint32(block, v)
		case int64:
			align(8)
			block = binary.LittleEndian.AppendUint64(block, uint64(v))
		case uint64:
			align(8)
			block = binary.LittleEndian.AppendUint64(block, v)
		case float32:
			align(4)
			block = binary.LittleEndian.AppendUint32(block, math.Float32bits(v))
		case TensorMap:
			align(mapSize / 2)
			at := len(block)
			block = append(block, make([]byte, mapSize)...)
			if err := encode(block[at:], v); err != nil {
				return nil, fmt.Errorf("%s: argument %s: %w", l.Kernel, a.Name, err)
			}
		case nil:
			align(mapSize / 2)
			block = append(block, make([]byte, mapSize)...)
		default:
			return nil, fmt.Errorf("%s: argument %s has type %T, which no kernel takes", l.Kernel, a.Name, a.Value)
		}
	}
	return block, nil
}

// Target is what launch code may know of the GPU: it decides which kernel and how many blocks.
type Target struct {
	Name      string
	Compute   int  // 90 for compute capability 9.0
	SMs       int  // multiprocessors
	MaxShared int  // dynamic shared memory that a block can be given, in bytes
	SharedSM  int  // shared memory of a multiprocessor, in bytes
	Portable  bool // keep to the portable kernels although the GPU has better ones
}

// Hopper says whether the kernels of sm_90a (wgmma, tensor maps) may run.
func (t Target) Hopper() bool { return t.Compute == 90 && !t.Portable }

// Queue takes work in order. Stream and Recorder implement it.
type Queue interface {
	Target() Target
	Launch(Launch) error
	Fill(dst Pointer, value byte, n int64) error // n bytes
	Copy(dst, src Pointer, n int64) error        // n bytes, both on the device
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// bit is a condition as kernels take it.
func bit(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func aligned16(op string, named ...Arg) error {
	for _, a := range named {
		if p := a.Value.(Pointer); p.Addr%16 != 0 {
			return fmt.Errorf("%s: %s must be aligned to 16 bytes, got address %#x", op, a.Name, p.Addr)
		}
	}
	return nil
}
