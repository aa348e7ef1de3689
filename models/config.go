// What a model is: sizes and switches, read from and written as config.json.

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops/native"
)

// Config describes a decoder. Its file form is the config.json of Hugging Face
// model folders; ReadConfig and Write convert.
type Config struct {
	Type    string // model_type: see Types
	Vocab   int
	Hidden  int
	FFN     int // width of the gated unit
	Layers  int
	Heads   int
	KVHeads int
	HeadDim int
	Context int // max_position_embeddings

	NormEps   float64
	RopeTheta float64
	RopeScale native.RotaryScaling
	NoRope    []bool // by layer: no rotation; nil: every layer rotates

	Tied       bool // the head is the embedding table
	QKVBias    bool
	OutputBias bool
	MLPBias    bool
	QKNorm     bool // RMSNorm of q and k before the rotation

	Window     int     // sliding window: a query sees this many keys, its own among them; 0: all
	Global     []bool  // by layer: no window; nil: every layer has it
	LocalTheta float64 // base of the rotation of layers with the window, without scaling; 0: as the others
	RotaryDim  int     // numbers at the front of a head that turn; 0: all
	Scale      float64 // of the scores; 0: 1/sqrt(HeadDim)
	Sinks      bool    // the softmax of each head has a logit more that no key has
	Growth     float64 // queries at position p are multiplied by 1 + Growth log(1 + floor(p/GrowthSpan))
	GrowthSpan int     // 1 or more with Growth, else 0
	ScoreCap   float64 // scores stay softly within it; 0: no bound
	LogitCap   float64 // logits stay softly within it (ops.Softcap); 0: no bound

	EmbedScale    float64 // multiplies the rows of the table; 0: 1, or what the type has
	ResidualScale float64 // multiplies what attention and gated unit add; 0: 1
	LogitDivisor  float64 // logits are divided by it; 0: 1

	Experts *Experts // nil: the gated unit in every layer
	Latent  *Latent  // nil: keys and values are projected at once
	Delta   *Delta   // nil: every layer attends
	Skipped int      // layers of a checkpoint behind the last one, which are not loaded

	// Quantization is quantization_config as the file has it: weights are
	// stored in 8-bit floats with steps.
	Quantization json.RawMessage

	BOS, EOS, Pad []int32 // token ids
}

// maxConfigBytes is far above any real config.json.
const maxConfigBytes = 4 << 20

// ReadConfig reads the config.json of a model folder.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, "config.json")
	f, err := checkpoint.OpenFile(path)
	if errors.Is(err, fs.ErrNotExist) && IsAdapter(dir) {
		return Config{}, errAdapterAlone(dir)
	}
	if err != nil {
		return Config{}, fmt.Errorf("models: %w%s", err, below(dir))
	}
	defer f.Close() // only read
	c, err := ParseConfig(f)
	if err != nil {
		return Config{}, fmt.Errorf("models: %s: %w", path, err)
	}
	return c, nil
}

// below says, for an error about a folder that is neither, which folders in it are
// models or adapters: that of a run holds them as best, last and its checkpoints.
func below(dir string) string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var said strings.Builder
	for _, x := range []struct{ what, file string }{{"models", "config.json"}, {"adapters", adapterConfigName}} {
		var names []string
		for _, f := range list {
			if _, err := os.Stat(filepath.Join(dir, f.Name(), x.file)); err == nil {
				names = append(names, f.Name())
			}
		}
		const most = 8
		if len(names) > most {
			names = append(names[:most], "...")
		}
		if names != nil {
			fmt.Fprintf(&said, " (the folder holds %s: %s)", x.what, strings.Join(names, ", "))
		}
	}
	return said.String()
}

// ParseConfig reads a config.json. A model type that is not known, or a value
// that would change results and is not supported, is an error that names it.
func ParseConfig(r io.Reader) (Config, error) {
	if r == nil {
		return Config{}, errors.New("models: the reader of a config is missing (nil)")
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return Config{}, err
	}
	if len(raw) > maxConfigBytes {
		return Config{}, fmt.Errorf("a config of at most %d bytes is read, this one is longer", maxConfigBytes)
	}
	var long struct {
		Quantization json.RawMessage `json:"quantization_config"` // may list every module, and is not decoded
	}
	err = json.Unmarshal(raw, &long)
	if other := (*json.UnmarshalTypeError)(nil); errors.As(err, &other) {
		return Config{}, fmt.Errorf("a config must be a JSON object, got %s", other.Value)
	}
	if err != nil {
		return Config{}, err
	}
	if n := bytes.Count(raw, []byte(",")) - bytes.Count(long.Quantization, []byte(",")); n > maxConfigValues {
		return Config{}, fmt.Errorf("a config of at most %d values is read, this one has %d", maxConfigValues, n)
	}
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return Config{}, err
	}
	if seeing[f.ModelType] != "" {
		if raw, err = textConfig(raw, f.ModelType); err != nil {
			return Config{}, err
		}
		if err := json.Unmarshal(raw, &f); err != nil {
			return Config{}, err
		}
	}
	arch, ok := architectures[f.ModelType]
	if !ok {
		return Config{}, fmt.Errorf("model_type %q is not supported (supported: %s)", f.ModelType, supportedTypes())
	}
	// What a file leaves out has the value that its type gives it.
	f = arch.defaults()
	if err := json.Unmarshal(raw, &f); err != nil {
		return Config{}, err
	}
	c, err := f.config()
	if err != nil {
		return c, err
	}
	if err := f.activation(arch.defaults().HiddenAct + arch.defaults().HiddenActivation); err != nil {
		return c, err
	}
	if err := c.checkSizes(); err != nil {
		return c, err
	}
	if err := arch.read(&f, &c); err != nil {
		return c, err
	}
	return c, c.Check()
}

// maxConfigValues bounds what lists take in memory: many times their text.
const maxConfigValues = 1 << 14

// maxLayers is far above any model; it bounds what a config makes us allocate.
const maxLayers = 1 << 16

// checkSizes refuses sizes that no model has.
func (c Config) checkSizes() error {
	for _, x := range []struct {
		name   string
		v, top int
	}{
		{"vocab_size", c.Vocab, 1 << 30}, {"hidden_size", c.Hidden, 1 << 30}, {"intermediate_size", c.FFN, 1 << 30},
		{"num_hidden_layers", c.Layers, maxLayers}, {"num_attention_heads", c.Heads, 1 << 20}, {"num_key_value_heads", c.KVHeads, 1 << 20},
		{"head_dim", c.HeadDim, 1 << 20}, {"max_position_embeddings", c.Context, 1 << 30},
	} {
		if x.v < 1 || x.v > x.top {
			return fmt.Errorf("%s must be 1 to %d, got %d", x.name, x.top, x.v)
		}
	}
	return nil
}

// Check refuses what no model can be.
func (c Config) Check() error {
	if architectures[c.Type] == nil {
		return fmt.Errorf("model_type %q is not supported (supported: %s)", c.Type, supportedTypes())
	}
	if err := c.checkSizes(); err != nil {
		return err
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim must be even for the rotation, got %d", c.HeadDim)
	case !(c.NormEps > 0) || math.IsInf(c.NormEps, 0):
		return fmt.Errorf("rms_norm_eps must be above 0, got %g", c.NormEps)
	case !(c.RopeTheta > 0):
		return fmt.Errorf("rope_theta must be above 0, got %g", c.RopeTheta)
	case c.Window < 0:
		return fmt.Errorf("sliding_window must be 0 or more, got %d", c.Window)
	case c.Global != nil && len(c.Global) != c.Layers:
		return fmt.Errorf("Global has %d entries, num_hidden_layers is %d", len(c.Global), c.Layers)
	case c.NoRope != nil && len(c.NoRope) != c.Layers:
		return fmt.Errorf("NoRope has %d entries, num_hidden_layers is %d", len(c.NoRope), c.Layers)
	case c.LocalTheta < 0:
		return fmt.Errorf("the local rope_theta must be 0 or above, got %g", c.LocalTheta)
	case c.RotaryDim < 0 || c.RotaryDim > c.HeadDim || c.RotaryDim%2 != 0:
		return fmt.Errorf("the part of a head that turns must be even and 0 (all) to head_dim %d, got %d", c.HeadDim, c.RotaryDim)
	case !(c.LogitCap >= 0) || math.IsInf(c.LogitCap, 0):
		return fmt.Errorf("final_logit_softcapping must be above 0, or null, got %g", c.LogitCap)
	case !(c.ScoreCap >= 0) || math.IsInf(c.ScoreCap, 0):
		return fmt.Errorf("attn_logit_softcapping must be above 0, or null, got %g", c.ScoreCap)
	case math.IsNaN(c.Growth) || math.IsInf(c.Growth, 0) || c.GrowthSpan < 0 || (c.Growth != 0) != (c.GrowthSpan > 0):
		return fmt.Errorf("llama_4_scaling_beta must be finite and come with a span of 1 position or more, got %g and %d", c.Growth, c.GrowthSpan)
	case c.Growth != 0 && (c.Latent != nil || c.NoRope != nil || c.RotaryDim%c.HeadDim != 0 || c.LocalTheta != 0):
		return errors.New("llama_4_scaling_beta goes with heads that turn whole, in every layer by one rotation")
	case !(c.Scale >= 0) || math.IsInf(c.Scale, 0):
		return fmt.Errorf("the scale of the scores must be 0 (1/sqrt(head_dim)) or above, got %g", c.Scale)
	}
	for _, x := range []struct {
		name string
		v    float64
	}{{"embedding_multiplier", c.EmbedScale}, {"residual_multiplier", c.ResidualScale}, {"logits_scaling", c.LogitDivisor}} {
		if math.IsNaN(x.v) || math.IsInf(x.v, 0) || x.v < 0 {
			return fmt.Errorf("%s must be 0 (1) or above, got %g", x.name, x.v)
		}
	}
	for _, x := range []struct {
		name string
		ids  []int32
	}{{"bos_token_id", c.BOS}, {"eos_token_id", c.EOS}, {"pad_token_id", c.Pad}} {
		for _, id := range x.ids {
			if id < 0 || int(id) >= c.Vocab {
				return fmt.Errorf("%s %d is outside the vocabulary of %d", x.name, id, c.Vocab)
			}
		}
	}
	if c.Experts != nil {
		if err := c.Experts.check(c.Layers); err != nil {
			return err
		}
	}
	if c.Latent != nil {
		if err := c.Latent.check(); err != nil {
			return err
		}
		if head := c.Latent.Nope + c.Latent.Rope; c.HeadDim != head || c.KVHeads != c.Heads {
			return fmt.Errorf("with Latent head_dim must be qk_nope_head_dim and qk_rope_head_dim together, %d, and num_key_value_heads be num_attention_heads, %d, got %d and %d", head, c.Heads, c.HeadDim, c.KVHeads)
		}
	}
	switch {
	case c.Type == kimiType && (c.Delta == nil || c.Latent == nil):
		return fmt.Errorf("%s must have Delta and Latent", kimiType)
	case architectures[c.Type] == &deepseek3 && (c.Latent == nil || c.Experts == nil):
		return fmt.Errorf("%s must have Latent and Experts", c.Type)
	case slices.Contains([]*architecture{&gptOSS, &qwen2Moe, &qwen3Moe, &mixtral}, architectures[c.Type]) && c.Experts == nil:
		return fmt.Errorf("%s must have Experts", c.Type)
	}
	if c.Delta != nil {
		if err := c.Delta.check(c.Layers); err != nil {
			return err
		}
	}
	_, _, err := native.RotaryFrequencies(c.rotary(0, false))
	return err
}

// longest is how many tokens a sequence may have; see Transformer.Limits.
func (c *Config) longest() int {
	if s := c.RopeScale; s.Type == "yarn" && s.Factor > 1 {
		return max(c.Context, min(int(s.Factor*float64(s.OriginalPositions)), 1<<30))
	}
	return c.Context
}

// WindowOf is the sliding window of a layer, 0 for none.
func (c *Config) WindowOf(layer int) int {
	if c.Global != nil && c.Global[layer] {
		return 0
	}
	return c.Window
}

// rotates reports whether a layer turns its queries and keys.
func (c *Config) rotates(layer int) bool { return c.NoRope == nil || !c.NoRope[layer] }

// rotary is the table's configuration for the first n positions, of the layers
// with a rotation of their own or of the others. Scalings that depend on the
// length of the sequence are those of n tokens.
func (c *Config) rotary(n int, local bool) native.RotaryConfig {
	if local {
		return native.RotaryConfig{Dim: c.HeadDim, Base: c.LocalTheta, Positions: n}
	}
	dim := c.HeadDim
	if c.RotaryDim > 0 {
		dim = c.RotaryDim
	}
	if c.Latent != nil {
		dim = c.Latent.Rope
	}
	scaling := c.RopeScale
	scaling.Length = n
	return native.RotaryConfig{Dim: dim, Base: c.RopeTheta, Positions: n, Scaling: scaling}
}

// Write writes config.json in the spelling that every release of transformers
// reads. Weights are said to be float32. What the type's file cannot say is an
// error: a window of llama, qwen3 without QKNorm.
func (c Config) Write(w io.Writer) error { return c.write(w, "float32") }

func (c Config) write(w io.Writer, stored string) error {
	if err := c.Check(); err != nil {
		return err
	}
	arch := architectures[c.Type]
	f := file{
		Architectures: []string{arch.class}, ModelType: c.Type,
		VocabSize: c.Vocab, HiddenSize: c.Hidden, IntermediateSize: c.FFN, Layers: c.Layers, Heads: c.Heads,
		KVHeads: &c.KVHeads, HeadDim: &c.HeadDim, MaxPositions: c.Context,
		HiddenAct: arch.defaults().HiddenAct, HiddenActivation: arch.defaults().HiddenActivation, RMSNormEps: decimal(c.NormEps),
		Tied: c.Tied, TorchDType: stored, Quantization: c.Quantization,
	}
	if c.BOS != nil {
		f.BOS = (*tokenIDs)(&c.BOS)
	}
	if c.EOS != nil {
		f.EOS = (*tokenIDs)(&c.EOS)
	}
	if c.Pad != nil {
		f.Pad = (*tokenIDs)(&c.Pad)
	}
	f.setRope(&c)
	arch.write(&f, &c)
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	back, err := ParseConfig(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("a config.json of %s that says this could not be read: %w", c.Type, err)
	}
	if lost := c.lost(&back); lost != "" {
		return fmt.Errorf("a config.json of %s cannot say %s", c.Type, lost)
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// lost is the first thing that decides results and is another one in what was
// written; "" for none.
func (c *Config) lost(back *Config) string {
	for _, x := range []struct {
		field   string
		is, got any
	}{
		{"QKNorm", c.QKNorm, back.QKNorm}, {"QKVBias", c.QKVBias, back.QKVBias}, {"OutputBias", c.OutputBias, back.OutputBias},
		{"MLPBias", c.MLPBias, back.MLPBias}, {"Tied", c.Tied, back.Tied}, {"LogitCap", float32(c.LogitCap), float32(back.LogitCap)},
		{"EmbedScale", orOne(c.EmbedScale), orOne(back.EmbedScale)}, {"ResidualScale", orOne(c.ResidualScale), orOne(back.ResidualScale)},
		{"LogitDivisor", orOne(c.LogitDivisor), orOne(back.LogitDivisor)}, {"ScoreCap", float32(c.ScoreCap), float32(back.ScoreCap)},
		{"RotaryDim", c.RotaryDim % c.HeadDim, back.RotaryDim % c.HeadDim},
		{"Sinks", c.Sinks, back.Sinks}, {"Growth", c.Growth, back.Growth}, {"GrowthSpan", c.GrowthSpan, back.GrowthSpan},
		{"LocalTheta", c.LocalTheta, back.LocalTheta}, {"Scale", float32(c.scale()), float32(back.scale())},
		{"Experts", value(c.Experts.spelt()), value(back.Experts.spelt())}, {"Latent", value(c.Latent), value(back.Latent)}, {"Delta", value(c.Delta), value(back.Delta)},
	} {
		if !reflect.DeepEqual(x.is, x.got) {
			return fmt.Sprintf("%s %+v: it would read as %+v", x.field, x.is, x.got)
		}
	}
	for l := range c.Layers {
		if is, got := c.WindowOf(l), back.WindowOf(l); is != got {
			return fmt.Sprintf("a Window of %d in layer %d: it would read as %d", is, l, got)
		}
		if is, got := !c.rotates(l), !back.rotates(l); is != got {
			return fmt.Sprintf("NoRope %v of layer %d: it would read as %v", is, l, got)
		}
	}
	return ""
}

// value is what p points to, nil for nothing.
func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// orOne is what a multiplier that was left out stands for.
func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// scale is what the scores are multiplied by.
func (c *Config) scale() float64 {
	if c.Scale > 0 {
		return c.Scale
	}
	return 1 / math.Sqrt(float64(c.HeadDim))
}

func (c *Config) addEOS(id int32) {
	if !slices.Contains(c.EOS, id) {
		c.EOS = append(slices.Clone(c.EOS), id)
	}
}
