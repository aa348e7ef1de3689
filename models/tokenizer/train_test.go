// Training: against counting by definition, against the tokenizers library
// where it is installed, and the same file every time.

package tokenizer

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mergesByDefinition counts every pair of every word anew at each step.
func mergesByDefinition(texts []string, n, least int) [][2]string {
	type word struct {
		symbols []int
		count   int
	}
	tokens := make([]string, 256)
	for b, symbol := range byteSymbols() {
		tokens[symbol] = byteChar[b]
	}
	words := map[string]*word{}
	for _, text := range texts {
		for text != "" {
			k := scanGPT2(lowClasses(), text)
			w := words[text[:k]]
			if w == nil {
				w = &word{}
				for _, b := range []byte(text[:k]) {
					w.symbols = append(w.symbols, slices.Index(tokens[:256], byteChar[b]))
				}
				words[text[:k]] = w
			}
			w.count++
			text = text[k:]
		}
	}
	var merges [][2]string
	for len(merges) < n {
		counts := map[[2]int]int{}
		for _, w := range words {
			for i := 1; i < len(w.symbols); i++ {
				counts[[2]int{w.symbols[i-1], w.symbols[i]}] += w.count
			}
		}
		best, most := [2]int{}, 0
		for pair, count := range counts {
			if count > most || count == most && slices.Compare(pair[:], best[:]) < 0 {
				best, most = pair, count
			}
		}
		if most < least {
			break
		}
		for _, w := range words {
			var joined []int
			for i := 0; i < len(w.symbols); i++ {
				if i+1 < len(w.symbols) && [2]int{w.symbols[i], w.symbols[i+1]} == best {
					joined = append(joined, len(tokens))
					i++
					continue
				}
				joined = append(joined, w.symbols[i])
			}
			w.symbols = joined
		}
		merges = append(merges, [2]string{tokens[best[0]], tokens[best[1]]})
		tokens = append(tokens, tokens[best[0]]+tokens[best[1]])
	}
	return merges
}

func trainedMerges(t *testing.T, file []byte) [][2]string {
	var f struct {
		Model struct{ Merges [][2]string }
	}
	require.NoError(t, json.Unmarshal(file, &f))
	return f.Model.Merges
}

func TestTrainFollowsItsDefinition(t *testing.T) {
	for _, texts := range [][]string{
		{"aaaa aaa aa a aaaaa", "aaaa"},
		{"abababab babab", "abcabcabc abc", ""},
		{sourceText(t, opticks, 20000, 26000)},
	} {
		const size = 256 + 60
		file, err := Train(slices.Values(texts), TrainOptions{VocabSize: size})
		require.NoError(t, err)
		require.Equal(t, mergesByDefinition(texts, size-256, 2), trainedMerges(t, file))
	}
}

func TestTrainedFileEncodesAndDecodes(t *testing.T) {
	text := sourceText(t, opticks, 0, 567198)
	o := TrainOptions{VocabSize: 4096, Special: []string{"<|end|>", "<|user|>"}}
	file, err := Train(slices.Values([]string{text}), o)
	require.NoError(t, err)
	again, err := Train(slices.Values([]string{text}), o)
	require.NoError(t, err)
	require.Equal(t, file, again)

	tok, err := FromJSON(file)
	require.NoError(t, err)
	require.Equal(t, 4096, tok.VocabSize())
	ids := encode(t, tok, text, false)
	require.Less(t, len(ids), len(text)/3)
	require.Equal(t, text, tok.Decode(ids, false))
	require.Equal(t, []int32{4094, 4095}, encode(t, tok, "<|end|><|user|>", false))
	require.Empty(t, tok.Decode([]int32{4094}, true))
	for _, other := range []string{"日本語 🙂\r\n\t", "\x00\xff\xfe", sourceText(t, "src/fmt/print.go", 0, 20000)} {
		require.Equal(t, strings.ToValidUTF8(other, "\uFFFD\uFFFD"), tok.Decode(encode(t, tok, other, false), false))
	}
}

func TestTrainNamesWhatIsWrong(t *testing.T) {
	text := slices.Values([]string{"some text some text"})
	for want, o := range map[string]TrainOptions{
		"required at least 258": {VocabSize: 257, Special: []string{"<s>"}},
		"special token 1":       {VocabSize: 300, Special: []string{"<s>", "<s>"}},
		"special token 0":       {VocabSize: 300, Special: []string{""}},
		"occurs 99 times":       {VocabSize: 300, MinCount: 99},
	} {
		_, err := Train(text, o)
		require.ErrorContains(t, err, want)
	}
	_, err := Train(slices.Values([]string{}), TrainOptions{VocabSize: 300})
	require.ErrorContains(t, err, "no pair of bytes")
}

const pythonCheck = `
import sys, json
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
path, text = sys.argv[1], open(sys.argv[2], encoding="utf-8", newline="").read()
loaded = Tokenizer.from_file(path)
fresh = Tokenizer(models.BPE())
fresh.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = pre_tokenizers.ByteLevel.alphabet()
fresh.train_from_iterator([text], trainers.BpeTrainer(vocab_size=1000, min_frequency=2, initial_alphabet=alphabet, show_progress=False))
print(json.dumps({"ids": loaded.encode(text).ids, "size": loaded.get_vocab_size(),
    "decode": loaded.decode(loaded.encode(text).ids), "merges": json.loads(fresh.to_str())["model"]["merges"]}))
`

// TestTrainedFileInTokenizersLibrary loads a trained file with the Python
// library, and compares the merges with those that it learns from the same
// text.
func TestTrainedFileInTokenizersLibrary(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if err := exec.Command(python, "-c", "import tokenizers").Run(); err != nil {
		t.Skipf("skipped: %s cannot import tokenizers: %v", python, err)
	}
	text := sourceText(t, opticks, 0, 300000) + sourceText(t, "src/fmt/print.go", 0, 30000) + "日本語 🙂"
	file, err := Train(slices.Values([]string{text}), TrainOptions{VocabSize: 1001, Special: []string{"<|end|>"}})
	require.NoError(t, err)
	dir := t.TempDir()
	path, textPath := filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	require.NoError(t, os.WriteFile(textPath, []byte(text), 0o600))
	out, err := exec.Command(python, "-c", pythonCheck, path, textPath).Output()
	require.NoError(t, err)
	var got struct {
		IDs    []int32
		Size   int
		Decode string
		Merges [][2]string
	}
	require.NoError(t, json.Unmarshal(out, &got))
	tok, err := FromJSON(file)
	require.NoError(t, err)
	require.Equal(t, encode(t, tok, text, false), got.IDs)
	require.Equal(t, tok.VocabSize(), got.Size)
	require.Equal(t, text, got.Decode)
	require.Equal(t, got.Merges, trainedMerges(t, file))
}

// BenchmarkTrain learns 4096 tokens from 10 MB of Go sources and the Opticks.
func BenchmarkTrain(b *testing.B) {
	root, err := goroot()
	require.NoError(b, err)
	text := []byte(sourceText(b, opticks, 0, 567198))
	require.NoError(b, filepath.WalkDir(filepath.Join(root, "src"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || len(text) > 10<<20 {
			return err
		}
		data, err := os.ReadFile(path)
		text = append(text, data...)
		return err
	}))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		_, err := Train(slices.Values([]string{string(text)}), TrainOptions{VocabSize: 4096})
		require.NoError(b, err)
	}
}
