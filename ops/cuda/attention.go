package cuda

import (
	"fmt"
	"math"
)

// Pages names a KV cache in pages: the pool [pages,PageSize,Hk,D] and the page table on the device.
type Pages struct {
	PageSize    int
	Indptr      Pointer // int32 [B+1], prefix sums of pages
	Indices     Pointer // int32, page ids
	LastPageLen Pointer // int32 [B]
}

// AttentionDecode launches out[B,Hq,D] = attention of one query token a request over its cache, the split over the cache
// and the merge included. The cache is dense (K, V [B,L,Hk,D] by strides, Lengths) or paged (K, V are pools, Pages).
// With NewK and NewV [B,Hk,D] the last token of each paged request comes from there and is written to its page. With KSteps
// and VSteps the pools hold E4M3 codes. Lengths and the page table are read before the launches in front have ended, unless
// they are Computed; then too, with Written, what the pools hold elsewhere than in the slots that these launches write.
type AttentionDecode struct {
	Type                       DType
	B, Hq, Hk, D               int
	Out, Q, K, V               Pointer
	LSE                        Pointer // optional, f32 [B,Hq], natural log
	Lengths                    Pointer // dense: int32 [B]
	RequestStride, TokenStride int64   // dense, elements; zero means packed for MaxLength
	Pages                      *Pages
	MaxLength                  int // no request is longer; bounds grid and scratch
	Mask                       Pointer
	MaskStride                 int64   // bool [B,MaskStride], nonzero keeps; optional
	NewK, NewV                 Pointer // optional
	KSteps, VSteps             Pointer // optional, f32 [Hk]
	Sinks                      Pointer // optional, f32 [Hq]
	Window                     int     // tokens seen besides the own one; negative: all
	Softcap                    float32 // 0: none
	Scale                      float32 // 0: 1/sqrt(D)
	Scratch                    Pointer // ScratchBytes
	Ticket                     Pointer // int32, 0 before and after
	Written                    Pointer // optional, with pages, no Mask, no NewK: int32 [Writes], negative for none; a launch in front must not write it
	Writes                     int     // up to MostWrites
	Computed                   bool    // a launch in front may write lengths or the page table
	Ahead                      bool    // the launch behind, which is no decode, may take the places that this one leaves
}

// MostWrites is the most slots that AttentionDecode looks at before the launches in front have ended.
const MostWrites = 32

// kernelDim is the head dim of the kernel for heads of d elements: the next that one exists for.
func kernelDim(d int) int {
	for _, n := range []int{32, 64, 96, 128, 192} {
		if d <= n {
			return n
		}
	}
	return 256
}

// decodeStages is the depth of the ring of a warp, by head dim; with codes it is 4.
var decodeStages = map[int]int{32: 4, 64: 4, 96: 3, 128: 2, 192: 2, 256: 2}

// shared is the shared memory of a block: the ring, the lines where the warps meet, and the table of requests.
func (a AttentionDecode) shared() int {
	_, rows, _ := a.shape()
	d := kernelDim(a.D)
	size, stages := a.Type.Size(), decodeStages[d]
	if !a.KSteps.IsNil() {
		size, stages = 1, 4
	}
	line := size * d
	if chunks := line / 16; chunks%8 != 0 && chunks != 4 {
		line += 16
	}
	return stages*4*2*16*line + 4*rows*(d+4)*4 + (3*a.B+2)*4
}

// fits says whether the GPU gives a block that much.
func (a AttentionDecode) fits(gpu Target) bool { return a.shared() <= gpu.MaxShared }

func (a AttentionDecode) shape() (tiles, rows, splits int) {
	group := a.Hq / max(1, a.Hk)
	return ceilDiv(group, 8), min(group, 8), max(16, ceilDiv(a.MaxLength, 1024))
}

// ScratchBytes is what Scratch must hold.
func (a AttentionDecode) ScratchBytes() int64 {
	tiles, rows, splits := a.shape()
	return int64(a.B) * int64(splits) * int64(a.Hk*tiles*(rows*kernelDim(a.D)+2*4*ceilDiv(rows, 4))) * 4
}

// Launch queues the kernel.
func (a AttentionDecode) Launch(q Queue) error {
	const op = "attention decode"
	codes := !a.KSteps.IsNil()
	if err := checkHeads(op, a.Type, a.Hq, a.Hk, a.D, codes); err != nil {
		return err
	}
	if a.B < 0 || a.MaxLength < 1 {
		return fmt.Errorf("%s: B >= 0 and a longest length >= 1 are required, got B %d, longest %d", op, a.B, a.MaxLength)
	}
	if a.B > 1024 {
		return unsupported(op, "B %d: the work map in shared memory holds up to 1024 requests", a.B)
	}
	if (a.Pages == nil) == a.Lengths.IsNil() {
		return fmt.Errorf("%s: either lengths (dense) or pages are required", op)
	}
	if a.NewK.IsNil() != a.NewV.IsNil() || !a.NewK.IsNil() && a.Pages == nil {
		return fmt.Errorf("%s: new k and new v go together, with pages; got new k %v, new v %v", op, a.NewK, a.NewV)
	}
	if codes != !a.VSteps.IsNil() || codes && (a.Pages == nil || !a.NewK.IsNil()) {
		return fmt.Errorf("%s: steps of k and v go together, with pages and without new k and v; got k steps %v, v steps %v", op, a.KSteps, a.VSteps)
	}
	if err := aligned16(op, Arg{"q", a.Q}, Arg{"k", a.K}, Arg{"v", a.V}, Arg{"new k", a.NewK}, Arg{"new v", a.NewV}); err != nil {
		return err
	}
	if !a.Written.IsNil() && (a.Pages == nil || !a.NewK.IsNil() || !a.Mask.IsNil() || a.Writes < 1 || a.Writes > MostWrites) {
		return fmt.Errorf("%s: written slots go with pages, without a mask and new k, and number 1 to %d; got pages %v, mask %v, new k %v, %d slots", op, MostWrites, a.Pages != nil, a.Mask, a.NewK, a.Writes)
	}
	if a.B == 0 {
		return nil
	}
	if a.Scratch.IsNil() || a.Ticket.IsNil() {
		return fmt.Errorf("%s: %d bytes of scratch and a ticket are required, got scratch %v and ticket %v", op, a.ScratchBytes(), a.Scratch, a.Ticket)
	}
	if a.Scratch.Addr%128 != 0 {
		return fmt.Errorf("%s: scratch must be aligned to 128 bytes, got address %#x", op, a.Scratch.Addr)
	}
	kind, merge, pages, log2 := "dense", "dense", Pages{}, 0
	if a.Pages != nil {
		kind, merge, pages = "paged", "paged", *a.Pages
		if pages.PageSize < 16 {
			kind = "gather"
		}
		var err error
		if log2, err = pageLog2(op, pages.PageSize); err != nil {
			return err
		}
	}
	if a.TokenStride == 0 {
		a.TokenStride = int64(a.Hk * a.D)
	}
	if a.RequestStride == 0 {
		a.RequestStride = a.TokenStride * int64(a.MaxLength)
	}
	if a.TokenStride%8 != 0 || a.RequestStride%8 != 0 { // a head of codes is a multiple of 16
		return fmt.Errorf("%s: strides must be multiples of 8 elements, got token %d, request %d", op, a.TokenStride, a.RequestStride)
	}
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.D)))
	}
	if a.Window < 0 {
		a.Window = -1
	}
	tiles, _, splits := a.shape()
	d, shared := kernelDim(a.D), a.shared()
	perSM := max(1, min(3, q.Target().SharedSM/(shared+2048)))
	grid := min(q.Target().SMs*perSM, a.B*splits*a.Hk*tiles)
	overlap := q.Target().Hopper()
	early := bit(overlap && !a.Computed)
	if codes {
		kind += "_e4m3"
	}
	args := []Arg{
		{"out", a.Out}, {"lse", a.LSE}, {"q", a.Q}, {"k", a.K}, {"v", a.V}, {"lengths", a.Lengths}, {"page_indptr", pages.Indptr}, {"page_indices", pages.Indices},
		{"last_page_len", pages.LastPageLen}, {"mask", a.Mask}, {"new_k", a.NewK}, {"new_v", a.NewV}, {"sinks", a.Sinks}, {"written", a.Written}, {"k_steps", a.KSteps}, {"v_steps", a.VSteps}, {"scratch", a.Scratch}, {"ticket", a.Ticket},
		{"request_stride", a.RequestStride}, {"token_stride", a.TokenStride}, {"head_stride", int64(a.D)}, {"mask_stride", a.MaskStride},
		{"batch", int32(a.B)}, {"hq", int32(a.Hq)}, {"hk", int32(a.Hk)}, {"d", int32(a.D)}, {"page_log2", int32(log2)}, {"window", int32(a.Window)}, {"max_splits", int32(splits)}, {"early", early}, {"writes", int32(a.Writes)}, {"ahead", bit(a.Ahead)},
		{"scale", a.Scale}, {"softcap", a.Softcap}}
	if err := q.Launch(Launch{Kernel: fmt.Sprintf("attention_decode_%s_%v_%d", kind, a.Type, d), Grid: [3]int{grid, 1, 1}, Block: 128, Shared: shared, Overlap: overlap, Args: args}); err != nil {
		return err
	}
	if a.MaxLength <= 64 { // one split
		return nil
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("attention_decode_merge_%s_%v_%d", merge, a.Type, d), Grid: [3]int{a.Hq, a.B, 1}, Block: d, Overlap: overlap, Args: args})
}

func checkGroup(op string, hq, hk int) error {
	switch {
	case hq < 1 || hk < 1:
		return fmt.Errorf("%s: heads >= 1 are required, got Hq %d, Hk %d", op, hq, hk)
	case hq%hk != 0:
		return fmt.Errorf("%s: q has %d heads, not a multiple of k's %d", op, hq, hk)
	case hq/hk > 128:
		return unsupported(op, "%d query heads a kv head: up to 128", hq/hk)
	}
	return nil
}

// checkHeads is what the kernels on matrix units take: heads whose rows in memory, of codes too, are multiples of 16 bytes.
func checkHeads(op string, t DType, hq, hk, d int, codes bool) error {
	if err := checkGroup(op, hq, hk); err != nil {
		return err
	}
	step := 8
	if codes {
		step = 16
	}
	switch {
	case t != BF16 && t != F16:
		return unsupported(op, "%v: kernels exist for bf16 and f16", t)
	case d < 1 || d > 256 || d%step != 0:
		return unsupported(op, "head dim %d: kernels exist for multiples of %d up to 256", d, step)
	}
	return nil
}

func pageLog2(op string, size int) (int, error) {
	for log2 := range 9 {
		if size == 1<<log2 {
			return log2, nil
		}
	}
	return 0, fmt.Errorf("%s: page size %d: a power of two from 1 to 256 is required", op, size)
}
