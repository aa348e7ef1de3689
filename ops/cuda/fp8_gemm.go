package cuda

import "fmt"

// FP8Gemm launches y[M,N] = x[M,K] w[N,K]^T of codes times their steps, + bias[N], + residual[M,N], in one rounding. With SwiGLU,
// w is [2N,K] and y = silu(x w1^T) * (x w2^T) of its two halves. x and w are E4M3 or E5M2 in any mix (with SwiGLU, E4M3); or x is
// BF16 or F16 and w alone E4M3, in the order of PairCodes: up to 64 rows w is widened on its way, beyond it is widened once
// to the type of x and that is multiplied. With Coding, such an x becomes E4M3 on its way, a step for each row.
type FP8Gemm struct {
	M, N, K          int
	X, W             Pointer
	XType, WType     DType
	XStride, WStride int64 // bytes of codes, elements of a wide x; multiples of 16 bytes; zero means packed
	XSteps, WSteps   FP8Steps
	Y                Pointer
	Out              DType // BF16, F16 or F32 (a wide x: its type or F32), or E4M3
	YStride          int64
	Bias             Pointer // optional: f32, or the type of a wide x
	Residual         Pointer // optional: of type Out, may be Y
	ResidualStride   int64
	OutStep, OutAmax Pointer // of E4M3: its step; optional f32, the largest magnitude before the rounding
	SwiGLU           bool
	Coding           bool    // allowed where codes is true; W is not in the order of PairCodes, and XSteps is not given
	Exact            bool    // of codes: sums keep what the tensor cores drop of 8-bit floats, the gate is exact; a few times slower
	Computed         bool    // the launch in front may write W
	Scratch          Pointer // ScratchBytes, needed when that is not zero
}

func (g FP8Gemm) wide() bool { return !isCodes(g.XType) && !g.Coding }

// codes says whether the streaming kernel makes codes of x in BF16 or F16: each block makes those of whole rows, so of little.
func (g FP8Gemm) codes(gpu Target) bool {
	return gpu.Hopper() && !g.Exact && g.M <= 8 && g.M*g.K <= 16384 && g.K%8 == 0 && (g.XType == BF16 || g.XType == F16) && g.WType == E4M3 && !g.WSteps.blocked()
}

func (g FP8Gemm) rows() int {
	if g.SwiGLU {
		return 2 * g.N
	}
	return g.N
}

// streams says whether the kernel that reads the weights once takes the launch. Of codes with steps along k it keeps those of x in shared
// memory: 64 KB of two blocks that share k at M 64 and K 65536.
func (g FP8Gemm) streams(gpu Target) bool {
	return gpu.Hopper() && !g.Exact && g.M <= streamColumns && g.WType == E4M3 && (g.XType == E4M3 || !isCodes(g.XType)) && !(g.XSteps.vector() && !g.WSteps.square()) && (g.wide() || !g.blocked() || g.K <= 1<<16)
}

func (g FP8Gemm) columns() int { return max(16, Gemm{M: g.M}.columns()) }

// ScratchBytes is what Scratch must hold for a launch of this shape on a GPU: the widened weights.
func (g FP8Gemm) ScratchBytes(gpu Target) int64 {
	if g.wide() && !g.streams(gpu) {
		return int64(g.rows()) * g.wideStride() * 2
	}
	return 0
}

func (g FP8Gemm) wideStride() int64 { return int64(ceilDiv(g.K, 8) * 8) }

// Launch queues the kernel.
func (g FP8Gemm) Launch(q Queue) error {
	const op = "fp8 gemm"
	gpu := q.Target()
	if g.M < 0 || g.N < 1 || g.K < 1 {
		return fmt.Errorf("%s: M >= 0, N >= 1 and K >= 1 are required, got M %d, N %d, K %d", op, g.M, g.N, g.K)
	}
	if g.XType == F32 || !isCodes(g.WType) || g.Out == E5M2 {
		return fmt.Errorf("%s: x must be codes, bf16 or f16, w codes and the result bf16, f16, f32 or e4m3; got %v, %v and %v", op, g.XType, g.WType, g.Out)
	}
	if err := hasFP8(op, gpu); err != nil {
		return err
	}
	size := int64(g.XType.Size())
	if err := rowStrides(op, g.N, g.K, &g.XStride, &g.WStride, &g.YStride, &g.ResidualStride); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		of   FP8Steps
	}{{"x", g.XSteps}, {"w", g.WSteps}} {
		if err := s.of.check(op, s.name); err != nil {
			return err
		}
	}
	switch {
	case g.wide() && g.WType != E4M3:
		return unsupported(op, "%v weights with %v activations: kernels exist for e4m3", g.WType, g.XType)
	case g.Coding && (!g.codes(gpu) || !g.XSteps.At.IsNil()):
		return unsupported(op, "M %d, K %d of %v coded on the way to %v: M up to 8, M K up to 16384, on Hopper, with a step for the tensor or each row of w", g.M, g.K, g.XType, g.WType)
	case g.SwiGLU && !g.wide() && !g.Coding && (g.XType != E4M3 || g.WType != E4M3):
		return unsupported(op, "SwiGLU of %v and %v: kernels exist for e4m3", g.XType, g.WType)
	case g.SwiGLU && (!g.Bias.IsNil() || !g.Residual.IsNil()):
		return unsupported(op, "SwiGLU together with a bias or a residual")
	case g.SwiGLU && g.WSteps.square() && g.N%128 != 0:
		return unsupported(op, "SwiGLU of %d columns with steps of 128x128: a multiple of 128 is required", g.N)
	case g.XSteps.square() || g.WSteps.vector():
		return unsupported(op, "steps of 128x128 of x or 1x128 of w")
	case g.Out == E4M3 && (!g.Residual.IsNil() || g.OutStep.IsNil()):
		return unsupported(op, "codes with a residual or without a step of their own")
	case g.wide() && g.Out != g.XType && g.Out != F32 && !(g.Out == E4M3 && g.streams(gpu)):
		return unsupported(op, "%v results of %v activations", g.Out, g.XType)
	case g.XStride*size%16 != 0, g.WStride%16 != 0, g.X.Addr%16 != 0, g.W.Addr%16 != 0:
		return unsupported(op, "K %d, row strides %d and %d: rows of x and w must lie at multiples of 16 bytes", g.K, g.XStride, g.WStride)
	}
	if g.M == 0 {
		return nil
	}
	if !g.OutAmax.IsNil() {
		if err := q.Fill(g.OutAmax, 0, 4); err != nil {
			return err
		}
	}
	switch {
	case g.streams(gpu):
		return g.stream(q)
	case g.wide():
		return g.widened(q)
	case gpu.Hopper() && !g.Exact:
		return g.tiled(q)
	}
	return g.portable(q)
}

// sink and steps are the structs of those names in fp8.cuh.
type sink struct {
	y, bias, residual, step, amax Pointer
	stride, residualStride        int64
	out                           DType
}

func (s sink) args() []Arg {
	return []Arg{{"y", s.y}, {"bias", s.bias}, {"residual", s.residual}, {"out_step", s.step}, {"out_amax", s.amax},
		{"y_stride", s.stride}, {"residual_stride", s.residualStride}, {"out", int32(s.out)}}
}

type steps struct {
	x, w, xk, wk             Pointer
	xRow, wRow, xkRow, wkRow int32
}

func (s steps) args() []Arg {
	return []Arg{{"x_steps", s.x}, {"w_steps", s.w}, {"xk_steps", s.xk}, {"wk_steps", s.wk}, {"x_row", s.xRow}, {"w_row", s.wRow}, {"xk_row", s.xkRow}, {"wk_row", s.wkRow}}
}

func (g FP8Gemm) args() []Arg {
	y := sink{y: g.Y, bias: g.Bias, residual: g.Residual, step: g.OutStep, amax: g.OutAmax, stride: g.YStride, residualStride: g.ResidualStride, out: g.Out}
	var s steps
	blocks := int32(ceilDiv(g.K, 128))
	if g.XSteps.blocked() {
		s.xk, s.xkRow = g.XSteps.At, blocks
	} else {
		s.x, s.xRow = g.XSteps.At, int32(g.XSteps.Rows)
	}
	if g.WSteps.blocked() {
		s.wk, s.wkRow = g.WSteps.At, blocks
	} else {
		s.w, s.wRow = g.WSteps.At, int32(g.WSteps.Rows)
	}
	return append(y.args(), s.args()...)
}

func (g FP8Gemm) blocked() bool { return g.XSteps.blocked() || g.WSteps.blocked() }

// suffix ends the names of kernels.
func (g FP8Gemm) suffix() (s string) {
	if g.blocked() {
		s = "_block"
	}
	if g.SwiGLU {
		s += "_swiglu"
	}
	return s
}

func (g FP8Gemm) maps(xBox, wBox int) (x, w TensorMap) {
	size, box := uint64(g.XType.Size()), uint32(128/g.XType.Size())
	x = TensorMap{Base: g.X, Type: g.XType, Dims: []uint64{uint64(g.K), uint64(g.M)}, Strides: []uint64{uint64(g.XStride) * size}, Box: []uint32{box, uint32(xBox)}, Swizzle: 128}
	k := g.K
	if g.wide() {
		k = ceilDiv(k, 16) * 16 // groups of 16 are in an order of their own
	}
	w = TensorMap{Base: g.W, Type: g.WType, Dims: []uint64{uint64(k), uint64(g.rows())}, Strides: []uint64{uint64(g.WStride)}, Box: []uint32{128, uint32(wBox)}, Swizzle: 128}
	return x, w
}

func (g FP8Gemm) sizes() []Arg {
	return []Arg{{"m", int32(g.M)}, {"n", int32(g.N)}, {"k", int32(g.K)}}
}

// tiled is the wgmma kernel for many rows, in the tiles of Gemm's.
func (g FP8Gemm) tiled(q Queue) error {
	gpu := q.Target()
	narrower := []int{224}
	if g.blocked() || g.SwiGLU {
		narrower = nil // a step of w is of 128 columns, and a gate's pack of 32
	}
	name, width, cluster, stages := wgmmaTiles(gpu.SMs, g.M, g.N, narrower, g.SwiGLU)
	x, w := g.maps(128, width/2)
	return q.Launch(Launch{Kernel: fmt.Sprintf("fp8_gemm_sm90_%v_%v_%s%s", g.XType, g.WType, name, g.suffix()), Grid: [3]int{gpu.SMs / cluster * cluster, 1, 1}, Block: 384, Cluster: cluster,
		Shared: stages*(128+width)*128 + 16<<10 + 1024, Overlap: true, Args: append(append([]Arg{{"x", x}, {"w", w}}, g.args()...), g.sizes()...)})
}

// stream is the kernel that reads the weights once, for few rows.
func (g FP8Gemm) stream(q Queue) error {
	columns := g.columns()
	many := alone
	switch {
	case g.wide(), g.blocked():
		many = inHalves
	}
	c, steps := cutStream(q.Target(), g.N, g.SwiGLU, many), ceilDiv(g.K, 128)
	x, w := g.maps(columns, c.box)
	args, more := append(g.args(), g.sizes()...), 0
	kind, width := "", columns*128*g.XType.Size()
	if g.Coding {
		kind, width, more = "coding_", columns*128, g.M*ceilDiv(steps, c.blocks)*128+g.M*g.K*2
		args = append([]Arg{{"w", w}, {"x", g.X}, {"x_stride", g.XStride}}, args...)
	} else {
		args = append([]Arg{{"x", x}, {"w", w}}, args...)
	}
	if g.blocked() && !g.wide() {
		more = columns * 4 * ceilDiv(steps, c.blocks) // the steps of x
	}
	return q.Launch(c.launch(q.Target(), fmt.Sprintf("fp8_stream_%s%v_%d%s%s", kind, g.XType, columns, c.form, g.suffix()), columns, width, steps, more, g.Computed, args))
}

// widened writes w in the type of x to the scratch and multiplies that.
func (g FP8Gemm) widened(q Queue) error {
	if g.Scratch.IsNil() {
		return fmt.Errorf("fp8 gemm: M %d needs %d bytes of scratch", g.M, g.ScratchBytes(q.Target()))
	}
	m := Gemm{Type: g.XType, M: g.M, N: g.N, K: g.K, X: g.X, W: g.Scratch, XStride: g.XStride, WStride: g.wideStride(), Y: g.Y, YStride: g.YStride, Bias: g.Bias,
		Residual: g.Residual, ResidualStride: g.ResidualStride, SwiGLU: g.SwiGLU, F32Out: g.Out == F32, Computed: true}
	block, row, across := g.WSteps.places(g.K)
	err := q.Launch(Launch{Kernel: fmt.Sprintf("fp8_widen_%v", g.XType), Grid: [3]int{ceilDiv(g.rows()*ceilDiv(g.K, 16), 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(),
		Args: layoutArgs(g.W, g.Scratch, g.WSteps.At, g.WStride, g.wideStride(), g.rows(), g.K, [3]int32{block, row, across}, 1)})
	if err != nil {
		return err
	}
	return m.Launch(q)
}

// portable is the mma.sync kernel.
func (g FP8Gemm) portable(q Queue) error {
	name, rows, block, shared := "128", 128, 256, 4*(128+128)*80
	if g.M <= 32 {
		name, rows, block, shared = "32", 32, 128, 6*(32+128)*80
	}
	columns := 128
	if g.SwiGLU {
		columns = 64
	}
	exact := ""
	if g.Exact {
		exact = "exact_"
	}
	args := append(g.args(), Arg{"x", g.X}, Arg{"w", g.W}, Arg{"x_stride", g.XStride}, Arg{"w_stride", g.WStride})
	return q.Launch(Launch{Kernel: fmt.Sprintf("fp8_portable_%s%v_%v_%s%s", exact, g.XType, g.WType, name, g.suffix()), Grid: [3]int{ceilDiv(g.N, columns), ceilDiv(g.M, rows), 1}, Block: block,
		Shared: shared, Overlap: q.Target().Hopper(), Args: append(args, g.sizes()...)})
}

// PairCodes writes rows of codes in the order that products with a wide x read: of every 16, 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
// Rows of dst are a multiple of 16 bytes apart; what lies behind a row's end becomes 0.
func PairCodes(dst []byte, stride int, src []byte, rows, cols int) {
	for r := range rows {
		from, to := src[r*cols:][:cols], dst[r*stride:][:stride]
		at := 0
		for ; at+16 <= cols; at += 16 {
			s, d := from[at:at+16:at+16], to[at:at+16:at+16]
			for i := 0; i < 8; i += 2 {
				d[2*i], d[2*i+1], d[2*i+2], d[2*i+3] = s[i], s[i+1], s[i+8], s[i+9]
			}
		}
		if at < stride {
			clear(to[at:])
			var last [16]byte
			copy(last[:], from[at:])
			for i := 0; i < 8 && at+16 <= stride; i += 2 {
				to[at+2*i], to[at+2*i+1], to[at+2*i+2], to[at+2*i+3] = last[i], last[i+1], last[i+8], last[i+9]
			}
		}
	}
}
