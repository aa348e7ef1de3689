package optest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is what an independent implementation computes from a checkpoint.
type golden struct {
	Prompts []struct {
		IDs    []int32              `json:"input_ids"`
		Logits map[string][]float64 `json:"logits"`
		Norm   float64              `json:"logits_norm"`
		Loss   *float64             `json:"loss"`
		Greedy struct {
			Tokens  []int32   `json:"tokens"`
			Margins []float64 `json:"margins"`
		} `json:"greedy"`
	} `json:"prompts"`
	GradientNorms map[string]float64 `json:"gradient_norms"`
	NotTrained    []string           `json:"not_trained"`
}

// openGolden reads one of the golden checkpoints of package models.
func openGolden(t *testing.T, model string, config any) (golden, map[string][]float64) {
	t.Helper()
	dir := filepath.Join("..", "..", "models", "testdata", "golden", model)
	read := func(name string, into any) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, into))
	}
	var g golden
	read("golden.json", &g)
	read("config.json", config)
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	weights := map[string][]float64{}
	for _, f := range files {
		readSafetensors(t, f, weights)
	}
	return g, weights
}

func readSafetensors(t *testing.T, path string, into map[string][]float64) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(b)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b[8:8+n], &header))
	delete(header, "__metadata__")
	for name, raw := range header {
		var h struct {
			Dtype   string `json:"dtype"`
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(raw, &h))
		data := b[8+n:][h.Offsets[0]:h.Offsets[1]]
		var x []float64
		switch h.Dtype {
		case "F32":
			for i := 0; i < len(data); i += 4 {
				x = append(x, float64(math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))))
			}
		case "BF16", "F16":
			f := map[string]*Format{"BF16": BF16, "F16": F16}[h.Dtype]
			for i := 0; i < len(data); i += 2 {
				x = append(x, f.Decode(binary.LittleEndian.Uint16(data[i:])))
			}
		default:
			t.Fatalf("%s: dtype %s", name, h.Dtype)
		}
		into[name] = x
	}
}

// holds compares a model with its golden file within the file's rounding and
// the float32 error of whoever made it (at most 4.1e-5 on a logit).
func (g golden) holds(t *testing.T, weights map[string][]float64, vocab int, model func(tape *Tape, ids []int32) *Value) {
	t.Helper()
	worst := 0.0
	require.NotEmpty(t, g.Prompts)
	for _, p := range g.Prompts {
		n := len(p.IDs)
		whole := append(append([]int32(nil), p.IDs...), p.Greedy.Tokens...)
		// One pass over the prompt and all that follows: position i does not
		// see what comes after it.
		logits := model(NewTape(weights), whole[:len(whole)-1]).Data
		for at, want := range p.Logits {
			i, err := strconv.Atoi(at)
			require.NoError(t, err)
			d := Compare(logits[i*vocab:(i+1)*vocab], want)
			require.Less(t, d.MaxAbs, 5e-5, "prompt of %d tokens, position %d", n, i)
			worst = max(worst, d.MaxAbs)
		}
		require.InEpsilon(t, p.Norm, norm(logits[:n*vocab]), 1e-6)
		for step, token := range p.Greedy.Tokens {
			row := logits[(n-1+step)*vocab : (n+step)*vocab]
			best, second := 0, math.Inf(-1)
			for j, x := range row {
				if x > row[best] {
					best = j
				}
			}
			for j, x := range row {
				if j != best {
					second = max(second, x)
				}
			}
			require.Equal(t, int(token), best, "prompt of %d tokens, greedy step %d", n, step)
			require.InDelta(t, p.Greedy.Margins[step], row[best]-second, 1e-4)
		}
		if p.Loss == nil {
			continue
		}
		tape := NewTape(weights)
		loss := tape.NextTokenLoss(model(tape, p.IDs), p.IDs, vocab)
		require.InDelta(t, *p.Loss, loss.Data[0], 5e-6)
		if n < 70 {
			continue
		}
		grads := tape.Backward(loss)
		for _, name := range g.NotTrained {
			delete(grads, name)
		}
		require.Len(t, grads, len(g.GradientNorms))
		for name, want := range g.GradientNorms {
			require.Contains(t, grads, name)
			require.InEpsilon(t, want, norm(grads[name]), 2e-5, name)
		}
	}
	t.Logf("largest difference of a logit: %.3g", worst)
}
