package optest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestR01_Pairings(t *testing.T) {
	f, factor, err := InverseFrequencies(1e4, 4, RopeScaling{})
	require.NoError(t, err)
	cos, sin := RotaryTable(f, factor, 2)
	x := []float64{1, 2, 3, 4}
	near(t, []float64{-1.984111, 1.959901, 2.462378, 4.019800}, Rotary(x, []int32{1}, cos, sin, 1, 4, 4, Half), 5e-7)
	near(t, []float64{-1.142640, 1.922076, 2.959851, 4.029800}, Rotary(x, []int32{1}, cos, sin, 1, 4, 4, Interleaved), 5e-7)
	require.Equal(t, x, Rotary(x, []int32{0}, cos, sin, 1, 4, 4, Half))
}

// Rotating half-split equals permuting to interleaved, rotating, and back.
func TestR01_PermutationJoinsThePairings(t *testing.T) {
	const h, d, dr = 3, 10, 6
	f, _, _ := InverseFrequencies(1e4, dr, RopeScaling{})
	cos, sin := RotaryTable(f, 1, 9)
	x, pos := Normals("x", 4*h*d, 1), []int32{8, 0, 3, 3}
	move := func(x []float64, from, to Pairing) []float64 {
		y := append([]float64(nil), x...)
		for head := 0; head < len(x); head += d {
			for i := range dr / 2 {
				fa, fb := from.pair(i, dr)
				ta, tb := to.pair(i, dr)
				y[head+ta], y[head+tb] = x[head+fa], x[head+fb]
			}
		}
		return y
	}
	require.Equal(t, x, move(move(x, Half, Interleaved), Interleaved, Half))
	require.Equal(t, Rotary(x, pos, cos, sin, h, d, dr, Half),
		move(Rotary(move(x, Half, Interleaved), pos, cos, sin, h, d, dr, Interleaved), Interleaved, Half))
	y := Rotary(x, pos, cos, sin, h, d, dr, Half)
	for i := range x {
		if i%d >= dr {
			require.Equal(t, x[i], y[i], "element %d lies beyond the rotated width", i)
		}
	}
}

func TestRotary_Gradient(t *testing.T) {
	const h, d = 2, 8
	pos := []int32{4, 0, 7}
	for _, dr := range []int{8, 4, 0} {
		for _, p := range []Pairing{Half, Interleaved} {
			f, _, _ := InverseFrequencies(100, dr, RopeScaling{})
			cos, sin := RotaryTable(f, 1.3, 8)
			CheckGradient(t, "rotary",
				func(in [][]float64) [][]float64 {
					return [][]float64{Rotary(in[0], pos, cos, sin, h, d, dr, p)}
				},
				func(in, g [][]float64) [][]float64 {
					return [][]float64{RotaryGrad(g[0], pos, cos, sin, h, d, dr, p)}
				}, Normals("x", 3*h*d, 1))
		}
	}
}

// Scores depend on the distance of two positions alone.
func TestRotary_IsRelative(t *testing.T) {
	f, _, _ := InverseFrequencies(1e4, 16, RopeScaling{})
	cos, sin := RotaryTable(f, 1, 50)
	q, k := Normals("q", 16, 1), Normals("k", 16, 1)
	score := func(i, j int32) float64 {
		return MatMul(Rotary(q, []int32{i}, cos, sin, 1, 16, 16, Half), Rotary(k, []int32{j}, cos, sin, 1, 16, 16, Half), 1, 1, 16, false, true)[0]
	}
	require.InDelta(t, score(12, 5), score(49, 42), 1e-13)
	require.NotEqual(t, score(12, 5), score(12, 6))
}

func TestR02_Llama3Ratios(t *testing.T) {
	plain, _, _ := InverseFrequencies(5e5, 128, RopeScaling{})
	f, factor, err := InverseFrequencies(5e5, 128, RopeScaling{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, Original: 8192})
	require.NoError(t, err)
	require.Equal(t, 1.0, factor)
	for i, want := range map[int]float64{0: 1, 28: 1, 29: 0.828168, 30: 0.643743, 32: 0.371122, 35: 0.125, 36: 0.125, 63: 0.125} {
		require.InDelta(t, want, f[i]/plain[i], 5e-7, "i = %d", i)
	}
	_, _, err = InverseFrequencies(1e4, 64, RopeScaling{Type: "su"})
	require.EqualError(t, err, `rotary: unknown scaling type "su"`)
}

func TestInverseFrequencies_OtherTypes(t *testing.T) {
	const base, dr = 1e4, 8 // f = 1, 0.1, 0.01, 0.001
	get := func(s RopeScaling) ([]float64, float64) {
		f, factor, err := InverseFrequencies(base, dr, s)
		require.NoError(t, err)
		return f, factor
	}
	f, factor := get(RopeScaling{Type: "default"})
	near(t, []float64{1, 0.1, 0.01, 0.001}, f, 1e-15)
	require.Equal(t, 1.0, factor)
	f, _ = get(RopeScaling{Type: "linear", Factor: 4})
	near(t, []float64{0.25, 0.025, 0.0025, 0.00025}, f, 1e-15)

	// dynamic: nothing up to the trained length; beyond it the base grows by
	// (4*2048/1024 - 3)^(8/6) = 5^(4/3), so the last frequency by 5^-1.
	f, _ = get(RopeScaling{Type: "dynamic", Factor: 4, MaxPositions: 1024, Length: 700})
	near(t, []float64{1, 0.1, 0.01, 0.001}, f, 1e-15)
	f, _ = get(RopeScaling{Type: "dynamic", Factor: 4, MaxPositions: 1024, Length: 2048})
	near(t, []float64{1, 0.1 * math.Pow(5, -1.0/3), 0.01 * math.Pow(5, -2.0/3), 0.001 / 5}, f, 1e-15)

	// yarn: with 4096 original positions f(i) turns 651.9, 65.19, 6.519 and
	// 0.6519 times. 32 turns lie at index 1.309, one turn at 2.814: the ramp
	// runs from 1 to 3, or between those two untruncated.
	f, factor = get(RopeScaling{Type: "yarn", Factor: 16, Original: 4096})
	near(t, []float64{1, 0.1, 0.01 * (0.5 + 0.5/16), 0.001 / 16}, f, 1e-15)
	require.InDelta(t, 0.1*math.Log(16)+1, factor, 1e-15)
	f, _ = get(RopeScaling{Type: "yarn", Factor: 16, Original: 4096, NoTruncate: true})
	turns := func(n float64) float64 { return math.Log10(4096 / (2 * math.Pi * n)) }
	ramp := (2 - turns(32)) / (turns(1) - turns(32))
	near(t, []float64{1, 0.1, 0.01 * (1 - ramp + ramp/16), 0.001 / 16}, f, 1e-15)
	_, factor = get(RopeScaling{Type: "yarn", Factor: 40, Original: 4096, MScale: 1, MScaleAllDim: 1})
	require.Equal(t, 1.0, factor)
	_, factor = get(RopeScaling{Type: "yarn", Factor: 40, Original: 4096, MScale: 0.707, MScaleAllDim: 1})
	require.InDelta(t, (0.0707*math.Log(40)+1)/(0.1*math.Log(40)+1), factor, 1e-15)
	_, factor = get(RopeScaling{Type: "yarn", Factor: 40, Original: 4096, AttentionFactor: 1.25})
	require.Equal(t, 1.25, factor)

	long := RopeScaling{Type: "longrope", Original: 4096, MaxPositions: 131072, ShortFactor: []float64{1, 1, 2, 2}, LongFactor: []float64{1, 2, 4, 8}, Length: 4096}
	f, factor = get(long)
	near(t, []float64{1, 0.1, 0.005, 0.0005}, f, 1e-15)
	require.InDelta(t, 1.190238, factor, 5e-7) // sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5/12)
	long.Length = 4097
	f, _ = get(long)
	near(t, []float64{1, 0.05, 0.0025, 0.000125}, f, 1e-15)
}
