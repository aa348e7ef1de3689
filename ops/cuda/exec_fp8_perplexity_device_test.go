//go:build gpu

package cuda

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/tokenizer"
)

// The perplexity of SmolLM2, or of a part of it, where SMOLLM2 names the file: linears in FP8 stay within 3 % of the mean negative
// log-likelihood of the plain model. The texts are those of the golden; SMOLLM2_IDS names a JSON list of lists of ids for a file
// without a tokenizer.
func TestDeviceExecutorFP8Perplexity(t *testing.T) {
	path := os.Getenv("SMOLLM2")
	if path == "" {
		t.Skip("SMOLLM2 names no file")
	}
	device(t)
	m, err := models.Open(path, models.Widen())
	require.NoError(t, err)
	defer m.Close()
	for at, ids := range smolTexts(t, m) {
		build := func() *graph.Builder {
			b := graph.New(graph.Share(m.Params()))
			loss, _ := m.Loss(b, 1, len(ids)-1, 0, 0)
			b.Output("loss", loss)
			require.NoError(t, b.Err())
			return b
		}
		nll := func(b *graph.Builder, compile func(*graph.Plan) (graph.Executor, error)) float64 {
			plan, err := b.Plan(b.Out("loss"))
			require.NoError(t, err)
			run, err := compile(plan)
			require.NoError(t, err)
			if e, ok := run.(*Executor); ok {
				defer func() { require.NoError(t, e.Close()) }()
			}
			require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids[:len(ids)-1], "labels": ids[1:]}))
			v, err := run.Value(b.Out("loss"))
			require.NoError(t, err)
			return float64(graph.Data[float32](v)[0])
		}
		plain := nll(build(), onCUDA(Options{Compute: dtype.Float32, Strict: true}))
		trained, _, err := autocast.FP8(build(), autocast.Options{})
		require.NoError(t, err)
		rows, _, err := autocast.FP8Inference(build(), autocast.InferenceOptions{Activations: autocast.PerRow})
		require.NoError(t, err)
		exact, _, err := autocast.FP8Inference(build(), autocast.InferenceOptions{})
		require.NoError(t, err)
		fmt.Printf("NLL\ttext %d, %d layers\tplain f32 %.5f", at, m.Config.Layers, plain)
		for name, b := range map[string]*graph.Builder{"a step for the tensor": trained, "a step for each row": rows, "weights alone": exact} {
			for _, dt := range computes {
				got := nll(b, onCUDA(Options{Compute: dt}))
				fmt.Printf("\t%s %s %.5f", name, dt, got)
				require.LessOrEqual(t, math.Abs(got/plain-1), 0.03, "%s in %s", name, dt)
			}
		}
		fmt.Println()
	}
}

func smolTexts(t *testing.T, m *models.Opened) (texts [][]int32) {
	t.Helper()
	if path := os.Getenv("SMOLLM2_IDS"); path != "" {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &texts))
		return texts
	}
	raw, err := os.ReadFile("../../models/testdata/smollm2/golden.json")
	require.NoError(t, err)
	var golden struct {
		Perplexity []struct {
			Bytes  [2]int
			Tokens int
		}
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src/testdata/Isaac.Newton-Opticks.txt"))
	require.NoError(t, err)
	for _, g := range golden.Perplexity {
		ids, err := m.Tokenizer.Encode(string(text[g.Bytes[0]:g.Bytes[1]]), tokenizer.EncodeOptions{})
		require.NoError(t, err)
		texts = append(texts, ids[:g.Tokens])
	}
	return texts
}
