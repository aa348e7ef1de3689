// The two 16-bit floats.

package dtype

import "math"

// BF16 is bfloat16: 1 sign, 8 exponent (bias 127) and 7 mantissa bits, the
// upper half of a float32.
//
//	value = (-1)^s 2^(e-127) (1 + m/128)   0 < e < 255
//	value = (-1)^s 2^-126 (m/128)          e = 0
//	infinity (m = 0) or NaN                e = 255
type BF16 uint16

// F16 is IEEE 754 binary16: 1 sign, 5 exponent (bias 15) and 10 mantissa bits.
//
//	value = (-1)^s 2^(e-15) (1 + m/1024)   0 < e < 31
//	value = (-1)^s 2^-14 (m/1024)          e = 0
//	infinity (m = 0) or NaN                e = 31
type F16 uint16

// MaxBF16 and MaxF16 are the largest finite values: (2 - 2^-7) 2^127 and
// (2 - 2^-10) 2^15.
const (
	MaxBF16 = (2 - 1.0/128) * (1 << 127)
	MaxF16  = 65504
)

const (
	signBit     = 1 << 31
	infBits     = 0x7F800000 // float32 infinity; above it lie the NaNs
	quietBit32  = 1 << 22
	f16Overflow = (127 + 16) << 23 // 2^16: this and above is infinity or NaN in F16
	f16MinBits  = (127 - 14) << 23 // 2^-14, the smallest normal F16
	f16Rebias   = (127 - 15) << 10 // difference of the biases, in F16's exponent field
	f16Widen    = 1 << (127 - 15)  // 2^112
	f16SubUnit  = 1.0 / (1 << 1)   // a float32 whose unit in the last place is 2^-24
	f16SubBits  = (127 - 1) << 23  // its bit pattern
	f16ExpMask  = 0x7C00           // exponent field, and the pattern of infinity
	f16QuietBit = 1 << 9           // mantissa's top bit
)

// ToBF16 rounds x to the nearest BF16, ties to even; a magnitude of
// (2 - 2^-8) 2^127 or more becomes infinity. A NaN keeps its sign and the top
// of its payload and becomes quiet.
func ToBF16(x float32) BF16 {
	u := math.Float32bits(x)
	if u&^signBit > infBits {
		return BF16((u | quietBit32) >> 16)
	}
	return BF16((u + 0x7FFF + u>>16&1) >> 16)
}

// Float32 is the exact value of x.
func (x BF16) Float32() float32 { return math.Float32frombits(uint32(x) << 16) }

// IsNaN reports whether x is not a number.
func (x BF16) IsNaN() bool { return x&0x7FFF > 0x7F80 }

// ToF16 rounds x to the nearest F16, ties to even; a magnitude of 65520 or
// more becomes infinity. A NaN keeps its sign and the top of its payload and
// becomes quiet.
func ToF16(x float32) F16 {
	u := math.Float32bits(x)
	s := F16(u >> 16 & 0x8000)
	u &^= signBit
	switch {
	case u >= f16Overflow:
		if u > infBits {
			return s | f16ExpMask | f16QuietBit | F16(u>>13&0x3FF)
		}
		return s | f16ExpMask
	case u < f16MinBits:
		// The sum's last mantissa bit counts 2^-24, so the addition rounds
		// to a multiple of the smallest subnormal.
		return s | F16(math.Float32bits(math.Float32frombits(u)+f16SubUnit)-f16SubBits)
	}
	// A carry out of the mantissa raises the exponent, up to infinity.
	return s | F16((u+0xFFF+u>>13&1)>>13-f16Rebias)
}

// Float32 is the exact value of x.
func (x F16) Float32() float32 {
	s := uint32(x&0x8000) << 16
	u := uint32(x&0x7FFF) << 13
	if x&f16ExpMask == f16ExpMask {
		return math.Float32frombits(s | infBits | u)
	}
	// With the mantissa in place the exponent is 112 too small, for normal
	// and subnormal values alike.
	return math.Float32frombits(s | math.Float32bits(math.Float32frombits(u)*f16Widen))
}

// IsNaN reports whether x is not a number.
func (x F16) IsNaN() bool { return x&0x7FFF > f16ExpMask }
