// Layers of Kimi Delta Attention: config keys, start values, and the layer.

package models

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Delta describes the layers of Kimi Delta Attention.
type Delta struct {
	Heads, HeadDim int
	Width          int     // of the short convolutions
	Bound          float64 // of the log-decay: 0 for the softplus form, else below 0
	Layers         []bool  // by layer: it is one of them; the others attend
}

func (d *Delta) check(layers int) error {
	switch {
	case d.Heads < 1 || d.Heads > 1<<20 || d.HeadDim < 1 || d.HeadDim > 256:
		return fmt.Errorf("linear attention must have 1 to 2^20 heads of 1 to 256, got %d of %d", d.Heads, d.HeadDim)
	case d.Width < 2 || d.Width > 64:
		return fmt.Errorf("the short convolution must be 2 to 64 wide, got %d", d.Width)
	case d.Bound > 0 || math.IsInf(d.Bound, 0) || d.Bound != d.Bound:
		return fmt.Errorf("gate_lower_bound must be below 0, or absent, got %g", d.Bound)
	case len(d.Layers) != layers:
		return fmt.Errorf("the kinds of %d layers are given, num_hidden_layers is %d", len(d.Layers), layers)
	}
	return nil
}

// linearAttn is the published spelling; its lists count layers from 1.
type linearAttn struct {
	HeadDim int      `json:"head_dim"`
	Heads   int      `json:"num_heads"`
	Width   int      `json:"short_conv_kernel_size"`
	Bound   *float64 `json:"gate_lower_bound,omitempty"`
	Delta   []int    `json:"kda_layers"`
	Full    []int    `json:"full_attn_layers"`
}

// delta reads either spelling.
func (f *file) delta(layers int) (*Delta, error) {
	if a := f.LinearAttn; a != nil {
		d := &Delta{Heads: a.Heads, HeadDim: a.HeadDim, Width: a.Width, Layers: make([]bool, layers)}
		if a.Bound != nil {
			d.Bound = *a.Bound
		}
		if len(a.Delta)+len(a.Full) != layers {
			return nil, fmt.Errorf("kda_layers and full_attn_layers list %d layers, num_hidden_layers is %d", len(a.Delta)+len(a.Full), layers)
		}
		seen := make([]bool, layers)
		for _, l := range slices.Concat(a.Delta, a.Full) {
			if l < 1 || l > layers || seen[l-1] {
				return nil, fmt.Errorf("kda_layers %v and full_attn_layers %v must hold each of the layers 1 to %d once", a.Delta, a.Full, layers)
			}
			seen[l-1] = true
		}
		for _, l := range a.Delta {
			d.Layers[l-1] = true
		}
		return d, nil
	}
	d := &Delta{Heads: f.LinearHeads, HeadDim: f.LinearHeadDim, Width: f.LinearWidth}
	for i, kind := range f.LayerTypes {
		switch kind {
		case "linear_attention", "full_attention":
			d.Layers = append(d.Layers, kind == "linear_attention")
		default:
			return nil, fmt.Errorf("layer_types[%d] %q is not supported (supported: linear_attention, full_attention)", i, kind)
		}
	}
	return d, nil
}

// setDelta is the way back, in the published spelling.
func (f *file) setDelta(d *Delta) {
	a := &linearAttn{HeadDim: d.HeadDim, Heads: d.Heads, Width: d.Width, Delta: []int{}, Full: []int{}}
	if d.Bound != 0 {
		a.Bound = &d.Bound
	}
	for i, is := range d.Layers {
		if is {
			a.Delta = append(a.Delta, i+1)
		} else {
			a.Full = append(a.Full, i+1)
		}
	}
	f.LinearAttn = a
}

// deltaInit starts what decides the decay: A = exp(A_log) uniform in 1 to 16,
// dt_bias where softplus gives steps dt of 1e-3 to 0.1, even in their logarithm;
// the convolutions uniform within 1/2, which is 1/sqrt(width) at the usual 4.
func deltaInit(r *rand.Rand, name string, w []float32) bool {
	switch {
	case strings.HasSuffix(name, ".A_log"):
		for i := range w {
			w[i] = float32(math.Log(1 + 15*r.Float64()))
		}
	case strings.HasSuffix(name, ".dt_bias"):
		for i := range w {
			dt := math.Exp(math.Log(1e-3) + r.Float64()*math.Log(100))
			w[i] = float32(dt + math.Log(-math.Expm1(-dt)))
		}
	case strings.HasSuffix(name, "_conv1d.weight"):
		for i := range w {
			w[i] = float32(r.Float64() - 0.5)
		}
	default:
		return false
	}
	return true
}

// unitEps is the epsilon of the unit q and k.
const unitEps = 1e-6

// deltaAttention is a layer of Kimi Delta Attention over x [...,Hidden].
func (l *layer) deltaAttention(x *graph.Node) *graph.Node {
	d, s := l.c.Delta, l.Scope("self_attn")
	all := d.Heads * d.HeadDim
	lead := leading(x)
	heads := func(y *graph.Node) *graph.Node {
		return ops.Reshape(y, append(slices.Clone(lead), d.Heads, d.HeadDim)...)
	}
	stream := func(name string) *graph.Node {
		w := ops.Reshape(s.Param(name+"_conv1d.weight", all, 1, d.Width), all, d.Width)
		return heads(l.mix.Conv(l.index, name, linear(s, name+"_proj", x, all, false), w))
	}
	// Down to one head's width and up again, with nothing between.
	narrow := func(name string) *graph.Node {
		return heads(linear(s, name+"_b_proj", linear(s, name+"_a_proj", x, d.HeadDim, false), all, false))
	}
	q, k, v := ops.L2Norm(stream("q"), unitEps), ops.L2Norm(stream("k"), unitEps), stream("v")
	g := ops.KDAGate(narrow("f"), ops.Reshape(s.Param("A_log", 1, 1, d.Heads, 1), d.Heads), s.Param("dt_bias", all), d.Bound)
	beta := ops.KDABeta(linear(s, "b_proj", x, d.Heads, false), false)
	o := ops.GatedRMSNorm(l.mix.Delta(l.index, q, k, v, g, beta), narrow("g"), s.Param("o_norm.weight", d.HeadDim), l.c.NormEps)
	o = ops.Reshape(o, append(slices.Clone(lead), all)...)
	return l.drop.apply(linear(s, "o_proj", o, l.c.Hidden, false), fmt.Sprintf("attn.%d", l.index))
}
