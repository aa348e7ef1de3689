package models

// mistral is llama with a sliding window on every layer. Source: Jiang et al.
// (arXiv:2310.06825).
var mistral = architecture{
	class: "MistralForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 131072, RopeTheta: new(1e4), SlidingWindow: new(4096)}
	},
	read: func(f *file, c *Config) error {
		if f.SlidingWindow != nil {
			c.Window = *f.SlidingWindow
		}
		return nil
	},
	write: func(f *file, c *Config) {
		if c.Window > 0 {
			f.SlidingWindow = &c.Window
		}
	},
	layer: llamaLayer,
	gguf: &ggufForm{name: "llama", turned: true, norms: llamaNorms, windows: true, is: func(k *ggufKeys) bool {
		return k.window() > 0 && k.experts() == 0
	}},
}
