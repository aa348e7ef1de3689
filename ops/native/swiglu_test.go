package native

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// TestSwiGLUMeasured: results and measures are those of SwiGLU, its gradient and
// FP8TensorAmax, NaN and infinities included.
func TestSwiGLUMeasured(t *testing.T) {
	for _, n := range []int{0, 1, 17, unitElements, 2*unitElements + 5} {
		in := func(name string) []float32 { return optest.Cast[float32](optest.Normals(fmt.Sprint(name, n), n, 2)) }
		gate, up, dy := in("gate"), in("up"), in("dy")
		if n > 100 {
			gate[3], up[n-1], dy[50], dy[n-2] = float32(math.NaN()), float32(math.Inf(1)), float32(math.NaN()), 1e30
		}
		y, dgate, dup := make([]float32, n), make([]float32, n), make([]float32, n)
		SwiGLU(y, gate, up, n)
		SwiGLUGrad(dgate, dup, dy, gate, up, n)
		got := eachWorkers(t, func() []float32 {
			y, dgate, dup := nans[float32](n), nans[float32](n), nans[float32](n)
			var m [3]float32
			var nan [3]int
			m[0], nan[0] = SwiGLUMeasured(y[:n], gate, up)
			ms, ns := SwiGLUGradMeasured(dgate[:n], dup[:n], dy, gate, up)
			m[1], m[2], nan[1], nan[2] = ms[0], ms[1], ns[0], ns[1]
			all := append(append(append([]float32{}, y[:n]...), dgate[:n]...), dup[:n]...)
			for i := range m {
				all = append(all, m[i], float32(nan[i]))
			}
			return all
		})
		want := append(append(append([]float32{}, y...), dgate...), dup...)
		for _, x := range [][]float32{y, dgate, dup} {
			m, nan := FP8TensorAmax(x)
			want = append(want, m, float32(nan))
		}
		requireSameBits(t, want, got)
		if n > 100 {
			require.NotZero(t, want[len(want)-1], "NaN are counted")
		}
	}
}
