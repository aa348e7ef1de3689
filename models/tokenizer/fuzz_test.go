// Fuzz targets: hostile files neither panic nor make the loader allocate out
// of proportion, and byte-level tokenizers give every text back.

package tokenizer

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// exercise runs a tokenizer over texts and ids.
func exercise(t *testing.T, tok *Tokenizer, streams bool) {
	for _, text := range []string{"", "a", " ab  Ab\n12é🙂<s>x", "\xff\xc3(", "▁a b", strings.Repeat("ab ", 40)} {
		for _, o := range []EncodeOptions{{}, {AddSpecial: true, Literal: true}} {
			ids, err := tok.Encode(text, o)
			if err != nil {
				continue
			}
			decoded := tok.Decode(ids, false)
			pieces, rest := streamed(tok, ids)
			if streams {
				require.Equal(t, decoded, strings.Join(pieces, "")+rest)
			}
		}
	}
	tok.Decode([]int32{-1, 0, 1, 2, 3, 4, 5, 1 << 30, math.MaxInt32}, true)
}

// tinyFiles are tokenizer.json files of a few tokens with many components.
func tinyFiles(t testing.TB) []string {
	type object = map[string]any
	bpe := object{
		"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
		"vocab":  object{"<unk>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "▁a": 5, "<0xC3>": 6, "<0xA9>": 7},
		"merges": []any{"a b", "▁ a"},
	}
	unigram := object{
		"type": "Unigram", "unk_id": 0, "byte_fallback": true,
		"vocab": []any{[]any{"<unk>", 0}, []any{"▁", -2.0}, []any{"a", -3.0}, []any{"▁ab", -1.5}, []any{"b", -2.5}},
	}
	bytesVocab := object{}
	for b := range 256 {
		bytesVocab[byteChar[b]] = b
	}
	bytesVocab["ab"] = 256
	byteLevelBPE := object{"type": "BPE", "ignore_merges": true, "vocab": bytesVocab, "merges": []any{[]any{"a", "b"}}}
	added := []any{
		object{"id": 9, "content": "<s>", "special": true, "lstrip": true, "rstrip": true},
		object{"id": 10, "content": "Ab", "normalized": true, "single_word": true},
	}
	regex := object{"Regex": `(?i:x)|\p{L}++|\s+(?!\S)`}
	template := object{
		"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>"}}, object{"Sequence": object{"id": "A"}}},
		"special_tokens": object{"<s>": object{"ids": []any{9}}},
	}
	var files []string
	for _, file := range []object{
		{"model": bpe, "added_tokens": added,
			"normalizer": object{"type": "Sequence", "normalizers": []any{object{"type": "NFKC"}, object{"type": "Prepend", "prepend": "▁"},
				object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}}},
			"decoder": object{"type": "Sequence", "decoders": []any{object{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "},
				object{"type": "ByteFallback"}, object{"type": "Fuse"}, object{"type": "Strip", "content": " ", "start": 1, "stop": 0}}}},
		{"model": unigram, "added_tokens": added, "post_processor": template,
			"pre_tokenizer": object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
			"decoder":       object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}},
		{"model": byteLevelBPE, "post_processor": object{"type": "Sequence", "processors": []any{object{"type": "ByteLevel"}}},
			"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []any{
				object{"type": "Split", "pattern": regex, "behavior": "MergedWithNext", "invert": true},
				object{"type": "Digits", "individual_digits": true}, object{"type": "Punctuation", "behavior": "Contiguous"},
				object{"type": "ByteLevel", "add_prefix_space": true}}},
			"decoder": object{"type": "ByteLevel"}},
		{"model": bpe, "pre_tokenizer": object{"type": "Whitespace"}, "normalizer": object{"type": "Strip", "strip_left": true}},
	} {
		data, err := json.Marshal(file)
		require.NoError(t, err)
		files = append(files, string(data))
	}
	return files
}

func FuzzTokenizerJSON(f *testing.F) {
	for _, file := range tinyFiles(f) {
		f.Add([]byte(file))
	}
	shortenMatches(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var tok *Tokenizer
		var err error
		boundedMemory(t, len(data), func() { tok, err = FromJSON(data) })
		if err != nil {
			return
		}
		exercise(t, tok, !strings.Contains(string(data), "Fallback"))
	})
}

// shortenMatches ends what backtracks without end earlier.
func shortenMatches(t testing.TB) {
	was := matchTime
	matchTime = 100 * time.Millisecond
	t.Cleanup(func() { matchTime = was })
}

func TestBacktrackingEnds(t *testing.T) {
	shortenMatches(t)
	for name, component := range map[string]string{
		"pre_tokenizer": `{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(x+x+)+y"}}`,
		"normalizer":    `{"type":"Replace","pattern":{"Regex":"(x+x+)+y"},"content":"z"}`,
	} {
		tok, err := FromJSON([]byte(`{"model":{"type":"BPE","vocab":{"x":0,"xx":1},"merges":["x x"]},"` + name + `":` + component + `}`))
		require.NoError(t, err)
		_, err = tok.Encode(strings.Repeat("x", 50), EncodeOptions{})
		require.ErrorContains(t, err, "tokenizer: encode: ")
		require.ErrorContains(t, err, "match timeout")
	}
}

func TestTinyFilesLoad(t *testing.T) {
	for _, file := range tinyFiles(t) {
		tok, err := FromJSON([]byte(file))
		require.NoError(t, err)
		exercise(t, tok, true)
	}
}

// protoMessage writes fields: uint64 as a varint, float32 fixed, strings and
// messages with their length.
func protoMessage(fields ...any) []byte {
	var out []byte
	for i := 0; i < len(fields); i += 2 {
		number := uint64(fields[i].(int)) << 3
		switch v := fields[i+1].(type) {
		case int:
			out = binary.AppendUvarint(binary.AppendUvarint(out, number), uint64(v))
		case float64:
			out = binary.LittleEndian.AppendUint32(binary.AppendUvarint(out, number|5), math.Float32bits(float32(v)))
		case string:
			out = append(binary.AppendUvarint(binary.AppendUvarint(out, number|2), uint64(len(v))), v...)
		case []byte:
			out = append(binary.AppendUvarint(binary.AppendUvarint(out, number|2), uint64(len(v))), v...)
		}
	}
	return out
}

func tinyModels() [][]byte {
	piece := func(text string, score float64, kind int) []byte { return protoMessage(1, text, 2, score, 3, kind) }
	pieces := []any{1, piece("<unk>", 0, 2), 1, piece("<s>", 0, 3), 1, piece("<u>", 0, 4),
		1, piece("▁", -2, 1), 1, piece("a", -3, 1), 1, piece("b", -3, 1), 1, piece("ab", -1, 1), 1, piece("▁ab", -1.5, 1)}
	with := func(trainer, normalizer []byte) []byte {
		return append(protoMessage(pieces...), protoMessage(2, trainer, 3, normalizer)...)
	}
	// A character map of one entry, A to a: in the double array the root at 0
	// with its children at offset 1, A at 1^'A', its value at 'A'.
	units := make([]byte, 4*('A'+2))
	binary.LittleEndian.PutUint32(units, 1<<10)
	binary.LittleEndian.PutUint32(units[4*(1^'A'):], 'A'|1<<8|1<<10)
	binary.LittleEndian.PutUint32(units[4*'A':], 1<<31)
	charsMap := append(binary.LittleEndian.AppendUint32(nil, uint32(len(units))), units...)
	charsMap = append(charsMap, "a\x00"...)
	return [][]byte{
		with(protoMessage(3, 1), protoMessage(3, 1)),
		with(protoMessage(3, 2, 24, 1, 44, "?"), protoMessage(3, 1, 4, 0)),
		with(protoMessage(3, 1), protoMessage(2, charsMap, 5, 0)),
	}
}

func TestTinyModelsLoad(t *testing.T) {
	for i, data := range tinyModels() {
		tok, err := FromSentencePiece(data)
		require.NoError(t, err, i)
		exercise(t, tok, true)
	}
	tok, err := FromSentencePiece(tinyModels()[2])
	require.NoError(t, err)
	require.Equal(t, encode(t, tok, "aab", false), encode(t, tok, "AAb", false))
}

func TestModelsThatAreWrong(t *testing.T) {
	piece := func(text string, kind int) []byte { return protoMessage(1, text, 3, kind) }
	for want, data := range map[string][]byte{
		"pieces: at least one":             {},
		"no field tag":                     {0x00},
		"wire type 7":                      {0x0F},
		"required 200 bytes, 1 left":       {0x0A, 0xC8, 0x01, 0x00},
		"required one piece of type UNKN":  protoMessage(1, piece("a", 1)),
		`"a" is there already`:             protoMessage(1, piece("a", 1), 1, piece("a", 1)),
		"type 9 is unknown":                protoMessage(1, piece("a", 9)),
		"a byte piece needs byte_fallback": protoMessage(1, piece("<0x01>", 6)),
		"256 byte pieces, got 0":           protoMessage(1, piece("u", 2), 2, protoMessage(35, 1)),
		"model_type 3 is not supported":    protoMessage(2, protoMessage(3, 3)),
		"required text":                    protoMessage(1, piece("", 1)),
		"trie of 255 bytes":                protoMessage(3, protoMessage(2, []byte{255, 0, 0, 0, 0})),
		"denormalizer_spec":                protoMessage(5, protoMessage(2, "x")),
		"type UNUSED is not supported":     protoMessage(1, piece("u", 2), 1, piece("x", 5), 2, protoMessage(3, 2)),
	} {
		_, err := FromSentencePiece(data)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "tokenizer.model: ")
	}
}

func FuzzSentencePiece(f *testing.F) {
	for _, data := range tinyModels() {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var tok *Tokenizer
		var err error
		boundedMemory(t, len(data), func() { tok, err = FromSentencePiece(data) })
		if err == nil {
			exercise(t, tok, true)
		}
	})
}

// FuzzGGUF takes lines as tokens, with a letter for the type of each, and as merges.
func FuzzGGUF(f *testing.F) {
	const llama, gpt2 = "<unk>\n<s>\n▁\na\nb\nab\n▁a", "a\nb\nab\nĠ\nĠa\n<s>"
	for _, model := range []string{"llama", "t5", "gpt2"} {
		f.Add(model, "default", llama, "cdbbbbb", "a b", "abcdefg", int32(0))
		f.Add(model, "qwen2", gpt2, "bbbbbd", "a b\nĠ a", "zzzzzz", int32(-1))
	}
	f.Fuzz(func(t *testing.T, model, pre, tokens, types, merges, scores string, unknown int32) {
		g := GGUF{Model: model, Pre: pre, Tokens: strings.Split(tokens, "\n"), Merges: strings.Split(merges, "\n"), Unknown: &unknown}
		for i := range types {
			g.Types = append(g.Types, int32(types[i])-'a')
		}
		for i := range scores {
			g.Scores = append(g.Scores, [...]float32{-1, -2, float32(math.NaN()), float32(math.Inf(-1))}[scores[i]%4]*float32(scores[i]))
		}
		if tok, err := FromGGUF(g); err == nil {
			exercise(t, tok, false)
		}
	})
}

// FuzzByteLevelRoundTrip holds that any text comes back from ids, in one piece
// and streamed, and that ids do not depend on what was encoded before.
func FuzzByteLevelRoundTrip(f *testing.F) {
	var tokens []*Tokenizer
	for _, folder := range []string{"gpt2_style", "llama3_style"} {
		tok, err := Open(filepath.Join("testdata", folder, "tokenizer.json"))
		require.NoError(f, err)
		tokens = append(tokens, tok)
	}
	for _, s := range []string{"", "plain text", "é🙂\r\n\t 12345", "it's 'ſ", "\xff\xfe", strings.Repeat(" a", 100), "<|eot_id|>x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, tok := range tokens {
			ids := encode(t, tok, text, false)
			require.Equal(t, ids, encode(t, tok, text, false))
			decoded := tok.Decode(ids, false)
			if utf8.ValidString(text) {
				require.Equal(t, text, decoded)
			}
			pieces, rest := streamed(tok, ids)
			require.Equal(t, decoded, strings.Join(pieces, "")+rest)
			literal, err := tok.Encode(text, EncodeOptions{Literal: true})
			require.NoError(t, err)
			require.Equal(t, decoded, tok.Decode(literal, false))
		}
	})
}

func TestNestingIsBounded(t *testing.T) {
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 1000) + strings.Repeat(`]}`, 1000)
	data := []byte(`{"normalizer":` + deep + `,"model":{}}`)
	boundedMemory(t, len(data), func() {
		_, err := FromJSON(data)
		require.ErrorContains(t, err, "normalizer: nested deeper than 32")
	})
	_, err := compile(strings.Repeat("a", maxPattern+1))
	require.ErrorContains(t, err, "at most")
}

func TestOpenReadsModelFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.model"), tinyModels()[0], 0o600))
	tok, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 8, tok.VocabSize())
}
