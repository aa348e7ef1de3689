package models

import (
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// mixtral is mistral with a mixture of experts in each layer, whose weights are
// those of the chosen experts alone. Source: Jiang et al. (arXiv:2401.04088).
var mixtral = architecture{
	class: "MixtralForCausalLM",
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 131072, RopeTheta: new(1e6), KVHeads: new(8), LocalExperts: 8, TopK: new(2),
		}
	},
	read: func(f *file, c *Config) error {
		c.Experts = &Experts{
			FFN: c.FFN, Dense: make([]bool, c.Layers),
			Router: ops.Router{Experts: f.experts(), TopK: f.topK(), Renormalize: true},
		}
		return mistral.read(f, c)
	},
	write: func(f *file, c *Config) {
		f.LocalExperts, f.TopK = c.Experts.Router.Experts, &c.Experts.Router.TopK
		mistral.write(f, c)
	},
	layer:  sparseLayer,
	onDisk: kimiOnDisk,
	gguf: &ggufForm{name: "llama", turned: true, norms: llamaNorms, windows: true,
		is: func(k *ggufKeys) bool { return k.experts() > 0 },
		more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
			f.LocalExperts, f.TopK = k.experts(), new(k.int("expert_used_count"))
		},
	},
}
