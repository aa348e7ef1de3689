// Stored elements to float32.

package checkpoint

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/seafan/seafan/graph/dtype"
)

// widen decodes p, whole elements or blocks, into dst. It returns the index
// of the first element that has no float32 value, -1 if there is none.
func (t *Tensor) widen(dst []float32, p []byte) int {
	if t.coding != Plain {
		decodeBlocks(t.coding, dst, p)
		return -1
	}
	return widenElements(dst, p, t.dtype)
}

func widenElements(dst []float32, p []byte, d dtype.DType) int {
	le := binary.LittleEndian
	switch d {
	case dtype.Float64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(le.Uint64(p[8*i:])))
		}
	case dtype.Float32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(p[4*i:]))
		}
	case dtype.Float16:
		for i := range dst {
			dst[i] = dtype.F16(le.Uint16(p[2*i:])).Float32()
		}
	case dtype.BFloat16:
		for i := range dst {
			dst[i] = dtype.BF16(le.Uint16(p[2*i:])).Float32()
		}
	case dtype.Float8E4M3:
		for i := range dst {
			dst[i] = dtype.E4M3(p[i]).Float32()
		}
	case dtype.Float8E5M2:
		for i := range dst {
			dst[i] = dtype.E5M2(p[i]).Float32()
		}
	case dtype.Int64:
		for i := range dst {
			v := int64(le.Uint64(p[8*i:]))
			dst[i] = float32(v)
			if !exactInt(v) {
				return i
			}
		}
	case dtype.Int32:
		for i := range dst {
			v := int32(le.Uint32(p[4*i:]))
			dst[i] = float32(v)
			if !exactInt(int64(v)) {
				return i
			}
		}
	case dtype.Int16:
		for i := range dst {
			dst[i] = float32(int16(le.Uint16(p[2*i:])))
		}
	case dtype.Int8:
		for i := range dst {
			dst[i] = float32(int8(p[i]))
		}
	case dtype.UInt64:
		for i := range dst {
			v := le.Uint64(p[8*i:])
			dst[i] = float32(v)
			if !exactUint(v) {
				return i
			}
		}
	case dtype.UInt32:
		for i := range dst {
			v := le.Uint32(p[4*i:])
			dst[i] = float32(v)
			if !exactUint(uint64(v)) {
				return i
			}
		}
	case dtype.UInt16:
		for i := range dst {
			dst[i] = float32(le.Uint16(p[2*i:]))
		}
	case dtype.UInt8:
		for i := range dst {
			dst[i] = float32(p[i])
		}
	case dtype.Bool:
		for i := range dst {
			dst[i] = 0
			if p[i] != 0 {
				dst[i] = 1
			}
		}
	}
	return -1
}

// exactUint reports whether v fits the 24 bits of a float32's significand.
func exactUint(v uint64) bool {
	return v == 0 || v>>bits.TrailingZeros64(v) < 1<<24
}

func exactInt(v int64) bool {
	if v < 0 {
		return exactUint(-uint64(v))
	}
	return exactUint(uint64(v))
}
