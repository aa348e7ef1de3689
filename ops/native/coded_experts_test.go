package native

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// Stacks in 16 bits or blocks give what the oracle gives with the numbers that they
// hold.
func TestExpertsOnStoredStacks(t *testing.T) {
	for coding, format := range map[Coding]*optest.Format{CodedBF16: optest.BF16, CodedF16: optest.F16, CodedQ8_0: nil, CodedQ4_K: nil, CodedQ6_K: nil} {
		for i, x := range []Experts{
			{Tokens: 0, TopK: 2, E: 3, D: 4, F: 5},
			{Tokens: 9, TopK: 1, E: 1, D: 3, F: 2},
			{Tokens: 5, TopK: 2, E: 7, D: 9, F: 6},
			{Tokens: 150, TopK: 3, E: 5, D: 20, F: 33},
			{Tokens: 1, TopK: 4, E: 8, D: 130, F: 70},
		} {
			bound := 16.0
			if coding.Blocks() {
				if x.Tokens > 5 {
					continue
				}
				x.E, x.D, x.F = 4, 256, 256
				bound = 40 // longer sums, which cancel in dweights: measured up to 24.2
			}
			r := rand.New(rand.NewPCG(36, uint64(i)))
			in, dy := normals[float32](r, x.Tokens*x.D), normals[float32](r, x.Tokens*x.D)
			stack := func() (CodedStack, []float64) {
				if coding.Blocks() {
					data, held := randomCoded(r, coding, x.E*x.F*x.D), make([]float32, x.E*x.F*x.D)
					coding.widen(held, data)
					return CodedStack{data, coding}, wide(held)
				}
				codes, held := make([]uint16, x.E*x.F*x.D), make([]float64, x.E*x.F*x.D)
				for i := range codes {
					codes[i] = format.Encode(r.NormFloat64())
					held[i] = format.Decode(codes[i])
				}
				return CodedStack{bytesOf16(codes), coding}, held
			}
			gate, wideGate := stack()
			up, wideUp := stack()
			down, wideDown := stack()
			ids, weights := noIDs(x.Tokens*x.TopK), nans[float32](x.Tokens*x.TopK)
			Route(ids, weights, normals[float32](r, x.Tokens*x.E), nil, x.Tokens, Router{Experts: x.E, TopK: x.TopK, Sigmoid: true})
			oracle := optest.Experts{D: x.D, F: x.F, TopK: x.TopK}
			want := oracle.Forward(wide(in), wide(weights), ids, wideGate, wideUp, wideDown)
			wantIn, wantW, _, _, _ := oracle.Backward(wide(dy), wide(in), wide(weights), ids, wideGate, wideUp, wideDown)
			y, dx, dw := nans[float32](len(in)), nans[float32](len(in)), nans[float32](len(weights))
			g := ExpertsGrads[float32]{Tokens: dx, Weights: dw}
			u := &Clamped[float32]{Clamp{0.25, 2}, normals[float32](r, x.E*x.F), normals[float32](r, x.E*x.F), normals[float32](r, x.E*x.D)}
			clamped := optest.ClampedExperts{Experts: oracle, Alpha: 0.25, Limit: 2, Gate: wide(u.Gate), Up: wide(u.Up), Down: wide(u.Down)}
			g.GateBias, g.UpBias, g.DownBias = nans[float32](x.E*x.F), nans[float32](x.E*x.F), nans[float32](x.E*x.D)
			ExpertsCodedForward(y, in, weights, ids, gate, up, down, x, u)
			ExpertsCodedGradInput(g, dy, in, weights, ids, gate, up, down, x, u)
			near(t, "clamped y", y, clamped.Forward(wide(in), wide(weights), ids, wideGate, wideUp, wideDown), 16)
			for i, want := range clamped.Backward(wide(dy), wide(in), wide(weights), ids, wideGate, wideUp, wideDown) {
				if got := [][]float32{dx, dw, nil, nil, nil, g.GateBias, g.UpBias, g.DownBias}[i]; got != nil {
					near(t, fmt.Sprint("clamped gradient ", i), got, want, 32)
				}
			}
			run := func() {
				ExpertsCodedForward(y, in, weights, ids, gate, up, down, x, nil)
				ExpertsCodedGradInput(g, dy, in, weights, ids, gate, up, down, x, nil)
			}
			eachWorkers(t, func() []float32 {
				unmodified(t, run, in, weights, dy)
				return flat(y, dx, dw)
			})
			near(t, "y", y, want, bound)
			near(t, "dx", dx, wantIn, bound)
			near(t, "dweights", dw, wantW, bound)
			require.LessOrEqual(t, allocs(run), 2.0) // the rows of each call
		}
	}
}
