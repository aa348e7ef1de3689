// GGUF metadata made of the golden files, against the goldens.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// ggufOf writes a tokenizer.json as GGUF metadata of the gpt2 kind.
func ggufOf(t *testing.T, path, pre string) GGUF {
	t.Helper()
	var file struct {
		AddedTokens []addedToken `json:"added_tokens"`
		Model       struct {
			Vocab  map[string]int
			Merges json.RawMessage
		}
	}
	readJSON(t, path, &file)
	size := len(file.Model.Vocab)
	for _, a := range file.AddedTokens {
		size = max(size, int(a.ID)+1)
	}
	g := GGUF{Model: "gpt2", Pre: pre, Tokens: make([]string, size), Types: make([]int32, size)}
	for token, id := range file.Model.Vocab {
		g.Tokens[id], g.Types[id] = token, int32(normalPiece)
	}
	for _, a := range file.AddedTokens {
		g.Tokens[a.ID], g.Types[a.ID] = a.Content, int32(userPiece)
		if a.Special {
			g.Types[a.ID] = int32(controlPiece)
		}
	}
	require.NoError(t, eachMerge(file.Model.Merges, func(left, right []byte) error {
		g.Merges = append(g.Merges, string(left)+" "+string(right))
		return nil
	}))
	return g
}

// sameAsGolden compares with the goldens of a folder; special: ids_special too.
func sameAsGolden(t *testing.T, tok *Tokenizer, folder string, special bool) {
	t.Helper()
	var g goldenFile
	readJSON(t, "testdata/"+folder+"/golden.json", &g)
	require.Equal(t, g.VocabSize, tok.VocabSize())
	for _, row := range g.Texts {
		if row.Source != nil {
			text := sourceText(t, row.Source.File, row.Source.Start, row.Source.End)
			require.Equal(t, row.IDsSHA256, hashIDs(encode(t, tok, text, false)), row.Name)
			continue
		}
		require.Equal(t, row.IDs, encode(t, tok, row.Text, false), row.Name)
		if special {
			require.Equal(t, row.IDsSpecial, encode(t, tok, row.Text, true), row.Name)
		}
		require.Equal(t, row.Decode, tok.Decode(row.IDs, false), row.Name)
		require.Equal(t, row.DecodeSkip, tok.Decode(row.IDs, true), row.Name)
	}
}

func TestGGUFByteLevel(t *testing.T) {
	g := ggufOf(t, "testdata/gpt2_style/tokenizer.json", "gpt-2")
	tok, err := FromGGUF(g)
	require.NoError(t, err)
	sameAsGolden(t, tok, "gpt2_style", true)
	sameAsGolden(t, savedGGUF(t, g), "gpt2_style", true)

	g = ggufOf(t, "testdata/qwen_style/tokenizer.json", "qwen2")
	eos := int32(2502)
	g.EOS, g.Stop = &eos, []int32{2500, 2502, -1}
	tok, err = FromGGUF(g)
	require.NoError(t, err)
	sameAsGolden(t, tok, "qwen_style", true)
	sameAsGolden(t, savedGGUF(t, g), "qwen_style", true)
	require.Equal(t, SpecialIDs{BOS: -1, EOS: 2502, Unknown: -1, Pad: -1, Stop: []int32{2502, 2500}}, tok.Special())

	g = ggufOf(t, "testdata/llama3_style/tokenizer.json", "llama-bpe")
	bos := int32(3000)
	g.BOS = &bos
	tok, err = FromGGUF(g)
	require.NoError(t, err)
	sameAsGolden(t, tok, "llama3_style", true)
	sameAsGolden(t, savedGGUF(t, g), "llama3_style", true)
	no := false
	g.AddBOS = &no
	tok, err = FromGGUF(g)
	require.NoError(t, err)
	require.Equal(t, encode(t, tok, "x", false), encode(t, tok, "x", true))
}

// TestGGUFOfGLM4: words are cut as llama3's, but none is taken whole before its merges.
func TestGGUFOfGLM4(t *testing.T) {
	tok, err := FromGGUF(ggufOf(t, "testdata/llama3_style/tokenizer.json", "glm4"))
	require.NoError(t, err)
	file, err := os.ReadFile("testdata/llama3_style/tokenizer.json")
	require.NoError(t, err)
	merged := bytes.Replace(file, []byte(`"ignore_merges": true`), []byte(`"ignore_merges": false`), 1)
	require.NotEqual(t, file, merged)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), merged, 0o600))
	want, err := Open(dir)
	require.NoError(t, err)
	var g goldenFile
	readJSON(t, "testdata/llama3_style/golden.json", &g)
	for _, row := range g.Texts {
		require.Equal(t, encode(t, want, row.Text, false), encode(t, tok, row.Text, false), row.Name)
		require.Equal(t, encode(t, want, row.Text, false), encode(t, tok, row.Text, true), row.Name) // nothing in front
	}
}

// savedGGUF is the tokenizer of the folder that a GGUF tokenizer is saved as.
func savedGGUF(t *testing.T, g GGUF) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	file, err := g.JSON()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), file, 0o600))
	config, err := g.Config("{{ messages }}")
	require.NoError(t, err)
	require.Contains(t, string(config), `"chat_template": "{{ messages }}"`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600))
	tok, err := Open(dir)
	require.NoError(t, err)
	want, err := FromGGUF(g)
	require.NoError(t, err)
	a, b := want.Special(), tok.Special()
	a.Stop, b.Stop = nil, nil // further ends are the model's config's
	require.Equal(t, a, b)
	return tok
}

func TestGGUFPreTokenizers(t *testing.T) {
	g := ggufOf(t, "testdata/gpt2_style/tokenizer.json", "")
	text := "It's 12345 PLACES in 你好ab Über-x\n\n  ok"
	for name := range ggufPres {
		g.Pre = name
		tok, err := FromGGUF(g)
		require.NoError(t, err, name)
		require.Equal(t, text, tok.Decode(encode(t, tok, text, false), false), name)
		require.Equal(t, encode(t, tok, text, true), encode(t, savedGGUF(t, g), text, true), name)
	}
	g.Pre = "smollm"
	tok, err := FromGGUF(g)
	require.NoError(t, err)
	require.Len(t, encode(t, tok, "12345", false), 5)
}

func TestGGUFSentencePiece(t *testing.T) {
	data, err := os.ReadFile("testdata/llama2_style/spm/tokenizer.model")
	require.NoError(t, err)
	m, err := parseSPModel(data)
	require.NoError(t, err)
	bos, eos := int32(1), int32(2)
	g := GGUF{Model: "llama", BOS: &bos, EOS: &eos}
	for place := range uint32(m.count) {
		g.Tokens, g.Scores, g.Types = append(g.Tokens, m.text(place)), append(g.Scores, m.weight(place)), append(g.Types, int32(m.kind(place)))
	}
	g.Types[0] = int32(controlPiece) // the converted file finds <unk> in a text
	g.Unknown = new(int32)
	tok, err := FromGGUF(g)
	require.NoError(t, err)
	sameAsGolden(t, tok, "llama2_style/legacy", true)
	saved := savedGGUF(t, g)
	sameAsGolden(t, saved, "llama2_style/legacy", true)
	for _, text := range []string{"a\xff\xc3b", "\xff", "\uFFFD\xe2\x82", "\xc3\xa9\xc3"} { // bytes that are no UTF-8
		require.Equal(t, encode(t, saved, text, false), encode(t, tok, text, false), "%q", text)
	}
	require.Equal(t, SpecialIDs{BOS: 1, EOS: 2, Unknown: 0, Pad: -1, Stop: []int32{2}}, tok.Special())

	pieces := []string{"<unk>", "</s>", "▁", "a", "b", "ab", "▁a"}
	scores := []float32{0, 0, -2, -3, -3, -4, -2.5}
	types := []int32{2, 3, 1, 1, 1, 1, 1}
	eos = 1
	tok, err = FromGGUF(GGUF{Model: "t5", Tokens: pieces, Scores: scores, Types: types, EOS: &eos})
	require.NoError(t, err)
	require.Equal(t, []int32{6, 4, 1, 6, 0, 3, 1}, encode(t, tok, "ab</s>axya", true))
	_, err = GGUF{Model: "t5", Tokens: pieces, Scores: scores, Types: types}.JSON()
	require.EqualError(t, err, `tokenizer: GGUF: tokenizer.ggml.model "t5" has no form as a tokenizer.json here (gpt2 and llama have)`)
	_, err = GGUF{Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a", "b", "ab", "a"}, Merges: []string{"a b"}}.JSON()
	require.ErrorContains(t, err, "holds each token once")
}

func TestGGUFNamesWhatIsWrong(t *testing.T) {
	far := int32(9)
	for want, g := range map[string]GGUF{
		"tokens: required":                  {Model: "gpt2"},
		`model "bert" is not supported`:     {Model: "bert", Tokens: []string{"a"}},
		`pre "" is not supported`:           {Model: "gpt2", Tokens: []string{"a"}},
		`pre "new" is not supported`:        {Model: "gpt2", Pre: "new", Tokens: []string{"a"}},
		"merges: at least one":              {Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a"}},
		`required two tokens and one space`: {Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a"}, Merges: []string{"aa"}},
		"both must be in vocab":             {Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a"}, Merges: []string{"a b"}},
		"token_type: required 1":            {Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a"}, Types: []int32{1, 1}},
		"bos_token_id: 9 is past":           {Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a"}, BOS: &far},
		"scores: required 1":                {Model: "llama", Tokens: []string{"a"}},
		"unknown_token_id":                  {Model: "llama", Tokens: []string{"a"}, Scores: []float32{0}},
		"form <0xNN>":                       {Model: "llama", Tokens: []string{"a"}, Scores: []float32{0}, Types: []int32{6}},
		"got 1":                             {Model: "llama", Tokens: []string{"<0x01>"}, Scores: []float32{0}, Types: []int32{6}},
		"precompiled_charsmap":              {Model: "t5", Tokens: []string{"a"}, Scores: []float32{0}, Types: []int32{2}, CharsMap: []byte{1}},
	} {
		_, err := FromGGUF(g)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "tokenizer: GGUF: ")
	}
}
