// The tokenizer of one model for another.

package models

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/tokenizer"
)

// besideModel are the files of a folder that say how its text is made, beside
// config.json and the weights.
var besideModel = []string{
	"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json",
}

// TokenizerFiles are the files of a model's tokenizer with its chat template, by
// name: those of a folder as they are, the header of a GGUF file as
// tokenizer.json and tokenizer_config.json. A model without a tokenizer has none.
func TokenizerFiles(path string) (map[string][]byte, error) {
	gguf, err := isGGUF(path)
	if err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	if gguf {
		files, err := ggufTokenizerFiles(path)
		if err != nil {
			return nil, fmt.Errorf("models: %s: %w", path, err)
		}
		return files, nil
	}
	files := map[string][]byte{}
	for _, name := range besideModel {
		switch text, err := tokenizer.ReadFile(filepath.Join(path, name)); {
		case err == nil:
			files[name] = text
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("models: %w", err)
		}
	}
	return files, nil
}

func ggufTokenizerFiles(path string) (files map[string][]byte, err error) {
	ck, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ck.Close()) }()
	m := ck.Metadata()
	if _, ok := m["tokenizer.ggml.model"]; !ok {
		return nil, nil
	}
	g, err := ggufTokenizer(m)
	if err != nil {
		return nil, err
	}
	files = map[string][]byte{}
	if files["tokenizer.json"], err = g.JSON(); err != nil {
		return nil, err
	}
	template := ""
	if _, ok := m[chatTemplateKey]; ok {
		if template, err = m.String(chatTemplateKey); err != nil {
			return nil, err
		}
	}
	files["tokenizer_config.json"], err = g.Config(template)
	return files, err
}

const chatTemplateKey = "tokenizer.chat_template"
