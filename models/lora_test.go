package models_test

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

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/generate"
)

const peftFolder = "testdata/lora/qwen3" // on golden/qwen3, made by PEFT

// adaptedLogits computes the logits of one sequence.
func adaptedLogits(t *testing.T, ad *models.Adapted, ids []int32) []float32 {
	t.Helper()
	b := graph.New(graph.Share(ad.Params()))
	logits := ad.Logits(b, 1, len(ids))
	require.NoError(t, b.Err())
	require.NoError(t, graph.Verify(b))
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids}))
	v, err := run.Value(logits)
	require.NoError(t, err)
	return append([]float32(nil), graph.Data[float32](v)...)
}

func requireNear(t *testing.T, want []float64, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	worst := 0.0
	for i, w := range want {
		worst = max(worst, math.Abs(w-float64(got[i])))
	}
	t.Logf("largest difference of a logit %.1e", worst)
	require.Less(t, worst, logitBound)
}

// TestPEFTAdapter runs adapters that PEFT wrote, on the base as it is, on the
// base in 16 bits, and merged into it: plain ones, with ranks and alphas by patterns
// and use_rslora, with magnitudes. They move the logits by 11, 8 and 10.
func TestPEFTAdapter(t *testing.T) {
	for name, numbers := range map[string]int{
		"qwen3":    4*4*((64+96)+(64+48)+(136+64)) - (64 + 96), // one layer has rank 3
		"patterns": 2*2*((64+48)+(96+64)) + (1+2)*(64+136),
		"dora":     2 * 4 * ((64 + 96) + 2*(64+48) + (96 + 64) + 3*(136+64)),
	} {
		t.Run(name, func(t *testing.T) { testPEFTAdapter(t, filepath.Join("testdata/lora", name), numbers) })
	}
}

func testPEFTAdapter(t *testing.T, folder string, numbers int) {
	var g struct {
		InputIDs []int32 `json:"input_ids"`
		Logits   [2][]float64
	}
	raw, err := os.ReadFile(filepath.Join(folder, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &g))
	check := func(z []float32) {
		v := len(g.Logits[0])
		requireNear(t, g.Logits[0], z[:v])
		requireNear(t, g.Logits[1], z[len(z)-v:])
	}
	wide, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	ad, err := wide.OpenAdapter(folder)
	require.NoError(t, err)
	require.Equal(t, "golden/qwen3", ad.Base)
	require.Equal(t, numbers, ad.Parameters())
	z := adaptedLogits(t, ad, g.InputIDs)
	check(z)

	o, err := models.Open("testdata/golden/qwen3")
	require.NoError(t, err)
	half, err := o.OpenAdapter(folder)
	require.NoError(t, err)
	require.Equal(t, z, adaptedLogits(t, half, g.InputIDs))

	merged, err := ad.Merge()
	require.NoError(t, err)
	check(runLogits(t, merged, g.InputIDs))
	saved := filepath.Join(t.TempDir(), "merged")
	require.NoError(t, merged.Save(saved))
	again, _, err := models.Load(saved)
	require.NoError(t, err)
	require.Equal(t, runLogits(t, merged, g.InputIDs), runLogits(t, again, g.InputIDs))

	codes, err := models.Open(fp8Folder(t, "row"))
	require.NoError(t, err)
	on8, err := codes.OpenAdapter(folder)
	require.NoError(t, err)
	sum8, err := on8.Merge()
	require.NoError(t, err)
	require.InDeltaSlice(t, runLogits(t, sum8, g.InputIDs), adaptedLogits(t, on8, g.InputIDs), 1e-4)

	// Through pages: the first greedy token is that of the logits.
	s, err := generate.New(half, generate.Options{})
	require.NoError(t, err)
	r, err := s.Add(g.InputIDs, generate.Sampling{})
	require.NoError(t, err)
	id, err := r.Next(context.Background())
	require.NoError(t, err)
	last := z[len(z)-o.Config.Vocab:]
	for i, x := range last {
		require.LessOrEqual(t, x, last[id], "token %d", i)
	}

	// What we save is what was opened.
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, ad.Save(dir))
	_, err = models.Open(dir)
	require.EqualError(t, err, fmt.Sprintf("models: %s holds an adapter, which goes on top of a model: open the model that it was trained on (%s), and then the adapter on it", dir, "golden/qwen3"))
	base, err := models.AdapterBase(dir)
	require.NoError(t, err)
	require.Equal(t, "golden/qwen3", base)
	third, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	back, err := third.OpenAdapter(dir)
	require.NoError(t, err)
	require.Equal(t, z, adaptedLogits(t, back, g.InputIDs))
}

// TestPEFTOpensOurAdapters holds the logits that PEFT computes from an adapter
// of ours to our own.
func TestPEFTOpensOurAdapters(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import peft").CombinedOutput(); err != nil {
		t.Skipf("skipped: %s has no peft (PYTHON names another interpreter): %v %s", python, err, lastLine(out))
	}
	ids := []int32{1, 2, 3, 50, 17}
	listed, err := json.Marshal(ids)
	require.NoError(t, err)
	compare := func(base string, ad *models.Adapted) {
		dir := filepath.Join(t.TempDir(), "adapter")
		require.NoError(t, ad.Save(dir))
		out, err := exec.Command(python, "testdata/adapter.py", "logits", base, dir, string(listed)).Output()
		require.NoError(t, err)
		var want [][]float64
		require.NoError(t, json.Unmarshal(out, &want))
		got := adaptedLogits(t, ad, ids)
		for i, row := range want {
			requireNear(t, row, got[i*len(row):(i+1)*len(row)])
		}
	}
	for _, name := range []string{"patterns", "dora"} {
		m, _, err := models.Load("testdata/golden/qwen3")
		require.NoError(t, err)
		ad, err := m.OpenAdapter(filepath.Join("testdata/lora", name))
		require.NoError(t, err)
		compare("testdata/golden/qwen3", ad)
	}
	for _, base := range []string{"testdata/golden/qwen3", "testdata/variants/gemma3_vision"} {
		m, _, err := models.Load(base)
		require.NoError(t, err)
		ad, err := m.Adapt(models.LoRA{Rank: 3, Alpha: 12, Targets: []string{"q_proj", "layers.1.*"}}, 1)
		require.NoError(t, err)
		for _, name := range []string{"model.norm.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"} {
			m.Params().Get(name).Frozen = false // saved beside the adapters
		}
		for _, p := range m.Params().All() {
			if !p.Frozen {
				for i := range graph.Data[float32](p.Tensor()) {
					graph.Data[float32](p.Tensor())[i] = float32(math.Sin(float64(i))) / 4
				}
			}
		}
		compare(base, ad)
	}
}

// TestNewAdapterChangesNothing: b is zero. Only the adapters are trained, and
// their gradient follows from that of the weight: db = scale dw a^T, da = 0.
func TestNewAdapterChangesNothing(t *testing.T) {
	g := readGolden(t, "testdata/golden/llama_untied_bias")
	ids := g.Prompts[1].InputIDs
	m, _, err := models.Load("testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	want := append([]float32(nil), runLogits(t, m, ids)...)
	const layer = "model.layers.1.mlp.up_proj"
	full := gradients(t, m, m.Params(), ids)
	ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 6, Targets: []string{"up_proj", "v_proj"}}, 7)
	require.NoError(t, err)
	require.Equal(t, want, adaptedLogits(t, ad, ids))
	low := gradients(t, ad, m.Params(), ids)
	require.Len(t, low, 2*2*m.Config.Layers)
	w, a, db := full[layer+".weight"], m.Params().Get(layer+".lora_A.weight"), low[layer+".lora_B.weight"]
	n, k := m.Config.FFN, m.Config.Hidden
	av := graph.Data[float32](a.Tensor())
	worst, largest := 0.0, 0.0
	for i := range n {
		for r := range 2 {
			sum := 0.0
			for j := range k {
				sum += float64(w[i*k+j]) * float64(av[r*k+j])
			}
			worst = max(worst, math.Abs(3*sum-float64(db[i*2+r])))
			largest = max(largest, math.Abs(3*sum))
		}
	}
	require.Less(t, worst, 1e-5*largest) // measured 1e-6
	for _, x := range low[layer+".lora_A.weight"] {
		require.Zero(t, x)
	}
	first, err := models.New(m.Config)
	require.NoError(t, err)
	require.NoError(t, first.Init(1))
	x, err := first.Adapt(models.LoRA{Rank: 2, Alpha: 6, Targets: []string{"up_proj"}}, 7)
	require.NoError(t, err)
	require.Equal(t, a.Tensor().Bytes(), x.Params().Get(a.Name).Tensor().Bytes(), "a function of the seed")

	numbers := map[string]int{}
	for _, targets := range []string{"", "all-linear", "all-linear lm_head"} {
		m, err := models.New(m.Config)
		require.NoError(t, err)
		require.NoError(t, m.Init(1))
		ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 6, Targets: strings.Fields(targets)}, 7)
		require.NoError(t, err)
		numbers[targets] = ad.Parameters()
	}
	require.Equal(t, numbers[""], numbers["all-linear"])
	require.Equal(t, numbers[""]+2*(m.Config.Vocab+m.Config.Hidden), numbers["all-linear lm_head"])
}

// gradients of everything that the loss of a sequence trains.
func gradients(t *testing.T, m interface {
	Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node)
}, ps *graph.Params, ids []int32) map[string][]float32 {
	t.Helper()
	n := len(ids) - 1
	b := graph.New(graph.Share(ps))
	loss, _ := m.Loss(b, 1, n, 0, 0)
	require.NoError(t, b.Err())
	params := b.Params()
	grads, err := b.Grad(loss, params...)
	require.NoError(t, err)
	plan, err := b.Plan(grads...)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids[:n], "labels": ids[1:]}))
	out := map[string][]float32{}
	for i, o := range grads {
		v, err := run.Value(o)
		require.NoError(t, err)
		out[params[i].Name()] = append([]float32(nil), graph.Data[float32](v)...)
	}
	return out
}

// TestAdaptersThatNoMemoryHolds are an error before any is made.
func TestAdaptersThatNoMemoryHolds(t *testing.T) {
	if graph.MachineMemory() == 0 {
		t.Skip("skipped: the memory of the machine is not known")
	}
	wide, err := models.New(models.Config{Type: "llama", Vocab: 8, Hidden: 4096, FFN: 4096, Layers: 400, Heads: 1, KVHeads: 1, HeadDim: 2, Context: 8, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, wide.Declare())
	_, err = wide.Adapt(models.LoRA{Rank: 65536, Alpha: 1}, 1)
	require.ErrorContains(t, err, "models: LoRA: adapters of rank 65536 of ")
	require.Nil(t, wide.Params().Get("model.layers.0.self_attn.q_proj.lora_A.weight"))
}

func TestBadAdapters(t *testing.T) {
	m, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	for want, l := range map[string]models.LoRA{
		"models: LoRA: the rank must be 1 to 65536, got 0": {Alpha: 1},
		"models: LoRA: alpha must be above 0, got -1":      {Rank: 2, Alpha: -1},
		"models: LoRA: a target must not be empty":         {Rank: 2, Alpha: 1, Targets: []string{""}},
		`models: LoRA: target "qproj" is no linear layer of the model (they are called q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head)`: {Rank: 2, Alpha: 1, Targets: []string{"q_proj", "qproj"}},
	} {
		_, err := m.Adapt(l, 1)
		require.EqualError(t, err, want)
	}
	copyTo := func(edit func(c map[string]any)) string {
		raw, err := os.ReadFile(filepath.Join(peftFolder, "adapter_config.json"))
		require.NoError(t, err)
		var c map[string]any
		require.NoError(t, json.Unmarshal(raw, &c))
		edit(c)
		raw, err = json.Marshal(c)
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), raw, 0o666))
		weights, err := os.ReadFile(filepath.Join(peftFolder, "adapter_model.safetensors"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), weights, 0o666))
		return dir
	}
	for want, edit := range map[string]func(map[string]any){
		`peft_type "IA3" is not supported (supported: LORA)`:                             func(c map[string]any) { c["peft_type"] = "IA3" },
		`bias "all" is not supported (supported: none)`:                                  func(c map[string]any) { c["bias"] = "all" },
		`alora_invocation_tokens [1] is not supported (supported: null)`:                 func(c map[string]any) { c["alora_invocation_tokens"] = []int{1} },
		"alpha_pattern: error parsing regexp: invalid or unsupported Perl syntax: `(?!`": func(c map[string]any) { c["alpha_pattern"] = map[string]any{"(?!q)": 2} },
		`alpha_pattern "q_proj" must be above 0, got 0`:                                  func(c map[string]any) { c["alpha_pattern"] = map[string]any{"q_proj": 0} },
		`the rank must be 1 to 65536, got -4`:                                            func(c map[string]any) { c["r"] = -4 },
		`lora_bias true is not supported (supported: false)`:                             func(c map[string]any) { c["lora_bias"] = true },
	} {
		dir := copyTo(edit)
		_, err := m.OpenAdapter(dir)
		require.EqualError(t, err, "models: adapter "+dir+": adapter_config.json: "+want)
	}
	_, err = m.OpenAdapter(copyTo(func(c map[string]any) { c["use_dora"] = true }))
	require.ErrorContains(t, err, "model.layers.0.self_attn.q_proj: use_dora needs lora_magnitude_vector [96]")
	other, _, err := models.Load("testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	_, err = other.OpenAdapter(peftFolder)
	require.ErrorContains(t, err, "model.layers.0.self_attn.q_proj: lora_A is [4,64] and lora_B [96,4], must be [r,64] and [80,r] for a weight of [80,64]")
	dir := copyTo(func(map[string]any) {})
	require.NoError(t, checkpoint.Save(filepath.Join(dir, "adapter_model.safetensors"), func(yield func(checkpoint.Entry) bool) {
		yield(checkpoint.Values("base_model.model.model.layers.9.mlp.up_proj.lora_A.weight", []float32{1}, 1, 1))
	}, checkpoint.SaveOptions{}))
	_, err = m.OpenAdapter(dir)
	require.ErrorContains(t, err, "unexpected tensors: base_model.model.model.layers.9.mlp.up_proj.lora_A.weight")

	shape := m.Params().Get("model.layers.0.self_attn.q_proj.weight").Type.Shape
	inexact := make([]int64, shape[0])
	inexact[0] = 1<<24 + 1
	require.NoError(t, checkpoint.Save(filepath.Join(dir, "adapter_model.safetensors"), func(yield func(checkpoint.Entry) bool) {
		const module = "base_model.model.model.layers.0.self_attn.q_proj."
		_ = yield(checkpoint.Values(module+"lora_A.weight", make([]float32, shape[1]), 1, shape[1])) &&
			yield(checkpoint.Values(module+"lora_B.weight", inexact, shape[0], 1))
	}, checkpoint.SaveOptions{}))
	_, err = m.OpenAdapter(dir)
	require.ErrorContains(t, err, "element 0 has no exact float32 value")

	// What was refused left nothing in its way; second adapters would be written over the first.
	ad, err := m.OpenAdapter(peftFolder)
	require.NoError(t, err)
	first := adaptedLogits(t, ad, []int32{1, 2, 3})
	const has = "the model has adapters already: open it once more for others"
	_, err = m.OpenAdapter(peftFolder)
	require.EqualError(t, err, "models: adapter "+peftFolder+": "+has)
	_, err = m.Adapt(ad.LoRA, 1)
	require.EqualError(t, err, "models: LoRA: "+has)
	require.Equal(t, first, adaptedLogits(t, ad, []int32{1, 2, 3}))
}
