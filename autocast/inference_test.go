package autocast_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// logitsGraph gives the logits of tokens [rows,16].
func logitsGraph(t testing.TB, m *models.Transformer, rows int) *graph.Builder {
	t.Helper()
	b := graph.New(graph.Share(m.Params()))
	b.Output("logits", m.Logits(b, b.Input("tokens", dtype.Int32, rows, 16), models.Dropout{}))
	require.NoError(t, b.Err())
	return b
}

func logits(t testing.TB, b *graph.Builder, tokens []int32) []float32 {
	t.Helper()
	plan, err := b.Plan(b.Out("logits"))
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": tokens}))
	v, err := run.Value(b.Out("logits"))
	require.NoError(t, err)
	return slices.Clone(graph.Data[float32](v))
}

func TestInferenceModes(t *testing.T) {
	m := newModel(t, tiny)
	tokens := feeds(tiny, 0)["tokens"].([]int32)
	want := logits(t, logitsGraph(t, m, 2), tokens)
	cal, err := autocast.NewCalibrator(logitsGraph(t, m, 2))
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, cal.Run(context.Background(), feeds(tiny, i)))
	}
	c := cal.Calibration()
	require.Equal(t, 3, c.Runs)
	require.Len(t, c.Amax, 15)
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	back, err := autocast.ParseCalibration(raw)
	require.NoError(t, err)
	require.Equal(t, c, back)

	// Weights alone err less than weights and activations.
	last := 0.0
	for _, o := range []autocast.InferenceOptions{
		{Filter: small}, {Activations: autocast.PerRow, Filter: small}, {Activations: autocast.Static, Calibration: c, Filter: small},
	} {
		b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), o)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
		require.Len(t, report.Cast(), 14)
		got := logits(t, b, tokens)
		d, cos, _ := distance(got, want)
		t.Logf("%s: relative error %.4f, cosine %.5f", o.Activations, d, cos)
		require.Greater(t, d, last*0.9)
		require.Less(t, d, 0.03) // measured 0.009, 0.014, 0.013
		last = d
		twice, _, err := autocast.FP8Inference(b, o)
		require.NoError(t, err)
		require.Equal(t, planText(t, b), planText(t, twice))

		// A row's logits do not depend on what shares its batch.
		alone, _, err := autocast.FP8Inference(logitsGraph(t, m, 1), o)
		require.NoError(t, err)
		require.Equal(t, got[len(got)/2:], logits(t, alone, tokens[16:]))
	}
	_, _, err = autocast.FP8Inference(logitsGraph(t, m, 1), autocast.InferenceOptions{Activations: autocast.Static, Calibration: &autocast.Calibration{}, Filter: autocast.Filter{Include: []string{"*.down_proj.weight"}}})
	require.EqualError(t, err, "autocast: FP8Inference: the calibration has no maximum of what goes into model.layers.0.mlp.down_proj.weight, model.layers.1.mlp.down_proj.weight")
	_, _, err = autocast.FP8Inference(logitsGraph(t, m, 1), autocast.InferenceOptions{Activations: autocast.Static})
	require.EqualError(t, err, "autocast: FP8Inference: static steps need a Calibration")
	_, _, err = autocast.FP8Inference(logitsGraph(t, m, 1), autocast.InferenceOptions{Activations: 3})
	require.EqualError(t, err, "autocast: FP8Inference: the activations must be Exact, PerRow or Static, got 3")
	_, err = autocast.ParseCalibration([]byte(`{"amax": {"w": -1}}`))
	require.EqualError(t, err, "autocast: calibration: the maximum of w must be 0 or more, got -1")
	_, err = autocast.NewCalibrator(graph.New())
	require.EqualError(t, err, "autocast: calibration: the graph has no linears on parameters")
}

func planText(t testing.TB, b *graph.Builder) string {
	t.Helper()
	p, err := b.Plan(b.Out("logits"))
	require.NoError(t, err)
	return p.String()
}

// TestF09_AQuantisedWeightIsRefreshed: inference sees the weight of after an
// optimiser step.
func TestF09_AQuantisedWeightIsRefreshed(t *testing.T) {
	m := newModel(t, tiny)
	b, _, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Filter: small})
	require.NoError(t, err)
	tokens := feeds(tiny, 0)["tokens"].([]int32)
	first := logits(t, b, tokens)
	require.Equal(t, first, logits(t, b, tokens))
	newDescent(t, lossGraph(t, m)).step(t, feeds(tiny, 1))
	require.NotEqual(t, first, logits(t, b, tokens))
	fresh, _, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Filter: small})
	require.NoError(t, err)
	require.Equal(t, logits(t, fresh, tokens), logits(t, b, tokens))
}

// TestStoredWeightsTakeAQuarter in memory and in a checkpoint, and give the bits
// of weights quantised when they are used.
func TestStoredWeightsTakeAQuarter(t *testing.T) {
	c := tiny
	c.Hidden, c.FFN, c.HeadDim = 128, 256, 32
	m := newModel(t, c)
	tokens := feeds(c, 0)["tokens"].([]int32)
	b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Filter: small})
	require.NoError(t, err)
	perRow, _, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Activations: autocast.PerRow, Filter: small})
	require.NoError(t, err)
	want, wantRows := logits(t, b, tokens), logits(t, perRow, tokens)
	size := func() (n int) {
		for _, p := range m.Params().All() {
			if strings.Contains(p.Name, "_proj.weight") {
				n += len(p.Tensor().Bytes())
			}
		}
		return n
	}
	wide := size()
	file := func() int {
		dir := filepath.Join(t.TempDir(), "m")
		require.NoError(t, m.Save(dir))
		info, err := os.Stat(filepath.Join(dir, "model.safetensors"))
		require.NoError(t, err)
		return int(info.Size())
	}
	wideFile := file()
	require.NoError(t, autocast.StoreFP8(m.Params(), report.Cast()))
	require.NoError(t, autocast.StoreFP8(m.Params(), report.Cast()), "again changes nothing")
	require.InEpsilon(t, float64(wide)/4, float64(size()), 0.03, "steps included")
	rest := float64(wideFile - wide) // table, head, norms and the header stay
	require.InEpsilon(t, float64(wide)/4, float64(file())-rest, 0.1, "steps, and their lines in the header, included")

	stored := logitsGraph(t, m, 2)
	require.NoError(t, graph.Verify(stored))
	require.Equal(t, want, logits(t, stored, tokens))
	rows, second, err := autocast.FP8Inference(stored, autocast.InferenceOptions{Activations: autocast.PerRow, Filter: small})
	require.NoError(t, err)
	require.Equal(t, wantRows, logits(t, rows, tokens), second.Explain())
	plan, err := b.Plan(b.Out("logits"))
	require.NoError(t, err)
	_, err = plan.Native()
	require.ErrorContains(t, err, "is stored as float8_e4m3[128,128], the graph was built for float32[128,128]: build it again")

	// The codes and steps are what a checkpoint of FP8 weights holds.
	name := "model.layers.0.mlp.up_proj.weight"
	p, s := m.Params().Get(name), m.Params().Get(name+"_scale")
	path := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, checkpoint.Save(path, slices.Values([]checkpoint.Entry{
		checkpoint.Values(p.Name, graph.Data[dtype.E4M3](p.Tensor()), p.Type.Shape...),
		checkpoint.Values(s.Name, graph.Data[float32](s.Tensor()), s.Type.Shape...),
	}), checkpoint.SaveOptions{}))
	ck, err := checkpoint.Open(path)
	require.NoError(t, err)
	defer ck.Close()
	w, err := ck.FP8(name)
	require.NoError(t, err)
	require.Equal(t, graph.Data[float32](s.Tensor()), w.Steps)
	require.Equal(t, 1, w.BlockRows)
	for want, names := range map[string][]string{
		"autocast: StoreFP8: there is no parameter nothing":                                                                    {"nothing"},
		"autocast: StoreFP8: model.norm.weight must be a float weight [N,K] or stack [E,N,K] with a value, it is float32[128]": {"model.norm.weight"},
	} {
		require.EqualError(t, autocast.StoreFP8(m.Params(), names), want)
	}
}

// TestNoTableIsStoredAsCodes: a table that is the head too is quantised when it is
// used, and stays as it is stored, with all else that was named.
func TestNoTableIsStoredAsCodes(t *testing.T) {
	c := tiny
	c.Tied = true
	m := newModel(t, c)
	tokens := feeds(c, 0)["tokens"].([]int32)
	b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Filter: autocast.Filter{Include: []string{"*.up_proj.weight", "model.embed_tokens.weight"}}})
	require.NoError(t, err)
	require.Contains(t, report.Cast(), "model.embed_tokens.weight")
	want := logits(t, b, tokens)
	for range 2 {
		require.EqualError(t, autocast.StoreFP8(m.Params(), report.Cast()),
			"autocast: StoreFP8: model.embed_tokens.weight is a table, tied to a head or not, and ops.Embedding reads no 8-bit codes: leave it out of the names")
	}
	require.Equal(t, want, logits(t, b, tokens))
	for _, p := range m.Params().All() {
		require.Equal(t, dtype.Float32, p.Type.DType, p.Name)
	}
}

// TestNarrowModelsTakePart: weights stored as bf16 are quantised as their wide
// values are, multiply as bf16 as they are, and FP8 training leaves them alone.
func TestNarrowModelsTakePart(t *testing.T) {
	narrow, wide := newModel(t, tiny), newModel(t, tiny)
	for _, p := range narrow.Params().All() {
		if p.Type.Rank() != 2 || !strings.Contains(p.Name, "_proj.weight") {
			continue
		}
		q := wide.Params().Get(p.Name)
		codes := make([]dtype.BF16, p.Type.Size())
		dtype.FromFloat32(codes, graph.Data[float32](p.Tensor()))
		dtype.ToFloat32(graph.Data[float32](q.Tensor()), codes)
		raw := graph.NewTensor(graph.T(dtype.BFloat16, p.Type.Shape...))
		copy(graph.Data[dtype.BF16](raw), codes)
		require.NoError(t, p.Store(dtype.BFloat16, raw.Bytes()))
		q.Touch()
	}
	tokens := feeds(tiny, 0)["tokens"].([]int32)
	for _, a := range []autocast.Activations{autocast.Exact, autocast.PerRow} {
		var got [2][]float32
		for i, m := range []*models.Transformer{narrow, wide} {
			b, report, err := autocast.FP8Inference(logitsGraph(t, m, 2), autocast.InferenceOptions{Activations: a, Filter: small})
			require.NoError(t, err)
			require.Len(t, report.Cast(), 14)
			got[i] = logits(t, b, tokens)
		}
		require.Equal(t, got[1], got[0])
	}
	_, report, err := autocast.FP8(logitsGraph(t, narrow, 2), autocast.Options{Filter: small})
	require.NoError(t, err)
	require.Empty(t, report.Cast())
	require.Equal(t, "the weight is stored as bfloat16", report.Linears[0].Reason)
	var got [2][]float32
	for i, m := range []*models.Transformer{narrow, wide} {
		b, report, err := autocast.BF16(logitsGraph(t, m, 2), autocast.Filter{})
		require.NoError(t, err)
		require.Len(t, report.Cast(), 15)
		got[i] = logits(t, b, tokens)
	}
	require.Equal(t, got[1], got[0])
	require.NoError(t, autocast.StoreFP8(narrow.Params(), []string{"model.layers.0.mlp.up_proj.weight"}))
}

// TestBlocksStay: weights in the block codings of GGUF are not quantised again.
func TestBlocksStay(t *testing.T) {
	ps := graph.NewParams()
	p, err := ps.Add("coded.weight", graph.T(dtype.UInt8, 4, ops.Q8_0.Bytes(32)), false)
	require.NoError(t, err)
	require.NoError(t, p.Adopt(make([]byte, p.Type.Bytes())))
	ops.SetCoding(p, ops.Q8_0)
	b := graph.New(graph.Share(ps))
	x := b.Input("x", dtype.Float32, 2, 32)
	b.Output("y", ops.Add(ops.Linear(x, b.Param("coded.weight", p.Type.Shape...)), ops.Linear(x, b.Param("plain.weight", 4, 32))))
	require.NoError(t, b.Err())
	for _, a := range []autocast.Activations{autocast.Exact, autocast.PerRow} {
		cast, report, err := autocast.FP8Inference(b, autocast.InferenceOptions{Activations: a, Filter: autocast.Filter{Include: []string{"*"}}})
		require.NoError(t, err)
		require.NoError(t, graph.Verify(cast))
		require.Equal(t, []string{"plain.weight"}, report.Cast())
		require.Equal(t, "the weight is stored as uint8", report.Linears[0].Reason)
	}
}

// TestSessionsShareQuantisedWeights: executors on several goroutines, one copy
// of the codes.
func TestSessionsShareQuantisedWeights(t *testing.T) {
	m := newModel(t, tiny)
	tokens := feeds(tiny, 0)["tokens"].([]int32)
	var builders []*graph.Builder
	for i := range 6 {
		b := logitsGraph(t, m, 2)
		var err error
		if i%2 == 0 {
			b, _, err = autocast.FP8(b, autocast.Options{Filter: small})
		} else {
			b, _, err = autocast.FP8Inference(b, autocast.InferenceOptions{Activations: autocast.PerRow, Filter: small})
		}
		require.NoError(t, err)
		builders = append(builders, b)
	}
	got := make([][]float32, len(builders))
	var wg sync.WaitGroup
	for i, b := range builders {
		wg.Go(func() { got[i] = logits(t, b, tokens) })
	}
	wg.Wait()
	for i := range got {
		require.Equal(t, got[i%2], got[i])
	}
}
