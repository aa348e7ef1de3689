package models_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

const kimiDir = "testdata/golden/kimi_linear"

// tinyKimi has three KDA layers and one that attends, mixtures behind the first.
func tinyKimi(t testing.TB) *models.Transformer {
	t.Helper()
	m, err := models.KimiLinear(models.Config{
		Vocab: 256, Hidden: 32, FFN: 48, Layers: 4, Heads: 2, Context: 512,
		Latent:  &models.Latent{KVRank: 12, Nope: 8, Rope: 4, V: 10},
		Delta:   &models.Delta{Heads: 2, HeadDim: 16, Width: 4, Layers: []bool{true, true, true, false}},
		Experts: &models.Experts{Router: ops.Router{Experts: 4, TopK: 2, Sigmoid: true, Renormalize: true}, FFN: 8, Shared: 8, Bias: true, Dense: []bool{true, false, false, false}},
	})
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	return m
}

// published rewrites the keys of the golden config in the spelling of published
// checkpoints.
func published(c map[string]any) {
	c["linear_attn_config"] = map[string]any{
		"head_dim": c["linear_head_dim"], "num_heads": c["linear_num_heads"], "short_conv_kernel_size": c["linear_conv_kernel_dim"],
		"kda_layers": []int{1, 2, 3}, "full_attn_layers": []int{4},
	}
	c["first_k_dense_replace"] = 1
	for _, key := range []string{"linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "layer_types", "mlp_layer_types"} {
		delete(c, key)
	}
	c["torch_dtype"], c["mla_use_nope"] = "float32", true
	delete(c, "dtype")
}

func TestKimiConfigHasTwoSpellings(t *testing.T) {
	c := config(t, "kimi_linear")
	want, err := parse(t, c)
	require.NoError(t, err)
	require.Equal(t, &models.Delta{Heads: 3, HeadDim: 16, Width: 4, Layers: []bool{true, true, true, false}}, want.Delta)
	require.Equal(t, &models.Latent{KVRank: 20, Nope: 12, Rope: 8, V: 10}, want.Latent)
	require.Equal(t, []bool{true, false, false, false}, want.Experts.Dense)
	require.Equal(t, 4096, want.Context)
	published(c)
	got, err := parse(t, c)
	require.NoError(t, err)
	require.Equal(t, want, got)

	// Written and read again it is the same, also with dense layers in between.
	for _, dense := range [][]bool{{true, false, false, false}, {false, true, false, true}, {false, false, false, false}} {
		want.Experts.Dense = dense
		var file bytes.Buffer
		require.NoError(t, want.Write(&file))
		got, err := models.ParseConfig(&file)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	want.Delta.Bound = -5
	want.Experts = nil
	var file bytes.Buffer
	require.NoError(t, want.Write(&file))
	got, err = models.ParseConfig(&file)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestKimiConfigNamesWhatItRefuses(t *testing.T) {
	linear := func(key string, value any) func(c map[string]any) {
		return func(c map[string]any) {
			published(c)
			c["linear_attn_config"].(map[string]any)[key] = value
		}
	}
	set := func(key string, value any) func(c map[string]any) {
		return func(c map[string]any) { c[key] = value }
	}
	for want, change := range map[string]func(c map[string]any){
		"kda_layers and full_attn_layers list 3 layers, num_hidden_layers is 4":                             linear("kda_layers", []int{1, 2}),
		"kda_layers [0 1 2] and full_attn_layers [4] must hold each of the layers 1 to 4 once":              linear("kda_layers", []int{0, 1, 2}),
		"kda_layers [1 2 4] and full_attn_layers [4] must hold each of the layers 1 to 4 once":              linear("kda_layers", []int{1, 2, 4}),
		"gate_lower_bound must be below 0, or absent, got 5":                                                linear("gate_lower_bound", 5),
		"the short convolution must be 2 to 64 wide, got 1":                                                 linear("short_conv_kernel_size", 1),
		"linear attention must have 1 to 2^20 heads of 1 to 256, got 3 of 512":                              linear("head_dim", 512),
		`layer_types[3] "sliding_attention" is not supported (supported: linear_attention, full_attention)`: set("layer_types", []string{"linear_attention", "linear_attention", "linear_attention", "sliding_attention"}),
		"the kinds of 1 layers are given, num_hidden_layers is 4":                                           set("layer_types", []string{"linear_attention"}),
		"mlp_layer_types has 1 entries, num_hidden_layers is 4":                                             set("mlp_layer_types", []string{"dense"}),
		`mlp_layer_types[0] "moe" is not supported (supported: dense, sparse)`:                              set("mlp_layer_types", []string{"moe", "dense", "dense", "dense"}),
		"router: top-k must be from 1 to the number of experts, got top-k 9 of 8 experts":                   set("num_experts_per_token", 9),
		`moe_router_activation_func "softmax" is not supported (supported: sigmoid)`:                        set("moe_router_activation_func", "softmax"),
		"moe_layer_freq 2 is not supported (supported: 1)":                                                  set("moe_layer_freq", 2),
		"mla_use_nope false is not supported (supported: true)":                                             set("mla_use_nope", false),
		"attention_bias and mlp_bias true are not supported for kimi_linear":                                set("attention_bias", true),
		"kv_lora_rank must be 1 to 2^20, got 0":                                                             set("kv_lora_rank", 0),
	} {
		c := config(t, "kimi_linear")
		change(c)
		_, err := parse(t, c)
		require.EqualError(t, err, want)
	}
	_, err := models.KimiLinear(models.Config{Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 8, Context: 8})
	require.EqualError(t, err, "models: kimi_linear must have Delta and Latent")
}

// TestK08_LoadedDecaysStay: A_log and dt_bias are bit for bit those of the file,
// and building graphs, training graphs and all, does not start them anew.
func TestK08_LoadedDecaysStay(t *testing.T) {
	m, report, err := models.Load(kimiDir)
	require.NoError(t, err)
	require.Empty(t, report.Ignored)
	ck, err := checkpoint.Open(kimiDir)
	require.NoError(t, err)
	defer ck.Close()
	same := func() {
		seen := 0
		for _, p := range m.Params().All() {
			if !strings.HasSuffix(p.Name, ".A_log") && !strings.HasSuffix(p.Name, ".dt_bias") {
				continue
			}
			seen++
			x, ok := ck.Lookup(p.Name)
			require.True(t, ok)
			want := make([]float32, p.Type.Size())
			require.NoError(t, x.Float32(want))
			require.Equal(t, want, graph.Data[float32](p.Tensor()), p.Name)
		}
		require.Equal(t, 6, seen)
	}
	same()
	require.NoError(t, m.Declare())
	lossAndGradients(t, m, []int32{5, 6, 7}, true)
	same()
}

// TestKimiGreedyWithoutCache takes the whole sequence through the model for each
// token.
func TestKimiGreedyWithoutCache(t *testing.T) {
	g := readGolden(t, kimiDir)
	m, _, err := models.Load(kimiDir)
	require.NoError(t, err)
	for _, p := range g.Prompts {
		ids := slices.Clone(p.InputIDs)
		for range p.Greedy.Tokens {
			logits := runLogits(t, m, ids)
			row := logits[len(logits)-m.Config.Vocab:]
			ids = append(ids, int32(slices.Index(row, slices.Max(row))))
		}
		require.Equal(t, p.Greedy.Tokens, ids[len(p.InputIDs):])
	}
}

// TestKimiSavesAsPublished: the names are those of published checkpoints, and
// what was saved loads as it was.
func TestKimiSavesAsPublished(t *testing.T) {
	m, _, err := models.Load(kimiDir)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, m.Save(dir))
	was, err := checkpoint.Open(kimiDir)
	require.NoError(t, err)
	defer was.Close()
	is, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer is.Close()
	require.Len(t, is.Tensors(), len(was.Tensors()))
	for _, x := range was.Tensors() {
		name := x.Name()
		if strings.Contains(name, ".0.block_sparse_moe.") { // the saver of transformers renames it
			name = strings.Replace(name, ".block_sparse_moe.", ".mlp.", 1)
		}
		y, ok := is.Lookup(name)
		require.True(t, ok, name)
		require.Equal(t, x.Shape(), y.Shape(), name)
		a, b := make([]byte, x.Bytes()), make([]byte, y.Bytes())
		require.NoError(t, x.Raw(a))
		require.NoError(t, y.Raw(b))
		require.Equal(t, a, b, name)
	}
	again, _, err := models.Load(dir)
	require.NoError(t, err)
	require.Equal(t, m.Config, again.Config)
	ids := readGolden(t, kimiDir).Prompts[1].InputIDs
	require.Equal(t, runLogits(t, m, ids), runLogits(t, again, ids))

	opened, err := models.Open(kimiDir, models.Store16(dtype.BFloat16))
	require.NoError(t, err)
	require.Equal(t, dtype.BFloat16, opened.Params().Get("model.layers.0.self_attn.q_proj.weight").Type.DType)
	require.Equal(t, dtype.BFloat16, opened.Params().Get("model.layers.1.mlp.experts.gate_proj.weight").Type.DType)
	want, got := runLogits(t, m, ids), runLogits(t, opened.Transformer, ids)
	for i := range want {
		require.InDelta(t, want[i], got[i], 0.5) // weights of 8 bits
	}
}

// TestKimiLoadIsStrict: a tensor that is missing is named as the file would.
func TestKimiLoadIsStrict(t *testing.T) {
	m, _, err := models.Load(kimiDir)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, m.Save(dir))
	drop := func(change func(e *checkpoint.Entry) bool) error {
		ck, err := checkpoint.Open(dir)
		require.NoError(t, err)
		defer ck.Close()
		var keep []checkpoint.Entry
		for _, x := range ck.Tensors() {
			v := make([]float32, x.Bytes()/4)
			require.NoError(t, x.Float32(v))
			e := checkpoint.Values(x.Name(), v, x.Shape()...)
			if change(&e) {
				keep = append(keep, e)
			}
		}
		out := filepath.Join(t.TempDir(), "broken")
		require.NoError(t, checkpoint.WriteDir(out, func(tmp string) error {
			return m.WriteFiles(tmp)
		}))
		require.NoError(t, checkpoint.Save(filepath.Join(out, "model.safetensors"), slices.Values(keep), checkpoint.SaveOptions{}))
		_, _, err = models.Load(out)
		return err
	}
	require.ErrorContains(t, drop(func(e *checkpoint.Entry) bool { return e.Name != "model.layers.2.block_sparse_moe.experts.3.w2.weight" }),
		"missing tensors: model.layers.2.block_sparse_moe.experts.3.w2.weight")
	require.ErrorContains(t, drop(func(e *checkpoint.Entry) bool {
		if e.Name == "model.layers.2.self_attn.A_log" {
			e.Name = "model.layers.2.self_attn.A"
		}
		return true
	}), "missing tensors: model.layers.2.self_attn.A_log")
}

// TestKimiStarts: decays between those of A 1 and 16, steps of 1e-3 to 0.1, and
// no weight decay on either: they are no matrices.
func TestKimiStarts(t *testing.T) {
	m := tinyKimi(t)
	for _, p := range m.Params().All() {
		w := graph.Data[float32](p.Tensor())
		switch {
		case strings.HasSuffix(p.Name, ".A_log"):
			require.Equal(t, []int{1, 1, 2, 1}, p.Type.Shape)
			require.GreaterOrEqual(t, slices.Min(w), float32(0))
			require.LessOrEqual(t, slices.Max(w), float32(math.Log(16)))
		case strings.HasSuffix(p.Name, ".dt_bias"):
			require.Equal(t, []int{32}, p.Type.Shape)
			for _, x := range w {
				dt := math.Log1p(math.Exp(float64(x)))
				require.True(t, dt > 0.99e-3 && dt < 0.101, "%v", dt)
			}
		case strings.HasSuffix(p.Name, "_conv1d.weight"):
			require.True(t, slices.Min(w) >= -0.5 && slices.Max(w) <= 0.5 && slices.Max(w) > 0.3)
		case strings.HasSuffix(p.Name, ".e_score_correction_bias"):
			require.True(t, p.Frozen)
			require.Zero(t, slices.Max(w))
		}
	}
	again := tinyKimi(t)
	for _, p := range m.Params().All() {
		require.Equal(t, p.Tensor().Bytes(), again.Params().Get(p.Name).Tensor().Bytes(), p.Name)
	}
}

// TestKimiPlanEqualsTapeMachine holds the two ways to run a training step of the
// hybrid bit-equal.
func TestKimiPlanEqualsTapeMachine(t *testing.T) {
	planEqualsTape(t, tinyKimi(t).Config, 2, 19)
}

// TestBalanceExperts moves the biases by the choices of a batch until the load
// is nearly even.
func TestBalanceExperts(t *testing.T) {
	m := tinyKimi(t)
	b := graph.New(graph.Share(m.Params()))
	const tokens = 256
	m.Logits(b, b.Input("tokens", dtype.Int32, 1, tokens), models.Dropout{})
	require.NoError(t, b.Err())
	ids := m.Choices(b)
	require.Nil(t, ids[0])
	plan, err := b.Plan(ids[1:]...)
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	feed := make([]int32, tokens)
	for i := range feed {
		feed[i] = int32(i * 37 % 256)
	}
	// uneven is the largest load of an expert over the mean, of any layer.
	uneven := func() (worst float64, choices [][]int32) {
		require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": feed}))
		choices = append(choices, nil)
		for _, n := range ids[1:] {
			v, err := run.Value(n)
			require.NoError(t, err)
			load := make([]int, 4)
			for _, e := range graph.Data[int32](v) {
				load[e]++
			}
			worst = max(worst, float64(slices.Max(load))*4/(2*tokens))
			choices = append(choices, slices.Clone(graph.Data[int32](v)))
		}
		return worst, choices
	}
	// One expert of the last layer begins far ahead of the others.
	graph.Data[float32](m.Params().Get("model.layers.3.mlp.gate.e_score_correction_bias").Tensor())[2] = 1
	before, choices := uneven()
	require.Equal(t, 2.0, before, "every token chooses expert 2")
	for range 300 {
		require.NoError(t, m.BalanceExperts(choices, 0.005))
		_, choices = uneven()
	}
	after, _ := uneven()
	t.Logf("largest load over the mean: %.2f before, %.2f after", before, after)
	require.Less(t, after, 1.25) // measured 1.14

	require.EqualError(t, m.BalanceExperts(nil, 0.1), "models: BalanceExperts: takes the choices of 4 layers, got 0")
	require.EqualError(t, m.BalanceExperts([][]int32{{0}, nil, nil, nil}, 0.1), "models: BalanceExperts: layer 0 has no experts, or the model no weights")
	require.EqualError(t, m.BalanceExperts([][]int32{nil, {4}, nil, nil}, 0.1), "models: BalanceExperts: layer 1: experts: choice 0 is expert 4, must be from 0 to 3")
}

// FuzzKimiConfig: any JSON is a config or an error.
func FuzzKimiConfig(f *testing.F) {
	f.Add([]byte(`{"model_type":"kimi_linear","linear_attn_config":{"kda_layers":[1],"full_attn_layers":[2]}}`))
	f.Add([]byte(`{"model_type":"kimi_linear","vocab_size":8,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":1,"num_experts":4,"moe_intermediate_size":4,"num_experts_per_token":1,"kv_lora_rank":4,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":4,"layer_types":["linear_attention"],"linear_num_heads":1,"linear_head_dim":4,"linear_conv_kernel_dim":4}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := models.ParseConfig(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var file bytes.Buffer
		require.NoError(t, c.Write(&file))
		require.True(t, json.Valid(file.Bytes()))
		again, err := models.ParseConfig(&file)
		require.NoError(t, err)
		require.Equal(t, c.Delta, again.Delta)
		require.Equal(t, c.Experts, again.Experts)
	})
}

// TestBalanceLoss descends the loss of the load alone: it falls to that of an
// even one.
func TestBalanceLoss(t *testing.T) {
	m := tinyKimi(t)
	b := graph.New(graph.Share(m.Params()))
	const tokens = 64
	m.Logits(b, b.Input("tokens", dtype.Int32, 1, tokens), models.Dropout{})
	loss := m.BalanceLoss(b)
	require.NoError(t, b.Err())
	var routers []*graph.Node
	for _, p := range b.Params() {
		if strings.HasSuffix(p.Name(), "mlp.gate.weight") {
			routers = append(routers, p)
			w := graph.Data[float32](p.Param().Tensor())
			for i := range w {
				w[i] *= 10
			}
		}
	}
	require.Len(t, routers, 3)
	grads, err := b.Grad(loss, routers...)
	require.NoError(t, err)
	plan, err := b.Plan(append([]*graph.Node{loss}, grads...)...)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	feed := make([]int32, tokens)
	for i := range feed {
		feed[i] = 7 // one token over and over makes one choice
	}
	value := func(n *graph.Node) []float32 {
		v, err := run.Value(n)
		require.NoError(t, err)
		return graph.Data[float32](v)
	}
	var first, last float32
	for i := range 60 {
		require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": feed}))
		if last = value(loss)[0]; i == 0 {
			first = last
		}
		for k, p := range routers {
			w := graph.Data[float32](p.Param().Tensor())
			for j, g := range value(grads[k]) {
				w[j] -= g
			}
		}
	}
	t.Logf("balance loss %.4f, then %.4f", first, last)
	require.Greater(t, first, float32(1.05))
	require.Less(t, last, (first+1)/2)

	plain, err := models.New(demo)
	require.NoError(t, err)
	none := graph.New(graph.Share(plain.Params()))
	plain.Logits(none, none.Input("tokens", dtype.Int32, 1, 4), models.Dropout{})
	plain.BalanceLoss(none)
	require.EqualError(t, none.Err(), "models: BalanceLoss: the graph has no experts")
}
