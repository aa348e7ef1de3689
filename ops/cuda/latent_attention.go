package cuda

import (
	"fmt"
	"math"
)

// LatentAttention launches attention of packed requests over latents in pages, on Hopper: q [T,H,576] as latent_query gives
// it, Pool [pages,PageSize,576], of which the first 512 numbers are the value too, out [T,H,512]; causal (bottom-right).
// Single takes the requests that bring one token and zeroes the rows behind the last request, Several the others, whose
// tiles of LatentRows rows (row token*H + head of a request) the tile arrays list.
type LatentAttention struct {
	Type                 DType
	T, H, Requests       int
	Out, Q, Pool         Pointer
	PoolTokens           int
	Pages                Pages
	QoIndptr             Pointer // int32 [Requests+1]
	MaxLength            int     // no request is longer; bounds grid and scratch
	Scale                float32 // 0: 1/sqrt(576)
	TileBatch, TileIndex Pointer // int32 [Tiles]; a negative request is no work
	Tiles                int
	Scratch              Pointer // ScratchBytes
}

const (
	latentDim, latentValues = 576, 512
	// LatentRows is the number of rows of a tile of LatentAttention.
	LatentRows = 64
)

// least is the fewest keys of a chunk. A chunk costs the loads of its queries and the writes of its sums; with more than one
// row tile there are enough of them.
func (a LatentAttention) least() int {
	if a.H > LatentRows {
		return 512
	}
	return 256
}

func (a LatentAttention) chunks() int { return min(32, max(1, ceilDiv(a.MaxLength, a.least()))) }

func (a LatentAttention) tops() int64 {
	return int64(a.Requests) * int64(a.chunks()) * int64(a.H) * latentValues * 4
}

// ScratchBytes is what Scratch must hold.
func (a LatentAttention) ScratchBytes() int64 { return a.tops() / latentValues * (latentValues + 2) }

// Single queues the kernels for the requests of one token.
func (a LatentAttention) Single(q Queue) error {
	if err := a.check(q); err != nil || a.T == 0 || a.Requests == 0 {
		return err
	}
	if a.Scratch.IsNil() {
		return fmt.Errorf("latent attention: %d bytes of scratch are required", a.ScratchBytes())
	}
	if err := a.launch(q, "latent_attention_sm90_split_", [3]int{a.chunks(), ceilDiv(a.H, LatentRows), a.Requests}); err != nil {
		return err
	}
	return q.Launch(Launch{Kernel: "latent_merge_" + a.Type.String(), Grid: [3]int{a.H, a.Requests + 1, 1}, Block: 128, Overlap: true, Args: a.params()})
}

// Several queues the kernel for the requests of several tokens.
func (a LatentAttention) Several(q Queue) error {
	if err := a.check(q); err != nil || a.Tiles == 0 {
		return err
	}
	return a.launch(q, "latent_attention_sm90_", [3]int{a.Tiles, 1, 1})
}

func (a LatentAttention) check(q Queue) error {
	const op = "latent attention"
	if a.T < 0 || a.H < 1 || a.Requests < 0 || a.MaxLength < 1 || a.PoolTokens < 1 || a.Tiles < 0 {
		return fmt.Errorf("%s: T, requests, tiles >= 0 and H, longest length, pool >= 1 are required, got T %d, H %d, requests %d, longest %d, pool %d, tiles %d", op, a.T, a.H, a.Requests, a.MaxLength, a.PoolTokens, a.Tiles)
	}
	switch _, err := pageLog2(op, a.Pages.PageSize); {
	case err != nil:
		return err
	case !q.Target().Hopper() || a.Type == F32:
		return unsupported(op, "%v on %s: kernels exist for bf16 and f16 on Hopper", a.Type, q.Target().Name)
	case a.Pages.PageSize < 8:
		return unsupported(op, "pages of %d tokens: the copy engine takes 8 or more", a.Pages.PageSize)
	case a.Requests > 65534:
		return unsupported(op, "%d requests: the grid holds 65534", a.Requests)
	}
	return aligned16(op, Arg{"q", a.Q}, Arg{"pool", a.Pool}, Arg{"out", a.Out})
}

func (a LatentAttention) launch(q Queue, kernel string, grid [3]int) error {
	matrix := func(p Pointer, rows, box int) TensorMap {
		return TensorMap{Base: p, Type: a.Type, Dims: []uint64{latentDim, uint64(rows)}, Strides: []uint64{latentDim * 2}, Box: []uint32{64, uint32(box)}, Swizzle: 128}
	}
	return q.Launch(Launch{Kernel: kernel + a.Type.String(), Grid: grid, Block: 384, Shared: 3*64*latentDim*2 + 64*128 + 1024, Overlap: true,
		Args: append([]Arg{{"q", matrix(a.Q, a.T*a.H, LatentRows)}, {"k", matrix(a.Pool, a.PoolTokens, min(64, a.Pages.PageSize))}}, a.params()...)})
}

func (a LatentAttention) params() []Arg {
	log2, _ := pageLog2("latent attention", a.Pages.PageSize) // checked
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(latentDim))
	}
	return []Arg{{"out", a.Out}, {"sums", a.Scratch}, {"tops", a.Scratch.At(a.tops())}, {"qo_indptr", a.QoIndptr}, {"tile_batch", a.TileBatch}, {"tile_index", a.TileIndex},
		{"page_indptr", a.Pages.Indptr}, {"page_indices", a.Pages.Indices}, {"last_page_len", a.Pages.LastPageLen},
		{"heads", int32(a.H)}, {"chunks", int32(a.chunks())}, {"least", int32(a.least())}, {"page_log2", int32(log2)}, {"tokens", int32(a.T)}, {"requests", int32(a.Requests)}, {"scale", a.Scale}, {"pad", int32(0)}}
}
