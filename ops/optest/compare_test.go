package optest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a TestingT that keeps what a check says.
type recorder struct{ said string }

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) FailNow()                          {}

func TestCompare_Measures(t *testing.T) {
	d := Compare([]float64{3, 4.5, -1}, []float64{3, 4, 0})
	require.InDelta(t, math.Sqrt(0.25+1)/5, d.RMS, 1e-15)
	require.Equal(t, 1.0, d.MaxAbs)
	require.InDelta(t, 0.125, d.MaxRel, 1e-15)
	require.Equal(t, 2, d.Worst)
	require.Equal(t, -1, d.FirstBad)

	inf, nan := math.Inf(-1), math.NaN()
	require.Equal(t, Diff{FirstBad: -1, Worst: 0}, Compare([]float64{inf, 1}, []float64{inf, 1}))
	require.Equal(t, 1, Compare([]float64{1, inf}, []float64{1, 5}).FirstBad)
	require.True(t, math.IsInf(Compare([]float64{1, inf}, []float64{1, 5}).RMS, 1))
	require.Equal(t, 2, Compare([]float64{1, nan, 2}, []float64{1, 1, nan}).NaN)
	require.Equal(t, 1, Compare([]float64{1, nan, 2}, []float64{1, 1, nan}).FirstBad)
	require.Equal(t, Diff{FirstBad: -1, Worst: -1}, Compare([]float64{}, []float64{}))
	require.InDelta(t, 0.1, Compare([]float64{1.1e200}, []float64{1e200}).RMS, 1e-12)
	require.InDelta(t, 0.1, Compare([]float64{1.1e-300}, []float64{1e-300}).RMS, 1e-12)
}

func TestRequireClose_SaysWhereAndWhat(t *testing.T) {
	want := make([]float64, 6)
	for i := range want {
		want[i] = float64(i + 1)
	}
	near := append([]float64(nil), want...)
	near[3] += 1e-7
	RequireClose(t, "near", near, want, Float32, 1, 2, 3)
	RequireClose(t, "empty", []float32{}, []float64{}, Float32, 1)

	for _, c := range []struct {
		name string
		i    int
		v    float64
		said string
	}{
		{"far", 4, 6, "y: rms error 0.105 of the result's rms, bound 5.96e-08 (1 unit roundoffs, measured 1.76e+06); worst element [1,1]: got 6, want 5"},
		{"nan", 5, math.NaN(), "y: element [1,2] is NaN, want 6 (1 elements are NaN on either side)"},
		{"inf", 0, math.Inf(1), "y: element [0,0] is +Inf, want 1 (0 elements are NaN on either side)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := append([]float64(nil), want...)
			got[c.i] = c.v
			r := &recorder{}
			RequireClose(r, "y", got, want, Float32, 1, 2, 3)
			require.Equal(t, c.said, r.said)
		})
	}

	// One wrong element among many small ones hides in the rms, not from the
	// element bound.
	long, off := make([]float64, 10000), make([]float64, 10000)
	for i := range long {
		long[i] = 1
		off[i] = 1
	}
	off[77] += 20 * 0x1p-24
	r := &recorder{}
	RequireClose(r, "y", off, long, Float32, 1)
	require.Contains(t, r.said, "y: element [77]: got 1.0000011920928955, want 1, off by 1.19e-06, bound 4.77e-07")

	r = &recorder{}
	RequireClose(r, "y", []float64{1}, []float64{1, 2}, Float32, 1)
	require.Equal(t, "y: 1 elements, want 2", r.said)
}

func TestRequireEqual(t *testing.T) {
	nan := math.NaN()
	RequireEqual(t, "same", []float64{1, nan, 0}, []float64{1, nan, math.Copysign(0, -1)})
	r := &recorder{}
	RequireEqual(r, "y", []float32{1, 2}, []float32{1, 3}, 1, 2)
	require.Equal(t, "y: element [0,1] is 2, want exactly 3", r.said)
}

func TestGuard_SeesWritesOutside(t *testing.T) {
	for _, off := range []int{-3, 10, 12} {
		g := Guard[float32](10)
		require.True(t, math.IsNaN(float64(g.Data[0])))
		CheckGuards(t, "untouched", g)
		g.whole[g.pad+off*4] = 0
		r := &recorder{}
		CheckGuards(r, "kernel", Guard[int32](4), g)
		if off < 0 {
			require.Equal(t, "kernel: buffer 1 was written 11 bytes before its start", r.said)
		} else {
			require.Equal(t, fmt.Sprintf("kernel: buffer 1 was written %d bytes behind its end", (off-10)*4), r.said)
		}
	}
	g := GuardCopy([]int32{1, 2, 3})
	require.Equal(t, []int32{1, 2, 3}, g.Data)
	require.Equal(t, 3, cap(g.Data))
	require.Negative(t, Guard[int32](1).Data[0])
	require.True(t, math.IsNaN(Guard[float64](1).Data[0]))
	CheckGuards(t, "bytes", Guard[uint8](0), Guard[uint16](3))
	for _, v := range Poison(make([]float32, 3)) {
		require.True(t, math.IsNaN(float64(v)))
	}
}

func TestRandom_DependsOnTheNameAlone(t *testing.T) {
	require.Equal(t, Normals("a", 4, 2), Normals("a", 4, 2))
	require.NotEqual(t, Normals("a", 4, 2), Normals("b", 4, 2))
	x := Normals("moments", 100000, 3)
	mean, variance := moments(x)
	require.InDelta(t, 0, mean, 0.03) // measured -0.0026, deviation of the mean 0.0095
	require.InDelta(t, 9, variance, 0.15)
	require.Equal(t, x, Float64s(Cast[float32](x)))
	mean, variance = moments(Uniforms("u", 100000, -1, 3))
	require.InDelta(t, 1, mean, 0.02)
	require.InDelta(t, 16.0/12, variance, 0.02)
	for _, v := range Ints("i", 1000, 7) {
		require.True(t, v >= 0 && v < 7)
	}
	hits := 0
	for _, v := range Bools("b", 10000, 0.25) {
		if v {
			hits++
		}
	}
	require.InDelta(t, 2500, hits, 150)
}

func TestCheckGradient_TellsRightFromWrong(t *testing.T) {
	x, y := Normals("x", 50, 3), Normals("y", 50, 1e-3)
	forward := func(in [][]float64) [][]float64 {
		out := make([]float64, len(in[0]))
		for i := range out {
			out[i] = math.Sin(in[0][i]) * in[1][i]
		}
		return [][]float64{out, {math.Inf(-1)}}
	}
	backward := func(in, d [][]float64) [][]float64 {
		dx, dy := make([]float64, 50), make([]float64, 50)
		for i := range dx {
			dx[i] = d[0][i] * math.Cos(in[0][i]) * in[1][i]
			dy[i] = d[0][i] * math.Sin(in[0][i])
		}
		return [][]float64{dx, dy}
	}
	CheckGradient(t, "right", forward, backward, x, y)
	wrong := func(in, d [][]float64) [][]float64 {
		g := backward(in, d)
		g[1][7] *= 1.001
		return g
	}
	r := &recorder{}
	CheckGradient(r, "wrong", forward, wrong, x, y)
	require.Contains(t, r.said, "wrong: input 1: gradient along a random direction is")
	r = &recorder{}
	CheckGradient(r, "none", forward, func(in, d [][]float64) [][]float64 { return [][]float64{nil, nil} }, x, y)
	require.Equal(t, "none: no gradient to check", r.said)
	r = &recorder{}
	CheckGradient(r, "short", forward, func(in, d [][]float64) [][]float64 { return [][]float64{{1}, nil} }, x, y)
	require.Equal(t, "short: input 0: gradient has 1 elements, the input 50", r.said)
}
