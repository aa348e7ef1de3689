package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// A run's launches by role, with what each must move and do, counted by hand: 2 layers, 4 requests of 17 tokens that bring
// one each.
func TestProfileCountsWork(t *testing.T) {
	m := tiny(t, nil)
	b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	logits := m.Packed(b, models.Packed{Tokens: 4, Requests: 4, Pages: 8, PageSize: 16, Indices: 8})
	plan, err := b.Plan(ops.Sampling(logits, b.Input("draws", dtype.Int32, 4, 8)))
	require.NoError(t, err)
	p, err := lower(plan, targets["sm_90"], BF16, true, nil)
	require.NoError(t, err)
	feeds := graph.Feeds{
		models.PackedTokens: []int32{1, 2, 3, 4}, models.PackedPositions: []int32{16, 16, 16, 16}, models.PackedSlots: []int32{16, 48, 80, 112},
		models.PackedQOIndptr: []int32{0, 1, 2, 3, 4}, models.PackedPageIndptr: []int32{0, 2, 4, 6, 8}, models.PackedPageIndices: []int32{0, 1, 2, 3, 4, 5, 6, 7},
		models.PackedLastPageLen: []int32{1, 1, 1, 1}, models.PackedLastRows: []int32{0, 1, 2, 3}, "draws": make([]int32, 32),
	}
	type work struct {
		launches     int
		bytes, flops float64
	}
	got := map[string]work{}
	launches := 0
	for _, g := range p.groups(feeds) {
		got[g.Role+" by "+g.Kernel] = work{g.Launches, g.Bytes, g.FLOPs}
		require.Len(t, g.index, g.Launches)
		launches += g.Launches
	}
	const d, f, width, rows = 128, 192, (4 + 2 + 2) * 64, 4
	require.Equal(t, work{2, 2 * 2 * (d*width + rows*d + rows*width), 2 * 2 * rows * d * width}, got["model.layers.*.self_attn.q_proj k_proj v_proj rotary append_pages by gemm_stream_sm90_bf16_8"])
	require.Equal(t, work{2, 2 * 2 * (d*2*f + rows*d + rows*f), 2 * 2 * rows * d * 2 * f}, got["model.layers.*.mlp.gate_proj up_proj swiglu by gemm_stream_sm90_bf16_8_swiglu"])
	require.Equal(t, work{1, 2*(d*256+rows*d) + 4*rows*256, 2 * rows * d * 256}, got["lm_head by gemm_stream_sm90_bf16_8"])
	attention := got["model.layers.*.self_attn.paged_attention by attention_decode_paged_bf16_64"]
	require.Equal(t, 2.*4*17*2*4*2*64, attention.flops)
	require.InDelta(t, 2.*4*17*2*2*64*2+2*(2*2*rows*4*64), attention.bytes, 300, "keys and values, the query, the result; and indices")
	require.NotContains(t, got, "model.layers.*.self_attn.paged_attention by attention_prefill_sm90_paged_bf16_64", "no request brings several tokens")
	feeds[models.PackedQOIndptr], feeds[models.PackedLastPageLen] = []int32{0, 4, 4, 4, 4}, []int32{1, 0, 0, 0}
	feeds[models.PackedPageIndptr] = []int32{0, 2, 2, 2, 2}
	more := 0
	for _, g := range p.groups(feeds) {
		more += g.Launches
		if g.Kernel == "attention_prefill_sm90_paged_bf16_64" {
			more -= g.Launches
		}
	}
	require.Equal(t, launches, more, "the launches of several tokens come in addition")
	require.Contains(t, Profile{Kernels: []KernelTime{{Role: "lm_head", Kernel: "k", Launches: 2, Micros: 4, Bytes: 8e6, FLOPs: 4e6, Floor: 2}}, Micros: 5, Bandwidth: 4e12, Rate: 1e15}.String(),
		"| lm_head | k | 2 | 2.00 | 4.0 | 100.0% | 2000 | 1.0 | 0.50 |")
}
