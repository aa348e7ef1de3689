package models

import "fmt"

// smollm3 is llama with layers that do not rotate (NoPE), every fourth one
// unless the config lists them; a window, if switched on, is for those.
// Source: Yang et al., RoPE to NoPE and Back Again (arXiv:2501.18795).
var smollm3 = architecture{
	class: "SmolLM3ForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 32768, RopeTheta: new(2e6), KVHeads: new(4), Tied: true, NoRopeInterval: 4,
		}
	},
	read: func(f *file, c *Config) error {
		c.QKVBias, c.OutputBias, c.MLPBias = f.AttentionBias, f.AttentionBias, f.MLPBias
		if f.NoRopeLayers != nil && len(f.NoRopeLayers) < c.Layers {
			return fmt.Errorf("no_rope_layers has %d entries, num_hidden_layers is %d", len(f.NoRopeLayers), c.Layers)
		}
		if f.NoRopeLayers == nil && f.NoRopeInterval < 1 {
			return fmt.Errorf("no_rope_layer_interval must be 1 or more, got %d", f.NoRopeInterval)
		}
		c.NoRope = make([]bool, c.Layers)
		for l := range c.NoRope {
			if f.NoRopeLayers != nil {
				c.NoRope[l] = f.NoRopeLayers[l] == 0
			} else {
				c.NoRope[l] = (l+1)%f.NoRopeInterval == 0
			}
		}
		if !f.UseSlidingWindow {
			f.SlidingWindow = nil
		}
		return f.windows(c, func(layer int) bool { return c.NoRope[layer] })
	},
	write: func(f *file, c *Config) {
		f.AttentionBias, f.MLPBias = c.QKVBias, c.MLPBias
		for l := range c.Layers {
			turns := 1
			if !c.rotates(l) {
				turns = 0
			}
			f.NoRopeLayers = append(f.NoRopeLayers, turns)
		}
		f.setWindows(c)
	},
	layer: llamaLayer,
	gguf:  &ggufForm{name: "smollm3", turned: true, norms: llamaNorms, noRope: 4},
}
