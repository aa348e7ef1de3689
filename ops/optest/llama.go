package optest

import "fmt"

// LlamaConfig is the shape of a decoder of the llama family. What the weights
// say by their presence is not repeated here: biases of any projection, norms
// of q and k by head (`q_norm`, `k_norm`), an untied `lm_head`.
type LlamaConfig struct {
	Hidden, Layers          int
	Heads, KVHeads, HeadDim int
	Eps, Theta              float64
	Rope                    RopeScaling
	Window                  int // sliding window of every layer, 0 for none
}

// Llama returns logits [T, Vocab] of one sequence, on a tape over weights named
// as in a Hugging Face checkpoint:
//
//	x += o(attention(rotary(q(n)), rotary(k(n)), v(n))), n = rmsnorm(x)
//	x += down(silu(gate(n)) up(n)),                      n = rmsnorm(x)
func Llama(t *Tape, c LlamaConfig, ids []int32) *Value {
	frequencies, factor, err := InverseFrequencies(c.Theta, c.HeadDim, c.Rope)
	if err != nil {
		panic(err)
	}
	n := len(ids)
	x := t.Embed("model.embed_tokens.weight", ids, c.Hidden)
	for layer := range c.Layers {
		at := fmt.Sprintf("model.layers.%d.", layer)
		h := t.RMSNorm(x, at+"input_layernorm.weight", c.Hidden, c.Eps)
		q := t.Linear(h, at+"self_attn.q_proj", c.Hidden)
		k := t.Linear(h, at+"self_attn.k_proj", c.Hidden)
		v := t.Linear(h, at+"self_attn.v_proj", c.Hidden)
		if t.Param(at+"self_attn.q_norm.weight") != nil {
			q = t.RMSNorm(q, at+"self_attn.q_norm.weight", c.HeadDim, c.Eps)
			k = t.RMSNorm(k, at+"self_attn.k_norm.weight", c.HeadDim, c.Eps)
		}
		q = t.Rotary(q, frequencies, factor, c.Heads, c.HeadDim)
		k = t.Rotary(k, frequencies, factor, c.KVHeads, c.HeadDim)
		o := t.Attention(Attention{B: 1, Lq: n, Lk: n, Hq: c.Heads, Hkv: c.KVHeads, D: c.HeadDim, Dv: c.HeadDim,
			Causal: true, Window: c.Window}, q, k, v)
		x = t.Add(x, t.Linear(o, at+"self_attn.o_proj", c.Heads*c.HeadDim))
		x = t.Add(x, swigluBlock(t, t.RMSNorm(x, at+"post_attention_layernorm.weight", c.Hidden, c.Eps), at+"mlp.", c.Hidden))
	}
	x = t.RMSNorm(x, "model.norm.weight", c.Hidden, c.Eps)
	if t.Param("lm_head.weight") == nil {
		return tiedHead(t, x, "model.embed_tokens.weight", c.Hidden)
	}
	return t.Linear(x, "lm_head", c.Hidden)
}

// swigluBlock is down(silu(gate(x)) up(x)) of the projections under a prefix.
func swigluBlock(t *Tape, x *Value, prefix string, hidden int) *Value {
	y := t.SwiGLU(t.Linear(x, prefix+"gate_proj", hidden), t.Linear(x, prefix+"up_proj", hidden))
	return t.Linear(y, prefix+"down_proj", len(y.Data)*hidden/len(x.Data))
}

// tiedHead multiplies by the embedding table.
func tiedHead(t *Tape, x *Value, name string, k int) *Value {
	table := t.Param(name)
	m, n := len(x.Data)/k, len(table.Data)/k
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{Linear(in[0], in[1], nil, m, n, k)} },
		func(in, g [][]float64) [][]float64 {
			dx, dw, _ := LinearGrad(g[0], in[0], in[1], m, n, k)
			return [][]float64{dx, dw}
		}, x, table)[0]
}
