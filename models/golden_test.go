package models_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
)

// golden is what Hugging Face transformers computed with a checkpoint; the
// bounds below are those that its errors against float64 allow.
type golden struct {
	Prompts []struct {
		InputIDs  []int32              `json:"input_ids"`
		Logits    map[string][]float64 `json:"logits"`
		Sum       float64              `json:"logits_sum"`
		Norm      float64              `json:"logits_norm"`
		Loss      *float64             `json:"loss"`
		Positions []int                `json:"positions"`
		Greedy    struct {
			Tokens  []int32   `json:"tokens"`
			Margins []float64 `json:"margins"`
		} `json:"greedy"`
	} `json:"prompts"`
	GradientNorms map[string]float64 `json:"gradient_norms"`
}

const (
	logitBound = 2e-4 // absolute
	lossBound  = 1e-4 // absolute
	normBound  = 1e-3 // relative
)

func goldenFolders(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/golden/*")
	require.NoError(t, err)
	variants, err := filepath.Glob("testdata/variants/*")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	require.NotEmpty(t, variants)
	return append(dirs, variants...)
}

func readGolden(t *testing.T, dir string) golden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(raw, &g))
	require.NotEmpty(t, g.Prompts)
	return g
}

// runLogits computes the logits of one sequence.
func runLogits(t *testing.T, m *models.Transformer, ids []int32) []float32 {
	t.Helper()
	b := graph.New(graph.Share(m.Params()))
	logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, len(ids)), models.Dropout{})
	require.NoError(t, b.Err())
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids}))
	v, err := run.Value(logits)
	require.NoError(t, err)
	return graph.Data[float32](v)
}

func TestGoldenLogitsAndLoss(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := readGolden(t, dir)
			m, _, err := models.Load(dir)
			require.NoError(t, err)
			v := m.Config.Vocab
			for _, p := range g.Prompts {
				logits := runLogits(t, m, p.InputIDs)
				worst, norm := 0.0, 0.0
				for at, want := range p.Logits {
					i, err := strconv.Atoi(at)
					require.NoError(t, err)
					for j, w := range want {
						worst = max(worst, math.Abs(float64(logits[i*v+j])-w))
					}
				}
				for _, x := range logits {
					norm += float64(x) * float64(x)
				}
				t.Logf("%d tokens: largest difference of a logit %.1e", len(p.InputIDs), worst)
				require.Less(t, worst, logitBound)
				require.InEpsilon(t, p.Norm, math.Sqrt(norm), 1e-5)
				if p.Loss == nil {
					continue
				}
				loss, _ := lossAndGradients(t, m, p.InputIDs, false)
				require.InDelta(t, *p.Loss, loss, lossBound)
			}
		})
	}
}

// lossAndGradients is the next-token loss of a sequence and the norm of the
// gradient of every parameter.
func lossAndGradients(t *testing.T, m *models.Transformer, ids []int32, grad bool) (float64, map[string]float64) {
	t.Helper()
	n := len(ids) - 1
	b := graph.New(graph.Share(m.Params()))
	loss, _ := m.Loss(b, 1, n, 0, 0)
	require.NoError(t, b.Err())
	outs := []*graph.Node{loss}
	params := b.Params()
	if grad {
		gs, err := b.Grad(loss, params...)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
		outs = append(outs, gs...)
	}
	plan, err := b.Plan(outs...)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids[:n], "labels": ids[1:]}))
	norms := map[string]float64{}
	for i, o := range outs[1:] {
		v, err := run.Value(o)
		require.NoError(t, err)
		// A stack of experts is one parameter and a tensor for each in the files.
		data, parts := graph.Data[float32](v), m.OnDisk(params[i].Name())
		n := len(data) / len(parts)
		for e, name := range parts {
			s := 0.0
			for _, x := range data[e*n : (e+1)*n] {
				s += float64(x) * float64(x)
			}
			norms[name] = math.Sqrt(s)
		}
	}
	v, err := run.Value(loss)
	require.NoError(t, err)
	return float64(graph.Data[float32](v)[0]), norms
}

func TestGoldenGradientNorms(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := readGolden(t, dir)
			m, _, err := models.Load(dir)
			require.NoError(t, err)
			ids := g.Prompts[len(g.Prompts)-1].InputIDs
			_, norms := lossAndGradients(t, m, ids, true)
			require.Len(t, norms, len(g.GradientNorms))
			worst := 0.0
			for name, want := range g.GradientNorms {
				got, ok := norms[name]
				if !ok { // transformers saves the dense unit of Kimi Linear under the mixtures' name
					got = norms[strings.Replace(name, ".block_sparse_moe.", ".mlp.", 1)]
				}
				require.InEpsilon(t, want, got, normBound, name)
				worst = max(worst, math.Abs(got/want-1))
			}
			t.Logf("%d gradient norms, largest relative difference %.1e", len(norms), worst)
		})
	}
}
