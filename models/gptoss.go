package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// gptOSS has a logit in the softmax of each head that no key has, a window on every
// second layer, and mixtures with biases and clamped units. Source: OpenAI, gpt-oss
// (arXiv:2508.10925).
var gptOSS = architecture{
	class: gptOSSClass,
	defaults: func() file {
		return file{
			HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 131072, RopeTheta: new(1.5e5), KVHeads: new(8), HeadDim: new(64), AttentionBias: true,
			SlidingWindow: new(128), LocalExperts: 128, TopK: new(4), UnitAlpha: 1.702, UnitLimit: 7,
			unsaidRope: &rope{Type: "yarn", Factor: 32, Original: 4096, BetaFast: 32, BetaSlow: 1, Truncate: new(false)},
		}
	},
	read: func(f *file, c *Config) error {
		if !(f.UnitLimit > 0) {
			return fmt.Errorf("swiglu_limit must be above 0, got %g", f.UnitLimit)
		}
		c.QKVBias, c.OutputBias, c.Sinks = f.AttentionBias, f.AttentionBias, true
		c.Experts = &Experts{
			FFN: c.FFN, Dense: make([]bool, c.Layers), Clamp: ops.ClampedExpertsOp{Alpha: float64(f.UnitAlpha), Limit: float64(f.UnitLimit)},
			Router: ops.Router{Experts: f.experts(), TopK: f.topK(), Renormalize: true},
		}
		c.Quantization = nil // blocks are widened
		return f.windows(c, func(layer int) bool { return layer%2 == 0 })
	},
	write: func(f *file, c *Config) {
		e := c.Experts
		f.AttentionBias, f.LocalExperts, f.TopK = c.QKVBias, e.Router.Experts, &e.Router.TopK
		f.UnitAlpha, f.UnitLimit = decimal(e.Clamp.Alpha), decimal(e.Clamp.Limit)
		r := rope{Type: "default"}
		if f.RopeScaling != nil {
			r = *f.RopeScaling
		}
		r.Theta = &c.RopeTheta
		f.RopeParameters = &r // left out it is another one
		f.writeWindows(c)
	},
	onDisk: func(_ *Config, name string) []string { return []string{name} },
	layer:  sparseLayer,
	gguf: &ggufForm{name: "gpt-oss", windows: true,
		norms: map[string]string{"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"},
		more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
			f.LocalExperts, f.TopK, f.IntermediateSize = k.experts(), new(k.int("expert_used_count")), k.int("expert_feed_forward_length")
		},
	},
}

// ossStack is how a file of gpt_oss has a stack of experts, or its bias: as
// [E,in,out], or [E,out], with gate and up as neighbours among the outputs. Released
// files have blocks in its place: see readBlocks.
type ossStack struct {
	name             string
	half, step       int // outputs half, half+step ... are the parameter's
	experts, in, out int
	bias             bool
}

// ossStack tells it of a parameter of the experts of gpt_oss.
func (c *Config) ossStack(param string) (s ossStack, ok bool) {
	before, kind, ok := strings.Cut(param, ".mlp.experts.")
	if !ok || architectures[c.Type].class != gptOSSClass {
		return s, false
	}
	module, kind, _ := strings.Cut(kind, ".")
	s = ossStack{step: 2, experts: c.Experts.Router.Experts, in: c.Hidden, out: 2 * c.Experts.FFN, bias: kind == "bias"}
	name := "gate_up_proj"
	switch module {
	case "up_proj":
		s.half = 1
	case "down_proj":
		name, s.step, s.in, s.out = module, 1, c.Experts.FFN, c.Hidden
	}
	s.name = before + ".mlp.experts." + name
	if s.bias {
		s.name, s.in = s.name+"_bias", 1
	}
	return s, true
}

// gptOSSClass tells the type without its entry in the table.
const gptOSSClass = "GptOssForCausalLM"

func (s ossStack) shape() []int {
	if s.bias {
		return []int{s.experts, s.out}
	}
	return []int{s.experts, s.in, s.out}
}

// find gives the tensors of a stack with the shapes that they must have: one, or
// blocks of 32 inputs and their scales.
func (s ossStack) find(src *source) (parts []*checkpoint.Tensor, shapes [][]int, ok bool) {
	if t, ok := src.lookup(s.name); ok {
		return []*checkpoint.Tensor{t}, [][]int{s.shape()}, true
	}
	blocks, ok := src.lookup(s.name + "_blocks")
	scales, ok2 := src.lookup(s.name + "_scales")
	scaled := []int{s.experts, s.out, s.in / 32}
	return []*checkpoint.Tensor{blocks, scales}, [][]int{append(slices.Clone(scaled), 16), scaled}, ok && ok2
}

// Joined tells of a parameter that the model's files have in another order, and
// maybe with another in one tensor: that tensor's name and shape, and how the
// parameter is read from its rows. A trainer that resumes calls it.
func (m *Transformer) Joined(param string) (name string, shape []int, read func(rows func(dst []float32, first, n int) error) error, ok bool) {
	if m.Missing() || m.params.Get(param) == nil {
		return "", nil, nil, false
	}
	s, ok := m.Config.ossStack(param)
	if !ok {
		return "", nil, nil, false
	}
	return s.name, s.shape(), func(rows func(dst []float32, first, n int) error) error {
		return s.reorder(m.params.Get(param), rows)
	}, true
}

// reorder fills the parameter from the tensor of its name, expert by expert.
func (s ossStack) reorder(p *graph.Param, read func(dst []float32, first, n int) error) error {
	rows := s.out / s.step
	file, w := make([]float32, s.in*s.out), make([]float32, rows*s.in)
	for e := range s.experts {
		if err := read(file, e, 1); err != nil {
			return err
		}
		for o := range rows {
			for i := range s.in {
				w[o*s.in+i] = file[i*s.out+o*s.step+s.half]
			}
		}
		narrowPart(p.Tensor(), e*len(w), w)
	}
	return nil
}

// read fills the parameter from what find gives.
func (s ossStack) read(p *graph.Param, parts []*checkpoint.Tensor) error {
	if len(parts) == 1 {
		return s.reorder(p, parts[0].Float32Rows)
	}
	return s.readBlocks(p, parts[0], parts[1])
}

// ossEntry is the tensor of a file that a parameter of the experts begins, with what
// other goes into it.
func (m *Transformer) ossEntry(s ossStack, p *graph.Param, stored dtype.DType) checkpoint.Entry {
	joined, rows := make([]float32, s.experts*s.in*s.out), s.out/s.step
	for half := range s.step {
		if half == 1 {
			p = m.params.Get(strings.Replace(p.Name, ".gate_proj.", ".up_proj.", 1))
		}
		w := m.wide(p)
		for e := range s.experts {
			for o := range rows {
				for i := range s.in {
					joined[(e*s.in+i)*s.out+o*s.step+half] = w[(e*rows+o)*s.in+i]
				}
			}
		}
	}
	return checkpoint.Rounded(s.name, stored, joined, s.shape()...)
}
