package models

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// olmo2 has its norms behind attention and gated unit, before the results are
// added, and norms q and k over all heads at once. Source: Team OLMo
// (arXiv:2501.00656).
var olmo2 = architecture{
	class: "Olmo2ForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 2048, RopeTheta: new(1e4)}
	},
	read: func(f *file, c *Config) error {
		c.QKNorm = true
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		return nil
	},
	write:     func(f *file, c *Config) { f.AttentionBias = c.QKVBias },
	wholeNorm: true,
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.norm("post_attention_layernorm", l.attention(x)))
		return ops.Add(x, l.norm("post_feedforward_layernorm", l.gatedUnit(x)))
	},
	gguf: &ggufForm{name: "olmo2", norms: gemmaNorms, is: func(k *ggufKeys) bool { return k.window() == 0 }},
}
