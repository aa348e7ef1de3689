// Package models builds language models as graphs and keeps their weights.
//
// One forward function serves training, evaluation and generation: the caller
// says how a layer's queries meet keys (densely in training, through pages of a
// cache in generation) and everything else stays the same.
package models

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Transformer is a decoder with grouped-query attention, rotary positions,
// RMSNorm and SwiGLU: the llama family. Parameters carry the names of the
// Hugging Face checkpoint.
type Transformer struct {
	Config Config

	params *graph.Params
	mu     sync.Mutex
	tables map[int]*ops.RotaryTable
}

// New returns a model without weights: Init or Load gives it some.
func New(c Config) (*Transformer, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	return &Transformer{Config: c, params: graph.NewParams(), tables: map[int]*ops.RotaryTable{}}, nil
}

// Params holds the weights, shared by every graph of the model.
func (m *Transformer) Params() *graph.Params { return m.params }

// rotary returns the table for n positions, made once.
func (m *Transformer) rotary(n int) (*ops.RotaryTable, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[n]; t != nil {
		return t, nil
	}
	t, err := ops.NewRotaryTable(m.Config.rotary(n))
	if err == nil {
		m.tables[n] = t
	}
	return t, err
}

// Mixer is how a layer's queries meet keys and values: q [...,Heads,HeadDim], k
// and v [...,KVHeads,HeadDim] before the rotation give out as q.
type Mixer func(s *graph.Builder, layer int, q, k, v *graph.Node) *graph.Node

// Hidden builds the decoder up to its last norm: tokens [...] give [...,Hidden].
func (m *Transformer) Hidden(b *graph.Builder, tokens *graph.Node, drop Dropout, mix Mixer) *graph.Node {
	c := m.Config
	b = b.Scope("model")
	x := ops.Embedding(tokens, b.Param("embed_tokens.weight", c.Vocab, c.Hidden))
	x = drop.apply(x, "embed")
	lead := tokens.Shape()
	for l := range c.Layers {
		s := b.Scope("layers.%d", l)
		h := ops.RMSNorm(x, s.Param("input_layernorm.weight", c.Hidden), c.NormEps)
		a := s.Scope("self_attn")
		q := heads(linear(a, "q_proj", h, c.Heads*c.HeadDim, c.QKVBias), lead, c.Heads, c.HeadDim)
		k := heads(linear(a, "k_proj", h, c.KVHeads*c.HeadDim, c.QKVBias), lead, c.KVHeads, c.HeadDim)
		v := heads(linear(a, "v_proj", h, c.KVHeads*c.HeadDim, c.QKVBias), lead, c.KVHeads, c.HeadDim)
		if c.QKNorm {
			q = ops.RMSNorm(q, a.Param("q_norm.weight", c.HeadDim), c.NormEps)
			k = ops.RMSNorm(k, a.Param("k_norm.weight", c.HeadDim), c.NormEps)
		}
		o := ops.Reshape(mix(a, l, q, k, v), append(slices.Clone(lead), c.Heads*c.HeadDim)...)
		o = linear(a, "o_proj", o, c.Hidden, c.OutputBias)
		x = ops.Add(x, drop.apply(o, fmt.Sprintf("attn.%d", l)))

		h = ops.RMSNorm(x, s.Param("post_attention_layernorm.weight", c.Hidden), c.NormEps)
		f := s.Scope("mlp")
		h = ops.SwiGLU(linear(f, "gate_proj", h, c.FFN, c.MLPBias), linear(f, "up_proj", h, c.FFN, c.MLPBias))
		h = linear(f, "down_proj", h, c.Hidden, c.MLPBias)
		x = ops.Add(x, drop.apply(h, fmt.Sprintf("mlp.%d", l)))
	}
	return ops.RMSNorm(x, b.Param("norm.weight", c.Hidden), c.NormEps)
}

// Head gives the logits [...,Vocab] of hidden states [...,Hidden].
func (m *Transformer) Head(b *graph.Builder, hidden *graph.Node) *graph.Node {
	if m.Config.Tied {
		return ops.Linear(hidden, b.Param("model.embed_tokens.weight", m.Config.Vocab, m.Config.Hidden))
	}
	return ops.Linear(hidden, b.Param("lm_head.weight", m.Config.Vocab, m.Config.Hidden))
}

// Logits builds the model for whole sequences tokens [B,T] at positions 0..T-1:
// logits [B,T,Vocab].
func (m *Transformer) Logits(b *graph.Builder, tokens *graph.Node, drop Dropout) *graph.Node {
	table, err := m.rotary(tokens.Dim(1))
	if err != nil {
		return b.Fail(err)
	}
	hidden := m.Hidden(b, tokens, drop, func(_ *graph.Builder, _ int, q, k, v *graph.Node) *graph.Node {
		q, k = ops.Rotary(q, nil, table, ops.Half), ops.Rotary(k, nil, table, ops.Half)
		return ops.Attention(q, k, v, ops.AttentionOptions{Causal: true, Window: m.Config.Window})
	})
	return m.Head(b, hidden)
}

// Loss declares the inputs "tokens" and "labels" (int32 [batch,context]) and,
// with dropout, "step" (int64 [1]), and builds the mean cross entropy of the
// labels in nats. tokens is the number of labels that count.
func (m *Transformer) Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node) {
	in := b.Input("tokens", dtype.Int32, batch, context)
	labels := b.Input("labels", dtype.Int32, batch, context)
	drop := Dropout{P: dropout, Seed: seed}
	if dropout > 0 {
		drop.Step = b.Input("step", dtype.Int64, 1)
	}
	return ops.CrossEntropy(m.Logits(b, in, drop), labels)
}

// Dropout is how a graph drops activations: not at all by its zero value.
type Dropout struct {
	P    float64
	Seed uint64
	Step *graph.Node // int64 [1]
}

// apply drops elements of x; every place has a stream of its own.
func (d Dropout) apply(x *graph.Node, place string) *graph.Node {
	if d.P == 0 {
		return x
	}
	return ops.Dropout(x, d.Step, d.P, streamSeed(d.Seed, place))
}

// streamSeed derives the seed of a named stream of random numbers.
func streamSeed(seed uint64, name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, name) // a hash never fails to write
	return h.Sum64()
}

func linear(b *graph.Builder, name string, x *graph.Node, out int, bias bool) *graph.Node {
	w := b.Param(name+".weight", out, x.Dim(-1))
	if bias {
		return ops.Linear(x, w, b.Param(name+".bias", out))
	}
	return ops.Linear(x, w)
}

func heads(x *graph.Node, lead []int, h, d int) *graph.Node {
	return ops.Reshape(x, append(slices.Clone(lead), h, d)...)
}

// Declare makes Params hold every parameter of the model, without values.
func (m *Transformer) Declare() error {
	b := graph.New(graph.Share(m.params))
	m.Logits(b, b.Input("tokens", dtype.Int32, 1, 1), Dropout{})
	return b.Err()
}

// Init draws the weights: normal with deviation 0.02, the projections that end
// a residual branch divided by sqrt(2 Layers); norms 1, biases 0. Each
// parameter has a stream of its own, so a model is a function of config and
// seed.
func (m *Transformer) Init(seed uint64) error {
	if err := m.Declare(); err != nil {
		return err
	}
	for _, p := range m.params.All() {
		w := graph.Data[float32](p.Tensor())
		switch {
		case strings.HasSuffix(p.Name, "norm.weight"):
			for i := range w {
				w[i] = 1
			}
		case strings.HasSuffix(p.Name, ".bias"):
			clear(w)
		default:
			dev := 0.02
			if strings.HasSuffix(p.Name, "o_proj.weight") || strings.HasSuffix(p.Name, "down_proj.weight") {
				dev /= math.Sqrt(2 * float64(m.Config.Layers))
			}
			r := rand.New(rand.NewPCG(streamSeed(seed, p.Name), 0))
			for i := range w {
				w[i] = float32(dev * r.NormFloat64())
			}
		}
		p.Touch()
	}
	return nil
}
