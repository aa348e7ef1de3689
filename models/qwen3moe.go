package models

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// qwen3Moe is qwen3 with a mixture of experts in its layers, but for those that
// the config lists as dense. Source: Yang et al. (arXiv:2505.09388).
var qwen3Moe = architecture{
	class: "Qwen3MoeForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 32768, RopeTheta: new(1e4), KVHeads: new(4), SlidingWindow: new(4096),
			SparseStep: 1, ExpertFFN: 768, TopK: new(8), ExpertCount: 128,
		}
	},
	read: func(f *file, c *Config) error {
		c.QKNorm = true
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		if f.UseSlidingWindow && f.SlidingWindow != nil {
			c.Window = *f.SlidingWindow
		}
		return f.qwenExperts(c)
	},
	write: func(f *file, c *Config) {
		f.AttentionBias = c.QKVBias
		if c.Window > 0 {
			f.UseSlidingWindow, f.SlidingWindow = true, &c.Window
		}
		f.setQwenExperts(c.Experts)
	},
	layer: sparseLayer,
	gguf:  &qwen3MoeGGUF,
}

// qwenExperts reads the mixtures of qwen2_moe and qwen3_moe.
func (f *file) qwenExperts(c *Config) error {
	if f.SparseStep < 1 {
		return fmt.Errorf("decoder_sparse_step must be 1 or more, got %d", f.SparseStep)
	}
	e := Experts{FFN: f.ExpertFFN, Router: ops.Router{Experts: f.experts(), TopK: f.topK(), Renormalize: f.NormTopK != nil && *f.NormTopK}}
	for l := range c.Layers {
		e.Dense = append(e.Dense, (l+1)%f.SparseStep != 0 || slices.Contains(f.DenseLayers, l))
	}
	c.Experts = &e
	return nil
}

// setQwenExperts is the way back.
func (f *file) setQwenExperts(e *Experts) {
	f.ExpertFFN, f.ExpertCount, f.TopK, f.NormTopK, f.SparseStep = e.FFN, e.Router.Experts, &e.Router.TopK, &e.Router.Renormalize, 1
	for l, dense := range e.Dense {
		if dense {
			f.DenseLayers = append(f.DenseLayers, l)
		}
	}
}

// sparseLayer is llamaLayer with a mixture where the layer has one.
func sparseLayer(l *layer, x *graph.Node) *graph.Node {
	x = ops.Add(x, l.attention(l.norm("input_layernorm", x)))
	return ops.Add(x, l.feedForward(l.norm("post_attention_layernorm", x)))
}
