// tokenizer.json: the two spellings of merges (case T01), files that are wrong,
// added tokens, roles.

package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// edited returns the gpt2_style file with a change.
func edited(t testing.TB, change func(file, model map[string]any)) []byte {
	t.Helper()
	var file map[string]any
	readJSON(t, "testdata/gpt2_style/tokenizer.json", &file)
	change(file, file["model"].(map[string]any))
	data, err := json.Marshal(file)
	require.NoError(t, err)
	return data
}

func TestT01_MergesInBothSpellings(t *testing.T) {
	pairs, spaced := []any{}, []any{}
	data := edited(t, func(_, model map[string]any) {
		for _, m := range model["merges"].([]any) {
			pair, ok := m.([]any)
			if !ok {
				left, right, _ := strings.Cut(m.(string), " ")
				pair = []any{left, right}
			}
			pairs = append(pairs, pair)
			spaced = append(spaced, pair[0].(string)+" "+pair[1].(string))
		}
		model["merges"] = pairs
	})
	asPairs, err := FromJSON(data)
	require.NoError(t, err)
	asStrings, err := FromJSON(edited(t, func(_, model map[string]any) {
		model["merges"] = append([]any{"#version: 0.2"}, spaced...)
	}))
	require.NoError(t, err)
	text := sourceText(t, opticks, 0, 50000)
	ids := encode(t, asPairs, text, false)
	require.Equal(t, ids, encode(t, asStrings, text, false))
	require.Less(t, len(ids), len(text)/2)

	for _, none := range []any{[]any{}, nil} {
		_, err = FromJSON(edited(t, func(_, model map[string]any) { model["merges"] = none }))
		require.ErrorContains(t, err, "merges: at least one is required")
	}
}

func TestFilesThatAreWrong(t *testing.T) {
	type object = map[string]any
	component := func(name string, value any) func(file, model object) {
		return func(file, _ object) { file[name] = value }
	}
	model := func(name string, value any) func(file, model object) {
		return func(_, model object) { model[name] = value }
	}
	sequence := func(key string, value any) object { return object{"type": "Sequence", key: []any{value}} }
	for _, c := range []struct {
		want   string
		change func(file, model object)
	}{
		{`normalizer: type "Bert" is not supported`, component("normalizer", object{"type": "Bert"})},
		{`normalizer: Sequence: 0: type "Nmt"`, component("normalizer", sequence("normalizers", object{"type": "Nmt"}))},
		{`normalizer: Replace: pattern`, component("normalizer", object{"type": "Replace", "content": "x"})},
		{`pre_tokenizer: type "UnicodeScripts"`, component("pre_tokenizer", object{"type": "UnicodeScripts"})},
		{`pre_tokenizer: Sequence: 0: type "New"`, component("pre_tokenizer", sequence("pretokenizers", object{"type": "New"}))},
		{`pre_tokenizer: Split: behavior "Sideways"`, component("pre_tokenizer", object{"type": "Split", "behavior": "Sideways"})},
		{`pre_tokenizer: Split: regular expression`, component("pre_tokenizer", object{"type": "Split", "behavior": "Isolated", "pattern": object{"Regex": "("}})},
		{`pre_tokenizer: Metaspace: replacement`, component("pre_tokenizer", object{"type": "Metaspace", "replacement": ""})},
		{`pre_tokenizer: Metaspace: prepend_scheme "last"`, component("pre_tokenizer", object{"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})},
		{`pre_tokenizer: a component needs a type`, component("pre_tokenizer", object{})},
		{`post_processor: type "Roberta"`, component("post_processor", object{"type": "Roberta"})},
		{`post_processor: TemplateProcessing: single: "x" is not in special_tokens`, component("post_processor", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "x"}}}})},
		{`required the Sequence A once, got it 0 times`, component("post_processor", object{"type": "TemplateProcessing", "single": []any{}})},
		{`decoder: type "CTC"`, component("decoder", object{"type": "CTC"})},
		{`decoder: Strip: required one character`, component("decoder", object{"type": "Strip", "content": "ab"})},
		{`added_tokens: "x": id -4 is out of range`, component("added_tokens", []any{object{"id": -4, "content": "x"}})},
		{`cannot unmarshal`, component("added_tokens", 5)},
		{`model: required, but missing`, component("model", nil)},
		{`model: type "WordPiece" is not supported`, model("type", "WordPiece")},
		{`model: BPE: dropout 0.1`, model("dropout", 0.1)},
		{`model: BPE: unk_token "no" is not in vocab`, model("unk_token", "no")},
		{`model: BPE: vocab`, model("vocab", []any{1})},
		{`has the negative id -1`, model("vocab", object{"a": -1})},
		{`cannot unmarshal number 4294967296`, model("vocab", object{"a": 1 << 32})},
		{`BPE: merge 0 ("no", "pe"): both must be in vocab`, model("merges", []any{"no pe"})},
		{`merge 0: required two tokens, got 3`, model("merges", []any{[]any{"a", "b", "c"}})},
		{`merge 0: required two tokens and one space, got "a"`, model("merges", []any{"a"})},
		{`Unigram: vocab`, model("type", "Unigram")},
	} {
		_, err := FromJSON(edited(t, c.change))
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "tokenizer.json: ")
	}
	for _, text := range []string{"", "{", "[]", "null", "{}"} {
		_, err := FromJSON([]byte(text))
		require.Error(t, err, text)
	}
}

func TestHugeIDsCostNothing(t *testing.T) {
	data := edited(t, func(file, _ map[string]any) {
		file["added_tokens"] = []any{map[string]any{"id": 2147483646, "content": "<far>", "special": true}}
	})
	tok, err := FromJSON(data)
	require.NoError(t, err)
	require.Equal(t, []int32{2147483646}, encode(t, tok, "<far>", false))
	require.Equal(t, "<far>", tok.Decode([]int32{2147483646}, false))
}

func TestLiteralKeepsSpecialTokensOut(t *testing.T) {
	tok, err := Open("testdata/qwen_style")
	require.NoError(t, err)
	text := "a<|im_end|><think>b"
	end, _ := tok.TokenToID("<|im_end|>")
	think, _ := tok.TokenToID("<think>")
	require.Contains(t, encode(t, tok, text, false), end)
	ids, err := tok.Encode(text, EncodeOptions{Literal: true})
	require.NoError(t, err)
	require.NotContains(t, ids, end)
	require.Contains(t, ids, think) // added, not special
	require.Equal(t, text, tok.Decode(ids, true))
}

func TestRolesOfFolders(t *testing.T) {
	id := func(tok *Tokenizer, token string) int32 {
		id, ok := tok.TokenToID(token)
		require.True(t, ok)
		return id
	}
	llama, err := Open("testdata/llama3_style")
	require.NoError(t, err)
	require.Equal(t, SpecialIDs{
		BOS: id(llama, "<|begin_of_text|>"), EOS: id(llama, "<|eot_id|>"), Unknown: -1, Pad: -1,
		Stop: []int32{id(llama, "<|eot_id|>")},
	}, llama.Special())
	require.True(t, llama.IsSpecial(llama.Special().EOS))

	dir := t.TempDir()
	data, err := os.ReadFile("testdata/qwen_style/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"),
		[]byte(`{"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "bos_token": null}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": [2502, 2500, 999999]}`), 0o600))
	qwen, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, SpecialIDs{BOS: -1, EOS: 2502, Unknown: -1, Pad: 2500, Stop: []int32{2502, 2500}}, qwen.Special())

	for config, want := range map[string][]int32{
		`{"eos_token": "<|im_end|>", "add_eos_token": true}`:                               {87, 2502},
		`{"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "add_bos_token": true}`: {2500, 87},
		`{"bos_token": null, "add_bos_token": true}`:                                       {87},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o600))
		tok, err := Open(dir)
		require.NoError(t, err)
		require.Equal(t, want, encode(t, tok, "x", true), config)
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": "x"}`), 0o600))
	_, err = Open(dir)
	require.ErrorContains(t, err, "generation_config.json")
}

func TestOpenNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	require.ErrorContains(t, err, "required tokenizer.json or tokenizer.model")
	_, err = Open(filepath.Join(dir, "no"))
	require.ErrorContains(t, err, "no such file")
	path := filepath.Join(dir, "tokenizer.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"model": {"type": "WordLevel"}}`), 0o600))
	_, err = Open(dir)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "WordLevel")
}

func TestConcurrentUse(t *testing.T) {
	text := sourceText(t, opticks, 0, 30000)
	tok, err := Open("testdata/llama3_style")
	require.NoError(t, err)
	want := encode(t, tok, text, true)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 4 {
				ids, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
				if err != nil || hashIDs(ids) != hashIDs(want) || tok.Decode(ids, true) != text {
					t.Error("ids differ")
				}
			}
		})
	}
	wait.Wait()
}
