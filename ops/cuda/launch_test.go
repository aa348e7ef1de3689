package cuda

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// targets are the GPUs that the launch lists are recorded for.
var targets = map[string]Target{
	"sm_80": {Name: "A100", Compute: 80, SMs: 108, MaxShared: 166912, SharedSM: 167936},
	"sm_89": {Name: "L40", Compute: 89, SMs: 142, MaxShared: 101376, SharedSM: 102400},
	"sm_90": {Name: "H200", Compute: 90, SMs: 132, MaxShared: 232448, SharedSM: 233472},
}

func at(label string, i int) Pointer { return Pointer{Addr: uint64(i) << 20, Label: label} }

// parts keeps the launches of a queue.
type parts struct {
	Queue
	list []Launch
}

func (p *parts) Launch(l Launch) error {
	p.list = append(p.list, l)
	return p.Queue.Launch(l)
}

// layer is one layer of a decoder at M tokens of B requests, as launches.
func layer(m int) []interface{ Launch(Queue) error } {
	const d, f, hq, hk, D = 4096, 14336, 32, 8, 128
	x, h, qkv, o, act := at("x", 1), at("h", 2), at("qkv", 3), at("o", 4), at("act", 5)
	scratch, flags := at("scratch", 6), at("flags", 7)
	pages := Pages{PageSize: 16, Indptr: at("indptr", 8), Indices: at("indices", 9), LastPageLen: at("last", 10)}
	gemm := func(y, x Pointer, w string, n, k int) Gemm {
		return Gemm{Type: BF16, M: m, N: n, K: k, Y: y, X: x, W: at(w, 11)}
	}
	gate := gemm(act, h, "gate_up", f, d)
	gate.SwiGLU = true
	down := gemm(x, act, "down", d, f)
	down.Residual = x
	return []interface{ Launch(Queue) error }{
		RMSNorm{Type: BF16, Rows: m, D: d, Eps: 1e-5, Y: h, X: o, W: at("norm", 12), Residual: x, Sum: x},
		gemm(qkv, h, "qkv_w", (hq+2*hk)*D, d),
		Rotary{Type: BF16, T: m, Hq: hq, Hk: hk, D: D, Rot: D, MaxPositions: 8192, Q: qkv, K: qkv.At(hq * D * 2), QOut: at("q", 13), Cos: at("cos", 14), Sin: at("sin", 15), Positions: at("positions", 16),
			V: qkv.At((hq + hk) * D * 2), KPool: at("k", 17), VPool: at("v", 18), Slots: at("slots", 19), QStride: (hq + 2*hk) * D, KStride: (hq + 2*hk) * D, VStride: (hq + 2*hk) * D},
		AttentionDecode{Type: BF16, B: m, Hq: hq, Hk: hk, D: D, Out: o, Q: at("q", 13), K: at("k", 17), V: at("v", 18), Pages: &pages, MaxLength: 4096, Window: -1, Scratch: scratch, Ticket: flags},
		AttentionPrefill{Type: BF16, Hq: hq, Hk: hk, D: D, Out: o, Q: at("q", 13), K: at("k", 17), V: at("v", 18), Causal: true, Window: -1, Ticket: flags,
			Ragged: &Ragged{Pages: pages, Tokens: m, PoolTokens: 1 << 16, QoIndptr: at("qo_indptr", 20), TileBatch: at("tile_batch", 21), TileIndex: at("tile_index", 22), Tiles: ceilDiv(m, 64)}},
		gate,
		down,
		Gated{Type: BF16, Gate: GeGLUTanh, Rows: m, F: f, Y: act, G: at("g", 23), Up: at("u", 24)},
		LayerNorm{Type: F16, Rows: m, D: 1000, Eps: 1e-5, Y: h, X: x, W: at("norm", 12)},
		Embedding{Type: BF16, T: m, D: d, Vocabulary: 128256, Scale: 1, Y: x, Table: at("table", 25), IDs: at("ids", 26)},
		Sampling{Type: F32, B: m, V: 128256, Token: at("token", 27), Logits: at("logits", 28), Draws: at("draws", 29)},
	}
}

// holdGolden compares a text with its file in testdata; -update writes it.
func holdGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s: run go test -update and read the difference", path)
}

func TestLaunchListGolden(t *testing.T) {
	for name, gpu := range targets {
		for _, m := range []int{1, 16, 2048} {
			r := &Recorder{GPU: gpu}
			for _, l := range layer(m) {
				if a, ok := l.(AttentionDecode); ok && m > 1024 {
					require.ErrorIs(t, a.Launch(r), ErrUnsupported)
					continue
				}
				require.NoError(t, l.Launch(r))
			}
			holdGolden(t, fmt.Sprintf("%s_m%d", name, m), r.String())
		}
	}
}

func TestErrorsBeforeLaunch(t *testing.T) {
	gpu := targets["sm_90"]
	p := at("p", 1)
	pages := &Pages{PageSize: 16, Indptr: p, Indices: p, LastPageLen: p}
	decode := AttentionDecode{Type: BF16, B: 1, Hq: 8, Hk: 2, D: 128, Out: p, Q: p, K: p, V: p, Pages: pages, MaxLength: 100, Scratch: p, Ticket: p}
	for _, c := range []struct {
		launch func() interface{ Launch(Queue) error }
		want   string
	}{
		{func() interface{ Launch(Queue) error } { d := decode; d.Hq = 12; d.Hk = 8; return d }, "attention decode: q has 12 heads, not a multiple of k's 8"},
		{func() interface{ Launch(Queue) error } { d := decode; d.D = 300; return d }, "attention decode: no CUDA kernel: head dim 300: kernels exist for multiples of 8 up to 256"},
		{func() interface{ Launch(Queue) error } { d := decode; d.Type = F32; return d }, "attention decode: no CUDA kernel: f32: kernels exist for bf16 and f16"},
		{func() interface{ Launch(Queue) error } { d := decode; d.Q.Addr += 8; return d }, "attention decode: q must be aligned to 16 bytes, got address 0x100008"},
		{func() interface{ Launch(Queue) error } {
			d := decode
			d.Pages = &Pages{PageSize: 24}
			return d
		}, "attention decode: page size 24: a power of two from 1 to 256 is required"},
		{func() interface{ Launch(Queue) error } { d := decode; d.Written, d.Writes = p, 33; return d }, "attention decode: written slots go with pages, without a mask and new k, and number 1 to 32; got pages true, mask nil, new k nil, 33 slots"},
		{func() interface{ Launch(Queue) error } { d := decode; d.Scratch = Pointer{}; return d }, "attention decode: 66560 bytes of scratch and a ticket are required, got scratch nil and ticket p"},
		{func() interface{ Launch(Queue) error } { d := decode; d.D, d.KSteps, d.VSteps = 40, p, p; return d }, "attention decode: no CUDA kernel: head dim 40: kernels exist for multiples of 16 up to 256"},
		{func() interface{ Launch(Queue) error } {
			return AttentionPrefill{Type: BF16, B: 1, Hq: 8, Hk: 2, D: 128, Lq: 2, Lk: 2, Out: p, Q: p, K: p, V: p, KSteps: p, VSteps: p}
		}, "attention prefill: steps of k and v go together, with pages; got k steps p, v steps p"},
		{func() interface{ Launch(Queue) error } {
			return AttentionPrefill{Type: BF16, B: 1, Hq: 8, Hk: 2, D: 128, Lq: 2, Lk: 2, Out: p, Q: p, K: p, V: p}
		}, "attention prefill: a ticket is required, got ticket nil"},
		{func() interface{ Launch(Queue) error } { d := decode; d.Scratch.Addr += 64; return d }, "attention decode: scratch must be aligned to 128 bytes, got address 0x100040"},
		{func() interface{ Launch(Queue) error } { return Gemm{Type: BF16, M: 1, N: 8, K: 12, Y: p, X: p, W: p} }, "gemm: no CUDA kernel: K 12, row strides 12 and 12: rows of x and w must be multiples of 8 elements at addresses aligned to 16 bytes"},
		{func() interface{ Launch(Queue) error } {
			return Gemm{Type: BF16, M: 1, N: 8, K: 16, Y: p, X: p, W: p, WStride: 8}
		}, "gemm: row stride 8 of w is below its 16 columns"},
		{func() interface{ Launch(Queue) error } { return Sampling{Type: F32, B: 1, V: 1 << 23} }, "sampling: no CUDA kernel: 8388608 tokens: a kernel exists up to 4194304"},
		{func() interface{ Launch(Queue) error } {
			return Sampling{Type: F32, B: 1, V: 65, Seen: p, SeenWords: 2}
		}, "sampling: 2 words of seen tokens hold fewer than V 65 bits"},
		{func() interface{ Launch(Queue) error } { return RMSNorm{Type: BF16, Rows: 1, D: 0} }, "rmsnorm: rows >= 0 and d >= 1 are required, got rows 1, d 0"},
		{func() interface{ Launch(Queue) error } {
			return Rotary{Type: BF16, T: 1, Hq: 1, Hk: 1, D: 64, Rot: 24, MaxPositions: 1, Q: p, K: p, QOut: p, KOut: p, QWeight: p, KWeight: p}
		}, "rotary: no CUDA kernel: head norm with D 64, rot 24: a kernel exists for rot = D = 16 * (1, 2, 4, 8, 16 or 32), rows aligned to 16 bytes"},
		{func() interface{ Launch(Queue) error } {
			return Append{Type: BF16, PoolType: E4M3, T: 1, Columns: 64, Heads: 2, Pool: p, X: p, Slots: p}
		}, "append: a pool of e4m3 needs a step for each head, got steps nil for 2 heads of 64 columns"},
		{func() interface{ Launch(Queue) error } {
			return AttentionGeneral{Type: BF16, KV: F16, Hq: 1, Hk: 1, D: 8, Dv: 8}
		}, "attention general: no CUDA kernel: keys of f16 with queries of bf16"},
		{func() interface{ Launch(Queue) error } {
			return AttentionGeneral{Type: BF16, KV: E4M3, Hq: 1, Hk: 1, D: 8, Dv: 8, KSteps: p}
		}, "attention general: keys and values of e4m3, and only they, take steps, got e4m3 with steps p and nil"},
		{func() interface{ Launch(Queue) error } {
			return AttentionGeneral{Type: F32, KV: F32, Hq: 1, Hk: 1, D: 8, Dv: 1025}
		}, "attention general: no CUDA kernel: head dims 8 and 1025: a kernel exists up to 1024"},
	} {
		r := &Recorder{GPU: gpu}
		require.EqualError(t, c.launch().Launch(r), c.want)
		require.Empty(t, r.Lines)
	}
	small := gpu
	small.MaxShared = 1 << 10
	require.EqualError(t, decode.Launch(&Recorder{GPU: small}), "attention_decode_paged_bf16_128: no CUDA kernel: it needs 74004 bytes of shared memory, H200 gives a block 1024")
}

func TestPrefillSectionsLeaveRoomInL2(t *testing.T) {
	for _, c := range []struct {
		hq, hk, d, lk, want int
		causal              bool
	}{{32, 8, 128, 8192, 8, false}, {32, 8, 128, 8192, 32, true}, {32, 8, 128, 2048, 32, false}, {32, 8, 128, 1 << 20, 4, false}, {12, 6, 128, 4096, 6, false}, {5, 5, 256, 2048, 1, false}, {8, 2, 64, 0, 8, false}} {
		a := AttentionPrefill{Hq: c.hq, Hk: c.hk, D: c.d, Lk: c.lk, Causal: c.causal}
		require.Equal(t, c.want, a.section(), "%+v", c)
		a.Ragged = &Ragged{}
		require.Equal(t, c.hq, a.section(), "ragged %+v", c)
	}
}

func TestPrefillTakesHoppersKernel(t *testing.T) {
	p := at("p", 1)
	dense := AttentionPrefill{Type: BF16, B: 1, Hq: 8, Hk: 2, D: 128, Lq: 300, Lk: 300, Out: p, Q: p, K: p, V: p, Causal: true, Ticket: p}
	paged := func(size int, steps Pointer) AttentionPrefill {
		a := dense
		a.KSteps, a.VSteps = steps, steps
		a.Ragged = &Ragged{Pages: Pages{PageSize: size, Indptr: p, Indices: p, LastPageLen: p}, Tokens: 300, PoolTokens: 4096, QoIndptr: p, TileBatch: p, TileIndex: p, Tiles: 5}
		return a
	}
	short, none, wide := dense, dense, dense
	short.Lk, none.Lk, wide.D = 20, 0, 96
	for want, as := range map[string][]AttentionPrefill{
		"attention_prefill_sm90_dense_bf16_128": {dense, short}, "attention_prefill_dense_bf16_128": {none}, "attention_prefill_dense_bf16_96": {wide},
		"attention_prefill_sm90_paged_bf16_128": {paged(8, Pointer{})}, "attention_prefill_paged_bf16_128": {paged(4, Pointer{})},
		"attention_prefill_sm90_paged_e4m3_bf16_128": {paged(1, p), paged(64, p)},
	} {
		for _, a := range as {
			r := &Recorder{GPU: targets["sm_90"]}
			require.NoError(t, a.Launch(r))
			require.Contains(t, r.Lines[0], want+" grid")
		}
	}
}

func TestWorkMap(t *testing.T) {
	batch, index, err := WorkMap([]int32{0, 70, 80, 210}, 64)
	require.NoError(t, err)
	require.Equal(t, []int32{0, 0, 1, 2, 2, 2}, batch)
	require.Equal(t, []int32{0, 1, 0, 0, 1, 2}, index)
	_, _, err = WorkMap([]int32{0, 5, 3}, 64)
	require.EqualError(t, err, "work map: qo_indptr decreases at request 1: 5, 3")
}

func TestPackFollowsTheKernelsLayout(t *testing.T) {
	l := Launch{Kernel: "k", Grid: [3]int{1, 1, 1}, Block: 32, Args: []Arg{{"a", int32(1)}, {"b", at("b", 1)}, {"c", float32(1)}, {"d", TensorMap{}}, {"e", int64(-1)}}}
	block, err := l.pack(func(dst []byte, m TensorMap) error { dst[0] = 7; return nil })
	require.NoError(t, err)
	require.Len(t, block, 64+128+8)
	require.EqualValues(t, 1, block[0])
	require.EqualValues(t, 0x10, block[8+2])
	require.EqualValues(t, 7, block[64])
	require.EqualValues(t, 0xff, block[199])
	l.Args = []Arg{{"a", "text"}}
	_, err = l.pack(nil)
	require.EqualError(t, err, "k: argument a has type string, which no kernel takes")
}
