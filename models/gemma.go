package models

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// gemma is llama with norms that multiply by 1 + weight, GeGLU, and an embedding
// scaled by sqrt(hidden). Source: Gemma Team (arXiv:2403.08295).
var gemma = architecture{
	class: "GemmaForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "gelu_pytorch_tanh", RMSNormEps: 1e-6, MaxPositions: 8192, VocabSize: 256000, Tied: true, RopeTheta: new(1e4),
			KVHeads: new(16), HeadDim: new(256),
		}
	},
	read: func(f *file, c *Config) error {
		if f.Bidirectional {
			return errBidirectional
		}
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		return nil
	},
	write:      func(f *file, c *Config) { f.AttentionBias = c.QKVBias },
	gelu:       true,
	unitNorm:   true,
	embedScale: rootOfHidden,
	layer:      llamaLayer,
	gguf:       &ggufForm{name: "gemma", norms: llamaNorms},
}

// gemma2 is gemma with norms behind attention and gated unit too, scores and logits
// within soft caps, and a window on every second layer. Source: Gemma Team
// (arXiv:2408.00118).
var gemma2 = architecture{
	class: "Gemma2ForCausalLM",
	defaults: func() file {
		return file{
			HiddenActivation: "gelu_pytorch_tanh", RMSNormEps: 1e-6, MaxPositions: 8192, VocabSize: 256000, Tied: true, RopeTheta: new(1e4),
			KVHeads: new(4), HeadDim: new(256), QueryScalar: 256, SlidingWindow: new(gemmaWindow),
			FinalSoftcap: new(softcap(30)), AttentionSoftcap: new(softcap(50)),
		}
	},
	read: func(f *file, c *Config) (err error) {
		if c.ScoreCap, err = f.AttentionSoftcap.value("attn_logit_softcapping"); err != nil {
			return err
		}
		if err := f.gemma(c); err != nil {
			return err
		}
		return f.windows(c, func(layer int) bool { return layer%2 == 0 })
	},
	write: func(f *file, c *Config) {
		f.setGemma(c)
		f.AttentionSoftcap = new(softcap(c.ScoreCap))
	},
	gelu:       true,
	unitNorm:   true,
	embedScale: rootOfHidden,
	layer:      gemmaLayer,
	gguf: &ggufForm{name: "gemma2", norms: gemmaNorms, windows: true, wide: 46, more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
		if !k.has("attention.sliding_window") {
			f.SlidingWindow = new(gemmaWindow)
		}
		f.AttentionSoftcap = new(softcap(tidy(orElse(k, "attn_logit_softcapping", k.float, float64(*f.AttentionSoftcap)))))
	}},
}

var gemmaNorms = map[string]string{
	"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
	"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}

// gemmaWindow is what a config that leaves out the window means.
const gemmaWindow = 4096

var errBidirectional = errors.New("use_bidirectional_attention true is not supported")

func rootOfHidden(c *Config) float64 { return math.Sqrt(float64(c.Hidden)) }

// gemmaLayer has norms on both sides of attention and gated unit.
func gemmaLayer(l *layer, x *graph.Node) *graph.Node {
	x = ops.Add(x, l.norm("post_attention_layernorm", l.attention(l.norm("input_layernorm", x))))
	return ops.Add(x, l.norm("post_feedforward_layernorm", l.gatedUnit(l.norm("pre_feedforward_layernorm", x))))
}

// gemma reads what gemma2 and gemma3 share.
func (f *file) gemma(c *Config) (err error) {
	if c.LogitCap, err = f.FinalSoftcap.value("final_logit_softcapping"); err != nil {
		return err
	}
	switch {
	case f.Bidirectional:
		return errBidirectional
	case !(f.QueryScalar > 0):
		return fmt.Errorf("query_pre_attn_scalar must be above 0, got %g", f.QueryScalar)
	}
	c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
	c.Scale = 1 / math.Sqrt(f.QueryScalar)
	return nil
}

// setGemma is the way back.
func (f *file) setGemma(c *Config) {
	f.AttentionBias = c.QKVBias
	f.QueryScalar = 1 / (c.scale() * c.scale())
	if n := math.Round(f.QueryScalar); math.Abs(n-f.QueryScalar) < 1e-9*n {
		f.QueryScalar = n // it is a whole number in every published config
	}
	f.FinalSoftcap = new(softcap(c.LogitCap))
	f.writeWindows(c)
}

// writeWindows is setWindows for types that have a window and a pattern where these
// are left out.
func (f *file) writeWindows(c *Config) {
	f.setWindows(c)
	if c.Window == 0 {
		f.SlidingWindow, f.LayerTypes = new(gemmaWindow), slices.Repeat([]string{fullAttention}, c.Layers)
	}
}
