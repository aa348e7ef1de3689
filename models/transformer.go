// Package models builds language models as graphs and keeps their weights.
//
// One forward function serves training, evaluation and generation: the caller
// says how a layer's queries meet keys (densely in training, through pages of a
// cache in generation) and everything else stays the same.
package models

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// Transformer is a decoder with grouped-query attention, rotary positions,
// RMSNorm and a gated unit: llama and the types that vary it, each in the file
// with its name, down to those whose layers keep a state (kimi_linear) or choose
// among experts. Parameters carry the names of the Hugging Face checkpoint; the
// matrices of all experts of a layer are one, see OnDisk.
type Transformer struct {
	Config Config

	params *graph.Params
	files  io.Closer // that weights lie in; nil: they are all copies
	within bool      // of a model that sees, whose adapters have its names
	mu     sync.Mutex
	tables map[tableKey]*ops.RotaryTable
}

// New returns a model without weights: Init or Load gives it some.
func New(c Config) (*Transformer, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	return &Transformer{Config: c, params: graph.NewParams(), tables: map[tableKey]*ops.RotaryTable{}}, nil
}

// Close gives back the files that weights lie in. The model and everything built
// from it must not be used any more.
func (m *Transformer) Close() error {
	if m == nil {
		return m.usable()
	}
	if m.files == nil {
		return nil
	}
	m.params.Close()
	return m.files.Close()
}

// Missing reports that New did not make m, nor what it stands in (Opened, Adapted);
// see graph.Missing.
func (m *Transformer) Missing() bool { return m == nil || m.params == nil }

// usable refuses a model whose weights are gone, or never were.
func (m *Transformer) usable() error {
	if m.Missing() {
		return errors.New("models: the model has no parameters: New, KimiLinear, Load and Open make one that has")
	}
	if err := m.params.Usable(); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	return nil
}

// hold is for what reads all weights, which must have values: it keeps Close, after
// which they may be gone, waiting until params.Release; see graph.Params.Hold.
func (m *Transformer) hold() error {
	if err := m.usable(); err != nil {
		return err
	}
	if err := m.params.Hold(); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	weights := 0
	for _, p := range m.params.All() {
		if !p.HasValue() {
			m.params.Release()
			return fmt.Errorf("models: %s has no value: Init gives the weights of a new model values, and Load and Open those of files", p.Name)
		}
		if !p.State {
			weights++
		}
	}
	if weights == 0 {
		m.params.Release()
		return errors.New("models: the model has no weights: Init gives a new one some, and Load and Open those of files")
	}
	return nil
}

// Params holds the weights, shared by every graph of the model.
func (m *Transformer) Params() *graph.Params { return m.params }

// tableKey names a rotary table: its length, and which of the rotations.
type tableKey struct {
	positions int
	local     bool // of the layers with a base of their own
	twice     bool // short, then long: see paged tables
	queries   bool // what grows with the position grows
	shared    bool // of the part of latent keys that heads share, without the rest of a head
}

func (m *Transformer) table(k tableKey) (*ops.RotaryTable, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[k]; t != nil {
		return t, nil
	}
	t, err := m.Config.table(k)
	if err != nil {
		return nil, err
	}
	m.tables[k] = t
	return t, nil
}

func (c *Config) table(k tableKey) (*ops.RotaryTable, error) {
	t, err := ops.NewRotaryTable(c.rotary(k.positions, k.local))
	if err != nil {
		return nil, err
	}
	if k.twice && !k.local {
		// Rows up to the original length as short sequences have them, the others
		// and all of the second part as long ones.
		original := c.RopeScale.OriginalPositions
		short, err := ops.NewRotaryTable(c.rotary(original, false))
		if err != nil {
			return nil, err
		}
		t = &ops.RotaryTable{Positions: 2 * k.positions, Width: t.Width, Cos: twice(short.Cos, t.Cos), Sin: twice(short.Sin, t.Sin)}
	}
	if a := c.Latent; a != nil && !a.Halves && !k.shared {
		t = latentTable(t, a.Nope)
	}
	if k.queries {
		t = c.grown(t, k.positions)
	}
	return t, nil
}

// twice is short, what long has behind it, and long.
func twice(short, long []float32) []float32 {
	return slices.Concat(short, long[len(short):], long)
}

// longer reports that sequences up to n tokens meet two rotations: longrope has
// one for those within the original length and one for the others.
func (c *Config) longer(n int) bool {
	return c.RopeScale.Type == "longrope" && n > c.RopeScale.OriginalPositions && c.RopeScale.OriginalPositions > 0
}

// reach is how far the attention of one layer sees and how it turns heads.
type reach struct {
	table   *ops.RotaryTable // nil: no rotation
	queries *ops.RotaryTable // that of queries
	pairing native.RotaryPairing
	still   int              // numbers at the front of a head that the table leaves out
	shared  *ops.RotaryTable // of the part of latent keys that heads share
	window  int
	scale   float64
	cap     float64 // of the scores
}

// reaches lists the layers' for sequences of n tokens, or, paged, of up to n.
func (m *Transformer) reaches(n int, paged bool) ([]reach, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	c := &m.Config
	rs := make([]reach, c.Layers)
	for l := range rs {
		rs[l] = reach{pairing: ops.Half, window: c.WindowOf(l), scale: c.Scale, cap: c.ScoreCap}
		if architectures[c.Type].neighbours {
			rs[l].pairing = ops.Interleaved
		}
		if !c.rotates(l) {
			continue
		}
		k := tableKey{positions: n, local: c.LocalTheta > 0 && rs[l].window > 0, twice: paged && c.longer(n)}
		var err error
		if a := c.Latent; a != nil {
			if a.Halves {
				rs[l].still = a.Nope
			} else {
				rs[l].pairing = ops.Interleaved
			}
			shared := k
			shared.shared = true
			if rs[l].shared, err = m.table(shared); err != nil {
				return nil, err
			}
		}
		if rs[l].table, err = m.table(k); err != nil {
			return nil, err
		}
		k.queries = c.Growth != 0
		if rs[l].queries, err = m.table(k); err != nil {
			return nil, err
		}
	}
	return rs, nil
}

// turn rotates the heads of keys; a nil pos means positions 0..T-1.
func (r reach) turn(x, pos *graph.Node) *graph.Node { return r.turnBy(r.table, x, pos) }

// turnQueries rotates those of queries.
func (r reach) turnQueries(x, pos *graph.Node) *graph.Node { return r.turnBy(r.queries, x, pos) }

func (r reach) turnBy(table *ops.RotaryTable, x, pos *graph.Node) *graph.Node {
	if table == nil {
		return x
	}
	if r.still > 0 {
		parts := ops.Split(x, r.still, x.Dim(-1)-r.still)
		if len(parts) < 2 {
			return x // the builder has the error
		}
		return ops.Join(parts[0], ops.Rotary(parts[1], pos, table, r.pairing))
	}
	return ops.Rotary(x, pos, table, r.pairing)
}

// Mixer is how the tokens of a layer meet those before them: densely in
// training, through a cache in generation.
type Mixer interface {
	// Attention gives out of q [...,Heads,HeadDim] and k and v
	// [...,KVHeads,HeadDim], all before the rotation; sinks [Heads] are logits
	// that join the softmax of each head, or nil.
	Attention(layer int, q, k, v, sinks *graph.Node) *graph.Node

	// Latent is Attention with keys and values that w, kv_b_proj, makes of the
	// latents [...,KVRank] and of the part of keys that heads share [...,Rope].
	Latent(layer int, a *Latent, q, latent, shared, w *graph.Node) *graph.Node

	// Conv is the short convolution of a stream of that name, x [...,C] with
	// w [C,W].
	Conv(layer int, name string, x, w *graph.Node) *graph.Node

	// Delta is the core of Kimi Delta Attention.
	Delta(layer int, q, k, v, g, beta *graph.Node) *graph.Node
}

// dense mixes whole sequences [B,T,...] at positions 0..T-1.
type dense struct{ layers []reach }

func (d dense) Attention(l int, q, k, v, sinks *graph.Node) *graph.Node {
	r := d.layers[l]
	return ops.Attention(r.turnQueries(q, nil), r.turn(k, nil), v, ops.AttentionOptions{Causal: true, Window: r.window, Scale: r.scale, Softcap: r.cap, Sinks: sinks})
}

func (d dense) Latent(l int, a *Latent, q, latent, shared, w *graph.Node) *graph.Node {
	k, v := a.expand(q, latent, shared, w)
	return d.Attention(l, q, k, v, nil)
}

func (dense) Conv(_ int, _ string, x, w *graph.Node) *graph.Node {
	y, _ := ops.ShortConv(x, w, nil, nil)
	return y
}

func (dense) Delta(_ int, q, k, v, g, beta *graph.Node) *graph.Node {
	o, _ := ops.KDA(q, k, v, g, beta, ops.KDAOptions{})
	return o
}

// Hidden builds the decoder up to its last norm: tokens [...] give [...,Hidden].
// For whole sequences it is Features.
func (m *Transformer) Hidden(b *graph.Builder, tokens *graph.Node, drop Dropout, mix Mixer) *graph.Node {
	if err := m.usable(); err != nil {
		return b.Fail(err)
	}
	if graph.Missing(mix) {
		return b.Fail(errors.New("models: Hidden: the mixer is missing (nil)"))
	}
	c, arch := m.Config, architectures[m.Config.Type]
	b = b.Scope("model")
	x := ops.Embedding(tokens, weight(b, "embed_tokens.weight", c.Vocab, c.Hidden))
	switch {
	case c.EmbedScale > 0 && c.EmbedScale != 1:
		x = ops.Affine(x, c.EmbedScale, 0)
	case c.EmbedScale == 0 && arch.embedScale != nil:
		x = ops.Affine(x, arch.embedScale(&c), 0)
	}
	x = drop.apply(x, "embed")
	for i := range c.Layers {
		x = arch.layer(&layer{Builder: b.Scope("layers.%d", i), c: &m.Config, arch: arch, index: i, drop: drop, mix: mix}, x)
	}
	return arch.norm(b, "norm", x, c.NormEps)
}

// Head gives the logits [...,Vocab] of hidden states [...,Hidden].
func (m *Transformer) Head(b *graph.Builder, hidden *graph.Node) *graph.Node {
	if err := m.usable(); err != nil {
		return b.Fail(err)
	}
	name := headName
	if m.Config.Tied {
		name = tableName
	}
	logits := ops.Linear(hidden, weight(b, name, m.Config.Vocab, m.Config.Hidden))
	if d := orOne(m.Config.LogitDivisor); d != 1 {
		logits = ops.Affine(logits, 1/d, 0)
	}
	if c := m.Config.LogitCap; c > 0 {
		logits = ops.Softcap(logits, c)
	}
	return logits
}

// Features builds the decoder for whole sequences tokens [B,T] at positions
// 0..T-1, up to its last norm: [B,T,Hidden]. Logits are their Head; a head of
// one's own (a classifier, a reward, an embedding) reads them as well. On a builder
// that shares the parameters of the model (graph.Share(m.Params())) its weights are
// saved with it, and Extra opens them again; Adapted.Apply trains it with adapters.
func (m *Transformer) Features(b *graph.Builder, tokens *graph.Node, drop Dropout) *graph.Node {
	layers, err := m.reaches(tokens.Dim(1), false)
	if err != nil {
		return b.Fail(err)
	}
	return m.Hidden(b, tokens, drop, dense{layers})
}

// Logits builds the model for whole sequences tokens [B,T] at positions 0..T-1:
// logits [B,T,Vocab]. The weights are those of the builder's parameters:
// graph.New(graph.Share(m.Params())).
func (m *Transformer) Logits(b *graph.Builder, tokens *graph.Node, drop Dropout) *graph.Node {
	return m.Head(b, m.Features(b, tokens, drop))
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

// Declare makes Params hold every parameter of the model, without values.
func (m *Transformer) Declare() error {
	if err := m.usable(); err != nil {
		return err
	}
	b := graph.New(graph.Share(m.params))
	m.Logits(b, b.Input("tokens", dtype.Int32, 1, 1), Dropout{})
	return b.Err()
}

// Init draws the weights that have no value yet: normal with deviation 0.02, the
// projections that end a residual branch divided by sqrt(2 Layers); norms 1,
// biases 0; the decays and convolutions of Kimi Delta Attention as deltaInit
// says. Each
// parameter has a stream of its own, so a model is a function of config and
// seed.
func (m *Transformer) Init(seed uint64) error {
	if err := m.Declare(); err != nil {
		return err
	}
	bytes := 0
	for _, p := range m.params.All() {
		if !p.HasValue() {
			bytes += p.Type.Bytes()
		}
	}
	if err := graph.CheckMemory("weights", bytes); err != nil {
		return fmt.Errorf("models: Init: %w", err)
	}
	unit := architectures[m.Config.Type].unitNorm
	for _, p := range m.params.All() {
		if p.HasValue() {
			continue // loaded, or a state
		}
		if p.Type.DType != dtype.Float32 {
			return fmt.Errorf("models: Init: %s is stored as %s, weights to train are float32", p.Name, p.Type.DType)
		}
		w := graph.Data[float32](p.Tensor())
		r := rand.New(rand.NewPCG(streamSeed(seed, p.Name), 0))
		switch {
		case deltaInit(r, p.Name, w):
		case strings.HasSuffix(p.Name, "norm.weight"):
			one := float32(1)
			if unit {
				one = 0 // the norm adds it
			}
			for i := range w {
				w[i] = one
			}
		case strings.HasSuffix(p.Name, "bias"):
			clear(w)
		default:
			dev := 0.02
			if strings.HasSuffix(p.Name, "o_proj.weight") || strings.HasSuffix(p.Name, "down_proj.weight") {
				dev /= math.Sqrt(2 * float64(m.Config.Layers))
			}
			for i := range w {
				w[i] = float32(dev * r.NormFloat64())
			}
		}
		p.Touch()
	}
	return nil
}
