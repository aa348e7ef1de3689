package optest

import (
	"math"
	"math/big"
	"sort"
)

// Format is a small binary number format: a sign bit, Exponent bits and
// Mantissa bits, with subnormals.
type Format struct {
	Name               string
	Exponent, Mantissa int
	Finite             bool // no infinity: only the all-ones code is NaN (E4M3)
	positive           []float64
}

// The formats of stored tensors. Their unit roundoffs are the Precision values
// of like name.
var (
	E4M3 = newFormat("E4M3", 4, 3, true)
	E5M2 = newFormat("E5M2", 5, 2, false)
	BF16 = newFormat("bf16", 8, 7, false)
	F16  = newFormat("f16", 5, 10, false)
)

func newFormat(name string, exponent, mantissa int, finite bool) *Format {
	f := &Format{Name: name, Exponent: exponent, Mantissa: mantissa, Finite: finite}
	for code := 0; ; code++ {
		v := f.Decode(uint16(code))
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return f
		}
		f.positive = append(f.positive, v)
	}
}

// Max is the largest finite value.
func (f *Format) Max() float64 { return f.positive[len(f.positive)-1] }

func (f *Format) sign() uint16 { return 1 << (f.Exponent + f.Mantissa) }

// Decode returns the value of a code, exactly.
func (f *Format) Decode(code uint16) float64 {
	ones := 1<<f.Exponent - 1
	exponent := int(code>>f.Mantissa) & ones
	mantissa := int(code) & (1<<f.Mantissa - 1)
	bias := ones / 2
	sign := 1.0
	if code&f.sign() != 0 {
		sign = -1
	}
	switch {
	case exponent == 0:
		return sign * math.Ldexp(float64(mantissa), 1-bias-f.Mantissa)
	case exponent == ones && f.Finite && mantissa == 1<<f.Mantissa-1:
		return math.NaN()
	case exponent == ones && !f.Finite && mantissa == 0:
		return sign * math.Inf(1)
	case exponent == ones && !f.Finite:
		return math.NaN()
	}
	return sign * math.Ldexp(float64(1<<f.Mantissa+mantissa), exponent-bias-f.Mantissa)
}

// IsNaN tells whether a code is one of the format's NaNs.
func (f *Format) IsNaN(code uint16) bool { return math.IsNaN(f.Decode(code)) }

// Encode returns the code nearest to x among all of them, of two equally near
// ones the even one, measured without rounding. Beyond the largest finite value
// it saturates; so does an infinity. NaN gives a NaN, -0 and values that round
// to it keep their sign.
func (f *Format) Encode(x float64) uint16 { return f.encode(x, true) }

// EncodeIEEE is Encode with the overflow of IEEE 754: what lies at or beyond
// half a step past the largest finite value becomes an infinity. It is for the
// formats that have one.
func (f *Format) EncodeIEEE(x float64) uint16 { return f.encode(x, false) }

func (f *Format) encode(x float64, saturate bool) uint16 {
	var sign uint16
	if math.Signbit(x) {
		sign = f.sign()
	}
	a := math.Abs(x)
	last := len(f.positive) - 1
	if math.IsNaN(x) {
		return sign | (f.sign() - 1)
	}
	above := sort.SearchFloat64s(f.positive, a) // first code whose value is >= a
	if above > last {
		// One step further lies where the next value would be without a limit.
		next := 2*f.Max() - f.positive[last-1]
		if saturate || nearer(a, f.Max(), next) {
			return sign | uint16(last)
		}
		return sign | uint16(last+1)
	}
	if above == 0 || f.positive[above] == a {
		return sign | uint16(above)
	}
	low, high := f.positive[above-1], f.positive[above]
	switch {
	case nearer(a, low, high):
		return sign | uint16(above-1)
	case nearer(a, high, low):
		return sign | uint16(above)
	case above%2 == 0:
		return sign | uint16(above)
	}
	return sign | uint16(above-1)
}

// nearer tells whether a is strictly nearer to p than to q. 2200 bits hold the
// difference of any two float64 values exactly.
func nearer(a, p, q float64) bool {
	if math.IsInf(a, 0) {
		return false
	}
	distance := func(b float64) *big.Float {
		d := new(big.Float).SetPrec(2200)
		return d.Abs(d.Sub(big.NewFloat(a), big.NewFloat(b)))
	}
	return distance(p).Cmp(distance(q)) < 0
}

// Round returns x with every element replaced by the value of its code.
func (f *Format) Round(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f.Decode(f.Encode(v))
	}
	return y
}
