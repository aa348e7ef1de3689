package native

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
)

// Products of bf16 against the oracle on rounded operands: what remains is the
// rounding of probabilities and of the gradient of the scores, in roundoffs of
// bf16 (lse, which has neither, in those of float32), with every kernel set.
func TestAttentionBF16AgainstOracle(t *testing.T) {
	attnInBF16 = true
	defer func() { attnInBF16 = false }()
	kernelsUpTo(t, amxKernel, func(t *testing.T) {
		worst, worstLSE := map[string]float64{}, 0.0
		for _, c := range attnCases() {
			t.Run(c.name, func(t *testing.T) {
				a, q, k, v, dout, dlse := c.data(t)
				for _, x := range []*[]float64{&q, &k, &v, &dout} {
					*x = optest.BF16.Round(*x)
				}
				out, lse := a.Forward(q, k, v)
				dq, dk, dv, dsinks := a.Backward(q, k, v, dout, dlse)
				r := newAttnRun[float32](a, q, k, v, dout, dlse)
				r.run(t)
				for name, x := range map[string]struct {
					got  []float32
					want []float64
				}{
					"out": {r.args.Out, out}, "dq": {r.args.DQ, dq}, "dk": {r.args.DK, dk}, "dv": {r.args.DV, dv}, "dsinks": {r.args.DSinks, dsinks},
				} {
					d := optest.RequireClose(t, name, x.got, x.want, optest.BFloat16, attnBF16Bound)
					worst[name] = max(worst[name], d.RMS/float64(optest.BFloat16))
				}
				d := optest.RequireClose(t, "lse", r.args.LSE, lse, optest.Float32, attnBound)
				worstLSE = max(worstLSE, d.RMS/float64(optest.Float32))
			})
		}
		t.Logf("largest rms errors in unit roundoffs of bf16: %v, of float32: lse %.2f", worst, worstLSE)
	})
}

// attnBF16Bound is the accepted rms error in unit roundoffs of bf16. Measured over
// all cases and kernel sets: 0.87.
const attnBF16Bound = 2

// TestPairBoth holds the words of both forms to the rounding of each number.
func TestPairBoth(t *testing.T) {
	if !multipliesPairs[float32]() {
		t.Skip("no instruction for bf16")
	}
	for _, n := range []int{1, 2, 7, 32} {
		for _, d := range []int{1, 2, 31, 32, 33, 64, 65} {
			x := optest.Cast[float32](optest.Normals("x", n*d, 1))
			ld, ldr := wholeCols(d), (d+1)/2
			cols, rows := optest.Guard[float32]((n+1)/2*ld), optest.Guard[float32](n*ldr)
			require.True(t, pairBoth(cols.Data, ld, rows.Data, ldr, x, d, n, d))
			optest.CheckGuards(t, "cols", cols)
			optest.CheckGuards(t, "rows", rows)
			for i := range n {
				for j := range d {
					want := dtype.ToBF16(x[i*d+j]).Float32()
					require.Equal(t, want, half(cols.Data[i/2*ld+j], i), "%d x %d: %d, %d", n, d, i, j)
					require.Equal(t, want, half(rows.Data[i*ldr+j/2], j), "%d x %d: %d, %d", n, d, i, j)
				}
			}
			x[(n-1)*d+d-1] = 3.4e38 // finite, but not in bf16
			require.False(t, pairBoth(cols.Data, ld, rows.Data, ldr, x, d, n, d))
		}
	}
}
