// Models that see images hold a model of text, which is what runs: the part that
// sees is left out.

package models

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// seeing are the types of models that see, with the type of the text model where
// text_config does not say it.
var seeing = map[string]string{"gemma3": "gemma3_text", "mistral3": "mistral"}

// textConfig is the config.json of the text model within one that sees. Ids,
// quantisation and the tie of table and head stand around it, or in it.
func textConfig(raw []byte, kind string) ([]byte, error) {
	var outer, text map[string]json.RawMessage
	if err := json.Unmarshal(raw, &outer); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(outer["text_config"], &text); err != nil || text == nil {
		return nil, fmt.Errorf("text_config of %s must be an object, got %.20s", kind, orNull(outer["text_config"]))
	}
	if text["model_type"] == nil {
		text["model_type"], _ = json.Marshal(seeing[kind]) // a string has a form
	}
	text["tie_word_embeddings"] = json.RawMessage("true") // unless the outer one says otherwise, whatever text_config has
	for _, key := range []string{"tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id"} {
		if v := outer[key]; orNull(v) != "null" {
			text[key] = v
		}
	}
	return json.Marshal(text)
}

func orNull(v json.RawMessage) string {
	if v == nil {
		return "null"
	}
	return string(v)
}

// naming is how a file begins the names of a model's tensors: those in it, and
// that of its head.
type naming struct{ model, head string }

var withinSeeing = naming{model: "model.language_model."}

// namings begin with what Save writes; then those of a model without a head, and of
// the text model within one that sees.
var namings = []naming{{model: modelScope}, {}, {"language_model.model.", "language_model."}, withinSeeing}

// namingOf is the one by which a file has a tensor, the usual one for none.
func namingOf(has func(n naming) bool) naming {
	if i := slices.IndexFunc(namings, has); i >= 0 {
		return namings[i]
	}
	return namings[0]
}

// inFile is the name in the file of a tensor.
func (n naming) inFile(name string) string {
	if rest, ok := strings.CutPrefix(name, modelScope); ok {
		return n.model + rest
	}
	return n.head + name
}

// ours is the way back.
func (n naming) ours(name string) string {
	if rest, ok := strings.CutPrefix(name, n.model); ok && (n.model != "" || name != headName) {
		return modelScope + rest
	}
	return strings.TrimPrefix(name, n.head)
}

// withinSeeing reports the files of a model that sees.
func (n naming) withinSeeing() bool { return strings.Contains(n.model, "language_model.") }

// sees reports a tensor of the part that sees.
func (n naming) sees(name string) bool {
	name = strings.TrimPrefix(name, modelScope)
	return n.withinSeeing() && (strings.HasPrefix(name, "vision_tower.") || strings.HasPrefix(name, "multi_modal_projector."))
}

// peftNaming is that of the adapters of a model.
func (m *Transformer) peftNaming() naming {
	if m.within {
		return withinSeeing
	}
	return namings[0]
}
