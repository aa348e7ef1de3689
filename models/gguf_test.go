package models_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
)

// ggufFile writes a GGUF file with float32 tensors.
type ggufFile struct {
	keys, tensors, data bytes.Buffer
	nKeys, nTensors     uint64
}

func (g *ggufFile) string(b *bytes.Buffer, s string) {
	binary.Write(b, binary.LittleEndian, uint64(len(s))) // a buffer never fails
	b.WriteString(s)
}

func (g *ggufFile) key(name string, v any) {
	kind := map[string]uint32{"uint32": 4, "float32": 6, "string": 8}[fmt.Sprintf("%T", v)]
	g.nKeys++
	g.string(&g.keys, name)
	binary.Write(&g.keys, binary.LittleEndian, kind)
	if s, ok := v.(string); ok {
		g.string(&g.keys, s)
		return
	}
	binary.Write(&g.keys, binary.LittleEndian, v)
}

func (g *ggufFile) tensor(name string, shape []int, data []float32) {
	g.nTensors++
	g.string(&g.tensors, name)
	binary.Write(&g.tensors, binary.LittleEndian, uint32(len(shape)))
	for i := range shape {
		binary.Write(&g.tensors, binary.LittleEndian, uint64(shape[len(shape)-1-i]))
	}
	binary.Write(&g.tensors, binary.LittleEndian, uint32(0))
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
	arch := map[string]string{"gemma3_text": "gemma3"}[c.Type]
	if arch == "" {
		arch = c.Type
	}
	g := &ggufFile{}
	g.key("general.architecture", arch)
	for key, v := range map[string]any{
		"embedding_length": uint32(c.Hidden), "feed_forward_length": uint32(c.FFN), "block_count": uint32(c.Layers), "context_length": uint32(c.Context),
		"attention.head_count": uint32(c.Heads), "attention.head_count_kv": uint32(c.KVHeads), "attention.key_length": uint32(c.HeadDim),
		"attention.layer_norm_rms_epsilon": float32(c.NormEps), "rope.freq_base": float32(c.RopeTheta),
	} {
		g.key(arch+"."+key, v)
	}
	if c.Window > 0 {
		g.key(arch+".attention.sliding_window", uint32(c.Window))
	}
	if c.RopeScale.Type == "linear" {
		g.key(arch+".rope.scaling.type", "linear")
		g.key(arch+".rope.scaling.factor", float32(c.RopeScale.Factor))
	}
	if edit != nil {
		edit(g)
	}
	names := strings.NewReplacer("model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output", "model.layers", "blk",
		"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output",
		"self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down",
		"input_layernorm", "attn_norm", "pre_feedforward_layernorm", "ffn_norm", "post_feedforward_layernorm", "post_ffw_norm",
		"post_attention_layernorm", map[bool]string{true: "ffn_norm", false: "post_attention_norm"}[arch != "gemma3" && arch != "olmo2"])
	for _, p := range m.Params().All() {
		w := graph.Data[float32](p.Tensor())
		out := append([]float32(nil), w...)
		switch turned := arch == "llama" || arch == "smollm3"; {
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
		case arch == "gemma3" && strings.HasSuffix(p.Name, "norm.weight"):
			for i := range out {
				out[i]++
			}
		}
		g.tensor(names.Replace(p.Name), p.Type.Shape, out)
	}
	return g.bytes()
}

// TestGGUFGivesTheModelOfTheFolder writes the goldens as GGUF and opens them.
func TestGGUFGivesTheModelOfTheFolder(t *testing.T) {
	for _, name := range []string{"llama_untied_bias", "qwen2", "qwen3", "olmo2", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			m, _, err := models.Load(filepath.Join("testdata/golden", name))
			require.NoError(t, err)
			if name == "gemma3" {
				// What no key of the form can say.
				m.Config.Scale, m.Config.Global = 0, nil
			}
			path := filepath.Join(t.TempDir(), "model.gguf")
			require.NoError(t, os.WriteFile(path, ggufOf(m, nil), 0o666))
			o, err := models.Open(path)
			require.NoError(t, err)
			require.Nil(t, o.Tokenizer)
			c := o.Config
			c.BOS, c.EOS, c.Pad = m.Config.BOS, m.Config.EOS, m.Config.Pad
			if name == "gemma3" {
				require.InDelta(t, 1/4.47213595499958, c.Scale, 1e-12, "1/sqrt(head_dim)")
				require.Equal(t, []bool{false, false, false, false}, c.Global, "every sixth layer sees everything")
				c.Scale, c.Global = 0, nil
			}
			require.Equal(t, m.Config, c)
			for i, p := range m.Params().All() {
				q := o.Params().All()[i]
				require.Equal(t, p.Name, q.Name)
				a, b := graph.Data[float32](p.Tensor()), graph.Data[float32](q.Tensor())
				if name == "gemma3" && strings.HasSuffix(p.Name, "norm.weight") {
					require.InDeltaSlice(t, a, b, 2e-7, p.Name) // 1 was added and taken away
					continue
				}
				require.Equal(t, a, b, p.Name)
			}
		})
	}
}

func TestGGUFRefusals(t *testing.T) {
	m, _, err := models.Load("testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "model.gguf")
	for want, edit := range map[string]func(*ggufFile){
		`llama.rope.dimension_count 10 is not supported (supported: 20)`:                 func(g *ggufFile) { g.key("llama.rope.dimension_count", uint32(10)) },
		`llama.expert_count 8 is not supported (supported: 0)`:                           func(g *ggufFile) { g.key("llama.expert_count", uint32(8)) },
		`llama.attention.sliding_window 9 is not supported (supported: 0)`:               func(g *ggufFile) { g.key("llama.attention.sliding_window", uint32(9)) },
		`llama.rope.scaling.type "ntk" is not supported (supported: none, linear, yarn)`: func(g *ggufFile) { g.key("llama.rope.scaling.type", "ntk") },
		`unexpected tensors: blk.0.extra.weight`:                                         func(g *ggufFile) { g.tensor("blk.0.extra.weight", []int{2}, []float32{1, 2}) },
	} {
		require.NoError(t, os.WriteFile(path, ggufOf(m, edit), 0o666))
		_, err := models.Open(path)
		require.ErrorContains(t, err, path+": ")
		require.ErrorContains(t, err, want)
	}
	g := &ggufFile{}
	g.key("general.architecture", "rwkv")
	require.NoError(t, os.WriteFile(path, g.bytes(), 0o666))
	_, err = models.Open(path)
	require.EqualError(t, err, `models: `+path+`: general.architecture "rwkv" is not supported (supported: gemma3, llama, olmo2, qwen2, qwen3, smollm3)`)
}

// FuzzOpenGGUF: whatever a GGUF file says, opening it does not panic.
func FuzzOpenGGUF(f *testing.F) {
	for _, kind := range []string{"llama", "qwen2", "gemma3_text"} {
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
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "model.gguf")
		require.NoError(t, os.WriteFile(path, raw, 0o666))
		if o, err := models.Open(path); err == nil {
			require.NoError(t, o.Close())
		}
	})
}
