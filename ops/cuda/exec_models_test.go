package cuda

// Models of every type, small and of odd sizes, with random weights in every type that weights are stored in.

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// How the matrices of a model lie: in a float type, in E4M3 with one step, a step a row or a step for each block of 128 x 128, or
// in the blocks of GGUF. Vectors and routers are float32, tables no codes of 8-bit floats.
var storages = []string{"float32", "bfloat16", "float16", "fp8 tensor", "fp8 rows", "fp8 blocks", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k"}

// codingsOf are the codings of GGUF, and what their numbers vary by, of uniform codes and a step of 1.
var codingsOf = map[string]struct {
	ops.Coding
	deviation float64
}{"q8_0": {ops.Q8_0, 74}, "q4_0": {ops.Q4_0, 4.6}, "q4_k": {ops.Q4_K, 258}, "q5_k": {ops.Q5_K, 527}, "q6_k": {ops.Q6_K, 1367}}

// variety is a small model of a type.
type variety struct {
	name string
	odd  bool // with rows that are no multiples of 8 numbers
	models.Config
}

// varieties are all types, heads of 32 to 256, 1 to 8 of them on one of k and v, and inner sizes that are no multiples of 16.
func varieties() []variety {
	every := func(layers int, is ...int) []bool {
		b := make([]bool, layers)
		for _, l := range is {
			b[l] = true
		}
		return b
	}
	llama3 := native.RotaryScaling{Type: "llama3", Factor: 8, LowFrequency: 1, HighFrequency: 4, OriginalPositions: 64}
	yarn := native.RotaryScaling{Type: "yarn", Factor: 4, OriginalPositions: 48, ModelPositions: 192}
	long := native.RotaryScaling{Type: "longrope", OriginalPositions: 256, ModelPositions: 256}
	for i := range 12 {
		long.ShortFactors, long.LongFactors = append(long.ShortFactors, 1+float64(i)/40), append(long.LongFactors, 2+float64(i))
	}
	all := []variety{
		{name: "llama", Config: models.Config{Hidden: 72, FFN: 136, Heads: 8, KVHeads: 1, HeadDim: 32, RopeScale: llama3}},
		{name: "llama", Config: models.Config{Hidden: 200, FFN: 264, Heads: 3, KVHeads: 1, HeadDim: 64, QKVBias: true, OutputBias: true, MLPBias: true, Tied: true}},
		{name: "mistral", Config: models.Config{Hidden: 96, FFN: 152, Heads: 4, KVHeads: 2, HeadDim: 96, Window: 7}},
		{name: "qwen2", Config: models.Config{Hidden: 192, FFN: 88, Heads: 6, KVHeads: 2, HeadDim: 64, QKVBias: true, Tied: true, Window: 16, Global: every(2, 0)}},
		{name: "qwen3", Config: models.Config{Hidden: 256, FFN: 512, Heads: 4, KVHeads: 1, HeadDim: 128, QKNorm: true, RopeScale: yarn}},
		{name: "qwen3_moe", Config: models.Config{Hidden: 160, FFN: 104, Heads: 7, KVHeads: 1, HeadDim: 32, QKNorm: true, Layers: 3,
			Experts: &models.Experts{FFN: 40, Dense: every(3, 1), Router: ops.Router{Experts: 5, TopK: 3, Renormalize: true}}}},
		{name: "mixtral", Config: models.Config{Hidden: 256, FFN: 256, Heads: 4, KVHeads: 4, HeadDim: 64, Window: 33,
			Experts: &models.Experts{FFN: 256, Dense: every(2), Router: ops.Router{Experts: 4, TopK: 2, Renormalize: true}}}},
		{name: "gemma", Config: models.Config{Hidden: 104, FFN: 136, Heads: 2, KVHeads: 1, HeadDim: 256, Tied: true}},
		{name: "gemma2", Config: models.Config{Hidden: 144, FFN: 200, Heads: 8, KVHeads: 4, HeadDim: 64, Tied: true, ScoreCap: 3, LogitCap: 2, Scale: 0.2, Window: 9, Global: every(2, 1)}},
		{name: "gemma2", Config: models.Config{Hidden: 256, FFN: 256, Heads: 4, KVHeads: 2, HeadDim: 256, Tied: true, ScoreCap: 50, LogitCap: 30, Scale: 0.07, Window: 40, Global: every(2, 1)}},
		{name: "gemma3_text", Config: models.Config{Hidden: 80, FFN: 96, Heads: 6, KVHeads: 1, HeadDim: 128, QKNorm: true, Tied: true, Scale: 0.1, Window: 5, Global: every(2, 1), LocalTheta: 500,
			RopeScale: native.RotaryScaling{Type: "linear", Factor: 8}}},
		{name: "granite", Config: models.Config{Hidden: 160, FFN: 168, Heads: 5, KVHeads: 5, HeadDim: 32, QKVBias: true, OutputBias: true, MLPBias: true, Tied: true, EmbedScale: 6, ResidualScale: 0.3, LogitDivisor: 3, Scale: 0.05}},
		{name: "olmo2", Config: models.Config{Hidden: 112, FFN: 144, Heads: 6, KVHeads: 3, HeadDim: 64, QKNorm: true}},
		{name: "olmo3", Config: models.Config{Hidden: 128, FFN: 120, Heads: 2, KVHeads: 2, HeadDim: 128, QKNorm: true, Window: 11, Global: every(2, 1), LocalTheta: 1e4, RopeScale: yarn}},
		{name: "phi3", Config: models.Config{Hidden: 96, FFN: 184, Heads: 3, KVHeads: 3, HeadDim: 32, RotaryDim: 24, Window: 70, RopeScale: long}},
		{name: "smollm3", Config: models.Config{Hidden: 120, FFN: 200, Heads: 4, KVHeads: 1, HeadDim: 96, NoRope: every(2, 1), Tied: true}},
		{name: "qwen2_moe", Config: models.Config{Hidden: 96, FFN: 120, Heads: 3, KVHeads: 3, HeadDim: 32, QKVBias: true, Window: 20, Global: every(2, 1),
			Experts: &models.Experts{FFN: 48, Shared: 88, Gated: true, Dense: every(2), Router: ops.Router{Experts: 6, TopK: 2}}}},
		{name: "glm", Config: models.Config{Hidden: 128, FFN: 168, Heads: 8, KVHeads: 1, HeadDim: 64, RotaryDim: 32, QKVBias: true}},
		{name: "glm4", Config: models.Config{Hidden: 88, FFN: 104, Heads: 2, KVHeads: 1, HeadDim: 96, RotaryDim: 48}},
		{name: "gpt_oss", Config: models.Config{Hidden: 128, FFN: 72, Heads: 8, KVHeads: 2, HeadDim: 64, QKVBias: true, OutputBias: true, Sinks: true, RopeScale: yarn, Window: 18, Global: every(2, 1),
			Experts: &models.Experts{FFN: 72, Clamp: ops.ClampedExpertsOp{Alpha: 1.702, Limit: 2}, Dense: every(2), Router: ops.Router{Experts: 5, TopK: 3, Renormalize: true}}}},
		{name: "ministral", Config: models.Config{Hidden: 112, FFN: 136, Heads: 6, KVHeads: 2, HeadDim: 32, Window: 12, Global: every(2, 0)}},
		{name: "ministral3", Config: models.Config{Hidden: 96, FFN: 144, Heads: 5, KVHeads: 1, HeadDim: 128, RopeScale: yarn, Growth: 0.1, GrowthSpan: 48}},
		{name: "deepseek_v3", Config: models.Config{Hidden: 136, FFN: 152, Heads: 4, Layers: 3, RopeScale: native.RotaryScaling{Type: "yarn", Factor: 4, OriginalPositions: 48, ModelPositions: 192, MScale: 1, MScaleAllDim: 1},
			Latent:  &models.Latent{QRank: 48, KVRank: 80, Nope: 32, Rope: 16, V: 40},
			Experts: &models.Experts{FFN: 56, Shared: 56, Bias: true, Dense: every(3, 0), Router: ops.Router{Experts: 8, TopK: 3, Groups: 4, KeepGroups: 2, Sigmoid: true, Renormalize: true, Scale: 2.5}}}},
		{name: "deepseek_v3", Config: models.Config{Hidden: 128, FFN: 128, Heads: 8, Latent: &models.Latent{KVRank: 512, Nope: 64, Rope: 64, V: 64, Halves: true},
			Experts: &models.Experts{FFN: 128, Shared: 256, Bias: true, Dense: every(2), Router: ops.Router{Experts: 6, TopK: 2, Sigmoid: true, Renormalize: true, Scale: 1}}}},
		{name: "kimi_linear", Config: models.Config{Hidden: 144, FFN: 136, Heads: 3, Layers: 3, NoRope: every(3, 0, 1, 2), Latent: &models.Latent{KVRank: 64, Nope: 32, Rope: 16, V: 32},
			Delta:   &models.Delta{Heads: 3, HeadDim: 48, Width: 4, Layers: every(3, 0, 2)},
			Experts: &models.Experts{FFN: 72, Shared: 72, Bias: true, Dense: every(3, 0), Router: ops.Router{Experts: 7, TopK: 2, Sigmoid: true, Renormalize: true, Scale: 1.5}}}},
		{name: "kimi_linear", Config: models.Config{Hidden: 256, FFN: 64, Heads: 2, NoRope: every(2, 0, 1), Latent: &models.Latent{KVRank: 128, Nope: 96, Rope: 32, V: 128},
			Delta: &models.Delta{Heads: 2, HeadDim: 128, Width: 3, Bound: -5, Layers: every(2, 0)}}},

		// With rows that products read with zeros behind them.
		{name: "llama odd", Config: models.Config{Hidden: 100, FFN: 90, Heads: 5, KVHeads: 1, HeadDim: 20}},
		{name: "qwen3_moe odd", Config: models.Config{Hidden: 100, FFN: 90, Heads: 2, KVHeads: 2, HeadDim: 26, QKNorm: true, Experts: &models.Experts{FFN: 44, Dense: every(2), Router: ops.Router{Experts: 5, TopK: 2}}}},
		{name: "deepseek_v3 odd", Config: models.Config{Hidden: 76, FFN: 64, Heads: 3, Latent: &models.Latent{KVRank: 36, Nope: 10, Rope: 6, V: 14},
			Experts: &models.Experts{FFN: 36, Shared: 36, Dense: every(2, 0), Router: ops.Router{Experts: 4, TopK: 2, Sigmoid: true}}}},
		{name: "kimi_linear odd", Config: models.Config{Hidden: 84, FFN: 60, Heads: 2, NoRope: every(2, 0, 1), Latent: &models.Latent{KVRank: 20, Nope: 12, Rope: 8, V: 12},
			Delta: &models.Delta{Heads: 3, HeadDim: 18, Width: 4, Layers: every(2, 0)}}},
	}
	listed := len(all)
	for _, typ := range models.Types() { // those that are not listed, in one form where they take that
		if !slices.ContainsFunc(all, func(v variety) bool { return v.name == typ }) {
			all = append(all, variety{name: typ, Config: models.Config{Hidden: 96, FFN: 152, Heads: 4, KVHeads: 2, HeadDim: 64,
				Experts: &models.Experts{FFN: 64, Dense: every(2, 0), Router: ops.Router{Experts: 4, TopK: 2}}}})
		}
	}
	for i := range all {
		c := &all[i].Config
		c.Type, all[i].odd = strings.CutSuffix(all[i].name, " odd")
		c.Vocab, c.NormEps, c.RopeTheta, c.Context, c.Layers = 160-3*(i%2), 1e-5, 1e4, 192, max(c.Layers, 2)
		if c.Latent != nil {
			c.KVHeads, c.HeadDim = c.Heads, c.Latent.Nope+c.Latent.Rope
		}
		if c.Type == "phi3" {
			c.Context = 512
		}
		all[i].name = fmt.Sprintf("%s D%d %d/%d", c.Type, c.HeadDim, c.Heads, c.KVHeads)
	}
	return append(all[:listed], slices.DeleteFunc(all[listed:], func(v variety) bool { return v.Check() != nil })...)
}

// grown is the model with weights for which scores, gates and logits are about 1.
func (v variety) grown(t testing.TB, storage string) *models.Transformer {
	t.Helper()
	plain, err := models.New(v.Config)
	require.NoError(t, err)
	require.NoError(t, plain.Declare())
	m, err := models.New(v.Config)
	require.NoError(t, err)
	for _, p := range plain.Params().All() {
		shape := p.Type.Shape
		stack, table := strings.Contains(p.Name, ".experts."), strings.HasSuffix(p.Name, "embed_tokens.weight")
		if len(shape) != 2 && !stack || strings.HasSuffix(p.Name, "bias") {
			continue
		}
		deviation := 1 / math.Sqrt(float64(shape[len(shape)-1]))
		if table && !v.Tied && !strings.HasPrefix(v.Type, "gemma") {
			deviation = 1
		}
		kind := storage
		latents := strings.HasSuffix(p.Name, ".kv_b_proj.weight") && storage != "q8_0" // of newer files the halves are joined
		switch c, blocks := codingsOf[storage]; {
		case strings.HasSuffix(p.Name, ".gate.weight"):
			kind = "float32"
		case blocks && (latents || stack && (v.Experts.Clamp.Limit > 0 || v.Hidden%c.Block() != 0 || v.Experts.FFN%c.Block() != 0) || !stack && shape[1]%c.Block() != 0):
			kind = "float16"
		case strings.HasPrefix(storage, "fp8") && (table || stack && (storage != "fp8 blocks" || v.Experts.Clamp.Limit > 0)):
			kind = "bfloat16"
		}
		store(t, m, p.Name, shape, kind, optest.Cast[float32](optest.Normals(v.name+p.Name, p.Type.Size(), deviation)))
	}
	require.NoError(t, m.Init(7)) // the others
	for _, p := range m.Params().All() {
		if norm := strings.HasSuffix(p.Name, "norm.weight"); len(p.Type.Shape) == 1 && (norm || strings.Contains(p.Name, ".gate.") || strings.HasSuffix(p.Name, "sinks")) || strings.HasSuffix(p.Name, "_proj.bias") {
			x := graph.Data[float32](p.Tensor())
			for i, r := range optest.Normals(v.name+p.Name, len(x), 0.2) {
				x[i] += float32(r)
			}
			p.Touch()
		}
	}
	return m
}

// store gives a model a matrix, or a stack, in a storage.
func store(t testing.TB, m *models.Transformer, name string, shape []int, storage string, x []float32) {
	t.Helper()
	add := func(name string, dt dtype.DType, shape ...int) *graph.Param {
		p, err := m.Params().Add(name, graph.T(dt, shape...), false)
		require.NoError(t, err)
		p.Touch()
		return p
	}
	n, k := shape[len(shape)-2], shape[len(shape)-1]
	switch storage {
	case "float32":
		copy(graph.Data[float32](add(name, dtype.Float32, shape...).Tensor()), x)
	case "bfloat16":
		dtype.FromFloat32(graph.Data[dtype.BF16](add(name, dtype.BFloat16, shape...).Tensor()), x)
	case "float16":
		dtype.FromFloat32(graph.Data[dtype.F16](add(name, dtype.Float16, shape...).Tensor()), x)
	case "q8_0", "q4_0", "q4_k", "q5_k", "q6_k":
		c := codingsOf[storage]
		p := add(name, dtype.UInt8, append(slices.Clone(shape[:len(shape)-1]), c.Bytes(k))...)
		ops.SetCoding(p, c.Coding)
		if strings.HasSuffix(name, ".q_proj.weight") && m.Config.Latent == nil {
			ops.SetRows(p, native.Rows(m.Config.HeadDim)) // as files have them
		}
		mem, block, r := p.Tensor().Bytes(), c.Bytes(c.Block()), optest.NewRand(name)
		for i := range mem {
			mem[i] = byte(r.Uint64())
		}
		step, at := 1/(c.deviation*math.Sqrt(float64(k))), 0
		if storage == "q6_k" {
			at = block - 2 // behind the codes
		}
		for i := at; i < len(mem); i += block {
			binary.LittleEndian.PutUint16(mem[i:], uint16(dtype.ToF16(float32(step))))
			switch storage {
			case "q4_k":
				binary.LittleEndian.PutUint16(mem[i+2:], uint16(dtype.ToF16(float32(7.5*step))))
			case "q5_k":
				binary.LittleEndian.PutUint16(mem[i+2:], uint16(dtype.ToF16(float32(15.5*step))))
			}
		}
	default:
		codes := add(name, dtype.Float8E4M3, shape...).Tensor()
		b := native.FP8Blocks{Rows: n, Cols: k, BlockRows: n, BlockCols: k}
		switch storage {
		case "fp8 rows":
			b = native.FP8PerRow(n, k)
		case "fp8 blocks":
			b = native.FP8StackBlocks(n, k)
		}
		across := ceilDiv(k, b.BlockCols)
		of := append(slices.Clone(shape[:len(shape)-2]), b.Steps()/across, across)
		steps := graph.Data[float32](add(name+"_scale", dtype.Float32, of...).Tensor())
		for i := range len(x) / (n * k) {
			native.FP8Fit(codes.Bytes()[i*n*k:][:n*k], steps[i*b.Steps():][:b.Steps()], x[i*n*k:][:n*k], b)
		}
	}
}

// adapt puts adapters that change something on a model.
func adapt(t testing.TB, m *models.Transformer, l models.LoRA) *models.Adapted {
	t.Helper()
	ad, err := m.Adapt(l, 5)
	require.NoError(t, err)
	for _, p := range ad.Params().All() {
		if strings.HasSuffix(p.Name, ".lora_B.weight") {
			fillNormal(p, 0.1)
		}
	}
	return ad
}

func fillNormal(p *graph.Param, deviation float64) {
	copy(graph.Data[float32](p.Tensor()), optest.Cast[float32](optest.Normals(p.Name, p.Type.Size(), deviation)))
	p.Touch()
}

// packer is a model that generates.
type packer interface {
	Params() *graph.Params
	Packed(b *graph.Builder, s models.Packed) *graph.Node
}

// lowered is a step of a model on Hopper, of tokens of four requests.
func lowered(t testing.TB, m packer, tokens int, compute DType, pass func(*graph.Builder) *graph.Builder) *program {
	t.Helper()
	b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	b.Output("logits", m.Packed(b, models.Packed{Tokens: tokens, Requests: 4, Pages: 48, PageSize: 16, Indices: 48, Slots: 4}))
	require.NoError(t, b.Err())
	if pass != nil {
		b = pass(b)
	}
	plan, err := b.Plan(b.Out("logits"))
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], compute, false, nil)
	require.NoError(t, err)
	return p
}

// fallen are the steps that run natively though their ops have bodies.
func fallen(p *program) (all []string) {
	for _, s := range p.steps {
		if s.host != nil && Supports(s.nodes[0].Op().Name()) {
			all = append(all, s.nodes[0].Name()+": "+s.why)
		}
	}
	return all
}

// All of every type that has bodies has kernels, but for products in f32 of odd rows of 8-bit floats, which run natively. Launches are those of
// float32 weights however the weights lie, but for codes of 8-bit floats and kv_b_proj in blocks.
func TestExecutorLowersEveryModel(t *testing.T) {
	for _, v := range varieties() {
		launches := map[string]string{}
		for _, storage := range []string{"float32", "q8_0", "q6_k", "fp8 blocks"} {
			m := v.grown(t, storage)
			for _, tokens := range []int{64, 1} {
				for _, compute := range []DType{BF16, F32} {
					p := lowered(t, m, tokens, compute, nil)
					if fell := fallen(p); !(v.odd && compute == F32 && strings.HasPrefix(storage, "fp8")) {
						require.Empty(t, fell, "%s, %s", v.name, storage)
					}
					if key := fmt.Sprint(tokens, compute); storage == "float32" {
						launches[key] = p.launchText()
					} else if !strings.HasPrefix(storage, "fp8") && (v.Latent == nil || storage != "q8_0") {
						require.Equal(t, launches[key], p.launchText(), "%s, %s", v.name, storage)
					}
				}
			}
		}
	}
}

// A session that asks native code for products of bf16 has on a device, in bf16, the launches of one that does not.
func TestExecutorLowersProductsOfBF16(t *testing.T) {
	rounded := func(b *graph.Builder) *graph.Builder {
		b, _, err := autocast.BF16(b, autocast.Filter{})
		require.NoError(t, err)
		return b
	}
	for _, v := range varieties() {
		m := v.grown(t, "float32")
		for _, tokens := range []int{64, 1} {
			require.Equal(t, lowered(t, m, tokens, BF16, nil).launchText(), lowered(t, m, tokens, BF16, rounded).launchText(), v.name)
		}
		require.Contains(t, lowered(t, m, 1, F16, rounded).String(), "bf16_linear: no CUDA kernel: products of bf16 where the compute dtype is f16")
	}
}

// Adapters of any rank have kernels, beside weights that are stored in any way.
func TestExecutorLowersAdapters(t *testing.T) {
	for i, v := range varieties() {
		ad := adapt(t, v.grown(t, storages[i%len(storages)]), models.LoRA{Rank: 3, Alpha: 6})
		for _, tokens := range []int{64, 1} {
			require.Empty(t, fallen(lowered(t, ad, tokens, BF16, nil)), v.name)
		}
	}
}
