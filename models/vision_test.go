package models_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
)

const seeingDir = "../variants/gemma3_vision"

// TestTextOfAModelThatSees: each way to name the tensors gives one text model, which
// keeps its names in adapters, and says what is left out.
func TestTextOfAModelThatSees(t *testing.T) {
	ids := []int32{1, 5, 9, 2, 7, 33}
	want, report, err := models.Load(filepath.Join("testdata/golden", seeingDir))
	require.NoError(t, err)
	require.Equal(t, "gemma3_text", want.Config.Type)
	require.Equal(t, []int32{1, 5}, want.Config.EOS)
	require.False(t, want.Config.Tied)
	require.Len(t, report.Sight, 34)
	require.Contains(t, report.Sight, "multi_modal_projector.mm_soft_emb_norm.weight")
	require.Empty(t, report.Ignored)

	newer := altered(t, seeingDir, each(func(e checkpoint.Entry) []checkpoint.Entry {
		if rest, ok := strings.CutPrefix(e.Name, "language_model.model."); ok {
			e.Name = "model.language_model." + rest
		} else if e.Name = strings.TrimPrefix(e.Name, "language_model."); e.Name != head {
			e.Name = "model." + e.Name
		}
		return []checkpoint.Entry{e}
	}), nil)
	m, again, err := models.Load(newer)
	require.NoError(t, err)
	require.Len(t, again.Sight, 34)
	require.Equal(t, runLogits(t, want, ids), runLogits(t, m, ids))

	// Adapters have the names of the model that sees, and are opened on either.
	ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 2}, 1)
	require.NoError(t, err)
	for _, p := range ad.Params().All() {
		if strings.HasSuffix(p.Name, "lora_B.weight") {
			fill(p, 1)
		}
	}
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, ad.Save(dir))
	ck, err := checkpoint.Open(filepath.Join(dir, "adapter_model.safetensors"))
	require.NoError(t, err)
	defer ck.Close()
	_, ok := ck.Lookup("base_model.model.model.language_model.layers.1.mlp.up_proj.lora_B.weight")
	require.True(t, ok)
	merged, err := ad.Merge()
	require.NoError(t, err)
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, merged.Save(text))
	plain, _, err := models.Load(text)
	require.NoError(t, err)
	require.Equal(t, runLogits(t, merged, ids), runLogits(t, plain, ids))
	back, err := want.OpenAdapter(dir)
	require.NoError(t, err)
	require.Equal(t, adaptedLogits(t, ad, ids), adaptedLogits(t, back, ids))
}

// TestConfigsOfModelsThatSee reads what published ones leave out.
func TestConfigsOfModelsThatSee(t *testing.T) {
	c, err := models.ParseConfig(strings.NewReader(`{"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {"hidden_size": 2560,
		"intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}}`))
	require.NoError(t, err)
	require.True(t, c.Tied)
	require.Equal(t, [6]int{262208, 2560, 34, 8, 4, 256}, [6]int{c.Vocab, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim})
	require.Equal(t, [4]int{1024, 1024, 0, 1024}, [4]int{c.WindowOf(0), c.WindowOf(4), c.WindowOf(5), c.WindowOf(6)})
	require.Equal(t, [3]float64{1e6, 1e4, 8}, [3]float64{c.RopeTheta, c.LocalTheta, c.RopeScale.Factor})
	require.Equal(t, []int32{1, 106}, c.EOS)
	for text, want := range map[string]string{
		`{"model_type": "gemma3"}`:                                          "text_config of gemma3 must be an object, got null",
		`{"model_type": "gemma3", "text_config": [1]}`:                      "text_config of gemma3 must be an object, got [1]",
		`{"model_type": "gemma3", "text_config": {"model_type": "gemma3"}}`: `model_type "gemma3" is not supported (supported: ` + strings.Join(models.Types(), ", ") + ")",
	} {
		_, err := models.ParseConfig(strings.NewReader(text))
		require.EqualError(t, err, want)
	}
	outer := config(t, seeingDir)
	outer["quantization_config"] = map[string]any{"quant_method": "gptq"}
	_, err = parse(t, outer)
	require.EqualError(t, err, `quantization_config: quant_method "gptq" is not supported (supported: fp8, fbgemm_fp8, compressed-tensors)`)
}
