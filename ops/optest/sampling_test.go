package optest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The draws of many numbers are spread as the probabilities of what the cuts
// leave, computed by hand.
func TestSampling_SpreadIsTheDistribution(t *testing.T) {
	z := []float64{0, math.Log(2), math.Log(4), math.Log(8)} // 1/15, 2/15, 4/15, 8/15
	for _, c := range []struct {
		s    Sampling
		want [4]float64
	}{
		{Sampling{Temperature: 1}, [4]float64{1. / 15, 2. / 15, 4. / 15, 8. / 15}},
		{Sampling{Temperature: 0.5}, [4]float64{1. / 85, 4. / 85, 16. / 85, 64. / 85}},
		{Sampling{Temperature: 1, TopK: 2}, [4]float64{0, 0, 1. / 3, 2. / 3}},
		{Sampling{Temperature: 1, TopP: 0.6}, [4]float64{0, 0, 1. / 3, 2. / 3}},
		{Sampling{Temperature: 1, MinP: 0.2}, [4]float64{0, 1. / 7, 2. / 7, 4. / 7}},
		{Sampling{Temperature: 1, TopK: 3, TopP: 0.8}, [4]float64{0, 0, 1. / 3, 2. / 3}},
		{Sampling{}, [4]float64{0, 0, 0, 1}},
	} {
		var count [4]float64
		for n := range 8000 {
			c.s.Number, c.s.Seed = uint32(n), 12
			token, _ := c.s.Draw(z, nil)
			count[token]++
		}
		for i, p := range c.want {
			require.InDelta(t, p, count[i]/8000, 4*math.Sqrt(p*(1-p)/8000), "%+v, token %d: within four deviations", c.s, i)
		}
	}
	s := Sampling{Penalty: 2}
	token, _ := s.Draw([]float64{3, 2, -1}, map[int]bool{0: true})
	require.Equal(t, 1, token, "3/2 is below 2")
	token, _ = s.Draw([]float64{-3, -2, -5}, map[int]bool{1: true})
	require.Equal(t, 0, token, "-2 times 2 is below -3")
}
