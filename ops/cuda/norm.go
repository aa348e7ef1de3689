package cuda

import "fmt"

// RMSNorm launches y = h / sqrt(mean(h^2) + eps) * (w + unit) over rows of D elements, where h is x, or x + residual
// rounded to the element type when Residual is given; then h goes to Sum, which may be Residual itself. Few rows, and with
// Codes all, read W before the launch in front has ended, unless it is Computed. With Codes, y rounded to the element type
// leaves only as E4M3, with a step for each row that is made of its largest magnitude, or one that is Given.
type RMSNorm struct {
	Type     DType
	Rows, D  int
	Eps      float32
	Unit     float32 // 1 for models that store w - 1
	Y, X, W  Pointer
	Residual Pointer // optional
	Sum      Pointer // with Residual
	Computed bool    // the launch in front may write W

	Codes       Pointer // optional, in place of Y: [Rows,CodesStride] bytes
	CodesStride int64   // a multiple of 8
	Made, Given Pointer // f32 [Rows] or f32
}

// Launch queues the kernel.
func (n RMSNorm) Launch(q Queue) error {
	const op = "rmsnorm"
	if !n.Codes.IsNil() {
		return n.codes(q)
	}
	if n.Residual.IsNil() != n.Sum.IsNil() {
		return fmt.Errorf("%s: residual and sum go together, got residual %v and sum %v", op, n.Residual, n.Sum)
	}
	variant, block, err := normShape(op, n.Type, n.Rows, n.D, n.Y, n.X, n.W, n.Residual, n.Sum)
	if err != nil || n.Rows == 0 {
		return err
	}
	overlap := q.Target().Hopper() && !n.Computed
	if packs := n.D * n.Type.Size() / 16; n.Rows <= fewRows && packs > 256 && packs <= 2048 && variant != n.Type.String()+"_any" {
		variant, block = n.Type.String()+"_2_few", (ceilDiv(packs, 2)+31)/32*32
	}
	return q.Launch(Launch{Kernel: "norm_rms_" + variant, Grid: [3]int{n.Rows, 1, 1}, Block: block, Overlap: overlap, Args: []Arg{
		{"y", n.Y}, {"sum", n.Sum}, {"x", n.X}, {"residual", n.Residual}, {"w", n.W}, {"d", int32(n.D)}, {"eps", n.Eps}, {"unit", n.Unit}}})
}

func (n RMSNorm) codes(q Queue) error {
	const op = "rmsnorm"
	if n.Rows < 0 || n.D < 1 || n.Made.IsNil() == n.Given.IsNil() || n.CodesStride < int64(n.D) || n.CodesStride%8 != 0 {
		return fmt.Errorf("%s: codes need rows >= 0, d >= 1, a multiple of 8 of at least d as stride, and steps made or given; got rows %d, d %d, stride %d, steps %v and %v", op, n.Rows, n.D, n.CodesStride, n.Made, n.Given)
	}
	if !n.Residual.IsNil() || n.D%8 != 0 || n.X.Addr%16 != 0 || n.W.Addr%16 != 0 || n.Codes.Addr%8 != 0 {
		return unsupported(op, "codes of rows of %d, x %v, weights %v: multiples of 8 and 16 bytes have a kernel, without a residual", n.D, n.X, n.W)
	}
	if n.Rows == 0 {
		return nil
	}
	gpu, block, shared := q.Target(), codesCut(n.Rows, n.D), 256+3*n.D*n.Type.Size()
	blocks := gpu.SMs * max(1, min(2048/block, gpu.SharedSM/(shared+1024)))
	return q.Launch(Launch{Kernel: fmt.Sprintf("norm_fp8_%v", n.Type), Grid: [3]int{min(n.Rows, blocks), 1, 1}, Block: block, Shared: shared, Overlap: gpu.Hopper() && !n.Computed, Args: []Arg{
		{"codes", n.Codes}, {"made", n.Made}, {"given", n.Given}, {"x", n.X}, {"w", n.W}, {"stride", n.CodesStride}, {"rows", int32(n.Rows)}, {"d", int32(n.D)}, {"eps", n.Eps}, {"unit", n.Unit}}})
}

// codesCut is the threads of a block of a norm or a gated unit that leaves codes, as normShape has them.
func codesCut(rows, d int) int {
	packs, v := d/8, 1
	if rows <= fewRows && packs > 256 {
		v = 2
	}
	v = packsEach(rows, packs, v)
	return min(1024, (ceilDiv(packs, v)+31)/32*32)
}

// LayerNorm launches y = (x - mean) / sqrt(var + eps) * w + b over rows of D elements; B is optional.
type LayerNorm struct {
	Type       DType
	Rows, D    int
	Eps        float32
	Y, X, W, B Pointer
}

// Launch queues the kernel.
func (n LayerNorm) Launch(q Queue) error {
	variant, block, err := normShape("layernorm", n.Type, n.Rows, n.D, n.Y, n.X, n.W, n.B)
	if err != nil || n.Rows == 0 {
		return err
	}
	return q.Launch(Launch{Kernel: "norm_layer_" + variant, Grid: [3]int{n.Rows, 1, 1}, Block: block, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", n.Y}, {"x", n.X}, {"w", n.W}, {"b", n.B}, {"d", int32(n.D)}, {"eps", n.Eps}}})
}

// fewRows leave the GPU idle: latency counts there, bandwidth above.
const fewRows = 512

// normShape picks the kernel for a row width: as few packs a thread as 256 threads allow (1024 with few rows), then more
// packs, then more threads; the _any kernel for widths or addresses that are not whole packs.
func normShape(op string, t DType, rows, d int, pointers ...Pointer) (variant string, block int, err error) {
	if rows < 0 || d < 1 {
		return "", 0, fmt.Errorf("%s: rows >= 0 and d >= 1 are required, got rows %d, d %d", op, rows, d)
	}
	per := 16 / t.Size()
	whole := d%per == 0
	for _, p := range pointers {
		whole = whole && p.Addr%16 == 0
	}
	packs := d / per
	if !whole || packs > 4*1024 {
		return t.String() + "_any", min(1024, (d+31)/32*32), nil
	}
	v := packsEach(rows, packs, 1)
	return fmt.Sprintf("%v_%d", t, v), (ceilDiv(packs, v) + 31) / 32 * 32, nil
}

// packsEach is how many packs of a row a thread takes, v or more: 4 at most, and no more than leave 256 threads of a row, 1024 where
// rows are few.
func packsEach(rows, packs, v int) int {
	most := 256
	if rows <= fewRows {
		most = 1024
	}
	for v < 4 && ceilDiv(packs, v) > most {
		v *= 2
	}
	return v
}
