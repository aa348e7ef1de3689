package models_test

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/ops"
)

// fp8Folder is golden qwen3 with its projections in E4M3, with steps for the
// tensor, the rows or blocks of 128 x 128.
func fp8Folder(t *testing.T, by string) string {
	t.Helper()
	m, _, err := models.Load("testdata/golden/qwen3")
	require.NoError(t, err)
	method := map[string]any{"quant_method": "compressed-tensors", "format": "float-quantized"}
	if by == "block" {
		method = map[string]any{"quant_method": "fp8", "weight_block_size": []int{128, 128}}
	}
	return altered(t, "qwen3", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if !strings.HasSuffix(e.Name, "_proj.weight") {
			return []checkpoint.Entry{e}
		}
		n, k := e.Shape[0], e.Shape[1]
		w := graph.Data[float32](m.Params().Get(e.Name).Tensor())
		rows, cols, suffix := 1, 1, "_scale"
		perRow, perCol := n, k
		switch by {
		case "row":
			rows, perRow = n, 1
		case "block":
			rows, cols, perRow, perCol, suffix = (n+127)/128, (k+127)/128, 128, 128, "_scale_inv"
		}
		steps, codes := make([]float32, rows*cols), make([]float32, n*k)
		for i, x := range w {
			s := &steps[i/k/perRow*cols+i%k/perCol]
			*s = max(*s, max(x, -x)/448)
		}
		for i, x := range w {
			codes[i] = x / steps[i/k/perRow*cols+i%k/perCol]
		}
		return []checkpoint.Entry{checkpoint.Rounded(e.Name, dtype.Float8E4M3, codes, n, k), checkpoint.Values(e.Name+suffix, steps, rows, cols),
			checkpoint.Values(strings.TrimSuffix(e.Name, "weight")+"input_scale", []float32{1}, 1)}
	}), func(c map[string]any) { c["quantization_config"] = method })
}

// TestFP8CheckpointsStayCodes opens checkpoints in 8-bit floats: the codes are
// kept, and the model computes what the widened one does.
func TestFP8CheckpointsStayCodes(t *testing.T) {
	ids := readGolden(t, "testdata/golden/qwen3").Prompts[1].InputIDs
	for _, by := range []string{"tensor", "row", "block"} {
		t.Run(by, func(t *testing.T) {
			dir := fp8Folder(t, by)
			o, err := models.Open(dir)
			require.NoError(t, err)
			require.Len(t, o.Report.Ignored, 4*7, "steps of activations")
			w := o.Params().Get("model.layers.0.mlp.up_proj.weight")
			require.Equal(t, dtype.Float8E4M3, w.Type.DType)
			require.Equal(t, w.Type.Size(), len(w.Tensor().Bytes()))
			wide, _, err := models.Load(dir)
			require.NoError(t, err)
			want := append([]float32(nil), runLogits(t, wide, ids)...)
			got := append([]float32(nil), runLogits(t, o.Transformer, ids)...)
			require.InDeltaSlice(t, want, got, logitBound)

			saved := filepath.Join(t.TempDir(), "saved")
			require.NoError(t, o.Save(saved))
			again, err := models.Open(saved)
			require.NoError(t, err)
			require.Equal(t, o.Config, again.Config)
			require.Equal(t, got, runLogits(t, again.Transformer, ids))
			require.NoError(t, o.Save(saved, models.As(dtype.Float32)))
			plain, err := models.Open(saved)
			require.NoError(t, err)
			require.Nil(t, plain.Config.Quantization)
			require.Equal(t, want, runLogits(t, plain.Transformer, ids))
		})
	}
}

func TestFP8WithoutStepsIsRefused(t *testing.T) {
	dir := altered(t, "qwen3", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if e.Name == "model.layers.0.mlp.up_proj.weight" {
			e = checkpoint.Rounded(e.Name, dtype.Float8E4M3, make([]float32, e.Shape[0]*e.Shape[1]), e.Shape...)
		}
		return []checkpoint.Entry{e}
	}), nil)
	_, err := models.Open(dir)
	require.ErrorContains(t, err, "model.layers.0.mlp.up_proj.weight")
	require.ErrorContains(t, err, "_scale")
}

// TestLatentsAndRoutersReadBlocks: files may have kv_b_proj whole, and routers, in the
// blocks that other matrices lie in.
func TestLatentsAndRoutersReadBlocks(t *testing.T) {
	config := models.Config{Type: "deepseek_v3", Vocab: 24, Hidden: 32, FFN: 16, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 12, Context: 16, NormEps: 1e-6, RopeTheta: 1e4,
		Latent:  &models.Latent{KVRank: 32, Nope: 8, Rope: 4, V: 8},
		Experts: &models.Experts{FFN: 16, Dense: []bool{false}, Router: ops.Router{Experts: 4, TopK: 2, Sigmoid: true}}}
	wide, err := models.New(config)
	require.NoError(t, err)
	coded, err := models.New(config)
	require.NoError(t, err)
	for name, n := range map[string]int{"model.layers.0.self_attn.kv_b_proj.weight": 32, "model.layers.0.mlp.gate.weight": 4} {
		p, err := coded.Params().Add(name, graph.T(dtype.UInt8, n, ops.Q8_0.Bytes(32)), false)
		require.NoError(t, err)
		ops.SetCoding(p, ops.Q8_0)
		for i := range p.Tensor().Bytes() {
			p.Tensor().Bytes()[i] = []byte{0, 0x14, byte(37 * i), byte(91 * i)}[min(i%34, 2+i%2)] // a step of 2^-10
		}
		p.Touch()
		q, err := wide.Params().Add(name, graph.T(dtype.Float32, n, 32), false)
		require.NoError(t, err)
		ops.Q8_0.Widen(graph.Data[float32](q.Tensor()), p.Tensor().Bytes(), 0, n, 32)
		q.Touch()
	}
	require.NoError(t, wide.Init(3))
	require.NoError(t, coded.Init(3))
	ids := []int32{3, 1, 4, 1, 5, 9, 2, 6}
	require.InDeltaSlice(t, slices.Clone(runLogits(t, wide, ids)), runLogits(t, coded, ids), 1e-6)
	var logs []float64
	for _, m := range []*models.Transformer{wide, coded} { // through pages, of latents and of keys and values
		s, err := generate.New(m, generate.Options{Logprobs: true})
		require.NoError(t, err)
		r, err := s.Add(ids, generate.Sampling{})
		require.NoError(t, err)
		_, err = r.Next(context.Background())
		require.NoError(t, err)
		logs = append(logs, r.Logprob())
	}
	require.InDelta(t, logs[0], logs[1], 1e-6)
}

// TestBlocksAreReadAsCheckpointsDecodeThem compares the ops' reading of each coding
// with that of package checkpoint, which has another library's.
func TestBlocksAreReadAsCheckpointsDecodeThem(t *testing.T) {
	ck, err := checkpoint.Open("checkpoint/testdata/blocks.gguf")
	require.NoError(t, err)
	defer ck.Close()
	for _, c := range []ops.Coding{ops.Q8_0, ops.Q4_0, ops.Q4_1, ops.Q4_K, ops.Q5_K, ops.Q6_K} {
		x, ok := ck.Lookup(c.String())
		require.True(t, ok, c)
		raw, want, got := make([]byte, x.Bytes()), make([]float32, x.Len()), make([]float32, x.Len())
		require.NoError(t, x.Raw(raw))
		require.NoError(t, x.Float32(want))
		c.Widen(got, raw, 0, x.Rows(), x.RowLen())
		require.Equal(t, want, got, c)
	}
}

// TestSuperblocksStayInTheFile opens GGUF files in Q4_K, Q5_K and Q6_K, as most are:
// matrices and stacks of experts are not decoded, and the model computes what the
// widened one does.
func TestSuperblocksStayInTheFile(t *testing.T) {
	c := models.Config{Type: "llama", Vocab: 32, Hidden: 256, FFN: 512, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 32, NormEps: 1e-5, RopeTheta: 1e4}
	mixture := c
	mixture.Type, mixture.QKNorm = "qwen3_moe", true
	mixture.Experts = &models.Experts{FFN: 256, Dense: []bool{false, false}, Router: ops.Router{Experts: 4, TopK: 2, Renormalize: true}}
	for _, c := range []models.Config{c, mixture} {
		m, err := models.New(c)
		require.NoError(t, err)
		require.NoError(t, m.Init(3))
		path := filepath.Join(t.TempDir(), "model.gguf")
		r := rand.New(rand.NewPCG(1, 2))
		require.NoError(t, os.WriteFile(path, ggufOf(m, func(g *ggufFile) {
			g.code = func(name string, n int) (uint32, []byte) { return superblocks(r, name, n) }
		}), 0o666))
		o, err := models.Open(path)
		require.NoError(t, err)
		defer o.Close()
		wide, err := models.Open(path, models.Widen())
		require.NoError(t, err)
		for _, p := range o.Params().All() {
			require.Equal(t, strings.Contains(p.Name, "norm"), p.Type.DType == dtype.Float32, p.Name)
		}
		ids := []int32{3, 1, 4, 1, 5, 9, 2, 6}
		want := slices.Clone(runLogits(t, wide.Transformer, ids))
		require.Equal(t, want, runLogits(t, o.Transformer, ids))
		saved := filepath.Join(t.TempDir(), "saved")
		require.NoError(t, o.Save(saved))
		again, _, err := models.Load(saved)
		require.NoError(t, err)
		require.Equal(t, want, runLogits(t, again, ids))

		// Adapters are trained on either with the same gradients.
		var grads []map[string][]float32
		for _, o := range []*models.Opened{o, wide} {
			ad, err := o.Adapt(models.LoRA{Rank: 2, Alpha: 4, Targets: []string{"q_proj"}}, 1)
			require.NoError(t, err)
			require.Equal(t, want, adaptedLogits(t, ad, ids), "new adapters change nothing")
			grads = append(grads, gradients(t, ad, o.Params(), ids))
		}
		require.Equal(t, len(grads[1]), len(grads[0]))
		for name, g := range grads[1] {
			largest := 0.0
			for _, x := range g {
				largest = max(largest, math.Abs(float64(x)))
			}
			require.InDeltaSlice(t, g, grads[0][name], 1e-5*largest, name)
		}
	}
}

// superblocks are n random numbers of a tensor in Q4_K, or the coding that such a
// file has it in, and the number of that.
func superblocks(r *rand.Rand, name string, n int) (kind uint32, data []byte) {
	parts := strings.Split(strings.TrimSuffix(name, ".weight"), ".")
	kind = map[string]uint32{"attn_v": 14, "ffn_down": 14, "ffn_down_exps": 14, "token_embd": 14, "output": 14, "attn_q": 13}[parts[len(parts)-1]]
	if kind == 0 {
		kind = 12
	}
	size, halves := map[uint32]int{12: 144, 13: 176, 14: 210}[kind], []int{0, 2}
	if kind == 14 {
		halves = []int{208}
	}
	data = make([]byte, n/256*size)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for at := 0; at < len(data); at += size {
		for _, h := range halves { // about 2^-13
			data[at+h+1] = data[at+h+1]&3 | 8
		}
	}
	return kind, data
}

// TestDecodedWeightsThatNoMemoryHolds are an error that says so before any is read.
func TestDecodedWeightsThatNoMemoryHolds(t *testing.T) {
	const hidden = 4096
	vocab := graph.MachineMemory()/(4*hidden) + 1
	if vocab == 1 || vocab > 1<<23 {
		t.Skipf("skipped: a machine of %d bytes of memory", graph.MachineMemory())
	}
	g := &ggufFile{}
	g.key("general.architecture", "llama")
	for key, v := range map[string]int{"embedding_length": hidden, "feed_forward_length": 1, "block_count": 1, "context_length": 8, "attention.head_count": 1, "attention.key_length": 2} {
		g.key("llama."+key, uint32(v))
	}
	g.key("llama.attention.layer_norm_rms_epsilon", float32(1e-5))
	for name, shape := range map[string][]int{"attn_q": {2, hidden}, "attn_k": {2, hidden}, "attn_v": {2, hidden}, "attn_output": {hidden, 2}, "ffn_gate": {1, hidden},
		"ffn_up": {1, hidden}, "ffn_down": {hidden, 1}, "attn_norm": {hidden}, "ffn_norm": {hidden}} {
		g.tensor("blk.0."+name+".weight", shape, make([]float32, graph.T(dtype.Float32, shape...).Size()))
	}
	g.tensor("output_norm.weight", []int{hidden}, make([]float32, hidden))
	g.typed("token_embd.weight", []int{vocab, hidden}, 6, []byte{}) // Q5_0, a hole in the file
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, g.bytes(), 0o666))
	require.NoError(t, os.Truncate(path, int64(len(g.bytes())+vocab*hidden/32*22)))
	_, err := models.Open(path)
	require.ErrorContains(t, err, "weights decoded to float32, such as token_embd.weight from Q5_0, of ")
	require.ErrorContains(t, err, " cannot be had: this machine has ")
}

// TestStacksOfMXFP4InGGUF: those of gpt_oss, whose numbers are bfloat16's, are kept so.
func TestStacksOfMXFP4InGGUF(t *testing.T) {
	m, _, err := models.Load("testdata/golden/gpt_oss")
	require.NoError(t, err)
	m.Config.Experts.Clamp.Limit = 7 // what files mean
	path := filepath.Join(t.TempDir(), "model.gguf")
	r := rand.New(rand.NewPCG(1, 2))
	require.NoError(t, os.WriteFile(path, ggufOf(m, func(g *ggufFile) {
		g.code = func(name string, n int) (kind uint32, data []byte) {
			if !strings.Contains(name, "_exps.weight") {
				return 0, nil
			}
			for range n / 32 {
				data = append(data, byte(118+r.IntN(4)))
				for range 16 {
					data = append(data, byte(r.Uint32()))
				}
			}
			return 39, data
		}
	}), 0o666))
	o, err := models.Open(path)
	require.NoError(t, err)
	defer o.Close()
	require.Equal(t, dtype.BFloat16, o.Params().Get("model.layers.0.mlp.experts.up_proj.weight").Type.DType)
	wide, err := models.Open(path, models.Widen())
	require.NoError(t, err)
	ids := []int32{3, 1, 4, 1, 5, 9, 2, 6}
	require.Equal(t, slices.Clone(runLogits(t, wide.Transformer, ids)), runLogits(t, o.Transformer, ids))
}
