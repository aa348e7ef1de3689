package native

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// wideF16 is IEEE binary16 by its definition.
func wideF16(u uint16) float64 {
	sign, exp, frac := 1.0, int(u>>10)&0x1f, float64(u&0x3ff)
	if u>>15 == 1 {
		sign = -1
	}
	switch {
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestEveryHalfWidensExactly(t *testing.T) {
	x := make([]uint16, 1<<16)
	for i := range x {
		x[i] = uint16(i)
	}
	y := make([]float32, len(x))
	HalfF16.widen(y, x)
	for i, v := range y {
		want := wideF16(x[i])
		if math.IsNaN(want) {
			require.True(t, v != v)
			continue
		}
		require.Equal(t, want, float64(v), "%#x", i)
		require.Equal(t, math.Signbit(want), math.Signbit(float64(v)), "%#x", i)
		require.Equal(t, math.Float32bits(fromF16(x[i])), math.Float32bits(v), "%#x", i)
	}
	HalfBF16.widen(y, x)
	for i, v := range y {
		require.Equal(t, uint32(i)<<16, math.Float32bits(v))
	}
}

// TestHalfWeightsGiveTheBitsOfWideOnes: storage changes no result.
func TestHalfWeightsGiveTheBitsOfWideOnes(t *testing.T) {
	defer SetWorkers(0)
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	fresh := func(n int) []float32 {
		x := make([]float32, n+1)
		for i := range x {
			x[i] = float32(math.NaN())
		}
		x[n] = 7 // the guard
		return x
	}
	for _, kind := range []Half{HalfBF16, HalfF16} {
		for _, s := range [][3]int{{0, 5, 3}, {1, 1, 1}, {1, 300, 700}, {3, 65, 257}, {13, 130, 64}, {70, 33, 515}} {
			m, n, k := s[0], s[1], s[2]
			x, b, dy := normal(m*k), normal(n), normal(m*n)
			w := make([]uint16, n*k)
			for i := range w {
				w[i] = uint16(r.Uint32())
				if kind == HalfF16 {
					w[i] = w[i]&0x83ff | uint16(12+r.IntN(8))<<10 // about 1
				} else {
					w[i] = w[i]&0x807f | uint16(122+r.IntN(8))<<7
				}
			}
			wide := make([]float32, n*k)
			kind.widen(wide, w)
			for _, workers := range []int{1, 2, 7} {
				SetWorkers(workers)
				for _, bias := range [][]float32{nil, b} {
					want, got := fresh(m*n), fresh(m*n)
					Linear(want, x, wide, bias, m, n, k)
					LinearHalf(got, x, w, bias, kind, m, n, k)
					require.Equal(t, want, got, "%v %v", kind, s)
				}
				want, got := fresh(m*k), fresh(m*k)
				LinearGradInput(want, dy, wide, m, n, k)
				LinearHalfGradInput(got, dy, w, kind, m, n, k)
				require.Equal(t, want, got, "%v %v", kind, s)
			}
			ids := []int32{int32(n - 1), 0, int32(n / 2)}
			want, got := fresh(3*k), fresh(3*k)
			require.NoError(t, Embedding(want, wide, ids, 3, n, k))
			require.NoError(t, EmbeddingHalf(got, w, kind, ids, 3, n, k))
			require.Equal(t, want, got)
			require.Error(t, EmbeddingHalf(got, w, kind, []int32{int32(n)}, 1, n, k))
		}
	}
}

// BenchmarkLinearOneRow compares one row of activations on a weight of 32 M
// numbers, stored in 32 and in 16 bits.
func BenchmarkLinearOneRow(b *testing.B) {
	const n, k = 8192, 4096
	x, y, w := make([]float32, k), make([]float32, n), make([]float32, n*k)
	half := make([]uint16, n*k)
	b.Run("float32", func(b *testing.B) {
		b.SetBytes(4 * n * k)
		for b.Loop() {
			Linear(y, x, w, nil, 1, n, k)
		}
	})
	b.Run("bf16", func(b *testing.B) {
		b.SetBytes(2 * n * k)
		for b.Loop() {
			LinearHalf(y, x, half, nil, HalfBF16, 1, n, k)
		}
	})
	b.Run("f16", func(b *testing.B) {
		b.SetBytes(2 * n * k)
		for b.Loop() {
			LinearHalf(y, x, half, nil, HalfF16, 1, n, k)
		}
	})
}
