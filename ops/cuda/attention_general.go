package cuda

import (
	"fmt"
	"math"
)

// AttentionGeneral launches attention by FMA for whatever the kernels on matrix units do not take: f32, any head dim D of q
// and k and Dv of v up to 1024, keys and values in a type of their own, masks with lengths, lse of pages. Prefill and decode
// alike. Dense: q [B,Lq,Hq,D] over k [B,Lk,Hk,D], v [B,Lk,Hk,Dv] packed, lse [B,Hq,Lq]. Ragged: q [T,Hq,D] over pages, or,
// with KVIndptr, over packed k and v; lse [Hq,T]. There tiles of GeneralRows rows map to requests, a row being a query token
// and one of the heads of a group; tiles of request B are the tokens behind the last request, which get 0 and -Inf.
// Causal is bottom-right. A row that sees no key gives 0 and lse -Inf.
type AttentionGeneral struct {
	Type                           DType
	KV                             DType // of k and v: that of q, BF16, or E4M3 with steps
	B, Hq, Hk, D, Dv, Lq, Lk       int
	Out, Q, K, V                   Pointer
	LSE                            Pointer // optional, f32
	KVLen                          Pointer // optional, dense: int32 [B], keys of each request
	Ragged                         *Ragged
	Causal                         bool
	Window                         int     // keys seen besides the own one; negative: all
	Softcap                        float32 // 0: none
	Scale                          float32 // 0: 1/sqrt(D)
	Sinks                          Pointer // optional, [Hq], f32 or, when SinksNarrow, in Type
	SinksNarrow                    bool
	Mask                           Pointer // optional, dense, bool by strides (bytes), nonzero keeps
	MaskRequest, MaskHead, MaskRow int64
	KSteps, VSteps                 Pointer // f32 [Hk], of E4M3
}

// GeneralRows is the number of rows of a tile of AttentionGeneral.
const GeneralRows = 32

// Launch queues the kernel.
func (a AttentionGeneral) Launch(q Queue) error {
	const op = "attention general"
	if err := checkGroup(op, a.Hq, a.Hk); err != nil {
		return err
	}
	size := 256
	switch {
	case a.D < 1 || a.Dv < 1:
		return fmt.Errorf("%s: head dims >= 1 are required, got D %d, Dv %d", op, a.D, a.Dv)
	case a.D > 1024 || a.Dv > 1024:
		return unsupported(op, "head dims %d and %d: a kernel exists up to 1024", a.D, a.Dv)
	case a.Dv > 256:
		size = 1024
	}
	if a.KV != a.Type && a.KV != BF16 && a.KV != E4M3 {
		return unsupported(op, "keys of %v with queries of %v", a.KV, a.Type)
	}
	if steps := !a.KSteps.IsNil() && !a.VSteps.IsNil(); steps != (a.KV == E4M3) {
		return fmt.Errorf("%s: keys and values of e4m3, and only they, take steps, got %v with steps %v and %v", op, a.KV, a.KSteps, a.VSteps)
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.D)))
	}
	if a.Window < 0 {
		a.Window = -1
	}
	mode, r, log2, tiles := 0, Ragged{}, 0, a.B*ceilDiv(a.Lq*(a.Hq/a.Hk), GeneralRows)
	if a.Ragged != nil {
		mode, r, tiles = 2, *a.Ragged, a.Ragged.Tiles
		if !a.Mask.IsNil() || !a.KVLen.IsNil() {
			return unsupported(op, "a mask or lengths on a ragged batch")
		}
		if !r.KVIndptr.IsNil() {
			mode = 1
		} else {
			var err error
			if log2, err = pageLog2(op, r.PageSize); err != nil {
				return err
			}
		}
	} else if a.B < 0 || a.Lq < 0 || a.Lk < 0 {
		return fmt.Errorf("%s: B, Lq and Lk >= 0 are required, got %d, %d, %d", op, a.B, a.Lq, a.Lk)
	}
	if tiles == 0 {
		return nil
	}
	qt, kt, vt := int64(a.Hq*a.D), int64(a.Hk*a.D), int64(a.Hk*a.Dv)
	return q.Launch(Launch{Kernel: fmt.Sprintf("attention_general_%v_%v_%d", a.Type, a.KV, size), Grid: [3]int{tiles, a.Hk, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"out", a.Out}, {"lse", a.LSE}, {"q", a.Q}, {"k", a.K}, {"v", a.V}, {"qo_indptr", r.QoIndptr}, {"kv_indptr", r.KVIndptr}, {"tile_batch", r.TileBatch}, {"tile_index", r.TileIndex},
		{"page_indptr", r.Indptr}, {"page_indices", r.Indices}, {"last_page_len", r.LastPageLen}, {"kv_len", a.KVLen}, {"mask", a.Mask}, {"sinks", a.Sinks},
		{"k_steps", a.KSteps}, {"v_steps", a.VSteps}, {"q_request_stride", qt * int64(a.Lq)}, {"q_token_stride", qt}, {"k_request_stride", kt * int64(a.Lk)}, {"k_token_stride", kt},
		{"v_request_stride", vt * int64(a.Lk)}, {"v_token_stride", vt}, {"mask_request_stride", a.MaskRequest}, {"mask_head_stride", a.MaskHead}, {"mask_row_stride", a.MaskRow},
		{"mode", int32(mode)}, {"batch", int32(a.B)}, {"hq", int32(a.Hq)}, {"hk", int32(a.Hk)}, {"d", int32(a.D)}, {"dv", int32(a.Dv)}, {"lq", int32(a.Lq)}, {"lk", int32(a.Lk)},
		{"tokens", int32(r.Tokens)}, {"page_log2", int32(log2)}, {"window", int32(a.Window)}, {"causal", bit(a.Causal)}, {"sinks_wide", bit(!a.SinksNarrow)},
		{"scale", a.Scale}, {"softcap", a.Softcap}}})
}

// MergeStates launches the attention over two sets of keys from the attention over each: out [B,L,H,Dv] and lse [B,H,L].
type MergeStates struct {
	Type         DType
	B, L, H, Dv  int
	Out          Pointer
	LSE          Pointer // optional, f32
	A, BState    Pointer
	LSEA, LSEB   Pointer
	WideA, WideB bool // the lse of a state is f32, not Type
}

// Launch queues the kernel.
func (m MergeStates) Launch(q Queue) error {
	if m.B < 0 || m.L < 0 || m.H < 1 || m.Dv < 1 {
		return fmt.Errorf("merge states: B, L >= 0, H and Dv >= 1 are required, got %d, %d, %d, %d", m.B, m.L, m.H, m.Dv)
	}
	rows := m.B * m.L * m.H
	if rows == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: "attention_merge_states_" + m.Type.String(), Grid: [3]int{rows, 1, 1}, Block: min(256, (m.Dv+31)/32*32), Overlap: q.Target().Hopper(), Args: []Arg{
		{"out", m.Out}, {"lse", m.LSE}, {"a", m.A}, {"lse_a", m.LSEA}, {"b", m.BState}, {"lse_b", m.LSEB}, {"wide_a", bit(m.WideA)}, {"wide_b", bit(m.WideB)},
		{"length", int32(m.L)}, {"heads", int32(m.H)}, {"dv", int32(m.Dv)}}})
}
