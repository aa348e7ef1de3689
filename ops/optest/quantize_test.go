package optest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBlocks(t *testing.T) {
	x := []float64{1, -2, 3, 4, math.NaN(), 6} // [2, 3]
	for _, c := range []struct {
		b    Blocks
		amax []float64
	}{
		{PerTensor(2, 3), []float64{6}},
		{PerRow(2, 3), []float64{3, 6}},
		{Blocks{2, 3, 1, 2}, []float64{2, 3, 4, 6}},
		{Blocks{2, 3, 128, 2}, []float64{4, 6}},
	} {
		amax, nan := c.b.Amax(x)
		require.Equal(t, c.amax, amax, "%+v", c.b)
		require.Equal(t, 1, nan)
	}
	amax, nan := PerTensor(0, 3).Amax(nil)
	require.Equal(t, 0, len(amax)+nan)
	require.Equal(t, []int{1, 3, 5, 2, 4, 6}, Transpose([]int{1, 2, 3, 4, 5, 6}, 3, 2))
}

func TestQuantize(t *testing.T) {
	b := Blocks{2, 2, 1, 2}
	codes := b.Quantize([]float64{448, -1, math.Inf(-1), 1.0625}, []float64{2, 1}, E4M3)
	require.Equal(t, []uint8{0x76, 0xB0, 0xFE, 0x38}, codes)
	require.Equal(t, []float64{448, -1, -448, 1}, b.Dequantize(codes, []float64{2, 1}, E4M3))
	require.True(t, E4M3.IsNaN(uint16(PerTensor(1, 1).Quantize([]float64{math.NaN()}, []float64{1}, E4M3)[0])))
	// Within half a step of the format, relative to the block's amax and above
	// its subnormals: 2^-4 of the value.
	x := Normals("x", 64*40, 3)
	p := Blocks{64, 40, 16, 16}
	steps, _ := p.Amax(x)
	for i := range steps {
		steps[i] = QuantStep(steps[i], 1, E4M3, 0)
	}
	y := p.Dequantize(p.Quantize(x, steps, E4M3), steps, E4M3)
	for i := range x {
		step := steps[p.Step(i/40, i%40)]
		require.LessOrEqual(t, math.Abs(x[i]-y[i]), max(math.Abs(x[i])*0x1p-4*(1+1e-6), step*0x1p-10))
	}
}

func TestF02_StepsSurviveOddAmax(t *testing.T) {
	step := 1.0
	var steps []float64
	for _, amax := range []float64{0, 8, 1e-40, math.Inf(1), math.NaN(), 2} {
		step = QuantStep(amax, step, E4M3, 0)
		steps = append(steps, step)
	}
	tiny := steps[2]
	require.Equal(t, []float64{1, float64(float32(8.0 / 448)), tiny, tiny, tiny, float64(float32(2.0 / 448))}, steps)
	require.Positive(t, tiny)
	require.False(t, math.IsInf(float64(1/float32(tiny)), 0))
	require.Equal(t, 4*QuantStep(3, 1, E5M2, 0), QuantStep(3, 1, E5M2, 2)) // margin is headroom
}

func TestF10_AmaxIsOfTheRawValues(t *testing.T) {
	x := []float64{10, -3}
	b := PerTensor(1, 2)
	step := QuantStep(10, 1, E4M3, 0)
	require.Equal(t, uint8(0x7E), b.Quantize(x, []float64{step}, E4M3)[0])
	amax, _ := b.Amax(x)
	require.Equal(t, []float64{10}, amax)
	require.Equal(t, step, QuantStep(amax[0], step, E4M3, 0))
}

func TestFP8MatMul_LayoutsAndSteps(t *testing.T) {
	const m, n, k = 3, 4, 5
	quantised := func(name string, b Blocks, f *Format) Quantized {
		x := Normals(name, b.Rows*b.Cols, 1)
		steps, _ := b.Amax(x)
		for i := range steps {
			steps[i] = QuantStep(steps[i], 1, f, 0)
		}
		return Quantized{b, f, b.Quantize(x, steps, f), steps}
	}
	a := quantised("a", Blocks{m, k, 1, 2}, E4M3)
	b := quantised("b", Blocks{n, k, 2, 2}, E5M2)
	bias := Normals("bias", n, 1)
	want := make([]float64, m*n)
	for i := range m {
		for j := range n {
			want[i*n+j] = bias[j]
			for l := range k {
				want[i*n+j] += E4M3.Decode(uint16(a.Codes[i*k+l])) * a.Steps[i*3+l/2] *
					E5M2.Decode(uint16(b.Codes[j*k+l])) * b.Steps[j/2*3+l/2]
			}
		}
	}
	near(t, want, FP8MatMul(a, b, bias, m, n, k, false, true), 1e-14)
	turn := func(q Quantized) Quantized {
		across, down := q.across(), q.down()
		return Quantized{Blocks{q.Cols, q.Rows, q.BlockCols, q.BlockRows}, q.Format, Transpose(q.Codes, q.Rows, q.Cols), Transpose(q.Steps, down, across)}
	}
	for _, transA := range []bool{false, true} {
		for _, transB := range []bool{false, true} {
			x, y := a, turn(b)
			if transA {
				x = turn(a)
			}
			if transB {
				y = b
			}
			near(t, want, FP8MatMul(x, y, bias, m, n, k, transA, transB), 1e-14)
		}
	}
	require.Equal(t, want[:0], FP8MatMul(quantised("e", PerTensor(0, k), E4M3), b, bias, 0, n, k, false, true))
	none := FP8MatMul(quantised("e", PerTensor(m, 0), E4M3), quantised("e", PerTensor(n, 0), E4M3), bias, m, n, 0, false, true)
	require.Equal(t, append(append(append([]float64(nil), bias...), bias...), bias...), none)
}

// The straight-through gradient is the gradient of the linear layer with the
// quantised operands held in place of the raw ones.
func TestFP8Linear_Gradient(t *testing.T) {
	const m, n, k = 4, 3, 6
	grid := func(x []float64, rows, cols int, f *Format) Quantized {
		b := PerTensor(rows, cols)
		steps, _ := b.Amax(x)
		steps[0] = QuantStep(steps[0], 1, f, 0)
		return Quantized{b, f, b.Quantize(x, steps, f), steps}
	}
	x, w := grid(Normals("x", m*k, 1), m, k, E4M3), grid(Normals("w", n*k, 1), n, k, E4M3)
	dy := Normals("dy", m*n, 1)
	g := grid(dy, m, n, E5M2)
	dx, dw, db := FP8LinearGrad(dy, g, x, w, m, n, k)
	wantX, wantW, _ := LinearGrad(g.Values(), x.Values(), w.Values(), m, n, k)
	near(t, wantX, dx, 1e-14)
	near(t, wantW, dw, 1e-14)
	for j := range n {
		require.InDelta(t, dy[j]+dy[n+j]+dy[2*n+j]+dy[3*n+j], db[j], 1e-15, fmt.Sprint(j))
	}
	near(t, Linear(x.Values(), w.Values(), db, m, n, k), FP8Linear(x, w, db, m, n, k), 1e-14)
}
