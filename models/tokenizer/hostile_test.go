// Files made to take much memory for their size.

package tokenizer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// short is the i-th of many different texts without quotes, the shortest first.
func short(i int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!$%&()*+,-./:;<=>?@[]^_`{|}~"
	text := []byte{letters[i%len(letters)]}
	for i /= len(letters); i > 0; i /= len(letters) {
		i--
		text = append(text, letters[i%len(letters)])
	}
	return string(text)
}

func TestMemoryOfHostileFiles(t *testing.T) {
	const n = 100000
	repeated := func(n int, entry func(i int) string) string {
		var out strings.Builder
		for i := range n {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(entry(i))
		}
		return out.String()
	}
	quoted := func(text string) string { return `"` + text + `"` }
	bpe := func(vocab, merges, rest string) string {
		return `{"model":{"type":"BPE","vocab":{` + vocab + `},"merges":[` + merges + `]}` + rest + `}`
	}
	some := `"x":0,"y":1,"xy":2`
	vocab := func(id func(i int) int) string {
		return repeated(n, func(i int) string { return fmt.Sprintf("%s:%d", quoted(short(i)), id(i)) }) + `,"xy":1`
	}
	files := map[string]string{
		"short tokens":   bpe(vocab(func(i int) int { return i }), `"x y"`, ""),
		"one id":         bpe(vocab(func(i int) int { return 5 }), "", ""),
		"far ids":        bpe(vocab(func(i int) int { return 2*n + 1024 + i }), `"x y"`, ""),
		"escapes":        bpe(repeated(n, func(i int) string { return fmt.Sprintf(`"\\n%s":%d`, short(i), i) }), "", ""),
		"one long token": bpe(some+`,"`+strings.Repeat("a", 1<<20)+`":3`, `"x y"`, ""),
		"one merge":      bpe(some, repeated(n, func(int) string { return `"x y"` }), ""),
		"merges": bpe(`"x":0,`+repeated(30, func(i int) string { return fmt.Sprintf("%s:%d", quoted(strings.Repeat("x", i+2)), i+1) }),
			repeated(30*29/2, func(i int) string { return `"x x"` }), ""),
		"all merges": allMerges(n / 10),
		"added tokens": bpe(some, `"x y"`, `,"added_tokens":[`+repeated(n, func(i int) string {
			return `{"content":` + quoted(short(i)) + `}`
		})+`]`),
		"one added token":    bpe(some, `"x y"`, `,"added_tokens":[`+repeated(n, func(i int) string { return `{"content":"a"}` })+`]`),
		"empty added tokens": bpe(some, `"x y"`, `,"added_tokens":[`+repeated(n, func(i int) string { return `{}` })+`]`),
		"a long added token": bpe(some, `"x y"`, `,"added_tokens":[{"content":"`+strings.Repeat("a", 1<<20)+`"}]`),
		"normalized added tokens": bpe(some, `"x y"`, `,"normalizer":{"type":"NFKD"},"added_tokens":[`+repeated(n, func(i int) string {
			return `{"content":` + quoted(short(i)) + `,"normalized":true}`
		})+`]`),
		"added tokens that grow": bpe(some, `"x y"`, `,"normalizer":{"type":"Replace","pattern":{"String":"a"},"content":"`+strings.Repeat("b", 1000)+`"},"added_tokens":[`+repeated(2000, func(i int) string {
			return `{"content":` + quoted("a"+short(i)) + `,"normalized":true}`
		})+`]`),
		"nested sequences": bpe(some, `"x y"`, `,"normalizer":`+strings.Repeat(`{"type":"Sequence","normalizers":[`, 15)+
			repeated(n, func(int) string { return `{"type":"NFC"}` })+strings.Repeat(`]}`, 15)),
		"expressions": bpe(some, `"x y"`, `,"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+repeated(n/10, func(i int) string {
			return `{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a"}}`
		})+`]}`),
		"a long template": bpe(some, `"x y"`, `,"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}],"special_tokens":{"a":{"ids":[`+
			repeated(n, func(int) string { return "1" })+`]}}}`),
		"decoders":       bpe(some, `"x y"`, `,"decoder":{"type":"Sequence","decoders":[`+repeated(n, func(int) string { return `{"type":"Fuse"}` })+`]}`),
		"Unigram":        `{"model":{"type":"Unigram","vocab":[` + repeated(n, func(i int) string { return `[` + quoted(short(i)) + `,0]` }) + `]}}`,
		"Unigram, wide":  `{"model":{"type":"Unigram","vocab":[` + repeated(n, func(i int) string { return `[` + quoted(short(i)) + `,0.1]` }) + `]}}`,
		"a long Unigram": `{"model":{"type":"Unigram","vocab":[["` + strings.Repeat("a", 1<<20) + `",0]]}}`,
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			data := []byte(file)
			boundedMemory(t, len(data), func() {
				if _, err := FromJSON(data); err != nil {
					t.Log(shortened([]byte(err.Error())))
				}
			})
		})
	}
	piece := func(text string, kind int) []byte {
		if kind == 1 {
			return protoMessage(1, protoMessage(1, text))
		}
		return protoMessage(1, protoMessage(1, text, 3, kind))
	}
	for name, kinds := range map[string][2]int{"BPE": {2, 1}, "Unigram": {1, 1}, "BPE, user-defined": {2, 4}, "Unigram, user-defined": {1, 4}, "control": {2, 3}} {
		t.Run("SentencePiece "+name, func(t *testing.T) {
			file := append(protoMessage(2, protoMessage(3, kinds[0])), piece("<unk>", 2)...)
			for i := range n {
				file = append(file, piece(short(i), kinds[1])...)
			}
			boundedMemory(t, len(file), func() {
				_, err := FromSentencePiece(file)
				require.NoError(t, err)
			})
			long := append(protoMessage(2, protoMessage(3, kinds[0])), piece("<unk>", 2)...)
			long = append(long, piece(strings.Repeat("ab", 1<<19), kinds[1])...)
			boundedMemory(t, len(long), func() {
				_, err := FromSentencePiece(long)
				require.NoError(t, err)
			})
		})
	}
}

// allMerges has every way to make its tokens of two.
func allMerges(n int) string {
	var vocab, merges strings.Builder
	for i := range 90 {
		fmt.Fprintf(&vocab, "%q:%d,", short(i), i)
	}
	for i := range n {
		a, b, c := short(i%90), short(i/90%90), short(i/8100)
		fmt.Fprintf(&vocab, "%q:%d,", a+b+c, 90+i)
		fmt.Fprintf(&merges, `"%s %s",`, a, b+c)
		if i < 8100 {
			fmt.Fprintf(&vocab, "%q:%d,", b+c, 90+n+i)
		}
	}
	return `{"model":{"type":"BPE","vocab":{` + strings.TrimSuffix(vocab.String(), ",") + `},"merges":[` + strings.TrimSuffix(merges.String(), ",") + `]}}`
}

func TestComponentsThatGrowAreRefused(t *testing.T) {
	repeated := func(n int, component string) string { return strings.TrimSuffix(strings.Repeat(component+",", n), ",") }
	doubles := `{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`
	for part, want := range map[string]string{
		`"normalizer":{"type":"Sequence","normalizers":[` + repeated(40, doubles) + `]}`:                         "normalizer: Sequence: 10: Replace: with what is before it, it can make a text 2048 times as long: at most 1024 is supported",
		`"normalizer":{"type":"Replace","pattern":{"Regex":"x*"},"content":"` + strings.Repeat("a", 2000) + `"}`: "normalizer: Replace: with what is before it, it can make a text 2001 times",
		`"normalizer":{"type":"Sequence","normalizers":[` + repeated(40, `{"type":"ByteLevel"}`) + `]}`:          "normalizer: Sequence: 10: ByteLevel: ",
		`"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + repeated(40, `{"type":"ByteLevel"}`) + `]}`:     "pre_tokenizer: Sequence: 10: ByteLevel: ",
		`"decoder":{"type":"Sequence","decoders":[` + repeated(40, doubles) + `]}`:                               "decoder: Sequence: 10: Replace: ",
	} {
		_, err := FromJSON([]byte(`{"model":{"type":"BPE","vocab":{"x":0,"a":1,"xa":2},"merges":["x a"]},` + part + `}`))
		require.ErrorContains(t, err, "tokenizer.json: "+want)
	}
	_, err := parseCharsMap(append([]byte{4, 0, 0, 0, 0, 0, 0, 0}, strings.Repeat("a", 1025)...))
	require.EqualError(t, err, "precompiled_charsmap: a replacement of 1025 bytes: at most 1024 are supported")
}

// TestLongTextsTakeLinearTime holds what invites time that grows as the square of
// the text: runs of marks out of order, many of them, and white space that is an
// added token. At that rate each would take minutes.
func TestLongTextsTakeLinearTime(t *testing.T) {
	const n = 200000
	above, below := "\u0301", "\u0323"
	require.Equal(t, "x"+strings.Repeat(below, n)+strings.Repeat(above, n), plainForm(norm.NFD, "x"+strings.Repeat(above+below, n)))
	run := "x" + strings.Repeat(above, 40)
	require.Equal(t, strings.Repeat(run, n/10), plainForm(norm.NFC, strings.Repeat(run, n/10)))
	tok, err := FromJSON([]byte(`{"model":{"type":"BPE","vocab":{"x":0,"a":1,"xa":2},"merges":["x a"]},"added_tokens":[{"id":3,"content":" ","lstrip":true,"rstrip":true}]}`))
	require.NoError(t, err)
	ids, err := tok.Encode(strings.Repeat(" ", 5*n), EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, int32(3), ids[0])
}
