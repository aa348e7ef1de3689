package cuda

import "fmt"

// Gate names the activation of a gated linear unit.
type Gate uint8

// The gates: silu, gelu by tanh, gelu by erf.
const (
	SwiGLU Gate = iota
	GeGLUTanh
	GeGLUErf
)

func (g Gate) String() string { return [...]string{"swiglu", "geglu_tanh", "geglu_erf"}[g] }

// Gated launches y[t,i] = gate(g[t,i]) * u[t,i] over Rows rows of F columns. Stride is that of g and u, YStride that of y,
// in elements; zero means packed. For one matrix [T,2F] give G, Up = G + F elements and Stride 2F. With Codes, y rounded to the
// element type leaves only as E4M3: codes = round(y / step) with a step of the tensor that is given, or steps of rows or of 1x128,
// max|y| / 448, that are made on the way. Row t of the codes may lie in the place of row t of g or u.
type Gated struct {
	Type     DType
	Gate     Gate
	Rows, F  int
	Y, G, Up Pointer
	Stride   int64
	YStride  int64

	Codes       Pointer // optional, in place of Y: [Rows,CodesStride] bytes
	CodesStride int64
	Steps       FP8Steps
}

// Launch queues the kernel.
func (g Gated) Launch(q Queue) error {
	if g.Rows < 0 || g.F < 1 {
		return fmt.Errorf("%v: rows >= 0 and f >= 1 are required, got rows %d, f %d", g.Gate, g.Rows, g.F)
	}
	if g.Stride == 0 {
		g.Stride = int64(g.F)
	}
	if g.YStride == 0 {
		g.YStride = int64(g.F)
	}
	if g.Stride < int64(g.F) || g.YStride < int64(g.F) {
		return fmt.Errorf("%v: strides of at least f %d are required, got %d and %d", g.Gate, g.F, g.Stride, g.YStride)
	}
	if !g.Codes.IsNil() {
		return g.codes(q)
	}
	if g.Rows == 0 {
		return nil
	}
	per := 16 / g.Type.Size()
	whole := g.F%per == 0 && g.Stride%int64(per) == 0 && g.YStride%int64(per) == 0 && g.Y.Addr%16 == 0 && g.G.Addr%16 == 0 && g.Up.Addr%16 == 0
	kernel, packs := fmt.Sprintf("pointwise_%v_%v", g.Gate, g.Type), g.F/per
	if !whole {
		kernel, packs = kernel+"_any", g.F
	}
	// Two packs a thread; the blocks share a row evenly.
	across := ceilDiv(packs, 2*256)
	block := (ceilDiv(packs, 2*across) + 31) / 32 * 32
	return q.Launch(Launch{Kernel: kernel, Grid: [3]int{across, min(g.Rows, 65535), 1}, Block: block, Args: []Arg{
		{"y", g.Y}, {"gate", g.G}, {"up", g.Up}, {"columns", int32(g.F)}, {"stride", g.Stride}, {"y_stride", g.YStride}, {"rows", int32(g.Rows)}}})
}

func (g Gated) codes(q Queue) error {
	if g.Steps.At.IsNil() || g.CodesStride < int64(g.F) {
		return fmt.Errorf("%v: codes need steps and a stride of at least f, got steps %v, f %d, stride %d", g.Gate, g.Steps.At, g.F, g.CodesStride)
	}
	if g.Type == F32 || g.Steps.square() || g.F%8 != 0 || g.Stride%8 != 0 || g.CodesStride%8 != 0 || g.G.Addr%16 != 0 || g.Up.Addr%16 != 0 || g.Codes.Addr%8 != 0 {
		return unsupported(g.Gate.String(), "codes of %d columns of %v, g %v and up %v with strides %d and %d, steps of %dx%d: bf16 and f16, multiples of 8 and of 16 bytes and steps of the tensor, of rows or of 1x128 have a kernel", g.F, g.Type, g.G, g.Up, g.Stride, g.CodesStride, g.Steps.Rows, g.Steps.Cols)
	}
	if err := g.Steps.check(g.Gate.String(), "codes"); err != nil || g.Rows == 0 {
		return err
	}
	made, given, across := g.Steps.At, Pointer{}, 1
	switch {
	case g.Steps.tensor():
		made, given = given, made
	case g.Steps.vector():
		across = ceilDiv(g.F, 128)
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("gated_fp8_%v_%v", g.Gate, g.Type), Grid: [3]int{g.Rows, 1, 1}, Block: codesCut(g.Rows, g.F), Shared: g.F*g.Type.Size() + 32*4, Overlap: q.Target().Hopper(), Args: []Arg{
		{"codes", g.Codes}, {"made", made}, {"given", given}, {"gate", g.G}, {"up", g.Up}, {"stride", g.Stride}, {"codes_stride", g.CodesStride}, {"columns", int32(g.F)}, {"across", int32(across)}}})
}

// Add launches y = a + b over N elements; y may be a or b.
type Add struct {
	Type    DType
	N       int64
	Y, A, B Pointer
}

// Launch queues the kernel.
func (a Add) Launch(q Queue) error {
	if a.N < 0 {
		return fmt.Errorf("add: n >= 0 is required, got %d", a.N)
	}
	if err := aligned16("add", Arg{"y", a.Y}, Arg{"a", a.A}, Arg{"b", a.B}); err != nil || a.N == 0 {
		return err
	}
	per := int64(16 / a.Type.Size())
	blocks := min(int64(q.Target().SMs)*16, (a.N/per+255)/256+1)
	return q.Launch(Launch{Kernel: "pointwise_add_" + a.Type.String(), Grid: [3]int{int(blocks), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", a.Y}, {"a", a.A}, {"b", a.B}, {"n", a.N}}})
}

// Mul launches y[t,i] = x[t,i] * b[t] over rows of D of N elements in all: of D 1 y = x * b. Y may be X's place, and B's where
// that has the same type.
type Mul struct {
	Type, BType DType // BType F32, or Type
	N           int64
	D           int
	Y, X, B     Pointer
}

// Launch queues the kernel.
func (m Mul) Launch(q Queue) error {
	if m.N < 0 || m.D < 1 {
		return fmt.Errorf("mul: n >= 0 and d >= 1 are required, got n %d, d %d", m.N, m.D)
	}
	if err := aligned16("mul", Arg{"y", m.Y}, Arg{"x", m.X}, Arg{"b", m.B}); err != nil || m.N == 0 {
		return err
	}
	per := int64(16 / m.Type.Size())
	blocks := min(int64(q.Target().SMs)*16, (m.N/per+255)/256+1)
	return q.Launch(Launch{Kernel: fmt.Sprintf("pointwise_mul_%v_%v", m.Type, m.BType), Grid: [3]int{int(blocks), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", m.Y}, {"x", m.X}, {"b", m.B}, {"n", m.N}, {"d", int32(m.D)}}})
}

// Embedding launches y[t,:] = table[ids[t],:] * scale for T tokens; an id outside the table gives NaN.
type Embedding struct {
	Type             DType
	T, D, Vocabulary int
	Scale            float32 // 1 for a plain copy
	Y, Table, IDs    Pointer // IDs int32 [T]
}

// Launch queues the kernel.
func (e Embedding) Launch(q Queue) error {
	if e.T < 0 || e.D < 1 || e.Vocabulary < 1 {
		return fmt.Errorf("embedding: T >= 0, d >= 1 and a table are required, got T %d, d %d, vocabulary %d", e.T, e.D, e.Vocabulary)
	}
	if err := aligned16("embedding", Arg{"y", e.Y}, Arg{"table", e.Table}); err != nil || e.T == 0 {
		return err
	}
	per := 16 / e.Type.Size()
	return q.Launch(Launch{Kernel: "pointwise_embedding_" + e.Type.String(), Grid: [3]int{e.T, 1, 1}, Block: max(32, min(512, (e.D/per+31)/32*32)), Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", e.Y}, {"table", e.Table}, {"ids", e.IDs}, {"d", int32(e.D)}, {"vocabulary", int32(e.Vocabulary)}, {"scale", e.Scale}}})
}

// Append launches pool[slots[t],:] = x[t,:] for T rows of Columns elements; a negative slot writes nothing. The pool holds
// the type of x, BF16, or E4M3 with a step for each of the heads that share a row.
type Append struct {
	Type, PoolType DType
	T, Columns     int
	Pool, X, Slots Pointer // Slots int32 [T]
	Steps          Pointer // f32 [Heads], of E4M3
	Heads          int
}

// Launch queues the kernel.
func (a Append) Launch(q Queue) error {
	const op = "append"
	if a.T < 0 || a.Columns < 1 {
		return fmt.Errorf("%s: T >= 0 and columns >= 1 are required, got T %d, columns %d", op, a.T, a.Columns)
	}
	if a.PoolType != a.Type && a.PoolType != BF16 && a.PoolType != E4M3 {
		return unsupported(op, "%v into a pool of %v", a.Type, a.PoolType)
	}
	if a.PoolType == E4M3 && (a.Steps.IsNil() || a.Heads < 1 || a.Columns%a.Heads != 0) {
		return fmt.Errorf("%s: a pool of e4m3 needs a step for each head, got steps %v for %d heads of %d columns", op, a.Steps, a.Heads, a.Columns)
	}
	if a.T == 0 {
		return nil
	}
	per := 16 / a.Type.Size()
	l := Launch{Kernel: "pointwise_append_" + a.Type.String(), Grid: [3]int{a.T, 1, 1}, Block: min(256, (a.Columns/per+31)/32*32), Overlap: q.Target().Hopper(), Args: []Arg{
		{"pool", a.Pool}, {"x", a.X}, {"slots", a.Slots}, {"columns", int32(a.Columns)}}}
	if a.PoolType != a.Type || a.Columns%per != 0 || a.Pool.Addr%16 != 0 || a.X.Addr%16 != 0 {
		l.Kernel, l.Block = fmt.Sprintf("%s_%v", l.Kernel, a.PoolType), min(1024, (a.Columns+31)/32*32)
		l.Args = []Arg{{"pool", a.Pool}, {"x", a.X}, {"slots", a.Slots}, {"steps", a.Steps}, {"columns", int32(a.Columns)}, {"width", int32(a.Columns / max(1, a.Heads))}}
	}
	return q.Launch(l)
}
