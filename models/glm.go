package models

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// glm is llama with gate and up of one matrix, and heads whose front alone turns, in
// neighbouring pairs. Source: GLM Team (arXiv:2406.12793).
var glm = architecture{
	class:      "GlmForCausalLM",
	defaults:   glmDefaults,
	read:       readGLM,
	write:      writeGLM,
	partial:    true,
	neighbours: true,
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.attention(l.norm("input_layernorm", x)))
		return ops.Add(x, l.fusedUnit(l.norm("post_attention_layernorm", x)))
	},
}

// glm4 is glm with norms behind attention and gated unit too. Source: GLM Team, the
// published code of GLM-4-0414 (2025).
var glm4 = architecture{
	class:      "Glm4ForCausalLM",
	defaults:   glmDefaults,
	read:       readGLM,
	write:      writeGLM,
	partial:    true,
	neighbours: true,
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.norm("post_self_attn_layernorm", l.attention(l.norm("input_layernorm", x))))
		return ops.Add(x, l.norm("post_mlp_layernorm", l.fusedUnit(l.norm("post_attention_layernorm", x))))
	},
	gguf: &ggufForm{name: "glm4",
		norms: map[string]string{"input_layernorm": "attn_norm", "post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm"},
		more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
			if k.has("rope.dimension_sections") && k.err == nil { // their rows of q and k lie in another order
				k.err = fmt.Errorf("%srope.dimension_sections is not supported (supported: none)", k.prefix)
			}
			f.setTurning(orElse(k, "rope.dimension_count", k.int, *f.HeadDim), *f.HeadDim)
		},
	},
}

func glmDefaults() file {
	return file{
		HiddenAct: "silu", RMSNormEps: 1.5625e-7, MaxPositions: 131072, RopeTheta: new(1e4), KVHeads: new(2), HeadDim: new(128),
		PartialRotary: new(0.5), AttentionBias: true,
	}
}

func readGLM(f *file, c *Config) error {
	c.QKVBias = f.AttentionBias
	return nil
}

func writeGLM(f *file, c *Config) {
	f.AttentionBias = c.QKVBias
	if f.PartialRotary == nil {
		f.PartialRotary = new(1.0) // left out it is another one
	}
}
