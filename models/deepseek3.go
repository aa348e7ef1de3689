package models

import (
	"cmp"
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// deepseek3 has latent attention, a few dense layers, and then mixtures whose
// experts are chosen in groups by sigmoid scores with a bias, beside a shared
// one. Source: DeepSeek-V3 (arXiv:2412.19437).
var deepseek3 = architecture{
	class: "DeepseekV3ForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-6, MaxPositions: 4096, RopeTheta: new(1e4),
			ExpertFFN: 2048, SharedExperts: new(1), RoutedExperts: 256, RoutedScale: 2.5, TopK: new(8), Groups: new(8), TopGroups: new(4), NormTopK: new(true),
			DenseFirst: new(3), KVRank: 512, QRank: new(rank(1536)), RopeHeadDim: 64, NopeHeadDim: 128, VHeadDim: new(128), Interleave: new(true),
		}
	},
	read: func(f *file, c *Config) error {
		switch {
		case f.Scoring != "" && f.Scoring != "sigmoid":
			return fmt.Errorf("scoring_func %q is not supported (supported: sigmoid)", f.Scoring)
		case f.TopKMethod != "" && f.TopKMethod != "noaux_tc":
			return fmt.Errorf("topk_method %q is not supported (supported: noaux_tc)", f.TopKMethod)
		case f.MoEFrequency > 1:
			return fmt.Errorf("moe_layer_freq %d is not supported (supported: 1)", f.MoEFrequency)
		case orZero(f.SharedExperts) < 0 || orZero(f.SharedExperts) > 1<<16:
			return fmt.Errorf("n_shared_experts must be 0 to 65536, got %d", orZero(f.SharedExperts))
		}
		c.QKVBias, c.OutputBias = f.AttentionBias, f.AttentionBias
		c.readLatent(f)
		c.Latent.Halves = f.Interleave != nil && !*f.Interleave
		c.Scale = 1 / math.Sqrt(float64(c.HeadDim))
		if s := c.RopeScale; s.MScaleAllDim != 0 && s.Factor > 1 {
			m := 0.1*s.MScaleAllDim*math.Log(s.Factor) + 1
			c.Scale *= m * m
		}
		e := Experts{
			FFN: f.ExpertFFN, Shared: orZero(f.SharedExperts) * f.ExpertFFN, Bias: true,
			Router: ops.Router{
				Experts: f.experts(), TopK: f.topK(), Groups: orZero(f.Groups), KeepGroups: orZero(f.TopGroups),
				Sigmoid: true, Renormalize: f.NormTopK == nil || *f.NormTopK, Scale: float64(f.RoutedScale),
			},
		}
		for l := range c.Layers {
			e.Dense = append(e.Dense, l < orZero(f.DenseFirst))
		}
		c.Experts, c.Skipped = &e, f.NextLayers
		return nil
	},
	write: func(f *file, c *Config) {
		e, a := c.Experts, c.Latent
		f.AttentionBias, f.Interleave, f.HeadDim = c.QKVBias, new(!a.Halves), nil
		f.KVRank, f.QRank, f.RopeHeadDim, f.NopeHeadDim, f.VHeadDim = a.KVRank, new(rank(a.QRank)), a.Rope, a.Nope, &a.V
		f.ExpertFFN, f.SharedExperts, f.RoutedExperts, f.RoutedScale = e.FFN, new(e.Shared/e.FFN), e.Router.Experts, decimal(cmp.Or(e.Router.Scale, 1))
		f.TopK, f.NormTopK, f.Groups, f.TopGroups = &e.Router.TopK, &e.Router.Renormalize, new(max(1, e.Router.Groups)), new(max(1, e.Router.KeepGroups))
		dense := 0
		for dense < len(e.Dense) && e.Dense[dense] {
			dense++
		}
		f.DenseFirst = &dense
	},
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.latentAttention(l.norm("input_layernorm", x)))
		return ops.Add(x, l.feedForward(l.norm("post_attention_layernorm", x)))
	},
	gguf: &deepseek3GGUF,
}

// readLatent takes the sizes of latent attention.
func (c *Config) readLatent(f *file) {
	c.Latent = &Latent{QRank: int(orZero(f.QRank)), KVRank: f.KVRank, Nope: f.NopeHeadDim, Rope: f.RopeHeadDim, V: orZero(f.VHeadDim)}
	c.HeadDim, c.KVHeads = f.NopeHeadDim+f.RopeHeadDim, c.Heads
}

func orZero[T int | rank](v *T) T {
	if v == nil {
		return 0
	}
	return *v
}
