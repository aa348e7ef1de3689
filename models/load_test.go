package models_test

import (
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
)

// altered copies a golden with its tensors and config changed.
func altered(t *testing.T, name string, tensors func(iter.Seq[checkpoint.Entry]) iter.Seq[checkpoint.Entry], edit func(map[string]any)) string {
	t.Helper()
	from := filepath.Join("testdata/golden", name)
	ck, err := checkpoint.Open(from)
	require.NoError(t, err)
	defer ck.Close()
	dir := filepath.Join(t.TempDir(), "model")
	all := func(yield func(checkpoint.Entry) bool) {
		for _, x := range ck.Tensors() {
			if !yield(x.Entry()) {
				return
			}
		}
	}
	require.NoError(t, checkpoint.Save(dir, tensors(all), checkpoint.SaveOptions{}))
	c := config(t, name)
	if edit != nil {
		edit(c)
	}
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o666))
	return dir
}

// each changes entries one by one; none drops the entry.
func each(f func(checkpoint.Entry) []checkpoint.Entry) func(iter.Seq[checkpoint.Entry]) iter.Seq[checkpoint.Entry] {
	return func(in iter.Seq[checkpoint.Entry]) iter.Seq[checkpoint.Entry] {
		return func(yield func(checkpoint.Entry) bool) {
			for e := range in {
				for _, x := range f(e) {
					if !yield(x) {
						return
					}
				}
			}
		}
	}
}

const table, head = "model.embed_tokens.weight", "lm_head.weight"

func TestC01_TiedWeights(t *testing.T) {
	want, report, err := models.Load("testdata/golden/qwen2") // the file has the table alone
	require.NoError(t, err)
	require.Equal(t, models.LoadReport{Tied: table}, report)
	ids := []int32{5, 9, 200}

	onlyHead := altered(t, "qwen2", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name == table {
			e.Name = head
		}
		return []checkpoint.Entry{e}
	}), nil)
	m, report, err := models.Load(onlyHead)
	require.NoError(t, err)
	require.Equal(t, models.LoadReport{Tied: head}, report)
	require.Equal(t, runLogits(t, want, ids), runLogits(t, m, ids))

	both := altered(t, "qwen2", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name != table {
			return []checkpoint.Entry{e}
		}
		twin := e
		twin.Name = head
		return []checkpoint.Entry{e, twin}
	}), nil)
	m, report, err = models.Load(both)
	require.NoError(t, err)
	require.Equal(t, models.LoadReport{Tied: table, Ignored: []string{head}}, report)

	saved := filepath.Join(t.TempDir(), "saved")
	require.NoError(t, m.Save(saved))
	ck, err := checkpoint.Open(saved)
	require.NoError(t, err)
	_, ok := ck.Lookup(head)
	require.False(t, ok, "one copy is saved")
	require.NoError(t, ck.Close())

	differ := altered(t, "qwen2", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name != table {
			return []checkpoint.Entry{e}
		}
		data := make([]float32, e.Shape[0]*e.Shape[1])
		return []checkpoint.Entry{e, checkpoint.Values(head, data, e.Shape...)}
	}), nil)
	m, report, err = models.Load(differ)
	require.NoError(t, err)
	require.Equal(t, models.LoadReport{Untied: head}, report)
	require.False(t, m.Config.Tied, "a head that differs from the table is not replaced by it")

	untied := altered(t, "qwen2", each(func(e checkpoint.Entry) []checkpoint.Entry { return []checkpoint.Entry{e} }),
		func(c map[string]any) { c["tie_word_embeddings"] = false })
	_, _, err = models.Load(untied)
	require.EqualError(t, err, "models: "+untied+": missing tensors: lm_head.weight")
}

func TestEveryTensorIsAccountedFor(t *testing.T) {
	same := each(func(e checkpoint.Entry) []checkpoint.Entry { return []checkpoint.Entry{e} })
	gone := altered(t, "qwen3", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name == "model.layers.1.self_attn.q_norm.weight" || e.Name == "model.norm.weight" {
			return nil
		}
		return []checkpoint.Entry{e}
	}), nil)
	_, _, err := models.Load(gone)
	require.EqualError(t, err, "models: "+gone+": missing tensors: model.layers.1.self_attn.q_norm.weight, model.norm.weight")

	extra := altered(t, "qwen3", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name != "model.norm.weight" {
			return []checkpoint.Entry{e}
		}
		return []checkpoint.Entry{e, checkpoint.Values("model.layers.0.self_attn.sinks", []float32{1}, 1),
			checkpoint.Values("model.layers.0.self_attn.rotary_emb.inv_freq", []float32{1}, 1)}
	}), nil)
	_, _, err = models.Load(extra)
	require.EqualError(t, err, "models: "+extra+": unexpected tensors: model.layers.0.self_attn.sinks")

	integer := altered(t, "qwen3", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name == "model.norm.weight" {
			return []checkpoint.Entry{checkpoint.Values(e.Name, make([]int32, 64), 64)}
		}
		return []checkpoint.Entry{e}
	}), nil)
	_, _, err = models.Load(integer)
	require.EqualError(t, err, "models: "+integer+": tensors that do not fit: model.norm.weight is stored as int32, must be a float")

	// A config that disagrees with the weights: both are named, and nothing is
	// allocated for what it says.
	for want, edit := range map[string]func(map[string]any){
		"model.embed_tokens.weight is [256,64], the config says [1000000000,64]":  func(c map[string]any) { c["vocab_size"] = 1000000000 },
		"model.layers.0.self_attn.q_norm.weight is [24], the config says [26]":    func(c map[string]any) { c["head_dim"] = 26 },
		"model.layers.3.mlp.down_proj.weight is [64,136], the config says [64,8]": func(c map[string]any) { c["intermediate_size"] = 8 },
		"num_hidden_layers is 65536, the checkpoint has 47 tensors in all":        func(c map[string]any) { c["num_hidden_layers"] = 65536; delete(c, "layer_types") },
	} {
		dir := altered(t, "qwen3", same, edit)
		_, _, err := models.Load(dir)
		require.ErrorContains(t, err, "models: "+dir+": ")
		require.ErrorContains(t, err, want)
	}
}

// TestK08_LoadedValuesSurviveInit: what a checkpoint gave is not drawn anew.
func TestK08_LoadedValuesSurviveInit(t *testing.T) {
	for _, dir := range goldenFolders(t) {
		want, _, err := models.Load(dir)
		require.NoError(t, err)
		m, _, err := models.Load(dir)
		require.NoError(t, err)
		require.NoError(t, m.Declare())
		require.NoError(t, m.Init(1))
		for i, p := range want.Params().All() {
			require.Equal(t, p.Tensor().Bytes(), m.Params().All()[i].Tensor().Bytes(), p.Name)
		}
	}
}
