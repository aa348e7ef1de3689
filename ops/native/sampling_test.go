package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

var inf = math.Inf(1)

func logits(z ...float64) []float32 {
	f := make([]float32, len(z))
	for i, v := range z {
		f[i] = float32(v)
	}
	return f
}

// drawn are the tokens of n requests that draw from the same logits.
func drawn(t *testing.T, z []float32, d Draw, n int, seen ...int32) []int32 {
	t.Helper()
	if d.Penalty == 0 {
		d.Penalty = 1
	}
	tokens, words, rows := make([]int32, n), make([]int32, n*DrawWords), []float32{}
	for r := range n {
		d.Number = int32(r)
		d.Put(words[r*DrawWords:])
		rows = append(rows, z...)
	}
	require.NoError(t, Sampling(tokens, rows, words, seen, n, len(z)))
	return tokens
}

// draws counts what 4,000 draws give.
func draws(t *testing.T, z []float32, d Draw) []int {
	t.Helper()
	count := make([]int, len(z))
	for _, id := range drawn(t, z, d, 4000) {
		count[id]++
	}
	return count
}

func TestS01_EdgesOfSampling(t *testing.T) {
	z := logits(1, 3, 2, -1)
	for name, s := range map[string]Draw{
		"temperature 0":     {},
		"temperature 1e-4":  {Temperature: 1e-4},
		"top-p 1e-4":        {Temperature: 1, TopP: 1e-4},
		"top-k 1":           {Temperature: 1, TopK: 1},
		"min-p 1":           {Temperature: 1, MinP: 1},
		"temperature 1e-44": {Temperature: 1e-44},
	} {
		require.Equal(t, []int{0, 4000, 0, 0}, draws(t, z, s), name)
	}
	// Every token can be drawn, about as often as softmax says.
	total := math.Exp(1) + math.Exp(3) + math.Exp(2) + math.Exp(-1)
	for name, s := range map[string]Draw{
		"plain": {Temperature: 1}, "top-k 0": {Temperature: 1, TopK: 0}, "top-k above the vocabulary": {Temperature: 1, TopK: 100},
		"top-p 0": {Temperature: 1, TopP: 0}, "top-p 1": {Temperature: 1, TopP: 1},
	} {
		count := draws(t, z, s)
		for id, v := range z {
			p := math.Exp(float64(v)) / total
			require.InDelta(t, p, float64(count[id])/4000, 4*math.Sqrt(p*(1-p)/4000), "%s: token %d, within four deviations", name, id)
		}
	}
	// All logits -Inf but one.
	one := logits(-inf, -inf, 2, -inf)
	for _, s := range []Draw{{}, {Temperature: 1}, {Temperature: 1e-4, TopK: 3}, {Temperature: 2, TopP: 0.5, MinP: 0.5}} {
		require.Equal(t, []int{0, 0, 4000, 0}, draws(t, one, s))
	}
	for _, d := range []Draw{{}, {Temperature: 1}, {Temperature: 1, TopK: 1}} {
		require.Equal(t, []int32{NoneDrawn}, drawn(t, logits(-inf, -inf), d, 1))
		require.Equal(t, []int32{NaNLogit}, drawn(t, logits(1, math.NaN()), d, 1))
		require.Equal(t, []int32{NoneDrawn}, drawn(t, logits(1, inf), d, 1))
	}
	tie := logits(0, 5, 5, 5)
	require.Equal(t, []int{0, 4000, 0, 0}, draws(t, tie, Draw{}), "the lowest id among equals")
}

// Of a vocabulary of several blocks and a rest the first of the largest is drawn,
// and a NaN anywhere is found.
func TestGreedyOverBlocks(t *testing.T) {
	const n = 2*drawBlock + 37
	places := []int{0, 1, drawBlock - 1, drawBlock, 2*drawBlock - 1, 2 * drawBlock, n - 1}
	for i, at := range places {
		z := make([]float32, n)
		for j := range z {
			z[j] = -1 - float32(j%5)
		}
		for _, later := range places[i:] {
			z[later] = 7
		}
		require.Equal(t, []int32{int32(at)}, drawn(t, z, Draw{}, 1), "the largest at %d", at)
		z[at] = float32(math.NaN())
		require.EqualValues(t, NaNLogit, drawToken(z, Draw{}), "NaN at %d", at)
	}
}

func TestCutsKeepTheLikeliest(t *testing.T) {
	z := logits(0, math.Log(2), math.Log(4), math.Log(8)) // 1/15, 2/15, 4/15, 8/15
	for _, c := range []struct {
		s    Draw
		kept []bool
	}{
		{Draw{Temperature: 1, TopK: 2}, []bool{false, false, true, true}},
		{Draw{Temperature: 1, TopP: 0.5}, []bool{false, false, false, true}},
		{Draw{Temperature: 1, TopP: 0.6}, []bool{false, false, true, true}},
		{Draw{Temperature: 1, MinP: 0.2}, []bool{false, true, true, true}},
		{Draw{Temperature: 1, TopK: 3, TopP: 0.9}, []bool{false, true, true, true}},
		{Draw{Temperature: 1, TopK: 3, TopP: 0.8}, []bool{false, false, true, true}}, // 12/14 of what top-k left
	} {
		for id, n := range draws(t, z, c.s) {
			require.Equal(t, c.kept[id], n > 0, "%+v: token %d", c.s, id)
		}
	}
}

// Logits of float64 whose distances have no finite inverse.
func TestCutsOfTheSmallestDistances(t *testing.T) {
	z := []float64{0, math.SmallestNonzeroFloat64, 2 * math.SmallestNonzeroFloat64}
	require.EqualValues(t, 2, drawToken(z, Draw{Temperature: 1, TopK: 1}))
	require.EqualValues(t, 2, drawToken(z, Draw{Temperature: 1, TopP: 0.3}))
}

func TestRepetitionPenalty(t *testing.T) {
	require.Equal(t, []int32{1}, drawn(t, logits(3, 2, -1), Draw{Penalty: 2}, 1, 0b101), "3/2 is below 2")
	require.Equal(t, []int32{0}, drawn(t, logits(-3, -2, -5), Draw{Penalty: 2}, 1, 0b010), "a negative logit is multiplied")
	require.Equal(t, []int32{0}, drawn(t, logits(3, 2, -1), Draw{Penalty: 2}, 1), "nothing was seen")
}

func TestN11_DrawsAreAFunctionOfSeedAndPlace(t *testing.T) {
	z := make([]float32, 100)
	a := drawn(t, z, Draw{Temperature: 1, Seed: 7}, 50)
	require.Equal(t, a, drawn(t, z, Draw{Temperature: 1, Seed: 7}, 50))
	require.Equal(t, a[:20], drawn(t, z, Draw{Temperature: 1, Seed: 7}, 20), "others in the call change nothing")
	require.NotEqual(t, a, drawn(t, z, Draw{Temperature: 1, Seed: 8}, 50))
	require.NotEqual(t, a, drawn(t, z, Draw{Temperature: 1, Seed: 7 + 1<<32}, 50))
}

// What must not be drawn is not, and parameters out of range are refused before
// anything is written.
func TestDrawsRefuse(t *testing.T) {
	words, tokens := make([]int32, 2*DrawWords), []int32{7, 7}
	Draw{Number: -1}.Put(words)
	Draw{Penalty: 1, Number: 4}.Put(words[DrawWords:])
	require.NoError(t, Sampling(tokens, make([]float32, 6), words, nil, 2, 3))
	require.Equal(t, []int32{NoDraw, 0}, tokens)
	for want, d := range map[string]Draw{
		"temperature of request 1 must be 0 or above and finite, got -1":  {Penalty: 1, Temperature: -1},
		"temperature of request 1 must be 0 or above and finite, got NaN": {Penalty: 1, Temperature: float32(math.NaN())},
		"penalty of request 1 must be above 0 and finite, got 0":          {},
		"top-k of request 1 must be 0 or above, got -5":                   {Penalty: 1, TopK: -5},
		"top-p of request 1 must be 0 to 1, got 1.5":                      {Penalty: 1, TopP: 1.5},
		"min-p of request 1 must be 0 to 1, got -0.5":                     {Penalty: 1, MinP: -0.5},
	} {
		d.Put(words[DrawWords:])
		require.EqualError(t, Sampling(tokens, make([]float32, 6), words, nil, 2, 3), want)
		require.Equal(t, []int32{NoDraw, 0}, tokens)
	}
}

// Flat, tied, masked, subnormal and lone logits: the token is the oracle's, where
// the draw is not within rounding of a border.
func TestSamplingOfEveryDistribution(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	masked := func(f func() float64) func() float64 {
		return func() float64 {
			if r.IntN(10) > 0 {
				return -inf
			}
			return f()
		}
	}
	normal := func(spread float64) func() float64 { return func() float64 { return spread * r.NormFloat64() } }
	near, tried := 0, 0
	for name, f := range map[string]func() float64{ // in any order: each begins with r anew
		"flat": normal(0.01), "wide": normal(4), "equal": func() float64 { return 2.5 }, "tied": func() float64 { return math.Round(2*r.NormFloat64()) / 2 },
		"two": func() float64 { return float64(r.IntN(2)) }, "masked": masked(normal(3)), "subnormal": normal(1e-41), "zeros": func() float64 { return math.Copysign(0, r.NormFloat64()) },
		"far": func() float64 { return 1e30 * (1 + 1e-6*r.NormFloat64()) }, "outliers": func() float64 { return math.Exp(20 * r.NormFloat64()) },
	} {
		r = rand.New(rand.NewPCG(5, 5))
		for _, v := range []int{1, 5, 1000, 2053, 5000} {
			z := make([]float32, v)
			for i := range z {
				z[i] = float32(f())
			}
			z[r.IntN(v)] = max(z[0], 0.25) // not all are -Inf
			x := make([]float64, v)
			for i := range x {
				x[i] = float64(z[i])
			}
			for _, d := range []Draw{{}, {Temperature: 1}, {Temperature: 0.8, TopK: 50, TopP: 0.9}, {Temperature: 5, TopP: 0.95}, {Temperature: 1, TopP: 0.3}, {Temperature: 1, MinP: 0.05}, {Temperature: 2, TopK: 700},
				{Temperature: 3, TopP: 0.9, MinP: 0.3}, {Temperature: 1e30, TopK: 600}, {Temperature: 1e-44, TopP: 0.5}, {Temperature: 1, TopK: 1 << 20}, {Temperature: 1, TopK: 900, TopP: 0.6, MinP: 0.01}} {
				d.Seed = r.Uint64()
				for i, got := range drawn(t, z, d, 3) {
					o := optest.Sampling{Temperature: float64(d.Temperature), TopP: float64(d.TopP), MinP: float64(d.MinP), TopK: int(d.TopK), Seed: d.Seed, Number: uint32(i)}
					want, margin := o.Draw(x, nil)
					if tried++; margin < 1e-11 {
						near++
						continue
					}
					require.EqualValues(t, want, got, "%s, vocabulary %d, %+v, margin %g", name, v, d, margin)
				}
			}
		}
	}
	t.Logf("%d of %d draws are within rounding of a border", near, tried)
	require.Less(t, near, tried/20)
}

// The weights are the exponentials, in every kernel set the same bits.
func TestDrawWeights(t *testing.T) {
	x := make([]float32, 0, 1<<16)
	for i := range cap(x) - 3 {
		x = append(x, float32(3-float64(i)*float64(i)*2e-7))
	}
	x = append(x, float32(math.Inf(-1)), -math.MaxFloat32, 1e-41)
	for _, temperature := range []float64{1, 0.3, 1e-4, 30, 1e30, 1e-44} {
		want := make([]float64, len(x))
		for i, z := range x {
			want[i] = weightOf(float64(z), 3, math.Log2E/temperature)
			if e := math.Exp((float64(z) - 3) / temperature); e > 1e-300 {
				require.InEpsilon(t, e, want[i], 2e-13, "temperature %v, %v", temperature, z) // measured 1.1e-13: the argument's rounding
			} else {
				require.Less(t, want[i], 1e-299)
			}
		}
		eachKernel(t, func(t *testing.T) {
			got := make([]float64, len(x)+1)
			got[len(x)] = -1
			weights(got[:len(x)], x, 3, math.Log2E/temperature)
			require.Equal(t, want, got[:len(x)])
			require.EqualValues(t, -1, got[len(x)])
		})
	}
}

func TestSamplingDoesNotAllocate(t *testing.T) {
	z, words, tokens, seen := make([]float32, 4*1000), make([]int32, 4*DrawWords), make([]int32, 4), make([]int32, 4*32)
	for r, d := range []Draw{{Penalty: 2}, {Penalty: 1, Temperature: 1}, {Penalty: 1, Temperature: 1, TopK: 5}, {Penalty: 2, Temperature: 1, TopP: 0.5}} {
		d.Put(words[r*DrawWords:])
	}
	run := func() { require.NoError(t, Sampling(tokens, z, words, seen, 4, 1000)) }
	run()
	require.Zero(t, testing.AllocsPerRun(20, run))
}

// BenchmarkSampling draws one token of 49,152 and of 128,256.
func BenchmarkSampling(b *testing.B) {
	for _, v := range []int{49152, 128256} {
		z := make([]float32, v)
		for i := range z {
			z[i] = float32(3 * math.Sin(float64(i*i)))
		}
		words, tokens := make([]int32, DrawWords), make([]int32, 1)
		for _, c := range []struct {
			name string
			d    Draw
		}{{"greedy", Draw{}}, {"temperature", Draw{Temperature: 0.8}}, {"top-k", Draw{Temperature: 0.8, TopK: 50, TopP: 0.9}}, {"top-p", Draw{Temperature: 1, TopP: 0.95}}, {"min-p", Draw{Temperature: 1, MinP: 0.05}}} {
			c.d.Penalty = 1
			c.d.Put(words)
			b.Run(fmt.Sprintf("%s/%d/%s", GemmKernel(), v, c.name), func(b *testing.B) {
				b.ReportMetric(1e6*fastest(b, func() { must(Sampling(tokens, z, words, nil, 1, v)) }), "us")
			})
		}
	}
}
