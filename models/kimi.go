package models

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// kimiLinear is Kimi Linear: layers of Kimi Delta Attention with one of latent
// attention, which nothing rotates, after every few; a gated unit in the first
// layers and mixtures of experts in the others. Source: Kimi Team
// (arXiv:2510.26692).
var kimiLinear = architecture{
	class: "KimiLinearForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-5, RopeTheta: new(1e4), RoutedScale: 1, kimiKeys: kimiKeys{ModelMaxLength: 1 << 20}}
	},
	read: func(f *file, c *Config) (err error) {
		switch {
		case f.AttentionBias || f.MLPBias:
			return errors.New("attention_bias and mlp_bias true are not supported for kimi_linear")
		case f.UseNope != nil && !*f.UseNope:
			return errors.New("mla_use_nope false is not supported (supported: true)")
		case f.NextLayers > 0:
			c.Skipped = f.NextLayers
		}
		if c.Delta, err = f.delta(c.Layers); err != nil {
			return err
		}
		c.readLatent(f)
		if f.ExpertCount > 0 {
			if c.Experts, err = f.kimiExperts(c.Layers); err != nil {
				return err
			}
		}
		c.allNoRope()
		return nil
	},
	write: func(f *file, c *Config) {
		a := c.Latent
		f.setDelta(c.Delta)
		f.KVRank, f.RopeHeadDim, f.NopeHeadDim, f.VHeadDim = a.KVRank, a.Rope, a.Nope, &a.V
		f.QRank = new(rank(a.QRank))
		if c.Experts != nil {
			f.setKimiExperts(c.Experts)
		}
		f.HeadDim, f.UseNope = &a.Rope, new(true) // as published
		f.ModelMaxLength, f.RopeTheta, f.NextLayers = c.Context, nil, c.Skipped
	},
	layer: func(l *layer, x *graph.Node) *graph.Node {
		mix := l.latentAttention
		if l.c.Delta.Layers[l.index] {
			mix = l.deltaAttention
		}
		x = ops.Add(x, mix(l.norm("input_layernorm", x)))
		return ops.Add(x, l.feedForward(l.norm("post_attention_layernorm", x)))
	},
	onDisk: kimiOnDisk,
	gguf:   &kimiGGUF,
	// transformers saves the gated unit of a dense layer under the mixtures'
	// name.
	other: func(name string) string { return strings.Replace(name, ".mlp.", kimiScope, 1) },
}

const kimiScope = ".block_sparse_moe."

// kimiOnDisk gives mixtures their scope, and the matrices of experts theirs.
func kimiOnDisk(c *Config, name string) []string {
	before, after, ok := strings.Cut(name, ".mlp.")
	if !ok || c.Experts == nil {
		return []string{name}
	}
	layer, err := strconv.Atoi(before[strings.LastIndexByte(before, '.')+1:])
	if err != nil || layer >= c.Layers || c.Experts.Dense[layer] {
		return []string{name}
	}
	for theirs, ours := range map[string]string{"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"} {
		if end, ok := strings.CutPrefix(after, "experts."+ours+".weight"); ok {
			names := make([]string, c.Experts.Router.Experts)
			for e := range names {
				names[e] = fmt.Sprintf("%s%sexperts.%d.%s.weight%s", before, kimiScope, e, theirs, end)
			}
			return names
		}
	}
	return []string{before + kimiScope + after}
}

// allNoRope says that no layer rotates.
func (c *Config) allNoRope() { c.NoRope = slices.Repeat([]bool{true}, c.Layers) }

// kimiKeys are the keys of config.json that the type alone has, in both
// spellings of the layers.
type kimiKeys struct {
	ModelMaxLength int `json:"model_max_length,omitempty"`

	LinearAttn    *linearAttn `json:"linear_attn_config,omitempty"`
	LinearHeads   int         `json:"linear_num_heads,omitempty"`
	LinearHeadDim int         `json:"linear_head_dim,omitempty"`
	LinearWidth   int         `json:"linear_conv_kernel_dim,omitempty"`

	KimiTopK     int      `json:"num_experts_per_token,omitempty"`
	KimiShared   int      `json:"num_shared_experts,omitempty"`
	KimiGroups   int      `json:"num_expert_group,omitempty"`
	Renormalize  *bool    `json:"moe_renormalize,omitempty"`
	RouterScores string   `json:"moe_router_activation_func,omitempty"`
	MLPTypes     []string `json:"mlp_layer_types,omitempty"`
	UseNope      *bool    `json:"mla_use_nope,omitempty"`
}

// kimiExperts reads the mixtures.
func (f *file) kimiExperts(layers int) (*Experts, error) {
	e := &Experts{
		Router: ops.Router{Experts: f.ExpertCount, TopK: f.KimiTopK, Groups: f.KimiGroups, KeepGroups: orZero(f.TopGroups),
			Sigmoid: true, Renormalize: f.Renormalize == nil || *f.Renormalize, Scale: float64(f.RoutedScale)},
		FFN: f.ExpertFFN, Shared: f.KimiShared * f.ExpertFFN, Bias: true, Dense: make([]bool, layers),
	}
	switch {
	case f.RouterScores != "" && f.RouterScores != "sigmoid":
		return nil, fmt.Errorf("moe_router_activation_func %q is not supported (supported: sigmoid)", f.RouterScores)
	case f.MoEFrequency > 1:
		return nil, fmt.Errorf("moe_layer_freq %d is not supported (supported: 1)", f.MoEFrequency)
	case f.KimiShared < 0 || f.KimiShared > 1<<16:
		return nil, fmt.Errorf("num_shared_experts must be 0 to 65536, got %d", f.KimiShared)
	case f.MLPTypes == nil:
		for l := range min(max(orZero(f.DenseFirst), 0), layers) {
			e.Dense[l] = true
		}
		return e, nil
	case len(f.MLPTypes) != layers:
		return nil, fmt.Errorf("mlp_layer_types has %d entries, num_hidden_layers is %d", len(f.MLPTypes), layers)
	}
	for l, kind := range f.MLPTypes {
		switch kind {
		case "dense", "sparse":
			e.Dense[l] = kind == "dense"
		default:
			return nil, fmt.Errorf("mlp_layer_types[%d] %q is not supported (supported: dense, sparse)", l, kind)
		}
	}
	return e, nil
}

func (f *file) setKimiExperts(e *Experts) {
	r := e.Router
	f.ExpertCount, f.KimiTopK, f.KimiShared, f.KimiGroups, f.TopGroups = r.Experts, r.TopK, e.Shared/e.FFN, r.Groups, &r.KeepGroups
	f.Renormalize, f.RoutedScale, f.RouterScores, f.ExpertFFN = &r.Renormalize, decimal(r.Scale), "sigmoid", e.FFN
	first := 0
	for first < len(e.Dense) && e.Dense[first] {
		first++
	}
	if !slices.Contains(e.Dense[first:], true) {
		f.DenseFirst = &first
		return
	}
	for _, dense := range e.Dense { // not the first ones alone
		kind := "sparse"
		if dense {
			kind = "dense"
		}
		f.MLPTypes = append(f.MLPTypes, kind)
	}
}

// KimiLinear makes a Kimi Linear model, without weights, of a config that holds
// the sizes, Latent and Delta, and Experts if it has mixtures; the rest of what
// the type requires is filled in.
func KimiLinear(c Config) (*Transformer, error) {
	c.Type, c.RopeTheta = kimiType, 1e4
	if c.NormEps == 0 {
		c.NormEps = 1e-5
	}
	if c.Latent != nil {
		c.KVHeads, c.HeadDim = c.Heads, c.Latent.Nope+c.Latent.Rope
	}
	if c.Layers > 0 && c.Layers <= maxLayers {
		c.allNoRope()
	}
	return New(c)
}

const kimiType = "kimi_linear"
