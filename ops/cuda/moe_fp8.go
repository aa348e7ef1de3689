package cuda

import "fmt"

// ExpertsFP8 is Experts with the stacks in E4M3 codes and a step for each 128 x 128 block of a matrix: gate and up [E,F,D],
// their steps f32 [E,ceil(F/128),ceil(D/128)], down [E,D,F], its steps [E,ceil(D/128),ceil(F/128)]. x and what the gate gives
// stay in 16 bits where Exact is set; else both are quantised by 1 x 128 blocks with their own amax.
//
// Up to 64 tokens the codes stream once and are widened in registers, with Exact also while an expert has no more than 32 tokens
// on average; without it only up to 8 where Hopper multiplies codes. For more, codes are multiplied there, or with Exact the stacks
// are widened once a launch into the scratch.
type ExpertsFP8 struct {
	Type                          DType // of x, y and residual
	Exact                         bool
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
	order, position, offsets, x, xSteps, hidden, hiddenWide, hiddenSteps, rows, wide, bytes int64
}

// expertsFP8Choices is the most choices that the streaming kernel lists.
const expertsFP8Choices = 4096

// sorts says that there are kernels for codes on rows sorted by expert.
func (x ExpertsFP8) sorts(gpu Target) bool {
	return gpu.Hopper() && x.D%128 == 0 && x.F%128 == 0 && x.E <= expertsHopperMost
}

// streams says that the codes are read once for all tokens.
func (x ExpertsFP8) streams(gpu Target) bool {
	m, most := x.T*x.TopK, expertsStreamTokens
	if !x.Exact && x.sorts(gpu) {
		most = 8
	}
	return m <= expertsFP8Choices && (x.T <= most || x.Exact && m <= 32*x.E)
}

func (x ExpertsFP8) scratch(gpu Target) (s fp8Scratch) {
	m, d, f := int64(x.T)*int64(x.TopK), int64(x.D), int64(x.F)
	blocks := func(n int64) int64 { return (n + 127) / 128 }
	take := func(bytes int64) int64 {
		at := s.bytes
		s.bytes += (bytes + 255) &^ 255
		return at
	}
	size := int64(x.Type.Size())
	switch {
	case x.Exact && !x.streams(gpu):
		s.rows = take(x.dense().ScratchBytes(gpu))
		s.wide = take(3 * int64(x.E) * d * f * size)
		return s
	case x.Exact:
		s.hidden, s.rows = take(m*f*size), take(m*d*size)
		return s
	case x.streams(gpu):
		s.x, s.xSteps = take(int64(x.T)*d), take(int64(x.T)*blocks(d)*4)
		s.hiddenWide, s.hidden, s.hiddenSteps = take(m*f*4), take(m*f), take(m*blocks(f)*4)
		s.rows = take(m * d * size)
		return s
	}
	s.order, s.position, s.offsets = take(4*m), take(4*m), take(4*int64(x.E+1))
	s.hidden, s.hiddenSteps = take(m*f), take(m*f/128*4)
	s.rows = take(m * d * size)
	s.x, s.xSteps = s.rows, s.rows+(m*d+255)&^255 // read before the rows are written
	s.bytes = max(s.bytes, s.xSteps+m*d/128*4)
	return s
}

// ScratchBytes is what Scratch must hold for a launch of this shape on a GPU.
func (x ExpertsFP8) ScratchBytes(gpu Target) int64 { return x.scratch(gpu).bytes }

// dense is the same mixture without its stacks.
func (x ExpertsFP8) dense() Experts {
	return Experts{Type: x.Type, T: x.T, TopK: x.TopK, E: x.E, D: x.D, F: x.F, Y: x.Y, X: x.X, Weights: x.Weights, WeightsF32: x.WeightsF32, IDs: x.IDs, Residual: x.Residual}
}

// lacks says why there are no kernels for this mixture.
func (x ExpertsFP8) lacks(gpu Target) error {
	const op = "experts fp8"
	switch {
	case hasFP8(op, gpu) != nil:
		return hasFP8(op, gpu)
	case x.Type != BF16 && x.Type != F16:
		return unsupported(op, "%v: kernels exist for bf16 and f16", x.Type)
	case x.D%16 != 0 || x.F%16 != 0:
		return unsupported(op, "D %d, F %d: multiples of 16", x.D, x.F)
	case int64(x.D)*int64(x.F) >= 1<<31:
		return unsupported(op, "D %d, F %d: the codes of one matrix reach 2^31", x.D, x.F)
	case x.streams(gpu):
		return nil
	case x.D%128 != 0 || x.F%128 != 0:
		return unsupported(op, "%d tokens with D %d, F %d: multiples of 128", x.T, x.D, x.F)
	case !x.Exact && !x.sorts(gpu):
		return unsupported(op, "%d tokens in codes, %d experts on %s: Hopper and up to %d experts", x.T, x.E, gpu.Name, expertsHopperMost)
	}
	return nil
}

// Launch queues the kernels.
func (x ExpertsFP8) Launch(q Queue) error {
	const op = "experts fp8"
	gpu := q.Target()
	if x.T < 0 || x.TopK < 1 || x.E < 1 || x.D < 1 || x.F < 1 {
		return fmt.Errorf("%s: T >= 0 and top-k, experts, D and F >= 1 are required, got T %d, top-k %d, experts %d, D %d, F %d", op, x.T, x.TopK, x.E, x.D, x.F)
	}
	if err := x.lacks(gpu); err != nil || x.T == 0 {
		return err
	}
	if err := aligned16(op, Arg{"x", x.X}, Arg{"y", x.Y}, Arg{"gate", x.Gate}, Arg{"up", x.Up}, Arg{"down", x.Down}); err != nil {
		return err
	}
	s := x.scratch(gpu)
	if x.Scratch.IsNil() {
		return fmt.Errorf("%s: %d bytes of scratch are required", op, s.bytes)
	}
	switch {
	case x.Exact && x.streams(gpu):
		return x.streamed(q, s)
	case x.Exact:
		return x.widened(q, s)
	case x.streams(gpu):
		return x.streamedCodes(q, s)
	}
	return x.sorted(q, s)
}

// streamed leaves x and what the gate gives in 16 bits.
func (x ExpertsFP8) streamed(q Queue, s fp8Scratch) error {
	hidden, rows := x.Scratch.At(s.hidden), x.Scratch.At(s.rows)
	if err := x.stream(q, hidden, x.X, Pointer{}, x.Gate, x.GateSteps, x.Up, x.UpSteps, x.F, x.D, x.TopK); err != nil {
		return err
	}
	if err := x.stream(q, rows, hidden, Pointer{}, x.Down, x.DownSteps, Pointer{}, Pointer{}, x.D, x.F, 0); err != nil {
		return err
	}
	return x.dense().combine(q, rows, Pointer{})
}

// streamedCodes quantises both.
func (x ExpertsFP8) streamedCodes(q Queue, s fp8Scratch) error {
	at, m := x.Scratch.At, x.T*x.TopK
	code := func(dt DType, rows, cols int, from, codes, steps Pointer) error {
		return q.Launch(Launch{Kernel: "moe_codes_" + dt.String(), Grid: [3]int{ceilDiv(rows*ceilDiv(cols, 128), 8), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
			{"y", codes}, {"steps", steps}, {"x", from}, {"rows", int32(rows)}, {"k", int32(cols)}}})
	}
	if err := code(x.Type, x.T, x.D, x.X, at(s.x), at(s.xSteps)); err != nil {
		return err
	}
	if err := x.stream(q, at(s.hiddenWide), at(s.x), at(s.xSteps), x.Gate, x.GateSteps, x.Up, x.UpSteps, x.F, x.D, x.TopK); err != nil {
		return err
	}
	if err := code(F32, m, x.F, at(s.hiddenWide), at(s.hidden), at(s.hiddenSteps)); err != nil {
		return err
	}
	if err := x.stream(q, at(s.rows), at(s.hidden), at(s.hiddenSteps), x.Down, x.DownSteps, Pointer{}, Pointer{}, x.D, x.F, 0); err != nil {
		return err
	}
	return x.dense().combine(q, at(s.rows), Pointer{})
}

// stream is one product of the choices as they lie; the cuts depend on n and k alone.
func (x ExpertsFP8) stream(q Queue, y, from, fromSteps, w, wSteps, up, upSteps Pointer, n, k, divide int) error {
	parts, columns := streamCuts(k, !up.IsNil())
	m, kind := x.T*x.TopK, ""
	if x.T <= 8 || m <= 4*x.E { // hardly an expert has more
		kind = "_8"
	}
	if !x.Exact {
		kind += "_codes"
	}
	if up.IsNil() {
		up, upSteps = w, wSteps
	} else {
		kind += "_swiglu"
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("moe_stream_e4m3_%v_%d%s", x.Type, parts, kind), Grid: [3]int{ceilDiv(n, columns), min(m, x.E), 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", y}, {"x", from}, {"x_steps", fromSteps}, {"w", w}, {"w_steps", wSteps}, {"up", up}, {"up_steps", upSteps}, {"ids", x.IDs},
		{"m", int32(m)}, {"n", int32(n)}, {"k", int32(k)}, {"experts", int32(x.E)}, {"divide", int32(divide)}, {"by_expert", bit(m >= x.E)}}})
}

// widened writes the stacks in the type of x and multiplies those.
func (x ExpertsFP8) widened(q Queue, s fp8Scratch) error {
	e, at, size := x.dense(), s.wide, int64(x.E)*int64(x.D)*int64(x.F)*int64(x.Type.Size())
	for _, w := range []struct {
		to           *Pointer
		codes, steps Pointer
		n, k         int
	}{{&e.Gate, x.Gate, x.GateSteps, x.F, x.D}, {&e.Up, x.Up, x.UpSteps, x.F, x.D}, {&e.Down, x.Down, x.DownSteps, x.D, x.F}} {
		*w.to = x.Scratch.At(at)
		at += size
		rows, steps := x.E*w.n, FP8Steps{Rows: 128, Cols: 128}
		block, row, across := steps.places(w.k)
		if err := q.Launch(Launch{Kernel: fmt.Sprintf("fp8_widen_%v", x.Type), Grid: [3]int{ceilDiv(rows*ceilDiv(w.k, 16), 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(),
			Args: layoutArgs(w.codes, *w.to, w.steps, int64(w.k), int64(w.k), rows, w.k, [3]int32{block, row, across}, 0)}); err != nil {
			return err
		}
	}
	e.Scratch = x.Scratch.At(s.rows)
	return e.Launch(q)
}

// sorted multiplies codes on rows sorted by expert.
func (x ExpertsFP8) sorted(q Queue, s fp8Scratch) error {
	gpu, m, at, e := q.Target(), x.T*x.TopK, x.Scratch.At, x.dense()
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
