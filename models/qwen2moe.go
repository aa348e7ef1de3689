package models

// qwen2Moe is qwen2 with a mixture of experts in its layers, as qwen3_moe has them,
// beside one that every token has, behind a gate. Source: Yang et al.
// (arXiv:2407.10671).
var qwen2Moe = architecture{
	class: "Qwen2MoeForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 32768, RopeTheta: new(1e4), KVHeads: new(16), SlidingWindow: new(4096), MaxWindowLayers: 28,
			SparseStep: 1, ExpertFFN: 1408, SharedFFN: 5632, TopK: new(4), ExpertCount: 60, QKVBias: new(true),
		}
	},
	read: func(f *file, c *Config) error {
		c.QKVBias = f.QKVBias != nil && *f.QKVBias
		if err := f.qwenExperts(c); err != nil {
			return err
		}
		c.Experts.Shared, c.Experts.Gated = f.SharedFFN, true
		if !f.UseSlidingWindow {
			f.SlidingWindow = nil
		}
		return f.windows(c, func(layer int) bool { return layer%2 == 0 && layer < f.MaxWindowLayers })
	},
	write: func(f *file, c *Config) {
		f.QKVBias, f.SharedFFN = &c.QKVBias, c.Experts.Shared
		f.setQwenExperts(c.Experts)
		f.setWindows(c)
	},
	layer: sparseLayer,
	gguf:  &qwen2MoeGGUF,
}
