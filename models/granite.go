package models

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
)

// granite is llama with four multipliers: of the embedding, of what attention and
// gated unit add, of the scores, and a divisor of the logits. Source: Granite Team,
// IBM, Granite 3.0 Language Models (2024).
var granite = architecture{
	class: "GraniteForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 2048, RopeTheta: new(1e4),
			EmbedMultiplier: 1, AddMultiplier: 1, ScoreMultiplier: 1, LogitsScaling: 1,
		}
	},
	read: func(f *file, c *Config) error {
		c.QKVBias, c.OutputBias, c.MLPBias = f.AttentionBias, f.AttentionBias, f.MLPBias
		for _, x := range []struct {
			key string
			v   decimal
			to  *float64
		}{
			{"embedding_multiplier", f.EmbedMultiplier, &c.EmbedScale}, {"residual_multiplier", f.AddMultiplier, &c.ResidualScale},
			{"attention_multiplier", f.ScoreMultiplier, &c.Scale}, {"logits_scaling", f.LogitsScaling, &c.LogitDivisor},
		} {
			if !(x.v > 0) {
				return fmt.Errorf("%s must be above 0, got %g", x.key, x.v)
			}
			*x.to = float64(x.v)
		}
		return nil
	},
	write: func(f *file, c *Config) {
		f.AttentionBias, f.MLPBias = c.QKVBias, c.MLPBias
		f.EmbedMultiplier, f.AddMultiplier = decimal(orOne(c.EmbedScale)), decimal(orOne(c.ResidualScale))
		f.ScoreMultiplier, f.LogitsScaling = decimal(c.scale()), decimal(orOne(c.LogitDivisor))
	},
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = l.add(x, l.attention(l.norm("input_layernorm", x)))
		return l.add(x, l.gatedUnit(l.norm("post_attention_layernorm", x)))
	},
	gguf: &ggufForm{name: "granite", turned: true, norms: llamaNorms, more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
		read := func(key string, otherwise float64) decimal { return decimal(tidy(orElse(k, key, k.float, otherwise))) }
		f.EmbedMultiplier, f.AddMultiplier = read("embedding_scale", 1), read("residual_scale", 1)
		f.ScoreMultiplier, f.LogitsScaling = read("attention.scale", 1/math.Sqrt(float64(*f.HeadDim))), read("logit_scale", 1)
		if key := "rope.scaling.finetuned"; !orElse(k, key, k.bool, true) && k.err == nil {
			k.err = fmt.Errorf("%s%s false, which is no rotation, is not supported (supported: true)", k.prefix, key)
		}
	}},
}
