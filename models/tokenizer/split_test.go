// The hand-written splitters against the regular expressions they stand for.

package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// randomText mixes the characters on which the patterns decide with characters
// of every script.
func randomText(r *rand.Rand) string {
	special := []string{" ", "  ", "\n", "\r\n", "\t", "'", "'s", "'S", "'ſ", "'ll", "'LL", "'lL", "'re", "'VE", "'m", "'d", "’s",
		"a", "Z", "é", "e\u0301", "ß", "1", "٣", "½", "Ⅷ", "一", "🙂", "\u00a0", "\u0085", "\u2028", "\u3000", "\u200b", "\u180e", "_", "-", "...", "\x1c", "\ufffd"}
	var out strings.Builder
	for range r.IntN(30) {
		if r.IntN(3) > 0 {
			out.WriteString(special[r.IntN(len(special))])
			continue
		}
		c := rune(r.IntN(unicode.MaxRune + 1))
		if r.IntN(2) == 0 {
			c = rune(r.IntN(0x3100))
		}
		if c >= 0xD800 && c < 0xE000 {
			c = '#'
		}
		out.WriteRune(c)
	}
	return out.String()
}

func pieces(t *testing.T, p preTokenizer, text string) []string {
	all := []string{}
	require.NoError(t, p.cut(text, true, func(piece string, _ bool) error {
		all = append(all, piece)
		return nil
	}))
	return all
}

func TestScannersEqualTheirPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, pattern := range []string{gpt2Pattern, llama3Pattern, qwenPattern} {
		fast := scanned{scannerFor(pattern)}
		re, err := compile(pattern)
		require.NoError(t, err)
		slow := matched{pattern: re, behavior: isolated}
		check := func(text string) {
			require.Equal(t, pieces(t, slow, text), pieces(t, fast, text), "%q by %s", text, pattern)
		}
		for range 4000 {
			if text := randomText(r); text != "" {
				check(text)
			}
		}
		for c := rune(0); c <= unicode.MaxRune; c += 1 + rune(r.IntN(60)) {
			check(" " + string(c) + "a" + string(c) + "1 \n" + string(c))
		}
		check("\xff\xfe broken \xe4\xbd")
	}
}

func TestScannersAreLinearOnLongRuns(t *testing.T) {
	for _, run := range []string{" ", "\n", "a", "1", "'", "é", " \n"} {
		text := strings.Repeat(run, 1<<20)
		for _, pattern := range []string{gpt2Pattern, llama3Pattern, qwenPattern} {
			total := 0
			require.NoError(t, scanned{scannerFor(pattern)}.cut(text, true, func(piece string, _ bool) error {
				total += len(piece)
				return nil
			}))
			require.Equal(t, len(text), total)
		}
	}
}

func TestTranslatedPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          []string
	}{
		{`a++b|.`, "aab", []string{"aab"}},
		{`a++ab|b`, "aab", []string{"aa", "b"}},
		{`a?+a`, "a", []string{"a"}},
		{`(?:ab)++c`, "ababc", []string{"ababc"}},
		{`a{1,2}+`, "aaaab", []string{"aaaa", "b"}},
		{`\h+`, "xaF9g", []string{"x", "aF9", "g"}},
		{`(?i:ks)`, "a\u212a\u017fb", []string{"a", "\u212a\u017f", "b"}},
		{`(?i)[s]`, "\u017f", []string{"\u017f"}},
		{`[\p{L}&&[^\p{Han}]]+`, "ab一c", []string{"ab", "一", "c"}},
		{`\p{^L}+`, "ab12c", []string{"ab", "12", "c"}},
		{`^b|a$`, "a\nb", []string{"a", "\n", "b"}},
		{`\x{e9}`, "aéb", []string{"a", "é", "b"}},
		{`[]a]`, "x]a", []string{"x", "]", "a"}},
		{`[a[b-c]d]+`, "xabcd", []string{"x", "abcd"}},
		{` ?[^(\s|[.,!?…。，、।۔،])]+`, "ab (c), d", []string{"ab", " (", "c", "),", " d"}}, // one of BLOOM's
		{`\b\w`, "िन ab", []string{"ि", "न ", "a", "b"}},
		{`\B.`, "a ½x", []string{"a ½", "x"}},
	} {
		re, err := compile(c.pattern)
		require.NoError(t, err, c.pattern)
		require.Equal(t, c.want, pieces(t, matched{pattern: re, behavior: isolated}, c.text), c.pattern)
	}
	for _, pattern := range []string{`[a[^b]]`, `[a[b&&c]]`, `[[:alpha:]]`, `[a&&b]`, `\X`, `(`, `[a`, `a\`, `\p{Nothing}`, `\x{zz}`, `\pL`} {
		_, err := compile(pattern)
		require.Error(t, err, pattern)
		require.Contains(t, err.Error(), "regular expression")
	}
}
