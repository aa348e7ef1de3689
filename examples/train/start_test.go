package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/models/train"
)

const golden = "../../models/testdata/golden/"

// tune are the flags of a short run on a checkpoint.
func tune(init, text, out string, more ...string) []string {
	return append([]string{"-init", init, "-text", text, "-out", out, "-context", "16", "-batch", "2", "-warmup", "0", "-lr", "0.01", "-save-every", "3", "-json"}, more...)
}

// losses are those of the steps that a run with -json printed.
func losses(t *testing.T, stdout string) []float64 {
	t.Helper()
	var all []float64
	for line := range strings.Lines(stdout) {
		var m struct {
			Step int
			Loss float64
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if m.Step > 0 {
			all = append(all, m.Loss)
		}
	}
	return all
}

// modelFolder saves a new model in float32.
func modelFolder(t *testing.T, vocab int) string {
	t.Helper()
	m, err := models.New(models.Config{
		Type: "llama", Vocab: vocab, Hidden: 16, FFN: 24, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8,
		Context: 32, NormEps: 1e-5, RopeTheta: 1e4,
	})
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, m.Save(dir))
	return dir
}

// TestInitTrainsTheWholeModel: a checkpoint in float16 is widened and changed,
// and an interrupted run goes on to the same bits.
func TestInitTrainsTheWholeModel(t *testing.T) {
	text, dir := textFile(t), t.TempDir()
	whole, half := filepath.Join(dir, "whole"), filepath.Join(dir, "half")
	stdout, _, err := call(t, tune(golden+"qwen3", text, whole, "-steps", "6")...)
	require.NoError(t, err)
	all := losses(t, stdout)
	require.Less(t, all[5], all[0]/2) // 7.82 to 2.95

	// What a process that was killed after step 3 leaves.
	require.NoError(t, os.CopyFS(half, os.DirFS(whole)))
	require.NoError(t, os.RemoveAll(filepath.Join(half, "step-00000006")))
	_, _, err = call(t, "-resume", "-out", half)
	require.NoError(t, err)
	require.Equal(t, files(t, whole), files(t, half))
	_, _, err = call(t, "-resume", "-out", half, "-init", golden+"qwen2")
	require.EqualError(t, err, "-init: must be "+golden+"qwen3 as in the run so far, got "+golden+"qwen2 (leave it out with -resume)")

	m, err := models.Open(filepath.Join(whole, "last"))
	require.NoError(t, err)
	require.Equal(t, "qwen3", m.Config.Type)
	require.FileExists(t, filepath.Join(whole, "last", "generation_config.json"))
	require.NoError(t, m.Close())
}

// TestInitUsesTheTokenizer: the text goes through that of the checkpoint, which
// gets a copy.
func TestInitUsesTheTokenizer(t *testing.T) {
	text := textFile(t)
	raw, err := os.ReadFile(text)
	require.NoError(t, err)
	model := modelFolder(t, 300)
	out := filepath.Join(t.TempDir(), "out")
	_, _, err = call(t, tune(model, text, out, "-steps", "2")...)
	require.EqualError(t, err, "-init: "+model+" has no tokenizer, and its vocabulary of 300 is not one of bytes")
	require.NoDirExists(t, out)

	file, err := tokenizer.Train(slices.Values([]string{string(raw)}), tokenizer.TrainOptions{VocabSize: 260})
	require.NoError(t, err)
	put(t, filepath.Join(model, "tokenizer.json"), string(file))
	_, _, err = call(t, tune(model, text, out, "-steps", "2")...)
	require.NoError(t, err)
	require.Equal(t, string(file), read(t, filepath.Join(out, "last", "tokenizer.json")))
	ids, err := filepath.Glob(filepath.Join(out, "tokens-*.u16"))
	require.NoError(t, err)
	require.Len(t, ids, 1)
	info, err := os.Stat(ids[0])
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(2*len(raw)), "fewer ids than bytes")
}

// logits runs the graph that build makes on the weights of a model.
func logits(t *testing.T, weights *graph.Params, build func(b *graph.Builder) *graph.Node, ids []int32) []float32 {
	t.Helper()
	b := graph.New(graph.Share(weights))
	z := build(b)
	require.NoError(t, b.Err())
	plan, err := b.Plan(z)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids}))
	v, err := run.Value(z)
	require.NoError(t, err)
	return append([]float32(nil), graph.Data[float32](v)...)
}

// TestLoRA trains adapters alone, resumes them to the same bits, and merges the
// best of them.
func TestLoRA(t *testing.T) {
	text, dir, model := textFile(t), t.TempDir(), modelFolder(t, 256)
	whole, half := filepath.Join(dir, "whole"), filepath.Join(dir, "half")
	flags := strings.Fields("-steps 6 -lora-rank 2 -lora-targets q_proj,v_proj -lora-targets up_proj -merge")
	stdout, _, err := call(t, tune(model, text, whole, flags...)...)
	require.NoError(t, err)
	all := losses(t, stdout)
	require.Less(t, all[5], all[0])
	require.NoError(t, os.CopyFS(half, os.DirFS(whole)))
	require.NoError(t, os.RemoveAll(filepath.Join(half, "step-00000006")))
	stdout, _, err = call(t, "-resume", "-out", half)
	require.NoError(t, err)
	require.Contains(t, stdout, "\nadapter in "+filepath.Join(half, "best")+"\nmerged model in "+filepath.Join(half, "merged")+"\n")
	for _, name := range []string{"last/adapter_model.safetensors", "last/adapter_config.json", "last/optimizer.safetensors", "merged/model.safetensors"} {
		require.Equal(t, read(t, filepath.Join(whole, name)), read(t, filepath.Join(half, name)), name)
	}

	base, err := models.Open(model)
	require.NoError(t, err)
	defer base.Close()
	ids := []int32("a fan of")
	plainLogits := func(m *models.Transformer) []float32 {
		return logits(t, m.Params(), func(b *graph.Builder) *graph.Node {
			return m.Logits(b, b.Input("tokens", dtype.Int32, 1, len(ids)), models.Dropout{})
		}, ids)
	}
	was := plainLogits(base.Transformer)
	best := filepath.Join(whole, train.BestName)
	ad, err := base.OpenAdapter(best)
	require.NoError(t, err)
	require.Equal(t, model, ad.Base)
	require.Equal(t, 2*2*((16+16)+(16+8)+(16+24)), ad.Parameters())
	require.Equal(t, 4., ad.LoRA.Alpha)
	got := logits(t, ad.Params(), func(b *graph.Builder) *graph.Node { return ad.Logits(b, 1, len(ids)) }, ids)
	merged, err := models.Open(filepath.Join(whole, mergedName))
	require.NoError(t, err)
	defer merged.Close()
	for _, p := range merged.Params().All() {
		adapted := slices.ContainsFunc([]string{"q_proj", "v_proj", "up_proj"}, func(target string) bool { return strings.Contains(p.Name, target) })
		require.Equal(t, adapted, !bytes.Equal(base.Params().Get(p.Name).Tensor().Bytes(), p.Tensor().Bytes()), p.Name)
	}
	sum := plainLogits(merged.Transformer)
	moved, apart := 0., 0.
	for i, z := range got {
		moved = max(moved, abs(z-was[i]))
		apart = max(apart, abs(z-sum[i]))
	}
	t.Logf("adapters move logits by %.1e, merging by %.1e", moved, apart)
	require.Greater(t, moved, 1e-2)
	require.Less(t, apart, 1e-6)

	for args, want := range map[string]string{
		"-lora-rank 3":         "-lora-rank: must be 2 as in the run so far, got 3 (leave it out with -resume)",
		"-lora-alpha 3":        "-lora-alpha: must be 4 as in the run so far, got 3 (leave it out with -resume)",
		"-lora-targets up":     "-lora-targets: must be q_proj,v_proj,up_proj as in the run so far, got up (leave it out with -resume)",
		"-fp8 dynamic":         "-fp8: cannot be given with -lora-rank",
		"-dim 9":               "-dim: cannot be given for the model of " + model + ", which has its size",
		"-init " + model + "x": "-init: must be " + model + " as in the run so far, got " + model + "x (leave it out with -resume)",
	} {
		_, _, err := call(t, append([]string{"-resume", "-out", whole}, strings.Fields(args)...)...)
		require.EqualError(t, err, want)
	}
	fresh := filepath.Join(dir, "fresh")
	_, _, err = call(t, tune(model, text, fresh, "-lora-rank", "2", "-lora-targets", "qproj")...)
	require.ErrorContains(t, err, `-lora-targets: models: LoRA: target "qproj" is no linear layer of the model (they are called q_proj, `)
	_, _, err = call(t, tune(filepath.Join(dir, "none"), text, fresh)...)
	require.ErrorContains(t, err, "-init: models: ")
	require.NoDirExists(t, fresh)
	put(t, filepath.Join(fresh, mergedName, "mine"), "mine\n")
	_, _, err = call(t, tune(model, text, fresh, "-lora-rank", "2")...)
	require.EqualError(t, err, "-out: "+filepath.Join(fresh, mergedName)+" is there, but no checkpoint of a run: a new run needs a folder without it")
}

func abs(x float32) float64 { return max(float64(x), -float64(x)) }
