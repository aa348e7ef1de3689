package generate

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/tokenizer/chat"
)

// Template opens the chat template of a model: the folder's, or the one in the
// header of its GGUF file.
func Template(o *models.Opened) (*chat.Template, error) {
	if o == nil {
		return nil, errors.New("generate: Template: the model is missing (nil)")
	}
	if o.Metadata == nil {
		return chat.Open(o.Path)
	}
	const key = "tokenizer.chat_template"
	source, err := o.Metadata.String(key)
	if err != nil {
		return nil, fmt.Errorf("generate: %s has no chat template: %w", o.Path, err)
	}
	tokens := map[string]string{}
	if o.Tokenizer != nil {
		s := o.Tokenizer.Special()
		for name, id := range map[string]int32{"bos_token": s.BOS, "eos_token": s.EOS, "unk_token": s.Unknown, "pad_token": s.Pad} {
			if token, ok := o.Tokenizer.IDToToken(id); ok {
				tokens[name] = token
			}
		}
	}
	t, err := chat.New(source, tokens)
	if err != nil {
		return nil, fmt.Errorf("generate: %s: %s: %w", o.Path, key, err)
	}
	return t, nil
}
