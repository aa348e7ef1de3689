// The byte tokenizer and streaming over it (case T03).

package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestByteKeepsEveryByte(t *testing.T) {
	tok := Byte()
	require.Equal(t, 256, tok.VocabSize())
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, text := range []string{"", "plain", "héllo 🙂", string(all)} {
		ids, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
		require.NoError(t, err)
		require.Len(t, ids, len(text))
		require.Equal(t, text, tok.Decode(ids, false))
	}
	require.Equal(t, "ab", tok.Decode([]int32{'a', 256, -1, 1 << 30, 'b'}, true))
	id, ok := tok.TokenToID("a")
	require.True(t, ok)
	require.EqualValues(t, 'a', id)
	token, ok := tok.IDToToken(0xE9)
	require.True(t, ok)
	require.Equal(t, "\xe9", token)
	require.Equal(t, SpecialIDs{BOS: -1, EOS: -1, Unknown: -1, Pad: -1}, tok.Special())
}

// streamed returns the piece of each byte and of Flush.
func streamed(tok *Tokenizer, ids []int32) (pieces []string, rest string) {
	s := tok.Stream(false)
	pieces = []string{}
	for _, id := range ids {
		pieces = append(pieces, s.Push(id))
	}
	return pieces, s.Flush()
}

func TestT03_StreamHoldsPartsOfACharacter(t *testing.T) {
	for _, c := range []struct {
		text   string
		pieces []string
		rest   string
	}{
		{"a\x85", []string{"a", "\uFFFD"}, ""},
		{"🙂!", []string{"", "", "", "🙂", "!"}, ""},
		{"\xf0\x9f\x99", []string{"", "", ""}, "\uFFFD"},
		{"\xf0\x9fa", []string{"", "", "\uFFFDa"}, ""},
		{"\xe4\xbd\xe4\xbd\xa0", []string{"", "", "\uFFFD", "", "你"}, ""},
		{"\xed\xa0\x80", []string{"", "", "\uFFFD\uFFFD\uFFFD"}, ""},
		{"\xed\xa0", []string{"", ""}, "\uFFFD\uFFFD"},
		{"\xf4\x90", []string{"", "\uFFFD\uFFFD"}, ""},
		{"\xc0\xaf", []string{"\uFFFD", "\uFFFD"}, ""},
		{"\u0085", []string{"", "\u0085"}, ""},
	} {
		tok := Byte()
		ids, err := tok.Encode(c.text, EncodeOptions{})
		require.NoError(t, err)
		pieces, rest := streamed(tok, ids)
		require.Equal(t, c.pieces, pieces, "%q", c.text)
		require.Equal(t, c.rest, rest, "%q", c.text)
	}
}

func TestStreamStartsAgainAfterFlush(t *testing.T) {
	s := Byte().Stream(false)
	require.Empty(t, s.Push(0xE4))
	require.Equal(t, "\uFFFD", s.Flush())
	require.Equal(t, "", s.Flush())
	require.Equal(t, "x", s.Push('x'))
}

// FuzzByteStream holds that any bytes stream as valid UTF-8, that valid text
// comes back unchanged, and that invalid text becomes what the maximal-subpart
// rule says, computed here from the other end: by trying every length.
func FuzzByteStream(f *testing.F) {
	for _, s := range []string{"", "a\x85", "🙂", "\xf0\x9f\x99a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\xaf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tok := Byte()
		ids, err := tok.Encode(text, EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, text, tok.Decode(ids, false))
		pieces, rest := streamed(tok, ids)
		for _, p := range append(pieces, rest) {
			require.True(t, utf8.ValidString(p), "%q", p)
		}
		require.Equal(t, lossy(text), strings.Join(pieces, "")+rest)
	})
}

// lossy replaces each maximal subpart by U+FFFD: the longest prefix that some
// continuation makes a character, or one byte.
func lossy(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		if r, n := utf8.DecodeRuneInString(text); r != utf8.RuneError || n > 1 {
			out.WriteString(text[:n])
			text = text[n:]
			continue
		}
		n := 1
		for k := 2; k <= 3 && k <= len(text); k++ {
			if completable(text[:k]) {
				n = k
			}
		}
		out.WriteString("\uFFFD")
		text = text[n:]
	}
	return out.String()
}

func completable(prefix string) bool {
	if len(prefix) == 4 {
		return utf8.ValidString(prefix)
	}
	if utf8.ValidString(prefix) {
		return utf8.RuneCountInString(prefix) == 1
	}
	for _, next := range []string{"\x80", "\x90", "\xa0", "\xbf"} {
		if completable(prefix + next) {
			return true
		}
	}
	return false
}
