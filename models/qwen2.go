package models

// qwen2 is llama with biases on q, k and v, and a window on the layers from
// max_window_layers on, when it is switched on. Source: Yang et al.
// (arXiv:2407.10671).
var qwen2 = architecture{
	class: "Qwen2ForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 32768, RopeTheta: new(1e4),
			SlidingWindow: new(4096), MaxWindowLayers: 28,
		}
	},
	read: func(f *file, c *Config) error {
		c.QKVBias = true
		return f.qwenWindows(c)
	},
	write: func(f *file, c *Config) { f.setWindows(c) },
	layer: llamaLayer,
	gguf:  &ggufForm{name: "qwen2", norms: llamaNorms},
}

func (f *file) qwenWindows(c *Config) error {
	if !f.UseSlidingWindow {
		f.SlidingWindow = nil
	}
	return f.windows(c, func(layer int) bool { return layer >= f.MaxWindowLayers })
}
