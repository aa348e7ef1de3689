package models_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
)

// TestOpeningMapsAndDoesNotRead opens a llama of 4 billion numbers in bf16, a
// file of 8 GB with holes for weights: measured 30 ms, most of it the graph that
// says what there must be. A weight is read when it is touched.
func TestOpeningMapsAndDoesNotRead(t *testing.T) {
	const layers, hidden, ffn, vocab, heads, kv, dim = 29, 3072, 12288, 32000, 24, 8, 128
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{
		"model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
		"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
		"hidden_act": "silu", "tie_word_embeddings": true,
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666))
	header, at := map[string]any{}, 0
	add := func(name string, shape ...int) {
		n := 2
		for _, d := range shape {
			n *= d
		}
		header[name] = map[string]any{"dtype": "BF16", "shape": shape, "data_offsets": []int{at, at + n}}
		at += n
	}
	add(table, vocab, hidden)
	add("model.norm.weight", hidden)
	for l := range layers {
		s := fmt.Sprintf("model.layers.%d.", l)
		add(s+"input_layernorm.weight", hidden)
		add(s+"post_attention_layernorm.weight", hidden)
		add(s+"self_attn.q_proj.weight", heads*dim, hidden)
		add(s+"self_attn.k_proj.weight", kv*dim, hidden)
		add(s+"self_attn.v_proj.weight", kv*dim, hidden)
		add(s+"self_attn.o_proj.weight", hidden, heads*dim)
		add(s+"mlp.gate_proj.weight", ffn, hidden)
		add(s+"mlp.up_proj.weight", ffn, hidden)
		add(s+"mlp.down_proj.weight", hidden, ffn)
	}
	require.Greater(t, at, 8_000_000_000)
	raw, err := json.Marshal(header)
	require.NoError(t, err)
	for len(raw)%8 != 0 {
		raw = append(raw, ' ')
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...))
	require.NoError(t, err)
	size := int64(8 + len(raw) + at)
	if err := f.Truncate(size); err != nil {
		require.NoError(t, f.Close())
		t.Skipf("skipped: the file system has no room for a sparse file of %d bytes: %v", size, err)
	}
	require.NoError(t, f.Close())
	var o *models.Opened
	took := time.Hour
	for range 3 { // the best of three, on a machine that may be busy
		start := time.Now()
		o, err = models.Open(dir)
		require.NoError(t, err)
		took = min(took, time.Since(start))
		defer o.Close()
	}
	t.Logf("%d bytes opened in %v", size, took)
	require.Less(t, took, time.Second)
	w := o.Params().Get("model.layers.28.mlp.down_proj.weight").Tensor().Bytes()
	require.Len(t, w, 2*hidden*ffn)
	require.Zero(t, w[len(w)-1])
}
