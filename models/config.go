package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seafan/seafan/ops/native"
)

// Config describes a decoder. Its file form is the config.json of Hugging Face
// model folders; ReadConfig and Write convert.
type Config struct {
	Type    string // model_type: llama, mistral, qwen2, qwen3
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

	Tied       bool // the head is the embedding table
	QKVBias    bool
	OutputBias bool
	MLPBias    bool
	QKNorm     bool // RMSNorm of each head of q and k before the rotation
	Window     int  // sliding window; 0: none

	BOS, EOS []int32
}

// file is config.json. Both spellings of the rotary settings are read: the
// older rope_theta and rope_scaling, and rope_parameters.
type file struct {
	Architectures    []string  `json:"architectures,omitempty"`
	ModelType        string    `json:"model_type"`
	VocabSize        int       `json:"vocab_size"`
	HiddenSize       int       `json:"hidden_size"`
	IntermediateSize int       `json:"intermediate_size"`
	Layers           int       `json:"num_hidden_layers"`
	Heads            int       `json:"num_attention_heads"`
	KVHeads          *int      `json:"num_key_value_heads"`
	HeadDim          *int      `json:"head_dim"`
	MaxPositions     int       `json:"max_position_embeddings"`
	HiddenAct        string    `json:"hidden_act"`
	RMSNormEps       float64   `json:"rms_norm_eps"`
	RopeTheta        *float64  `json:"rope_theta,omitempty"`
	RopeScaling      *rope     `json:"rope_scaling"`
	RopeParameters   *rope     `json:"rope_parameters,omitempty"`
	Tied             bool      `json:"tie_word_embeddings"`
	AttentionBias    *bool     `json:"attention_bias,omitempty"`
	MLPBias          *bool     `json:"mlp_bias,omitempty"`
	SlidingWindow    *int      `json:"sliding_window,omitempty"`
	UseSlidingWindow *bool     `json:"use_sliding_window,omitempty"`
	MaxWindowLayers  *int      `json:"max_window_layers,omitempty"`
	LayerTypes       []string  `json:"layer_types,omitempty"`
	PretrainingTP    *int      `json:"pretraining_tp,omitempty"`
	Quantization     any       `json:"quantization_config,omitempty"`
	TorchDType       string    `json:"torch_dtype,omitempty"`
	BOS              *tokenIDs `json:"bos_token_id"`
	EOS              *tokenIDs `json:"eos_token_id"`
}

// rope is rope_scaling or rope_parameters.
type rope struct {
	Type          string    `json:"rope_type,omitempty"`
	OldType       string    `json:"type,omitempty"`
	Theta         *float64  `json:"rope_theta,omitempty"`
	Factor        float64   `json:"factor,omitempty"`
	Original      int       `json:"original_max_position_embeddings,omitempty"`
	LowFactor     float64   `json:"low_freq_factor,omitempty"`
	HighFactor    float64   `json:"high_freq_factor,omitempty"`
	BetaFast      float64   `json:"beta_fast,omitempty"`
	BetaSlow      float64   `json:"beta_slow,omitempty"`
	Attention     float64   `json:"attention_factor,omitempty"`
	MScale        float64   `json:"mscale,omitempty"`
	MScaleAll     float64   `json:"mscale_all_dim,omitempty"`
	Truncate      *bool     `json:"truncate,omitempty"`
	Short         []float64 `json:"short_factor,omitempty"`
	Long          []float64 `json:"long_factor,omitempty"`
	PartialRotary *float64  `json:"partial_rotary_factor,omitempty"`
}

// tokenIDs is a token id, or a list of them.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("[")) {
		return json.Unmarshal(b, (*[]int32)(t))
	}
	var one int32
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*t = tokenIDs{one}
	return nil
}

func (t tokenIDs) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]int32(t))
}

func idsOf(t *tokenIDs) []int32 {
	if t == nil {
		return nil
	}
	return *t
}

// maxConfigBytes is far above any real config.json.
const maxConfigBytes = 4 << 20

// ReadConfig reads the config.json of a model folder.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, "config.json")
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("models: %w", err)
	}
	defer f.Close() // only read
	c, err := ParseConfig(io.LimitReader(f, maxConfigBytes))
	if err != nil {
		return Config{}, fmt.Errorf("models: %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads a config.json. A model type that is not known, or a value
// that would change results and is not supported, is an error that names it.
func ParseConfig(r io.Reader) (Config, error) {
	var f file
	dec := json.NewDecoder(r)
	if err := dec.Decode(&f); err != nil {
		return Config{}, err
	}
	arch, ok := architectures[f.ModelType]
	if !ok {
		return Config{}, fmt.Errorf("model_type %q is not supported (supported: %s)", f.ModelType, strings.Join(Types(), ", "))
	}
	c := Config{
		Type: f.ModelType, Vocab: f.VocabSize, Hidden: f.HiddenSize, FFN: f.IntermediateSize, Layers: f.Layers,
		Heads: f.Heads, KVHeads: f.Heads, Context: f.MaxPositions, NormEps: f.RMSNormEps, Tied: f.Tied,
		BOS: idsOf(f.BOS), EOS: idsOf(f.EOS),
	}
	if f.KVHeads != nil {
		c.KVHeads = *f.KVHeads
	}
	if f.HeadDim != nil {
		c.HeadDim = *f.HeadDim
	} else if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if err := f.rope(&c); err != nil {
		return Config{}, err
	}
	switch {
	case f.HiddenAct != "silu" && f.HiddenAct != "swish":
		return Config{}, fmt.Errorf("hidden_act %q is not supported (supported: silu)", f.HiddenAct)
	case f.PretrainingTP != nil && *f.PretrainingTP > 1:
		return Config{}, fmt.Errorf("pretraining_tp %d is not supported (supported: 1)", *f.PretrainingTP)
	case f.Quantization != nil:
		return Config{}, errors.New("quantization_config is not supported")
	}
	if err := arch.read(&f, &c); err != nil {
		return Config{}, err
	}
	return c, c.Check()
}

// rope reads either spelling of the rotary settings.
func (f *file) rope(c *Config) error {
	c.RopeTheta = 10000
	if f.RopeTheta != nil {
		c.RopeTheta = *f.RopeTheta
	}
	r := f.RopeScaling
	if f.RopeParameters != nil {
		r = f.RopeParameters
	}
	if r == nil {
		return nil
	}
	if r.Theta != nil {
		c.RopeTheta = *r.Theta
	}
	if r.PartialRotary != nil && *r.PartialRotary != 1 {
		return fmt.Errorf("partial_rotary_factor %g is not supported (supported: 1)", *r.PartialRotary)
	}
	kind := r.Type
	if kind == "" {
		kind = r.OldType
	}
	c.RopeScale = native.RotaryScaling{
		Type: kind, Factor: r.Factor, OriginalPositions: r.Original, ModelPositions: c.Context, Length: c.Context,
		LowFrequency: r.LowFactor, HighFrequency: r.HighFactor, BetaFast: r.BetaFast, BetaSlow: r.BetaSlow,
		AttentionFactor: r.Attention, MScale: r.MScale, MScaleAllDim: r.MScaleAll,
		NoTruncate: r.Truncate != nil && !*r.Truncate, ShortFactors: r.Short, LongFactors: r.Long,
	}
	return nil
}

// Check refuses sizes that no model has.
func (c Config) Check() error {
	for _, x := range []struct {
		name string
		v    int
	}{
		{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"intermediate_size", c.FFN}, {"num_hidden_layers", c.Layers},
		{"num_attention_heads", c.Heads}, {"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim}, {"max_position_embeddings", c.Context},
	} {
		if x.v < 1 || x.v > 1<<30 {
			return fmt.Errorf("%s must be 1 to 2^30, got %d", x.name, x.v)
		}
	}
	switch {
	case architectures[c.Type] == nil:
		return fmt.Errorf("model_type %q is not supported (supported: %s)", c.Type, strings.Join(Types(), ", "))
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim must be even for the rotation, got %d", c.HeadDim)
	case !(c.NormEps > 0):
		return fmt.Errorf("rms_norm_eps must be above 0, got %g", c.NormEps)
	case !(c.RopeTheta > 0):
		return fmt.Errorf("rope_theta must be above 0, got %g", c.RopeTheta)
	case c.Window < 0:
		return fmt.Errorf("sliding_window must be 0 or more, got %d", c.Window)
	}
	return nil
}

// rotary is the table's configuration for the first n positions.
func (c Config) rotary(n int) native.RotaryConfig {
	return native.RotaryConfig{Dim: c.HeadDim, Base: c.RopeTheta, Positions: n, Scaling: c.RopeScale}
}

// Write writes config.json in the spelling that every release of transformers
// reads.
func (c Config) Write(w io.Writer) error {
	if err := c.Check(); err != nil {
		return err
	}
	f := file{
		Architectures: []string{architectures[c.Type].class}, ModelType: c.Type,
		VocabSize: c.Vocab, HiddenSize: c.Hidden, IntermediateSize: c.FFN, Layers: c.Layers, Heads: c.Heads,
		KVHeads: &c.KVHeads, HeadDim: &c.HeadDim, MaxPositions: c.Context, HiddenAct: "silu", RMSNormEps: c.NormEps,
		RopeTheta: &c.RopeTheta, Tied: c.Tied, TorchDType: "float32",
	}
	if c.BOS != nil {
		f.BOS = (*tokenIDs)(&c.BOS)
	}
	if c.EOS != nil {
		f.EOS = (*tokenIDs)(&c.EOS)
	}
	if s := c.RopeScale; s.Type != "" && s.Type != "default" {
		f.RopeScaling = &rope{
			Type: s.Type, Factor: s.Factor, Original: s.OriginalPositions, LowFactor: s.LowFrequency, HighFactor: s.HighFrequency,
			BetaFast: s.BetaFast, BetaSlow: s.BetaSlow, Attention: s.AttentionFactor, MScale: s.MScale, MScaleAll: s.MScaleAllDim,
			Short: s.ShortFactors, Long: s.LongFactors,
		}
		if s.NoTruncate {
			f.RopeScaling.Truncate = new(bool)
		}
	}
	architectures[c.Type].write(&f, &c)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(f)
}

// architecture is what differs between the model types in config.json.
type architecture struct {
	class string // in "architectures"
	read  func(f *file, c *Config) error
	write func(f *file, c *Config)
}

var architectures = map[string]*architecture{
	"llama": {
		class: "LlamaForCausalLM",
		read: func(f *file, c *Config) error {
			c.QKVBias = f.AttentionBias != nil && *f.AttentionBias
			c.OutputBias = c.QKVBias
			c.MLPBias = f.MLPBias != nil && *f.MLPBias
			return nil
		},
		write: func(f *file, c *Config) { f.AttentionBias, f.MLPBias = &c.QKVBias, &c.MLPBias },
	},
	"mistral": {
		class: "MistralForCausalLM",
		read: func(f *file, c *Config) error {
			if f.SlidingWindow != nil {
				c.Window = *f.SlidingWindow
			}
			return nil
		},
		write: func(f *file, c *Config) {
			if c.Window > 0 {
				f.SlidingWindow = &c.Window
			}
		},
	},
	"qwen2": {
		class: "Qwen2ForCausalLM",
		read: func(f *file, c *Config) error {
			c.QKVBias = true
			return f.fullAttention()
		},
		write: func(f *file, c *Config) { f.UseSlidingWindow = new(bool) },
	},
	"qwen3": {
		class: "Qwen3ForCausalLM",
		read: func(f *file, c *Config) error {
			c.QKNorm = true
			c.QKVBias = f.AttentionBias != nil && *f.AttentionBias
			c.OutputBias = c.QKVBias
			return f.fullAttention()
		},
		write: func(f *file, c *Config) { f.AttentionBias, f.UseSlidingWindow = &c.QKVBias, new(bool) },
	},
}

// fullAttention refuses the windows that Qwen configs can ask for.
func (f *file) fullAttention() error {
	if f.UseSlidingWindow != nil && *f.UseSlidingWindow {
		return errors.New("use_sliding_window true is not supported")
	}
	for i, t := range f.LayerTypes {
		if t != "full_attention" {
			return fmt.Errorf("layer_types[%d] %q is not supported (supported: full_attention)", i, t)
		}
	}
	return nil
}

// Types lists the supported values of model_type, sorted.
func Types() []string {
	var ts []string
	for t := range architectures {
		ts = append(ts, t)
	}
	slices.Sort(ts)
	return ts
}
