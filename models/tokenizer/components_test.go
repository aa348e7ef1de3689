// Small tokenizers with every component and option, against the libraries; see
// testdata/README.md.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type libraryCase struct {
	Name      string
	Tokenizer json.RawMessage // a tokenizer.json
	Model     []byte          // or a tokenizer.model
	VocabSize int             `json:"vocab_size"`
	Rows      []struct {
		Text       *string
		Rnd        any // ids that no encoder writes
		IDs        []int32
		IDsSpecial []int32 `json:"ids_special"`
		Decode     string
		DecodeSkip *string `json:"decode_skip"`
	}
}

func TestComponentsAsTheLibrariesDoThem(t *testing.T) {
	var cases, models []libraryCase
	readJSON(t, "testdata/components.json", &cases)
	readJSON(t, "testdata/sentencepiece.json", &models)
	require.Len(t, cases, 66)
	require.Len(t, models, 7)
	rows := 0
	for _, c := range append(cases, models...) {
		t.Run(c.Name, func(t *testing.T) {
			open, data := FromJSON, []byte(c.Tokenizer)
			if c.Model != nil {
				open, data = FromSentencePiece, c.Model
			}
			tok, err := open(data)
			require.NoError(t, err)
			require.Equal(t, c.VocabSize, tok.VocabSize())
			require.NotEmpty(t, c.Rows)
			broken := bytes.Contains(data, []byte(`"ByteFallback"`)) // streams differ in broken runs
			for _, row := range c.Rows {
				rows++
				ids := row.IDs
				if row.Text != nil {
					require.Equal(t, row.IDs, encode(t, tok, *row.Text, false), "%q", *row.Text)
					require.Equal(t, row.IDsSpecial, encode(t, tok, *row.Text, true), "%q", *row.Text)
					if c.Model == nil {
						ids = row.IDsSpecial
					}
				} else if list, ok := row.Rnd.([]any); ok {
					for _, id := range list {
						ids = append(ids, int32(id.(float64)))
					}
				}
				require.Equal(t, row.Decode, tok.Decode(ids, false), "%v", ids)
				if row.DecodeSkip != nil {
					require.Equal(t, *row.DecodeSkip, tok.Decode(ids, true), "%v", ids)
				}
				if row.Text != nil || !broken {
					pieces, rest := streamed(tok, ids)
					require.Equal(t, row.Decode, strings.Join(pieces, "")+rest, "%v", ids)
				}
			}
		})
	}
	t.Logf("%d tokenizers, %d texts and id lists", len(cases)+len(models), rows)
}
