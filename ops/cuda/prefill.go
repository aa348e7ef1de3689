package cuda

import (
	"fmt"
	"math"
)

// Ragged names a batch of packed queries [T,Hq,D] over KV pages. TileBatch and TileIndex are WorkMap's on the device.
type Ragged struct {
	Pages
	Tokens               int     // T
	PoolTokens           int     // pages of the pool times the page size
	QoIndptr             Pointer // int32 [B+1], prefix sums of tokens
	KVIndptr             Pointer // AttentionGeneral, int32 [B+1]: k and v are packed tokens, not pages
	TileBatch, TileIndex Pointer // int32 [Tiles]; a negative request means no work
	Tiles                int
}

// AttentionPrefill launches attention of many query tokens a request. Dense: q [B,Lq,Hq,D] over k, v [B,Lk,Hk,D] by strides
// (elements; zero means packed), out packed, lse [B,Hq,Lq]. Ragged: packed q [T,Hq,D] over pages, lse [Hq,T]. Causal is
// bottom-right. A row that sees no key gives 0 and lse -Inf. With KSteps and VSteps the pages hold E4M3 codes.
type AttentionPrefill struct {
	Type                           DType
	B, Hq, Hk, D, Lq, Lk           int
	Out, Q, K, V                   Pointer
	LSE                            Pointer // optional, f32
	QRequestStride, QTokenStride   int64
	KVRequestStride, KVTokenStride int64
	Ragged                         *Ragged
	Causal                         bool
	Window                         int     // keys seen besides the own one; negative: all
	Softcap                        float32 // 0: none
	Scale                          float32 // 0: 1/sqrt(D)
	Sinks                          Pointer // optional, f32 [Hq]
	Mask                           Pointer // optional, dense, bool by strides (bytes), nonzero keeps
	MaskRequest, MaskHead, MaskRow int64
	KSteps, VSteps                 Pointer // ragged, optional, f32 [Hk]
	Ticket                         Pointer // int32, 0 before and after; Hopper's kernels need it
}

// WorkMap lists the tiles of a ragged batch: of which request each is, and the how many-th of it.
func WorkMap(qoIndptr []int32, rows int) (batch, index []int32, err error) {
	if rows < 1 || len(qoIndptr) == 0 || qoIndptr[0] != 0 {
		return nil, nil, fmt.Errorf("work map: rows >= 1 and an indptr that starts at 0 are required, got rows %d, indptr %v", rows, qoIndptr)
	}
	for b := range len(qoIndptr) - 1 {
		n := int(qoIndptr[b+1]) - int(qoIndptr[b])
		if n < 0 {
			return nil, nil, fmt.Errorf("work map: qo_indptr decreases at request %d: %d, %d", b, qoIndptr[b], qoIndptr[b+1])
		}
		for i := range ceilDiv(n, rows) {
			batch, index = append(batch, int32(b)), append(index, int32(i))
		}
	}
	return batch, index, nil
}

// TileRows is the number of query rows of a tile, for WorkMap.
func (a AttentionPrefill) TileRows(gpu Target) int {
	if a.hopper(gpu) {
		rows, _, _ := a.hopperTiles()
		return rows
	}
	return 64
}

func (a AttentionPrefill) hopper(gpu Target) bool {
	if !gpu.Hopper() || !a.Mask.IsNil() || a.D != 64 && a.D != 128 && a.D != 256 {
		return false
	}
	if a.Ragged != nil {
		return !a.KSteps.IsNil() || a.Ragged.PageSize >= 8
	}
	return a.Lk > 0
}

// hopperTiles are the query rows and the keys of a tile of Hopper's kernel, and how many tiles of codes are on their way.
func (a AttentionPrefill) hopperTiles() (rows, keys, raw int) {
	switch {
	case a.D == 256:
		return 128, 64, 2
	case a.D == 64 && a.KSteps.IsNil():
		return 192, 128, 4
	}
	return 128, 128, 4
}

// shared is the shared memory of a block.
func (a AttentionPrefill) shared(gpu Target) int {
	codes, d := !a.KSteps.IsNil(), kernelDim(a.D)
	if a.hopper(gpu) {
		rows, keys, raw := a.hopperTiles()
		if !codes {
			raw = 0
		}
		return (rows+4*keys)*2*d + 1024 + raw*keys*d
	}
	if codes {
		return 3*64*(2*d+16) + 4*64*(d+16)
	}
	return 5 * 64 * (2*d + 16)
}

// section is how many heads of a request Hopper's kernel takes before the next ones. Causal and ragged: all, as the longest rows
// come first. Otherwise those whose keys and values are 8 MB or less: blocks at work on all of them would not leave L2 room.
func (a AttentionPrefill) section() int {
	n := a.Hk
	for !a.Causal && a.Ragged == nil && n > 1 && (n*a.Lk*a.D*4 > 8<<20 || a.Hk%n != 0) {
		n--
	}
	return a.Hq / a.Hk * n
}

// fits says whether the GPU gives a block that much.
func (a AttentionPrefill) fits(gpu Target) bool { return a.shared(gpu) <= gpu.MaxShared }

// Launch queues the kernel.
func (a AttentionPrefill) Launch(q Queue) error {
	const op = "attention prefill"
	codes := !a.KSteps.IsNil()
	if err := checkHeads(op, a.Type, a.Hq, a.Hk, a.D, codes); err != nil {
		return err
	}
	if codes != !a.VSteps.IsNil() || codes && a.Ragged == nil {
		return fmt.Errorf("%s: steps of k and v go together, with pages; got k steps %v, v steps %v", op, a.KSteps, a.VSteps)
	}
	if err := aligned16(op, Arg{"q", a.Q}, Arg{"k", a.K}, Arg{"v", a.V}, Arg{"out", a.Out}); err != nil {
		return err
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.D)))
	}
	if a.Window < 0 {
		a.Window = -1
	}
	if a.QTokenStride == 0 {
		a.QTokenStride = int64(a.Hq * a.D)
	}
	if a.KVTokenStride == 0 {
		a.KVTokenStride = int64(a.Hk * a.D)
	}
	if a.QRequestStride == 0 {
		a.QRequestStride = a.QTokenStride * int64(a.Lq)
	}
	if a.KVRequestStride == 0 {
		a.KVRequestStride = a.KVTokenStride * int64(a.Lk)
	}
	if a.QTokenStride%8 != 0 || a.KVTokenStride%8 != 0 || a.QRequestStride%8 != 0 || a.KVRequestStride%8 != 0 {
		return fmt.Errorf("%s: strides must be multiples of 8 elements, got q %d and %d, kv %d and %d", op, a.QTokenStride, a.QRequestStride, a.KVTokenStride, a.KVRequestStride)
	}
	kind, r, log2, tiles := "dense", Ragged{}, 0, a.B*ceilDiv(a.Lq, 64)
	if a.Ragged != nil {
		kind, r, tiles = "paged", *a.Ragged, a.Ragged.Tiles
		if !a.Mask.IsNil() {
			return unsupported(op, "a mask on a ragged batch")
		}
		var err error
		if log2, err = pageLog2(op, r.PageSize); err != nil {
			return err
		}
	} else if a.B < 0 || a.Lq < 0 || a.Lk < 0 {
		return fmt.Errorf("%s: B, Lq and Lk >= 0 are required, got %d, %d, %d", op, a.B, a.Lq, a.Lk)
	}
	if tiles == 0 {
		return nil
	}
	overlap := q.Target().Hopper()
	heads := []Arg{{"hq", int32(a.Hq)}, {"hk", int32(a.Hk)}}
	tail := []Arg{{"lq", int32(a.Lq)}, {"lk", int32(a.Lk)}, {"tokens", int32(r.Tokens)}, {"page_log2", int32(log2)},
		{"window", int32(a.Window)}, {"causal", bit(a.Causal)}, {"scale", a.Scale}, {"softcap", a.Softcap}}
	table := []Arg{{"qo_indptr", r.QoIndptr}, {"tile_batch", r.TileBatch}, {"tile_index", r.TileIndex}, {"page_indptr", r.Indptr}, {"page_indices", r.Indices}, {"last_page_len", r.LastPageLen}}
	if a.hopper(q.Target()) {
		rows, keys, _ := a.hopperTiles()
		qm, km, vm := a.maps(rows, keys)
		if a.Ticket.IsNil() {
			return fmt.Errorf("%s: a ticket is required, got ticket %v", op, a.Ticket)
		}
		items := tiles * a.Hq
		if a.Ragged == nil {
			tiles = ceilDiv(a.Lq, rows)
			items = a.B * tiles * a.Hq
		}
		args := []Arg{{"q", qm}, {"k", km}, {"v", vm}}
		if codes {
			kind = "paged_e4m3"
			args = []Arg{{"q", qm}, {"k", a.K}, {"v", a.V}, {"k_steps", a.KSteps}, {"v_steps", a.VSteps}}
		}
		args = append(append(args, Arg{"out", a.Out}, Arg{"lse", a.LSE}), table...)
		args = append(append(append(args, Arg{"sinks", a.Sinks}, Arg{"ticket", a.Ticket}), heads...), tail...)
		args = append(args, Arg{"tiles", int32(tiles)}, Arg{"items", int32(items)}, Arg{"section", int32(a.section())})
		return q.Launch(Launch{Kernel: fmt.Sprintf("attention_prefill_sm90_%s_%v_%d", kind, a.Type, a.D), Grid: [3]int{min(q.Target().SMs, items), 1, 1}, Block: 128 + 2*rows, Shared: a.shared(q.Target()), Overlap: overlap, Args: args})
	}
	args := append([]Arg{{"out", a.Out}, {"lse", a.LSE}, {"q", a.Q}, {"k", a.K}, {"v", a.V}}, table...)
	args = append(args, []Arg{{"mask", a.Mask}, {"sinks", a.Sinks}, {"k_steps", a.KSteps}, {"v_steps", a.VSteps}, {"q_request_stride", a.QRequestStride}, {"q_token_stride", a.QTokenStride},
		{"kv_request_stride", a.KVRequestStride}, {"kv_token_stride", a.KVTokenStride}, {"mask_request_stride", a.MaskRequest}, {"mask_head_stride", a.MaskHead}, {"mask_row_stride", a.MaskRow}}...)
	args = append(append(append(args, heads...), Arg{"d", int32(a.D)}), tail...)
	if codes {
		kind += "_e4m3"
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("attention_prefill_%s_%v_%d", kind, a.Type, kernelDim(a.D)), Grid: [3]int{tiles, a.Hq, 1}, Block: 128, Shared: a.shared(q.Target()), Overlap: overlap, Args: args})
}

func (a AttentionPrefill) maps(rows, keys int) (q, k, v TensorMap) {
	size := uint64(2)
	d, hq, hk := uint64(a.D), uint64(a.Hq), uint64(a.Hk)
	if r := a.Ragged; r != nil {
		q = TensorMap{Base: a.Q, Type: a.Type, Dims: []uint64{d, hq, uint64(r.Tokens)}, Strides: []uint64{d * size, uint64(a.QTokenStride) * size}, Box: []uint32{64, 1, uint32(rows)}, Swizzle: 128}
		k = TensorMap{Base: a.K, Type: a.Type, Dims: []uint64{d, hk, uint64(r.PoolTokens)}, Strides: []uint64{d * size, d * hk * size}, Box: []uint32{64, 1, uint32(min(keys, r.PageSize))}, Swizzle: 128}
	} else {
		q = TensorMap{Base: a.Q, Type: a.Type, Dims: []uint64{d, hq, uint64(a.Lq), uint64(a.B)}, Strides: []uint64{d * size, uint64(a.QTokenStride) * size, uint64(a.QRequestStride) * size}, Box: []uint32{64, 1, uint32(rows), 1}, Swizzle: 128}
		k = TensorMap{Base: a.K, Type: a.Type, Dims: []uint64{d, hk, uint64(a.Lk), uint64(a.B)}, Strides: []uint64{d * size, uint64(a.KVTokenStride) * size, uint64(a.KVRequestStride) * size}, Box: []uint32{64, 1, uint32(keys), 1}, Swizzle: 128}
	}
	v = k
	v.Base = a.V
	return q, k, v
}
