package autocast_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

func withExperts() models.Config {
	c := tiny
	c.Type, c.QKVBias, c.OutputBias = "qwen3_moe", false, false
	c.Experts = &models.Experts{Router: ops.Router{Experts: 4, TopK: 2, Renormalize: true}, FFN: 48, Dense: make([]bool, c.Layers)}
	return c
}

// The stacks of experts go to 8 bits together, the router stays, and static steps leave experts alone.
func TestExpertsTakePart(t *testing.T) {
	c := withExperts()
	m := newModel(t, c)
	tokens := feeds(c, 0)["tokens"].([]int32)
	want := logits(t, logitsGraph(t, m, 2), tokens)
	ofExperts := func(r *autocast.Report) (cast []string) {
		for _, name := range r.Cast() {
			if strings.Contains(name, ".experts.") {
				cast = append(cast, name)
			}
		}
		return cast
	}
	last := 0.0
	for _, o := range []autocast.InferenceOptions{{Filter: small}, {Activations: autocast.PerRow, Filter: small}} {
		b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), o)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
		require.Len(t, ofExperts(report), 3*c.Layers, report.Explain())
		require.Contains(t, report.Explain(), "router")
		require.Contains(t, planText(t, b), "fp8_experts")
		d, cos, _ := distance(logits(t, b, tokens), want)
		require.Less(t, last, d)
		require.Greater(t, cos, 0.9995) // measured 0.99995 and 0.99991
		last = d
		again, second, err := autocast.FP8Inference(b, o)
		require.NoError(t, err)
		require.Equal(t, planText(t, b), planText(t, again), second.Explain())
	}

	// One stack that is left out keeps the others; so does a threshold.
	o := autocast.InferenceOptions{Filter: small}
	o.Exclude = []string{"*layers.0*experts.up_proj*"}
	b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), o)
	require.NoError(t, err)
	require.Len(t, ofExperts(report), 3*(c.Layers-1))
	require.Contains(t, report.Explain(), "another stack of the experts stays")
	require.NoError(t, graph.Verify(b))

	cal, err := autocast.NewCalibrator(logitsGraph(t, m, 2))
	require.NoError(t, err)
	require.NoError(t, cal.Run(t.Context(), feeds(c, 0)))
	_, report, err = autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Activations: autocast.Static, Calibration: cal.Calibration(), Filter: small})
	require.NoError(t, err)
	require.Empty(t, ofExperts(report))
}

// Stacks stored as codes alone give the bits of those quantised when they are used, with either activations.
func TestStoredExperts(t *testing.T) {
	c := withExperts()
	m := newModel(t, c)
	tokens := feeds(c, 0)["tokens"].([]int32)
	quantised := func(a autocast.Activations) (*graph.Builder, *autocast.Report) {
		b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Activations: a, Filter: small})
		require.NoError(t, err)
		return b, report
	}
	exact, report := quantised(autocast.Exact)
	rows, _ := quantised(autocast.PerRow)
	want, wantRows := logits(t, exact, tokens), logits(t, rows, tokens)
	require.NoError(t, autocast.StoreFP8(m.Params(), report.Cast()))
	require.Equal(t, want, logits(t, logitsGraph(t, m, 2), tokens))
	rows, _ = quantised(autocast.PerRow)
	require.Equal(t, wantRows, logits(t, rows, tokens))

	// A checkpoint of them holds codes and steps by expert; reading widens them.
	dir := filepath.Join(t.TempDir(), "m")
	require.NoError(t, m.Save(dir))
	back, _, err := models.Load(dir)
	require.NoError(t, err)
	name := "model.layers.1.mlp.experts.down_proj.weight"
	codes, steps := m.Params().Get(name), m.Params().Get(name+"_scale")
	w, q := graph.Data[float32](back.Params().Get(name).Tensor()), graph.Data[dtype.E4M3](codes.Tensor())
	n := len(w) / 4
	for i, s := range graph.Data[float32](steps.Tensor()) {
		values := make([]float32, n)
		dtype.ToFloat32(values, q[i*n:][:n])
		for j := range values {
			values[j] *= s
		}
		require.Equal(t, values, w[i*n:][:n])
	}
}
