package optest

import (
	"fmt"
	"math"
)

// RopeScaling holds what a checkpoint's rope_scaling says, under its own names.
// A zero field is one that the checkpoint does not give.
type RopeScaling struct {
	Type            string // default (or empty), linear, dynamic, yarn, llama3, longrope
	Factor          float64
	Original        float64 // original_max_position_embeddings
	MaxPositions    float64 // max_position_embeddings of the model
	Length          float64 // tokens of the sequence at hand (dynamic, longrope)
	LowFreqFactor   float64 // llama3
	HighFreqFactor  float64
	BetaFast        float64 // yarn, 32 if not given
	BetaSlow        float64 // yarn, 1 if not given
	AttentionFactor float64
	MScale          float64 // yarn
	MScaleAllDim    float64
	NoTruncate      bool // yarn: keep the fractional ends of the ramp
	ShortFactor     []float64
	LongFactor      []float64 // longrope, one for each frequency
}

// InverseFrequencies returns the Dr/2 frequencies of a scaling type and the
// factor that multiplies cos and sin. With f(i) = base^(-2i/Dr):
//
//	default   f
//	linear    f / factor
//	dynamic   f of the base  base (factor L/M - factor + 1)^(Dr/(Dr-2)), L = max(length, M)
//	llama3    f where 2 pi/f < original/high, f/factor where it is > original/low, between
//	          them the two mixed by (original f / (2 pi) - low) / (high - low)
//	yarn      f and f/factor mixed by a ramp over i between the indices that turn
//	          betaFast and betaSlow times in the original length; factor 0.1 ln(factor) + 1
//	longrope  f / short or long, by length > original; factor sqrt(1 + ln(factor)/ln(original))
//
// M is the model's longest position. Sources: Position Interpolation
// (arXiv:2306.15595), NTK-aware scaling with dynamic length, YaRN
// (arXiv:2309.00071), the Llama 3.1 release, LongRoPE (arXiv:2402.13753).
func InverseFrequencies(base float64, dr int, s RopeScaling) (frequencies []float64, factor float64, err error) {
	f := make([]float64, dr/2)
	for i := range f {
		f[i] = math.Pow(base, -2*float64(i)/float64(dr))
	}
	scale := s.Factor
	if scale == 0 && s.Original > 0 {
		scale = s.MaxPositions / s.Original
	}
	switch s.Type {
	case "", "default":
		return f, 1, nil
	case "linear":
		for i := range f {
			f[i] /= scale
		}
		return f, 1, nil
	case "dynamic":
		length := max(s.Length, s.MaxPositions)
		wider := base * math.Pow(scale*length/s.MaxPositions-scale+1, float64(dr)/float64(dr-2))
		return InverseFrequencies(wider, dr, RopeScaling{})
	case "llama3":
		for i := range f {
			f[i] = llama3Frequency(f[i], s)
		}
		return f, 1, nil
	case "yarn":
		return yarn(f, base, dr, scale, s), yarnFactor(scale, s), nil
	case "longrope":
		stretch := s.ShortFactor
		if s.Length > s.Original {
			stretch = s.LongFactor
		}
		for i := range f {
			f[i] /= stretch[i]
		}
		switch {
		case s.AttentionFactor > 0:
			return f, s.AttentionFactor, nil
		case scale <= 1:
			return f, 1, nil
		}
		return f, math.Sqrt(1 + math.Log(scale)/math.Log(s.Original)), nil
	}
	return nil, 0, fmt.Errorf("rotary: unknown scaling type %q", s.Type)
}

func llama3Frequency(f float64, s RopeScaling) float64 {
	turns := s.Original * f / (2 * math.Pi) // in the original length
	switch {
	case turns > s.HighFreqFactor:
		return f
	case turns < s.LowFreqFactor:
		return f / s.Factor
	}
	mix := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	return mix*f + (1-mix)*f/s.Factor
}

func yarn(f []float64, base float64, dr int, scale float64, s RopeScaling) []float64 {
	fast, slow := s.BetaFast, s.BetaSlow
	if fast == 0 {
		fast = 32
	}
	if slow == 0 {
		slow = 1
	}
	// The (fractional) index whose frequency turns n times in the original length.
	index := func(n float64) float64 {
		return float64(dr) * math.Log(s.Original/(2*math.Pi*n)) / (2 * math.Log(base))
	}
	low, high := index(fast), index(slow)
	if !s.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dr-1))
	if low == high {
		high += 0.001
	}
	y := make([]float64, len(f))
	for i := range f {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		y[i] = f[i]*(1-ramp) + f[i]/scale*ramp
	}
	return y
}

func yarnFactor(scale float64, s RopeScaling) float64 {
	magnitude := func(m float64) float64 {
		if scale <= 1 {
			return 1
		}
		return 0.1*m*math.Log(scale) + 1
	}
	switch {
	case s.AttentionFactor > 0:
		return s.AttentionFactor
	case s.MScale > 0 && s.MScaleAllDim > 0:
		return magnitude(s.MScale) / magnitude(s.MScaleAllDim)
	}
	return magnitude(1)
}
