package generate

import (
	"errors"
	"fmt"
	"math"

	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
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

// draw is what a step's plan is told of the draw of token number n; below 0:
// none is drawn.
func (s Sampling) draw(n int) ops.Draw {
	d := ops.Draw{Penalty: 1, Temperature: narrow(s.Temperature), TopK: int32(min(s.TopK, math.MaxInt32)), TopP: above(s.TopP), MinP: above(s.MinP), Number: int32(n), Seed: s.Seed}
	if s.penalised() {
		d.Penalty = above(s.RepetitionPenalty)
	}
	return d
}

func (s Sampling) penalised() bool { return s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 }

// narrow rounds to float32, a number too large to the largest.
func narrow(x float64) float32 { return float32(min(x, math.MaxFloat32)) }

// above is narrow of a number that means something else at 0: above 0 it stays so.
func above(x float64) float32 {
	if x > 0 {
		return max(narrow(x), math.SmallestNonzeroFloat32)
	}
	return 0
}

// noToken says why a draw gave no token.
func noToken(answer int32) error {
	if answer == native.NaNLogit {
		return errors.New("generate: no token can be drawn: a logit is NaN")
	}
	return errors.New("generate: no token can be drawn: the largest logit is infinite")
}

// seen is the set of the tokens that a penalty is for, a bit each.
type seen []int32

func (s Sampling) newSeen(vocab int) seen {
	if !s.penalised() {
		return nil
	}
	return make(seen, (vocab+31)/32)
}

func (s seen) add(id int32) {
	if s != nil {
		s[id/32] |= 1 << (id % 32)
	}
}
