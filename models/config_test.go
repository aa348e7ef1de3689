package models_test

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// config is a config.json as a map, to be changed.
func config(t testing.TB, dir string) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata/golden", dir, "config.json"))
	require.NoError(t, err)
	var c map[string]any
	require.NoError(t, json.Unmarshal(raw, &c))
	return c
}

func parse(t testing.TB, c map[string]any) (models.Config, error) {
	t.Helper()
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	return models.ParseConfig(bytes.NewReader(raw))
}

// TestR02_BothSpellingsOfRope reads the settings of the rotation as published
// checkpoints have them and as transformers writes them now.
func TestR02_BothSpellingsOfRope(t *testing.T) {
	for _, name := range []string{"llama3", "llama_untied_bias", "gemma3", "glm4", "gpt_oss"} {
		want, err := parse(t, config(t, name))
		require.NoError(t, err)
		for _, key := range []string{"type", "rope_type"} {
			old := config(t, name)
			r := old["rope_parameters"].(map[string]any)
			delete(old, "rope_parameters")
			if full, ok := r["full_attention"].(map[string]any); ok {
				old["rope_local_base_freq"] = r["sliding_attention"].(map[string]any)["rope_theta"]
				r = full
			}
			old["rope_theta"] = r["rope_theta"]
			delete(r, "rope_theta")
			kind := r["rope_type"]
			delete(r, "rope_type")
			r[key] = kind
			old["rope_scaling"] = r
			if kind == "default" {
				old["rope_scaling"] = nil
			}
			got, err := parse(t, old)
			require.NoError(t, err)
			require.Equal(t, want, got, name)
		}
	}
	c := config(t, "llama3")
	c["rope_parameters"].(map[string]any)["rope_type"] = "spiral"
	_, err := parse(t, c)
	require.EqualError(t, err, `rotary: unknown scaling type "spiral", want default, linear, dynamic, yarn, llama3 or longrope`)
}

// TestOldSpellingsOfPhi3AndGemma reads what the first releases wrote.
func TestOldSpellingsOfPhi3AndGemma(t *testing.T) {
	const dir = "../variants/phi3_longrope"
	want, err := parse(t, config(t, dir))
	require.NoError(t, err)
	for _, kind := range []string{"longrope", "su", "yarn"} {
		old := config(t, dir)
		r := old["rope_parameters"].(map[string]any)
		delete(old, "rope_parameters")
		old["rope_theta"], old["partial_rotary_factor"] = r["rope_theta"], r["partial_rotary_factor"]
		old["rope_scaling"] = map[string]any{"type": kind, "short_factor": r["short_factor"], "long_factor": r["long_factor"]}
		got, err := parse(t, old)
		require.NoError(t, err)
		require.Equal(t, want, got, kind)
	}
	old := config(t, "gemma")
	want, err = parse(t, old)
	require.NoError(t, err)
	old["hidden_act"] = "gelu" // which meant tanh
	got, err := parse(t, old)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestConfigNamesWhatItRefuses changes one field at a time to a value that
// would change results and is not followed.
func TestConfigNamesWhatItRefuses(t *testing.T) {
	for _, x := range []struct {
		dir, key string
		value    any
		want     string
	}{
		{"llama3", "model_type", "rwkv", `model_type "rwkv" is not supported (supported: deepseek_v3, gemma, gemma2, gemma3_text, glm, glm4, gpt_oss, granite, kimi_linear, llama, ministral, ministral3, mistral, mixtral, olmo2, olmo3, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3)`},
		{"llama3", "hidden_act", "relu", `hidden_act "relu" is not supported for llama (supported: silu)`},
		{"llama3", "pretraining_tp", 2, "pretraining_tp 2 is not supported (supported: 1)"},
		{"llama3", "quantization_config", map[string]any{"quant_method": "gptq"}, `quantization_config: quant_method "gptq" is not supported (supported: fp8, fbgemm_fp8, compressed-tensors)`},
		{"llama3", "partial_rotary_factor", 0.5, "partial_rotary_factor 0.5 is not supported (supported: 1)"},
		{"llama3", "num_key_value_heads", 3, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
		{"llama3", "head_dim", 15, "head_dim must be even for the rotation, got 15"},
		{"llama3", "vocab_size", 0, "vocab_size must be 1 to 1073741824, got 0"},
		{"llama3", "num_hidden_layers", 1 << 20, "num_hidden_layers must be 1 to 65536, got 1048576"},
		{"llama3", "eos_token_id", []int{2, 256}, "eos_token_id 256 is outside the vocabulary of 256"},
		{"llama3", "bos_token_id", 1 << 30, "bos_token_id 1073741824 is outside the vocabulary of 256"},
		{"llama3", "pad_token_id", -2, "pad_token_id -2 is outside the vocabulary of 256"},
		{"llama3", "rms_norm_eps", 0, "rms_norm_eps must be above 0, got 0"},
		{"mistral", "sliding_window", -1, "sliding_window must be 0 or more, got -1"},
		{"qwen2", "layer_types", []string{"full_attention"}, "layer_types has 1 entries, num_hidden_layers is 3"},
		{"qwen2", "layer_types", []string{"full_attention", "chunked_attention", "full_attention"}, `layer_types[1] "chunked_attention" is not supported (supported: full_attention, sliding_attention)`},
		{"gemma3", "hidden_activation", "gelu", `hidden_activation "gelu" is not supported for gemma3_text (supported: gelu_pytorch_tanh)`},
		{"gemma3", "final_logit_softcapping", -30.0, "final_logit_softcapping must be above 0, or null, got -30"},
		{"gemma3", "attn_logit_softcapping", 50.0, "attn_logit_softcapping 50 is not supported (supported: null)"},
		{"gemma3", "use_bidirectional_attention", true, "use_bidirectional_attention true is not supported"},
		{"gemma3", "sliding_window", nil, "sliding_window must be 1 or more where layers slide, got 0"},
		{"qwen3_moe", "num_experts_per_tok", 7, "router: top-k must be from 1 to the number of experts, got top-k 7 of 6 experts"},
		{"qwen3_moe", "decoder_sparse_step", -1, "decoder_sparse_step must be 1 or more, got -1"},
		{"qwen3_moe", "moe_intermediate_size", -1, "moe_intermediate_size must be 1 to 2^30, got -1"},
		{"qwen2_moe", "shared_expert_intermediate_size", 0, "the width of a shared expert with a gate must be 1 or more, got 0"},
		{"deepseek_v3", "scoring_func", "softmax", `scoring_func "softmax" is not supported (supported: sigmoid)`},
		{"deepseek_v3", "topk_method", "greedy", `topk_method "greedy" is not supported (supported: noaux_tc)`},
		{"deepseek_v3", "n_group", 3, "router: 8 experts do not make 3 groups of one size"},
		{"deepseek_v3", "kv_lora_rank", -1, "kv_lora_rank must be 1 to 2^20, got -1"},
		{"gemma", "use_bidirectional_attention", true, "use_bidirectional_attention true is not supported"},
		{"gemma2", "attn_logit_softcapping", -1.0, "attn_logit_softcapping must be above 0, or null, got -1"},
		{"gpt_oss", "swiglu_limit", 0.0, "swiglu_limit must be above 0, got 0"},
		{"gpt_oss", "num_experts_per_tok", 5, "router: top-k must be from 1 to the number of experts, got top-k 5 of 4 experts"},
		{"qwen3_moe", "quantization_config", map[string]any{"quant_method": "mxfp4"}, `quantization_config: quant_method "mxfp4" is not supported (supported: fp8, fbgemm_fp8, compressed-tensors)`},
		{"granite", "residual_multiplier", 0.0, "residual_multiplier must be above 0, got 0"},
		{"olmo3", "rope_parameters", map[string]any{"sliding_attention": map[string]any{"rope_type": "yarn"}}, `rope_parameters of sliding_attention: rope_type "yarn" is not supported (supported: default)`},
		{"phi3", "rope_parameters", map[string]any{"partial_rotary_factor": 1.5}, "partial_rotary_factor must leave 1 to head_dim 6 numbers to turn, got 1.5"},
		{"phi3", "rope_parameters", map[string]any{"partial_rotary_factor": 0.5}, "the part of a head that turns must be even and 0 (all) to head_dim 6, got 3"},
		{"smollm3", "no_rope_layers", []int{1}, "no_rope_layers has 1 entries, num_hidden_layers is 5"},
	} {
		c := config(t, x.dir)
		c[x.key] = x.value
		_, err := parse(t, c)
		require.EqualError(t, err, x.want)
	}
}

// TestConfigFillsInWhatIsLeftOut: each type has its own defaults.
func TestConfigFillsInWhatIsLeftOut(t *testing.T) {
	c := config(t, "gemma3")
	for _, key := range []string{"layer_types", "tie_word_embeddings", "rope_parameters", "query_pre_attn_scalar"} {
		delete(c, key)
	}
	c["num_hidden_layers"] = 7
	got, err := parse(t, c)
	require.NoError(t, err)
	require.Equal(t, []bool{false, false, false, false, false, true, false}, got.Global)
	require.True(t, got.Tied)
	require.Equal(t, [3]float64{1e6, 1e4, 1.0 / 16}, [3]float64{got.RopeTheta, got.LocalTheta, got.Scale})
	c = config(t, "smollm3")
	for _, key := range []string{"no_rope_layers", "layer_types", "tie_word_embeddings"} {
		delete(c, key)
	}
	got, err = parse(t, c)
	require.NoError(t, err)
	require.Equal(t, []bool{false, false, false, true, false}, got.NoRope)
	require.Equal(t, []int{0, 0, 0, 16, 0}, []int{got.WindowOf(0), got.WindowOf(1), got.WindowOf(2), got.WindowOf(3), got.WindowOf(4)})
	require.True(t, got.Tied)
	c = config(t, "qwen2")
	c["use_sliding_window"], c["sliding_window"], c["max_window_layers"] = true, 9, 2
	delete(c, "layer_types")
	got, err = parse(t, c)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false}, got.Global)
	require.Equal(t, 9, got.WindowOf(2))
}

// TestMinistral3LeftOut: what its file leaves out, and what goes with a growth.
func TestMinistral3LeftOut(t *testing.T) {
	text := config(t, "ministral3")["text_config"].(map[string]any)
	delete(text, "rope_parameters")
	c, err := parse(t, text)
	require.NoError(t, err)
	require.Equal(t, []any{0.1, 16384, 1e6, "yarn", 16.0}, []any{c.Growth, c.GrowthSpan, c.RopeTheta, c.RopeScale.Type, c.RopeScale.Factor})
	text["rope_parameters"] = map[string]any{"rope_type": "default", "llama_4_scaling_beta": 0.1}
	_, err = parse(t, text)
	require.EqualError(t, err, "original_max_position_embeddings must be 1 or more with llama_4_scaling_beta, got 0")
	c.RotaryDim = 2
	require.EqualError(t, c.Check(), "llama_4_scaling_beta goes with heads that turn whole, in every layer by one rotation")
	c.GrowthSpan = 0
	require.EqualError(t, c.Check(), "llama_4_scaling_beta must be finite and come with a span of 1 position or more, got 0.1 and 0")
}

func TestWrittenConfigsReadBack(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		want, err := models.ReadConfig(dir)
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, want.Write(&b))
		got, err := models.ParseConfig(&b)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestDeepseekOfCode: what a program leaves out is written as the type's file says
// it, not left to what its readers take instead.
func TestDeepseekOfCode(t *testing.T) {
	c := models.Config{Type: "deepseek_v3", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 6, Context: 16, NormEps: 1e-6, RopeTheta: 1e4,
		Latent:  &models.Latent{KVRank: 4, Nope: 4, Rope: 2, V: 4},
		Experts: &models.Experts{Router: ops.Router{Experts: 4, TopK: 2, Sigmoid: true, Renormalize: true}, FFN: 8, Bias: true, Dense: []bool{false}}}
	var b bytes.Buffer
	require.NoError(t, c.Write(&b))
	require.Contains(t, b.String(), `"routed_scaling_factor": 1.0,`)
	require.Contains(t, b.String(), `"n_group": 1,`)
	require.Contains(t, b.String(), `"topk_group": 1,`)
	c.HeadDim = 2
	require.EqualError(t, c.Write(&b), "with Latent head_dim must be qk_nope_head_dim and qk_rope_head_dim together, 6, and num_key_value_heads be num_attention_heads, 2, got 2 and 2")
}

// FuzzConfig: whatever a config.json says, reading it does not panic, and what
// is accepted can be written, read back and stays itself.
func FuzzConfig(f *testing.F) {
	dirs, err := filepath.Glob("testdata/golden/*/config.json")
	require.NoError(f, err)
	for _, path := range dirs {
		raw, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
		f.Add(bytes.ReplaceAll(raw, []byte(": 2"), []byte(": -2")))
	}
	for _, seed := range []string{
		`{"model_type":"llama"}`, `{"model_type":"gemma3_text","num_hidden_layers":2147483647,"layer_types":[]}`,
		`{"model_type":"smollm3","no_rope_layers":[1,0],"num_hidden_layers":2,"rope_parameters":{"full_attention":null}}`,
		`{"model_type":"qwen3","head_dim":null,"num_attention_heads":0,"hidden_size":1e3}`, `[]`, `null`, `{"eos_token_id":[1,"2"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := models.ParseConfig(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var b bytes.Buffer
		require.NoError(t, c.Write(&b))
		again, err := models.ParseConfig(&b)
		require.NoError(t, err)
		require.InEpsilon(t, 1+c.Scale, 1+again.Scale, 1e-12)
		c.Scale, again.Scale = 0, 0
		require.Equal(t, normal(c), normal(again))
	})
}

// normal leaves out what two spellings may say differently.
func normal(c models.Config) models.Config {
	if c.Window == 0 {
		c.Global = nil
	}
	if c.Window > 0 && c.Global == nil {
		c.Global = make([]bool, c.Layers)
	}
	return c
}

// TestConfigOfLists: lists that would take ten times the file are refused before
// they are decoded.
func TestConfigOfLists(t *testing.T) {
	raw := []byte(`{"model_type":"llama","layer_types":[` + strings.Repeat(`"",`, 1<<20) + `""]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := models.ParseConfig(bytes.NewReader(raw))
	runtime.ReadMemStats(&after)
	require.EqualError(t, err, "a config of at most 16384 values is read, this one has 1048577")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*len(raw))) // all that reading it took, piece by piece
	_, err = models.ParseConfig(strings.NewReader(`{"model_type":"abacus","quantization_config":{"ignore":[` + strings.Repeat(`"",`, 1<<20) + `""]}}`))
	require.ErrorContains(t, err, `model_type "abacus" is not supported`)
}

func TestConfigTooLong(t *testing.T) {
	_, err := models.ParseConfig(strings.NewReader(strings.Repeat(" ", 5<<20)))
	require.EqualError(t, err, "a config of at most 4194304 bytes is read, this one is longer")
}

// A path that holds no model says what there is instead: the folder of a run has
// its models below it.
func TestNotAModel(t *testing.T) {
	dir := t.TempDir()
	_, err := models.Open(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotContains(t, err.Error(), "holds models")
	raw, err := os.ReadFile("testdata/golden/llama3/config.json")
	require.NoError(t, err)
	for _, name := range []string{"step-00000010", "best", "plots"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
		if name != "plots" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "config.json"), raw, 0o666))
		}
	}
	adapters := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(adapters, "last"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(adapters, "last", "adapter_config.json"), nil, 0o666))
	for _, open := range []func(string) error{
		func(path string) error { _, err := models.Open(path); return err },
		func(path string) error { _, err := models.ReadConfig(path); return err },
		func(path string) error { _, err := models.AdapterBase(path); return err },
	} {
		require.ErrorContains(t, open(dir), " (the folder holds models: best, step-00000010)")
		require.ErrorContains(t, open(adapters), " (the folder holds adapters: last)")
		require.ErrorIs(t, open(dir), fs.ErrNotExist)
	}
	text := filepath.Join(dir, "book.txt")
	require.NoError(t, os.WriteFile(text, []byte("It was the best of times, it was the worst of times."), 0o666))
	_, err = models.Open(text)
	require.EqualError(t, err, "models: "+text+": neither a folder with a config.json nor a GGUF file")
}

func TestAConfigIsAnObject(t *testing.T) {
	_, err := models.ParseConfig(strings.NewReader("[1]"))
	require.EqualError(t, err, "a config must be a JSON object, got array")
	_, err = models.ParseConfig(nil)
	require.EqualError(t, err, "models: the reader of a config is missing (nil)")
}

// TestAConfigThatItsFileCannotSayIsNotWritten: a folder is saved that opens as the
// model it was saved from, or none.
func TestAConfigThatItsFileCannotSayIsNotWritten(t *testing.T) {
	for want, edit := range map[string]func(c *models.Config){
		"QKNorm true: it would read as false":            func(c *models.Config) { c.QKNorm = true },
		"OutputBias false: it would read as true":        func(c *models.Config) { c.QKVBias = true },
		"QKVBias false: it would read as true":           func(c *models.Config) { c.Type = "qwen2" },
		"a Window of 4 in layer 0: it would read as 0":   func(c *models.Config) { c.Window = 4 },
		"NoRope true of layer 1: it would read as false": func(c *models.Config) { c.NoRope = []bool{false, true} },
		"LogitCap 30: it would read as 0":                func(c *models.Config) { c.LogitCap = 30 },
		"Scale 0.5: it would read as 0.25":               func(c *models.Config) { c.Scale = 0.5 },
		"ScoreCap 50: it would read as 0":                func(c *models.Config) { c.ScoreCap = 50 },
		"EmbedScale 2: it would read as 1":               func(c *models.Config) { c.EmbedScale = 2 },
		"ResidualScale 2: it would read as 1":            func(c *models.Config) { c.ResidualScale = 2 },
		"LogitDivisor 2: it would read as 1":             func(c *models.Config) { c.LogitDivisor = 2 },
		"Experts {Router:{Experts:2 TopK:1 Groups:0 KeepGroups:0 Sigmoid:false Renormalize:false Scale:1} FFN:8 Shared:0 Gated:false Clamp:{Alpha:0 Limit:0} Bias:false Dense:[false false]}: it would read as <nil>": func(c *models.Config) {
			c.Experts = &models.Experts{FFN: 8, Dense: make([]bool, 2), Router: ops.Router{Experts: 2, TopK: 1}}
		},
	} {
		c := models.Config{Type: "llama", Vocab: 8, Hidden: 32, FFN: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 16, Context: 16, NormEps: 1e-6, RopeTheta: 1e4}
		edit(&c)
		var out bytes.Buffer
		require.EqualError(t, c.Write(&out), "a config.json of "+c.Type+" cannot say "+want)
		require.Zero(t, out.Len())
	}
	// No bound is written where its absence means one.
	for _, key := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		open := config(t, "gemma2")
		open[key] = nil
		c, err := parse(t, open)
		require.NoError(t, err)
		require.NoError(t, c.Write(io.Discard), key)
	}
	// The part of a head that turns is written so that reading cuts it off where it ends.
	phi := models.Config{Type: "phi3", Vocab: 8, Hidden: 32, FFN: 8, Layers: 1, Heads: 1, KVHeads: 1, Context: 16, NormEps: 1e-6, RopeTheta: 1e4}
	for phi.HeadDim = 4; phi.HeadDim <= 256; phi.HeadDim += 2 {
		for phi.RotaryDim = 2; phi.RotaryDim < phi.HeadDim; phi.RotaryDim += 14 {
			require.NoError(t, phi.Write(io.Discard))
		}
	}
	shared := models.Config{Type: "qwen3_moe", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4, QKNorm: true,
		Experts: &models.Experts{FFN: 8, Dense: make([]bool, 1), Router: ops.Router{Experts: 2, TopK: 1, Scale: 1}}}
	require.NoError(t, shared.Write(io.Discard))
	shared.Experts.Shared = 8
	require.ErrorContains(t, shared.Write(io.Discard), "a config.json of qwen3_moe cannot say Experts {")
	for _, kind := range []string{"qwen3_moe", "mixtral", "deepseek_v3", "kimi_linear"} {
		_, err := models.New(models.Config{Type: kind, Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4})
		require.ErrorContains(t, err, "models: "+kind+" must have ")
	}
}
