package optest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The known-answer vectors that come with Random123, the authors' library.
func TestPhilox_KnownAnswers(t *testing.T) {
	const ff = 0xFFFFFFFF
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ff, ff, ff, ff}, [2]uint32{ff, ff}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, c.want, Philox(c.counter, c.key))
	}
}

func TestDropout(t *testing.T) {
	// Seed 0, step 0, elements 0 to 3: the words of the first known answer, as
	// uniform numbers 0.399, 0.881, 0.736, 0.608.
	require.Equal(t, []float64{0, 4, 6, 8}, Dropout([]float64{1, 2, 3, 4}, 0.5, 0, 0))
	require.Equal(t, []float64{1, 2, 3}, Dropout([]float64{1, 2, 3}, 0, 7, 9))
	require.Equal(t, []float64{0, 0, 0}, Dropout([]float64{1, 2, math.NaN()}, 1, 7, 9))
	for _, p := range []float64{0.1, 0.5, 0.9} {
		kept := 0
		for i := range uint64(20000) {
			if DropoutKeeps(i, 3, 5, p) {
				kept++
			}
		}
		require.InDelta(t, 20000*(1-p), kept, 250) // 3.5 deviations
	}
	// Halves of index, step and seed go to different words.
	differ := map[[4]bool]bool{}
	for _, c := range [][3]uint64{{0, 0, 0}, {1 << 34, 0, 0}, {0, 1 << 32, 0}, {0, 0, 1 << 32}, {4, 0, 0}, {0, 1, 0}, {0, 0, 1}} {
		words := [4]bool{}
		for i := range words {
			words[i] = DropoutKeeps(c[0]+uint64(i), c[1], c[2], 0.5)
		}
		differ[words] = true
	}
	require.Greater(t, len(differ), 3)
}

func TestAdamW(t *testing.T) {
	a := AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Decay: 0.5}
	p, m, v := []float64{2, -1}, make([]float64, 2), make([]float64, 2)
	grads := [][]float64{{3, -4}, {1, 0}, {-2, 5}}
	for s, g := range grads {
		a.Step = s + 1
		old := p
		p, m, v = a.Update(p, g, m, v)
		if s == 0 { // the first step moves by lr against the sign
			near(t, []float64{2 - 0.1 - 0.1, -1 + 0.05 + 0.1}, p, 1e-9)
		}
		for i := range p { // the moments are weighted means of all gradients so far
			var sumM, sumV, weightM, weightV float64
			for k := range s + 1 {
				wm, wv := math.Pow(0.9, float64(s-k)), math.Pow(0.99, float64(s-k))
				sumM, weightM = sumM+wm*grads[k][i], weightM+wm
				sumV, weightV = sumV+wv*grads[k][i]*grads[k][i], weightV+wv
			}
			require.InDelta(t, old[i]*(1-0.05)-0.1*(sumM/weightM)/(math.Sqrt(sumV/weightV)+1e-8), p[i], 1e-14)
		}
	}
	same, _, _ := AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1}.Update([]float64{5}, []float64{0}, []float64{0}, []float64{0})
	require.Equal(t, []float64{5}, same)
}

func TestGlobalNorm(t *testing.T) {
	require.InDelta(t, 13, GlobalNorm([]float64{3, 4}, nil, []float64{-12}), 1e-14)
	require.Zero(t, GlobalNorm())
	require.InDelta(t, 5e200, GlobalNorm([]float64{3e200}, []float64{4e200}), 1e186)
	require.Equal(t, 1.0, ClipFactor(0.5, 1))
	require.InDelta(t, 0.25, ClipFactor(4, 1), 1e-6)
}
