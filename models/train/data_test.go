package train

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/tokenizer"
)

func write(t *testing.T, path string, content []byte) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, os.WriteFile(path, content, 0o666))
	return path
}

func openTokens(t *testing.T, o OpenOptions, paths ...string) *Tokens {
	t.Helper()
	tok, err := Open(o, paths...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

func all(t *testing.T, tok *Tokens) []int32 {
	t.Helper()
	ids := make([]int32, tok.Len())
	require.NoError(t, tok.Read(ids, 0))
	return ids
}

func TestTokensOfEveryFormat(t *testing.T) {
	dir := t.TempDir()
	u16, err := binary.Append(nil, binary.LittleEndian, []uint16{65535, 7, 0})
	require.NoError(t, err)
	u32, err := binary.Append(nil, binary.LittleEndian, []uint32{1<<31 - 1, 9})
	require.NoError(t, err)
	write(t, filepath.Join(dir, "b.u16"), u16)
	write(t, filepath.Join(dir, "c", "d.U32"), u32)
	write(t, filepath.Join(dir, "a.txt"), []byte("h\xffi"))
	write(t, filepath.Join(dir, "empty.txt"), nil)
	write(t, filepath.Join(dir, ".hidden"), []byte("no"))
	write(t, filepath.Join(dir, ".git", "x"), []byte("no"))
	tok := openTokens(t, OpenOptions{}, dir)
	want := []int32{'h', 255, 'i', 65535, 7, 0, 1<<31 - 1, 9}
	require.Equal(t, want, all(t, tok))
	for at := range want {
		for n := range len(want) - at + 1 {
			got := make([]int32, n)
			require.NoError(t, tok.Read(got, int64(at)))
			require.Equal(t, want[at:at+n], got)
		}
	}
	require.EqualError(t, tok.Read(make([]int32, 2), 7), "train: tokens 7 to 9 lie outside the 8 there are")
	require.EqualError(t, tok.Read(nil, -1), "train: tokens -1 to -1 lie outside the 8 there are")
	require.Equal(t, "b.u16: token 1", filepath.Base(tok.locate(4)))

	same := openTokens(t, OpenOptions{}, filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.u16"), filepath.Join(dir, "c"))
	require.Equal(t, want, all(t, same))
	bytes := openTokens(t, OpenOptions{Format: Text}, filepath.Join(dir, "b.u16"))
	require.Equal(t, []int32{255, 255, 7, 0, 0, 0}, all(t, bytes))
	require.NotEqual(t, tok.Digest(), bytes.Digest())
}

func TestTokensReadWithoutMapping(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.u16"), []byte{1, 0, 2, 1, 3, 0})
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	p := part{path: path, n: 3, width: 2, file: f}
	got := make([]int32, 2)
	require.NoError(t, p.read(got, 1))
	require.Equal(t, []int32{258, 3}, got)
	require.ErrorContains(t, p.read(got, 2), "reading 4 bytes at 4: unexpected EOF")
}

func TestTokensRefuse(t *testing.T) {
	dir := t.TempDir()
	odd := write(t, filepath.Join(dir, "odd.u32"), make([]byte, 7))
	big := write(t, filepath.Join(dir, "big.u32"), []byte{0, 0, 0, 0x80})
	empty := write(t, filepath.Join(dir, "empty.txt"), nil)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bare"), 0o777))
	for want, paths := range map[string][]string{
		"no path was given: at least one file or folder is required":                                           nil,
		"has 7 bytes, not a multiple of the 4 that a uint32 token takes: it is cut short or of another format": {odd},
		"big.u32: token 0 is 2147483648, token ids are below 2^31":                                             {big},
		"empty.txt: has no tokens: at least one is required":                                                   {empty},
		"bare: the folder has no files: at least one is required":                                              {filepath.Join(dir, "bare")},
		"absent: no such file or directory":                                                                    {filepath.Join(dir, "absent")},
		os.DevNull + ": must be a regular file or a folder, it is Dc":                                          {os.DevNull},
	} {
		_, err := Open(OpenOptions{}, paths...)
		require.ErrorContains(t, err, want)
	}
}

func TestShortenedFileIsAnError(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.txt"), make([]byte, 1<<16))
	tok := openTokens(t, OpenOptions{}, path)
	require.NoError(t, os.Truncate(path, 10))
	require.ErrorContains(t, tok.Read(make([]int32, 10), 1<<15), "a.txt: the file was shortened or failed while it was mapped")
}

func TestDataMayBeLargerThanMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs a file system with holes")
	}
	path := write(t, filepath.Join(t.TempDir(), "big.u16"), nil)
	const n = 1 << 36 // bytes, all of them a hole
	if err := os.Truncate(path, n); err != nil {
		t.Skip(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{7, 0, 9, 0}, n-4)
	require.NoError(t, errors.Join(err, f.Close()))
	tok := openTokens(t, OpenOptions{}, path)
	require.EqualValues(t, n/2, tok.Len())
	got := make([]int32, 3)
	require.NoError(t, tok.Read(got, n/2-3))
	require.Equal(t, []int32{0, 7, 9}, got)
	w, err := NewWindows(tok, 8, WindowOptions{Context: 2, Order: Epochs})
	require.NoError(t, err)
	require.NoError(t, w.fill(n/2-4, got[:2], got[1:]))
	require.ErrorContains(t, w.fill(n/2-3, got[:2], got[1:]), fmt.Sprintf("big.u16: token %d is 9, the model's vocabulary has 8 ids", n/2-1))
	tokens, labels := make([]int32, 8), make([]int32, 8)
	for i := range int64(1000) {
		require.NoError(t, w.Batch(i, 4, tokens, labels))
	}
}

// words is an encoder whose ids depend on where the text is cut: the length of
// each run of letters, and 1000 plus the byte for everything else.
type words struct{ vocab int }

func (w words) VocabSize() int { return w.vocab }
func (w words) AppendEncode(dst []int32, text string, _ tokenizer.EncodeOptions) ([]int32, error) {
	n := int32(0)
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z':
			n++
		default:
			if n > 0 {
				dst = append(dst, n)
			}
			n = 0
			dst = append(dst, 1000+int32(c))
		}
	}
	if n > 0 {
		dst = append(dst, n)
	}
	return dst, nil
}

func TestEncodedTextIsCached(t *testing.T) {
	dir := t.TempDir()
	var text bytes.Buffer
	for i := range 300000 {
		fmt.Fprintf(&text, "%s %s\n", strings.Repeat("a", i%7+1), strings.Repeat("b", i%11))
	}
	require.Greater(t, text.Len(), 2*chunk)
	path := write(t, filepath.Join(dir, "a.txt"), text.Bytes())
	want, err := words{}.AppendEncode(nil, text.String(), tokenizer.EncodeOptions{})
	require.NoError(t, err)
	cache := filepath.Join(dir, "cache")
	for vocab, ext := range map[int]string{65536: ".u16", 65537: ".u32"} {
		for range 2 {
			tok := openTokens(t, OpenOptions{Encoder: words{vocab}, Cache: cache}, path)
			require.Equal(t, ext, filepath.Ext(tok.parts[0].path))
			require.Equal(t, want, all(t, tok), "cut at lines, the text has the tokens of the whole")
		}
	}
	list, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, list, 2, "encoded once each, no temporaries")
	write(t, path, []byte("ab cd"))
	require.Equal(t, []int32{2, 1032, 2}, all(t, openTokens(t, OpenOptions{Encoder: words{65536}, Cache: cache}, path)), "another text is encoded anew")
	_, err = Open(OpenOptions{Encoder: words{}}, path)
	require.ErrorContains(t, err, "text with an encoder needs a cache folder, OpenOptions.Cache is empty")
}

func TestBoundary(t *testing.T) {
	for text, want := range map[string]int{
		"one\ntwo\n  three": 4, "one\n\ntwo": 5, "one two": 3, "oneé": 3, "one": 2, "one\n two": 4, "one\n": 3,
	} {
		require.Equal(t, want, boundary([]byte(text)), "%q", text)
	}
}

func TestPermutationVisitsEachOnce(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097} {
		moved := int64(0)
		for key := range uint64(3) {
			seen := make([]bool, n)
			for i := range n {
				j := permute(key, i, n)
				require.False(t, seen[j], "n %d", n)
				seen[j] = true
				if i != j {
					moved++
				}
			}
		}
		require.True(t, n < 16 || moved > 2*n, "n %d: %d of %d moved", n, moved, 3*n)
	}
}

func windows(t *testing.T, n int, o WindowOptions) *Windows {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(i)
	}
	tok := openTokens(t, OpenOptions{}, write(t, filepath.Join(t.TempDir(), "text"), text))
	w, err := NewWindows(tok, 256, o)
	require.NoError(t, err)
	return w
}

func TestEpochsVisitEveryWindowOnce(t *testing.T) {
	w := windows(t, 250, WindowOptions{Context: 4, Order: Epochs, Validation: 0.2, Seed: 3})
	require.EqualValues(t, 49, w.Len(), "(200-1)/4")
	require.Equal(t, 12, w.Held(), "(50-1)/4")
	tok, lab := make([]int32, 28), make([]int32, 28)
	var epochs [2][]int32
	for i := range int64(14) { // 98 rows in batches of 7: two epochs
		require.NoError(t, w.Batch(i, 7, tok, lab))
		for r := range 7 {
			for k := range 4 {
				require.Equal(t, tok[4*r]+int32(k), tok[4*r+k])
				require.Equal(t, tok[4*r]+int32(k)+1, lab[4*r+k])
			}
			epochs[i/7] = append(epochs[i/7], tok[4*r])
		}
	}
	require.ElementsMatch(t, epochs[0], epochs[1])
	require.NotEqual(t, epochs[0], epochs[1])
	seen := map[int32]bool{}
	for _, s := range epochs[0] {
		require.Zero(t, s%4)
		seen[s] = true
	}
	require.Len(t, seen, 49)
	require.NoError(t, w.HeldRow(11, tok[:4], lab[:4]))
	require.Equal(t, []int32{244, 245, 246, 247}, tok[:4])
	require.Equal(t, []int32{245, 246, 247, 248}, lab[:4])
	require.ErrorContains(t, w.HeldRow(12, tok[:4], lab[:4]), "held-out rows are 0 to 11 of 4 tokens, got row 12")
	require.ErrorContains(t, w.Batch(0, 7, tok[:4], lab), "a batch of 7 rows of 4 needs 28 tokens and labels, got room for 4 and 28 (Context of a trainer and of its data must be the same)")
}

func TestRandomWindowsAreUniform(t *testing.T) {
	w := windows(t, 40, WindowOptions{Context: 8, Order: Random, Validation: 0.25, Seed: 5})
	require.EqualValues(t, 30, w.train)
	tok, lab := make([]int32, 8), make([]int32, 8)
	count := map[int32]int{}
	const n = 22000
	for i := range int64(n) {
		require.NoError(t, w.Batch(i, 1, tok, lab))
		require.Equal(t, tok[7]+1, lab[7])
		count[tok[0]]++
	}
	require.Len(t, count, 22, "starts 0 to 21: the last row reads up to token 29")
	chi := 0.0
	for _, c := range count {
		chi += math.Pow(float64(c)-n/22, 2) / (n / 22)
	}
	require.Less(t, chi, 46.8, "chi-squared of 21 degrees at 0.999")
}

func TestOrderIsAFunctionOfSeedAndNumber(t *testing.T) {
	for _, order := range []Order{Random, Epochs} {
		o := WindowOptions{Context: 5, Order: order, Seed: 1}
		a, b := windows(t, 256, o), windows(t, 256, o)
		o.Seed = 2
		c := windows(t, 256, o)
		require.Equal(t, a.Digest(), b.Digest())
		require.NotEqual(t, a.Digest(), c.Digest())
		var differ int
		for i := range int64(60) { // backwards in b: nothing depends on what came before
			require.Equal(t, a.start(i), b.start(i))
			require.Equal(t, a.start(59-i), b.start(59-i))
			if a.start(i) != c.start(i) {
				differ++
			}
		}
		require.Greater(t, differ, 40)
		// Row r of micro-batch i is row i*B+r of the order for every B.
		tok, lab, one := make([]int32, 15), make([]int32, 15), make([]int32, 5)
		require.NoError(t, a.Batch(4, 3, tok, lab))
		require.NoError(t, a.Batch(14, 1, one, lab[:5]))
		require.Equal(t, tok[10:], one)
	}
}

func TestWindowsRefuse(t *testing.T) {
	tok := openTokens(t, OpenOptions{}, write(t, filepath.Join(t.TempDir(), "text"), []byte(strings.Repeat("a", 99)+"z")))
	ok := WindowOptions{Context: 4, Order: Random, Validation: 0.1}
	for want, o := range map[string]WindowOptions{
		"train: option context: must be at least 1, got 0":                                                           {Order: Random},
		"train: option context: must be below 2^31, got 9223372036854775807":                                         {Order: Random, Context: math.MaxInt},
		": is too short: a context of 2147483647 needs at least 2147483648 training tokens, there are ":              {Order: Random, Context: math.MaxInt32},
		"train: option order: must be random or epochs, got ":                                                        {Context: 1},
		"train: option validation: must be a fraction in [0,1), got 1":                                               {Context: 1, Order: Random, Validation: 1},
		"train: option validation: must be a fraction in [0,1), got NaN":                                             {Context: 1, Order: Random, Validation: math.NaN()},
		"text: is too short: a context of 90 needs at least 91 training tokens, there are 90 (of 100, 0.1 held out)": {Context: 90, Order: Random, Validation: 0.1},
		"text: the held-out part is too short: a context of 10 needs at least 11 tokens, there are 10 (0.1 of 100)":  {Context: 10, Order: Random, Validation: 0.1},
	} {
		_, err := NewWindows(tok, 256, o)
		require.ErrorContains(t, err, want)
	}
	_, err := NewWindows(tok, 0, ok)
	require.EqualError(t, err, "train: option vocab: must be at least 1, got 0")
	_, err = NewWindows(tok, 122, ok)
	require.ErrorContains(t, err, "text: token 99 is 122, the model's vocabulary has 122 ids, 0 to 121")
	_, err = NewWindows(tok, 123, ok)
	require.NoError(t, err)
}
