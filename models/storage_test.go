package models_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
)

// TestStoredWeightsGiveTheBitsOfWideOnes opens the goldens with their matrices
// as the files have them.
func TestStoredWeightsGiveTheBitsOfWideOnes(t *testing.T) {
	half := 0
	for _, dir := range goldenFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			wide, _, err := models.Load(dir)
			require.NoError(t, err)
			o, err := models.Open(dir)
			require.NoError(t, err)
			if table := o.Params().Get("model.embed_tokens.weight"); table.Type.DType != dtype.Float32 {
				require.Equal(t, 2*table.Type.Size(), len(table.Tensor().Bytes()))
				half++
			}
			for _, p := range readGolden(t, dir).Prompts {
				require.Equal(t, runLogits(t, wide, p.InputIDs), runLogits(t, o.Transformer, p.InputIDs))
			}
		})
	}
	require.GreaterOrEqual(t, half, 5, "goldens in 16 bits")
}

func TestStorageOptions(t *testing.T) {
	dir := "testdata/golden/llama_untied_bias" // float32
	wide, _, err := models.Load(dir)
	require.NoError(t, err)
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		o, err := models.Open(dir, models.Store16(dt))
		require.NoError(t, err)
		for i, p := range wide.Params().All() {
			q := o.Params().All()[i]
			if len(p.Type.Shape) != 2 {
				require.Equal(t, p.Tensor().Bytes(), q.Tensor().Bytes(), p.Name)
				continue
			}
			w := graph.Data[float32](p.Tensor())
			if dt == dtype.BFloat16 {
				want := make([]dtype.BF16, len(w))
				dtype.FromFloat32(want, w)
				require.Equal(t, want, graph.Data[dtype.BF16](q.Tensor()), p.Name)
			} else {
				want := make([]dtype.F16, len(w))
				dtype.FromFloat32(want, w)
				require.Equal(t, want, graph.Data[dtype.F16](q.Tensor()), p.Name)
			}
		}
		// A GGUF file of the llama form is put in order while it is rounded.
		path := filepath.Join(t.TempDir(), "model.gguf")
		require.NoError(t, os.WriteFile(path, ggufOf(wide, nil), 0o666))
		g, err := models.Open(path, models.Store16(dt))
		require.NoError(t, err)
		for i, p := range o.Params().All() {
			require.Equal(t, p.Tensor().Bytes(), g.Params().All()[i].Tensor().Bytes(), p.Name)
		}
	}
	_, err = models.Open(dir, models.Store16(dtype.Float64))
	require.EqualError(t, err, "models: matrices are stored as float16 or bfloat16, not float64")
	_, err = models.Open(dir, models.Store16(dtype.BFloat16), models.Widen())
	require.EqualError(t, err, "models: Widen and Store16 must not be given together: float32 or bfloat16")
	o, err := models.Open("testdata/golden/llama3", models.Widen())
	require.NoError(t, err)
	require.Equal(t, dtype.Float32, o.Params().Get("model.embed_tokens.weight").Type.DType)
}

// TestSaveIsWhatWasOpened saves every golden in shards and opens it again: the
// config and every bit of the weights are the same.
func TestSaveIsWhatWasOpened(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			o, err := models.Open(dir)
			require.NoError(t, err)
			to := filepath.Join(t.TempDir(), "saved")
			require.NoError(t, o.Save(to, models.Shards(5_000)))
			shards, err := filepath.Glob(filepath.Join(to, "model-*.safetensors"))
			require.NoError(t, err)
			require.Greater(t, len(shards), 1)
			require.FileExists(t, filepath.Join(to, "model.safetensors.index.json"))
			again, err := models.Open(to)
			require.NoError(t, err)
			require.Equal(t, o.Config, again.Config)
			require.Equal(t, len(o.Params().All()), len(again.Params().All()))
			for i, p := range o.Params().All() {
				q := again.Params().All()[i]
				require.Equal(t, p.Type, q.Type)
				require.Equal(t, p.Tensor().Bytes(), q.Tensor().Bytes(), p.Name)
			}
			require.NoError(t, o.Save(to, models.As(dtype.Float32)), "one file in place of the shards")
			again, err = models.Open(to)
			require.NoError(t, err)
			require.Equal(t, dtype.Float32, again.Params().All()[0].Type.DType)
			require.NoFileExists(t, filepath.Join(to, "model.safetensors.index.json"))
		})
	}
}

// TestAModelThatIsNotOpenedIsClosed: where its tokenizer is broken, the files of
// the weights that were opened before are given back.
func TestAModelThatIsNotOpenedIsClosed(t *testing.T) {
	m, _, err := models.Load("testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	gguf := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(gguf, ggufOf(m, func(g *ggufFile) { g.key("tokenizer.ggml.model", "none") }), 0o666))
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/golden/qwen3")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{"), 0o666))
	for _, path := range []string{gguf, dir} {
		_, err := models.Open(path)
		require.ErrorContains(t, err, "tokenizer")
		mapped, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("skipped: the system does not tell what is mapped: %v", err)
		}
		require.False(t, strings.Contains(string(mapped), path), path)
	}
}

// TestSaveRefusesWhatCannotBeOpened, and the folder stays as it was.
func TestSaveRefusesWhatCannotBeOpened(t *testing.T) {
	o, err := models.Open("testdata/golden/qwen3")
	require.NoError(t, err)
	defer o.Close()
	to := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, o.Save(to))
	for _, dt := range []dtype.DType{dtype.Float8E4M3, dtype.Float8E5M2, dtype.UInt8, dtype.Int32, dtype.DType(99)} {
		require.EqualError(t, o.Save(to, models.As(dt)), "models: Save: weights are stored as float32, float64, bfloat16 or float16, not "+dt.String())
	}
	again, err := models.Open(to)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// TestTransformersOpensWhatWeSave holds the logits that transformers computes
// from our folders equal to those from its own.
func TestTransformersOpensWhatWeSave(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch, transformers, safetensors").CombinedOutput(); err != nil {
		t.Skipf("skipped: %s has no transformers (PYTHON names another interpreter): %v %s", python, err, lastLine(out))
	}
	args := []string{"testdata/compare_saved.py"}
	for _, dir := range goldenFolders(t) {
		o, err := models.Open(dir)
		require.NoError(t, err)
		to := filepath.Join(t.TempDir(), filepath.Base(dir))
		require.NoError(t, o.Save(to, models.Shards(5_000)))
		args = append(args, dir, to)
	}
	out, err := exec.Command(python, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, len(goldenFolders(t)), strings.Count(string(out), ": equal"), string(out))
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// TestOpenedAsStoredIsNotTrained: without Widen no weight is, not even a vector
// of float32.
func TestOpenedAsStoredIsNotTrained(t *testing.T) {
	const dir = "testdata/golden/llama_untied_bias"
	for _, c := range []struct {
		opts    []models.Option
		trained bool
	}{{nil, false}, {[]models.Option{models.Store16(dtype.BFloat16)}, false}, {[]models.Option{models.Widen()}, true}} {
		o, err := models.Open(dir, c.opts...)
		require.NoError(t, err)
		b := graph.New(graph.Share(o.Params()))
		loss, _ := o.Loss(b, 1, 4, 0, 0)
		_, err = b.Grad(loss, b.Params()...)
		if c.trained {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, "graph: Grad: nothing to differentiate by: the graph has no trainable parameters")
		}
		for _, p := range o.Params().All() {
			require.Equal(t, c.trained, p.Trainable(), p.Name)
		}
		require.NoError(t, o.Close())
	}
}

// TestAClosedModelSaysSo: what would read its weights is an error, and a folder
// that is there stays as it was.
func TestAClosedModelSaysSo(t *testing.T) {
	const closed = "models: the model is closed, and the files of its weights with it"
	o, err := models.Open("testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	ad, err := o.Adapt(models.LoRA{Rank: 1, Alpha: 1}, 0)
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, o.Save(to))
	before := graph.New(graph.Share(o.Params()))
	plan, err := before.Plan(o.Logits(before, before.Input("tokens", dtype.Int32, 1, 1), models.Dropout{}))
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	feeds := graph.Feeds{"tokens": []int32{1}}
	require.NoError(t, run.Do(context.Background(), feeds))
	require.NoError(t, o.Close())
	require.EqualError(t, run.Do(context.Background(), feeds), "graph: Do: the model is closed, and the files of its weights with it")
	require.NoError(t, o.Close())
	require.ErrorContains(t, o.Save(to), closed)
	again, err := models.Open(to)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	_, err = ad.Merge()
	require.EqualError(t, err, closed)
	_, err = o.Float64()
	require.EqualError(t, err, closed)
	_, err = o.Adapt(models.LoRA{Rank: 1, Alpha: 1}, 0)
	require.EqualError(t, err, closed)
	b := graph.New(graph.Share(o.Params()))
	o.Loss(b, 1, 4, 0, 0)
	require.EqualError(t, b.Err(), closed)
	b = graph.New(graph.Share(o.Params()))
	o.Packed(b, models.Packed{Tokens: 1, Requests: 1, Pages: 1, PageSize: 1, Indices: 1})
	require.EqualError(t, b.Err(), closed)

	_, err = models.Open(to, models.Widen(), nil)
	require.EqualError(t, err, "models: option 1 is missing (nil)")
	var none models.Transformer
	require.ErrorContains(t, none.Save(to), "models: the model has no parameters: New, ")
	require.ErrorContains(t, none.Init(0), "models: the model has no parameters: New, ")
	for _, none := range []*models.Transformer{nil, &none, models.Opened{}.Transformer} {
		_, _, _, joined := none.Joined("model.layers.0.mlp.experts.up_proj.weight")
		require.False(t, joined)
		require.Equal(t, []string{"lm_head.weight"}, none.OnDisk("lm_head.weight"))
		for _, build := range []func(b *graph.Builder) *graph.Node{
			none.BalanceLoss,
			func(b *graph.Builder) *graph.Node { require.Empty(t, none.Choices(b)); return nil },
			func(b *graph.Builder) *graph.Node { return none.Packed(b, models.Packed{}) },
			func(b *graph.Builder) *graph.Node { loss, _ := none.Loss(b, 1, 4, 0, 0); return loss },
			func(b *graph.Builder) *graph.Node { return none.Hidden(b, nil, models.Dropout{}, nil) },
			func(b *graph.Builder) *graph.Node { return none.Head(b, nil) },
		} {
			b := graph.New()
			build(b)
			require.ErrorContains(t, b.Err(), "models: the model has no parameters: New, ")
		}
	}
}

// TestCloseWaitsForWhatReadsTheWeights: they lie in mapped files, and are gone
// after it.
func TestCloseWaitsForWhatReadsTheWeights(t *testing.T) {
	for range 10 {
		o, err := models.Open("testdata/golden/qwen3")
		require.NoError(t, err)
		ad, err := o.Adapt(models.LoRA{Rank: 1, Alpha: 1}, 1)
		require.NoError(t, err)
		began, ended := make(chan bool), make(chan error, 4)
		dir := t.TempDir()
		for _, read := range []func() error{
			func() error { _, err := ad.Merge(); return err },
			func() error { _, err := o.Float64(); return err },
			func() error { return o.Save(filepath.Join(dir, "stored")) },
			func() error { return o.Save(filepath.Join(dir, "wide"), models.As(dtype.Float32)) },
		} {
			go func() {
				began <- true
				var err error
				for err == nil {
					err = read()
				}
				ended <- err
			}()
		}
		for range 4 {
			<-began
		}
		require.NoError(t, o.Close())
		for range 4 {
			require.ErrorContains(t, <-ended, "the model is closed")
		}
	}
}
