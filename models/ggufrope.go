// How GGUF files scale the rotation: keys, and tensors of factors.

package models

import (
	"fmt"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops/native"
)

// The tensors that hold what each frequency is divided by: in all sequences, in
// those within the original length, in longer ones.
const (
	ropeFactors  = "rope_freqs.weight"
	shortFactors = "rope_factors_short.weight"
	longFactors  = "rope_factors_long.weight"
)

func isRopeFactors(name string) bool {
	return name == ropeFactors || name == shortFactors || name == longFactors
}

// ggufRope reads the scaling of the rotation: from keys, or from tensors of
// factors. One list for every length is longrope's form with that list twice.
func ggufRope(ck *checkpoint.Checkpoint, k *ggufKeys, c Config) (native.RotaryScaling, error) {
	var s native.RotaryScaling
	_, lists := ck.Lookup(longFactors)
	switch kind := orElse(k, "rope.scaling.type", k.string, "none"); {
	case lists && (kind == "none" || kind == "longrope"):
		return ggufLongRope(ck, k, c)
	case kind == "none":
	case kind == "linear" || kind == "yarn":
		s = native.RotaryScaling{Type: kind, ModelPositions: c.Context}
		s.Factor = k.float("rope.scaling.factor")
		s.OriginalPositions = orElse(k, "rope.scaling.original_context_length", k.int, 0)
		s.NoTruncate = c.Type == "gpt_oss" // no key says so
		s.BetaFast = tidy(orElse(k, "rope.scaling.yarn_beta_fast", k.float, 0))
		s.BetaSlow = tidy(orElse(k, "rope.scaling.yarn_beta_slow", k.float, 0))
		if m := tidy(orElse(k, "rope.scaling.yarn_log_multiplier", k.float, 0)); m != 0 {
			switch c.Type {
			case deepseekType: // a tenth of mscale_all_dim; the form has mscale equal to it
				s.MScale, s.MScaleAllDim = tidy(10*m), tidy(10*m)
			case "ministral3": // mscale_all_dim; mscale is 1
				s.MScale, s.MScaleAllDim = 1, m
			}
		}
	default:
		return s, fmt.Errorf("%srope.scaling.type %q is not supported (supported: none, linear, yarn, longrope with %s)", k.prefix, kind, longFactors)
	}
	for _, key := range []string{"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"} {
		v := orElse(k, key, k.float, 1)
		own := 1.0
		if key == "rope.scaling.yarn_attn_factor" && s.Type == "yarn" { // files say it where the config does
			own = c.magnitude(s)
		}
		if v != 1 && float32(v) != float32(own) && k.err == nil {
			return s, fmt.Errorf("%s%s %g is not supported (supported: %g)", k.prefix, key, v, own)
		}
	}
	t, ok := ck.Lookup(ropeFactors)
	if !ok || k.err != nil {
		return s, k.err
	}
	if s.Type != "" {
		return s, fmt.Errorf("%s with a scaling of type %q, required none", ropeFactors, s.Type)
	}
	factors, err := frequencyFactors(t, c)
	return native.RotaryScaling{
		Type: "longrope", Factor: 1, AttentionFactor: 1, OriginalPositions: c.Context, ModelPositions: c.Context,
		ShortFactors: factors, LongFactors: factors,
	}, err
}

// ggufLongRope reads the two lists of longrope.
func ggufLongRope(ck *checkpoint.Checkpoint, k *ggufKeys, c Config) (s native.RotaryScaling, err error) {
	s = native.RotaryScaling{
		Type: "longrope", ModelPositions: c.Context, OriginalPositions: orElse(k, "rope.scaling.original_context_length", k.int, c.Context),
	}
	for name, to := range map[string]*[]float64{shortFactors: &s.ShortFactors, longFactors: &s.LongFactors} {
		t, ok := ck.Lookup(name)
		if !ok {
			return s, fmt.Errorf("%s is missing", name)
		}
		if *to, err = frequencyFactors(t, c); err != nil {
			return s, err
		}
	}
	if m := orElse(k, "rope.scaling.attn_factor", k.float, 0); float32(m) != float32(c.magnitude(s)) {
		s.AttentionFactor = m
	}
	return s, k.err
}

// magnitude is what a scaling multiplies cos and sin by, 1 for one that is none.
func (c Config) magnitude(s native.RotaryScaling) float64 {
	c.RopeScale = s
	_, m, err := native.RotaryFrequencies(c.rotary(0, false))
	if err != nil {
		return 1
	}
	return m
}

// frequencyFactors reads the factors of one list, one a frequency.
func frequencyFactors(t *checkpoint.Tensor, c Config) ([]float64, error) {
	n := c.HeadDim / 2
	if c.RotaryDim > 0 {
		n = c.RotaryDim / 2
	}
	if t.Len() != n {
		return nil, fmt.Errorf("%s is %v, required [%d]", t.Name(), t.Shape(), n)
	}
	stored, factors := make([]float32, n), make([]float64, n)
	if err := t.Float32(stored); err != nil {
		return nil, err
	}
	for i, x := range stored {
		factors[i] = float64(x)
	}
	return factors, nil
}
