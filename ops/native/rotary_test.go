package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

var rotaryPairings = map[RotaryPairing]optest.Pairing{RotaryHalf: optest.Half, RotaryInterleaved: optest.Interleaved}

func TestR01_Pairings(t *testing.T) {
	cos, sin, err := RotaryTable(RotaryConfig{Dim: 4, Base: 1e4, Positions: 2})
	require.NoError(t, err)
	for pairing, want := range map[RotaryPairing][]float64{
		RotaryHalf:        {-1.984111, 1.959901, 2.462378, 4.019800},
		RotaryInterleaved: {-1.142640, 1.922076, 2.959851, 4.029800},
	} {
		y := optest.Poison(make([]float64, 4))
		Rotary(RotaryArgs[float64]{Y: y, X: []float64{1, 2, 3, 4}, Cos: cos, Sin: sin, Pos: []int32{1}, T: 1, H: 1, D: 4, Dr: 4, Pairing: pairing})
		require.InDeltaSlice(t, want, y, 1e-6) // the table is float32
	}
}

// A half-split head whose elements are permuted is an interleaved one.
func TestR01_PermutationOfThePairings(t *testing.T) {
	const tokens, h, d = 5, 3, 8
	cos, sin, err := RotaryTable(RotaryConfig{Dim: d, Base: 1e4, Positions: tokens})
	require.NoError(t, err)
	x := optest.Cast[float32](optest.Normals("x", tokens*h*d, 1))
	permute := func(x []float32) []float32 {
		y := make([]float32, len(x))
		for i := range x {
			in := i % d
			y[i-in+in%(d/2)*2+in/(d/2)] = x[i]
		}
		return y
	}
	run := func(x []float32, p RotaryPairing) []float32 {
		y := make([]float32, len(x))
		Rotary(RotaryArgs[float32]{Y: y, X: x, Cos: cos, Sin: sin, L: tokens, T: tokens, H: h, D: d, Dr: d, Pairing: p})
		return y
	}
	require.Equal(t, permute(run(x, RotaryHalf)), run(permute(x), RotaryInterleaved))
}

func TestRotaryAgainstOracle(t *testing.T) {
	type size struct{ t, h, d, dr int }
	var worst float64
	for _, s := range []size{{1, 1, 2, 2}, {1, 1, 1, 0}, {0, 2, 4, 4}, {15, 3, 8, 8}, {63, 2, 10, 6}, {65, 1, 33, 32}, {129, 8, 64, 64}, {1000, 2, 128, 64}} {
		for pairing, truth := range rotaryPairings {
			t.Run(fmt.Sprint(s, pairing), func(t *testing.T) {
				const positions = 50
				var cos, sin []float32
				if s.dr > 0 {
					var err error
					cos, sin, err = RotaryTable(RotaryConfig{Dim: s.dr, Base: 1e4, Positions: positions})
					require.NoError(t, err)
				}
				x := optest.Normals(t.Name(), s.t*s.h*s.d, 1)
				pos := optest.Ints(t.Name(), s.t, positions)
				cos64, sin64 := optest.Float64s(cos), optest.Float64s(sin)
				want := optest.Rotary(x, pos, cos64, sin64, s.h, s.d, s.dr, truth)
				wantBack := optest.RotaryGrad(x, pos, cos64, sin64, s.h, s.d, s.dr, truth)

				run := func(back, alias bool) []float32 {
					in, out := optest.GuardCopy(optest.Cast[float32](x)), optest.Guard[float32](len(x))
					if alias {
						out = in
					}
					Rotary(RotaryArgs[float32]{Y: out.Data, X: in.Data, Cos: cos, Sin: sin, Pos: pos,
						T: s.t, H: s.h, D: s.d, Dr: s.dr, Pairing: pairing, Back: back})
					optest.CheckGuards(t, "rotary", in, out)
					return out.Data
				}
				// Measured 0.64 forward and 1.23 for the smallest dx, one pair.
				d := optest.RequireClose(t, "y", run(false, false), want, optest.Float32, 2)
				worst = max(worst, d.RMS/float64(optest.Float32))
				optest.RequireClose(t, "dx", run(true, false), wantBack, optest.Float32, 2)
				optest.RequireEqual(t, "in place", run(false, true), run(false, false))
				optest.RequireEqual(t, "in place, back", run(true, true), run(true, false))
			})
		}
	}
	t.Logf("largest rms error: %.2f unit roundoffs", worst)
}

func TestRotaryGradientByDifferences(t *testing.T) {
	cos, sin, err := RotaryTable(RotaryConfig{Dim: 6, Base: 100, Positions: 9})
	require.NoError(t, err)
	for pairing := range rotaryPairings {
		run := func(x []float64, back bool) []float64 {
			y := make([]float64, len(x))
			Rotary(RotaryArgs[float64]{Y: y, X: x, Cos: cos, Sin: sin, L: 9, T: 18, H: 2, D: 8, Dr: 6, Pairing: pairing, Back: back})
			return y
		}
		optest.CheckGradient(t, "rotary", func(in [][]float64) [][]float64 { return [][]float64{run(in[0], false)} },
			func(_, dout [][]float64) [][]float64 { return [][]float64{run(dout[0], true)} }, optest.Normals("x", 18*2*8, 1))
	}
}

// Query and key heads of a fused projection are turned where they lie.
func TestRotaryStrides(t *testing.T) {
	const tokens, hq, hk, d = 7, 3, 2, 4
	cos, sin, err := RotaryTable(RotaryConfig{Dim: d, Base: 1e4, Positions: tokens})
	require.NoError(t, err)
	row := (hq + 2*hk) * d
	x := optest.Cast[float32](optest.Normals("x", tokens*row, 1))
	k := make([]float32, tokens*hk*d)
	for i := range tokens {
		copy(k[i*hk*d:(i+1)*hk*d], x[i*row+hq*d:])
	}
	args := RotaryArgs[float32]{Y: k, X: k, Cos: cos, Sin: sin, L: tokens, T: tokens, H: hk, D: d, Dr: d}
	Rotary(args)
	args.X, args.XStride, args.Y = x[hq*d:], row, optest.Poison(make([]float32, len(k)))
	Rotary(args)
	require.Equal(t, k, args.Y)
	y := append([]float32(nil), x...)
	args.X, args.Y, args.YStride = y[hq*d:], y[hq*d:], row
	Rotary(args)
	for i := range tokens {
		require.Equal(t, x[i*row:i*row+hq*d], y[i*row:i*row+hq*d])
		require.Equal(t, k[i*hk*d:(i+1)*hk*d], y[i*row+hq*d:i*row+(hq+hk)*d])
		require.Equal(t, x[i*row+(hq+hk)*d:(i+1)*row], y[i*row+(hq+hk)*d:(i+1)*row])
	}
}

// Keys rotated straight into their pages are those rotated, then appended.
func TestRotaryIntoPages(t *testing.T) {
	const tokens, h, d, slots = 6, 2, 4, 9
	cos, sin, err := RotaryTable(RotaryConfig{Dim: d, Base: 1e4, Positions: 40})
	require.NoError(t, err)
	pos, to := []int32{3, 0, 39, 7, 0, 1}, []int32{8, -1, 0, 3, -1, 5}
	x := optest.Cast[float32](optest.Normals("x", tokens*h*d, 1))
	args := RotaryArgs[float32]{Y: make([]float32, len(x)), X: x, Cos: cos, Sin: sin, Pos: pos, T: tokens, H: h, D: d, Dr: d}
	Rotary(args)
	want := optest.Guard[float32](slots * h * d)
	AppendPages(want.Data, args.Y, to, h*d)
	got := optest.Guard[float32](slots * h * d)
	args.Y, args.Slots = got.Data, to
	Rotary(args)
	optest.RequireEqual(t, "pool", got.Data, want.Data)
	optest.CheckGuards(t, "pool", got)
}

func TestCheckPositions(t *testing.T) {
	require.NoError(t, CheckPositions([]int32{0, 3}, 4))
	require.EqualError(t, CheckPositions([]int32{0, 4}, 4), "rotary: token 1 has position 4, the table holds positions 0 to 3")
	require.EqualError(t, CheckPositions([]int32{-1}, 4), "rotary: token 0 has position -1, the table holds positions 0 to 3")
}

func TestR02_Llama3Scaling(t *testing.T) {
	c := RotaryConfig{Dim: 128, Base: 5e5, Scaling: RotaryScaling{
		Type: "llama3", Factor: 8, LowFrequency: 1, HighFrequency: 4, OriginalPositions: 8192}}
	f, factor, err := RotaryFrequencies(c)
	require.NoError(t, err)
	require.EqualValues(t, 1, factor)
	plain, _, err := RotaryFrequencies(RotaryConfig{Dim: 128, Base: 5e5})
	require.NoError(t, err)
	for i, want := range map[int]float64{0: 1, 28: 1, 29: 0.828168, 30: 0.643743, 32: 0.371122, 35: 0.125, 50: 0.125, 63: 0.125} {
		require.InDelta(t, want, f[i]/plain[i], 5e-7, i)
	}
	c.Scaling.Type = "su"
	_, _, err = RotaryFrequencies(c)
	require.EqualError(t, err, `rotary: unknown scaling type "su", want default, linear, dynamic, yarn, llama3 or longrope`)
}

func TestRotaryFrequenciesAgainstOracle(t *testing.T) {
	stretch := func(name string, n int) []float64 { return optest.Uniforms(name, n, 1, 8) }
	for i, c := range []struct {
		RotaryConfig
		truth optest.RopeScaling
	}{
		{RotaryConfig{Dim: 8, Base: 1e4}, optest.RopeScaling{}},
		{RotaryConfig{Dim: 64, Base: 5e5, Scaling: RotaryScaling{Type: "linear", Factor: 4}}, optest.RopeScaling{Type: "linear", Factor: 4}},
		{RotaryConfig{Dim: 64, Base: 1e4, Scaling: RotaryScaling{Type: "dynamic", Factor: 2, ModelPositions: 2048}},
			optest.RopeScaling{Type: "dynamic", Factor: 2, MaxPositions: 2048}},
		{RotaryConfig{Dim: 64, Base: 1e4, Scaling: RotaryScaling{Type: "dynamic", Factor: 2, ModelPositions: 2048, Length: 5000}},
			optest.RopeScaling{Type: "dynamic", Factor: 2, MaxPositions: 2048, Length: 5000}},
		{RotaryConfig{Dim: 128, Base: 1e6, Scaling: RotaryScaling{Type: "yarn", Factor: 4, OriginalPositions: 32768}},
			optest.RopeScaling{Type: "yarn", Factor: 4, Original: 32768}},
		{RotaryConfig{Dim: 64, Base: 1e4, Scaling: RotaryScaling{Type: "yarn", ModelPositions: 163840, OriginalPositions: 4096, MScale: 1, MScaleAllDim: 0.8}},
			optest.RopeScaling{Type: "yarn", MaxPositions: 163840, Original: 4096, MScale: 1, MScaleAllDim: 0.8}},
		{RotaryConfig{Dim: 64, Base: 150000, Scaling: RotaryScaling{Type: "yarn", Factor: 32, OriginalPositions: 4096, NoTruncate: true, BetaFast: 16, BetaSlow: 2, AttentionFactor: 1.5}},
			optest.RopeScaling{Type: "yarn", Factor: 32, Original: 4096, NoTruncate: true, BetaFast: 16, BetaSlow: 2, AttentionFactor: 1.5}},
		{RotaryConfig{Dim: 128, Base: 5e5, Scaling: RotaryScaling{Type: "llama3", Factor: 32, LowFrequency: 1, HighFrequency: 4, OriginalPositions: 8192}},
			optest.RopeScaling{Type: "llama3", Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, Original: 8192}},
		{RotaryConfig{Dim: 96, Base: 1e4, Scaling: RotaryScaling{Type: "longrope", ModelPositions: 131072, OriginalPositions: 4096, ShortFactors: stretch("s", 48), LongFactors: stretch("l", 48)}},
			optest.RopeScaling{Type: "longrope", MaxPositions: 131072, Original: 4096, ShortFactor: stretch("s", 48), LongFactor: stretch("l", 48)}},
		{RotaryConfig{Dim: 96, Base: 1e4, Scaling: RotaryScaling{Type: "longrope", ModelPositions: 131072, OriginalPositions: 4096, Length: 4097, ShortFactors: stretch("s", 48), LongFactors: stretch("l", 48)}},
			optest.RopeScaling{Type: "longrope", MaxPositions: 131072, Original: 4096, Length: 4097, ShortFactor: stretch("s", 48), LongFactor: stretch("l", 48)}},
	} {
		t.Run(fmt.Sprint(i, c.Scaling.Type), func(t *testing.T) {
			want, factor, err := optest.InverseFrequencies(c.Base, c.Dim, c.truth)
			require.NoError(t, err)
			f, gotFactor, err := RotaryFrequencies(c.RotaryConfig)
			require.NoError(t, err)
			optest.RequireClose(t, "frequencies", f, want, optest.Float64, 16)
			require.InEpsilon(t, factor, gotFactor, 1e-14)

			c.Positions = 300
			cos, sin, err := RotaryTable(c.RotaryConfig)
			require.NoError(t, err)
			wantCos, wantSin := optest.RotaryTable(want, factor, 300)
			optest.RequireClose(t, "cos", cos, wantCos, optest.Float32, 1)
			optest.RequireClose(t, "sin", sin, wantSin, optest.Float32, 1)
		})
	}
}

// The published attention factors of two checkpoints.
func TestRotaryAttentionFactors(t *testing.T) {
	long := make([]float64, 48)
	for i := range long {
		long[i] = 1
	}
	_, factor, err := RotaryFrequencies(RotaryConfig{Dim: 96, Base: 1e4, Scaling: RotaryScaling{
		Type: "longrope", ModelPositions: 131072, OriginalPositions: 4096, ShortFactors: long, LongFactors: long}})
	require.NoError(t, err)
	require.InDelta(t, 1.1902380714238083, factor, 1e-15) // sqrt(1 + ln 32 / ln 4096)
	_, factor, err = RotaryFrequencies(RotaryConfig{Dim: 128, Base: 1e6, Scaling: RotaryScaling{Type: "yarn", Factor: 4, OriginalPositions: 32768}})
	require.NoError(t, err)
	require.InDelta(t, 1.138629436111989, factor, 1e-15) // 0.1 ln 4 + 1
}

// Angles are taken in float64: float32 products would be off by 1e-3 here.
func TestRotaryTableIsExactFarOut(t *testing.T) {
	cos, _, err := RotaryTable(RotaryConfig{Dim: 2, Base: 1e4, Positions: 131072})
	require.NoError(t, err)
	require.Equal(t, float32(math.Cos(131071)), cos[131071])
}

func TestRotaryConfigErrors(t *testing.T) {
	good := RotaryConfig{Dim: 8, Base: 1e4, Positions: 4}
	four := []float64{1, 1, 1, 1}
	for _, c := range []struct {
		want string
		make func(*RotaryConfig)
	}{
		{"rotary: the rotated width must be even and at least 2, got 7", func(c *RotaryConfig) { c.Dim = 7 }},
		{"rotary: the rotated width must be even and at least 2, got 0", func(c *RotaryConfig) { c.Dim = 0 }},
		{"rotary: base must be positive and finite, got NaN", func(c *RotaryConfig) { c.Base = nan }},
		{"rotary: base must be positive and finite, got 0", func(c *RotaryConfig) { c.Base = 0 }},
		{"rotary: positions must not be negative, got -1", func(c *RotaryConfig) { c.Positions = -1 }},
		{"rotary: linear scaling needs a positive finite factor, got 0", func(c *RotaryConfig) { c.Scaling.Type = "linear" }},
		{"rotary: dynamic scaling needs a positive finite max_position_embeddings, got 0", func(c *RotaryConfig) { c.Scaling = RotaryScaling{Type: "dynamic", Factor: 2} }},
		{"rotary: dynamic scaling needs a rotated width of at least 4, got 2", func(c *RotaryConfig) { c.Dim = 2; c.Scaling.Type = "dynamic" }},
		{"rotary: yarn scaling needs a positive finite original_max_position_embeddings, got 0", func(c *RotaryConfig) { c.Scaling = RotaryScaling{Type: "yarn", Factor: 2} }},
		{"rotary: yarn scaling needs a positive finite factor or max_position_embeddings, got 0", func(c *RotaryConfig) { c.Scaling = RotaryScaling{Type: "yarn", OriginalPositions: 2} }},
		{"rotary: yarn scaling needs a positive finite beta_fast, got -1", func(c *RotaryConfig) {
			c.Scaling = RotaryScaling{Type: "yarn", Factor: 2, OriginalPositions: 2, BetaFast: -1}
		}},
		{"rotary: llama3 scaling needs a positive finite low_freq_factor, got 0", func(c *RotaryConfig) { c.Scaling = RotaryScaling{Type: "llama3", Factor: 8} }},
		{"rotary: llama3 scaling needs high_freq_factor above low_freq_factor, got 1 and 4", func(c *RotaryConfig) {
			c.Scaling = RotaryScaling{Type: "llama3", Factor: 8, LowFrequency: 4, HighFrequency: 1, OriginalPositions: 4}
		}},
		{"rotary: longrope scaling needs 4 numbers in short_factor (half the rotated width), got 0", func(c *RotaryConfig) { c.Scaling.Type = "longrope" }},
		{"rotary: longrope scaling needs a positive finite long_factor[1], got -2", func(c *RotaryConfig) {
			c.Scaling = RotaryScaling{Type: "longrope", ShortFactors: four, LongFactors: []float64{1, -2, 1, 1}}
		}},
		{"rotary: longrope scaling needs original_max_position_embeddings above 1, got 1", func(c *RotaryConfig) {
			c.Scaling = RotaryScaling{Type: "longrope", ShortFactors: four, LongFactors: four, OriginalPositions: 1}
		}},
	} {
		bad := good
		c.make(&bad)
		_, _, err := RotaryTable(bad)
		require.EqualError(t, err, c.want)
	}
}

func BenchmarkRotary(b *testing.B) {
	const tokens, h, d = 1024, 4, 64
	cos, sin, err := RotaryTable(RotaryConfig{Dim: d, Base: 1e4, Positions: 128})
	require.NoError(b, err)
	x := make([]float32, tokens*h*d)
	for pairing := range rotaryPairings {
		b.Run([]string{"half", "interleaved"}[pairing], func(b *testing.B) {
			a := RotaryArgs[float32]{Y: make([]float32, len(x)), X: x, Cos: cos, Sin: sin, L: 128, T: tokens, H: h, D: d, Dr: d, Pairing: pairing}
			b.SetBytes(int64(8 * len(x)))
			for b.Loop() {
				Rotary(a)
			}
		})
	}
}

// TestRotaryHasTheSameBitsInEveryKernelSet, in place and back, for halves that
// the assembly takes whole, in part and not at all.
func TestRotaryHasTheSameBitsInEveryKernelSet(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, half := range []int{3, 16, 21, 32, 64} {
		x, cos, sin := normals[float32](r, 2*half), normals[float32](r, half), normals[float32](r, half)
		x[0], x[half], sin[1], cos[2] = float32(math.Inf(1)), 0, 0, 0
		for _, back := range []bool{false, true} {
			var first []float32
			kernelsUpTo(t, avx512Kernel, func(t *testing.T) {
				y := nans[float32](2 * half)
				turnHalf(y, x, 1, 2*half, cos, sin, back)
				requireGuard(t, y)
				if first == nil {
					first = y
				}
				requireSameBits(t, first, y)
				in := append([]float32(nil), x...)
				turnHalf(in, in, 1, 2*half, cos, sin, back)
				requireSameBits(t, first, in)
			})
		}
	}
}
