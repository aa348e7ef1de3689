package optest

import (
	"cmp"
	"math"
	"slices"
)

// Sampling says how one token is drawn. Zero values are off, but for
// Temperature, where 0 takes the likeliest token.
type Sampling struct {
	Penalty, Temperature, TopP, MinP float64
	TopK                             int
	Seed                             uint64
	Number                           uint32
}

// Uniform is the number in [0,1) that the draw is made with.
func (s Sampling) Uniform() float64 {
	w := Philox([4]uint32{s.Number}, [2]uint32{uint32(s.Seed), uint32(s.Seed >> 32)})
	return math.Floor((float64(w[0])*0x1p32+float64(w[1]))/0x1p11) * 0x1p-53
}

// Draw is the token that the definition draws: probabilities by softmax, ranks
// by sorting, a token is kept while fewer than TopK and less than TopP of the
// mass are above it and it has MinP of the likeliest's, and the token is the
// one that the inverse of the distribution of what is kept gives. The margin
// is how near a border of these, as a share of the mass, the draw comes.
func (s Sampling) Draw(logits []float64, seen map[int]bool) (token int, margin float64) {
	z := slices.Clone(logits)
	ids := make([]int, len(z))
	for i := range z {
		ids[i] = i
		if seen[i] && s.Penalty != 0 {
			z[i] = math.Min(z[i]*s.Penalty, z[i]/s.Penalty)
			if s.Penalty < 1 {
				z[i] = math.Max(logits[i]*s.Penalty, logits[i]/s.Penalty)
			}
			z[i] = float64(float32(z[i])) // what is near a tie is one
		}
	}
	topP := s.TopP
	if topP == 0 {
		topP = 1
	}
	if s.Temperature == 0 || s.TopK > 0 || topP < 1 || s.MinP > 0 {
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(z[b], z[a]) })
	}
	top := slices.Max(z)
	if s.Temperature == 0 {
		return ids[0], 1
	}
	margin = 1
	border := func(distance float64) { margin = min(margin, math.Abs(distance)) }
	p := make([]float64, len(z))
	mass, kept := 0.0, ids[:0:0]
	for rank, i := range ids {
		if p[i] = math.Exp((z[i] - top) / s.Temperature); s.TopK == 0 || rank < s.TopK {
			mass += p[i]
		}
	}
	above := 0.0
	for rank, i := range ids {
		if s.TopK > 0 && rank >= s.TopK {
			break
		}
		if topP < 1 {
			border(above/mass - topP)
		}
		if s.MinP > 0 {
			border(p[i] - s.MinP)
		}
		if (topP == 1 || above < topP*mass) && p[i] >= s.MinP {
			kept = append(kept, i)
		}
		above += p[i]
	}
	total := 0.0
	for _, i := range kept {
		total += p[i]
	}
	u, sum := s.Uniform(), 0.0
	for _, i := range kept {
		if sum += p[i]; sum < total {
			border(sum/total - u)
		}
		if sum > u*total {
			return i, margin
		}
	}
	return kept[len(kept)-1], margin
}
