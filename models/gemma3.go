package models

import "fmt"

// gemma3 is the text model of Gemma 3: norms in front of and behind attention
// and gated unit, which multiply by 1 + weight; GeGLU; an embedding scaled by
// sqrt(hidden); five layers with a window and a rotation of their own for one
// that sees everything. Source: Gemma Team (arXiv:2503.19786).
var gemma3 = architecture{
	class: "Gemma3ForCausalLM",
	defaults: func() file {
		return file{
			HiddenActivation: "gelu_pytorch_tanh", RMSNormEps: 1e-6, MaxPositions: 131072, VocabSize: 262208, Tied: true,
			HiddenSize: 2304, IntermediateSize: 9216, Layers: 26, Heads: 8,
			RopeTheta: new(1e6), RopeLocalTheta: new(1e4), KVHeads: new(4), HeadDim: new(256),
			QueryScalar: 256, SlidingWindow: new(gemmaWindow), WindowPattern: 6,
		}
	},
	read: func(f *file, c *Config) error {
		switch {
		case f.AttentionSoftcap != nil:
			return fmt.Errorf("attn_logit_softcapping %g is not supported (supported: null)", *f.AttentionSoftcap)
		case f.WindowPattern < 1:
			return fmt.Errorf("sliding_window_pattern must be 1 or more, got %d", f.WindowPattern)
		}
		if err := f.gemma(c); err != nil {
			return err
		}
		c.QKNorm = true
		if f.RopeLocalTheta != nil {
			c.LocalTheta = *f.RopeLocalTheta
		}
		if err := f.slidingRope(c); err != nil {
			return err
		}
		return f.windows(c, func(layer int) bool { return (layer+1)%f.WindowPattern != 0 })
	},
	write: func(f *file, c *Config) {
		f.setGemma(c)
		f.RopeLocalTheta = &c.LocalTheta
	},
	gelu:       true,
	unitNorm:   true,
	embedScale: rootOfHidden,
	layer:      gemmaLayer,
	gguf:       &ggufForm{name: "gemma3", norms: gemmaNorms, windows: true, wide: 62},
}
