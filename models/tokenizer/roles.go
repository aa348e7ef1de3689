// Roles of special tokens, from the configuration files of a model folder.

package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// tokenName is a token as configurations write it: a string, or an object
// with its content.
type tokenName string

func (n *tokenName) UnmarshalJSON(data []byte) error {
	var object struct{ Content string }
	if len(data) > 0 && data[0] == '{' {
		err := json.Unmarshal(data, &object)
		*n = tokenName(object.Content)
		return err
	}
	return json.Unmarshal(data, (*string)(n))
}

// idList is one id or a list of them.
type idList []int32

func (l *idList) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		return json.Unmarshal(data, (*[]int32)(l))
	}
	var id *int32
	if err := json.Unmarshal(data, &id); err != nil || id == nil {
		return err
	}
	*l = []int32{*id}
	return nil
}

// surrounder is an encoder whose template can be replaced while it is opened.
type surrounder interface {
	surround(before, after []int32)
}

// roleIDs is the part of a template that one special token fills.
func roleIDs(id int32, wanted bool) []int32 {
	if id < 0 || !wanted {
		return nil
	}
	return []int32{id}
}

// readRoles fills SpecialIDs from tokenizer_config.json and
// generation_config.json, where these exist. If the former says add_bos_token
// or add_eos_token, that replaces the template, as transformers 5 has it.
func (t *Tokenizer) readRoles(dir string) error {
	var names struct {
		BOS tokenName `json:"bos_token"`
		EOS tokenName `json:"eos_token"`
		Unk tokenName `json:"unk_token"`
		Pad tokenName `json:"pad_token"`

		AddBOS *bool `json:"add_bos_token"`
		AddEOS *bool `json:"add_eos_token"`
	}
	if err := readConfig(dir, "tokenizer_config.json", &names); err != nil {
		return err
	}
	for _, role := range []struct {
		id   *int32
		name tokenName
	}{
		{&t.special.BOS, names.BOS}, {&t.special.EOS, names.EOS},
		{&t.special.Unknown, names.Unk}, {&t.special.Pad, names.Pad},
	} {
		if id, ok := t.vocab.id(string(role.name)); ok && role.name != "" {
			*role.id = id
		}
	}
	if names.AddBOS != nil || names.AddEOS != nil {
		t.enc.(surrounder).surround(
			roleIDs(t.special.BOS, orDefault(names.AddBOS, false)),
			roleIDs(t.special.EOS, orDefault(names.AddEOS, false)))
	}
	var generation struct {
		EOS idList `json:"eos_token_id"`
	}
	if err := readConfig(dir, "generation_config.json", &generation); err != nil {
		return err
	}
	for _, id := range append([]int32{t.special.EOS}, generation.EOS...) {
		t.addStop(id)
	}
	return nil
}

func (t *Tokenizer) addStop(id int32) {
	if _, ok := t.vocab.token(id); ok && !slices.Contains(t.special.Stop, id) {
		t.special.Stop = append(t.special.Stop, id)
	}
}

// readConfig reads a file of the folder into v; a missing file reads nothing.
func readConfig(dir, name string, v any) error {
	data, err := ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
