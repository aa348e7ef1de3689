package generate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how the next token is drawn from the logits. The zero value
// takes the likeliest token. The steps apply in the order of the fields:
// penalty, temperature, then the three cuts, each on what the one before left.
type Sampling struct {
	// RepetitionPenalty divides the positive logits, and multiplies the
	// negative ones, of tokens that prompt or text hold already. 0 or 1: off.
	// Source: Keskar et al., CTRL (arXiv:1909.05858).
	RepetitionPenalty float64
	// Temperature divides the logits; 0 takes the likeliest token, the lowest
	// id among equals.
	Temperature float64
	TopK        int     // keep the K likeliest tokens; 0: all
	TopP        float64 // keep the fewest likeliest tokens that hold this much probability; 0 or 1: all
	MinP        float64 // keep tokens with at least this part of the likeliest one's probability; 0: all
	Seed        uint64  // the draws are a function of the seed and the number of the token
}

// ParamError is a sampling parameter out of its range.
type ParamError struct {
	Name string
	Got  any
	Want string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("generate: %s must be %s, got %v", e.Name, e.Want, e.Got)
}

// Check refuses parameters out of range.
func (s Sampling) Check() error {
	for _, x := range []struct {
		name string
		v    float64
		ok   bool
		want string
	}{
		{"repetition penalty", s.RepetitionPenalty, s.RepetitionPenalty >= 0, "0 (off) or above"},
		{"temperature", s.Temperature, s.Temperature >= 0, "0 or above"},
		{"top-k", float64(s.TopK), s.TopK >= 0, "0 (all) or above"},
		{"top-p", s.TopP, s.TopP >= 0 && s.TopP <= 1, "0 to 1"},
		{"min-p", s.MinP, s.MinP >= 0 && s.MinP <= 1, "0 to 1"},
	} {
		if !x.ok || math.IsInf(x.v, 0) {
			return &ParamError{x.name, x.v, x.want}
		}
	}
	return nil
}

// sampler draws the tokens of one request.
type sampler struct {
	Sampling
	seen   []bool // tokens that the penalty is for
	cands  []candidate
	greedy bool
	pcg    *rand.PCG
	rand   *rand.Rand // draws from pcg, which each token seeds anew
}

type candidate struct {
	id int32
	p  float64 // logit, then weight relative to the likeliest
}

func newSampler(s Sampling, vocab int) *sampler {
	p := &sampler{Sampling: s, greedy: s.Temperature == 0, pcg: new(rand.PCG)}
	p.rand = rand.New(p.pcg)
	if p.RepetitionPenalty == 0 {
		p.RepetitionPenalty = 1
	}
	if p.RepetitionPenalty != 1 {
		p.seen = make([]bool, vocab)
	}
	if !p.greedy {
		p.cands = make([]candidate, 0, vocab)
	}
	return p
}

// saw tells the sampler of a token of the prompt or the text.
func (s *sampler) saw(id int32) {
	if s.seen != nil {
		s.seen[id] = true
	}
}

func (s *sampler) logit(logits []float32, id int) float64 {
	z := float64(logits[id])
	if s.seen == nil || !s.seen[id] {
		return z
	}
	if z > 0 {
		return z / s.RepetitionPenalty
	}
	return z * s.RepetitionPenalty
}

// next draws token number n from the logits. Logits of -Inf are never drawn;
// NaN, or nothing above -Inf, is an error.
func (s *sampler) next(logits []float32, n int) (int32, error) {
	best, top := -1, math.Inf(-1)
	for id := range logits {
		z := s.logit(logits, id)
		if math.IsNaN(z) {
			return 0, fmt.Errorf("generate: the logit of token %d is NaN", id)
		}
		if z > top {
			best, top = id, z
		}
	}
	if best < 0 || math.IsInf(top, 1) {
		return 0, fmt.Errorf("generate: no token can be drawn: the largest logit is %v", top)
	}
	if s.greedy {
		return int32(best), nil
	}
	c := s.cands[:0]
	for id := range logits {
		// exp of the distance to the top: at most 1, and 0 far below.
		if w := math.Exp((s.logit(logits, id) - top) / s.Temperature); w > 0 {
			c = append(c, candidate{int32(id), w})
		}
	}
	s.cands = c
	c = s.cut(c)
	total := 0.0
	for _, x := range c {
		total += x.p
	}
	s.pcg.Seed(s.Seed, uint64(n))
	u := s.rand.Float64() * total
	for _, x := range c {
		if u -= x.p; u < 0 {
			return x.id, nil
		}
	}
	return c[len(c)-1].id, nil // the sum rounded up to its end
}

// cut applies top-k, top-p and min-p.
func (s *sampler) cut(c []candidate) []candidate {
	if s.TopK == 0 && (s.TopP == 0 || s.TopP == 1) && s.MinP == 0 {
		return c
	}
	slices.SortFunc(c, func(a, b candidate) int {
		switch {
		case a.p > b.p:
			return -1
		case a.p < b.p:
			return 1
		}
		return int(a.id) - int(b.id)
	})
	if s.TopK > 0 && s.TopK < len(c) {
		c = c[:s.TopK]
	}
	if s.TopP > 0 && s.TopP < 1 {
		total := 0.0
		for _, x := range c {
			total += x.p
		}
		sum := 0.0
		for i, x := range c {
			if sum += x.p; sum >= s.TopP*total {
				c = c[:i+1]
				break
			}
		}
	}
	for i, x := range c {
		if x.p < s.MinP {
			return c[:i]
		}
	}
	return c
}
