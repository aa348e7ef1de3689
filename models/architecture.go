// The table of model types.

package models

import (
	"maps"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
)

// architecture is what differs between the model types. Each type has a file
// with its name.
type architecture struct {
	class string // in "architectures" of config.json

	defaults func() file // values of the keys that config.json may leave out

	// read takes from config.json what the type alone knows, and refuses
	// values it cannot follow; write is the way back.
	read  func(f *file, c *Config) error
	write func(f *file, c *Config)

	layer func(l *layer, x *graph.Node) *graph.Node // x [...,Hidden] to the same

	// onDisk lists the tensors that make up a parameter, and other is a second
	// name that a file may have for a tensor; nil: as everywhere.
	onDisk func(c *Config, name string) []string
	other  func(name string) string

	gelu       bool                    // the gated unit is GeGLU with tanh, else SwiGLU
	wholeNorm  bool                    // the norms of q and k are over all heads at once
	unitNorm   bool                    // norms multiply by 1 + weight
	partial    bool                    // the front of a head alone may turn
	neighbours bool                    // pairs that turn are neighbours, else a head's halves
	embedScale func(c *Config) float64 // what the rows of the table are multiplied by; nil: nothing

	gguf *ggufForm // how GGUF files spell the type; nil: they do not have it
}

var architectures = map[string]*architecture{
	"llama":       &llama,
	"mistral":     &mistral,
	"qwen2":       &qwen2,
	"qwen3":       &qwen3,
	"gemma":       &gemma,
	"gemma2":      &gemma2,
	"gemma3_text": &gemma3,
	"glm":         &glm,
	"glm4":        &glm4,
	"gpt_oss":     &gptOSS,
	"granite":     &granite,
	"ministral":   &ministral,
	"ministral3":  &ministral3,
	"mixtral":     &mixtral,
	"olmo3":       &olmo3,
	"phi3":        &phi3,
	"olmo2":       &olmo2,
	"smollm3":     &smollm3,
	"kimi_linear": &kimiLinear,
	"qwen2_moe":   &qwen2Moe,
	"qwen3_moe":   &qwen3Moe,
	"deepseek_v3": &deepseek3,
}

// Types lists the supported values of model_type, sorted: those of models of text.
// Of models that see images (gemma3, mistral3) the text model within them runs.
func Types() []string { return slices.Sorted(maps.Keys(architectures)) }

func supportedTypes() string { return strings.Join(Types(), ", ") }
