// The file form of Config: the keys of config.json.

package models

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/ops/native"
)

// file is config.json. Both spellings of the rotary settings are read: the
// older rope_theta and rope_scaling, and rope_parameters.
type file struct {
	Architectures    []string `json:"architectures,omitempty"`
	ModelType        string   `json:"model_type"`
	VocabSize        int      `json:"vocab_size"`
	HiddenSize       int      `json:"hidden_size"`
	IntermediateSize int      `json:"intermediate_size"`
	Layers           int      `json:"num_hidden_layers"`
	Heads            int      `json:"num_attention_heads"`
	KVHeads          *int     `json:"num_key_value_heads"`
	HeadDim          *int     `json:"head_dim,omitempty"`
	MaxPositions     int      `json:"max_position_embeddings"`
	HiddenAct        string   `json:"hidden_act,omitempty"`
	HiddenActivation string   `json:"hidden_activation,omitempty"` // gemma's word for it
	RMSNormEps       decimal  `json:"rms_norm_eps"`
	RopeTheta        *float64 `json:"rope_theta,omitempty"`
	RopeLocalTheta   *float64 `json:"rope_local_base_freq,omitempty"`
	RopeScaling      *rope    `json:"rope_scaling"`
	Original         *int     `json:"original_max_position_embeddings,omitempty"` // here in some files, and then it counts
	RopeParameters   *rope    `json:"rope_parameters,omitempty"`
	unsaidRope       *rope    // where the file has neither
	PartialRotary    *float64 `json:"partial_rotary_factor,omitempty"`
	Tied             bool     `json:"tie_word_embeddings"`
	AttentionBias    bool     `json:"attention_bias"`
	QKVBias          *bool    `json:"qkv_bias,omitempty"`
	MLPBias          bool     `json:"mlp_bias"`
	SlidingWindow    *int     `json:"sliding_window"`
	UseSlidingWindow bool     `json:"use_sliding_window"`
	WindowPattern    int      `json:"sliding_window_pattern,omitempty"`
	MaxWindowLayers  int      `json:"max_window_layers,omitempty"`
	LayerTypes       []string `json:"layer_types,omitempty"`
	NoRopeLayers     []int    `json:"no_rope_layers,omitempty"` // 1 where the layer rotates
	NoRopeInterval   int      `json:"no_rope_layer_interval,omitempty"`
	QueryScalar      float64  `json:"query_pre_attn_scalar,omitempty"`
	AttentionSoftcap *softcap `json:"attn_logit_softcapping,omitempty"`
	FinalSoftcap     *softcap `json:"final_logit_softcapping,omitempty"`
	Bidirectional    bool     `json:"use_bidirectional_attention,omitempty"`
	EmbedMultiplier  decimal  `json:"embedding_multiplier,omitempty"`
	AddMultiplier    decimal  `json:"residual_multiplier,omitempty"`
	ScoreMultiplier  decimal  `json:"attention_multiplier,omitempty"`
	LogitsScaling    decimal  `json:"logits_scaling,omitempty"`
	PretrainingTP    int      `json:"pretraining_tp,omitempty"`

	// Mixtures of experts.
	SparseStep    int     `json:"decoder_sparse_step,omitempty"`
	DenseLayers   []int   `json:"mlp_only_layers,omitempty"`
	DenseFirst    *int    `json:"first_k_dense_replace,omitempty"`
	ExpertFFN     int     `json:"moe_intermediate_size,omitempty"`
	ExpertCount   int     `json:"num_experts,omitempty"`
	LocalExperts  int     `json:"num_local_experts,omitempty"`
	RoutedExperts int     `json:"n_routed_experts,omitempty"`
	SharedExperts *int    `json:"n_shared_experts,omitempty"`
	SharedFFN     int     `json:"shared_expert_intermediate_size,omitempty"`
	UnitAlpha     decimal `json:"swiglu_alpha,omitempty"`
	UnitLimit     decimal `json:"swiglu_limit,omitempty"`
	TopK          *int    `json:"num_experts_per_tok,omitempty"`
	NormTopK      *bool   `json:"norm_topk_prob,omitempty"`
	RoutedScale   decimal `json:"routed_scaling_factor,omitempty"`
	Groups        *int    `json:"n_group,omitempty"`
	TopGroups     *int    `json:"topk_group,omitempty"`
	Scoring       string  `json:"scoring_func,omitempty"`
	TopKMethod    string  `json:"topk_method,omitempty"`
	MoEFrequency  int     `json:"moe_layer_freq,omitempty"`
	NextLayers    int     `json:"num_nextn_predict_layers,omitempty"`

	// Latent attention.
	QRank       *rank `json:"q_lora_rank,omitempty"`
	KVRank      int   `json:"kv_lora_rank,omitempty"`
	RopeHeadDim int   `json:"qk_rope_head_dim,omitempty"`
	NopeHeadDim int   `json:"qk_nope_head_dim,omitempty"`
	VHeadDim    *int  `json:"v_head_dim,omitempty"`
	Interleave  *bool `json:"rope_interleave,omitempty"`

	kimiKeys

	Quantization json.RawMessage `json:"quantization_config,omitempty"`
	TorchDType   string          `json:"torch_dtype,omitempty"`
	BOS          *tokenIDs       `json:"bos_token_id"`
	EOS          *tokenIDs       `json:"eos_token_id"`
	Pad          *tokenIDs       `json:"pad_token_id"`
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
	Growth        *float64  `json:"llama_4_scaling_beta,omitempty"`

	// Where the kinds of layers have settings of their own.
	Full    *rope `json:"full_attention,omitempty"`
	Sliding *rope `json:"sliding_attention,omitempty"`
}

func (r *rope) kind() string {
	if r.Type != "" {
		return r.Type
	}
	return r.OldType
}

// decimal is a number that is written with a point or an exponent: where
// transformers asks for a float it refuses an integer.
type decimal float64

func (d decimal) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(float64(d))
	if err == nil && !bytes.ContainsAny(b, ".e") {
		b = append(b, ".0"...)
	}
	return b, err
}

// rank is a number above 0, or null: a file that leaves it out says something else.
type rank int

func (r rank) MarshalJSON() ([]byte, error) {
	if r == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int(r))
}

// softcap is a decimal above 0, or null: as rank.
type softcap decimal

func (s softcap) MarshalJSON() ([]byte, error) {
	if s == 0 {
		return []byte("null"), nil
	}
	return decimal(s).MarshalJSON()
}

// value is the bound that key gives, 0 for none.
func (s *softcap) value(key string) (float64, error) {
	switch {
	case s == nil:
		return 0, nil
	case !(*s > 0):
		return 0, fmt.Errorf("%s must be above 0, or null, got %g", key, *s)
	}
	return float64(*s), nil
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

// idsOf leaves out -1, which some files have for none.
func idsOf(t *tokenIDs) []int32 {
	if t == nil {
		return nil
	}
	if ids := slices.DeleteFunc(slices.Clone(*t), func(id int32) bool { return id == -1 }); len(ids) > 0 {
		return ids
	}
	return nil
}

// config is what f says in the words of every type.
func (f *file) config() (Config, error) {
	c := Config{
		Type: f.ModelType, Vocab: f.VocabSize, Hidden: f.HiddenSize, FFN: f.IntermediateSize, Layers: f.Layers,
		Heads: f.Heads, KVHeads: f.Heads, Context: f.MaxPositions, NormEps: float64(f.RMSNormEps), Tied: f.Tied,
		BOS: idsOf(f.BOS), EOS: idsOf(f.EOS), Pad: idsOf(f.Pad),
	}
	if c.Context == 0 {
		c.Context = f.ModelMaxLength
	}
	if f.KVHeads != nil {
		c.KVHeads = *f.KVHeads
	}
	if f.HeadDim != nil {
		c.HeadDim = *f.HeadDim
	} else if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if raw := f.Quantization; raw != nil && string(raw) != "null" {
		if err := checkQuantization(raw, f.ModelType); err != nil {
			return c, err
		}
		var tight bytes.Buffer
		if err := json.Compact(&tight, raw); err != nil {
			return c, err
		}
		c.Quantization = tight.Bytes()
	}
	if f.PretrainingTP > 1 {
		return c, fmt.Errorf("pretraining_tp %d is not supported (supported: 1)", f.PretrainingTP)
	}
	return c, f.rope(&c)
}

// experts is the number of experts, under the key that the type writes.
func (f *file) experts() int {
	switch {
	case f.LocalExperts > 0:
		return f.LocalExperts
	case f.RoutedExperts > 0:
		return f.RoutedExperts
	}
	return f.ExpertCount
}

// topK is the number of experts of a token.
func (f *file) topK() int { return orZero(f.TopK) }

// activation refuses a gated unit other than the type's.
func (f *file) activation(want string) error {
	got, key := f.HiddenAct, "hidden_act"
	if f.HiddenActivation != "" {
		got, key = f.HiddenActivation, "hidden_activation"
	}
	switch {
	case got == "swish":
		got = "silu"
	case got == "gelu" && f.ModelType == "gemma": // the first releases say so and mean this
		got = want
	}
	if got != want {
		return fmt.Errorf("%s %q is not supported for %s (supported: %s)", key, got, f.ModelType, want)
	}
	return nil
}

// saidRope is what the file says of the rotation, in either spelling.
func (f *file) saidRope() *rope { return cmp.Or(f.RopeParameters, f.RopeScaling, f.unsaidRope) }

// rope reads either spelling of the rotary settings.
func (f *file) rope(c *Config) error {
	if f.RopeTheta != nil {
		c.RopeTheta = *f.RopeTheta
	}
	r := f.saidRope()
	if r != nil && r.Full != nil {
		r = r.Full
	}
	partial := f.PartialRotary
	if r != nil && r.PartialRotary != nil {
		partial = r.PartialRotary
	}
	if partial != nil && *partial != 1 {
		if !architectures[f.ModelType].partial {
			return fmt.Errorf("partial_rotary_factor %g is not supported (supported: 1)", *partial)
		}
		if c.RotaryDim = int(float64(c.HeadDim) * *partial); c.RotaryDim < 1 || c.RotaryDim > c.HeadDim {
			return fmt.Errorf("partial_rotary_factor must leave 1 to head_dim %d numbers to turn, got %g", c.HeadDim, *partial)
		}
	}
	if r == nil {
		return nil
	}
	if r.Theta != nil {
		c.RopeTheta = *r.Theta
	}
	if kind := r.kind(); kind == "" || kind == "default" {
		return nil
	}
	original := r.Original
	switch r.kind() {
	case "llama3", "yarn", "longrope", suRope:
		if f.Original != nil {
			original = *f.Original
		} else if original == 0 {
			original = c.Context
		}
	}
	c.RopeScale = native.RotaryScaling{
		Type: r.kind(), Factor: r.Factor, OriginalPositions: original, ModelPositions: c.Context,
		LowFrequency: r.LowFactor, HighFrequency: r.HighFactor, BetaFast: r.BetaFast, BetaSlow: r.BetaSlow,
		AttentionFactor: r.Attention, MScale: r.MScale, MScaleAllDim: r.MScaleAll,
		NoTruncate: r.Truncate != nil && !*r.Truncate, ShortFactors: r.Short, LongFactors: r.Long,
	}
	return nil
}

// setTurning says how many numbers of a head turn.
func (f *file) setTurning(n, headDim int) {
	part := float64(n) / float64(headDim)
	if int(part*float64(headDim)) < n { // readers cut off
		part = math.Nextafter(part, 1)
	}
	f.PartialRotary = &part
}

// setRope is the way back, in the older spelling, which every release of
// transformers reads.
func (f *file) setRope(c *Config) {
	f.RopeTheta = &c.RopeTheta
	if c.RotaryDim > 0 && c.RotaryDim < c.HeadDim {
		f.setTurning(c.RotaryDim, c.HeadDim)
	}
	s := c.RopeScale
	if s.Type == "" {
		return
	}
	f.RopeScaling = &rope{
		Type: s.Type, Factor: s.Factor, Original: s.OriginalPositions, LowFactor: s.LowFrequency, HighFactor: s.HighFrequency,
		BetaFast: s.BetaFast, BetaSlow: s.BetaSlow, Attention: s.AttentionFactor, MScale: s.MScale, MScaleAll: s.MScaleAllDim,
		Short: s.ShortFactors, Long: s.LongFactors,
	}
	if s.NoTruncate {
		f.RopeScaling.Truncate = new(bool)
	}
}

// The values of layer_types.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// slidingRope reads the rotation of the layers with the window, which may not be
// scaled, where rope_parameters has one.
func (f *file) slidingRope(c *Config) error {
	if f.RopeParameters == nil || f.RopeParameters.Sliding == nil {
		return nil
	}
	r := f.RopeParameters.Sliding
	if kind := r.kind(); kind != "" && kind != "default" {
		return fmt.Errorf("rope_parameters of sliding_attention: rope_type %q is not supported (supported: default)", kind)
	}
	if r.Theta != nil {
		c.LocalTheta = *r.Theta
	}
	return nil
}

// windows reads which layers have the sliding window: as layer_types says, or
// as sliding tells where it is absent.
func (f *file) windows(c *Config, sliding func(layer int) bool) error {
	kinds := f.LayerTypes
	if kinds != nil && len(kinds) != c.Layers {
		return fmt.Errorf("layer_types has %d entries, num_hidden_layers is %d", len(kinds), c.Layers)
	}
	window := 0
	if f.SlidingWindow != nil {
		window = *f.SlidingWindow
	}
	global, any := make([]bool, min(c.Layers, maxLayers)), false
	for l := range global {
		slides := kinds == nil && window > 0 && sliding(l)
		if kinds != nil {
			switch kinds[l] {
			case fullAttention:
			case slidingAttention:
				slides = true
			default:
				return fmt.Errorf("layer_types[%d] %q is not supported (supported: %s, %s)", l, kinds[l], fullAttention, slidingAttention)
			}
		}
		global[l] = !slides
		any = any || slides
	}
	if !any {
		return nil
	}
	if window < 1 {
		return fmt.Errorf("sliding_window must be 1 or more where layers slide, got %d", window)
	}
	c.Window, c.Global = window, global
	return nil
}

// setWindows is the way back.
func (f *file) setWindows(c *Config) {
	if c.Window == 0 {
		return
	}
	f.SlidingWindow, f.UseSlidingWindow = &c.Window, true
	for l := range c.Layers {
		kind := fullAttention
		if c.WindowOf(l) > 0 {
			kind = slidingAttention
		}
		f.LayerTypes = append(f.LayerTypes, kind)
	}
}
