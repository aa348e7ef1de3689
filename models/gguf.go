// Models in GGUF files: their names of tensors and their keys, told in the
// words of Hugging Face folders.

package models

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/tokenizer"
)

// ggufForm is how GGUF files spell a model type.
type ggufForm struct {
	name   string            // general.architecture, and the prefix of the keys
	turned bool              // rows of q and k lie in the order of checkpoint.LlamaRow
	norms  map[string]string // norms of a layer by their Hugging Face name
	noRope int               // every n-th layer does not rotate: no key says so; 0: all do

	windows bool // layers may have a sliding window
	wide    int  // models of so many layers scale scores by hidden/heads in place of head_dim: no key says so

	// is tells types of the same name apart; nil: there is no other.
	is func(k *ggufKeys) bool

	// more reads what the type has beyond llama's keys: mixtures, latents.
	more func(k *ggufKeys, ck *checkpoint.Checkpoint, f *file)
	// latent says that the keys about heads are those of latent attention.
	latent bool
}

var llamaNorms = map[string]string{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}

var ggufTop = map[string]string{tableName: "token_embd.weight", "model.norm.weight": "output_norm.weight", headName: "output.weight"}

var ggufLayer = map[string]string{
	"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
	"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
	"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",

	"mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
	"mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
	"mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",

	"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
	"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",

	"self_attn.q_conv1d": "ssm_conv1d_q", "self_attn.k_conv1d": "ssm_conv1d_k", "self_attn.v_conv1d": "ssm_conv1d_v",
	"self_attn.f_a_proj": "ssm_f_a", "self_attn.f_b_proj": "ssm_f_b", "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b",
	"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm",
}

// ggufWhole are tensors whose names in a layer change as a whole.
var ggufWhole = map[string]string{
	"self_attn.sinks":                  "attn_sinks.weight",
	"mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias",
}

// tensor is the name in the file of a tensor of the Hugging Face name.
func (g *ggufForm) tensor(name string) string {
	if top, ok := ggufTop[name]; ok {
		return top
	}
	rest, ok := strings.CutPrefix(name, "model.layers.")
	layer, rest, ok2 := strings.Cut(rest, ".")
	dot := strings.LastIndexByte(rest, '.')
	if !ok || !ok2 || dot < 0 {
		return name
	}
	if to, ok := ggufWhole[rest]; ok {
		return "blk." + layer + "." + to
	}
	module, kind := rest[:dot], rest[dot:]
	if to, ok := ggufLayer[module]; ok {
		module = to
	} else if to, ok := g.norms[module]; ok {
		module = to
	}
	return "blk." + layer + "." + module + kind
}

// ggufKeys reads keys of one type and keeps the first error.
type ggufKeys struct {
	m      checkpoint.Metadata
	prefix string
	err    error
}

func (k *ggufKeys) has(key string) bool {
	_, ok := k.m[k.prefix+key]
	return ok
}

// window is the sliding window, 0 for none.
func (k *ggufKeys) window() int { return orElse(k, "attention.sliding_window", k.int, 0) }

func (k *ggufKeys) experts() int { return orElse(k, "expert_count", k.int, 0) }

func (k *ggufKeys) int(key string) int          { return ggufKey(k, key, k.m.Int) }
func (k *ggufKeys) float(key string) float64    { return ggufKey(k, key, k.m.Float) }
func (k *ggufKeys) string(key string) string    { return ggufKey(k, key, k.m.String) }
func (k *ggufKeys) bool(key string) bool        { return ggufKey(k, key, k.m.Bool) }
func (k *ggufKeys) ints(key string) []int       { return ggufKey(k, key, k.m.Ints) }
func (k *ggufKeys) strings(key string) []string { return ggufKey(k, key, k.m.Strings) }

func ggufKey[T any](k *ggufKeys, key string, read func(string) (T, error)) T {
	v, err := read(k.prefix + key)
	if err != nil && k.err == nil {
		k.err = err
	}
	return v
}

// optional is the value of a key, nil where the file has not got it.
func optional[T any](k *ggufKeys, key string, read func(string) T) *T {
	if !k.has(key) {
		return nil
	}
	v := read(key)
	return &v
}

// orElse is the value of a key, or another where the file has not got it.
func orElse[T any](k *ggufKeys, key string, read func(string) T, otherwise T) T {
	if v := optional(k, key, read); v != nil {
		return *v
	}
	return otherwise
}

// ggufConfig reads the configuration from a GGUF header. Like ParseConfig it
// refuses what it cannot follow.
func ggufConfig(ck *checkpoint.Checkpoint) (Config, error) {
	name, err := ck.Metadata().String("general.architecture")
	if err != nil {
		return Config{}, err
	}
	var kinds []string
	for _, t := range Types() {
		arch := architectures[t]
		if arch.gguf == nil {
			continue
		}
		if arch.gguf.name == name && (arch.gguf.is == nil || arch.gguf.is(&ggufKeys{m: ck.Metadata(), prefix: name + "."})) {
			return arch.ggufConfig(ck, t)
		}
		kinds = append(kinds, arch.gguf.name)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	return Config{}, fmt.Errorf("general.architecture %q is not supported (supported: %s)", name, strings.Join(kinds, ", "))
}

func (a *architecture) ggufConfig(ck *checkpoint.Checkpoint, kind string) (Config, error) {
	k := &ggufKeys{m: ck.Metadata(), prefix: a.gguf.name + "."}
	f := a.defaults()
	f.ModelType = kind
	f.HiddenSize, f.IntermediateSize = k.int("embedding_length"), k.int("feed_forward_length")
	f.Layers, f.Heads, f.MaxPositions = k.int("block_count"), k.int("attention.head_count"), k.int("context_length")
	f.KVHeads = new(f.Heads)
	if !a.gguf.latent { // there it is 1, or one a layer: the heads of the latents
		f.KVHeads = new(orElse(k, "attention.head_count_kv", k.int, f.Heads))
	}
	f.HeadDim = new(orElse(k, "attention.key_length", k.int, f.HiddenSize/max(f.Heads, 1)))
	f.RMSNormEps = decimal(tidy(k.float("attention.layer_norm_rms_epsilon")))
	f.RopeTheta = new(tidy(orElse(k, "rope.freq_base", k.float, *f.RopeTheta)))
	f.RopeLocalTheta = new(tidy(orElse(k, "rope.freq_base_swa", k.float, 1e4)))
	if c := tidy(orElse(k, "final_logit_softcapping", k.float, 0)); c != 0 {
		f.FinalSoftcap = new(softcap(c))
	}
	f.UseSlidingWindow = false
	f.NoRopeInterval = a.gguf.noRope
	if window := k.window(); window > 0 {
		f.SlidingWindow = &window
		if !a.gguf.windows && k.err == nil {
			return Config{}, fmt.Errorf("%sattention.sliding_window %d is not supported (supported: 0)", k.prefix, window)
		}
		f.readPattern(k)
	} else {
		f.SlidingWindow = nil
	}
	shape := func(name string) []int {
		t, ok := ck.Lookup(a.gguf.tensor(name))
		if !ok {
			return nil
		}
		return t.Shape()
	}
	if s := shape(tableName); len(s) == 2 {
		f.VocabSize = s[0]
	}
	f.Tied = shape(headName) == nil
	f.QueryScalar = float64(*f.HeadDim)
	if f.Layers == a.gguf.wide {
		f.QueryScalar = float64(f.HiddenSize / max(f.Heads, 1))
	}
	f.AttentionBias, f.MLPBias = shape("model.layers.0.self_attn.q_proj.bias") != nil, shape("model.layers.0.mlp.gate_proj.bias") != nil
	ids := func(key string) *tokenIDs {
		if id := optional(&ggufKeys{m: k.m}, "tokenizer.ggml."+key, func(key string) int { n, _ := k.m.Int(key); return n }); id != nil {
			return &tokenIDs{int32(*id)}
		}
		return nil
	}
	f.BOS, f.EOS = ids("bos_token_id"), ids("eos_token_id")
	if a.gguf.more != nil {
		a.gguf.more(k, ck, &f)
	}
	required := map[string]int{
		"attention.value_length": *f.HeadDim, "rope.dimension_count": *f.HeadDim, "expert_count": f.experts(), "expert_gating_func": softmaxRouter,
	}
	if f.PartialRotary != nil {
		delete(required, "rope.dimension_count")
	}
	if a.gguf.latent {
		clear(required)
	}
	for key, want := range required {
		if got := orElse(k, key, k.int, want); got != want && k.err == nil {
			return Config{}, fmt.Errorf("%s%s %d is not supported (supported: %d)", k.prefix, key, got, want)
		}
	}
	if k.err != nil {
		return Config{}, k.err
	}
	c, err := f.config()
	if err != nil {
		return c, err
	}
	if c.RopeScale, err = ggufRope(ck, k, c); err != nil {
		return c, err
	}
	if err := c.checkSizes(); err != nil {
		return c, err
	}
	if err := a.read(&f, &c); err != nil {
		return c, err
	}
	// The llama form has a bias on the last projection or none, whatever q has.
	c.OutputBias = shape("model.layers.0.self_attn.o_proj.bias") != nil
	return c, c.Check()
}

// readPattern reads which layers have the window: every one but each n-th, or
// as a list says; no key: as the type has it. Types without layers of two kinds
// read none of it.
func (f *file) readPattern(k *ggufKeys) {
	const key = "attention.sliding_window_pattern"
	v, ok := k.m[k.prefix+key]
	slides, list := v.([]bool)
	every := 0
	switch {
	case !ok:
		return
	case !list:
		if every = k.int(key); every < 1 && k.err == nil {
			k.err = fmt.Errorf("%s%s must be 1 or more, got %d", k.prefix, key, every)
		}
	case len(slides) < f.Layers && k.err == nil:
		k.err = fmt.Errorf("%s%s has %d entries, %sblock_count is %d", k.prefix, key, len(slides), k.prefix, f.Layers)
	}
	for l := range min(f.Layers, maxLayers) {
		if k.err != nil {
			return
		}
		kind := fullAttention
		if list && slides[l] || !list && (l+1)%every != 0 {
			kind = slidingAttention
		}
		f.LayerTypes = append(f.LayerTypes, kind)
	}
}

// tidy undoes the rounding of a decimal constant to float32: the header has
// 9.99999997e-07 for 1e-6.
func tidy(v float64) float64 {
	if x, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 32), 64); err == nil && float32(x) == float32(v) {
		return x
	}
	return v
}

// ggufTokenizer reads the tokenizer of a GGUF header.
func ggufTokenizer(m checkpoint.Metadata) (tokenizer.GGUF, error) {
	k := &ggufKeys{m: m, prefix: "tokenizer.ggml."}
	id := func(key string) *int32 {
		n := optional(k, key, k.int)
		if n == nil {
			return nil
		}
		return new(int32(max(min(*n, math.MaxInt32), -1)))
	}
	g := tokenizer.GGUF{
		Model: k.string("model"), Pre: orElse(k, "pre", k.string, ""), Tokens: k.strings("tokens"),
		Merges: orElse(k, "merges", k.strings, nil),
		BOS:    id("bos_token_id"), EOS: id("eos_token_id"), Unknown: id("unknown_token_id"), Pad: id("padding_token_id"),
		AddBOS: optional(k, "add_bos_token", k.bool), AddEOS: optional(k, "add_eos_token", k.bool),
		AddSpacePrefix: optional(k, "add_space_prefix", k.bool), RemoveExtraWhitespaces: optional(k, "remove_extra_whitespaces", k.bool),
	}
	for _, x := range orElse(k, "scores", func(key string) []float64 { return ggufKey(k, key, m.Floats) }, nil) {
		g.Scores = append(g.Scores, float32(x))
	}
	for _, x := range orElse(k, "token_type", k.ints, nil) {
		g.Types = append(g.Types, int32(x))
	}
	for _, x := range orElse(k, "precompiled_charsmap", k.ints, nil) {
		g.CharsMap = append(g.CharsMap, byte(x))
	}
	for _, key := range []string{"eot_token_id", "eom_token_id"} {
		if stop := id(key); stop != nil {
			g.Stop = append(g.Stop, *stop)
		}
	}
	return g, k.err
}
