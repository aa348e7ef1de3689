// The typed values of a GGUF header.

package checkpoint

import (
	"encoding/binary"
	"math"
)

// The value types by number.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ggufSizes are the bytes of each type, the least where it varies.
var ggufSizes = [...]int64{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}

// ggufMaxDepth bounds arrays of arrays.
const ggufMaxDepth = 4

// value reads a value of the type kind; depth counts the arrays around it.
func (r *ggufReader) value(kind uint32, depth int) any {
	if r.err != nil {
		return nil
	}
	switch kind {
	case ggufUint8:
		return one(r, kind, decodeUint8)
	case ggufInt8:
		return one(r, kind, decodeInt8)
	case ggufUint16:
		return one(r, kind, binary.LittleEndian.Uint16)
	case ggufInt16:
		return one(r, kind, decodeInt16)
	case ggufUint32:
		return one(r, kind, binary.LittleEndian.Uint32)
	case ggufInt32:
		return one(r, kind, decodeInt32)
	case ggufFloat32:
		return one(r, kind, decodeFloat32)
	case ggufBool:
		return one(r, kind, r.decodeBool)
	case ggufString:
		return r.string(math.MaxInt64)
	case ggufArray:
		return r.array(depth)
	case ggufUint64:
		return one(r, kind, binary.LittleEndian.Uint64)
	case ggufInt64:
		return one(r, kind, decodeInt64)
	case ggufFloat64:
		return one(r, kind, decodeFloat64)
	}
	r.fail("value type %d is unknown", kind)
	return nil
}

// array reads the element type, the length and the elements.
func (r *ggufReader) array(depth int) any {
	kind, n := r.uint32(), r.uint64()
	if r.err != nil {
		return nil
	}
	if kind >= uint32(len(ggufSizes)) {
		r.fail("array of value type %d, which is unknown", kind)
		return nil
	}
	if depth == ggufMaxDepth {
		r.fail("arrays are nested more than %d deep", ggufMaxDepth)
		return nil
	}
	if n > uint64(r.rest()/ggufSizes[kind]) {
		r.fail("an array of %d elements at %d is longer than the file, which has %d bytes", n, r.off, r.src.size)
		return nil
	}
	switch count := int(n); kind {
	case ggufUint8:
		return many(r, kind, count, decodeUint8)
	case ggufInt8:
		return many(r, kind, count, decodeInt8)
	case ggufUint16:
		return many(r, kind, count, binary.LittleEndian.Uint16)
	case ggufInt16:
		return many(r, kind, count, decodeInt16)
	case ggufUint32:
		return many(r, kind, count, binary.LittleEndian.Uint32)
	case ggufInt32:
		return many(r, kind, count, decodeInt32)
	case ggufFloat32:
		return many(r, kind, count, decodeFloat32)
	case ggufBool:
		return many(r, kind, count, r.decodeBool)
	case ggufUint64:
		return many(r, kind, count, binary.LittleEndian.Uint64)
	case ggufInt64:
		return many(r, kind, count, decodeInt64)
	case ggufFloat64:
		return many(r, kind, count, decodeFloat64)
	case ggufString:
		if r.spend(stringMemory * count); r.err != nil {
			return nil
		}
		out := make([]string, 0, count)
		for range count {
			out = append(out, r.string(math.MaxInt64))
			if r.err != nil {
				return nil
			}
		}
		return out
	default:
		var out []any
		for range count {
			out = append(out, r.array(depth+1))
			r.spend(arrayMemory)
			if r.err != nil {
				return nil
			}
		}
		return out
	}
}

func one[T any](r *ggufReader, kind uint32, decode func([]byte) T) any {
	b := r.bytes(int(ggufSizes[kind]))
	if b == nil {
		return nil
	}
	return decode(b)
}

// many reads count elements; the length was checked against the file.
func many[T any](r *ggufReader, kind uint32, count int, decode func([]byte) T) any {
	if r.spend(int(ggufSizes[kind]) * count); r.err != nil {
		return nil
	}
	out := make([]T, count)
	for i := range out {
		b := r.bytes(int(ggufSizes[kind]))
		if b == nil {
			return nil
		}
		out[i] = decode(b)
	}
	return out
}

func (r *ggufReader) decodeBool(b []byte) bool {
	if b[0] > 1 {
		r.fail("a bool is 0 or 1, got %d", b[0])
	}
	return b[0] == 1
}

func decodeUint8(b []byte) uint8     { return b[0] }
func decodeInt8(b []byte) int8       { return int8(b[0]) }
func decodeInt16(b []byte) int16     { return int16(binary.LittleEndian.Uint16(b)) }
func decodeInt32(b []byte) int32     { return int32(binary.LittleEndian.Uint32(b)) }
func decodeInt64(b []byte) int64     { return int64(binary.LittleEndian.Uint64(b)) }
func decodeFloat32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
func decodeFloat64(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }
