package cuda

import (
	"unsafe"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Between float32 on the host and the float types of the device.

func floatBytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}

func as[T any](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(t)))
}

// narrow writes float32 values in the given type; dst may be longer than they need.
func narrow(dst, src []byte, dt DType) {
	n := len(src) / 4
	switch dt {
	case BF16:
		dtype.FromFloat32(as[dtype.BF16](dst[:2*n]), as[float32](src))
	case F16:
		dtype.FromFloat32(as[dtype.F16](dst[:2*n]), as[float32](src))
	default:
		copy(dst, src)
	}
}

// widen writes values of the given type as float32.
func widen(dst, src []byte, dt DType) {
	switch dt {
	case BF16:
		dtype.ToFloat32(as[float32](dst), as[dtype.BF16](src))
	case F16:
		dtype.ToFloat32(as[float32](dst), as[dtype.F16](src))
	default:
		copy(dst, src)
	}
}

// converted is a float value in the given type: its own memory where it has that type already.
func converted(t graph.Tensor, dt DType) []byte {
	have := map[dtype.DType]DType{dtype.Float32: F32, dtype.BFloat16: BF16, dtype.Float16: F16, dtype.Float8E4M3: E4M3, dtype.Float8E5M2: E5M2}[t.DType]
	if have == dt {
		return t.Bytes()
	}
	wide := t.Bytes()
	if have != F32 {
		wide = make([]byte, 4*t.Size())
		widen(wide, t.Bytes(), have)
	}
	out := make([]byte, dt.Size()*t.Size())
	narrow(out, wide, dt)
	return out
}

// weightSize is the number of values of a weight, which may lie in blocks of 4 or 8 bits.
func weightSize(p *graph.Param) int {
	c := ops.CodingOf(p)
	if c == 0 {
		return p.Type.Size()
	}
	return p.Type.Size() / c.Bytes(c.Block()) * c.Block()
}

// weightBytes are the values of a weight in the given type.
func weightBytes(p *graph.Param, dt DType) []byte {
	c := ops.CodingOf(p)
	if c == 0 {
		return converted(p.Tensor(), dt)
	}
	wide, n := make([]float32, weightSize(p)), p.Type.Shape[0]
	c.Widen(wide, p.Tensor().Bytes(), ops.RowsOf(p), n, len(wide)/n)
	out := make([]byte, dt.Size()*len(wide))
	narrow(out, floatBytes(wide), dt)
	return out
}

// withZeros is n rows at a stride in bytes, with zeros behind each.
func withZeros(mem []byte, n, stride int) []byte {
	long, row := make([]byte, n*stride), len(mem)/max(n, 1)
	for i := range n {
		copy(long[i*stride:], mem[i*row:][:row])
	}
	return long
}

// floatWeight says that a parameter holds numbers that weightBytes gives.
func floatWeight(p *graph.Param) bool {
	t := p.Type.DType
	return t == dtype.Float32 || t == dtype.BFloat16 || t == dtype.Float16 || ops.CodingOf(p) != 0
}
