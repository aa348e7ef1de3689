package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/tokenizer"
)

// cuts are the documents that a separator makes of a text, found by looking for
// it at every place.
func cuts(text, sep string) (docs []string) {
	piece := sep
	for n := 1; n < len(sep); n++ {
		if len(sep)%n == 0 && strings.Repeat(sep[:n], len(sep)/n) == sep {
			piece = sep[:n]
			break
		}
	}
	from := 0
	for at := 0; at < len(text); {
		if !strings.HasPrefix(text[at:], sep) {
			at++
			continue
		}
		for at += len(sep); strings.HasPrefix(text[at:], piece); at += len(piece) {
		}
		docs = append(docs, text[from:at])
		from = at
	}
	if from < len(text) {
		docs = append(docs, text[from:])
	}
	return docs
}

// documentsOf are the documents of tokens that are bytes.
func documentsOf(t *testing.T, tok *Tokens) (docs []string) {
	t.Helper()
	for i, s := range tok.starts {
		end := tok.n
		if i+1 < len(tok.starts) {
			end = tok.starts[i+1]
		}
		require.Greater(t, end, s)
		ids := make([]int32, end-s)
		require.NoError(t, tok.Read(ids, s))
		var b []byte
		for _, id := range ids {
			b = append(b, byte(id))
		}
		docs = append(docs, string(b))
	}
	return docs
}

func TestSeparatorsEndDocuments(t *testing.T) {
	check := func(text, sep string) {
		t.Helper()
		ids, err := separatorOf(Text, sep)
		require.NoError(t, err)
		p := part{n: int64(len(text)), width: 1, mem: []byte(text)}
		var docs []string
		from := int64(0)
		require.NoError(t, p.documents(ids, func(body, end int64) error {
			require.True(t, strings.HasPrefix(text[body:], sep) && from <= body && body < end)
			docs = append(docs, text[from:end])
			from = end
			return nil
		}))
		if from < p.n {
			docs = append(docs, text[from:])
		}
		require.Equal(t, cuts(text, sep), docs, "%q by %q", text, sep)
	}
	check("one\n\ntwo\nlines\n\n\n\nthree", "\n\n")
	require.Equal(t, []string{"one\n\n", "two\nlines\n\n\n\n", "three"}, cuts("one\n\ntwo\nlines\n\n\n\nthree", "\n\n"))
	check("one\n\n\ntwo", "\n\n")
	check("\n\none\n\n", "\n\n")
	check("none here", "\n\n")
	check("<e>a<e><e>b<<e>c<e", "<e>")
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		word := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = "ab"[r.IntN(2)]
			}
			return string(b)
		}
		check(word(1+r.IntN(30)), word(1+r.IntN(5)))
	}
}

func TestDocumentsOfEveryFormat(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), []byte("ab--c"))
	write(t, filepath.Join(dir, "b.txt"), nil)
	write(t, filepath.Join(dir, "c.txt"), []byte("d--"))
	tok := openTokens(t, OpenOptions{}, dir)
	require.Equal(t, []string{"ab--c", "d--"}, documentsOf(t, tok), "a file is a document, an empty one is none")
	require.Equal(t, 2, tok.Documents())
	tok = openTokens(t, OpenOptions{Separator: "--"}, dir)
	require.Equal(t, []string{"ab--", "c", "d--"}, documentsOf(t, tok), "files end documents too")

	ids := write(t, filepath.Join(dir, "ids", "d.u16"), []byte{1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0}) // 1 256 0 2 0 0 3
	require.Equal(t, []int64{0, 3, 6}, openTokens(t, OpenOptions{Separator: "0"}, ids).starts)
	require.Equal(t, []int64{0, 2}, openTokens(t, OpenOptions{Separator: "256"}, ids).starts)
	for _, sep := range []string{"\n\n", "-1", "2147483648", "0 "} {
		_, err := Open(OpenOptions{Separator: sep}, ids)
		require.EqualError(t, err, fmt.Sprintf("%s: train: option separator: must be an id, 0 to 2147483647, in files of token ids, got %q", ids, sep))
	}
	// Across the pieces that a file is read in.
	long := strings.Repeat("x", 1<<15-1) + "--" + strings.Repeat("y", 1<<15) + "--z"
	path := write(t, filepath.Join(dir, "long"), []byte(long))
	require.Equal(t, []int64{0, 1<<15 + 1, 1<<16 + 3}, openTokens(t, OpenOptions{Separator: "--"}, path).starts)
}

// special is words with a special token, <e>, of id 7.
type special struct{ words }

func (s special) AppendEncode(dst []int32, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	for i, part := range strings.Split(text, "<e>") {
		if i > 0 && o.Literal {
			part = "<e>" + part
		} else if i > 0 {
			dst = append(dst, 7)
		}
		dst, _ = s.words.AppendEncode(dst, part, o)
	}
	return dst, nil
}

func TestDocumentsOfEncodedText(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "text"), []byte("aa b<e>ccc<e><e>d"))
	o := OpenOptions{Encoder: special{words{2000}}, Cache: filepath.Join(dir, "cache")}
	plain := all(t, openTokens(t, o, path))
	o.Separator = "<e>"
	for range 2 { // written, and found
		tok := openTokens(t, o, path)
		require.Equal(t, []int32{2, 1032, 1, 7, 3, 7, 1}, all(t, tok), "a special token, once")
		require.Equal(t, []int64{0, 4, 6}, tok.starts)
	}
	// A separator that is text like any other stays as it is. The words encoder
	// counts letters, so a text that is cut between them shows it.
	o.Separator = "c"
	tok := openTokens(t, o, path)
	require.Equal(t, []int32{2, 1032, 1, 1060, 1, 1062, 3, 1060, 1, 1062, 1060, 1, 1062, 1}, all(t, tok))
	require.Equal(t, []int64{0, 7}, tok.starts)
	o.Separator = ""
	require.Equal(t, plain, all(t, openTokens(t, o, path)), "the cache knows the separators apart")

	starts, err := filepath.Glob(filepath.Join(dir, "cache", "*.documents"))
	require.NoError(t, err)
	require.Len(t, starts, 2)
	o.Separator = "<e>"
	for _, name := range starts {
		write(t, name, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	}
	_, err = Open(o, path)
	require.ErrorContains(t, err, ".documents: number 1 must not be below the one before, got 0")
	for _, name := range starts {
		require.NoError(t, os.Remove(name))
	}
	require.Equal(t, []int64{0, 4, 6}, openTokens(t, o, path).starts, "encoded anew")
}

// packed are documents of the given lengths, token i of document d being
// 16 d + i, a file each.
func packed(t *testing.T, o WindowOptions, lengths ...int) (*Documents, error) {
	t.Helper()
	dir := t.TempDir()
	for d, n := range lengths {
		var text []byte
		for i := range n {
			text = append(text, byte(16*d+i))
		}
		write(t, filepath.Join(dir, fmt.Sprintf("%02d", d)), text)
	}
	return NewDocuments(openTokens(t, OpenOptions{}, dir), 256, o)
}

// checkRow holds a row to what its tokens say of themselves.
func checkRow(t *testing.T, lengths []int, tokens, labels, positions []int32) (documents int) {
	t.Helper()
	for i, tok := range tokens {
		d, at := tok/16, tok%16
		if i == 0 || tokens[i-1]/16 != d {
			require.Zero(t, positions[i])
			documents++
		} else {
			require.Equal(t, positions[i-1]+1, positions[i])
		}
		want := tok + 1
		if int(at) == lengths[d]-1 {
			want = ignored
		}
		require.Equal(t, want, labels[i], "token %d of document %d", at, d)
	}
	return documents
}

func TestRowsOfDocuments(t *testing.T) {
	lengths := []int{5, 1, 12, 2, 2, 2, 16, 7, 3, 1, 9, 4, 10}
	for _, order := range []Order{Random, Epochs} {
		for _, context := range []int{1, 2, 7, 15} {
			d, err := packed(t, WindowOptions{Context: context, Order: order, Validation: 0.35, Seed: 4}, lengths...)
			require.NoError(t, err)
			require.EqualValues(t, 47, d.train, "65 percent of 74 are 48, the nearest document begins at 47")
			tok, lab, pos := make([]int32, 3*context), make([]int32, 3*context), make([]int32, 3*context)
			row := func(r int) int {
				from, to := r*context, (r+1)*context
				return checkRow(t, lengths, tok[from:to], lab[from:to], pos[from:to])
			}
			met := 0
			for i := range int64(200) {
				require.NoError(t, d.Batch(i, 3, tok, lab))
				require.NoError(t, d.Positions(i, 3, pos))
				for r := range 3 {
					met = max(met, row(r))
				}
			}
			require.Equal(t, (74-47-1)/context, d.Held())
			for i := range d.Held() {
				require.NoError(t, d.HeldRow(i, tok[:context], lab[:context]))
				require.NoError(t, d.HeldPositions(i, pos[:context]))
				require.GreaterOrEqual(t, tok[0], int32(8*16), "whole documents are held out")
				met = max(met, row(0))
			}
			want := 0
			for at := range 74 - context + 1 {
				n := 1
				for _, s := range d.starts {
					if int(s) > at && int(s) < at+context {
						n++
					}
				}
				want = max(want, n)
			}
			require.Equal(t, want, d.Sequences())
			require.LessOrEqual(t, met, want)
		}
	}
}

func TestDocumentsRefuse(t *testing.T) {
	o := WindowOptions{Context: 4, Order: Epochs}
	_, err := packed(t, o, 16)
	require.ErrorContains(t, err, "00: is one document, at least 2 are required to be packed: each is a file, or ends with the separator (\"\")")
	_, err = packed(t, WindowOptions{Order: Epochs}, 3, 3)
	require.EqualError(t, err, "train: option context: must be at least 1, got 0")
	_, err = packed(t, o, 2, 2)
	require.ErrorContains(t, err, "is too short: a context of 4 needs at least 5 training tokens, there are 4")
	d, err := packed(t, o, 9, 9)
	require.NoError(t, err)
	require.EqualError(t, d.Positions(0, 2, make([]int32, 7)), "train: a batch of 2 rows of 4 needs 8 positions, got room for 7")
	require.EqualError(t, d.HeldPositions(0, make([]int32, 4)), "train: held-out rows are 0 to -1 of 4 positions, got row 0 and room for 4")
	require.ErrorContains(t, d.HeldRow(0, make([]int32, 4), make([]int32, 4)), "held-out rows are 0 to -1")

	// The digest tells documents apart, from each other and from windows.
	digests := []string{d.Digest(), d.Windows.Digest()}
	for _, lengths := range [][]int{{8, 10}, {9, 9}} {
		e, err := packed(t, o, lengths...)
		require.NoError(t, err)
		require.Equal(t, lengths[0] == 9, slices.Contains(digests, e.Digest()))
	}
	require.NotEqual(t, digests[0], digests[1])
	// One document that fills nearly everything: the share stays as it is.
	d, err = packed(t, WindowOptions{Context: 4, Order: Epochs, Validation: 0.5}, 1, 15)
	require.NoError(t, err)
	require.EqualValues(t, 8, d.train)
}

// wrong announces a number of sequences of its own.
type wrong struct {
	*Documents
	sequences int
}

func (w wrong) Sequences() int { return w.sequences }

func TestSequencesBeyondTheAnnouncedAreRefused(t *testing.T) {
	d, err := packed(t, WindowOptions{Context: 8, Order: Epochs}, 3, 3, 3, 3, 3, 3, 3)
	require.NoError(t, err)
	require.Equal(t, 4, d.Sequences())
	for n, want := range map[int]string{
		0: "train: packed data must have 1 to 8 sequences in a row, got 0",
		9: "train: packed data must have 1 to 8 sequences in a row, got 9",
		2: "train: the first micro-batch: train: the batch has more than the 4 sequences that the data announced",
	} {
		_, err := New(newBigram(t, 256), wrong{d, n}, testOptions(2, 8))
		require.EqualError(t, err, want)
	}
	// A model without attention trains on packed documents like any other.
	tr, err := New(newBigram(t, 256), d, testOptions(2, 8))
	require.NoError(t, err)
	_, err = tr.Run(context.Background())
	require.NoError(t, err)
}
