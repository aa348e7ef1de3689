package cuda

import "fmt"

// ExpertsFP8 is Experts with the stacks in E4M3 codes and a step for each 128 x 128 block of a matrix: gate and up [E,F,D],
// their steps f32 [E,F/128,D/128], down [E,D,F], its steps [E,D/128,F/128]; one step of a whole expert is the same in all its
// blocks. x is quantised by 1 x 128 blocks with their own amax, and so is what the gate gives. On Hopper, D and F multiples of
// 128.
type ExpertsFP8 struct {
	Type                          DType // of x, y and residual
	T, TopK, E, D, F              int
	Y, X                          Pointer
	Weights, IDs                  Pointer
	WeightsF32                    bool
	Gate, Up, Down                Pointer
	GateSteps, UpSteps, DownSteps Pointer
	Residual                      Pointer // optional, may be Y
	Scratch                       Pointer // ScratchBytes
}

// fp8Scratch is where the parts of the scratch start, in bytes.
type fp8Scratch struct {
	order, position, offsets, x, xSteps, hidden, hiddenSteps, rows, bytes int64
}

func (x ExpertsFP8) scratch() (s fp8Scratch) {
	m, d, f := int64(x.T)*int64(x.TopK), int64(x.D), int64(x.F)
	take := func(bytes int64) int64 {
		at := s.bytes
		s.bytes += (bytes + 255) &^ 255
		return at
	}
	s.order, s.position, s.offsets = take(4*m), take(4*m), take(4*int64(x.E+1))
	s.hidden, s.hiddenSteps = take(m*f), take(m*f/128*4)
	s.rows = take(m * d * int64(x.Type.Size()))
	s.x, s.xSteps = s.rows, s.rows+(m*d+255)&^255 // read before the rows are written
	s.bytes = max(s.bytes, s.xSteps+m*d/128*4)
	return s
}

// ScratchBytes is what Scratch must hold.
func (x ExpertsFP8) ScratchBytes() int64 { return x.scratch().bytes }

// Launch queues the kernels.
func (x ExpertsFP8) Launch(q Queue) error {
	const op = "experts fp8"
	gpu := q.Target()
	switch {
	case x.T < 0 || x.TopK < 1 || x.E < 1 || x.D < 1 || x.F < 1:
		return fmt.Errorf("%s: T >= 0 and top-k, experts, D and F >= 1 are required, got T %d, top-k %d, experts %d, D %d, F %d", op, x.T, x.TopK, x.E, x.D, x.F)
	case !gpu.Hopper() || x.Type != BF16 && x.Type != F16:
		return unsupported(op, "%v on %s: kernels exist for bf16 and f16 on Hopper", x.Type, gpu.Name)
	case x.D%128 != 0 || x.F%128 != 0 || x.E > expertsHopperMost:
		return unsupported(op, "D %d, F %d, %d experts: multiples of 128 and up to %d experts", x.D, x.F, x.E, expertsHopperMost)
	case x.T == 0:
		return nil
	}
	if err := aligned16(op, Arg{"x", x.X}, Arg{"y", x.Y}, Arg{"gate", x.Gate}, Arg{"up", x.Up}, Arg{"down", x.Down}); err != nil {
		return err
	}
	s := x.scratch()
	if x.Scratch.IsNil() {
		return fmt.Errorf("%s: %d bytes of scratch are required", op, s.bytes)
	}
	m := x.T * x.TopK
	at := x.Scratch.At
	e := Experts{Type: x.Type, T: x.T, TopK: x.TopK, E: x.E, D: x.D, F: x.F, Y: x.Y, Weights: x.Weights, WeightsF32: x.WeightsF32, IDs: x.IDs, Residual: x.Residual}
	if err := e.sort(q, at(s.order), at(s.position), at(s.offsets)); err != nil {
		return err
	}
	if err := q.Launch(Launch{Kernel: "moe_fp8_permute_" + x.Type.String(), Grid: [3]int{x.T, 1, 1}, Block: min(256, x.D/128*32), Overlap: true, Args: []Arg{
		{"y", at(s.x)}, {"steps", at(s.xSteps)}, {"x", x.X}, {"position", at(s.position)}, {"top_k", int32(x.TopK)}, {"d", int32(x.D)}}}); err != nil {
		return err
	}
	product := func(kernel string, y, ySteps, from, fromSteps, w, wSteps, up, upSteps Pointer, n, k int) error {
		matrix := func(p Pointer, rows, box int) TensorMap {
			return TensorMap{Base: p, Type: E4M3, Dims: []uint64{uint64(k), uint64(rows)}, Strides: []uint64{uint64(k)}, Box: []uint32{128, uint32(box)}, Swizzle: 128}
		}
		return q.Launch(Launch{Kernel: kernel, Grid: [3]int{gpu.SMs / 2 * 2, 1, 1}, Block: 384, Cluster: 2, Shared: 4*(128+256)*128 + 1024, Overlap: true, Args: []Arg{
			{"x", matrix(from, m, 64)}, {"w", matrix(w, x.E*n, 128)}, {"up", matrix(up, x.E*n, 128)}, {"y", y}, {"y_steps", ySteps}, {"x_steps", fromSteps}, {"w_steps", wSteps},
			{"up_steps", upSteps}, {"offsets", at(s.offsets)}, {"n", int32(n)}, {"k", int32(k)}, {"experts", int32(x.E)}, {"m", int32(m)}}})
	}
	if err := product("moe_fp8_sm90_swiglu", at(s.hidden), at(s.hiddenSteps), at(s.x), at(s.xSteps), x.Gate, x.GateSteps, x.Up, x.UpSteps, x.F, x.D); err != nil {
		return err
	}
	if err := product("moe_fp8_sm90_"+x.Type.String(), at(s.rows), Pointer{}, at(s.hidden), at(s.hiddenSteps), x.Down, x.DownSteps, x.Down, x.DownSteps, x.D, x.F); err != nil {
		return err
	}
	return e.combine(q, at(s.rows), at(s.position))
}
