package models

import "github.com/seafan/seafan/models/checkpoint"

// olmo3 is olmo2 with a window on three layers of four, whose rotation is not
// scaled. Source: Team OLMo, Olmo 3 (2025).
var olmo3 = architecture{
	class: "Olmo3ForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 2048, RopeTheta: new(5e5), SlidingWindow: new(4096)}
	},
	read: func(f *file, c *Config) error {
		c.LocalTheta = c.RopeTheta
		if err := f.slidingRope(c); err != nil {
			return err
		}
		if err := olmo2.read(f, c); err != nil {
			return err
		}
		return f.windows(c, func(layer int) bool { return (layer+1)%4 != 0 })
	},
	write: func(f *file, c *Config) {
		olmo2.write(f, c)
		full := rope{Type: "default"}
		if f.RopeScaling != nil {
			full = *f.RopeScaling
		}
		full.Theta = &c.RopeTheta
		// Some releases lose the base of the layers with a window in the older spelling.
		f.RopeParameters = &rope{Full: &full, Sliding: &rope{Type: "default", Theta: &c.LocalTheta}}
		f.writeWindows(c)
	},
	wholeNorm: true,
	layer:     olmo2.layer,
	gguf: &ggufForm{name: "olmo2", norms: gemmaNorms, windows: true,
		is: func(k *ggufKeys) bool { return k.window() > 0 },
		more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
			f.RopeParameters = &rope{Sliding: &rope{Theta: new(tidy(orElse(k, "rope.freq_base_swa", k.float, *f.RopeTheta)))}}
		},
	},
}
