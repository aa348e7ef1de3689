package cuda

import "fmt"

// FP8Steps are the steps of a matrix of codes: one for each Rows by Cols of it, 0 standing for all. {0, 0}, {1, 0}, {1, 128}
// and {128, 128} exist.
type FP8Steps struct {
	At         Pointer // f32 [ceil(rows/Rows), ceil(cols/Cols)]
	Rows, Cols int
}

func (s FP8Steps) tensor() bool  { return s.Rows == 0 && s.Cols == 0 }
func (s FP8Steps) row() bool     { return s.Rows == 1 && s.Cols == 0 }
func (s FP8Steps) vector() bool  { return s.Rows == 1 && s.Cols == 128 }
func (s FP8Steps) square() bool  { return s.Rows == 128 && s.Cols == 128 }
func (s FP8Steps) blocked() bool { return s.Cols != 0 }

func (s FP8Steps) check(op, name string) error {
	if s.tensor() || s.row() || s.vector() || s.square() {
		return nil
	}
	return unsupported(op, "steps of %s for blocks of %dx%d: kernels exist for 0x0 (the tensor), 1x0 (a row), 1x128 and 128x128", name, s.Rows, s.Cols)
}

// places says where the step of row r and block b of 128 columns is: r / block * row + b * across; block 0 stands for all rows.
func (s FP8Steps) places(cols int) (block, row, across int32) {
	if s.Rows > 0 {
		block, row = int32(s.Rows), 1
	}
	if s.blocked() {
		row, across = int32(ceilDiv(cols, 128)), 1
	}
	return block, row, across
}

// hasFP8 answers ErrUnsupported on a GPU without 8-bit products.
func hasFP8(op string, gpu Target) error {
	if gpu.Compute >= 89 {
		return nil
	}
	return unsupported(op, "%s (compute capability %d.%d) has no FP8: 8.9 is required", gpu.Name, gpu.Compute/10, gpu.Compute%10)
}

// isCodes says whether a type is an 8-bit float.
func isCodes(t DType) bool { return t == E4M3 || t == E5M2 }

// Quantize launches codes = round(x / step) of x[Rows,Cols] in E4M3 or E5M2, ties to even, saturating, with the bits of
// native.FP8Quantize: row-major into Codes, transposed into Turned. Steps are given, or with Dynamic made from the largest
// magnitude of each of their blocks, step = amax / max(Format) * 2^Margin, 1 where that is 0 or infinite. Amax gets the largest
// magnitudes of the raw x, one for each step, and NaN how many elements are not numbers: those take no part in Amax.
// Without Codes and Turned, steps and maxima are all that is made.
type Quantize struct {
	Type          DType // of x: BF16, F16 or F32
	Format        DType // E4M3 or E5M2
	Rows, Cols    int
	X             Pointer
	XStride       int64   // elements; 0: packed
	Codes, Turned Pointer // optional: [Rows,CodesStride] and [Cols,TurnedStride] bytes
	CodesStride   int64
	TurnedStride  int64
	Steps         FP8Steps
	Dynamic       bool
	Margin        int     // of Dynamic
	Amax, NaN     Pointer // optional: f32, int32
	Flags         Pointer // QuantizeFlags bytes, zeroed once, when the tensor has one step
}

// QuantizeFlags is what the Flags of a Quantize must hold; every launch leaves zeros.
const QuantizeFlags = 12

// Launch queues the kernels: one pass over x, two for a dynamic step of the tensor and for transposed codes of dynamic steps of
// rows.
func (z Quantize) Launch(q Queue) error {
	const op = "quantize"
	if z.Rows < 0 || z.Cols < 0 {
		return fmt.Errorf("%s: rows and columns of 0 or more are required, got %d and %d", op, z.Rows, z.Cols)
	}
	if z.Type > F32 || !isCodes(z.Format) {
		return fmt.Errorf("%s: x must be bf16, f16 or f32 and codes e4m3 or e5m2, got %v and %v", op, z.Type, z.Format)
	}
	if err := z.Steps.check(op, "x"); err != nil {
		return err
	}
	for _, s := range []struct {
		name   string
		stride *int64
		packed int
	}{{"x", &z.XStride, z.Cols}, {"codes", &z.CodesStride, z.Cols}, {"transposed codes", &z.TurnedStride, z.Rows}} {
		if *s.stride == 0 {
			*s.stride = int64(s.packed)
		}
		if *s.stride < int64(s.packed) {
			return fmt.Errorf("%s: row stride %d of %s is below its %d columns", op, *s.stride, s.name, s.packed)
		}
	}
	if z.Rows == 0 || z.Cols == 0 {
		return nil
	}
	given := !z.Codes.IsNil() || !z.Turned.IsNil()
	if given && z.Steps.At.IsNil() {
		return fmt.Errorf("%s: codes need steps, or a place for dynamic ones", op)
	}
	if z.Steps.tensor() {
		return z.tensor(q)
	}
	if !z.NaN.IsNil() {
		if err := q.Fill(z.NaN, 0, 4); err != nil {
			return err
		}
	}
	if z.Steps.row() && (z.Dynamic || !given) {
		r := z
		r.Turned = Pointer{}
		if err := r.launch(q, "rows", [3]int{z.Rows, 1, 1}); err != nil || z.Turned.IsNil() {
			return err
		}
		z.Codes, z.Dynamic, z.Amax, z.NaN = Pointer{}, false, Pointer{}, Pointer{}
	}
	cols := int64(z.Cols)
	if z.Steps.vector() && z.Turned.IsNil() && cols%128 == 0 && z.XStride == cols && z.CodesStride == cols && z.X.Addr%16 == 0 {
		// A block is 256 threads of four packs of 8.
		return z.launch(q, "vectors", [3]int{ceilDiv(z.Rows*z.Cols, 8*4*256), 1, 1})
	}
	return z.tiles(q)
}

func (z Quantize) tensor(q Queue) error {
	flat := z.XStride == int64(z.Cols)
	if z.Dynamic || z.Codes.IsNil() && z.Turned.IsNil() {
		if !flat {
			return unsupported("quantize", "the largest magnitude of rows %d apart: rows must be packed", z.XStride)
		}
		m := z
		m.Codes, m.Turned = Pointer{}, Pointer{}
		if err := m.flat(q); err != nil || z.Codes.IsNil() && z.Turned.IsNil() {
			return err
		}
		z.Dynamic, z.Amax, z.NaN = false, Pointer{}, Pointer{}
	}
	if flat && z.Turned.IsNil() && z.CodesStride == int64(z.Cols) {
		return z.flat(q)
	}
	if !z.NaN.IsNil() {
		if err := q.Fill(z.NaN, 0, 4); err != nil {
			return err
		}
	}
	return z.tiles(q)
}

func (z Quantize) flat(q Queue) error {
	if (!z.Amax.IsNil() || !z.NaN.IsNil() || z.Dynamic) && z.Flags.IsNil() {
		return fmt.Errorf("quantize: an amax of the tensor needs %d bytes of flags", QuantizeFlags)
	}
	// As many threads as there is room for, all with as many packs of 8 as each other.
	blocks, most := (int64(z.Rows)*int64(z.Cols)+8*512-1)/(8*512), int64(4*q.Target().SMs)
	if blocks > most {
		each := (blocks + most - 1) / most
		blocks = (blocks + each - 1) / each
	}
	return z.launch(q, "flat", [3]int{int(blocks), 1, 1})
}

func (z Quantize) tiles(q Queue) error {
	if z.Dynamic && !z.Steps.blocked() {
		return fmt.Errorf("quantize: tiles do not see a whole row")
	}
	if !z.Amax.IsNil() && !z.Steps.blocked() {
		n := int64(4)
		if z.Steps.row() {
			n *= int64(z.Rows)
		}
		if err := q.Fill(z.Amax, 0, n); err != nil {
			return err
		}
	}
	rows := ceilDiv(z.Rows, 128)
	if rows > 65535 {
		return unsupported("quantize", "%d rows: up to %d have a kernel with these steps", z.Rows, 65535*128)
	}
	return z.launch(q, "tile", [3]int{ceilDiv(z.Cols, 128), rows, 1})
}

func (z Quantize) launch(q Queue, kernel string, grid [3]int) error {
	given, made := z.Steps.At, Pointer{}
	if z.Dynamic {
		given, made = Pointer{}, z.Steps.At
	}
	if z.Codes.IsNil() && z.Turned.IsNil() && !z.Dynamic {
		given = Pointer{}
	}
	aligned := z.X.Addr%16 == 0 && (kernel == "flat" || z.XStride*int64(z.Type.Size())%16 == 0)
	per, row, across := z.Steps.places(z.Cols)
	block, shared := 256, 0
	switch kernel {
	case "flat":
		block = 512
	case "tile":
		block, shared = 512, 128*128*z.Type.Size()
		if !z.Turned.IsNil() {
			shared += 128 * 128
		}
	case "rows":
		// Two packs a thread; up to 512 threads where several rows share a multiprocessor.
		most := 512
		if z.Rows <= q.Target().SMs {
			most = 1024
		}
		block = min(most, max(64, (ceilDiv(z.Cols, 2*8)+31)/32*32))
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("fp8_%s_%v_%v", kernel, z.Type, z.Format), Grid: grid, Block: block, Shared: shared, Overlap: q.Target().Hopper(), Args: []Arg{
		{"x", z.X}, {"codes", z.Codes}, {"turned", z.Turned}, {"steps", given}, {"made", made}, {"amax", z.Amax}, {"nan", z.NaN}, {"flags", z.Flags},
		{"x_stride", z.XStride}, {"codes_stride", z.CodesStride}, {"turned_stride", z.TurnedStride}, {"rows", int64(z.Rows)}, {"cols", int64(z.Cols)},
		{"step_row", row}, {"step_block", across}, {"row_block", per}, {"margin", int32(z.Margin)}, {"aligned", bit(aligned)}}})
}

// TurnCodes launches y[Cols,Rows] = the transpose of Codes[Rows,Cols].
type TurnCodes struct {
	Rows, Cols  int
	Codes, Y    Pointer
	CodesStride int64 // bytes; 0: packed
	YStride     int64
}

// Launch queues the kernel.
func (t TurnCodes) Launch(q Queue) error {
	if t.CodesStride == 0 {
		t.CodesStride = int64(t.Cols)
	}
	if t.YStride == 0 {
		t.YStride = int64(t.Rows)
	}
	if t.Rows < 0 || t.Cols < 0 || t.CodesStride < int64(t.Cols) || t.YStride < int64(t.Rows) {
		return fmt.Errorf("turn codes: [%d,%d] with row strides %d and %d", t.Rows, t.Cols, t.CodesStride, t.YStride)
	}
	if t.Rows == 0 || t.Cols == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: "fp8_turn", Grid: [3]int{ceilDiv(t.Cols, 128), ceilDiv(t.Rows, 128), 1}, Block: 256, Overlap: q.Target().Hopper(),
		Args: layoutArgs(t.Codes, t.Y, Pointer{}, t.CodesStride, t.YStride, t.Rows, t.Cols, [3]int32{}, 0)})
}

// AlignCodes launches a copy of Codes[Rows,Cols] to rows YStride bytes apart, a multiple of 16.
type AlignCodes struct {
	Rows, Cols  int
	Codes, Y    Pointer
	CodesStride int64 // bytes; 0: packed
	YStride     int64
}

// Launch queues the kernel.
func (a AlignCodes) Launch(q Queue) error {
	if a.CodesStride == 0 {
		a.CodesStride = int64(a.Cols)
	}
	if a.Rows < 0 || a.Cols < 0 || a.CodesStride < int64(a.Cols) || a.YStride < int64(a.Cols) || a.YStride%16 != 0 || a.Y.Addr%16 != 0 {
		return fmt.Errorf("align codes: [%d,%d] to row stride %d at %v: a multiple of 16 bytes of at least the columns is required", a.Rows, a.Cols, a.YStride, a.Y)
	}
	if a.Rows == 0 || a.Cols == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: "fp8_align", Grid: [3]int{ceilDiv(a.Rows*ceilDiv(a.Cols, 16), 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(),
		Args: layoutArgs(a.Codes, a.Y, Pointer{}, a.CodesStride, a.YStride, a.Rows, a.Cols, [3]int32{}, 0)})
}

// Dequantize launches y[Rows,Cols] = the values of packed codes times their steps, in BF16, F16 or F32.
type Dequantize struct {
	Type, Format DType
	Rows, Cols   int
	Codes, Y     Pointer
	Steps        FP8Steps
}

// Launch queues the kernel.
func (d Dequantize) Launch(q Queue) error {
	const op = "dequantize"
	if d.Rows < 0 || d.Cols < 0 || d.Type > F32 || !isCodes(d.Format) || d.Steps.At.IsNil() {
		return fmt.Errorf("%s: rows and columns of 0 or more, codes, their steps and a result of bf16, f16 or f32 are required, got [%d,%d] of %v, steps %v and %v", op, d.Rows, d.Cols, d.Format, d.Steps.At, d.Type)
	}
	if err := d.Steps.check(op, "codes"); err != nil || d.Rows == 0 || d.Cols == 0 {
		return err
	}
	block, row, across := d.Steps.places(d.Cols)
	return q.Launch(Launch{Kernel: fmt.Sprintf("fp8_values_%v_%v", d.Type, d.Format), Grid: [3]int{ceilDiv(d.Rows*ceilDiv(d.Cols, 8), 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(),
		Args: layoutArgs(d.Codes, d.Y, d.Steps.At, int64(d.Cols), int64(d.Cols), d.Rows, d.Cols, [3]int32{block, row, across}, 0)})
}

func layoutArgs(codes, y, steps Pointer, codesStride, yStride int64, rows, cols int, places [3]int32, paired int32) []Arg {
	return []Arg{{"codes", codes}, {"y", y}, {"steps", steps}, {"codes_stride", codesStride}, {"y_stride", yStride}, {"rows", int64(rows)}, {"cols", int64(cols)},
		{"step_row", places[1]}, {"step_block", places[2]}, {"row_block", places[0]}, {"paired", paired}}
}
