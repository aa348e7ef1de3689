// Every golden of testdata: ids, decodings and streamed pieces exactly as the
// libraries that ship with these formats compute them.

package tokenizer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

type goldenFile struct {
	Name       string
	File       string
	Library    string
	VocabSize  int `json:"vocab_size"`
	Texts      []goldenText
	DecodeOnly []goldenText `json:"decode_only"`
}

type goldenText struct {
	Name   string
	Text   string
	Source *struct {
		File       string
		Start, End int
		SHA256     string
	}
	IDs               []int32
	IDsSpecial        []int32 `json:"ids_special"`
	Tokens            []string
	Decode            string
	DecodeSkip        string    `json:"decode_skip"`
	DecodeSpecial     *string   `json:"decode_special"`
	DecodeSpecialSkip string    `json:"decode_special_skip"`
	Stream            *[]string `json:"stream"`
	StreamEnd         string    `json:"stream_end"`
	Count             int
	IDsSHA256         string  `json:"ids_sha256"`
	CountSpecial      int     `json:"count_special"`
	IDsSpecialSHA256  string  `json:"ids_special_sha256"`
	IDsHead           []int32 `json:"ids_head"`
	IDsTail           []int32 `json:"ids_tail"`
	DecodeSHA256      string  `json:"decode_sha256"`
	RoundTrip         *bool   `json:"round_trip"`
}

// goroot is where the long texts are: they ship with every Go installation.
var goroot = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	return strings.TrimSpace(string(out)), err
})

func sourceText(t testing.TB, file string, start, end int) string {
	t.Helper()
	root, err := goroot()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	require.LessOrEqual(t, end, len(data))
	return string(data[start:end])
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func hashIDs(ids []int32) string {
	var data []byte
	for _, id := range ids {
		data = binary.LittleEndian.AppendUint32(data, uint32(id))
	}
	return hash(data)
}

func encode(t testing.TB, tok *Tokenizer, text string, special bool) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, EncodeOptions{AddSpecial: special})
	require.NoError(t, err)
	if ids == nil {
		ids = []int32{}
	}
	return ids
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

func TestGoldens(t *testing.T) {
	files := 0
	require.NoError(t, filepath.WalkDir("testdata", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) != "golden.json" {
			return err
		}
		files++
		t.Run(filepath.Dir(path), func(t *testing.T) {
			var g goldenFile
			readJSON(t, path, &g)
			require.NotEmpty(t, g.Texts)
			tok, err := Open(filepath.Join(filepath.Dir(path), g.File))
			require.NoError(t, err)
			require.Equal(t, g.VocabSize, tok.VocabSize())
			for _, row := range g.Texts {
				t.Run(row.Name, func(t *testing.T) {
					if row.Source != nil {
						checkLongText(t, tok, row)
					} else {
						checkText(t, tok, row)
					}
				})
			}
			for _, row := range g.DecodeOnly {
				t.Run("decode_only/"+row.Name, func(t *testing.T) {
					checkDecode(t, tok, row)
				})
			}
			t.Logf("%d texts, %d id lists", len(g.Texts), len(g.DecodeOnly))
		})
		return err
	}))
	require.Equal(t, 6, files)
}

func checkText(t *testing.T, tok *Tokenizer, row goldenText) {
	require.Equal(t, row.IDs, encode(t, tok, row.Text, false))
	require.Equal(t, row.IDsSpecial, encode(t, tok, row.Text, true))
	for i, id := range row.IDs {
		token, ok := tok.IDToToken(id)
		require.True(t, ok)
		require.Equal(t, row.Tokens[i], token)
	}
	checkDecode(t, tok, row)
	require.Equal(t, *row.DecodeSpecial, tok.Decode(row.IDsSpecial, false))
	require.Equal(t, row.DecodeSpecialSkip, tok.Decode(row.IDsSpecial, true))
}

func checkDecode(t *testing.T, tok *Tokenizer, row goldenText) {
	require.Equal(t, row.Decode, tok.Decode(row.IDs, false))
	require.Equal(t, row.DecodeSkip, tok.Decode(row.IDs, true))
	if row.Stream == nil {
		return
	}
	pieces, rest := streamed(tok, row.IDs)
	require.Equal(t, *row.Stream, pieces)
	require.Equal(t, row.StreamEnd, rest)
}

func checkLongText(t *testing.T, tok *Tokenizer, row goldenText) {
	text := sourceText(t, row.Source.File, row.Source.Start, row.Source.End)
	require.Equal(t, row.Source.SHA256, hash([]byte(text)))
	ids := encode(t, tok, text, false)
	require.Equal(t, row.IDsHead, ids[:len(row.IDsHead)])
	require.Equal(t, row.IDsTail, ids[len(ids)-len(row.IDsTail):])
	require.Len(t, ids, row.Count)
	require.Equal(t, row.IDsSHA256, hashIDs(ids))
	special := encode(t, tok, text, true)
	require.Len(t, special, row.CountSpecial)
	require.Equal(t, row.IDsSpecialSHA256, hashIDs(special))
	decoded := tok.Decode(ids, false)
	require.Equal(t, row.DecodeSHA256, hash([]byte(decoded)))
	require.Equal(t, *row.RoundTrip, decoded == text)
	pieces, rest := streamed(tok, ids)
	require.Equal(t, decoded, strings.Join(pieces, "")+rest)
}
