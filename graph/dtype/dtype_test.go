// Tests of the enumeration and of the whole-slice conversions.

package dtype

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for d := Invalid + 1; d < count; d++ {
		require.True(t, d.Valid())
		require.Positive(t, d.Size(), d)
		for _, s := range []string{d.String(), d.Safetensors()} {
			require.NotEmpty(t, s)
			require.False(t, seen[s], "two types are called %q", s)
			seen[s] = true
		}
		got, ok := FromSafetensors(d.Safetensors())
		require.True(t, ok)
		require.Equal(t, d, got)
		got, ok = FromName(d.String())
		require.True(t, ok)
		require.Equal(t, d, got)
		digits := strings.TrimLeft(d.String(), "abcdefghijklmnopqrstuvwxyz")
		if digits != "" { // the size is in the name
			bits := map[string]int{"8": 1, "8_e4m3": 1, "8_e5m2": 1, "16": 2, "32": 4, "64": 8}[digits]
			require.Equal(t, bits, d.Size(), d)
		}
	}
	require.Equal(t, 1, Bool.Size())
	for _, s := range []string{"", "f32", "F4", "invalid", "float128"} {
		_, ok := FromSafetensors(s)
		require.False(t, ok, s)
	}
	_, ok := FromName("invalid")
	require.False(t, ok)
}

func TestFamilies(t *testing.T) {
	for d := Invalid; d < count+3; d++ {
		name := d.String()
		require.Equal(t, strings.HasPrefix(name, "float") || strings.HasPrefix(name, "bfloat"), d.IsFloat(), name)
		require.Equal(t, strings.HasPrefix(name, "float8"), d.IsFloat8(), name)
		require.Equal(t, strings.HasPrefix(name, "int") || strings.HasPrefix(name, "uint"), d.IsInteger(), name)
		require.Equal(t, strings.HasPrefix(name, "int") || d.IsFloat(), d.IsSigned(), name)
	}
	bad := count + 2
	require.False(t, bad.Valid())
	require.False(t, Invalid.Valid())
	require.Zero(t, bad.Size())
	require.Empty(t, bad.Safetensors())
	require.Equal(t, Float8E5M2, Of[E5M2]())
	require.Equal(t, Float8E4M3, Of[E4M3]())
	require.Equal(t, Float16, Of[F16]())
	require.Equal(t, BFloat16, Of[BF16]())
}

// testSlices compares the slice forms with the scalar ones (which have their
// own oracles), beyond the shorter slice nothing may change.
func testSlices[T Narrow](t *testing.T, to func(float32) T, from func(T) float32) {
	src := make([]float32, 1000)
	for i := range src {
		src[i] = float32(math.Sin(float64(i))) * float32(math.Exp2(float64(i%60)-30))
	}
	codes := make([]T, len(src)+1)
	codes[len(src)] = 3
	require.Equal(t, len(src), FromFloat32(codes, src))
	for i, x := range src {
		require.Equal(t, to(x), codes[i])
	}
	require.Equal(t, T(3), codes[len(src)])

	wide := make([]float32, 500)
	require.Equal(t, 499, ToFloat32(wide[:499], codes))
	for i := range wide[:499] {
		require.Equal(t, from(codes[i]), wide[i])
	}
	require.Zero(t, wide[499])
	require.Zero(t, ToFloat32(nil, codes))
	require.Zero(t, FromFloat32(codes, nil))

	require.Zero(t, testing.AllocsPerRun(10, func() {
		FromFloat32(codes, src)
		ToFloat32(wide, codes)
	}))
}

func TestSlices(t *testing.T) {
	testSlices(t, ToBF16, BF16.Float32)
	testSlices(t, ToF16, F16.Float32)
	testSlices(t, ToE4M3, E4M3.Float32)
	testSlices(t, ToE5M2, E5M2.Float32)
}

func benchmarkSlices[T Narrow](b *testing.B) {
	src := make([]float32, 1<<16)
	for i := range src {
		src[i] = float32(math.Sin(float64(i)))
	}
	codes := make([]T, len(src))
	b.Run("from", func(b *testing.B) {
		b.SetBytes(4 << 16)
		for b.Loop() {
			FromFloat32(codes, src)
		}
	})
	b.Run("to", func(b *testing.B) {
		b.SetBytes(4 << 16)
		for b.Loop() {
			ToFloat32(src, codes)
		}
	})
}

func BenchmarkBF16(b *testing.B) { benchmarkSlices[BF16](b) }
func BenchmarkF16(b *testing.B)  { benchmarkSlices[F16](b) }
func BenchmarkE4M3(b *testing.B) { benchmarkSlices[E4M3](b) }
func BenchmarkE5M2(b *testing.B) { benchmarkSlices[E5M2](b) }
