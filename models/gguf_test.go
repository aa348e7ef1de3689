package models_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// ggufFile writes a GGUF file with float32 tensors.
type ggufFile struct {
	keys, tensors, data bytes.Buffer
	nKeys, nTensors     uint64

	code func(name string, n int) (kind uint32, data []byte) // of matrices and stacks; nil, or without data: they are float32
}

func (g *ggufFile) string(b *bytes.Buffer, s string) {
	binary.Write(b, binary.LittleEndian, uint64(len(s))) // a buffer never fails
	b.WriteString(s)
}

func (g *ggufFile) key(name string, v any) {
	kind := map[string]uint32{"uint32": 4, "float32": 6, "bool": 7, "string": 8, "[]bool": 9, "[]string": 9}[fmt.Sprintf("%T", v)]
	g.nKeys++
	g.string(&g.keys, name)
	binary.Write(&g.keys, binary.LittleEndian, kind)
	if s, ok := v.(string); ok {
		g.string(&g.keys, s)
		return
	}
	if list, ok := v.([]string); ok {
		binary.Write(&g.keys, binary.LittleEndian, uint32(8))
		binary.Write(&g.keys, binary.LittleEndian, uint64(len(list)))
		for _, s := range list {
			g.string(&g.keys, s)
		}
		return
	}
	if list, ok := v.([]bool); ok {
		binary.Write(&g.keys, binary.LittleEndian, uint32(7))
		binary.Write(&g.keys, binary.LittleEndian, uint64(len(list)))
	}
	binary.Write(&g.keys, binary.LittleEndian, v)
}

func (g *ggufFile) tensor(name string, shape []int, data []float32) { g.typed(name, shape, 0, data) }

// typed writes a tensor of any type by its number.
func (g *ggufFile) typed(name string, shape []int, kind uint32, data any) {
	g.nTensors++
	g.string(&g.tensors, name)
	binary.Write(&g.tensors, binary.LittleEndian, uint32(len(shape)))
	for i := range shape {
		binary.Write(&g.tensors, binary.LittleEndian, uint64(shape[len(shape)-1-i]))
	}
	binary.Write(&g.tensors, binary.LittleEndian, kind)
	binary.Write(&g.tensors, binary.LittleEndian, uint64(g.data.Len()))
	binary.Write(&g.data, binary.LittleEndian, data)
	pad32(&g.data)
}

func pad32(b *bytes.Buffer) { b.Write(make([]byte, -b.Len()&31)) }

func (g *ggufFile) bytes() []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	binary.Write(&b, binary.LittleEndian, uint32(3))
	binary.Write(&b, binary.LittleEndian, []uint64{g.nTensors, g.nKeys})
	b.Write(g.keys.Bytes())
	b.Write(g.tensors.Bytes())
	pad32(&b)
	b.Write(g.data.Bytes())
	return b.Bytes()
}

// ggufOf writes a model as llama.cpp's converter does: rows of q and k of the
// llama forms are interleaved, norms of Gemma have 1 added, the factors of
// llama3's rotation are a tensor.
func ggufOf(m *models.Transformer, edit func(*ggufFile)) []byte {
	c := m.Config
	arch := map[string]string{"gemma3_text": "gemma3", "mixtral": "llama", "olmo3": "olmo2", "gpt_oss": "gpt-oss", "qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "ministral3": "mistral3", "deepseek_v3": "deepseek2", "kimi_linear": "kimi-linear", "mistral": "llama"}[c.Type]
	if arch == "" {
		arch = c.Type
	}
	g := &ggufFile{}
	g.key("general.architecture", arch)
	keys := map[string]any{
		"embedding_length": uint32(c.Hidden), "feed_forward_length": uint32(c.FFN), "block_count": uint32(c.Layers), "context_length": uint32(c.Context),
		"attention.head_count": uint32(c.Heads), "attention.head_count_kv": uint32(c.KVHeads), "attention.key_length": uint32(c.HeadDim),
		"attention.layer_norm_rms_epsilon": float32(c.NormEps), "rope.freq_base": float32(c.RopeTheta),
	}
	if e := c.Experts; e != nil {
		keys["expert_count"], keys["expert_used_count"] = uint32(e.Router.Experts), uint32(e.Router.TopK)
		if c.Type != "mixtral" {
			keys["expert_feed_forward_length"] = uint32(e.FFN)
		}
		if e.Router.Sigmoid {
			keys["expert_gating_func"], keys["expert_weights_scale"], keys["expert_weights_norm"] = uint32(2), float32(e.Router.Scale), e.Router.Renormalize
			keys["expert_group_count"], keys["expert_group_used_count"], keys["expert_shared_count"] = uint32(e.Router.Groups), uint32(e.Router.KeepGroups), uint32(e.Shared/e.FFN)
		}
	}
	if a := c.Latent; a != nil { // heads are those of the latents
		keys["attention.head_count_kv"], keys["attention.kv_lora_rank"], keys["rope.dimension_count"] = uint32(1), uint32(a.KVRank), uint32(a.Rope)
		keys["attention.key_length"], keys["attention.value_length"] = uint32(a.KVRank+a.Rope), uint32(a.KVRank)
		keys["attention.key_length_mla"], keys["attention.value_length_mla"] = uint32(a.Nope+a.Rope), uint32(a.V)
		if a.QRank > 0 {
			keys["attention.q_lora_rank"] = uint32(a.QRank)
		}
	}
	if d := c.Delta; d != nil {
		keys["kda.head_dim"], keys["ssm.conv_kernel"] = uint32(d.HeadDim), uint32(d.Width)
	}
	if s := c.RopeScale; s.Type == "yarn" {
		keys["rope.scaling.type"], keys["rope.scaling.factor"], keys["rope.scaling.original_context_length"] = "yarn", float32(s.Factor), uint32(s.OriginalPositions)
		keys["rope.scaling.yarn_beta_fast"], keys["rope.scaling.yarn_beta_slow"], keys["rope.scaling.yarn_log_multiplier"] = float32(s.BetaFast), float32(s.BetaSlow), float32(0.1*s.MScaleAllDim)
		if c.Type == "olmo3" { // attention_factor, which the config may spell out
			keys["rope.scaling.yarn_attn_factor"], keys["rope.freq_base_swa"] = float32(0.1*math.Log(s.Factor)+1), float32(c.LocalTheta)
		}
	}
	switch c.Type {
	case "glm4":
		keys["rope.dimension_count"] = uint32(cmp.Or(c.RotaryDim, c.HeadDim))
	case "qwen2_moe":
		keys["expert_shared_feed_forward_length"] = uint32(c.Experts.Shared)
	case "ministral3":
		keys["attention.temperature_scale"], keys["rope.scaling.yarn_log_multiplier"] = float32(c.Growth), float32(c.RopeScale.MScaleAllDim)
	case "gemma2":
		keys["attn_logit_softcapping"], keys["final_logit_softcapping"] = float32(c.ScoreCap), float32(c.LogitCap)
	case "granite":
		keys["embedding_scale"], keys["residual_scale"], keys["logit_scale"] = float32(c.EmbedScale), float32(c.ResidualScale), float32(c.LogitDivisor)
		keys["attention.scale"], keys["rope.dimension_count"] = float32(c.Scale), uint32(c.HeadDim)
	case "phi3":
		delete(keys, "attention.key_length")
		keys["rope.dimension_count"], keys["attention.sliding_window"] = uint32(cmp.Or(c.RotaryDim, c.HeadDim)), uint32(c.Window)
	case "mixtral":
		keys["rope.dimension_count"] = uint32(c.HeadDim)
	}
	if c.Global != nil && c.Type != "gemma2" && c.Type != "gpt_oss" {
		var slides []bool
		for l := range c.Layers {
			slides = append(slides, c.WindowOf(l) > 0)
		}
		keys["attention.sliding_window_pattern"] = slides
	}
	if c.Window > 0 {
		keys["attention.sliding_window"] = uint32(c.Window)
	}
	if s := c.RopeScale; s.Type == "longrope" && c.Type == "phi3" {
		keys["rope.scaling.original_context_length"] = uint32(s.OriginalPositions)
		keys["rope.scaling.attn_factor"] = float32(math.Sqrt(1 + math.Log(float64(c.Context)/float64(s.OriginalPositions))/math.Log(float64(s.OriginalPositions))))
	}
	for key, v := range keys {
		g.key(arch+"."+key, v)
	}
	if c.RopeScale.Type == "linear" {
		g.key(arch+".rope.scaling.type", "linear")
		g.key(arch+".rope.scaling.factor", float32(c.RopeScale.Factor))
	}
	if edit != nil {
		edit(g)
	}
	if s := c.RopeScale; s.Type == "longrope" {
		for name, list := range map[string][]float64{"rope_factors_short.weight": s.ShortFactors, "rope_factors_long.weight": s.LongFactors} {
			var narrow []float32
			for _, x := range list {
				narrow = append(narrow, float32(x))
			}
			g.tensor(name, []int{len(narrow)}, narrow)
		}
	}
	names := strings.NewReplacer(
		"mlp.gate.e_score_correction_bias", "exp_probs_b.bias", "mlp.gate.weight", "ffn_gate_inp.weight", "mlp.router", "ffn_gate_inp", "self_attn.sinks", "attn_sinks.weight", "mlp.experts.gate_proj", "ffn_gate_exps", "mlp.experts.up_proj", "ffn_up_exps",
		"mlp.experts.down_proj", "ffn_down_exps", "mlp.shared_expert.gate_proj", "ffn_gate_shexp", "mlp.shared_expert.up_proj", "ffn_up_shexp", "mlp.shared_expert.down_proj", "ffn_down_shexp", "mlp.shared_expert_gate", "ffn_gate_inp_shexp",
		"mlp.shared_experts.gate_proj", "ffn_gate_shexp", "mlp.shared_experts.up_proj", "ffn_up_shexp", "mlp.shared_experts.down_proj", "ffn_down_shexp",
		"self_attn.q_a_proj", "attn_q_a", "self_attn.q_a_layernorm", "attn_q_a_norm", "self_attn.q_b_proj", "attn_q_b",
		"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "self_attn.kv_a_layernorm", "attn_kv_a_norm", "self_attn.kv_b_proj", "attn_kv_b",
		"self_attn.q_conv1d", "ssm_conv1d_q", "self_attn.k_conv1d", "ssm_conv1d_k", "self_attn.v_conv1d", "ssm_conv1d_v", "self_attn.f_a_proj", "ssm_f_a", "self_attn.f_b_proj", "ssm_f_b",
		"self_attn.g_a_proj", "ssm_g_a", "self_attn.g_b_proj", "ssm_g_b", "self_attn.b_proj", "ssm_beta", "self_attn.o_norm", "ssm_norm", "self_attn.A_log", "ssm_a", "self_attn.dt_bias", "ssm_dt.bias",
		"model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output", "model.layers", "blk",
		"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output", "self_attn.qkv_proj", "attn_qkv", "mlp.gate_up_proj", "ffn_up",
		"self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down",
		"input_layernorm", "attn_norm", "pre_feedforward_layernorm", "ffn_norm", "post_feedforward_layernorm", "post_ffw_norm", "post_self_attn_layernorm", "post_attention_norm", "post_mlp_layernorm", "post_ffw_norm",
		"post_attention_layernorm", map[bool]string{true: "ffn_norm", false: "post_attention_norm"}[arch != "gemma2" && arch != "gemma3" && arch != "olmo2" && arch != "gpt-oss"])
	for _, p := range m.Params().All() {
		w := graph.Data[float32](p.Tensor())
		out := append([]float32(nil), w...)
		switch turned := arch == "llama" || arch == "mistral3" || arch == "smollm3" || arch == "granite"; {
		case turned && (strings.Contains(p.Name, "q_proj") || strings.Contains(p.Name, "k_proj")):
			n := len(w) / p.Type.Shape[0]
			for r := range p.Type.Shape[0] {
				head, i := r/c.HeadDim, r%c.HeadDim
				to := head*c.HeadDim + 2*i // the first half of a head goes to even rows
				if i >= c.HeadDim/2 {
					to += 1 - c.HeadDim
				}
				copy(out[to*n:(to+1)*n], w[r*n:(r+1)*n])
			}
		case strings.HasPrefix(arch, "gemma") && strings.HasSuffix(p.Name, "norm.weight"):
			for i := range out {
				out[i]++
			}
		case strings.HasSuffix(p.Name, ".A_log"):
			for i := range out {
				out[i] = -float32(math.Exp(float64(out[i])))
			}
		case strings.HasSuffix(p.Name, ".kv_b_proj.weight") && c.Type != "kimi_linear": // kimi_linear: the older form, in one
			layer := strings.TrimSuffix(names.Replace(p.Name), "attn_kv_b.weight")
			keys, values := halvesOf(c, out)
			g.tensor(layer+"attn_k_b.weight", []int{c.Heads, c.Latent.KVRank, c.Latent.Nope}, keys)
			g.tensor(layer+"attn_v_b.weight", []int{c.Heads, c.Latent.V, c.Latent.KVRank}, values)
			continue
		case strings.HasSuffix(p.Name, ".experts.gate_proj.weight") && c.Type == "deepseek_v3": // the newer form, with up_proj
			up := graph.Data[float32](m.Params().Get(strings.Replace(p.Name, "gate_proj", "up_proj", 1)).Tensor())
			var both []float32
			for n := p.Type.Shape[1] * p.Type.Shape[2]; len(w) > 0; w, up = w[n:], up[n:] {
				both = append(append(both, w[:n]...), up[:n]...)
			}
			g.tensor(strings.Replace(names.Replace(p.Name), "ffn_gate_exps", "ffn_gate_up_exps", 1), []int{p.Type.Shape[0], 2 * p.Type.Shape[1], p.Type.Shape[2]}, both)
			continue
		case strings.HasSuffix(p.Name, ".experts.up_proj.weight") && c.Type == "deepseek_v3":
			continue
		case strings.Contains(p.Name, ".experts.") && c.Type == "mixtral": // the first form, a tensor for each expert
			n := len(w) / p.Type.Shape[0]
			for e := range p.Type.Shape[0] {
				g.tensor(strings.Replace(names.Replace(p.Name), "_exps", fmt.Sprintf(".%d", e), 1), p.Type.Shape[1:], w[e*n:(e+1)*n])
			}
			continue
		}
		shape := p.Type.Shape
		if strings.Contains(p.Name, "_conv1d.") {
			shape = []int{1, shape[0], 1, shape[2]}
		} else if strings.HasSuffix(p.Name, "shared_expert_gate.weight") {
			shape = shape[1:]
		}
		if name := names.Replace(p.Name); g.code != nil && len(shape) > 1 {
			if kind, data := g.code(name, len(out)); data != nil {
				g.typed(name, shape, kind, data)
				continue
			}
		}
		g.tensor(names.Replace(p.Name), shape, out)
	}
	return g.bytes()
}

// halvesOf cuts kv_b_proj [H x (Nope+V), KVRank] into keys [H,KVRank,Nope] and
// values [H,V,KVRank].
func halvesOf(c models.Config, w []float32) (keys, values []float32) {
	a := c.Latent
	for h := range c.Heads {
		head := w[h*(a.Nope+a.V)*a.KVRank:][:(a.Nope+a.V)*a.KVRank]
		for j := range a.KVRank {
			for i := range a.Nope {
				keys = append(keys, head[i*a.KVRank+j])
			}
		}
		values = append(values, head[a.Nope*a.KVRank:]...)
	}
	return keys, values
}

// TestGGUFGivesTheModelOfTheFolder writes the goldens as GGUF and opens them.
func TestGGUFGivesTheModelOfTheFolder(t *testing.T) {
	for _, path := range []string{
		"golden/llama_untied_bias", "golden/mistral", "golden/mixtral", "golden/qwen2", "golden/qwen3", "golden/olmo2", "golden/olmo3", "golden/gemma", "golden/gemma2",
		"golden/gemma3", "golden/granite", "golden/phi3", "variants/phi3_longrope", "golden/smollm3", "golden/glm4", "golden/ministral3", "golden/qwen2_moe", "golden/qwen3_moe", "golden/deepseek_v3", "golden/kimi_linear", "golden/gpt_oss",
	} {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			m, _, err := models.Load(filepath.Join("testdata", path))
			require.NoError(t, err)
			switch name { // what no key of the form can say
			case "gemma2", "gemma3":
				m.Config.Scale = 1 / math.Sqrt(float64(m.Config.HeadDim))
			case "smollm3": // every fourth layer does not rotate, none slides
				m.Config.Window, m.Config.Global, m.Config.NoRope = 0, nil, []bool{false, false, false, true, false}
			case "qwen2_moe":
				m.Config.Window, m.Config.Global = 0, nil
			case "gpt_oss":
				m.Config.Experts.Clamp.Limit = 7
			case "deepseek_v3":
				m.Config.RopeScale.MScale = m.Config.RopeScale.MScaleAllDim
			case "phi3_longrope": // factors are float32 there
				for _, list := range [][]float64{m.Config.RopeScale.ShortFactors, m.Config.RopeScale.LongFactors} {
					for i := range list {
						list[i] = float64(float32(list[i]))
					}
				}
			}
			dir := filepath.Join(t.TempDir(), "a[b") // a name that is no pattern
			require.NoError(t, os.Mkdir(dir, 0o777))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "model.gguf"), ggufOf(m, nil), 0o666))
			o, err := models.Open(dir)
			require.NoError(t, err)
			require.Nil(t, o.Tokenizer)
			c := o.Config
			c.BOS, c.EOS, c.Pad = m.Config.BOS, m.Config.EOS, m.Config.Pad
			require.Equal(t, m.Config, c)
			exact := true
			for i, p := range m.Params().All() {
				q := o.Params().All()[i]
				require.Equal(t, p.Name, q.Name)
				a, b := graph.Data[float32](p.Tensor()), graph.Data[float32](q.Tensor())
				switch {
				case strings.HasPrefix(name, "gemma") && strings.HasSuffix(p.Name, "norm.weight"): // 1 was added and taken away
					require.InDeltaSlice(t, a, b, 2e-7, p.Name)
					exact = false
				case strings.HasSuffix(p.Name, ".A_log"): // through the exponential
					require.InDeltaSlice(t, a, b, 2e-6, p.Name)
					exact = false
				default:
					require.Equal(t, a, b, p.Name)
				}
			}
			for _, p := range readGolden(t, filepath.Join("testdata", path)).Prompts {
				a, b := runLogits(t, m, p.InputIDs), runLogits(t, o.Transformer, p.InputIDs)
				if exact {
					require.Equal(t, a, b)
				} else {
					require.InDeltaSlice(t, a, b, 1e-5)
				}
			}
		})
	}
}

// TestTokenizerFilesOfAGGUF: a model that came in a GGUF file is saved as a whole
// folder, with the tokenizer and the chat template of the header.
func TestTokenizerFilesOfAGGUF(t *testing.T) {
	m, _, err := models.Load("testdata/variants/longrope")
	require.NoError(t, err)
	m.Config.RopeScale = native.RotaryScaling{} // the form has no such rotation
	path, dir := filepath.Join(t.TempDir(), "model.gguf"), filepath.Join(t.TempDir(), "saved")
	require.NoError(t, os.WriteFile(path, ggufOf(m, func(g *ggufFile) {
		g.key("tokenizer.ggml.model", "gpt2")
		g.key("tokenizer.ggml.pre", "gpt-2")
		g.key("tokenizer.ggml.tokens", []string{"a", "b", "c", "ab", "Ġ", "<|end|>"})
		g.key("tokenizer.ggml.merges", []string{"a b"})
		g.key("tokenizer.ggml.eos_token_id", uint32(5))
		g.key("tokenizer.chat_template", "{{ messages[0].content }}")
	}), 0o666))
	o, err := models.Open(path)
	require.NoError(t, err)
	require.NoError(t, o.Save(dir))
	files, err := models.TokenizerFiles(path)
	require.NoError(t, err)
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o666))
	}
	again, err := models.Open(dir)
	require.NoError(t, err)
	require.Equal(t, []int32{5}, again.Config.EOS)
	for _, tok := range []*tokenizer.Tokenizer{o.Tokenizer, again.Tokenizer} {
		ids, err := tok.Encode("abc ab", tokenizer.EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, []int32{3, 2, 4, 3}, ids)
		require.Equal(t, int32(5), tok.Special().EOS)
	}
	require.Contains(t, string(files["tokenizer_config.json"]), `"chat_template": "{{ messages[0].content }}"`)
	copied, err := models.TokenizerFiles(dir)
	require.NoError(t, err)
	require.Equal(t, files, copied)
}

func TestGGUFRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	key := func(name string, v any) func(*ggufFile) { return func(g *ggufFile) { g.key(name, v) } }
	tensor := func(name string, x ...float32) func(*ggufFile) {
		return func(g *ggufFile) { g.tensor(name, []int{len(x)}, x) }
	}
	for _, c := range []struct {
		golden, want string
		edit         func(*ggufFile)
	}{
		{"llama_untied_bias", `llama.rope.dimension_count 10 is not supported (supported: 20)`, key("llama.rope.dimension_count", uint32(10))},
		{"llama_untied_bias", `key "llama.expert_used_count"`, key("llama.expert_count", uint32(8))},
		{"llama_untied_bias", `llama.rope.scaling.type "ntk" is not supported (supported: none, linear, yarn, longrope with rope_factors_long.weight)`, key("llama.rope.scaling.type", "ntk")},
		{"llama_untied_bias", `unexpected tensors: blk.0.extra.weight`, tensor("blk.0.extra.weight", 1, 2)},
		{"qwen2", `qwen2.expert_count 8 is not supported (supported: 0)`, key("qwen2.expert_count", uint32(8))},
		{"qwen3_moe", `qwen3moe.expert_gating_func 2 is not supported (supported: 1)`, key("qwen3moe.expert_gating_func", uint32(2))},
		{"gemma2", `gemma2.attention.sliding_window_pattern must be 1 or more, got 0`, key("gemma2.attention.sliding_window_pattern", uint32(0))},
		{"gemma2", `gemma2.attention.sliding_window_pattern has 2 entries, gemma2.block_count is 3`, key("gemma2.attention.sliding_window_pattern", []bool{true, false})},
		{"gemma", `gemma.attention.sliding_window 8 is not supported (supported: 0)`, key("gemma.attention.sliding_window", uint32(8))},
		{"granite", `granite.rope.scaling.finetuned false, which is no rotation, is not supported (supported: true)`, key("granite.rope.scaling.finetuned", false)},
		{"olmo3", `olmo2.rope.scaling.attn_factor 2 is not supported (supported: 1)`, key("olmo2.rope.scaling.attn_factor", float32(2))},
		{"phi3", `rope_factors_long.weight is [3], required [2]`, func(g *ggufFile) {
			tensor("rope_factors_long.weight", 1, 2, 3)(g)
			tensor("rope_factors_short.weight", 1, 2)(g)
		}},
		{"glm4", `glm4.rope.dimension_sections is not supported (supported: none)`, key("glm4.rope.dimension_sections", uint32(1))},
		{"phi3", `rope_factors_short.weight is missing`, tensor("rope_factors_long.weight", 1, 2)},
	} {
		m, _, err := models.Load(filepath.Join("testdata/golden", c.golden))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, ggufOf(m, c.edit), 0o666))
		_, err = models.Open(path)
		require.ErrorContains(t, err, path+": ")
		require.ErrorContains(t, err, c.want)
	}
	g := &ggufFile{}
	g.key("general.architecture", "rwkv")
	require.NoError(t, os.WriteFile(path, g.bytes(), 0o666))
	_, err := models.Open(path)
	require.EqualError(t, err, `models: `+path+`: general.architecture "rwkv" is not supported (supported: deepseek2, gemma, gemma2, gemma3, glm4, gpt-oss, granite, kimi-linear, llama, mistral3, olmo2, phi3, qwen2, qwen2moe, qwen3, qwen3moe, smollm3)`)
}

// FuzzOpenGGUF: whatever a GGUF file says, opening it does not panic.
func FuzzOpenGGUF(f *testing.F) {
	for _, kind := range []string{"llama", "qwen2", "gemma3_text", "phi3", "glm4", "ministral3"} {
		c := models.Config{Type: kind, Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4, Tied: true,
			QKVBias: kind == "qwen2", QKNorm: kind == "gemma3_text"}
		m, err := models.New(c)
		require.NoError(f, err)
		require.NoError(f, m.Init(1))
		whole := ggufOf(m, nil)
		path := filepath.Join(f.TempDir(), "model.gguf")
		require.NoError(f, os.WriteFile(path, whole, 0o666))
		if kind != "gemma3_text" { // its window is in no key here
			_, err = models.Open(path)
			require.NoError(f, err)
		}
		f.Add(whole)
		f.Add(whole[:len(whole)/2])
		f.Add(bytes.ReplaceAll(whole, []byte{8, 0, 0, 0}, []byte{255, 255, 255, 255}))
		f.Add(ggufOf(m, func(g *ggufFile) { g.key("tokenizer.ggml.model", "gpt2"); g.key("tokenizer.ggml.pre", "smollm") }))
	}
	latent := &models.Latent{KVRank: 4, Nope: 2, Rope: 2, V: 4}
	experts := &models.Experts{Router: ops.Router{Experts: 2, TopK: 1, Sigmoid: true, Groups: 1, KeepGroups: 1, Scale: 1}, FFN: 4, Shared: 4, Bias: true, Dense: []bool{false}}
	for _, c := range []models.Config{
		{Type: "qwen3_moe", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4, QKNorm: true,
			Experts: &models.Experts{Router: ops.Router{Experts: 2, TopK: 1, Renormalize: true}, FFN: 4, Dense: []bool{false}}},
		{Type: "deepseek_v3", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4, Latent: latent, Experts: experts},
		{Type: "kimi_linear", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 4, Context: 16, NormEps: 1e-6, RopeTheta: 1e4, Latent: latent, Experts: experts,
			NoRope: []bool{true}, Delta: &models.Delta{Heads: 2, HeadDim: 4, Width: 2, Layers: []bool{true}}},
	} {
		m, err := models.New(c)
		require.NoError(f, err)
		require.NoError(f, m.Init(1))
		whole := ggufOf(m, nil)
		path := filepath.Join(f.TempDir(), "model.gguf")
		require.NoError(f, os.WriteFile(path, whole, 0o666))
		_, err = models.Open(path)
		require.NoError(f, err)
		f.Add(whole)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "model.gguf")
		require.NoError(t, os.WriteFile(path, raw, 0o666))
		if o, err := models.Open(path); err == nil {
			require.NoError(t, o.Close())
		}
	})
}
