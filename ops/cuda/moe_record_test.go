package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// The launches of a mixture by GPU, type and number of tokens.
func TestExpertsLaunchGolden(t *testing.T) {
	router := ops.Router{Experts: 128, TopK: 8, Renormalize: true}
	text := ""
	for _, c := range []struct {
		gpu    string
		dt     DType
		tokens int
	}{{"sm_90", BF16, 1}, {"sm_90", BF16, 64}, {"sm_90", BF16, 2048}, {"sm_80", F16, 16}, {"sm_80", F16, 2048}, {"sm_90", F32, 5}} {
		r := &Recorder{GPU: targets[c.gpu]}
		require.NoError(t, Route{Router: router, T: c.tokens, IDs: at("ids", 1), Weights: at("weights", 2), WeightsType: F32, Logits: at("logits", 3), LogitsType: F32}.Launch(r))
		x := Experts{Type: c.dt, T: c.tokens, TopK: 8, E: 128, D: 2048, F: 768, Y: at("y", 4), X: at("x", 5), Weights: at("weights", 2), WeightsF32: true, IDs: at("ids", 1),
			Gate: at("gate", 6), Up: at("up", 7), Down: at("down", 8), Residual: at("residual", 9), Scratch: at("scratch", 10)}
		require.NoError(t, x.Launch(r))
		text += fmt.Sprintf("%s %v T %d, scratch %d bytes\n%s", c.gpu, c.dt, c.tokens, x.ScratchBytes(r.GPU), r)
	}
	for _, c := range []struct {
		gpu    string
		exact  bool
		tokens int
	}{{"sm_90", false, 300}, {"sm_90", false, 4}, {"sm_89", true, 1}, {"sm_90", true, 64}, {"sm_90", true, 300}, {"sm_90", true, 2048}} {
		r := &Recorder{GPU: targets[c.gpu]}
		x := ExpertsFP8{Type: BF16, Exact: c.exact, T: c.tokens, TopK: 8, E: 256, D: 7168, F: 2048, Y: at("y", 4), X: at("x", 5), Weights: at("weights", 2), WeightsF32: true, IDs: at("ids", 1),
			Gate: at("gate", 6), Up: at("up", 7), Down: at("down", 8), GateSteps: at("gate_steps", 11), UpSteps: at("up_steps", 12), DownSteps: at("down_steps", 13), Scratch: at("scratch", 10)}
		require.NoError(t, x.Launch(r))
		text += fmt.Sprintf("fp8 %s, exact %v, T %d, scratch %d bytes\n%s", c.gpu, c.exact, c.tokens, x.ScratchBytes(r.GPU), r)
	}
	holdGolden(t, "experts", text)
}

func TestExpertsErrorsBeforeLaunch(t *testing.T) {
	x := Experts{Type: BF16, T: 4, TopK: 2, E: 8, D: 64, F: 32, Y: at("y", 4), X: at("x", 5), Weights: at("w", 2), IDs: at("ids", 1), Gate: at("gate", 6), Up: at("up", 7), Down: at("down", 8)}
	many, none := x, x
	many.T, many.Scratch, none.T = 1<<22, at("scratch", 9), -1
	for want, l := range map[string]interface{ Launch(Queue) error }{
		"experts: 1536 bytes of scratch are required":                                                             x,
		"experts: T >= 0 and top-k, experts, D and F >= 1 are required, got T -1, top-k 2, experts 8, D 64, F 32": none,
		"experts fp8: no CUDA kernel: 65 tokens with D 64, F 128: multiples of 128":                               ExpertsFP8{Type: BF16, T: 65, TopK: 2, E: 8, D: 64, F: 128},
		"experts fp8: no CUDA kernel: D 64, F 24: multiples of 16":                                                ExpertsFP8{Type: BF16, T: 1, TopK: 2, E: 8, D: 64, F: 24},
		"experts fp8: no CUDA kernel: f32: kernels exist for bf16 and f16":                                        ExpertsFP8{Type: F32, T: 1, TopK: 2, E: 8, D: 64, F: 128},
		"experts fp8: no CUDA kernel: 65 tokens in codes, 2000 experts on H200: Hopper and up to 1024 experts":    ExpertsFP8{Type: BF16, T: 65, TopK: 2, E: 2000, D: 128, F: 128},
		"experts fp8: 2304 bytes of scratch are required":                                                         ExpertsFP8{Type: BF16, T: 1, TopK: 2, E: 8, D: 64, F: 128},
		"experts: no CUDA kernel: 8388608 choices of 8 experts: the grid holds 4193728":                           many,
		"route: no CUDA kernel: 5000 experts: the kernel takes up to 4096":                                        Route{Router: ops.Router{Experts: 5000, TopK: 2}, T: 1},
		"router: top-k must be from 1 to the number of experts, got top-k 9 of 8 experts":                         Route{Router: ops.Router{Experts: 8, TopK: 9}, T: 1},
		"moves: rows >= 0 and 1 to 4 parts are required, got rows 3, 0 parts":                                     Moves{Type: BF16, Rows: 3},
		"moves: a part of 8 columns, 0 or more, needs strides of as many, got to 8, from 4, divide 0":             Moves{Type: BF16, Rows: 3, Parts: []MovePart{{To: at("y", 1), From: at("x", 2), ToStride: 8, FromStride: 4, N: 8}}},
		"latent_query: T, P >= 0 and H, N, V, R >= 1 are required, got T 1, H 0, N 128, P 64, V 128, R 512":       LatentProduct{Type: BF16, T: 1, N: 128, P: 64, V: 128, R: 512},
	} {
		r := &Recorder{GPU: targets["sm_90"]}
		require.EqualError(t, l.Launch(r), want)
		require.Empty(t, r.Lines)
	}
}

// Plans of models with mixtures: router logits in f32, choice and weights as one launch, the residual sum with the experts.
func TestExecutorExpertsGolden(t *testing.T) {
	for name, x := range map[string]struct {
		gpu     string
		compute DType
		tokens  int
	}{"moe_decode_sm_90": {"sm_90", BF16, 4}, "moe_chunk_sm_90": {"sm_90", BF16, 128}, "moe_decode_f32": {"sm_90", F32, 4}, "moe_decode_sm_89": {"sm_89", BF16, 4}, "moe_chunk_sm_80": {"sm_80", F16, 128}} {
		plan, _ := packedPlan(t, tiny(t, func(c *models.Config) {
			c.Type, c.QKNorm = "qwen3_moe", true
			c.Experts = &models.Experts{Router: ops.Router{Experts: 8, TopK: 2, Renormalize: true}, FFN: 64, Dense: []bool{false, true}}
		}), x.tokens, 4, 40)
		p, err := lower(plan, targets[x.gpu], x.compute, false, nil)
		require.NoError(t, err)
		holdGolden(t, "exec_"+name, p.String()+p.launchText())
	}
}

// Plans of models with mixtures in 8 bits: the stacks as codes, or widened where no kernel takes them.
func TestExecutorFP8ExpertsGolden(t *testing.T) {
	for name, x := range map[string]fp8Golden{
		"decode_sm_90":      {"sm_90", BF16, autocast.InferenceOptions{}, 4, true},
		"rows_decode_sm_90": {"sm_90", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 4, false},
		"rows_chunk_sm_90":  {"sm_90", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 128, true},
		"chunk_sm_90":       {"sm_90", BF16, autocast.InferenceOptions{}, 192, false},
		"rows_chunk_sm_89":  {"sm_89", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 128, false},
		"decode_f32_sm_90":  {"sm_90", F32, autocast.InferenceOptions{}, 4, false},
		"decode_sm_89":      {"sm_89", BF16, autocast.InferenceOptions{}, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := tiny(t, func(c *models.Config) {
				c.Type, c.QKNorm = "qwen3_moe", true
				c.Experts = &models.Experts{Router: ops.Router{Experts: 8, TopK: 2, Renormalize: true}, FFN: 128, Dense: []bool{false, true}}
			})
			x.hold(t, "exec_fp8_moe_"+name, m)
		})
	}
}

// latentModel has latent attention of the published sizes and a mixture with a shared expert.
func latentModel(c *models.Config) {
	c.Type, c.Heads, c.KVHeads, c.HeadDim = "deepseek_v3", 4, 4, 128
	c.Latent = &models.Latent{QRank: 64, KVRank: 512, Nope: 64, Rope: 64, V: 64}
	c.Experts = &models.Experts{Router: ops.Router{Experts: 8, TopK: 2, Groups: 4, KeepGroups: 2, Sigmoid: true, Renormalize: true, Scale: 2.5}, FFN: 64, Shared: 64, Bias: true, Dense: []bool{true, false}}
}

// Plans of a model with latent attention: one head of latents in pages, read once for keys and values.
func TestExecutorLatentGolden(t *testing.T) {
	for name, x := range map[string]struct {
		gpu     string
		compute DType
		tokens  int
	}{"latent_decode_sm_90": {"sm_90", BF16, 4}, "latent_chunk_sm_90": {"sm_90", F16, 128}, "latent_decode_sm_80": {"sm_80", F16, 4}, "latent_chunk_sm_89": {"sm_89", BF16, 128}} {
		plan, _ := packedPlan(t, tiny(t, latentModel), x.tokens, 4, 40)
		p, err := lower(plan, targets[x.gpu], x.compute, true, nil)
		require.NoError(t, err)
		holdGolden(t, "exec_"+name, p.String()+p.launchText())
	}
}

func TestLatentTiles(t *testing.T) {
	batch, index := make([]int32, 8), make([]int32, 8)
	qo := []int32{0, 5, 6, 6, 9}
	latentTiles(batch, nil, qo, 32)
	latentTiles(nil, index, qo, 32)
	require.Equal(t, []int32{0, 0, 0, 3, 3, -1, -1, -1}, batch)
	require.Equal(t, []int32{2, 1, 0, 1, 0, 0, 0, 0}, index)
}
