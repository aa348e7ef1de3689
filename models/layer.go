// The pieces of which the model types put their layers together.

package models

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// layer is one decoder layer in the making, a builder in its scope.
type layer struct {
	*graph.Builder
	c     *Config
	arch  *architecture
	index int
	drop  Dropout
	mix   Mixer
}

// norm is the RMSNorm of that name over the last dimension.
func (l *layer) norm(name string, x *graph.Node) *graph.Node {
	return l.arch.norm(l.Builder, name, x, l.c.NormEps)
}

func (a *architecture) norm(b *graph.Builder, name string, x *graph.Node, eps float64) *graph.Node {
	w := b.Param(name+".weight", x.Dim(-1))
	if a.unitNorm {
		w = ops.Affine(w, 1, 1)
	}
	return ops.RMSNorm(x, w, eps)
}

// attention projects x [...,Hidden] to queries, keys and values, lets them
// meet, and projects the result back.
func (l *layer) attention(x *graph.Node) *graph.Node {
	c, s := l.c, l.Scope("self_attn")
	lead := leading(x)
	project := func(name, norm string, n int) *graph.Node {
		y := linear(s, name, x, n*c.HeadDim, c.QKVBias)
		normed := c.QKNorm && norm != ""
		if normed && l.arch.wholeNorm {
			y = l.arch.norm(s, norm, y, c.NormEps)
		}
		y = ops.Reshape(y, append(slices.Clone(lead), n, c.HeadDim)...)
		if normed && !l.arch.wholeNorm {
			y = l.arch.norm(s, norm, y, c.NormEps)
		}
		return y
	}
	return l.meet(s, lead, project("q_proj", "q_norm", c.Heads), project("k_proj", "k_norm", c.KVHeads), project("v_proj", "", c.KVHeads))
}

// meet lets queries, keys and values meet and projects the result back.
func (l *layer) meet(s *graph.Builder, lead []int, q, k, v *graph.Node) *graph.Node {
	var sinks *graph.Node
	if l.c.Sinks {
		sinks = s.Param("sinks", l.c.Heads)
	}
	o := ops.Reshape(l.mix.Attention(l.index, q, k, v, sinks), append(slices.Clone(lead), l.c.Heads*l.c.HeadDim)...)
	return l.drop.apply(linear(s, "o_proj", o, l.c.Hidden, l.c.OutputBias), fmt.Sprintf("attn.%d", l.index))
}

// add is the stream with what a part of the layer adds to it.
func (l *layer) add(x, y *graph.Node) *graph.Node {
	if r := orOne(l.c.ResidualScale); r != 1 {
		y = ops.Affine(y, r, 0)
	}
	return ops.Add(x, y)
}

// leading are the dimensions of x but the last; none of a node that could not be
// built.
func leading(x *graph.Node) []int {
	s := x.Shape()
	return s[:max(0, len(s)-1)]
}

// gatedUnit is down(act(gate x) * up x) with the activation of the type.
func (l *layer) gatedUnit(x *graph.Node) *graph.Node {
	return l.drop.apply(l.gated(l.Scope("mlp"), x, l.c.FFN), unitName(l.index))
}

// unitName is the place of a gated unit or mixture among those that drop.
func unitName(layer int) string { return fmt.Sprintf("mlp.%d", layer) }

// gated is a gated unit of that width in a scope.
func (l *layer) gated(s *graph.Builder, x *graph.Node, width int) *graph.Node {
	gate, up := linear(s, "gate_proj", x, width, l.c.MLPBias), linear(s, "up_proj", x, width, l.c.MLPBias)
	var h *graph.Node
	if l.arch.gelu {
		h = ops.GeGLU(gate, up, true)
	} else {
		h = ops.SwiGLU(gate, up)
	}
	return linear(s, "down_proj", h, l.c.Hidden, l.c.MLPBias)
}

// linear is the projection of that name, from the last dimension to out.
func linear(b *graph.Builder, name string, x *graph.Node, out int, bias bool) *graph.Node {
	w := weight(b, name+".weight", out, x.Dim(-1))
	if bias {
		return ops.Linear(x, w, b.Param(name+".bias", out))
	}
	return ops.Linear(x, w)
}

// weight is a matrix as the model stores it: plain, or as rows of blocks.
func weight(b *graph.Builder, name string, shape ...int) *graph.Node {
	if p := b.Stored(name); p != nil && p.Type.DType == dtype.UInt8 {
		return b.Param(name, p.Type.Shape...)
	}
	return b.Param(name, shape...)
}
