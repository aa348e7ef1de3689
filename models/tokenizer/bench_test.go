// Encoding and decoding speed on the Opticks text, in one goroutine.

package tokenizer

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const opticks = "src/testdata/Isaac.Newton-Opticks.txt"

var benchFiles = []string{
	"gpt2_style/tokenizer.json",
	"llama3_style/tokenizer.json",
	"qwen_style/tokenizer.json",
	"llama2_style/legacy/tokenizer.json",
	"llama2_style/nonlegacy/tokenizer.json",
	"llama2_style/spm/tokenizer.model",
}

func BenchmarkEncode(b *testing.B) {
	text := sourceText(b, opticks, 0, 567198)
	for _, file := range benchFiles {
		b.Run(filepath.Dir(file), func(b *testing.B) {
			tok, err := Open(filepath.Join("testdata", file))
			require.NoError(b, err)
			var ids []int32
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				ids, err = tok.AppendEncode(ids[:0], text, EncodeOptions{})
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkEncodeFirst encodes with a tokenizer just opened: an empty cache.
func BenchmarkEncodeFirst(b *testing.B) {
	text := sourceText(b, opticks, 0, 567198)
	for _, file := range benchFiles {
		b.Run(filepath.Dir(file), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for range b.N {
				b.StopTimer()
				tok, err := Open(filepath.Join("testdata", file))
				require.NoError(b, err)
				b.StartTimer()
				_, err = tok.Encode(text, EncodeOptions{})
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	text := sourceText(b, opticks, 0, 567198)
	for _, file := range benchFiles {
		b.Run(filepath.Dir(file), func(b *testing.B) {
			tok, err := Open(filepath.Join("testdata", file))
			require.NoError(b, err)
			ids := encode(b, tok, text, false)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Decode(ids, false)
			}
		})
	}
}
