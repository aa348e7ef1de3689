package cuda

import (
	"context"
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
)

// fp8Plan is one step of generation with the linears in FP8.
func fp8Plan(t testing.TB, m *models.Transformer, o autocast.InferenceOptions, tokens, requests, pages int) (*graph.Plan, *autocast.Report) {
	t.Helper()
	b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	b.Output("logits", m.Packed(b, models.Packed{Tokens: tokens, Requests: requests, Pages: pages, PageSize: 16, Indices: pages}))
	require.NoError(t, b.Err())
	nb, report, err := autocast.FP8Inference(b, o)
	require.NoError(t, err)
	plan, err := nb.Plan(nb.Out("logits"))
	require.NoError(t, err)
	return plan, report
}

// fp8Golden is a plan of one step in 8 bits, whose text and launches are kept.
type fp8Golden struct {
	gpu     string
	compute DType
	o       autocast.InferenceOptions
	tokens  int
	stored  bool // as codes alone
}

func (x fp8Golden) hold(t *testing.T, file string, m *models.Transformer) {
	t.Helper()
	plan, report := fp8Plan(t, m, x.o, x.tokens, min(x.tokens, 4), 40)
	if x.stored {
		require.NoError(t, autocast.StoreFP8(m.Params(), report.Cast()))
		plan, _ = fp8Plan(t, m, x.o, x.tokens, min(x.tokens, 4), 40)
	}
	p, err := lower(plan, targets[x.gpu], x.compute, false, nil)
	require.NoError(t, err)
	holdGolden(t, file, p.String()+p.launchText())
}

func TestExecutorFP8Golden(t *testing.T) {
	for name, x := range map[string]fp8Golden{
		"decode_sm_90":      {"sm_90", BF16, autocast.InferenceOptions{}, 4, true},
		"chunk_sm_90":       {"sm_90", BF16, autocast.InferenceOptions{}, 128, false},
		"rows_decode_sm_90": {"sm_90", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 4, false},
		"rows_one_sm_90":    {"sm_90", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 1, false},
		"rows_chunk_sm_90":  {"sm_90", F16, autocast.InferenceOptions{Activations: autocast.PerRow}, 128, true},
		"rows_chunk_sm_89":  {"sm_89", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 128, false},
		"decode_sm_89":      {"sm_89", BF16, autocast.InferenceOptions{}, 4, true},
		"rows_decode_sm_89": {"sm_89", F16, autocast.InferenceOptions{Activations: autocast.PerRow}, 4, false},
		"rows_chunk_sm_80":  {"sm_80", BF16, autocast.InferenceOptions{Activations: autocast.PerRow}, 128, false},
		"decode_f32_sm_90":  {"sm_90", F32, autocast.InferenceOptions{}, 4, false},
		"rows_f32_sm_90":    {"sm_90", F32, autocast.InferenceOptions{Activations: autocast.PerRow}, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			x.hold(t, "exec_fp8_"+name, tiny(t, nil))
		})
	}
}

func TestExecutorRefusesASpreadPlan(t *testing.T) {
	plan, _ := fp8Plan(t, tiny(t, nil), autocast.InferenceOptions{}, 128, 4, 40)
	plan.Spread()
	_, err := lower(plan, targets["sm_90"], BF16, false, nil)
	require.EqualError(t, err, "cuda: the results of an op must lie packed, the plan was Spread: make another")
}

// A GPU without FP8 is named, and falls back only when it may.
func TestExecutorFP8NeedsTheHardware(t *testing.T) {
	plan, _ := fp8Plan(t, tiny(t, nil), autocast.InferenceOptions{Activations: autocast.PerRow}, 128, 4, 40)
	const reason = "A100 (compute capability 8.0) has no FP8: 8.9 is required"
	_, err := lower(plan, targets["sm_80"], BF16, true, nil)
	require.ErrorContains(t, err, reason)
	require.ErrorIs(t, err, ErrUnsupported)
	p, err := lower(plan, targets["sm_80"], BF16, false, nil)
	require.NoError(t, err)
	require.Contains(t, p.String(), "weights widened to bf16, activations as they are: fp8_weight_linear: no CUDA kernel: "+reason)
}

// Codes go up as they are, rows at multiples of 16 bytes, with their steps behind them, and again when the weight changes.
func TestExecutorUploadsCodes(t *testing.T) {
	const n, k = 3, 20
	b := graph.New()
	w, err := b.Store().Add("w", graph.T(dtype.Float32, n, k), false)
	require.NoError(t, err)
	x := graph.Data[float32](w.Tensor())
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	w.Touch()
	node := ops.FP8WeightLinear(b.Input("x", dtype.Float32, 2, k), b.Param("w", n, k), ops.FP8WeightLinearOp{Activations: ops.StepPerRow})
	plan, err := b.Plan(node)
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	codes, steps := ops.FP8Rows(w.Tensor())
	r := p.byKey[fp8Key{a: w}]
	require.NotNil(t, r)
	require.EqualValues(t, 256+4*n, r.bytes)
	mem := r.fill()
	for i := range n {
		require.Equal(t, codes[i*k:][:k], mem[i*32:][:k])
		require.Equal(t, make([]byte, 12), mem[i*32+k:][:12])
	}
	require.Equal(t, steps, as[float32](mem[256:]))
	require.Equal(t, []*graph.Param{w}, r.from)
}

func TestPairCodes(t *testing.T) {
	src := make([]byte, 2*20)
	for i := range src {
		src[i] = byte(i + 1)
	}
	dst := make([]byte, 2*32)
	PairCodes(dst, 32, src, 2, 20)
	require.Equal(t, []byte{1, 2, 9, 10, 3, 4, 11, 12, 5, 6, 13, 14, 7, 8, 15, 16, 17, 18, 0, 0, 19, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, dst[:32])
	require.Equal(t, []byte{21, 22, 29, 30}, dst[32:36])
}

func TestFP8ErrorsBeforeLaunch(t *testing.T) {
	p := at("p", 1)
	z := Quantize{Type: BF16, Format: E4M3, Rows: 4, Cols: 128, X: p, Codes: p, Steps: FP8Steps{At: p}}
	g := FP8Gemm{M: 128, N: 128, K: 128, X: p, W: p, XType: E4M3, WType: E4M3, Y: p, Out: BF16}
	for _, c := range []struct {
		launch interface{ Launch(Queue) error }
		want   string
	}{
		{func() Quantize { z := z; z.Format = BF16; return z }(), "quantize: x must be bf16, f16 or f32 and codes e4m3 or e5m2, got bf16 and bf16"},
		{func() Quantize { z := z; z.Steps.Rows = 2; return z }(), "quantize: no CUDA kernel: steps of x for blocks of 2x0: kernels exist for 0x0 (the tensor), 1x0 (a row), 1x128 and 128x128"},
		{func() Quantize { z := z; z.XStride = 100; return z }(), "quantize: row stride 100 of x is below its 128 columns"},
		{func() Quantize { z := z; z.Steps.At = Pointer{}; return z }(), "quantize: codes need steps, or a place for dynamic ones"},
		{func() Quantize { z := z; z.Amax = p; return z }(), "quantize: an amax of the tensor needs 12 bytes of flags"},
		{func() FP8Gemm { g := g; g.K = 0; return g }(), "fp8 gemm: M >= 0, N >= 1 and K >= 1 are required, got M 128, N 128, K 0"},
		{func() FP8Gemm { g := g; g.K = 100; return g }(), "fp8 gemm: no CUDA kernel: K 100, row strides 100 and 100: rows of x and w must lie at multiples of 16 bytes"},
		{func() FP8Gemm { g := g; g.WStride = 64; return g }(), "fp8 gemm: row stride 64 of w is below its 128 columns"},
		{func() FP8Gemm { g := g; g.XType = F32; return g }(), "fp8 gemm: x must be codes, bf16 or f16, w codes and the result bf16, f16, f32 or e4m3; got f32, e4m3 and bf16"},
		{func() FP8Gemm { g := g; g.SwiGLU, g.Bias = true, p; return g }(), "fp8 gemm: no CUDA kernel: SwiGLU together with a bias or a residual"},
		{func() FP8Gemm { g := g; g.XType = BF16; return g }(), "fp8 gemm: M 128 needs 32768 bytes of scratch"},
		{func() FP8Gemm { g := g; g.XType, g.Coding = BF16, true; return g }(), "fp8 gemm: no CUDA kernel: M 128, K 128 of bf16 coded on the way to e4m3: M up to 8, M K up to 16384, on Hopper, with a step for the tensor or each row of w"},
	} {
		r := &Recorder{GPU: targets["sm_90"]}
		require.EqualError(t, c.launch.Launch(r), c.want)
		require.Empty(t, r.Lines)
	}
	require.EqualError(t, g.Launch(&Recorder{GPU: targets["sm_80"]}), "fp8 gemm: no CUDA kernel: A100 (compute capability 8.0) has no FP8: 8.9 is required")
}

// The steps that a plan sends are those that native code takes from the histories of a training linear, also as these move on.
func TestFP8StepsFromHistories(t *testing.T) {
	const m, n, k = 3, 24, 40
	params := graph.NewParams()
	recipe := ops.FP8Recipe{History: 2, Margin: 1}
	build := func(train bool) (*graph.Plan, *graph.Node) {
		b := graph.New(graph.Share(params))
		y := ops.FP8Linear(b.Input("x", dtype.Float32, m, k), b.Param("w", n, k), recipe)
		outs := []*graph.Node{y}
		for _, o := range b.Nodes() {
			if o != y && len(o.In()) == 1 && o.In()[0] == y.In()[0] {
				outs = append(outs, o) // what the backward pass keeps
			}
		}
		if train {
			loss, _ := ops.CrossEntropy(y, b.Input("labels", dtype.Int32, m))
			grads, err := b.Grad(loss, b.Params()...)
			require.NoError(t, err)
			outs = append(outs, grads...)
		}
		plan, err := b.Plan(outs...)
		require.NoError(t, err)
		return plan, outs[1]
	}
	feeds := graph.Feeds{"x": make([]float32, m*k), "labels": make([]int32, m)}
	native := func(size float32, train bool) (stepX, stepW float32) {
		for i := range feeds["x"].([]float32) {
			feeds["x"].([]float32)[i] = size * float32(i%11-5)
		}
		plan, kept := build(train)
		run, err := plan.Native()
		require.NoError(t, err)
		f := graph.Feeds{"x": feeds["x"]}
		if train {
			f = feeds
		}
		require.NoError(t, run.Do(context.Background(), f))
		v, err := run.Value(kept)
		require.NoError(t, err)
		return ops.FP8LinearSteps(v)
	}
	build(false)
	w := params.Get("w")
	for i := range graph.Data[float32](w.Tensor()) {
		graph.Data[float32](w.Tensor())[i] = float32(i%7-3) / 10
	}
	w.Touch()
	compile := func() *program {
		b := graph.New(graph.Share(params))
		y := ops.FP8Linear(b.Input("x", dtype.Float32, m, k), b.Param("w", n, k), recipe)
		plan, err := b.Plan(y)
		require.NoError(t, err)
		p, err := lower(plan, targets["sm_90"], BF16, true, nil)
		require.NoError(t, err)
		return p
	}
	p := compile()
	require.Empty(t, p.prepared) // x gives its own step
	native(1, true)
	require.ErrorContains(t, p.checks[0](nil), "the state w.fp8.x has a history to take the step from: true, when the plan was compiled: false; compile it again")
	p = compile()
	for _, size := range []float32{3, 0.5, 7, 2} {
		stepX, stepW := native(100, false)
		require.NoError(t, p.checks[0](nil))
		var sent [1]int32
		p.prepared[0].fill(sent[:], nil)
		require.Equal(t, stepX, math.Float32frombits(uint32(sent[0])))
		mem := p.byKey[fp8Key{a: w, whole: true, recipe: recipe, state: params.Get("w.fp8.w")}].fill()
		require.Equal(t, stepW, as[float32](mem[len(mem)-4:])[0])
		native(size, true)
	}
}

// onHopper lowers a graph whose weights are zeros but for one.
func onHopper(t *testing.T, b *graph.Builder, outs ...*graph.Node) *program {
	t.Helper()
	for _, p := range b.Store().All() {
		graph.Data[float32](p.Tensor())[0] = 1
		p.Touch()
	}
	plan, err := b.Plan(outs...)
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	return p
}

// A norm and a gated unit leave codes only where every reader takes them: not as an output, for exact activations, another quantisation, or a
// reader that runs natively.
func TestCodesAreLeftToThoseWhoTakeThem(t *testing.T) {
	rows, static := ops.FP8WeightLinearOp{Activations: ops.StepPerRow}, ops.FP8WeightLinearOp{Activations: ops.StaticSteps, StepX: 0.5}
	for name, c := range map[string]struct {
		readers []ops.FP8WeightLinearOp
		output  bool
		d       int
		want    string // of a norm
		gated   string
	}{
		"rows":     {[]ops.FP8WeightLinearOp{rows, rows}, false, 128, "norm_fp8_bf16", "gated_fp8_geglu_erf_bf16"},
		"static":   {[]ops.FP8WeightLinearOp{static}, false, 128, "norm_fp8_bf16", "gated_fp8_geglu_erf_bf16"},
		"output":   {[]ops.FP8WeightLinearOp{rows}, true, 128, "norm_rms_bf16_1", "pointwise_geglu_erf_bf16"},
		"exact":    {[]ops.FP8WeightLinearOp{{}}, false, 128, "norm_rms_bf16_1", "pointwise_geglu_erf_bf16"},
		"mixed":    {[]ops.FP8WeightLinearOp{rows, static}, false, 128, "norm_rms_bf16_1", "pointwise_geglu_erf_bf16"},
		"odd size": {[]ops.FP8WeightLinearOp{rows}, false, 77, "norm_rms_bf16_any", "pointwise_geglu_erf_bf16_any"},
	} {
		for _, want := range []string{c.want, c.gated} {
			b := graph.New()
			x := b.Input("x", dtype.Float32, 3, c.d)
			h := ops.RMSNorm(x, b.Param("norm", c.d), 1e-5)
			if want == c.gated {
				h = ops.GeGLU(x, b.Input("up", dtype.Float32, 3, c.d), false)
			}
			var outs []*graph.Node
			for i, o := range c.readers {
				outs = append(outs, ops.FP8WeightLinear(h, b.Param(string(rune('a'+i)), 32, c.d), o))
			}
			if c.output {
				outs = append(outs, h)
			}
			p := onHopper(t, b, outs...)
			require.Equal(t, want, p.steps[0].queued[0].launch.Kernel, name)
			quantised := 0
			for _, s := range p.steps {
				for _, q := range s.queued {
					for _, k := range []string{"fp8_flat", "fp8_rows", "fp8_vectors", "fp8_tile"} {
						if strings.HasPrefix(q.launch.Kernel, k) {
							quantised++
						}
					}
				}
			}
			if strings.Contains(want, "_fp8_") {
				require.Zero(t, quantised, name)
			}
		}
	}
}

// A product makes the codes of one row itself up to a K from which on a launch in front is quicker.
func TestProductsCodeNarrowRows(t *testing.T) {
	for k, launches := range map[int][]string{8192: {"fp8_stream_coding_bf16_16"}, 8208: {"fp8_rows_bf16_e4m3", "fp8_stream_e4m3_16"}} {
		b := graph.New()
		p := onHopper(t, b, ops.FP8WeightLinear(b.Input("x", dtype.Float32, 1, k), b.Param("w", 32, k), ops.FP8WeightLinearOp{Activations: ops.StepPerRow}))
		require.Len(t, p.steps, 1)
		var got []string
		for _, q := range p.steps[0].queued {
			got = append(got, q.launch.Kernel)
		}
		require.Equal(t, launches, got, "K %d", k)
	}
}

// codingStatic is the static shared memory of the kernels that code their x; TestDeviceCodingStatic holds it to the images.
const codingStatic = 640

// The ring of a product that codes its x leaves room for what the kernel has in static shared memory.
func TestCodedRowsFitBesideTheRing(t *testing.T) {
	gpu := targets["sm_90"]
	p := at("p", 1)
	for m := 1; m <= 8; m++ {
		for k := 8; m*k <= 16384; k += 248 {
			for _, n := range []int{40, 2048, 3584, 4096, 6144, 14336} {
				for _, swiglu := range []bool{false, true} {
					a := &parts{Queue: &Recorder{GPU: gpu}}
					g := FP8Gemm{M: m, N: n, K: k, X: p, W: p, XType: BF16, WType: E4M3, WSteps: FP8Steps{At: p, Rows: 1}, WStride: up16(k), XStride: up16(k), Y: p, Out: BF16, Coding: true, SwiGLU: swiglu}
					require.NoError(t, g.Launch(a))
					require.Len(t, a.list, 1)
					require.LessOrEqual(t, a.list[0].Shared+codingStatic, gpu.MaxShared, "M %d N %d K %d", m, n, k)
				}
			}
		}
	}
}

// A sum that takes the place of the product's own x is not the product's to make: some blocks would write what others still read.
func TestSumOverTheProductsOwnInput(t *testing.T) {
	for name, linear := range map[string]func(x, w *graph.Node) *graph.Node{
		"16 bits": func(x, w *graph.Node) *graph.Node { return ops.Linear(x, w) },
		"8 bits": func(x, w *graph.Node) *graph.Node {
			return ops.FP8WeightLinear(x, w, ops.FP8WeightLinearOp{Activations: ops.StepPerRow})
		},
	} {
		b := graph.New()
		in := b.Input("x", dtype.Float32, 1, 128)
		x, other := ops.Add(in, in), ops.Add(in, b.Input("y", dtype.Float32, 1, 128))
		own := ops.Add(x, linear(x, b.Param("own", 128, 128)))
		p := onHopper(t, b, ops.Add(other, linear(own, b.Param("foreign", 128, 128))))
		var sums []int // nodes of a step with a product
		for _, s := range p.steps {
			if slices.ContainsFunc(s.nodes, isLinear) {
				sums = append(sums, len(s.nodes))
			}
		}
		require.Equal(t, []int{1, 2}, sums, name)
	}
}
