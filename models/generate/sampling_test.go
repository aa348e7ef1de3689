package generate

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

// draws counts what 4,000 draws give.
func draws(t *testing.T, z []float32, s Sampling) []int {
	t.Helper()
	require.NoError(t, s.Check())
	p := newSampler(s, len(z))
	count := make([]int, len(z))
	for n := range 4000 {
		id, err := p.next(z, n)
		require.NoError(t, err)
		count[id]++
	}
	return count
}

func TestS01_EdgesOfSampling(t *testing.T) {
	z := logits(1, 3, 2, -1)
	for name, s := range map[string]Sampling{
		"temperature 0":      {},
		"temperature 1e-4":   {Temperature: 1e-4},
		"top-p 1e-4":         {Temperature: 1, TopP: 1e-4},
		"top-k 1":            {Temperature: 1, TopK: 1},
		"min-p 1":            {Temperature: 1, MinP: 1},
		"temperature 1e-300": {Temperature: 1e-300},
	} {
		require.Equal(t, []int{0, 4000, 0, 0}, draws(t, z, s), name)
	}
	// Every token can be drawn, about as often as softmax says.
	total := math.Exp(1) + math.Exp(3) + math.Exp(2) + math.Exp(-1)
	for name, s := range map[string]Sampling{
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
	for _, s := range []Sampling{{}, {Temperature: 1}, {Temperature: 1e-4, TopK: 3}, {Temperature: 2, TopP: 0.5, MinP: 0.5}} {
		require.Equal(t, []int{0, 0, 4000, 0}, draws(t, one, s))
	}
	for _, bad := range [][]float32{logits(-inf, -inf), logits(1, math.NaN()), logits(1, inf)} {
		_, err := newSampler(Sampling{Temperature: 1}, 2).next(bad, 0)
		require.Error(t, err)
	}
	tie := logits(0, 5, 5, 5)
	require.Equal(t, []int{0, 4000, 0, 0}, draws(t, tie, Sampling{}), "the lowest id among equals")
}

func TestCutsKeepTheLikeliest(t *testing.T) {
	z := logits(0, math.Log(2), math.Log(4), math.Log(8)) // 1/15, 2/15, 4/15, 8/15
	for _, c := range []struct {
		s    Sampling
		kept []bool
	}{
		{Sampling{Temperature: 1, TopK: 2}, []bool{false, false, true, true}},
		{Sampling{Temperature: 1, TopP: 0.5}, []bool{false, false, false, true}},
		{Sampling{Temperature: 1, TopP: 0.6}, []bool{false, false, true, true}},
		{Sampling{Temperature: 1, MinP: 0.2}, []bool{false, true, true, true}},
		{Sampling{Temperature: 1, TopK: 3, TopP: 0.9}, []bool{false, true, true, true}},
		{Sampling{Temperature: 1, TopK: 3, TopP: 0.8}, []bool{false, false, true, true}}, // 12/14 of what top-k left
	} {
		for id, n := range draws(t, z, c.s) {
			require.Equal(t, c.kept[id], n > 0, "%+v: token %d", c.s, id)
		}
	}
}

func TestRepetitionPenalty(t *testing.T) {
	s := newSampler(Sampling{RepetitionPenalty: 2}, 3)
	s.saw(0)
	s.saw(2)
	id, err := s.next(logits(3, 2, -1), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, id, "3/2 is below 2")
	require.Equal(t, -2.0, s.logit(logits(3, 2, -1), 2), "a negative logit is multiplied")
}

func TestN11_DrawsAreAFunctionOfSeedAndPlace(t *testing.T) {
	z := make([]float32, 100)
	a, b := newSampler(Sampling{Temperature: 1, Seed: 7}, 100), newSampler(Sampling{Temperature: 1, Seed: 7}, 100)
	c := newSampler(Sampling{Temperature: 1, Seed: 8}, 100)
	differ := false
	for n := range 50 {
		x, err := a.next(z, n)
		require.NoError(t, err)
		y, err := b.next(z, n)
		require.NoError(t, err)
		require.Equal(t, x, y)
		w, err := c.next(z, n)
		require.NoError(t, err)
		differ = differ || w != x
	}
	require.True(t, differ)
}
