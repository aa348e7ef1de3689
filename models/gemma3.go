package models

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// gemma3Window is what a config that leaves out the window means.
const gemma3Window = 4096

// gemma3 is the text model of Gemma 3: norms in front of and behind attention
// and gated unit, which multiply by 1 + weight; GeGLU; an embedding scaled by
// sqrt(hidden); five layers with a window and a rotation of their own for one
// that sees everything. Source: Gemma Team (arXiv:2503.19786).
var gemma3 = architecture{
	class: "Gemma3ForCausalLM",
	defaults: func() file {
		return file{
			HiddenActivation: "gelu_pytorch_tanh", RMSNormEps: 1e-6, MaxPositions: 131072, VocabSize: 262208, Tied: true,
			RopeTheta: new(1e6), RopeLocalTheta: new(1e4), KVHeads: new(4), HeadDim: new(256),
			QueryScalar: 256, SlidingWindow: new(gemma3Window), WindowPattern: 6,
		}
	},
	read: func(f *file, c *Config) error {
		switch {
		case f.AttentionSoftcap != nil:
			return fmt.Errorf("attn_logit_softcapping %g is not supported (supported: null)", *f.AttentionSoftcap)
		case f.FinalSoftcap != nil && !(*f.FinalSoftcap > 0):
			return fmt.Errorf("final_logit_softcapping must be above 0, or null, got %g", *f.FinalSoftcap)
		case f.Bidirectional:
			return errors.New("use_bidirectional_attention true is not supported")
		case !(f.QueryScalar > 0):
			return fmt.Errorf("query_pre_attn_scalar must be above 0, got %g", f.QueryScalar)
		case f.WindowPattern < 1:
			return fmt.Errorf("sliding_window_pattern must be 1 or more, got %d", f.WindowPattern)
		}
		c.QKNorm = true
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		c.Scale = 1 / math.Sqrt(f.QueryScalar)
		if f.FinalSoftcap != nil {
			c.LogitCap = float64(*f.FinalSoftcap)
		}
		if f.RopeLocalTheta != nil {
			c.LocalTheta = *f.RopeLocalTheta
		}
		if p := f.RopeParameters; p != nil && p.Sliding != nil {
			if kind := p.Sliding.kind(); kind != "" && kind != "default" {
				return fmt.Errorf("rope_parameters of sliding_attention: rope_type %q is not supported (supported: default)", kind)
			}
			if p.Sliding.Theta != nil {
				c.LocalTheta = *p.Sliding.Theta
			}
		}
		return f.windows(c, func(layer int) bool { return (layer+1)%f.WindowPattern != 0 })
	},
	write: func(f *file, c *Config) {
		f.AttentionBias = c.QKVBias
		f.QueryScalar = 1 / (c.scale() * c.scale())
		if n := math.Round(f.QueryScalar); math.Abs(n-f.QueryScalar) < 1e-9*n {
			f.QueryScalar = n // it is a whole number in every published config
		}
		f.RopeLocalTheta = &c.LocalTheta
		if c.LogitCap > 0 {
			f.FinalSoftcap = new(decimal(c.LogitCap))
		}
		f.setWindows(c)
		if c.Window == 0 { // the type has a window and a pattern where they are left out
			f.SlidingWindow, f.LayerTypes = new(gemma3Window), slices.Repeat([]string{fullAttention}, c.Layers)
		}
	},
	gelu:       true,
	unitNorm:   true,
	embedScale: func(c *Config) float64 { return math.Sqrt(float64(c.Hidden)) },
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.norm("post_attention_layernorm", l.attention(l.norm("input_layernorm", x))))
		return ops.Add(x, l.norm("post_feedforward_layernorm", l.gatedUnit(l.norm("pre_feedforward_layernorm", x))))
	},
	gguf: &ggufForm{name: "gemma3", norms: map[string]string{
		"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
		"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
	}},
}
