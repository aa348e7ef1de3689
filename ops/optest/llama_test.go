package optest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// llamaFile is the part of a config.json that LlamaConfig needs.
type llamaFile struct {
	Vocab        int     `json:"vocab_size"`
	Hidden       int     `json:"hidden_size"`
	Layers       int     `json:"num_hidden_layers"`
	Heads        int     `json:"num_attention_heads"`
	KVHeads      int     `json:"num_key_value_heads"`
	HeadDim      int     `json:"head_dim"`
	Eps          float64 `json:"rms_norm_eps"`
	MaxPositions float64 `json:"max_position_embeddings"`
	Window       int     `json:"sliding_window"`
	Rope         struct {
		Theta    float64 `json:"rope_theta"`
		Type     string  `json:"rope_type"`
		Factor   float64 `json:"factor"`
		Low      float64 `json:"low_freq_factor"`
		High     float64 `json:"high_freq_factor"`
		Original float64 `json:"original_max_position_embeddings"`
	} `json:"rope_parameters"`
}

func (f llamaFile) config() LlamaConfig {
	if f.HeadDim == 0 {
		f.HeadDim = f.Hidden / f.Heads
	}
	return LlamaConfig{
		Hidden: f.Hidden, Layers: f.Layers, Heads: f.Heads, KVHeads: f.KVHeads, HeadDim: f.HeadDim,
		Eps: f.Eps, Theta: f.Rope.Theta, Window: f.Window,
		Rope: RopeScaling{Type: f.Rope.Type, Factor: f.Rope.Factor, LowFreqFactor: f.Rope.Low, HighFreqFactor: f.Rope.High,
			Original: f.Rope.Original, MaxPositions: f.MaxPositions},
	}
}

// Logits, losses, greedy tokens and every gradient norm of the llama-type
// checkpoints. Measured: logits within 9e-6 of what the files hold, whose own
// float32 error is 1.7e-5 or less.
func TestLlama_Golden(t *testing.T) {
	for _, model := range []string{"llama_untied_bias", "llama3", "mistral", "qwen2", "qwen3"} {
		t.Run(model, func(t *testing.T) {
			var f llamaFile
			g, weights := openGolden(t, model, &f)
			require.Len(t, g.Prompts, 3)
			g.holds(t, weights, f.Vocab, func(tape *Tape, ids []int32) *Value { return Llama(tape, f.config(), ids) })
		})
	}
}
