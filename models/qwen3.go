package models

// qwen3 is llama with an RMSNorm on each head of q and k before the rotation,
// and qwen2's windows. Source: Yang et al. (arXiv:2505.09388).
var qwen3 = architecture{
	class: "Qwen3ForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 32768, RopeTheta: new(1e4), HeadDim: new(128),
			SlidingWindow: new(4096), MaxWindowLayers: 28,
		}
	},
	read: func(f *file, c *Config) error {
		c.QKNorm = true
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		return f.qwenWindows(c)
	},
	write: func(f *file, c *Config) {
		f.AttentionBias = c.QKVBias
		f.setWindows(c)
	},
	layer: llamaLayer,
	gguf:  &ggufForm{name: "qwen3", norms: llamaNorms},
}
