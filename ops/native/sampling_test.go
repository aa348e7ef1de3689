package native

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestSamplingDoesNotAllocate(t *testing.T) {
	z, words, tokens, seen := make([]float32, 4*1000), make([]int32, 4*DrawWords), make([]int32, 4), make([]int32, 4*32)
	for r, d := range []Draw{{Penalty: 2}, {Penalty: 1, Temperature: 1}, {Penalty: 1, Temperature: 1, TopK: 5}, {Penalty: 2, Temperature: 1, TopP: 0.5}} {
		d.Put(words[r*DrawWords:])
	}
	run := func() { require.NoError(t, Sampling(tokens, z, words, seen, 4, 1000)) }
	run()
	require.Zero(t, testing.AllocsPerRun(20, run))
}
