package optest

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestF01_E4M3Casts(t *testing.T) {
	for _, c := range []struct {
		x    float64
		code uint16
	}{
		{448, 0x7E}, {464, 0x7E}, {465, 0x7E}, {1000, 0x7E}, {math.Inf(1), 0x7E}, {-1000, 0xFE},
		{0x1p-9, 0x01}, {0x1p-10, 0x00}, {1.0625, 0x38}, {math.Copysign(0, -1), 0x80}, {math.Inf(-1), 0xFE},
	} {
		require.Equal(t, c.code, E4M3.Encode(c.x), "%v", c.x)
	}
	require.True(t, E4M3.IsNaN(E4M3.Encode(math.NaN())))
	require.Equal(t, 448.0, E4M3.Max())
	require.Equal(t, 57344.0, E5M2.Max())
	require.Equal(t, 65504.0, F16.Max())
	require.Equal(t, float64(math.Float32frombits(0x7F7F0000)), BF16.Max())
	require.Equal(t, uint16(0x7B), E5M2.Encode(math.Inf(1)))
	require.Equal(t, uint16(0x7C), E5M2.EncodeIEEE(61440)) // half a step past the largest
	require.Equal(t, uint16(0x7B), E5M2.EncodeIEEE(61439.9))
	require.Equal(t, uint16(0x7C00), F16.EncodeIEEE(65520))
	require.Equal(t, uint16(0x7C00), F16.EncodeIEEE(math.Inf(1)))
	require.Equal(t, uint16(0x7BFF), F16.Encode(1e9))
	require.Equal(t, uint16(0xFF80), BF16.EncodeIEEE(-math.MaxFloat32))
}

// Every code decodes and encodes to itself; half-way between two neighbours
// goes to the even one, and the nearest float64 on either side of it does not.
func TestFormats_EveryCodeAndMidpoint(t *testing.T) {
	for _, f := range []*Format{E4M3, E5M2, F16, BF16} {
		t.Run(f.Name, func(t *testing.T) {
			last := uint16(len(f.positive) - 1)
			for code := uint16(0); code <= last; code++ {
				for _, c := range []uint16{code, code | f.sign()} {
					if got := f.Encode(f.Decode(c)); got != c {
						t.Fatalf("code %#x decodes to %v and encodes to %#x", c, f.Decode(c), got)
					}
				}
				if code == last {
					break
				}
				mid := (f.Decode(code) + f.Decode(code+1)) / 2
				got := [3]uint16{f.Encode(math.Nextafter(mid, 0)), f.Encode(mid), f.Encode(math.Nextafter(mid, math.Inf(1)))}
				if want := [3]uint16{code, code + code%2, code + 1}; got != want {
					t.Fatalf("around %v: codes %#x, want %#x", mid, got, want)
				}
			}
			for code := int(last) + 1; code < int(f.sign()); code++ {
				if v := f.Decode(uint16(code)); !math.IsNaN(v) && !math.IsInf(v, 1) {
					t.Fatalf("code %#x is %v", code, v)
				}
			}
		})
	}
}

// The nearest code equals the rounding of math/big at the format's precision.
func TestFormats_AgreeWithBigFloatRounding(t *testing.T) {
	r := NewRand("casts")
	for _, f := range []*Format{E4M3, E5M2, F16, BF16} {
		least := f.positive[1<<f.Mantissa] // smallest normal value
		for range 20000 {
			x := float64(math.Float32frombits(uint32(r.Uint64())))
			if !(math.Abs(x) >= least && math.Abs(x) <= f.Max()) {
				x = least * math.Exp(r.Uniform()*math.Log(f.Max()/least))
			}
			want, _ := new(big.Float).SetPrec(uint(f.Mantissa + 1)).SetMode(big.ToNearestEven).SetFloat64(x).Float64()
			require.Equal(t, want, f.Decode(f.EncodeIEEE(x)), "%s of %v", f.Name, x)
		}
	}
	require.Equal(t, []float64{1, -448, 0.001953125}, E4M3.Round([]float64{1.0625, -1e9, 0.0015}))
}

func TestPrecision_IsTheRoundoffOfItsFormat(t *testing.T) {
	for f, u := range map[*Format]Precision{E4M3: FP8E4M3, E5M2: FP8E5M2, F16: Float16, BF16: BFloat16} {
		require.Equal(t, 1.0, f.Decode(f.Encode(1+float64(u))))
		require.Equal(t, 1+2*float64(u), f.Decode(f.Encode(1+1.01*float64(u))))
	}
}
