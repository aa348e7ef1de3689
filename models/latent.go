// Latent attention as a part of a layer.

package models

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Latent describes attention whose keys and values come from one small vector a
// token. The heads of queries and keys are Nope numbers without and Rope numbers
// with a rotation. Source: DeepSeek-V2 (arXiv:2405.04434).
type Latent struct {
	QRank, KVRank int  // widths of the small vectors; QRank 0: queries are projected at once
	Nope, Rope, V int  // of a head
	Halves        bool // the rotated part pairs its halves, not its neighbours
}

func (a *Latent) check() error {
	for _, x := range []struct {
		name     string
		v, least int
	}{{"q_lora_rank", a.QRank, 0}, {"kv_lora_rank", a.KVRank, 1}, {"qk_nope_head_dim", a.Nope, 2}, {"qk_rope_head_dim", a.Rope, 2}, {"v_head_dim", a.V, 1}} {
		if x.v < x.least || x.v > 1<<20 {
			return fmt.Errorf("%s must be %d to 2^20, got %d", x.name, x.least, x.v)
		}
	}
	if a.Nope%2 != 0 || a.Rope%2 != 0 {
		return fmt.Errorf("qk_nope_head_dim and qk_rope_head_dim must be even for the rotation, got %d and %d", a.Nope, a.Rope)
	}
	return nil
}

// latentEps is the norms' of the small vectors, whatever rms_norm_eps says.
const latentEps = 1e-6

func (l *layer) latentAttention(x *graph.Node) *graph.Node {
	c, a, s := l.c, l.c.Latent, l.Scope("self_attn")
	lead := leading(x)
	var q *graph.Node
	if a.QRank > 0 {
		small := l.arch.norm(s, "q_a_layernorm", linear(s, "q_a_proj", x, a.QRank, c.QKVBias), latentEps)
		q = linear(s, "q_b_proj", small, c.Heads*c.HeadDim, false)
	} else {
		q = linear(s, "q_proj", x, c.Heads*c.HeadDim, false)
	}
	q = ops.Reshape(q, append(slices.Clone(lead), c.Heads, c.HeadDim)...)
	parts := ops.Split(linear(s, "kv_a_proj_with_mqa", x, a.KVRank+a.Rope, c.QKVBias), a.KVRank, a.Rope)
	if len(parts) < 2 {
		return x // the builder has the error
	}
	latent := l.arch.norm(s, "kv_a_layernorm", parts[0], latentEps)
	w := weight(s, "kv_b_proj.weight", c.Heads*(a.Nope+a.V), a.KVRank)
	o := ops.Reshape(l.mix.Latent(l.index, a, q, latent, parts[1], w), append(slices.Clone(lead), c.Heads*a.V)...)
	return l.drop.apply(linear(s, "o_proj", o, c.Hidden, c.OutputBias), fmt.Sprintf("attn.%d", l.index))
}

// expand gives the keys and values of all heads.
func (a *Latent) expand(q, latent, shared, w *graph.Node) (k, v *graph.Node) {
	return ops.LatentKV(ops.Linear(latent, w), shared, q.Dim(-2), a.Nope, a.V)
}

// latentTable turns the last Rope numbers of a head, in neighbouring pairs, and
// leaves the first Nope as they are: the angle of their pairs is 0.
func latentTable(t *ops.RotaryTable, nope int) *ops.RotaryTable {
	n, w := nope/2, t.Width/2
	out := &ops.RotaryTable{Positions: t.Positions, Width: nope + t.Width}
	out.Cos, out.Sin = make([]float32, t.Positions*(n+w)), make([]float32, t.Positions*(n+w))
	for p := range t.Positions {
		row := p * (n + w)
		for i := range n {
			out.Cos[row+i] = 1
		}
		copy(out.Cos[row+n:row+n+w], t.Cos[p*w:])
		copy(out.Sin[row+n:row+n+w], t.Sin[p*w:])
	}
	return out
}
