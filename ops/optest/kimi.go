package optest

import (
	"fmt"
	"math"
)

// KimiConfig is the shape of a Kimi Linear model: layers of Kimi Delta
// Attention or latent attention without rotation, each with a dense or a mixed
// feed-forward. FullAttention and Sparse tell which, for every layer.
type KimiConfig struct {
	Hidden                int
	FullAttention, Sparse []bool
	Eps                   float64
	KDAHeads, KDADim      int
	ConvWidth             int
	Heads, Nope, Rope     int
	Latent, Value         int
	Router                Router
}

// latentEps is the epsilon of kv_a_layernorm, whatever the model's own is.
const latentEps = 1e-6

// KimiLinear returns logits [T, Vocab] of one sequence, on a tape over weights
// named as in the published checkpoints (arXiv:2510.26692). The feed-forward of
// a layer may be called mlp or block_sparse_moe.
func KimiLinear(t *Tape, c KimiConfig, ids []int32) *Value {
	x := t.Embed("model.embed_tokens.weight", ids, c.Hidden)
	for layer, full := range c.FullAttention {
		at := fmt.Sprintf("model.layers.%d.", layer)
		h := t.RMSNorm(x, at+"input_layernorm.weight", c.Hidden, c.Eps)
		if full {
			x = t.Add(x, kimiLatent(t, c, h, at+"self_attn."))
		} else {
			x = t.Add(x, kimiDelta(t, c, h, at+"self_attn."))
		}
		h = t.RMSNorm(x, at+"post_attention_layernorm.weight", c.Hidden, c.Eps)
		mlp := at + "block_sparse_moe."
		if t.Param(mlp+"gate_proj.weight") == nil && t.Param(mlp+"gate.weight") == nil {
			mlp = at + "mlp."
		}
		if !c.Sparse[layer] {
			x = t.Add(x, swigluBlock(t, h, mlp, c.Hidden))
			continue
		}
		x = t.Add(x, t.Add(kimiExperts(t, c, h, mlp), swigluBlock(t, h, mlp+"shared_experts.", c.Hidden)))
	}
	return t.Linear(t.RMSNorm(x, "model.norm.weight", c.Hidden, c.Eps), "lm_head", c.Hidden)
}

// kimiDelta is the KDA layer: projections, short convolutions, unit q and k,
// decay and write strength, the delta rule, gated norm, o_proj.
func kimiDelta(t *Tape, c KimiConfig, x *Value, at string) *Value {
	h, d := c.KDAHeads, c.KDADim
	n := len(x.Data) / c.Hidden
	cu := []int32{0, int32(n)}
	stream := func(name string) *Value {
		return t.Apply(
			func(in [][]float64) [][]float64 {
				y, _ := ShortConv(in[0], in[1], nil, cu, h*d, c.ConvWidth)
				return [][]float64{y}
			},
			func(in, g [][]float64) [][]float64 {
				dx, dw, _ := ShortConvGrad(g[0], nil, in[0], in[1], nil, cu, h*d, c.ConvWidth)
				return [][]float64{dx, dw}
			}, t.Linear(x, at+name+"_proj", c.Hidden), t.Param(at+name+"_conv1d.weight"))[0]
	}
	unit := func(x *Value) *Value {
		return t.Apply(
			func(in [][]float64) [][]float64 { return [][]float64{L2Norm(in[0], d, 1e-6)} },
			func(in, g [][]float64) [][]float64 { return [][]float64{L2NormGrad(g[0], in[0], d, 1e-6)} }, x)[0]
	}
	q, k, v := unit(stream("q")), unit(stream("k")), stream("v")
	decay := t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{KDAGate(in[0], in[1], in[2], h, d, 0)} },
		func(in, g [][]float64) [][]float64 {
			dz, da, db := KDAGateGrad(g[0], in[0], in[1], in[2], h, d, 0)
			return [][]float64{dz, da, db}
		}, t.Linear(t.Linear(x, at+"f_a_proj", c.Hidden), at+"f_b_proj", d), t.Param(at+"A_log"), t.Param(at+"dt_bias"))[0]
	beta := t.Apply(
		func(in [][]float64) [][]float64 {
			y := make([]float64, len(in[0]))
			for i, v := range in[0] {
				y[i] = Sigmoid(v)
			}
			return [][]float64{y}
		},
		func(in, g [][]float64) [][]float64 {
			dx := make([]float64, len(in[0]))
			for i, v := range in[0] {
				dx[i] = g[0][i] * Sigmoid(v) * Sigmoid(-v)
			}
			return [][]float64{dx}
		}, t.Linear(x, at+"b_proj", c.Hidden))[0]
	rule := func(in [][]float64) KDA {
		return KDA{Q: in[0], K: in[1], V: in[2], G: in[3], Beta: in[4], Cu: cu, H: h, HV: h, DK: d, DV: d, Scale: 1 / math.Sqrt(float64(d))}
	}
	o := t.Apply(
		func(in [][]float64) [][]float64 {
			o, _ := rule(in).Forward()
			return [][]float64{o}
		},
		func(in, g [][]float64) [][]float64 {
			d := rule(in).Grad(g[0], nil)
			return [][]float64{d.Q, d.K, d.V, d.G, d.Beta}
		}, q, k, v, decay, beta)[0]
	o = t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{GatedRMSNorm(in[0], in[1], in[2], c.Eps)} },
		func(in, g [][]float64) [][]float64 {
			dx, dg, dw := GatedRMSNormGrad(g[0], in[0], in[1], in[2], c.Eps)
			return [][]float64{dx, dg, dw}
		}, o, t.Linear(t.Linear(x, at+"g_a_proj", c.Hidden), at+"g_b_proj", d), t.Param(at+"o_norm.weight"))[0]
	return t.Linear(o, at+"o_proj", h*d)
}

// kimiLatent is the latent attention layer; nothing in it is rotated.
func kimiLatent(t *Tape, c KimiConfig, x *Value, at string) *Value {
	n := len(x.Data) / c.Hidden
	a := MLA{B: 1, Lq: n, Lk: n, H: c.Heads, N: c.Nope, P: c.Rope, R: c.Latent, V: c.Value, Causal: true}
	width := c.Latent + c.Rope
	parts := t.Apply(
		func(in [][]float64) [][]float64 {
			var latent, shared []float64
			for i := range n {
				latent = append(latent, in[0][i*width:][:c.Latent]...)
				shared = append(shared, in[0][i*width+c.Latent:][:c.Rope]...)
			}
			return [][]float64{latent, shared}
		},
		func(_, g [][]float64) [][]float64 {
			var d []float64
			for i := range n {
				d = append(append(d, g[0][i*c.Latent:][:c.Latent]...), g[1][i*c.Rope:][:c.Rope]...)
			}
			return [][]float64{d}
		}, t.Linear(x, at+"kv_a_proj_with_mqa", c.Hidden))
	o := t.Apply(
		func(in [][]float64) [][]float64 {
			out, _ := a.Forward(in[0], in[1], in[2], in[3])
			return [][]float64{out}
		},
		func(in, g [][]float64) [][]float64 {
			dq, dc, dp, dw := a.Backward(in[0], in[1], in[2], in[3], g[0], nil)
			return [][]float64{dq, dc, dp, dw}
		}, t.Linear(x, at+"q_proj", c.Hidden), t.RMSNorm(parts[0], at+"kv_a_layernorm.weight", c.Latent, latentEps),
		parts[1], t.Param(at+"kv_b_proj.weight"))[0]
	return t.Linear(o, at+"o_proj", c.Heads*c.Value)
}

// kimiExperts is the routed part of a mixed feed-forward.
func kimiExperts(t *Tape, c KimiConfig, x *Value, at string) *Value {
	logits := t.Linear(x, at+"gate", c.Hidden)
	bias := t.Weights[at+"gate.e_score_correction_bias"]
	ids, _ := c.Router.Route(logits.Data, bias)
	weights := t.Apply(
		func(in [][]float64) [][]float64 {
			_, w := c.Router.Route(in[0], bias)
			return [][]float64{w}
		},
		func(in, g [][]float64) [][]float64 { return [][]float64{c.Router.RouteGrad(g[0], in[0], ids)} }, logits)[0]

	stack := func(name string) *Value {
		var each []*Value
		for e := range c.Router.Experts {
			each = append(each, t.Param(fmt.Sprintf("%sexperts.%d.%s.weight", at, e, name)))
		}
		size := len(each[0].Data)
		return t.Apply(
			func(in [][]float64) [][]float64 {
				var all []float64
				for _, w := range in {
					all = append(all, w...)
				}
				return [][]float64{all}
			},
			func(in, g [][]float64) [][]float64 {
				var d [][]float64
				for e := range in {
					d = append(d, g[0][e*size:(e+1)*size])
				}
				return d
			}, each...)[0]
	}
	gate := stack("w1")
	f := Experts{D: c.Hidden, F: len(gate.Data) / c.Router.Experts / c.Hidden, TopK: c.Router.TopK}
	return t.Apply(
		func(in [][]float64) [][]float64 {
			return [][]float64{f.Forward(in[0], in[1], ids, in[2], in[3], in[4])}
		},
		func(in, g [][]float64) [][]float64 {
			a, b, c, d, e := f.Backward(g[0], in[0], in[1], ids, in[2], in[3], in[4])
			return [][]float64{a, b, c, d, e}
		}, x, weights, gate, stack("w3"), stack("w2"))[0]
}
