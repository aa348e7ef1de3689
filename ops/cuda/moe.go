package cuda

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/ops"
)

// Route launches the choice of TopK experts for each token, ids int32 [T,TopK], and their weights [T,TopK]: see ops.RouteOp.
// Given leaves the choice as it is in IDs and writes the weights alone.
type Route struct {
	Router      ops.Router
	T           int
	Given       bool
	IDs         Pointer
	Weights     Pointer // optional unless Given
	WeightsType DType
	Logits      Pointer // [T,E]
	LogitsType  DType
	Bias        Pointer // [E], optional
	BiasType    DType
}

// mostRouted is the most experts that a warp's ranks in shared memory hold.
const mostRouted = 4096

// Launch queues the kernel.
func (r Route) Launch(q Queue) error {
	if err := r.Router.Check(); err != nil {
		return err
	}
	if r.T < 0 {
		return fmt.Errorf("route: T >= 0 is required, got %d", r.T)
	}
	if r.Router.Experts > mostRouted {
		return unsupported("route", "%d experts: the kernel takes up to %d", r.Router.Experts, mostRouted)
	}
	if r.T == 0 {
		return nil
	}
	groups, scale := max(r.Router.Groups, 1), r.Router.Scale
	if scale == 0 {
		scale = 1
	}
	each := 8 * (2*r.Router.Experts + groups + (r.Router.TopK+1)/2)
	warps := min(4, max(1, 48<<10/each))
	size := "any"
	for _, most := range []int{256, 128} {
		if r.Router.Experts <= most {
			size = fmt.Sprint(most)
		}
	}
	return q.Launch(Launch{Kernel: "moe_route_" + size, Grid: [3]int{ceilDiv(r.T, warps), 1, 1}, Block: 32 * warps, Shared: each * warps, Overlap: q.Target().Hopper(), Args: []Arg{
		{"logits", r.Logits}, {"bias", r.Bias}, {"ids", r.IDs}, {"weights", r.Weights}, {"scale", math.Float64bits(scale)},
		{"tokens", int32(r.T)}, {"experts", int32(r.Router.Experts)}, {"top_k", int32(r.Router.TopK)}, {"groups", int32(groups)}, {"keep", int32(r.Router.KeepGroups)},
		{"sigmoid", bit(r.Router.Sigmoid)}, {"renormalize", bit(r.Router.Renormalize)}, {"choose", bit(!r.Given)},
		{"logits_type", int32(r.LogitsType)}, {"bias_type", int32(r.BiasType)}, {"weights_type", int32(r.WeightsType)}, {"warps", int32(warps)}}})
}

// Logits launches y[T,N] = x[T,K] w[N,K]^T in f32 for the few rows of a router's weight and up to 64 tokens, K a multiple of 8.
// W is read before the launch in front has ended.
type Logits struct {
	Type    DType
	T, N, K int
	Y, X, W Pointer
}

// Launch queues the kernel.
func (l Logits) Launch(q Queue) error {
	switch {
	case l.T < 0 || l.N < 1 || l.K < 1:
		return fmt.Errorf("logits: T >= 0, N >= 1 and K >= 1 are required, got T %d, N %d, K %d", l.T, l.N, l.K)
	case l.Type == F32 || l.T > expertsStreamTokens || l.K%8 != 0 || l.X.Addr%16 != 0 || l.W.Addr%16 != 0:
		return unsupported("logits", "%v, T %d, K %d: bf16 or f16, up to %d tokens, rows of whole 16 bytes", l.Type, l.T, l.K, expertsStreamTokens)
	case l.T == 0:
		return nil
	}
	return q.Launch(Launch{Kernel: "moe_logits_" + l.Type.String(), Grid: [3]int{ceilDiv(l.N, 16), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: streamArgs(l.Y, l.X, l.W, Pointer{}, Pointer{}, Pointer{}, Pointer{}, l.T, l.N, l.K, 1, 0, false, 1)})
}

// streamArgs are the arguments of the streaming kernels.
func streamArgs(y, x, w, up, ids, sharedW, sharedUp Pointer, m, n, k, experts, divide int, byExpert bool, topK int) []Arg {
	return []Arg{{"y", y}, {"x", x}, {"w", w}, {"up", up}, {"ids", ids}, {"shared_w", sharedW}, {"shared_up", sharedUp}, {"m", int32(m)}, {"n", int32(n)}, {"k", int32(k)},
		{"experts", int32(experts)}, {"divide", int32(divide)}, {"by_expert", bit(byExpert)}, {"top_k", int32(topK)}, {"pad", int32(0)}}
}

// Experts launches y[t] = sum over c of weights[t,c] down_e (silu(gate_e x[t]) * (up_e x[t])), e = ids[t,c], + residual[t],
// for T tokens with TopK choices each: x, y and residual [T,D], weights [T,TopK], ids int32 [T,TopK], gate and up [E,F,D],
// down [E,D,F]. An id outside [0,E) makes the token's row NaN.
type Experts struct {
	Type             DType
	T, TopK, E, D, F int
	Y, X             Pointer
	Weights, IDs     Pointer
	WeightsF32       bool // weights are f32 whatever Type is
	Gate, Up, Down   Pointer
	Residual         Pointer // optional, may be Y
	Scratch          Pointer // ScratchBytes

	// Optional, one more expert [F,D], [F,D], [D,F] that every token has, with weight 1: only where SharesExpert.
	SharedGate, SharedUp, SharedDown Pointer
}

// The ways to the two products.
const (
	expertsAny     = iota // FMA, any size and type
	expertsTiles          // mma.sync on rows sorted by expert
	expertsHopper         // wgmma on rows sorted by expert
	expertsStreams        // few tokens: no sort, the weights stream
)

const (
	expertsStreamTokens  = 64   // the most tokens that stream the weights
	expertsStreamChoices = 1024 // the most choices that the streaming kernel lists
	expertsHopperMost    = 1024 // the most experts of the wgmma kernel's work list
	expertsRows          = 64   // rows of a block of the portable kernels
)

func (x Experts) way(gpu Target) int {
	switch m := x.T * x.TopK; {
	case x.Type == F32 || x.D%8 != 0 || x.F%8 != 0 || x.X.Addr%16 != 0 || x.Gate.Addr%16 != 0 || x.Up.Addr%16 != 0 || x.Down.Addr%16 != 0:
		return expertsAny
	case x.T <= expertsStreamTokens && m <= expertsStreamChoices:
		return expertsStreams
	case gpu.Hopper() && x.E <= expertsHopperMost:
		return expertsHopper
	}
	return expertsTiles
}

// SharesExpert says that the kernels for this shape take a shared expert along.
func (x Experts) SharesExpert(gpu Target) bool { return x.way(gpu) == expertsStreams }

func (x Experts) shared() int {
	if x.SharedGate.IsNil() {
		return 0
	}
	return 1
}

// expertsScratch is where the parts of the scratch start, in bytes.
type expertsScratch struct {
	order, position, offsets, sorted, hidden, rows, bytes int64
}

func (x Experts) scratch(gpu Target) (s expertsScratch) {
	m, size, way := int64(x.T)*int64(x.TopK+x.shared()), int64(x.Type.Size()), x.way(gpu)
	take := func(bytes int64) int64 {
		at := s.bytes
		s.bytes += (bytes + 255) &^ 255
		return at
	}
	if way != expertsStreams {
		s.order, s.position, s.offsets = take(4*m), take(4*m), take(4*int64(x.E+1))
	}
	s.hidden = take(m * int64(x.F) * size)
	s.rows = take(m * int64(x.D) * size)
	s.sorted = s.rows // read before the rows are written
	return s
}

// ScratchBytes is what Scratch must hold for a launch of this shape on a GPU.
func (x Experts) ScratchBytes(gpu Target) int64 { return x.scratch(gpu).bytes }

// Launch queues the kernels.
func (x Experts) Launch(q Queue) error {
	const op = "experts"
	if x.T < 0 || x.TopK < 1 || x.E < 1 || x.D < 1 || x.F < 1 {
		return fmt.Errorf("%s: T >= 0 and top-k, experts, D and F >= 1 are required, got T %d, top-k %d, experts %d, D %d, F %d", op, x.T, x.TopK, x.E, x.D, x.F)
	}
	m := int64(x.T) * int64(x.TopK)
	if m/expertsRows+int64(x.E) > 65535 {
		return unsupported(op, "%d choices of %d experts: the grid holds %d", m, x.E, (65535-x.E)*expertsRows)
	}
	gpu := q.Target()
	if n := x.SharedGate; n.IsNil() != x.SharedUp.IsNil() || n.IsNil() != x.SharedDown.IsNil() || !n.IsNil() && !x.SharesExpert(gpu) {
		return fmt.Errorf("%s: gate, up and down of a shared expert go together, and only where SharesExpert: got %v, %v, %v for T %d", op, x.SharedGate, x.SharedUp, x.SharedDown, x.T)
	}
	if x.T == 0 {
		return nil
	}
	s := x.scratch(gpu)
	if x.Scratch.IsNil() {
		return fmt.Errorf("%s: %d bytes of scratch are required", op, s.bytes)
	}
	hidden, rows := x.Scratch.At(s.hidden), x.Scratch.At(s.rows)
	if x.way(gpu) == expertsStreams {
		if err := x.stream(q, hidden, x.X, x.Gate, x.Up, x.SharedGate, x.SharedUp, x.F, x.D, x.TopK); err != nil {
			return err
		}
		if err := x.stream(q, rows, hidden, x.Down, Pointer{}, x.SharedDown, Pointer{}, x.D, x.F, 0); err != nil {
			return err
		}
		return x.combine(q, rows, Pointer{})
	}
	order, position, offsets := x.Scratch.At(s.order), x.Scratch.At(s.position), x.Scratch.At(s.offsets)
	if err := x.sort(q, order, position, offsets); err != nil {
		return err
	}
	first, second := x.tiles, x.tiles
	from := x.X
	if x.way(gpu) == expertsHopper {
		from = x.Scratch.At(s.sorted)
		if err := q.Launch(Launch{Kernel: "moe_permute_" + x.Type.String(), Grid: [3]int{x.T, 1, 1}, Block: min(256, (ceilDiv(x.D, 8)+31)/32*32), Overlap: true, Args: []Arg{
			{"y", from}, {"x", x.X}, {"position", position}, {"top_k", int32(x.TopK)}, {"d", int32(x.D)}, {"packed", int32(1)}}}); err != nil {
			return err
		}
		first, second = x.hopper, x.hopper
	}
	if err := first(q, hidden, from, x.Gate, x.Up, offsets, order, x.F, x.D, x.TopK); err != nil {
		return err
	}
	if err := second(q, rows, hidden, x.Down, Pointer{}, offsets, Pointer{}, x.D, x.F, 1); err != nil {
		return err
	}
	return x.combine(q, rows, position)
}

// sort lists the choices by expert, in their order inside each.
func (x Experts) sort(q Queue, order, position, offsets Pointer) error {
	m := x.T * x.TopK
	return q.Launch(Launch{Kernel: "moe_sort", Grid: [3]int{x.E, 1, 1}, Block: min(1024, (ceilDiv(m, 4)+31)/32*32), Overlap: q.Target().Hopper(), Args: []Arg{
		{"order", order}, {"position", position}, {"offsets", offsets}, {"ids", x.IDs}, {"m", int32(m)}, {"experts", int32(x.E)}}})
}

// suffix ends the name of a product: with two matrices the gate is part of it.
func suffix(up Pointer) string {
	if up.IsNil() {
		return ""
	}
	return "_swiglu"
}

// streamCuts are the parts of k that the warps of a block share, and the columns of a block.
func streamCuts(k int, gated bool) (parts, columns int) {
	parts = 2
	if k >= 1024 {
		parts = 4
	}
	columns = 16 * 8 / parts
	if gated {
		columns /= 2
	}
	return parts, columns
}

// stream is one product of the choices as they lie, w [E,n,k]; the cuts depend on n and k alone.
func (x Experts) stream(q Queue, y, from, w, up, sharedW, sharedUp Pointer, n, k, divide int) error {
	parts, columns := streamCuts(k, !up.IsNil())
	m := x.T * x.TopK
	few := ""
	if x.T <= 8 {
		few = "_8"
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("moe_stream_%v_%d%s%s", x.Type, parts, few, suffix(up)), Grid: [3]int{ceilDiv(n, columns), min(m, x.E) + x.shared(), 1}, Block: 256, Overlap: q.Target().Hopper(),
		Args: streamArgs(y, from, w, up, x.IDs, sharedW, sharedUp, m, n, k, x.E, divide, m >= x.E, x.TopK)})
}

// tiles is one product of sorted rows by the portable kernels.
func (x Experts) tiles(q Queue, y, from, w, up, offsets, order Pointer, n, k, divide int) error {
	name, columns, block, shared := "moe_grouped_any_", 64, 256, 0
	if x.way(q.Target()) == expertsTiles {
		name, columns, block, shared = "moe_grouped_", 128, 128, 4*(expertsRows+128)*80
	}
	if !up.IsNil() {
		columns /= 2
	}
	return q.Launch(Launch{Kernel: name + x.Type.String() + suffix(up), Grid: [3]int{ceilDiv(n, columns), x.T*x.TopK/expertsRows + x.E, 1}, Block: block, Shared: shared, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", y}, {"x", from}, {"w", w}, {"up", up}, {"offsets", offsets}, {"order", order}, {"n", int32(n)}, {"k", int32(k)}, {"experts", int32(x.E)}, {"divide", int32(divide)}}})
}

// hopper is one product of sorted rows by wgmma; from holds them in that order.
func (x Experts) hopper(q Queue, y, from, w, up, offsets, _ Pointer, n, k, _ int) error {
	m := x.T * x.TopK
	matrix := func(p Pointer, rows, box int) TensorMap {
		return TensorMap{Base: p, Type: x.Type, Dims: []uint64{uint64(k), uint64(rows)}, Strides: []uint64{uint64(2 * k)}, Box: []uint32{64, uint32(box)}, Swizzle: 128}
	}
	second := up
	if up.IsNil() {
		second = w
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("moe_sm90_%v%s", x.Type, suffix(up)), Grid: [3]int{q.Target().SMs / 2 * 2, 1, 1}, Block: 384, Cluster: 2,
		Shared: 4*(128+256)*128 + 1024, Overlap: true, Args: []Arg{
			{"x", matrix(from, m, 64)}, {"w", matrix(w, x.E*n, 128)}, {"up", matrix(second, x.E*n, 128)},
			{"y", y}, {"offsets", offsets}, {"n", int32(n)}, {"k", int32(k)}, {"experts", int32(x.E)}, {"m", int32(m)}}})
}

// combine adds up the rows of each token; without position they lie in the order of the choices.
func (x Experts) combine(q Queue, rows, position Pointer) error {
	per, packed, units := 16/x.Type.Size(), int32(0), x.D
	if x.D%per == 0 && x.Y.Addr%16 == 0 && x.Residual.Addr%16 == 0 {
		packed, units = 1, x.D/per
	}
	block := min(256, (units+31)/32*32)
	return q.Launch(Launch{Kernel: "moe_combine_" + x.Type.String(), Grid: [3]int{x.T, min(ceilDiv(units, block), 64), 1}, Block: block, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", x.Y}, {"rows", rows}, {"weights", x.Weights}, {"residual", x.Residual}, {"position", position}, {"ids", x.IDs},
		{"top_k", int32(x.TopK)}, {"d", int32(x.D)}, {"experts", int32(x.E)}, {"weights_f32", bit(x.WeightsF32)}, {"packed", packed},
		{"shared", int32(x.shared())}, {"tokens", int32(x.T)}, {"pad", int32(0)}}})
}
