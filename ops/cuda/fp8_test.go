//go:build gpu

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	host "github.com/seafan/seafan/ops/native"
)

func (b *bench) bytes(x []byte) Pointer {
	p := b.alloc(len(x)).Pointer
	if len(x) > 0 {
		require.NoError(b.t, b.d.Upload(p, x))
	}
	return p
}

func (b *bench) flags(n int64) Pointer {
	p := b.alloc(int(n)).Pointer
	require.NoError(b.t, b.d.Main().Fill(p, 0, n))
	return p
}

func formatOf(d DType) host.FP8 {
	if d == E5M2 {
		return host.E5M2
	}
	return host.E4M3
}

func blocksOf(s FP8Steps, rows, cols int) host.FP8Blocks {
	b := host.FP8PerTensor(rows, cols)
	if s.Rows > 0 {
		b.BlockRows = s.Rows
	}
	if s.Cols > 0 {
		b.BlockCols = s.Cols
	}
	return b
}

var allSteps = []FP8Steps{{}, {Rows: 1}, {Rows: 1, Cols: 128}, {Rows: 128, Cols: 128}}

func stepsOf(amax []float32, f host.FP8, margin int) []float32 {
	s := make([]float32, len(amax))
	for i, a := range amax {
		s[i] = 1
		if v, ok := host.FP8Step(a, f, margin); ok {
			s[i] = v
		}
	}
	return s
}

// Codes, steps, maxima and counts have native's bits, in every layout, with values that are not finite among them.
func TestDeviceQuantizeHasTheBitsOfNative(t *testing.T) {
	for _, dt := range allTypes {
		for _, f := range []DType{E4M3, E5M2} {
			for _, s := range [][2]int{{0, 5}, {1, 1}, {3, 129}, {130, 257}, {300, 104}, {128, 128}, {1, 20000}, {20000, 1}, {64, 4096}, {1100, 2056}} {
				for _, steps := range allSteps {
					if s[0]*s[1] > 1<<20 && !steps.tensor() { // what lets a thread of one step have several packs
						continue
					}
					for _, dynamic := range []bool{true, false} {
						each(t, 17, fmt.Sprintf("%v/%v/%v/%dx%d/%v", dt, f, s, steps.Rows, steps.Cols, dynamic), func(t *testing.T) { testQuantize(t, dt, f, s[0], s[1], steps, dynamic) })
					}
				}
			}
		}
	}
}

func testQuantize(t *testing.T, dt, f DType, rows, cols int, steps FP8Steps, dynamic bool) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	x := normal(r, dt, rows*cols, 3)
	if len(x) > 300 {
		for i, v := range map[int]float64{7: math.NaN(), 13: math.Copysign(0, -1), 40: 1e-7, 41: -3e-6, 255: 0, len(x) - 1: math.NaN(), len(x) / 2: -2e4} {
			x[i] = v
		}
		if dt != F16 {
			x[len(x)/3] = 3e38
		}
		x[100] = math.Inf(-1)
		x = decode(dt, encode(dt, x))
	}
	x32, format, blocks := float32s(x), formatOf(f), blocksOf(steps, rows, cols)
	amax := make([]float32, blocks.Steps())
	nan := host.FP8Amax(amax, x32, blocks)
	margin := 0
	if rows%2 == 1 {
		margin = 1
	}
	want := stepsOf(amax, format, margin)
	if !dynamic {
		for i := range want {
			want[i] = float32(math.Exp(r.NormFloat64())) * 0.01
		}
	}
	codes, turned := make([]byte, rows*cols), make([]byte, rows*cols)
	host.FP8Quantize(codes, turned, x32, want, blocks, format)
	for _, layout := range []int{0, 1, 2, 3} { // nothing but maxima, row-major, transposed, both
		z := Quantize{Type: dt, Format: f, Rows: rows, Cols: cols, X: b.put(dt, x), Steps: steps, Dynamic: dynamic, Margin: margin, Amax: b.out(F32, len(amax)), NaN: b.out(F32, 1), Flags: b.flags(QuantizeFlags)}
		if dynamic {
			z.Steps.At = b.out(F32, len(want))
		} else {
			z.Steps.At = b.put(F32, float64s(want))
		}
		if layout&1 != 0 {
			z.Codes = b.out(E4M3, rows*cols)
		}
		if layout&2 != 0 {
			z.Turned = b.out(E4M3, rows*cols)
		}
		b.run(z)
		if rows*cols == 0 {
			continue
		}
		require.Equal(t, float64s(amax), b.get(F32, z.Amax, len(amax)), "amax")
		require.EqualValues(t, nan, binary.LittleEndian.Uint32(b.raw(z.NaN, 4)), "NaN")
		require.Equal(t, float64s(want), b.get(F32, z.Steps.At, len(want)), "steps")
		require.Equal(t, make([]byte, QuantizeFlags), b.raw(z.Flags, QuantizeFlags))
		for name, c := range map[string]struct {
			at   Pointer
			want []byte
		}{"codes": {z.Codes, codes}, "transposed": {z.Turned, turned}} {
			if c.at.IsNil() {
				continue
			}
			for i, v := range b.raw(c.at, rows*cols) {
				if v != c.want[i] {
					t.Fatalf("%s: code %d is %#x, want %#x (layout %d)", name, i, v, c.want[i], layout)
				}
			}
		}
	}
}

// All 16-bit numbers by steps that divide evenly, do not, and lie at the ends of the range.
func TestDeviceF01_FP8CastsOfEvery16BitNumber(t *testing.T) {
	b := newBench(t)
	for _, dt := range []DType{BF16, F16} {
		raw := make([]byte, 1<<17)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(raw[2*i:], uint16(i))
		}
		x := float32s(decode(dt, raw))
		for i := range x { // decoding of the tests drops the payload of a NaN
			switch {
			case dt == BF16:
				x[i] = math.Float32frombits(uint32(i) << 16)
			case x[i] != x[i]:
				x[i] = math.Float32frombits(uint32(i)&0x8000<<16 | 0x7f800000 | uint32(i)&0x3ff<<13)
			}
		}
		at := b.bytes(raw)
		for _, f := range []DType{E4M3, E5M2} {
			for _, step := range []float32{1, 0.0123, 3.1415927, 1e-20, 0x1p-126, 1e30, math.MaxFloat32} {
				codes := make([]byte, 1<<16)
				host.FP8TensorQuantize(codes, x, step, formatOf(f))
				z := Quantize{Type: dt, Format: f, Rows: 256, Cols: 256, X: at, Codes: b.out(E4M3, 1<<16), Steps: FP8Steps{At: b.put(F32, []float64{float64(step)})}}
				b.run(z)
				for i, v := range b.raw(z.Codes, 1<<16) {
					if v != codes[i] {
						t.Fatalf("%v %#x (%g) / %g in %v: %#x, want %#x", dt, i, x[i], step, f, v, codes[i])
					}
				}
			}
		}
	}
}

type fp8Case struct {
	m, n, k        int
	x, w           DType
	xs, ws         FP8Steps
	out            DType
	bias, residual bool
	swiglu         bool
	exact          bool
}

func fp8Cases() (cs []fp8Case) {
	row, vec, sq := FP8Steps{Rows: 1}, FP8Steps{Rows: 1, Cols: 128}, FP8Steps{Rows: 128, Cols: 128}
	for _, s := range [][3]int{{1, 8, 16}, {1, 300, 200}, {7, 896, 712}, {50, 33, 40}, {16, 512, 512}, {17, 1000, 1040}, {33, 257, 1024}, {64, 1536, 320}, {65, 63, 72}, {130, 300, 512}, {257, 520, 192}, {300, 2000, 136}, {61, 768, 768}} {
		cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, out: F32}, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, bias: true, residual: true},
			fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, xs: vec, ws: sq, out: F32}, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, xs: row, ws: sq, out: F16, bias: true},
			fp8Case{m: s[0], n: s[1], k: s[2], x: E5M2, w: E4M3, out: F32}, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E5M2, xs: vec, ws: row, out: F32}, fp8Case{m: s[0], n: s[1], k: s[2], x: E5M2, w: E5M2, out: BF16},
			fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, out: E4M3, bias: true})
		for _, x := range []DType{BF16, F16} {
			for _, ws := range []FP8Steps{{}, row, sq} {
				cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: x, w: E4M3, ws: ws, out: x, bias: true, residual: true})
			}
			cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: x, w: E4M3, ws: row, out: F32})
		}
	}
	for _, s := range [][3]int{{1, 8, 16}, {7, 896, 712}, {33, 257, 1024}, {130, 300, 520}, {16, 256, 8192}} {
		for _, of := range [][2]DType{{E4M3, E4M3}, {E4M3, E5M2}, {E5M2, E4M3}, {E5M2, E5M2}} {
			cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: of[0], w: of[1], xs: row, ws: row, out: F32, bias: true, exact: true}, fp8Case{m: s[0], n: s[1], k: s[2], x: of[0], w: of[1], xs: vec, ws: sq, out: F32, residual: true, exact: true})
		}
	}
	for _, s := range [][3]int{{1, 384, 256}, {33, 128, 520}} {
		cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, xs: row, ws: row, out: F32, swiglu: true, exact: true}, fp8Case{m: s[0], n: s[1], k: s[2], x: E4M3, w: E4M3, xs: row, ws: sq, out: F32, swiglu: true, exact: true})
	}
	for _, s := range [][3]int{{1, 384, 256}, {17, 640, 256}, {64, 256, 72}, {200, 384, 256}, {520, 1152, 136}} {
		for _, x := range []DType{E4M3, BF16} {
			xs := row
			if x != E4M3 {
				xs = FP8Steps{}
			}
			cs = append(cs, fp8Case{m: s[0], n: s[1], k: s[2], x: x, w: E4M3, xs: xs, ws: row, out: BF16, swiglu: true}, fp8Case{m: s[0], n: s[1], k: s[2], x: x, w: E4M3, xs: xs, ws: sq, out: BF16, swiglu: true})
		}
	}
	return append(cs, fp8Case{m: 128, n: 256, k: 8192, x: E4M3, w: E4M3, out: F32}, fp8Case{m: 16, n: 256, k: 8192, x: E4M3, w: E4M3, out: F32}, fp8Case{m: 128, n: 256, k: 8192, x: E4M3, w: E4M3, xs: vec, ws: sq, out: F32},
		fp8Case{m: 16, n: 256, k: 8192, x: BF16, w: E4M3, ws: row, out: F32},
		// Tiles of 224 columns.
		fp8Case{m: 131, n: 8500, k: 272, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, bias: true, residual: true},
		fp8Case{m: 130, n: 8520, k: 144, x: E4M3, w: E5M2, out: F16, bias: true, residual: true},
		fp8Case{m: 132, n: 8501, k: 144, x: E4M3, w: E4M3, xs: row, ws: row, out: E4M3, bias: true},
		fp8Case{m: 140, n: 4300, k: 272, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, swiglu: true},
		// Several tiles a block, whose results leave during the products of the next: of 224 columns, and of 256 with steps along k.
		fp8Case{m: 512, n: 8720, k: 144, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, bias: true, residual: true},
		fp8Case{m: 512, n: 12744, k: 144, x: E4M3, w: E4M3, xs: vec, ws: sq, out: F16},
		// Rows of a block's own, several tiles.
		fp8Case{m: 33, n: 13003, k: 272, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, bias: true, residual: true},
		fp8Case{m: 64, n: 13003, k: 144, x: E4M3, w: E4M3, xs: vec, ws: sq, out: F32, residual: true},
		fp8Case{m: 5, n: 13000, k: 144, x: E4M3, w: E4M3, xs: row, ws: row, out: E4M3, bias: true},
		fp8Case{m: 64, n: 16000, k: 144, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, swiglu: true},
		fp8Case{m: 3, n: 26000, k: 272, x: BF16, w: E4M3, ws: row, out: BF16},
		fp8Case{m: 3, n: 26000, k: 272, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16},
		fp8Case{m: 64, n: 26000, k: 272, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16},
		fp8Case{m: 16, n: 13000, k: 256, x: F16, w: E4M3, ws: row, out: F16, swiglu: true},
		fp8Case{m: 40, n: 13000, k: 256, x: E4M3, w: E4M3, xs: row, ws: row, out: BF16, swiglu: true},
		// Halves of two blocks' rows, one tile and several.
		fp8Case{m: 64, n: 9003, k: 272, x: BF16, w: E4M3, ws: row, out: BF16, bias: true, residual: true},
		fp8Case{m: 20, n: 9001, k: 144, x: F16, w: E4M3, ws: sq, out: F16, residual: true},
		fp8Case{m: 33, n: 34000, k: 272, x: BF16, w: E4M3, ws: row, out: F32},
		fp8Case{m: 5, n: 9000, k: 1144, x: BF16, w: E4M3, ws: row, out: E4M3, bias: true},
		fp8Case{m: 64, n: 9088, k: 72, x: BF16, w: E4M3, ws: sq, out: BF16, swiglu: true},
		fp8Case{m: 32, n: 17024, k: 144, x: F16, w: E4M3, ws: row, out: F16, swiglu: true})
}

// operand is a random matrix of codes on the device, and its values.
func (b *bench) operand(r *rand.Rand, f DType, s FP8Steps, rows, cols int, paired bool) (codes, steps Pointer, stride int64, values []float64) {
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * float32(1+i%5)
	}
	blocks, format := blocksOf(s, rows, cols), formatOf(f)
	at := make([]float32, blocks.Steps())
	host.FP8Amax(at, x, blocks)
	at = stepsOf(at, format, 0)
	plain, wide := make([]byte, rows*cols), make([]float64, rows*cols)
	host.FP8Quantize(plain, nil, x, at, blocks, format)
	host.FP8Dequantize(wide, plain, at, blocks, format)
	stride = int64(ceilDiv(cols, 16) * 16)
	padded := make([]byte, rows*int(stride))
	for i := range padded {
		padded[i] = 0x7f // a NaN in E4M3 and E5M2: what lies between rows is not read
	}
	for i := range rows {
		copy(padded[i*int(stride):], plain[i*cols:][:cols])
	}
	if paired {
		PairCodes(padded, int(stride), plain, rows, cols)
	}
	return b.bytes(padded), b.put(F32, float64s(at)), stride, wide
}

func TestDeviceFP8Gemm(t *testing.T) {
	for _, c := range fp8Cases() {
		each(t, 23, fmt.Sprintf("%+v", c), func(t *testing.T) { testFP8Gemm(t, c) })
	}
}

func testFP8Gemm(t *testing.T, c fp8Case) {
	b := newBench(t)
	if b.d.Target().Portable && !isCodes(c.x) && c.m <= 64 && c.out != c.x && c.out != F32 {
		t.Skip("codes out of a wide x are the streaming kernel's")
	}
	r := rand.New(rand.NewPCG(6, uint64(c.m*c.n)))
	rows := c.n
	if c.swiglu {
		rows *= 2
	}
	g := FP8Gemm{M: c.m, N: c.n, K: c.k, XType: c.x, WType: c.w, XSteps: c.xs, WSteps: c.ws, Out: c.out, Y: b.out(c.out, c.m*c.n), SwiGLU: c.swiglu, Exact: c.exact}
	var x, w []float64
	small := F32
	if isCodes(c.x) {
		g.X, g.XSteps.At, g.XStride, x = b.operand(r, c.x, c.xs, c.m, c.k, false)
	} else {
		small = c.x
		stride := ceilDiv(c.k, 8) * 8
		x = normal(r, c.x, c.m*c.k, 1)
		padded := make([]float64, c.m*stride)
		for i := range padded {
			padded[i] = math.NaN()
		}
		for i := range c.m {
			copy(padded[i*stride:], x[i*c.k:][:c.k])
		}
		g.X, g.XStride = b.put(c.x, padded), int64(stride)
	}
	g.W, g.WSteps.At, g.WStride, w = b.operand(r, c.w, c.ws, rows, c.k, !isCodes(c.x))
	bias, res := normal(r, small, c.n, 1), normal(r, min(c.out, F32), c.m*c.n, 1)
	if c.bias {
		g.Bias = b.put(small, bias)
	} else {
		bias = nil
	}
	if c.residual {
		g.Residual = b.put(c.out, res)
	} else {
		res = nil
	}
	step := float32(0.37)
	if c.out == E4M3 {
		g.OutStep, g.OutAmax = b.put(F32, []float64{float64(step)}), b.out(F32, 1)
	}
	if scratch := g.ScratchBytes(b.d.Target()); scratch > 0 {
		g.Scratch = b.alloc(int(scratch)).Pointer
	}
	b.run(g)
	want := productOracle(x, w, bias, res, c.m, c.n, c.k, c.swiglu)
	if c.out == E4M3 {
		got := b.raw(g.Y, c.m*c.n)
		wide, exact, amax, off := make([]float64, len(got)), make([]byte, len(got)), 0., 0
		host.FP8Decode(wide, got, host.E4M3)
		host.FP8TensorQuantize(exact, float32s(want), step, host.E4M3)
		for i, v := range want {
			amax = max(amax, math.Abs(v))
			if d := int(got[i]) - int(exact[i]); d != 0 {
				off++ // a sum near the middle between two codes
				if d != 1 && d != -1 {
					require.LessOrEqual(t, math.Abs(wide[i]*float64(step)-v), 0.04*math.Abs(v)+float64(step), "element %d", i)
				}
			}
		}
		require.LessOrEqual(t, off, 1+len(got)/100)
		require.InEpsilon(t, amax, b.get(F32, g.OutAmax, 1)[0], 1e-3)
		return
	}
	widened := !isCodes(c.x) && (c.m > streamColumns || !b.d.Target().Hopper()) // weights rounded to the type of x
	bound := 1.2                                                                // one rounding
	if c.exact {
		bound = 8
	} else if c.out == F32 {
		bound = 5000 // the tensor cores keep 14 bits of a sum of 128 k; measured at most 2705
		if widened {
			bound = 40000 // measured at most 28300 in bf16
		}
	} else if widened || c.swiglu {
		bound = 2 // the roundings of the weights; a gate makes more of its input's error
	}
	got := b.get(c.out, g.Y, c.m*c.n)
	near(t, c.out, bound, want, got)
	if c.residual && c.m*c.n > 0 {
		return
	}
	b.run(g)
	require.Equal(t, got, b.get(c.out, g.Y, c.m*c.n))
}

// A row has the same f32 bits at every width of the streaming kernels.
func TestDeviceFP8GemmRowAloneEqualsRowInBatch(t *testing.T) {
	if !newBench(t).d.Target().Hopper() {
		t.Skip("the streaming kernels are Hopper's")
	}
	row, vec, sq := FP8Steps{Rows: 1}, FP8Steps{Rows: 1, Cols: 128}, FP8Steps{Rows: 128, Cols: 128}
	for _, c := range []fp8Case{
		{n: 1800, x: E4M3, xs: row, ws: row}, {n: 1800, x: E4M3, xs: vec, ws: sq}, {n: 1800, x: E4M3, xs: row, ws: row, swiglu: true}, {n: 1800, x: BF16, ws: row}, {n: 1800, x: F16, ws: row, swiglu: true}, {n: 1800, x: BF16, ws: sq},
		{n: 13000, x: E4M3, xs: row, ws: row}, {n: 13000, x: E4M3, xs: row, ws: row, swiglu: true}, // rows of a block's own
		{n: 13000, x: BF16, ws: row}, {n: 13000, x: F16, ws: row, swiglu: true}, {n: 9088, x: BF16, ws: sq}, // halves of two blocks' rows
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			b := newBench(t)
			r := rand.New(rand.NewPCG(7, 8))
			const k = 1152
			rows := c.n
			if c.swiglu {
				rows *= 2
			}
			g := FP8Gemm{N: c.n, K: k, XType: c.x, WType: E4M3, XSteps: c.xs, WSteps: c.ws, Out: F32, SwiGLU: c.swiglu}
			if isCodes(c.x) {
				g.X, g.XSteps.At, g.XStride, _ = b.operand(r, c.x, c.xs, 64, k, false)
			} else {
				g.X = b.put(c.x, normal(r, c.x, 64*k, 1))
			}
			g.W, g.WSteps.At, g.WStride, _ = b.operand(r, E4M3, c.ws, rows, k, !isCodes(c.x))
			b.rowsAlone(c.n, func(m int, y Pointer) interface{ Launch(Queue) error } {
				g.M, g.Y = m, y
				return g
			})
		})
	}
}

func TestDeviceSpeedFP8(t *testing.T) {
	speed(t)
	b := newBench(t)
	const side = 8192
	for _, dt := range []DType{BF16, F32} {
		x := b.random(dt, 3*side*side, 1)
		codes, turned, at, amax, flags := b.out(E4M3, 3*side*side), b.out(E4M3, side*side), b.put(F32, make([]float64, side*side/128)), b.out(F32, side*side/128), b.flags(QuantizeFlags)
		b.ones(at, side*side/128)
		for _, c := range []struct {
			name string
			z    Quantize
		}{
			{"tensor static+amax", Quantize{Codes: codes, Amax: amax}}, {"tensor static", Quantize{Codes: codes}}, {"tensor amax only", Quantize{Amax: amax}}, {"tensor dynamic", Quantize{Codes: codes, Dynamic: true}},
			{"row dynamic", Quantize{Codes: codes, Dynamic: true, Steps: FP8Steps{Rows: 1}}}, {"1x128 dynamic", Quantize{Codes: codes, Dynamic: true, Steps: FP8Steps{Rows: 1, Cols: 128}}},
			{"128x128 dynamic", Quantize{Codes: codes, Dynamic: true, Steps: FP8Steps{Rows: 128, Cols: 128}}}, {"tensor static turned", Quantize{Turned: turned}},
			{"tensor static both+amax", Quantize{Codes: codes, Turned: turned, Amax: amax}},
		} {
			z := c.z
			z.Type, z.Format, z.Rows, z.Cols, z.Flags, z.Steps.At = dt, E4M3, side, side, flags, at
			us := clock(t, b.d, 6, func(q Queue, i int) error {
				y := z
				y.X = x.At(int64(i%3) * side * side * int64(dt.Size()))
				if !y.Codes.IsNil() {
					y.Codes = codes.At(int64(i%3) * side * side)
				}
				return y.Launch(q)
			})
			row(t, fmt.Sprintf("quantize %v", dt), c.name, us, 0, float64(dt.Size()+1)*side*side)
		}
	}
	row1, vec, sq := FP8Steps{Rows: 1}, FP8Steps{Rows: 1, Cols: 128}, FP8Steps{Rows: 128, Cols: 128}
	for _, c := range []struct {
		m, n, k int
		x       DType
		xs, ws  FP8Steps
		swiglu  bool
	}{
		{8192, 8192, 8192, E4M3, FP8Steps{}, FP8Steps{}, false}, {8192, 8192, 8192, E4M3, vec, sq, false}, {2048, 14336, 4096, E4M3, FP8Steps{}, FP8Steps{}, false}, {2048, 14336, 4096, E4M3, row1, row1, false},
		{2048, 14336, 4096, E4M3, vec, sq, false}, {2048, 4096, 14336, E4M3, FP8Steps{}, FP8Steps{}, false}, {2048, 14336, 4096, E4M3, row1, row1, true}, {256, 14336, 4096, E4M3, FP8Steps{}, FP8Steps{}, false}, {256, 14336, 4096, E4M3, row1, row1, false}, {512, 14336, 4096, E4M3, row1, row1, false},
		{64, 14336, 4096, E4M3, row1, row1, false}, {32, 14336, 4096, E4M3, row1, row1, false}, {16, 14336, 4096, E4M3, row1, row1, false}, {1, 14336, 4096, E4M3, row1, row1, false}, {16, 14336, 4096, E4M3, vec, sq, false}, {64, 14336, 4096, E4M3, row1, row1, true}, {1, 14336, 4096, E4M3, row1, row1, true},
		{64, 14336, 4096, BF16, FP8Steps{}, row1, false}, {32, 14336, 4096, BF16, FP8Steps{}, row1, false}, {16, 14336, 4096, BF16, FP8Steps{}, row1, false}, {1, 14336, 4096, BF16, FP8Steps{}, row1, false},
		{1, 14336, 4096, BF16, FP8Steps{}, sq, false}, {1, 14336, 4096, BF16, FP8Steps{}, row1, true}, {1, 4096, 4096, BF16, FP8Steps{}, row1, false}, {1, 6144, 4096, BF16, FP8Steps{}, row1, false}, {1, 4096, 14336, BF16, FP8Steps{}, row1, false},
		{1, 128256, 4096, BF16, FP8Steps{}, row1, false}, {2048, 14336, 4096, BF16, FP8Steps{}, row1, false},
	} {
		n := c.n
		if c.swiglu {
			n *= 2
		}
		sets := max(1, min(8, int(4e8)/(n*c.k)+1))
		w := b.codes(sets * n * c.k)
		g := FP8Gemm{M: c.m, N: c.n, K: c.k, XType: c.x, WType: E4M3, XSteps: c.xs, WSteps: c.ws, Out: BF16, Y: b.out(BF16, c.m*c.n), SwiGLU: c.swiglu}
		g.XSteps.At, g.WSteps.At = b.put(F32, make([]float64, c.m*max(1, c.k/128))), b.put(F32, make([]float64, n*max(1, c.k/128)))
		b.ones(g.XSteps.At, c.m)
		b.ones(g.WSteps.At, n)
		if isCodes(c.x) {
			g.X = b.codes(c.m * c.k)
		} else {
			g.X = b.random(c.x, c.m*c.k, 1)
		}
		if scratch := g.ScratchBytes(b.d.Target()); scratch > 0 {
			g.Scratch = b.alloc(int(scratch)).Pointer
		}
		us := clock(t, b.d, 10, func(q Queue, i int) error {
			g := g
			g.W = w.At(int64(i%sets) * int64(n) * int64(c.k))
			return g.Launch(q)
		})
		row(t, fmt.Sprintf("fp8 gemm %v", c.x), fmt.Sprintf("M%d N%d K%d %dx%d %dx%d swiglu %v", c.m, c.n, c.k, c.xs.Rows, c.xs.Cols, c.ws.Rows, c.ws.Cols, c.swiglu), us, 2*float64(c.m)*float64(n)*float64(c.k), float64(n*c.k+c.m*c.k*c.x.Size()+2*c.m*c.n))
	}
}

func (b *bench) ones(p Pointer, n int) {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	require.NoError(b.t, b.d.Upload(p, encode(F32, x)))
}

// codes fills a fresh buffer with copies of one block of codes of normal values.
func (b *bench) codes(n int) Pointer {
	p := b.alloc(n).Pointer
	block := min(n, 1<<20+16)
	r := rand.New(rand.NewPCG(uint64(n), 4))
	x, c := make([]float32, block), make([]byte, block)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	host.FP8TensorQuantize(c, x, 0.01, host.E4M3)
	require.NoError(b.t, b.d.Upload(p, c))
	for at := block; at < n; {
		m := min(at, n-at)
		require.NoError(b.t, b.d.Main().Copy(p.At(int64(at)), p, int64(m)))
		at += m
	}
	return p
}
