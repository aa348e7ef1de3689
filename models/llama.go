package models

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// llama is the type that most others vary: norms in front of attention and of
// the gated unit, whose results are added to the stream. Sources: Touvron et
// al. (arXiv:2302.13971), Dubey et al. (arXiv:2407.21783).
var llama = architecture{
	class: "LlamaForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 2048, RopeTheta: new(1e4)}
	},
	read: func(f *file, c *Config) error {
		c.QKVBias, c.OutputBias, c.MLPBias = f.AttentionBias, f.AttentionBias, f.MLPBias
		return nil
	},
	write: func(f *file, c *Config) { f.AttentionBias, f.MLPBias = c.QKVBias, c.MLPBias },
	layer: llamaLayer,
	gguf: &ggufForm{name: "llama", turned: true, norms: llamaNorms, is: func(k *ggufKeys) bool {
		return k.window() == 0 && k.experts() == 0
	}},
}

func llamaLayer(l *layer, x *graph.Node) *graph.Node {
	x = ops.Add(x, l.attention(l.norm("input_layernorm", x)))
	return ops.Add(x, l.gatedUnit(l.norm("post_attention_layernorm", x)))
}
