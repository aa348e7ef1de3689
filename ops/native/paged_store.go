// How keys and values are stored in pages: the one place that reads and writes
// them.

package native

import (
	"math"
	"unsafe"

	"github.com/x448/float16"
)

// NarrowPool is a pool of keys or values in narrower numbers, with the shape of
// a PagedArgs pool and in its place: bf16 (the upper half of a float32), f16
// (IEEE binary16), or E4M3, where a value of head h is Steps[h] times that of its
// code.
type NarrowPool struct {
	BF16  []uint16
	F16   []uint16
	E4M3  []byte
	Steps []float32 // [Hkv], of E4M3
}

// holds says that this is the pool, and not one of full numbers.
func (p *NarrowPool) holds() bool { return p.BF16 != nil || p.F16 != nil || p.E4M3 != nil }

// AppendNarrowPages is AppendPages for a narrow pool: row t of rows
// [T,heads,width] is rounded to nearest (f16 and E4M3 saturate) into slot slots[t].
func AppendNarrowPages[T Float](pool NarrowPool, rows []T, slots []int32, heads, width int) {
	s := kvRows[T]{narrow: pool, hkv: heads, width: width}
	for t, slot := range slots {
		if slot >= 0 {
			s.write(int(slot), rows[t*heads*width:])
		}
	}
}

// kvRows are stored keys or values: rows of width numbers for each head of each
// token.
type kvRows[T Float] struct {
	full       []T
	narrow     NarrowPool
	hkv, width int
}

// read copies the row of head hk of a token.
func (s *kvRows[T]) read(to []T, token, hk int) {
	at := (token*s.hkv + hk) * s.width
	switch {
	case s.narrow.BF16 != nil:
		widen16(to, s.narrow.BF16[at:at+len(to)], CodedBF16)
	case s.narrow.F16 != nil:
		widen16(to, s.narrow.F16[at:at+len(to)], CodedF16)
	case s.narrow.E4M3 != nil:
		fp8DecodeSlice(to, s.narrow.E4M3[at:at+len(to)], E4M3)
		scale(to, T(s.narrow.Steps[hk]))
	default:
		copy(to, s.full[at:at+len(to)])
	}
}

// write stores the rows x [hkv,width] of a token.
func (s *kvRows[T]) write(token int, x []T) {
	n := s.hkv * s.width
	x = x[:n]
	switch {
	case s.narrow.BF16 != nil:
		to := s.narrow.BF16[token*n:][:n]
		full := 0
		if inAssembly[T]() && gemmKernel >= avx512Kernel {
			if full = n &^ 15; full > 0 {
				storeBF16(&to[0], f32p(x), full)
			}
		}
		for i := full; i < n; i++ {
			to[i] = bf16Of(float32(x[i]))
		}
	case s.narrow.F16 != nil:
		to := s.narrow.F16[token*n:][:n]
		for i, v := range x {
			to[i] = f16Of(float32(v))
		}
	case s.narrow.E4M3 != nil:
		to := s.narrow.E4M3[token*n:][:n]
		for h := range s.hkv {
			a, b := h*s.width, (h+1)*s.width
			fp8Encode(to[a:b], x[a:b], s.narrow.Steps[h], E4M3)
		}
	default:
		copy(s.full[token*n:][:n], x)
	}
}

// widen16 widens as many 16-bit floats as x has.
func widen16[T Float](y []T, x []uint16, c Coding) {
	y = y[:len(x)]
	full := 0
	if inAssembly[T]() {
		step, of := codedSteps(c)
		if full = len(x) / step * step; full > 0 {
			of(f32p(y), (*byte)(unsafe.Pointer(&x[0])), full)
		}
	}
	for i := full; i < len(x); i++ {
		if c == CodedF16 {
			y[i] = T(fromF16(x[i]))
		} else {
			y[i] = T(math.Float32frombits(uint32(x[i]) << 16))
		}
	}
}

// maxF16 is the largest finite f16.
const maxF16 = 65504

// f16Of rounds to the nearest f16, ties to even, and saturates; NaN stays NaN.
func f16Of(x float32) uint16 {
	return float16.Fromfloat32(max(-maxF16, min(maxF16, x))).Bits()
}

// bf16Of rounds to the nearest bf16, ties to even; NaN stays NaN.
func bf16Of(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7FFF + u>>16&1) >> 16)
}
