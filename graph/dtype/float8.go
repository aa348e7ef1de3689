// The two 8-bit floats: decoding by table, encoding in bits.

package dtype

import "math"

// E4M3 is an 8-bit float without infinity: 1 sign, 4 exponent (bias 7) and
// 3 mantissa bits, largest value 448. Codes 0x7F and 0xFF are NaN.
//
//	value = (-1)^s 2^(e-7) (1 + m/8)   e > 0
//	value = (-1)^s 2^-6 (m/8)          e = 0
//
// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
type E4M3 uint8

// E5M2 is an 8-bit float with 1 sign, 5 exponent (bias 15) and 2 mantissa
// bits, largest finite value 57344; it is the upper half of an F16. Codes 0x7C
// and 0xFC are infinite, those above (sign aside) NaN.
//
//	value = (-1)^s 2^(e-15) (1 + m/4)   0 < e < 31
//	value = (-1)^s 2^-14 (m/4)          e = 0
type E5M2 uint8

// MaxE4M3 and MaxE5M2 are the largest finite values.
const (
	MaxE4M3 = 448
	MaxE5M2 = 57344
)

const (
	e4m3MaxBits = 0x43E00000       // float32 448
	e4m3MinBits = (127 - 6) << 23  // 2^-6, the smallest normal
	e4m3SubUnit = 1 << (23 - 9)    // a float32 whose unit in the last place is 2^-9
	e4m3SubBits = (127 + 14) << 23 // its bit pattern
	e4m3Rebias  = (127 - 7) << 3   // difference of the biases, in the exponent field
	e5m2MaxBits = 0x47600000       // float32 57344
	e5m2MinBits = (127 - 14) << 23 // 2^-14, the smallest normal
	e5m2SubUnit = 1 << (23 - 16)   // a float32 whose unit in the last place is 2^-16
	e5m2SubBits = (127 + 7) << 23  // its bit pattern
	e5m2Rebias  = (127 - 15) << 2  // difference of the biases, in the exponent field
)

// ToE4M3 rounds x to the nearest E4M3, ties to even. Magnitudes above 448,
// infinity among them, become 448; a NaN keeps its sign.
func ToE4M3(x float32) E4M3 {
	u := math.Float32bits(x)
	s := E4M3(u >> 24 & 0x80)
	u &^= signBit
	switch {
	case u >= e4m3MaxBits:
		if u > infBits {
			return s | 0x7F
		}
		return s | 0x7E
	case u < e4m3MinBits:
		// The sum's last mantissa bit counts 2^-9, so the addition rounds to
		// a multiple of the smallest subnormal.
		return s | E4M3(math.Float32bits(math.Float32frombits(u)+e4m3SubUnit)-e4m3SubBits)
	}
	return s | E4M3((u+0x7FFFF+u>>20&1)>>20-e4m3Rebias)
}

// ToE5M2 rounds x to the nearest E5M2, ties to even. Magnitudes above 57344,
// infinity among them, become 57344; a NaN keeps its sign and the top of its
// payload.
func ToE5M2(x float32) E5M2 {
	u := math.Float32bits(x)
	s := E5M2(u >> 24 & 0x80)
	u &^= signBit
	switch {
	case u >= e5m2MaxBits:
		switch {
		case u <= infBits:
			return s | 0x7B
		case u>>21&3 == 0: // the payload is all in the lower bits
			return s | 0x7E
		}
		return s | 0x7C | E5M2(u>>21&3)
	case u < e5m2MinBits:
		return s | E5M2(math.Float32bits(math.Float32frombits(u)+e5m2SubUnit)-e5m2SubBits)
	}
	return s | E5M2((u+0xFFFFF+u>>21&1)>>21-e5m2Rebias)
}

// Float32 is the exact value of x.
func (x E4M3) Float32() float32 { return e4m3Values[x] }

// Float32 is the exact value of x.
func (x E5M2) Float32() float32 { return e5m2Values[x] }

// IsNaN reports whether x is not a number.
func (x E4M3) IsNaN() bool { return x&0x7F == 0x7F }

// IsNaN reports whether x is not a number.
func (x E5M2) IsNaN() bool { return x&0x7F > 0x7C }

var (
	e4m3Values = e4m3Table()
	e5m2Values = e5m2Table()
)

func e4m3Table() (t [256]float32) {
	for c := range t {
		s, e, m := uint32(c)>>7<<31, c>>3&15, c&7
		switch {
		case c&0x7F == 0x7F:
			t[c] = math.Float32frombits(s | infBits | quietBit32)
		case e == 0:
			t[c] = math.Float32frombits(s | math.Float32bits(float32(m)/512))
		default:
			t[c] = math.Float32frombits(s | uint32(e+127-7)<<23 | uint32(m)<<20)
		}
	}
	return t
}

func e5m2Table() (t [256]float32) {
	for c := range t {
		t[c] = F16(c << 8).Float32()
	}
	return t
}
