// Opening what is no tokenizer, or one of another kind.

package tokenizer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOtherKindsAreNamed(t *testing.T) {
	for name, want := range map[string]string{
		"config.json":     "required tokenizer.json or tokenizer.model, found neither",
		"vocab.txt":       "vocab.txt is a tokenizer of a kind that is not supported: required tokenizer.json or tokenizer.model",
		"qwen.tiktoken":   "qwen.tiktoken is a tokenizer of a kind that is not supported: required tokenizer.json or tokenizer.model",
		"tokenizer.model": "tokenizer.model: a list of ranks (tiktoken) is not supported: required a SentencePiece model",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("IQ== 0\nIg== 1\n"), 0o600))
		_, err := Open(dir)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, dir)
	}
}

func TestFolderInPlaceOfAFile(t *testing.T) {
	for _, name := range []string{"tokenizer.json", "tokenizer.model"} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		_, err := Open(dir)
		require.ErrorContains(t, err, filepath.Join(dir, name)+": required a regular file, this is d")
	}
}

func TestFileTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 1<<31)) // a hole
	_, err := Open(path)
	require.EqualError(t, err, "tokenizer: "+path+": at most 1073741824 bytes are read, this file has 2147483648")
}

// An added token of which the normalizer leaves nothing is shown as nothing, as the
// library has it, and never found: there it cuts ASCII text at each character and
// panics on other text.
func TestAddedTokenOfNothing(t *testing.T) {
	tok, err := FromJSON([]byte(`{"model":{"type":"BPE","merges":["a b"],"vocab":{"a":0,"b":1,"ab":2}},
		"normalizer":{"type":"Replace","pattern":{"String":"z"},"content":""},
		"added_tokens":[{"id":3,"content":"z","normalized":true},{"id":4,"content":"zz","normalized":true,"special":true}]}`))
	require.NoError(t, err)
	require.Equal(t, []int32{2}, encode(t, tok, "azzb", false))
	require.Equal(t, "ab  ", tok.Decode([]int32{2, 4, 3}, true))
	shown, ok := tok.IDToToken(3)
	require.True(t, ok)
	require.Empty(t, shown)
	require.Equal(t, 5, tok.VocabSize())
}

// TestATokenizerThatIsMissingHasNoTokens: models.Opened has none where the files
// of a model have none.
func TestATokenizerThatIsMissingHasNoTokens(t *testing.T) {
	for _, none := range []*Tokenizer{nil, {}} {
		_, err := none.Encode("a", EncodeOptions{})
		require.EqualError(t, err, "tokenizer: encode: the tokenizer is missing: Open makes one")
		require.Empty(t, none.Decode([]int32{0, 1, -1}, true))
		s := none.Stream(false)
		require.Empty(t, s.Push(0)+s.Push(-1)+s.Flush())
		require.Zero(t, none.VocabSize())
		_, ok := none.TokenToID("a")
		require.False(t, ok)
		_, ok = none.IDToToken(0)
		require.False(t, ok)
		require.False(t, none.IsSpecial(0))
		require.Equal(t, SpecialIDs{BOS: -1, EOS: -1, Unknown: -1, Pad: -1}, none.Special())
	}
}
