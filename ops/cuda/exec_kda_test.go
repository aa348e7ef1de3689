package cuda

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// recurrent is a model of KDA layers alone.
func recurrent(t testing.TB, d int) *models.Transformer {
	t.Helper()
	m, err := models.KimiLinear(models.Config{Vocab: 256, Hidden: 2 * d, FFN: 3 * d, Layers: 2, Heads: 2, Context: 512,
		Latent: &models.Latent{KVRank: d, Nope: d - d/4, Rope: d / 4, V: d}, Delta: &models.Delta{Heads: 2, HeadDim: d, Width: 4, Layers: []bool{true, true}}})
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	return m
}

func recurrentPlan(t testing.TB, d, tokens, requests int) *graph.Plan {
	t.Helper()
	m := recurrent(t, d)
	b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	logits := m.Packed(b, models.Packed{Tokens: tokens, Requests: requests, Pages: 8, PageSize: 16, Indices: 8, Slots: requests})
	require.NoError(t, b.Err())
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	return plan
}

func TestExecutorKDAGolden(t *testing.T) {
	for name, x := range map[string]struct {
		gpu                 string
		compute             DType
		d, tokens, requests int
	}{
		"decode_sm_90": {"sm_90", BF16, 64, 4, 4}, "chunk_sm_90": {"sm_90", BF16, 128, 300, 4}, "chunk_sm_80": {"sm_80", F16, 64, 128, 2}, "chunk_f32": {"sm_90", F32, 64, 128, 2},
		"decode_sm_80": {"sm_80", F16, 128, 4, 4}, "chunk_sm_89": {"sm_89", BF16, 128, 80, 4},
	} {
		p, err := lower(recurrentPlan(t, x.d, x.tokens, x.requests), targets[x.gpu], x.compute, false, nil)
		require.NoError(t, err)
		holdGolden(t, "exec_kda_"+name, p.String()+p.launchText())
	}
}

// A step with single tokens, a prompt that begins, one of two chunks, and rows of nobody: what the host prepares.
func TestExecutorPreparesSequences(t *testing.T) {
	p, err := lower(recurrentPlan(t, 64, 80, 5), targets["sm_90"], BF16, false, nil)
	require.NoError(t, err)
	feeds := graph.Feeds{
		models.PackedTokens: make([]int32, 80), models.PackedPositions: make([]int32, 80), models.PackedSlots: make([]int32, 80),
		models.PackedQOIndptr: []int32{0, 1, 4, 4, 70, 71}, models.PackedPageIndptr: []int32{0, 1, 2, 2, 7, 8}, models.PackedPageIndices: []int32{0, 1, 2, 3, 4, 5, 6, 7},
		models.PackedLastPageLen: []int32{1, 3, 0, 2, 1}, models.PackedLastRows: []int32{0, 3, 3, 69, 70},
		models.PackedStateSlots: []int32{2, 0, -1, 4, 1}, models.PackedStateStarts: []int32{0, 1, 0, 0, 1},
	}
	for _, in := range p.inputs { // only what the plan has
		if _, ok := feeds[in.node.Name()]; !ok {
			t.Fatalf("no feed for %s", in.node.Name())
		}
	}
	for name := range feeds {
		if !hasInput(p, name) {
			delete(feeds, name)
		}
	}
	mem := make([]byte, p.fed.bytes)
	require.NoError(t, p.stage(feeds, mem))
	require.True(t, p.needsMixed(feeds))
	got := map[string][]int32{}
	for _, q := range p.places {
		for _, x := range p.prepared {
			if uint64(x.offset) == q.Addr&(1<<regionShift-1) {
				got[q.Label] = graph.Data[int32](part(mem, int(x.offset), graph.T(dtype.Int32, x.n)))
			}
		}
	}
	require.Equal(t, []int32{0, -1, -1, -1, 70}, got["step_rows"])
	require.Equal(t, []int32{2, -1, -1, -1, 1 | kdaFresh}, got["step_slots"])
	require.Equal(t, []int32{0, -1, 2, 0 /**/, 1, 3, kdaFresh, 0 /**/, 4, -1, -1, 1 /**/, 4, 66, 4, 1 /**/, 70, -1, 1 | kdaFresh, 3}, got["sequences"])
	require.Equal(t, []int32{1, 3, 4, 64, 68, 2}, got["chunks"][:6])
	require.Equal(t, []int32{-1, 0, 1, 3, 4}, []int32{got["owners"][79], got["owners"][0], got["owners"][3], got["owners"][69], got["owners"][70]})

	feeds[models.PackedStateSlots] = []int32{2, 0, -1, 2, 1}
	require.ErrorContains(t, p.stage(feeds, mem), "kda: rows 0 and 3 share slot 2")
	feeds[models.PackedStateSlots] = []int32{2, 0, -1, 5, 1}
	require.ErrorContains(t, p.stage(feeds, mem), "kda: row 3 has slot 5, the pool has 5")
	feeds[models.PackedStateSlots], feeds[models.PackedQOIndptr] = []int32{2, 0, -1, 4, 1}, []int32{0, 1, 4, 3, 70, 71}
	require.ErrorContains(t, p.stage(feeds, mem), "qo_indptr must not decrease")
}

// A fed decay that grows or is not finite, and borders that do not cut the tokens, are refused with their place before anything
// runs.
func TestK06_PositiveDecayIsRefusedBeforeTheDevice(t *testing.T) {
	b := graph.New()
	in := func(name string, dims ...int) *graph.Node { return b.Input(name, dtype.Float32, dims...) }
	fed := ops.Reshape(in("g", 6, 16), 6, 1, 16) // a view is fed too
	o, state := ops.KDA(in("q", 6, 1, 16), in("k", 6, 1, 16), in("v", 6, 1, 16), fed, in("beta", 6, 1), ops.KDAOptions{Cu: b.Input("cu", dtype.Int32, 3)})
	plan, err := b.Plan(o, state)
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	g := make([]float32, 96)
	feeds := graph.Feeds{"q": make([]float32, 96), "k": make([]float32, 96), "v": make([]float32, 96), "g": g, "beta": make([]float32, 6), "cu": []int32{0, 2, 6}}
	mem := make([]byte, p.fed.bytes)
	require.NoError(t, p.stage(feeds, mem))
	for _, x := range []struct {
		bad  float64
		text string
	}{{5, "5"}, {math.NaN(), "NaN"}, {math.Inf(-1), "-Inf"}} {
		g[2*16+3] = float32(x.bad)
		require.EqualError(t, p.stage(feeds, mem), "cuda: kda: g must be finite and at most 0 (it is the logarithm of a decay): g[2,0,3] is "+x.text)
	}
	g[2*16+3] = -1
	feeds["cu"] = []int32{0, 2, 5}
	require.EqualError(t, p.stage(feeds, mem), "cuda: kda: cu_seqlens: must end at the number of tokens 6, ends at 5")
}

// So it is where a node of the plan runs natively, with the rows of requests alone: what lies behind them is nobody's.
func TestK06_DecaysOfSlotsAreRefused(t *testing.T) {
	for _, native := range []bool{false, true} {
		b := graph.New(graph.States(graph.NewParams()))
		in := func(name string, dims ...int) *graph.Node { return b.Input(name, dtype.Float32, dims...) }
		slots := ops.Slots{QOIndptr: b.Input("qo", dtype.Int32, 3), Slots: b.Input("slots", dtype.Int32, 2), Starts: b.Input("starts", dtype.Int32, 2)}
		if native { // kernels want starts that are fed, not a view
			slots.Starts = ops.Reshape(b.Input("begin", dtype.Int32, 1, 2), 2)
		}
		o := ops.KDASlots(in("q", 6, 1, 16), in("k", 6, 1, 16), in("v", 6, 1, 16), ops.Reshape(in("g", 6, 16), 6, 1, 16), in("beta", 6, 1), b.State("pool", dtype.Float32, 2, 1, 16, 16), slots, ops.KDASlotsOp{})
		plan, err := b.Plan(o)
		require.NoError(t, err)
		p, err := lower(plan, targets["sm_90"], BF16, false, nil)
		require.NoError(t, err)
		require.Equal(t, native, p.steps[len(p.steps)-1].host != nil)
		g := make([]float32, 96)
		feeds := graph.Feeds{"q": make([]float32, 96), "k": make([]float32, 96), "v": make([]float32, 96), "g": g, "beta": make([]float32, 6), "qo": []int32{0, 2, 5}, "slots": []int32{1, 0}, "starts": []int32{0, 0}}
		if native {
			feeds["begin"] = []int32{0, 0}
			delete(feeds, "starts")
		}
		run := func() error {
			if err := p.stage(feeds, make([]byte, p.fed.bytes)); err != nil {
				return err
			}
			for _, s := range p.steps {
				if s.host != nil {
					return s.host.native(&s.host.call)
				}
			}
			return nil
		}
		g[5*16] = float32(math.NaN())
		require.NoError(t, run())
		g[4*16+3] = float32(math.NaN())
		require.ErrorContains(t, run(), "kda: g must be finite and at most 0 (it is the logarithm of a decay): g[4,0,3] is NaN")
	}
}

func hasInput(p *program, name string) bool {
	for _, in := range p.inputs {
		if in.node.Name() == name {
			return true
		}
	}
	return false
}

// Launch code refuses what no kernel may see, and says the limit of what none is made for.
func TestKDAErrorsBeforeLaunch(t *testing.T) {
	p := at("p", 1)
	gpu := targets["sm_90"]
	full := KDADecode{Type: BF16, KDAHeads: KDAHeads{2, 4, 64, 64}, StepRows: StepRows{N: 3, Slots: p}, Out: p, State: p, Q: p, K: p, V: p, G: p, Beta: p}
	tokens := KDATokens{Type: BF16, KDAHeads: full.KDAHeads, KDASequences: KDASequences{2, p}, Out: p, Final: p, Q: p, K: p, V: p, G: p, Beta: p}
	fused := KDAFused{Type: BF16, KDAHeads: KDAHeads{2, 2, 64, 64}, StepRows: full.StepRows, Width: 4, Factor: 1, Out: p, State: p, ConvQ: p, ConvK: p, ConvV: p, XQ: p, XK: p, XV: p,
		WQ: p, WK: p, WV: p, Z: p, ALog: p, DtBias: p, Beta: p, Gate: p, Norm: p}
	for want, l := range map[string]interface{ Launch(Queue) error }{
		"kda decode: value heads must be a multiple of the query heads, both 1 or more, got HV 3 and H 2":                 change(full, func(d *KDADecode) { d.HV = 3 }),
		"kda decode: K and V must be 1 or more, got K 0 and V 64":                                                         change(full, func(d *KDADecode) { d.DK = 0 }),
		"kda decode: no CUDA kernel: K 257 and V 64: kernels exist up to 256":                                             change(full, func(d *KDADecode) { d.DK = 257 }),
		"kda decode: beta is required":                                                                                    change(full, func(d *KDADecode) { d.Beta = Pointer{} }),
		"kda decode: no CUDA kernel: 65536 rows: kernels exist for up to 65535":                                           change(full, func(d *KDADecode) { d.N = 65536 }),
		"kda fused decode: no CUDA kernel: 2 query heads for 4 value heads":                                               change(fused, func(d *KDAFused) { d.HV = 4 }),
		"kda fused decode: a width of 2 or more, a bound of 0 or below and a factor above 0 are required, got 1, 0 and 1": change(fused, func(d *KDAFused) { d.Width = 1 }),
		"kda recurrent: sequences is required":                                                                            KDARecurrent{change(tokens, func(d *KDATokens) { d.Table = Pointer{} })},
		"kda prefill: no CUDA kernel: f32: kernels exist for bf16 and f16":                                                KDAPrefill{KDATokens: change(tokens, func(d *KDATokens) { d.Type = F32 }), Chunks: 1},
		"kda prefill: no CUDA kernel: K 8 and V 64: kernels exist from 16 on":                                             KDAPrefill{KDATokens: change(tokens, func(d *KDATokens) { d.DK = 8 }), Chunks: 1},
		"kda prefill: chunks is required\nkda prefill: scratch is required":                                               KDAPrefill{KDATokens: tokens, Chunks: 1},
		"short_conv: T >= 0, C >= 1 and a width of 2 or more are required, got T 1, C 0, width 4":                         ShortConv{T: 1, Width: 4},
		"kda_gate: T >= 0, H >= 1, K >= 1 and a bound of 0 or below are required, got T 1, H 1, K 1, bound 2":             KDAGate{T: 1, H: 1, DK: 1, Bound: 2},
	} {
		require.EqualError(t, l.Launch(&Recorder{GPU: gpu}), want)
	}
	for _, l := range []interface{ Launch(Queue) error }{full, fused, KDARecurrent{tokens}, KDAPrefill{KDATokens: tokens, Chunks: 3, ChunkTable: p, Scratch: p}} {
		for _, gpu := range targets {
			require.NoError(t, l.Launch(&Recorder{GPU: gpu}))
		}
	}
	wide := KDAPrefill{KDATokens: change(tokens, func(d *KDATokens) { d.DK = 200 }), Chunks: 3, ChunkTable: p, Scratch: p}
	require.NoError(t, wide.Launch(&Recorder{GPU: gpu}))
	require.ErrorIs(t, wide.Launch(&Recorder{GPU: targets["sm_89"]}), ErrUnsupported)
}

func change[T any](x T, f func(*T)) T {
	f(&x)
	return x
}
