// Tables of rotary angles with the scaling types of published checkpoints.

package native

import (
	"fmt"
	"math"
)

// RotaryConfig describes a table of Positions rows for Dim rotated elements.
type RotaryConfig struct {
	Dim       int     // Dr, even
	Base      float64 // theta
	Positions int
	Scaling   RotaryScaling
}

// RotaryScaling is the scaling of the frequencies, after the keys of a
// checkpoint's rope_scaling. A zero number is one that the checkpoint does not
// give.
type RotaryScaling struct {
	Type string // default (or empty), linear, dynamic, yarn, llama3, longrope

	Factor            float64
	OriginalPositions int // original_max_position_embeddings: yarn, llama3, longrope
	ModelPositions    int // max_position_embeddings: dynamic, and yarn and longrope without Factor
	Length            int // tokens of the longest sequence the table serves: dynamic, longrope

	LowFrequency, HighFrequency float64 // llama3: low_freq_factor, high_freq_factor

	BetaFast, BetaSlow   float64 // yarn; 32 and 1 unless given
	AttentionFactor      float64 // yarn, longrope: what cos and sin are multiplied by
	MScale, MScaleAllDim float64 // yarn
	NoTruncate           bool    // yarn: the ends of the ramp stay fractions

	ShortFactors, LongFactors []float64 // longrope, [Dim/2]
}

// RotaryTable returns cos and sin [Positions, Dim/2] of position times
// frequency, computed in float64 and stored in float32.
func RotaryTable(c RotaryConfig) (cos, sin []float32, err error) {
	if c.Positions < 0 {
		return nil, nil, fmt.Errorf("rotary: positions must not be negative, got %d", c.Positions)
	}
	f, factor, err := RotaryFrequencies(c)
	if err != nil {
		return nil, nil, err
	}
	cos = make([]float32, c.Positions*len(f))
	sin = make([]float32, c.Positions*len(f))
	for p := range c.Positions {
		for i, w := range f {
			s, c := math.Sincos(float64(p) * w)
			cos[p*len(f)+i], sin[p*len(f)+i] = float32(factor*c), float32(factor*s)
		}
	}
	return cos, sin, nil
}

// RotaryFrequencies returns the Dim/2 angles that one position adds, and the
// factor of cos and sin (1 but for yarn and longrope). From f(i) =
// base^(-2i/Dim):
//
//	default   f
//	linear    f / factor
//	dynamic   f of the base B (factor L/M - factor + 1)^(Dim/(Dim-2)), M the
//	          model's positions, L the larger of M and the length
//	yarn      f and f/factor mixed by a ramp between the rotations that turn
//	          BetaFast and BetaSlow times within the original positions
//	llama3    f where the wave is shorter than original/high, f/factor where it
//	          is longer than original/low, mixed between
//	longrope  f / short, or f / long where the length exceeds the original
//
// Sources: position interpolation (arXiv:2306.15595), YaRN (arXiv:2309.00071),
// LongRoPE (arXiv:2402.13753), the Llama 3.1 model card.
func RotaryFrequencies(c RotaryConfig) (f []float64, factor float64, err error) {
	s := c.Scaling
	if err := c.check(); err != nil {
		return nil, 0, err
	}
	f = frequencies(c.Base, c.Dim)
	scale := s.Factor
	if scale == 0 && s.OriginalPositions > 0 {
		scale = float64(s.ModelPositions) / float64(s.OriginalPositions)
	}
	factor = 1
	switch s.Type {
	case "linear":
		for i := range f {
			f[i] /= scale
		}
	case "dynamic":
		m := float64(s.ModelPositions)
		l := max(m, float64(s.Length))
		d := float64(c.Dim)
		f = frequencies(c.Base*math.Pow(scale*l/m-scale+1, d/(d-2)), c.Dim)
	case "yarn":
		factor = s.yarn(f, c.Base, c.Dim, scale)
	case "llama3":
		s.llama3(f)
	case "longrope":
		by := s.ShortFactors
		if s.Length > s.OriginalPositions {
			by = s.LongFactors
		}
		for i := range f {
			f[i] /= by[i]
		}
		factor = s.AttentionFactor
		if factor == 0 {
			factor = 1
			if scale > 1 {
				factor = math.Sqrt(1 + math.Log(scale)/math.Log(float64(s.OriginalPositions)))
			}
		}
	}
	return f, factor, nil
}

func frequencies(base float64, dim int) []float64 {
	f := make([]float64, dim/2)
	for i := range f {
		f[i] = math.Pow(base, -2*float64(i)/float64(dim))
	}
	return f
}

// yarn changes f and returns the factor of cos and sin.
func (s *RotaryScaling) yarn(f []float64, base float64, dim int, scale float64) float64 {
	fast, slow := s.BetaFast, s.BetaSlow
	if fast == 0 {
		fast = 32
	}
	if slow == 0 {
		slow = 1
	}
	// Where the frequencies turn n times within the original positions.
	at := func(n float64) float64 {
		return float64(dim) * math.Log(float64(s.OriginalPositions)/(2*math.Pi*n)) / (2 * math.Log(base))
	}
	low, high := at(fast), at(slow)
	if !s.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001 // the step of a ramp of no width, as published code has it
	}
	for i := range f {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		f[i] = f[i]/scale*ramp + f[i]*(1-ramp)
	}

	magnitude := func(m float64) float64 {
		if scale <= 1 {
			return 1
		}
		return 0.1*m*math.Log(scale) + 1
	}
	switch {
	case s.AttentionFactor != 0:
		return s.AttentionFactor
	case s.MScale != 0 && s.MScaleAllDim != 0:
		return magnitude(s.MScale) / magnitude(s.MScaleAllDim)
	}
	return magnitude(1)
}

func (s *RotaryScaling) llama3(f []float64) {
	original := float64(s.OriginalPositions)
	for i, w := range f {
		wave := 2 * math.Pi / w
		switch {
		case wave < original/s.HighFrequency:
		case wave > original/s.LowFrequency:
			f[i] = w / s.Factor
		default:
			mix := (original/wave - s.LowFrequency) / (s.HighFrequency - s.LowFrequency)
			f[i] = (1-mix)*w/s.Factor + mix*w
		}
	}
}

// check returns what is wrong with the configuration.
func (c *RotaryConfig) check() error {
	s := &c.Scaling
	if c.Dim < 2 || c.Dim%2 != 0 {
		return fmt.Errorf("rotary: the rotated width must be even and at least 2, got %d", c.Dim)
	}
	if !(c.Base > 0) || math.IsInf(c.Base, 1) {
		return fmt.Errorf("rotary: base must be positive and finite, got %v", c.Base)
	}
	switch s.Type {
	case "", "default":
		return nil
	case "linear":
		return s.need("factor", s.Factor)
	case "dynamic":
		if c.Dim < 4 {
			return fmt.Errorf("rotary: dynamic scaling needs a rotated width of at least 4, got %d", c.Dim)
		}
		if err := s.need("factor", s.Factor); err != nil {
			return err
		}
		return s.need("max_position_embeddings", float64(s.ModelPositions))
	case "yarn":
		if c.Base == 1 {
			return fmt.Errorf("rotary: yarn scaling needs a base other than 1")
		}
		for _, x := range []struct {
			name  string
			value float64
		}{{"beta_fast", s.BetaFast}, {"beta_slow", s.BetaSlow}, {"attention_factor", s.AttentionFactor}} {
			if x.value != 0 {
				if err := s.need(x.name, x.value); err != nil {
					return err
				}
			}
		}
		return s.needRatio()
	case "llama3":
		for _, x := range []struct {
			name  string
			value float64
		}{
			{"factor", s.Factor}, {"low_freq_factor", s.LowFrequency}, {"high_freq_factor", s.HighFrequency},
			{"original_max_position_embeddings", float64(s.OriginalPositions)},
		} {
			if err := s.need(x.name, x.value); err != nil {
				return err
			}
		}
		if s.HighFrequency <= s.LowFrequency {
			return fmt.Errorf("rotary: llama3 scaling needs high_freq_factor above low_freq_factor, got %v and %v", s.HighFrequency, s.LowFrequency)
		}
		return nil
	case "longrope":
		return s.checkLongRope(c.Dim / 2)
	}
	return fmt.Errorf("rotary: unknown scaling type %q, want default, linear, dynamic, yarn, llama3 or longrope", s.Type)
}

func (s *RotaryScaling) checkLongRope(n int) error {
	for _, list := range []struct {
		name   string
		values []float64
	}{{"short_factor", s.ShortFactors}, {"long_factor", s.LongFactors}} {
		if len(list.values) != n {
			return fmt.Errorf("rotary: longrope scaling needs %d numbers in %s (half the rotated width), got %d", n, list.name, len(list.values))
		}
		for i, x := range list.values {
			if err := s.need(fmt.Sprintf("%s[%d]", list.name, i), x); err != nil {
				return err
			}
		}
	}
	if s.OriginalPositions == 1 {
		return fmt.Errorf("rotary: longrope scaling needs original_max_position_embeddings above 1, got 1")
	}
	if s.AttentionFactor != 0 {
		if err := s.need("attention_factor", s.AttentionFactor); err != nil {
			return err
		}
	}
	return s.needRatio()
}

// needRatio checks the original positions and the factor, given or implied.
func (s *RotaryScaling) needRatio() error {
	if err := s.need("original_max_position_embeddings", float64(s.OriginalPositions)); err != nil {
		return err
	}
	if s.Factor == 0 {
		return s.need("factor or max_position_embeddings", float64(s.ModelPositions))
	}
	return s.need("factor", s.Factor)
}

func (s *RotaryScaling) need(name string, x float64) error {
	if !(x > 0) || math.IsInf(x, 1) {
		return fmt.Errorf("rotary: %s scaling needs a positive finite %s, got %v", s.Type, name, x)
	}
	return nil
}
