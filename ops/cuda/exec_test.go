package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// tiny is a model whose every step has a kernel.
func tiny(t testing.TB, change func(*models.Config)) *models.Transformer {
	t.Helper()
	c := models.Config{Type: "llama", Vocab: 256, Hidden: 128, FFN: 192, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 512, NormEps: 1e-5, RopeTheta: 1e4}
	if change != nil {
		change(&c)
	}
	m, err := models.New(c)
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	return m
}

// packedPlan is one step of generation.
func packedPlan(t testing.TB, m *models.Transformer, tokens, requests, pages int) (*graph.Plan, *graph.Node) {
	t.Helper()
	b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	logits := m.Packed(b, models.Packed{Tokens: tokens, Requests: requests, Pages: pages, PageSize: 16, Indices: pages})
	require.NoError(t, b.Err())
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	return plan, logits
}

func TestExecutorGolden(t *testing.T) {
	qwen := func(c *models.Config) { c.Type, c.QKNorm, c.QKVBias = "qwen3", true, false }
	wide := func(c *models.Config) { c.HeadDim, c.Layers = 256, 1 } // more shared memory than these GPUs give a block
	for name, x := range map[string]struct {
		gpu              string
		compute          DType
		tokens, requests int
		change           func(*models.Config)
	}{
		"decode_sm_90": {"sm_90", BF16, 4, 4, nil}, "chunk_sm_90": {"sm_90", BF16, 128, 4, nil}, "chunk_sm_80": {"sm_80", F16, 128, 4, nil},
		"decode_sm_89":     {"sm_89", BF16, 4, 4, nil},
		"wide_chunk_sm_80": {"sm_80", BF16, 128, 4, wide}, "wide_decode_sm_89": {"sm_89", F16, 4, 4, wide},
		"decode_f32": {"sm_90", F32, 4, 4, nil}, "qknorm_sm_90": {"sm_90", BF16, 1, 1, qwen},
	} {
		plan, _ := packedPlan(t, tiny(t, x.change), x.tokens, x.requests, 40)
		p, err := lower(plan, targets[x.gpu], x.compute, false, nil)
		require.NoError(t, err)
		holdGolden(t, "exec_"+name, p.String()+p.launchText())
	}
}

// A step with single tokens, a chunk and a request that waits: the rows of single tokens go to the decode kernel with the
// pages of their requests, the chunk's to the prefill kernel.
func TestExecutorPreparesRequests(t *testing.T) {
	plan, _ := packedPlan(t, tiny(t, nil), 8, 4, 10)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	feeds := graph.Feeds{
		models.PackedTokens: []int32{1, 2, 3, 4, 5, 0, 0, 0}, models.PackedPositions: []int32{20, 0, 1, 2, 15, 0, 0, 0}, models.PackedSlots: []int32{4, 32, 33, 34, 63, -1, -1, -1},
		models.PackedQOIndptr: []int32{0, 1, 4, 4, 5}, models.PackedPageIndptr: []int32{0, 2, 3, 4, 5}, models.PackedPageIndices: []int32{1, 0, 2, 9, 3, 0, 0, 0, 0, 0},
		models.PackedLastPageLen: []int32{5, 3, 7, 16}, models.PackedLastRows: []int32{0, 3, 3, 4},
	}
	mem := make([]byte, p.fed.bytes)
	require.NoError(t, p.stage(feeds, mem))
	require.True(t, p.needsMixed(feeds))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = p.stage(feeds, mem) })) // it has passed above
	got := map[string][]int32{}
	for key, q := range p.places {
		for _, x := range p.prepared {
			if uint64(x.offset) == q.Addr&(1<<regionShift-1) {
				got[q.Label] = graph.Data[int32](part(mem, int(x.offset), graph.T(dtype.Int32, x.n)))
			}
		}
		require.NotNil(t, key)
	}
	require.Equal(t, []int32{0, 2, 2, 2, 2, 3, 3, 3, 3}, got["decode_indptr"])
	require.Equal(t, []int32{1, 0, 3}, got["decode_indices"][:3])
	require.Equal(t, []int32{5, 0, 0, 0, 16, 0, 0, 0}, got["decode_last_page_len"])
	require.Equal(t, []int32{1, -1, -1, -1}, got["tile_batch"])
	require.Equal(t, []int32{0, 0, 0, 0}, got["tile_index"])

	feeds[models.PackedQOIndptr] = []int32{0, 1, 1, 1, 2}
	require.NoError(t, p.stage(feeds, mem))
	require.False(t, p.needsMixed(feeds))
	require.Equal(t, []int32{0, 2, 3, 3, 3, 3, 3, 3, 3}, got["decode_indptr"])

	for want, change := range map[string]func(f graph.Feeds){
		"cuda: embedding: ids must be 0 to 255, got 256 at index 1 of tokens":       func(f graph.Feeds) { f["tokens"] = []int32{0, 256, 0, 0, 0, 0, 0, 0} },
		"cuda: rotary: positions must be 0 to 159, got 512 at index 0 of positions": func(f graph.Feeds) { f["positions"] = []int32{512, 0, 0, 0, 0, 0, 0, 0} },
		"cuda: append_pages: slots must be -1 to 159, got 160 at index 7 of slots":  func(f graph.Feeds) { f["slots"] = []int32{0, 0, 0, 0, 0, 0, 0, 160} },
		"graph: Do: input tokens must be 8 elements of int32, got 1 of int32":       func(f graph.Feeds) { f["tokens"] = []int32{0} },
		"graph: Do: input tokens (int32[8]) was not fed":                            func(f graph.Feeds) { delete(f, "tokens") },
		"cuda: the plan has no input tokenz":                                        func(f graph.Feeds) { f["tokenz"] = []int32{0} },
	} {
		f := graph.Feeds{}
		for name, v := range feeds {
			f[name] = v
		}
		change(f)
		require.EqualError(t, p.stage(f, mem), want)
	}
}

// What is wrong with a page table is said before anything is launched, with its request and the place.
func TestA11_BadPageTablesNeverReachTheDevice(t *testing.T) {
	plan, _ := packedPlan(t, tiny(t, func(c *models.Config) { c.Context = 64 }), 8, 3, 10)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	for _, x := range []struct {
		want                      string
		request                   int
		qo, indptr, indices, last []int32
	}{
		{"", 0, []int32{0, 1, 4, 4}, []int32{0, 4, 5, 5}, []int32{1, 0, 2, 9, 3}, []int32{16, 3, 7}},
		{"request 1: kv_last_page_len must be 1 to the page size 16, got 17 at index 1", 1, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 3}, []int32{1, 0, 2}, []int32{5, 17, 0}},
		{"request 1: page 10 at index 2 of kv_page_indices is outside the pool of 10 pages", 1, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 3}, []int32{1, 0, 10}, []int32{5, 3, 0}},
		{"request 0: page -1 at index 1 of kv_page_indices is outside the pool of 10 pages", 0, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 3}, []int32{1, -1, 2}, []int32{5, 3, 0}},
		{"request 1: page 1 at index 2 of kv_page_indices is in the table twice", 1, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 3}, []int32{1, 0, 1}, []int32{5, 3, 0}},
		{"request 2: kv_page_indptr must not decrease, got 3 then 2 at index 3", 2, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 2}, []int32{1, 0, 2}, []int32{5, 3, 0}},
		{"request 2: kv_page_indptr ends at 11 at index 3, there are 10", 2, []int32{0, 1, 4, 4}, []int32{0, 2, 3, 11}, []int32{1, 0, 2}, []int32{5, 3, 1}},
		{"kv_page_indptr must start at 0, got 1", -1, []int32{0, 1, 4, 4}, []int32{1, 2, 3, 3}, []int32{1, 0, 2}, []int32{5, 3, 0}},
		{"qo_indptr must start at 0, got 1", -1, []int32{1, 1, 4, 4}, []int32{0, 2, 3, 3}, []int32{1, 0, 2}, []int32{5, 3, 0}},
		{"request 2: qo_indptr ends at 9 at index 3, there are 8", 2, []int32{0, 1, 4, 9}, []int32{0, 2, 3, 3}, []int32{1, 0, 2}, []int32{5, 3, 0}},
		{"request 1: 4 new tokens do not fit into the 3 that its pages hold", 1, []int32{0, 1, 5, 5}, []int32{0, 2, 3, 3}, []int32{1, 0, 2}, []int32{5, 3, 0}},
		{"request 0: its pages hold 65 tokens, q is turned by positions of 0 to 63", 0, []int32{0, 1, 4, 4}, []int32{0, 5, 6, 6}, []int32{1, 0, 2, 3, 4, 5}, []int32{1, 3, 0}},
	} {
		feeds := graph.Feeds{
			models.PackedTokens: make([]int32, 8), models.PackedPositions: make([]int32, 8), models.PackedSlots: make([]int32, 8), models.PackedQOIndptr: x.qo,
			models.PackedPageIndptr: x.indptr, models.PackedPageIndices: append(x.indices, make([]int32, 10-len(x.indices))...), models.PackedLastPageLen: x.last, models.PackedLastRows: make([]int32, 3),
		}
		err := p.stage(feeds, make([]byte, p.fed.bytes))
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, "cuda: paged_attention: "+x.want)
		var e *native.PageError
		require.ErrorAs(t, err, &e)
		require.Equal(t, x.request, e.Request)
	}
}

type opaque struct{}

func (opaque) Name() string                                { return "cuda_test_opaque" }
func (opaque) Infer(in []graph.Type) ([]graph.Type, error) { return in, nil }

// Fallback is node by node, names the reason and the copies, and strict refuses it.
func TestExecutorFallsBack(t *testing.T) {
	if _, ok := graph.Lookup("cuda_test_opaque"); !ok {
		graph.Register(graph.Def{Name: "cuda_test_opaque", Native: func(*graph.Call) error { return nil }})
	}
	b := graph.New()
	x := b.Input("x", dtype.Float32, 3, 16)
	y := graph.Apply(opaque{}, ops.Add(x, x))
	z := ops.Add(y, y)
	plan, err := b.Plan(z)
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, false, nil)
	require.NoError(t, err)
	require.Contains(t, p.String(), "cuda: H200, compute bf16: 2 of 3 steps on the device")
	require.Contains(t, p.String(), "cuda_test_opaque: no CUDA kernel: none is registered; copy add to the host, 96 bytes; copy cuda_test_opaque to the device, 96 bytes")
	_, err = lower(plan, targets["sm_90"], BF16, true, nil)
	require.EqualError(t, err, "cuda: cuda_test_opaque: cuda_test_opaque: no CUDA kernel: none is registered (strict: no native fallback)")
	require.ErrorIs(t, err, ErrUnsupported)
}

// The loss for evaluation: z-loss, lse and the mean have kernels, labels are looked at before a run.
func TestExecutorLoss(t *testing.T) {
	b := graph.New()
	logits := ops.Linear(b.Input("x", dtype.Float32, 3, 16), b.Param("w", 40, 16))
	b.Store().Get("w").Touch()
	rs := graph.ApplyAll("loss", ops.CrossEntropyOp{Ignore: 7, ZLoss: 0.5}, logits, b.Input("labels", dtype.Int32, 3))
	plan, err := b.Plan(rs...)
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	require.Contains(t, p.launchText(), "cross_entropy_f32 grid[3,1,1] block 512 shared 0 overlap: loss=scratch lse=loss+128 x=w#2 labels=labels v=40 stride=40 ignore=7 zloss=0.5\n"+
		"cross_entropy_mean grid[1,1,1] block 1024 shared 0 overlap: mean=loss count=loss+64 loss=scratch labels=labels rows=3 ignore=7")
	for want, labels := range map[string][]int32{
		"": {0, 39, 7}, "cuda: cross_entropy: label of row 1 is 40, neither in [0,40) nor the ignored 7": {7, 40, 0}, "cuda: cross_entropy: label of row 2 is -100, neither in [0,40) nor the ignored 7": {7, 1, -100},
	} {
		err := p.stage(graph.Feeds{"x": make([]float32, 48), "labels": labels}, make([]byte, p.fed.bytes))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, want)
	}
}

// A state has one home: what one plan keeps on the host, a later one does not take to the device. Steps that are fed have the
// compute dtype on the device, where a pool of codes wants them in f32.
func TestExecutorStatesHaveOneHome(t *testing.T) {
	b := graph.New()
	pool := b.State("pool", dtype.Float8E4M3, 2, 4, 2, 8)
	plan, err := b.Plan(ops.AppendPages(pool, b.Input("x", dtype.Float32, 3, 2, 8), b.Input("slots", dtype.Int32, 3), b.Input("steps", dtype.Float32, 2)))
	require.NoError(t, err)
	f32, err := lower(plan, targets["sm_90"], F32, false, nil)
	require.NoError(t, err)
	require.Equal(t, map[*graph.Param]bool{pool.Param(): false}, f32.homes())
	require.False(t, pool.Param().Allocated(), "the host needs no copy")
	bf16, err := lower(plan, targets["sm_90"], BF16, false, nil)
	require.NoError(t, err)
	require.Equal(t, map[*graph.Param]bool{pool.Param(): true}, bf16.homes())
	_, err = lower(plan, targets["sm_90"], BF16, false, f32.homes())
	require.ErrorContains(t, err, "is on the device for an earlier plan")
	later, err := lower(plan, targets["sm_90"], F32, false, bf16.homes())
	require.NoError(t, err)
	require.Contains(t, later.String(), "is kept on the host")
}

// Decode is told what a step writes where one fed write to each pool is all that the plan writes there.
func TestExecutorTellsDecodeWhatIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		tokens int
		change func(b *graph.Builder, k, v, x, slots *graph.Node) (*graph.Node, *graph.Node)
		told   bool
	}{
		"one write": {3, nil, true},
		"many":      {MostWrites + 1, nil, false},
		"other slots": {3, func(b *graph.Builder, k, v, x, slots *graph.Node) (*graph.Node, *graph.Node) {
			return ops.AppendPages(k, x, slots), ops.AppendPages(v, x, b.Input("others", dtype.Int32, 3))
		}, false},
		"two writes": {3, func(_ *graph.Builder, k, v, x, slots *graph.Node) (*graph.Node, *graph.Node) {
			return ops.AppendPages(ops.AppendPages(k, x, slots), x, slots), ops.AppendPages(v, x, slots)
		}, false},
		"no write": {3, func(_ *graph.Builder, k, v, _, _ *graph.Node) (*graph.Node, *graph.Node) { return k, v }, false},
		"computed": {3, func(b *graph.Builder, k, v, x, _ *graph.Node) (*graph.Node, *graph.Node) {
			slots := ops.Sampling(b.Input("logits", dtype.Float32, 3, 32), b.Input("draws", dtype.Int32, 3, 8))
			return ops.AppendPages(k, x, slots), ops.AppendPages(v, x, slots)
		}, false},
	} {
		b := graph.New()
		k, v := b.State("k", dtype.Float32, 4, 16, 2, 64), b.State("v", dtype.Float32, 4, 16, 2, 64)
		x, slots := b.Input("x", dtype.Float32, c.tokens, 2, 64), b.Input("slots", dtype.Int32, c.tokens)
		k, v = func() (*graph.Node, *graph.Node) {
			if c.change == nil {
				return ops.AppendPages(k, x, slots), ops.AppendPages(v, x, slots)
			}
			return c.change(b, k, v, x, slots)
		}()
		out := ops.PagedAttention(b.Input("q", dtype.Float32, c.tokens, 4, 64), k, v, ops.Pages{QOIndptr: b.Input("qo", dtype.Int32, 3), Indptr: b.Input("indptr", dtype.Int32, 3),
			Indices: b.Input("indices", dtype.Int32, 4), LastPageLen: b.Input("last", dtype.Int32, 2)}, ops.PagedAttentionOp{Causal: true})
		plan, err := b.Plan(out)
		require.NoError(t, err, name)
		p, err := lower(plan, targets["sm_90"], BF16, true, nil)
		require.NoError(t, err, name)
		at, n := "nil", 0
		if c.told {
			at, n = "slots", c.tokens
		}
		require.Regexp(t, fmt.Sprintf(`attention_decode_paged_bf16_64 .* written=%s .* writes=%d `, at, n), p.launchText(), name)
	}
}

// The draw runs behind the logits, which stay in f32 on the device: tokens alone come back. Draws out of range are refused.
func TestExecutorDrawsOnTheDevice(t *testing.T) {
	b := graph.New(graph.Share(tiny(t, nil).Params()), graph.States(graph.NewParams()))
	logits := tiny(t, nil).Packed(b, models.Packed{Tokens: 4, Requests: 4, Pages: 8, PageSize: 16, Indices: 8})
	drawn := ops.Sampling(logits, b.Input("draws", dtype.Int32, 4, 8), b.Input("seen", dtype.Int32, 4, 8))
	plan, err := b.Plan(drawn, ops.NLL(logits, drawn))
	require.NoError(t, err)
	for _, compute := range []DType{BF16, F16} {
		p, err := lower(plan, targets["sm_90"], compute, true, nil)
		require.NoError(t, err)
		require.Contains(t, p.launchText(), "sampling_draw_f32 grid[4,1,1]")
		require.Contains(t, p.launchText(), "cross_entropy_f32 grid[4,1,1]")
		require.Len(t, p.outputs, 2)
		require.False(t, p.outputs[0].onHost || p.outputs[1].onHost)
		require.Equal(t, graph.T(dtype.Int32, 4), p.outputs[0].typ)
		require.Equal(t, F32, p.stored(logits))
	}
	// A cap between the two changes nothing of that.
	b2 := graph.New(graph.Share(tiny(t, nil).Params()))
	h := ops.Linear(b2.Input("x", dtype.Float32, 4, 128), b2.Param("lm_head.weight", 256, 128))
	capped, err := b2.Plan(ops.Sampling(ops.Softcap(h, 30), b2.Input("draws", dtype.Int32, 4, 8)))
	require.NoError(t, err)
	p, err := lower(capped, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	require.Contains(t, p.launchText(), "softcap_f32 grid[1,1,1]")
	require.Contains(t, p.launchText(), "sampling_draw_f32 grid[4,1,1]")
	p, err = lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	feeds := graph.Feeds{}
	for _, in := range p.inputs {
		feeds[in.node.Name()] = make([]int32, in.node.Type().Size())
	}
	require.EqualError(t, p.stage(feeds, make([]byte, p.fed.bytes)), "cuda: sampling: penalty of request 0 must be above 0 and finite, got 0")
}

// Lengths of keys are looked at before anything runs.
func TestExecutorChecksLengths(t *testing.T) {
	b := graph.New()
	q, kv := b.Input("q", dtype.Float32, 2, 1, 4, 64), b.Input("kv", dtype.Float32, 2, 10, 4, 64)
	plan, err := b.Plan(ops.Attention(q, kv, kv, ops.AttentionOptions{KVLen: b.Input("kv_len", dtype.Int32, 2)}))
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	for _, bad := range []int32{-1, 11} {
		err := p.stage(graph.Feeds{"q": make([]float32, 512), "kv": make([]float32, 5120), "kv_len": []int32{10, bad}}, make([]byte, p.fed.bytes))
		require.EqualError(t, err, fmt.Sprintf("cuda: attention: kv_len must be 0 to 10, got %d at index 1 of kv_len", bad))
	}
}

type double struct{}

func (double) Name() string                                { return "cuda_test_double" }
func (double) Infer(in []graph.Type) ([]graph.Type, error) { return in, nil }

// An op from outside comes with its own body.
func TestExecutorTakesForeignOps(t *testing.T) {
	if _, ok := graph.Lookup("cuda_test_double"); !ok {
		graph.Register(graph.Def{Name: "cuda_test_double"})
		Register("cuda_test_double", func(c *Call) error {
			x, err := c.Input(0)
			if err != nil {
				return err
			}
			return Add{Type: c.Type(), N: int64(c.Node.Type().Size()), Y: c.Output(0), A: x, B: x}.Launch(c)
		})
	}
	require.Panics(t, func() { Register("cuda_test_double", func(*Call) error { return nil }) })
	b := graph.New()
	plan, err := b.Plan(graph.Apply(double{}, b.Input("x", dtype.Float32, 8)))
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_80"], F16, true, nil)
	require.NoError(t, err)
	require.Contains(t, p.launchText(), "pointwise_add_f16")
	require.True(t, Supports("cuda_test_double"))
}

func TestOptionsRefuse(t *testing.T) {
	_, err := Options{Compute: dtype.Float64}.compute()
	require.EqualError(t, err, "cuda: Compute is bfloat16, float16 or float32, got float64")
	b := graph.New(graph.Float(dtype.Float64))
	plan, err := b.Plan(ops.Add(b.Input("x", dtype.Float64, 2), b.Input("y", dtype.Float64, 2)))
	require.NoError(t, err)
	_, err = lower(plan, targets["sm_90"], BF16, false, nil)
	require.EqualError(t, err, "cuda: x is float64[2]: float64 plans run natively")
	require.NotEmpty(t, fmt.Sprint(Options{}))
}

// The table of supported ops tells what is registered here.
func TestSupportTableIsTrue(t *testing.T) {
	for _, s := range ops.Support() {
		require.Equal(t, Supports(s.Name) || s.Name == "reshape", s.CUDA, s.Name)
	}
}

// A weight in blocks goes up widened; the program knows its logical size.
func TestExecutorWidensBlocks(t *testing.T) {
	const n, k = 4, 64
	b := graph.New()
	p, err := b.Store().Add("w", graph.T(dtype.UInt8, n, ops.Q8_0.Bytes(k)), false)
	require.NoError(t, err)
	ops.SetCoding(p, ops.Q8_0)
	mem := p.Tensor().Bytes()
	for i := range mem {
		mem[i] = byte(i % 50)
	}
	p.Touch()
	want := make([]float32, n*k)
	ops.Q8_0.Widen(want, mem, 0, n, k)
	plan, err := b.Plan(ops.Linear(b.Input("x", dtype.Float32, 3, k), b.Param("w", p.Type.Shape...)))
	require.NoError(t, err)
	prog, err := lower(plan, targets["sm_90"], F32, true, nil)
	require.NoError(t, err)
	r := prog.byKey[weightKey{p, F32}]
	require.NotNil(t, r)
	require.EqualValues(t, 4*n*k, r.bytes)
	require.Equal(t, want, as[float32](r.fill()))
	require.Contains(t, prog.launchText(), "n=4 k=64")
}
