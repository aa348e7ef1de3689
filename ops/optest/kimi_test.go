package optest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// kimiFile is the part of a config.json that KimiConfig needs.
type kimiFile struct {
	Vocab      int      `json:"vocab_size"`
	Hidden     int      `json:"hidden_size"`
	LayerTypes []string `json:"layer_types"`
	MLPTypes   []string `json:"mlp_layer_types"`
	Eps        float64  `json:"rms_norm_eps"`
	KDAHeads   int      `json:"linear_num_heads"`
	KDADim     int      `json:"linear_head_dim"`
	ConvWidth  int      `json:"linear_conv_kernel_dim"`
	Heads      int      `json:"num_attention_heads"`
	Nope       int      `json:"qk_nope_head_dim"`
	Rope       int      `json:"qk_rope_head_dim"`
	Latent     int      `json:"kv_lora_rank"`
	Value      int      `json:"v_head_dim"`
	Experts    int      `json:"num_experts"`
	TopK       int      `json:"num_experts_per_token"`
	Groups     int      `json:"num_expert_group"`
	KeepGroups int      `json:"topk_group"`
	Normalize  bool     `json:"moe_renormalize"`
	Scale      float64  `json:"routed_scaling_factor"`
}

func (f kimiFile) config() KimiConfig {
	c := KimiConfig{
		Hidden: f.Hidden, Eps: f.Eps, KDAHeads: f.KDAHeads, KDADim: f.KDADim, ConvWidth: f.ConvWidth,
		Heads: f.Heads, Nope: f.Nope, Rope: f.Rope, Latent: f.Latent, Value: f.Value,
		Router: Router{Experts: f.Experts, TopK: f.TopK, Groups: f.Groups, KeepGroups: f.KeepGroups,
			Sigmoid: true, Renormalize: f.Normalize, Scale: f.Scale},
	}
	for i := range f.LayerTypes {
		c.FullAttention = append(c.FullAttention, f.LayerTypes[i] == "full_attention")
		c.Sparse = append(c.Sparse, f.MLPTypes[i] == "sparse")
	}
	return c
}

// Logits, losses, greedy tokens and every gradient norm of the hybrid: KDA and
// its parts, latent attention, router and experts against an independent
// implementation.
func TestKimiLinear_Golden(t *testing.T) {
	var f kimiFile
	g, weights := openGolden(t, "kimi_linear", &f)
	require.Len(t, g.Prompts, 3)
	g.holds(t, weights, f.Vocab, func(tape *Tape, ids []int32) *Value { return KimiLinear(tape, f.config(), ids) })
}
