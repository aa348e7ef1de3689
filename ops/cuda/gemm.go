package cuda

import "fmt"

// Gemm launches y[M,N] = x[M,K] w[N,K]^T, + bias[N], + residual[M,N]. With SwiGLU, w is [2N,K] and
// y = silu(x w1^T) * (x w2^T) of its two halves. Strides are of rows, in elements; zero means packed. The
// streaming kernel reads W before the launch in front has ended, unless it is Computed.
type Gemm struct {
	Type             DType
	M, N, K          int
	Y, X, W          Pointer
	XStride, WStride int64
	YStride          int64
	Bias             Pointer // optional
	Residual         Pointer // optional, may be Y
	ResidualStride   int64
	SwiGLU           bool
	F32Out           bool // y is f32
	Computed         bool // the launch in front may write W
}

// streamColumns is the widest batch of the weight-streaming kernel.
const streamColumns = 64

func (g Gemm) columns() int {
	columns := 8
	for columns < g.M {
		columns *= 2
	}
	return columns
}

// rowStrides fills in the row strides of a product that were left 0, and checks
// them all; op is the kernel's name in an error.
func rowStrides(op string, n, k int, x, w, y, residual *int64) error {
	for _, s := range []struct {
		name   string
		stride *int64
		packed int
	}{{"x", x, k}, {"w", w, k}, {"y", y, n}, {"residual", residual, n}} {
		if *s.stride == 0 {
			*s.stride = int64(s.packed)
		}
		if *s.stride < int64(s.packed) {
			return fmt.Errorf("%s: row stride %d of %s is below its %d columns", op, *s.stride, s.name, s.packed)
		}
	}
	return nil
}

// Launch queues the kernel.
func (g Gemm) Launch(q Queue) error {
	const op = "gemm"
	if g.M < 0 || g.N < 1 || g.K < 1 {
		return fmt.Errorf("%s: M >= 0, N >= 1 and K >= 1 are required, got M %d, N %d, K %d", op, g.M, g.N, g.K)
	}
	if err := rowStrides(op, g.N, g.K, &g.XStride, &g.WStride, &g.YStride, &g.ResidualStride); err != nil {
		return err
	}
	if g.SwiGLU && (!g.Bias.IsNil() || !g.Residual.IsNil()) {
		return unsupported(op, "SwiGLU together with a bias or a residual")
	}
	if g.M == 0 {
		return nil
	}
	size := int64(g.Type.Size())
	if g.K%8 != 0 || g.XStride*size%16 != 0 || g.WStride*size%16 != 0 || g.X.Addr%16 != 0 || g.W.Addr%16 != 0 {
		return unsupported(op, "K %d, row strides %d and %d: rows of x and w must be multiples of 8 elements at addresses aligned to 16 bytes", g.K, g.XStride, g.WStride)
	}
	gpu := q.Target()
	if g.Type == F32 || !gpu.Hopper() {
		return g.portable(q)
	}
	if g.M <= streamColumns {
		return g.stream(q)
	}
	return g.tiled(q)
}

func (g Gemm) rows() int {
	if g.SwiGLU {
		return 2 * g.N
	}
	return g.N
}

func (g Gemm) maps(xBox, wBox int) (x, w TensorMap) {
	size := uint64(g.Type.Size())
	x = TensorMap{Base: g.X, Type: g.Type, Dims: []uint64{uint64(g.K), uint64(g.M)}, Strides: []uint64{uint64(g.XStride) * size}, Box: []uint32{64, uint32(xBox)}, Swizzle: 128}
	w = TensorMap{Base: g.W, Type: g.Type, Dims: []uint64{uint64(g.K), uint64(g.rows())}, Strides: []uint64{uint64(g.WStride) * size}, Box: []uint32{64, uint32(wBox)}, Swizzle: 128}
	return x, w
}

// wgmmaTiles is the tiles of a wgmma kernel for many rows: the end of its name, columns of a tile, blocks of a cluster, stages of
// the ring. Of 256 columns, the narrower widths and 128 the one whose last wave wastes less wins; less than 256 are charged for their
// lower speed.
func wgmmaTiles(sms, m, n int, narrower []int, swiglu bool) (name string, width, cluster, stages int) {
	rounds := func(rows, width, clusters int) int {
		if swiglu {
			width /= 2
		}
		return ceilDiv(ceilDiv(m, rows)*ceilDiv(n, width), clusters)
	}
	width, least := 256, rounds(256, 256, sms/2)*256
	for _, w := range narrower {
		if cost := rounds(256, w, sms/2) * w * 25 / 24; cost < least {
			width, least = w, cost
		}
	}
	if rounds(128, 128, sms)*128*5/4 < rounds(256, width, sms/2)*width {
		return "128", 128, 1, 6
	}
	return fmt.Sprintf("%d_pair", width), width, 2, 4
}

// tiled is the wgmma kernel for many rows.
func (g Gemm) tiled(q Queue) error {
	gpu := q.Target()
	narrower := []int{240, 224}
	if g.SwiGLU {
		narrower = nil // a gate's pack is of 32 columns
	}
	name, width, cluster, stages := wgmmaTiles(gpu.SMs, g.M, g.N, narrower, g.SwiGLU)
	if g.SwiGLU {
		name += "_swiglu"
	}
	x, w := g.maps(128, width/2)
	return q.Launch(Launch{Kernel: fmt.Sprintf("gemm_sm90_%v_%s", g.Type, name), Grid: [3]int{gpu.SMs / cluster * cluster, 1, 1}, Block: 384, Cluster: cluster,
		Shared: stages*(128+width)*128 + 1024, Overlap: true, Args: []Arg{
			{"x", x}, {"w", w}, {"y", g.Y}, {"bias", g.Bias}, {"residual", g.Residual}, {"y_stride", g.YStride}, {"residual_stride", g.ResidualStride},
			{"m", int32(g.M)}, {"n", int32(g.N)}, {"k", int32(g.K)}, {"f32_out", bit(g.F32Out)}}})
}

// stream is the kernel that reads the weights once, for few rows.
func (g Gemm) stream(q Queue) error {
	columns := g.columns()
	many := alone
	if g.SwiGLU {
		many = inTurns
	}
	c := cutStream(q.Target(), g.N, g.SwiGLU, many)
	x, w := g.maps(columns, c.box)
	name := fmt.Sprintf("gemm_stream_sm90_%v_%d%s", g.Type, columns, c.form)
	if g.SwiGLU {
		name += "_swiglu"
	}
	y := sink{y: g.Y, bias: g.Bias, residual: g.Residual, stride: g.YStride, residualStride: g.ResidualStride, out: g.Type}
	if g.F32Out {
		y.out = F32
	}
	args := append(append([]Arg{{"x", x}, {"w", w}}, y.args()...), steps{}.args()...)
	return q.Launch(c.launch(q.Target(), name, columns, columns*128, ceilDiv(g.K, 64), 0, g.Computed, append(args, Arg{"m", int32(g.M)}, Arg{"n", int32(g.N)}, Arg{"k", int32(g.K)})))
}

// streamCut is how a streaming kernel cuts its work: see stream.cuh. It does not depend on m.
type streamCut struct {
	form                streamForm
	rows, pair, tiles   int // of a wgmma tile that count; wgmma tiles of a tile; tiles of an owner
	blocks, owners, box int // that share the k of a tile and are an owner; owners; rows of w in a box
}

// streamForm is how blocks and their warpgroups share tiles, and part of a kernel's name.
type streamForm string

const (
	inTurns  streamForm = ""
	inHalves streamForm = "_halves"
	alone    streamForm = "_alone"
)

// cutStream takes the form that a kernel has for many rows, if any, where there are enough of them: for alone, to fill wgmma tiles well,
// since a stage of few rows takes longer than its way from memory; for inHalves, to save ends of tiles.
func cutStream(gpu Target, n int, swiglu bool, many streamForm) streamCut {
	const enough = 48
	halves := 1
	if swiglu {
		halves = 2
	}
	cut := func(form streamForm, blocks, pair int) streamCut {
		each := ceilDiv(n, max(1, min(gpu.SMs/blocks, n/16))) // of an owner
		c := streamCut{form: form, tiles: ceilDiv(each, 64*pair/halves), blocks: blocks}
		tile, across := ceilDiv(each, c.tiles), pair/halves
		if form == inTurns {
			across = ceilDiv(tile, 64)
		}
		c.rows, c.pair = ceilDiv(tile, 8*across)*8, across*halves
		c.box = c.rows * across
		c.owners = ceilDiv(n, c.tiles*c.box)
		return c
	}
	c := cut(inTurns, 2, 2)
	switch many {
	case alone:
		if own := cut(alone, 1, 2*halves); own.rows >= enough {
			return own
		}
	case inHalves:
		if c.tiles > 1 {
			return cut(inHalves, 2, 4)
		}
	}
	return c
}

// launch has as many stages of the ring as fit and as a block loads; x is the bytes of x in a stage, steps the stages along k, more
// what lies behind the sums.
func (c streamCut) launch(gpu Target, kernel string, columns, x, steps, more int, computed bool, args []Arg) Launch {
	const most, aside = 24, 2048 // stages; the alignment of the ring, and what is not dynamic
	w, sums, turns := c.rows*c.pair*128, columns*768, 2
	if c.form != inTurns {
		sums, turns = columns*128*c.pair, 1
	}
	sums += more
	over := max(0, (64-c.rows)*128-x-sums) // the last wgmma tile is read whole
	// Even where the ring is used again by turns: a slot is always the same warpgroup's.
	stages := min(most, (gpu.MaxShared-aside-sums-over)/(w+x)) / turns * turns
	stages = min(stages, c.tiles*ceilDiv(steps, c.blocks))
	return Launch{Kernel: kernel, Grid: [3]int{c.owners * c.blocks, 1, 1}, Block: 320, Shared: stages*(w+x) + sums + over + 1024, Cluster: c.blocks, Overlap: true,
		Args: append(args, Arg{"early", bit(!computed)}, Arg{"rows", int32(c.rows)}, Arg{"pair", int32(c.pair)}, Arg{"tiles", int32(c.tiles)}, Arg{"stages", int32(stages)})}
}

// portable is the mma.sync kernel, and the FMA kernel for f32.
func (g Gemm) portable(q Queue) error {
	rows, columns, shared := 128, 128, 4*(128+128)*80
	name, block := fmt.Sprintf("gemm_portable_%v_128", g.Type), 256
	switch {
	case g.Type == F32:
		name, rows, columns, shared = "gemm_portable_f32", 64, 64, 0
	case g.M <= 32:
		name, rows, shared, block = fmt.Sprintf("gemm_portable_%v_32", g.Type), 32, 6*(32+128)*80, 128
	}
	if g.SwiGLU {
		columns /= 2
		name += "_swiglu"
	}
	return q.Launch(Launch{Kernel: name, Grid: [3]int{ceilDiv(g.N, columns), ceilDiv(g.M, rows), 1}, Block: block, Shared: shared, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", g.Y}, {"x", g.X}, {"w", g.W}, {"bias", g.Bias}, {"residual", g.Residual}, {"x_stride", g.XStride}, {"w_stride", g.WStride},
		{"y_stride", g.YStride}, {"residual_stride", g.ResidualStride}, {"m", int32(g.M)}, {"n", int32(g.N)}, {"k", int32(g.K)}, {"f32_out", bit(g.F32Out)}}})
}
