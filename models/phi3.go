package models

import (
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// phi3 is llama with q, k and v of one matrix, and gate and up of another; the
// front of a head alone may turn. Source: Abdin et al. (arXiv:2404.14219).
var phi3 = architecture{
	class: "Phi3ForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 4096, Original: new(4096), RopeTheta: new(1e4)}
	},
	read: func(f *file, c *Config) error {
		if kind := c.RopeScale.Type; kind == suRope || kind == "yarn" {
			c.RopeScale.Type = "longrope" // the names it had in the first releases
		}
		return mistral.read(f, c)
	},
	write: func(f *file, c *Config) {
		mistral.write(f, c)
		if s := c.RopeScale; s.Type != "" {
			f.Original = &s.OriginalPositions
		}
	},
	partial: true,
	layer: func(l *layer, x *graph.Node) *graph.Node {
		x = ops.Add(x, l.fusedAttention(l.norm("input_layernorm", x)))
		return ops.Add(x, l.fusedUnit(l.norm("post_attention_layernorm", x)))
	},
	gguf: &ggufForm{name: "phi3", norms: llamaNorms, windows: true, more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
		if n := orElse(k, "rope.dimension_count", k.int, *f.HeadDim); n != *f.HeadDim {
			f.setTurning(n, *f.HeadDim)
		}
	}},
}

// suRope is what longrope was called first.
const suRope = "su"

// fusedAttention is attention with queries, keys and values of one projection.
func (l *layer) fusedAttention(x *graph.Node) *graph.Node {
	c, s, lead := l.c, l.Scope("self_attn"), leading(x)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	parts := ops.Split(linear(s, "qkv_proj", x, q+2*kv, false), q, kv, kv)
	if len(parts) < 3 {
		return x // the builder has the error
	}
	heads := func(y *graph.Node, n int) *graph.Node {
		return ops.Reshape(y, append(slices.Clone(lead), n, c.HeadDim)...)
	}
	return l.meet(s, lead, heads(parts[0], c.Heads), heads(parts[1], c.KVHeads), heads(parts[2], c.KVHeads))
}

// fusedUnit is the gated unit with gate and up of one projection.
func (l *layer) fusedUnit(x *graph.Node) *graph.Node {
	s := l.Scope("mlp")
	parts := ops.Split(linear(s, "gate_up_proj", x, 2*l.c.FFN, false), l.c.FFN, l.c.FFN)
	if len(parts) < 2 {
		return x // the builder has the error
	}
	return l.drop.apply(linear(s, "down_proj", ops.SwiGLU(parts[0], parts[1]), l.c.Hidden, false), unitName(l.index))
}
