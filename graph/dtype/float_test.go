// Exhaustive tests of the narrow floats against oracles written from the
// definition: decoding with math/big and Ldexp, rounding by scaling to
// integers, and on every boundary by exact comparison in math/big.

package dtype

import (
	"fmt"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// format describes a narrow float to the oracles.
type format struct {
	name       string
	exp, man   int     // field widths
	max        float64 // largest finite value
	saturating bool
	finiteOnly bool // E4M3: the top exponent holds numbers, its last code is NaN
	encode     func(float32) int
	decode     func(int) float32
}

var formats = []format{
	{"bf16", 8, 7, MaxBF16, false, false, func(x float32) int { return int(ToBF16(x)) }, func(c int) float32 { return BF16(c).Float32() }},
	{"f16", 5, 10, MaxF16, false, false, func(x float32) int { return int(ToF16(x)) }, func(c int) float32 { return F16(c).Float32() }},
	{"e4m3", 4, 3, MaxE4M3, true, true, func(x float32) int { return int(ToE4M3(x)) }, func(c int) float32 { return E4M3(c).Float32() }},
	{"e5m2", 5, 2, MaxE5M2, true, false, func(x float32) int { return int(ToE5M2(x)) }, func(c int) float32 { return E5M2(c).Float32() }},
}

func (f format) codes() int { return 1 << (1 + f.exp + f.man) }
func (f format) bias() int  { return 1<<(f.exp-1) - 1 }
func (f format) emin() int  { return 1 - f.bias() }

// value decodes a code by the formula of the format.
func (f format) value(code int) float64 {
	s, e, m := code>>(f.exp+f.man), code>>f.man&(1<<f.exp-1), code&(1<<f.man-1)
	top := 1<<f.exp - 1
	v := math.Ldexp(float64(m)/float64(int(1)<<f.man), f.emin())
	switch {
	case e == top && f.finiteOnly && m == 1<<f.man-1:
		v = math.NaN()
	case e == top && !f.finiteOnly && m > 0:
		v = math.NaN()
	case e == top && !f.finiteOnly:
		v = math.Inf(1)
	case e > 0:
		v = math.Ldexp(1+float64(m)/float64(int(1)<<f.man), e-f.bias())
	}
	if s == 1 {
		return math.Copysign(v, -1)
	}
	return v
}

// round is the value x is rounded to: the exponent gives the spacing, the
// quotient by it is rounded to an even integer in float64, which is exact.
func (f format) round(x float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	if !math.IsInf(x, 0) && x != 0 {
		_, e := math.Frexp(x) // |x| in [2^(e-1), 2^e)
		ulp := max(e-1, f.emin()) - f.man
		x = math.Ldexp(math.RoundToEven(math.Ldexp(x, -ulp)), ulp)
	}
	if math.Abs(x) > f.max {
		if f.saturating {
			return math.Copysign(f.max, x)
		}
		return math.Copysign(math.Inf(1), x)
	}
	return x
}

// check compares the encoding of x with the oracle, the sign of 0 included.
func (f format) check(t *testing.T, u uint32) {
	x := math.Float32frombits(u)
	want := f.round(float64(x))
	got := f.value(f.encode(x))
	if math.Float64bits(got) == math.Float64bits(want) {
		return
	}
	if math.IsNaN(got) && math.IsNaN(want) && math.Signbit(got) == math.Signbit(want) {
		return
	}
	require.FailNow(t, "wrong rounding", "%s: %v (bits %08X) encodes as %v, want %v", f.name, x, u, got, want)
}

func TestDecodeEveryCode(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			for c := range f.codes() {
				got, want := float64(f.decode(c)), f.value(c)
				if math.IsNaN(want) {
					require.True(t, math.IsNaN(got), "%X", c)
					continue
				}
				require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%X: %v, want %v", c, got, want)
			}
		})
	}
}

func TestIsNaN(t *testing.T) {
	for c := range 65536 {
		require.Equal(t, math.IsNaN(float64(BF16(c).Float32())), BF16(c).IsNaN())
		require.Equal(t, math.IsNaN(float64(F16(c).Float32())), F16(c).IsNaN())
	}
	for c := range 256 {
		require.Equal(t, math.IsNaN(float64(E4M3(c).Float32())), E4M3(c).IsNaN())
		require.Equal(t, math.IsNaN(float64(E5M2(c).Float32())), E5M2(c).IsNaN())
	}
}

// TestRoundTripEveryCode: a code decodes and encodes to itself. Two kinds
// cannot: the infinities of E5M2, which saturate, and signalling NaN of the
// 16-bit types, which become quiet.
func TestRoundTripEveryCode(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			quiet := 0
			if !f.saturating {
				quiet = 1 << (f.man - 1)
			}
			for c := range f.codes() {
				want := c
				switch v := f.value(c); {
				case math.IsInf(v, 0) && f.saturating:
					want--
				case math.IsNaN(v):
					want |= quiet
				}
				require.Equal(t, want, f.encode(f.decode(c)), "%X", c)
			}
		})
	}
}

func TestF16AgainstX448(t *testing.T) {
	for c := range 65536 {
		got, want := F16(c).Float32(), float16.Frombits(uint16(c)).Float32()
		if math.IsNaN(float64(want)) {
			require.True(t, math.IsNaN(float64(got)))
			continue
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(got))
	}
	for u := uint64(0); u < 1<<32; u += 4099 {
		x := math.Float32frombits(uint32(u))
		require.Equal(t, float16.Fromfloat32(x).Bits(), uint16(ToF16(x)), "%08X", u)
	}
}

// TestEncodeAllUpperBits walks float32 through all values of its upper 24
// bits, which hold every tie of every format, and the lowest byte through
// values below, at and above them.
func TestEncodeAllUpperBits(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			low := [...]uint32{0, 1, 0x7F, 0x80, 0x81, 0xFF}
			step := uint32(1)
			if testing.Short() {
				step = 61
			}
			for hi := uint32(0); hi < 1<<24; hi += step {
				f.check(t, hi<<8|low[hi%uint32(len(low))])
			}
		})
	}
}

// TestEncodeEveryBoundary compares with exact arithmetic at every code, at
// every midpoint of two neighbouring codes, and one float32 to either side.
func TestEncodeEveryBoundary(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			half := f.codes() / 2
			for c := 0; c < half-1; c++ {
				lo, hi := f.value(c), f.value(c+1)
				if math.IsNaN(lo) || math.IsNaN(hi) || math.IsInf(hi, 0) || math.IsInf(lo, 0) {
					continue
				}
				mid := new(big.Float).SetPrec(200).Add(big.NewFloat(lo), big.NewFloat(hi))
				mid.Quo(mid, big.NewFloat(2))
				m, acc := mid.Float32()
				require.Equal(t, big.Exact, acc)
				for _, x := range []float32{float32(lo), math.Nextafter32(m, 0), m, math.Nextafter32(m, math.MaxFloat32), float32(hi)} {
					want := c + 1
					switch new(big.Float).SetFloat64(float64(x)).Cmp(mid) {
					case -1:
						want = c
					case 0:
						want = c + c&1
					}
					require.Equal(t, want, f.encode(x), "%s: %v between %v and %v", f.name, x, lo, hi)
					require.Equal(t, want|half, f.encode(-x), "%s: %v", f.name, -x)
				}
			}
		})
	}
}

func TestOverflow(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	require.Equal(t, F16(0x7BFF), ToF16(math.Nextafter32(65520, 0)))
	require.Equal(t, F16(0x7C00), ToF16(65520)) // a tie: the even neighbour is infinity
	require.Equal(t, F16(0xFC00), ToF16(-1e9))
	require.Equal(t, F16(0x7C00), ToF16(inf))
	require.Equal(t, BF16(0x7F80), ToBF16(math.MaxFloat32))
	require.Equal(t, BF16(0xFF80), ToBF16(-inf))
	require.Equal(t, E5M2(0x7B), ToE5M2(61440)) // the midpoint of 57344 and 65536
	require.Equal(t, E5M2(0x7B), ToE5M2(inf))
	require.Equal(t, E5M2(0xFB), ToE5M2(-math.MaxFloat32))
	for _, low := range []uint32{1, 1 << 12, 1 << 21, 1 << 22} { // payloads that a cut would lose
		for _, sign := range []uint32{0, signBit} {
			x := math.Float32frombits(sign | infBits | low)
			require.True(t, ToBF16(x).IsNaN())
			require.True(t, ToF16(x).IsNaN())
			require.True(t, ToE4M3(x).IsNaN())
			require.True(t, ToE5M2(x).IsNaN())
		}
	}
	require.True(t, ToE5M2(nan).IsNaN())
}

func TestF01_SaturatingCast(t *testing.T) {
	inf := math.Inf(1)
	cases := []struct {
		in   float64
		want E4M3
	}{
		{448, 0x7E}, {464, 0x7E}, {465, 0x7E}, {1000, 0x7E}, {inf, 0x7E}, {-1000, 0xFE},
		{math.Exp2(-9), 0x01}, {math.Exp2(-10), 0x00}, {1.0625, 0x38}, {-inf, 0xFE},
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c.in), func(t *testing.T) {
			require.Equal(t, c.want, ToE4M3(float32(c.in)))
		})
	}
	require.True(t, ToE4M3(float32(math.NaN())).IsNaN())
	for c := range 256 {
		require.Equal(t, E4M3(c), ToE4M3(E4M3(c).Float32()))
		if v := E5M2(c).Float32(); !math.IsInf(float64(v), 0) {
			require.Equal(t, E5M2(c), ToE5M2(v))
		}
	}
}
