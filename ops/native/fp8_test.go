package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
)

// fp8Oracles are the formats of the oracle and the scalar casts of dtype.
var fp8Oracles = []struct {
	f      FP8
	format *optest.Format
	encode func(x float32) byte
	decode func(c byte) float32
}{
	{E4M3, optest.E4M3, func(x float32) byte { return byte(dtype.ToE4M3(x)) }, func(c byte) float32 { return dtype.E4M3(c).Float32() }},
	{E5M2, optest.E5M2, func(x float32) byte { return byte(dtype.ToE5M2(x)) }, func(c byte) float32 { return dtype.E5M2(c).Float32() }},
}

// TestF01_FP8CastsAreThoseOfDType walks float32 by its upper 20 bits, so that
// every tie is met, with low bits below, at and above it, through every kernel
// set; the codes must be those of dtype, NaN included.
func TestF01_FP8CastsAreThoseOfDType(t *testing.T) {
	low := []uint32{0, 1, 0x800, 0xFFF}
	x := make([]float32, 0, 1<<20)
	for hi := uint32(0); hi < 1<<20; hi++ {
		x = append(x, math.Float32frombits(hi<<12|low[hi%4]))
	}
	for _, v := range []float64{448, 464, 465, 1000, math.Inf(1), -1000, math.NaN(), 0x1p-9, 0x1p-10, 1.0625} {
		x = append(x, float32(v))
	}
	for _, o := range fp8Oracles {
		want := make([]byte, len(x))
		for i, v := range x {
			want[i] = o.encode(v)
		}
		kernelsUpTo(t, amxKernel, func(t *testing.T) {
			got := optest.Guard[byte](len(x))
			FP8Quantize(got.Data, nil, x, []float32{1}, FP8PerTensor(1, len(x)), o.f)
			optest.CheckGuards(t, "codes", got)
			require.Equal(t, want, got.Data)
			// Without a NaN in the way the assembly does it.
			var numbers []float32
			var codes []byte
			for i, v := range x {
				if v == v {
					numbers, codes = append(numbers, v), append(codes, want[i])
				}
			}
			for _, n := range []int{1, 15, 16, 17, 32, 100, len(numbers)} {
				got := optest.Guard[byte](n)
				FP8Quantize(got.Data, nil, numbers[len(numbers)-n:], []float32{1}, FP8PerTensor(1, n), o.f)
				optest.CheckGuards(t, "codes", got)
				require.Equal(t, codes[len(codes)-n:], got.Data)
			}
			all := make([]byte, 256)
			for c := range all {
				all[c] = byte(c)
			}
			if multipliesPairs[float32]() {
				requireWordsOfCodes(t, all, o.f)
			}
			for _, n := range []int{1, 17, 256} {
				values := optest.Guard[float32](n)
				FP8Decode(values.Data, all[256-n:], o.f)
				optest.CheckGuards(t, "values", values)
				for i, v := range values.Data {
					w := o.decode(all[256-n+i])
					c := all[256-n+i]
					require.True(t, v == w && math.Signbit(float64(v)) == math.Signbit(float64(w)) || v != v && w != w, "%s %#x: %v, want %v", o.f, c, v, w)
					require.Equal(t, math.Float32bits(fp8Values[o.f][c]), math.Float32bits(v), "%s %#x: one bit pattern in every kernel set", o.f, c)
				}
			}
			back := make([]byte, 256)
			values := make([]float32, 256)
			FP8Decode(values, all, o.f)
			FP8Quantize(back, nil, values, []float32{1}, FP8PerTensor(1, 256), o.f)
			for c := range all {
				switch {
				case o.f == E5M2 && c&0x7F == 0x7C: // infinity saturates
					require.Equal(t, byte(c-1), back[c])
				case o.f == E5M2 && c&0x7F == 0x7D: // a signalling NaN comes back quiet
					require.Equal(t, byte(c|2), back[c])
				default:
					require.Equal(t, byte(c), back[c])
				}
			}
		})
		require.Equal(t, float32(o.format.Max()), o.f.Max())
	}
}

// TestF01_FP8CastsOfEvery16BitNumber compares with exact arithmetic (the oracle
// measures distances in math/big) for all bf16 and f16 inputs.
func TestF01_FP8CastsOfEvery16BitNumber(t *testing.T) {
	for name, decode := range map[string]func(c uint16) float32{
		"bf16": func(c uint16) float32 { return dtype.BF16(c).Float32() },
		"f16":  func(c uint16) float32 { return dtype.F16(c).Float32() },
	} {
		x := make([]float32, 1<<16)
		for c := range x {
			x[c] = decode(uint16(c))
		}
		for _, o := range fp8Oracles {
			got := make([]byte, len(x))
			FP8TensorQuantize(got, x, 1, o.f)
			for i, v := range x {
				if want := o.format.Encode(float64(v)); v == v && want != uint16(got[i]) || v != v && !o.format.IsNaN(uint16(got[i])) {
					require.FailNow(t, "wrong code", "%s %v in %s: %#x, want %#x", name, v, o.f, got[i], want)
				}
			}
		}
	}
}

// fp8Grids are the ways to share steps, with the oracle's form of each.
func fp8Grids(rows, cols int) []FP8Blocks {
	return []FP8Blocks{FP8PerTensor(rows, cols), FP8PerRow(rows, cols), {rows, cols, 1, 128}, {rows, cols, 128, 128}, {rows, cols, max(rows, 1), 1}, {rows, cols, 3, 7}}
}

func oracleBlocks(b FP8Blocks) optest.Blocks {
	return optest.Blocks{Rows: b.Rows, Cols: b.Cols, BlockRows: b.BlockRows, BlockCols: b.BlockCols}
}

// TestFP8QuantizeMatchesOracle compares amax, codes in both layouts and values,
// exactly, on odd shapes with values that are not finite among them.
func TestFP8QuantizeMatchesOracle(t *testing.T) {
	for _, s := range [][2]int{{0, 5}, {5, 0}, {1, 1}, {1, 40000}, {40000, 1}, {3, 129}, {130, 257}, {300, 100}, {128, 128}} {
		x := optest.Normals(fmt.Sprint(s), s[0]*s[1], 3)
		if len(x) > 300 {
			x[7], x[100], x[len(x)-1] = math.NaN(), math.Inf(-1), math.NaN()
		}
		x32 := optest.Cast[float32](x)
		for _, b := range fp8Grids(s[0], s[1]) {
			for _, o := range fp8Oracles {
				want, wantNaN := oracleBlocks(b).Amax(x)
				eachKernel(t, func(t *testing.T) {
					amax := optest.Guard[float32](b.Steps())
					require.Equal(t, wantNaN, FP8Amax(amax.Data, x32, b))
					require.Equal(t, wantNaN, FP8Amax(amax.Data, x, b))
					optest.CheckGuards(t, "amax", amax)
					steps := make([]float32, len(want))
					steps64 := make([]float64, len(want))
					for i, a := range amax.Data {
						require.Equal(t, want[i], float64(a))
						steps[i] = 1
						if s, ok := FP8Step(a, o.f, 0); ok {
							steps[i] = s
						}
						steps64[i] = optest.QuantStep(want[i], 1, o.format, 0)
						require.Equal(t, steps64[i], float64(steps[i]))
					}
					codes := oracleBlocks(b).Quantize(x, steps64, o.format)
					got, turned := optest.Guard[byte](len(x)), optest.Guard[byte](len(x))
					FP8Quantize(got.Data, turned.Data, x32, steps, b, o.f)
					optest.CheckGuards(t, "codes", got, turned)
					if b.Steps() > 0 && wantNaN == 0 {
						require.Equal(t, codes, append([]byte{}, got.Data...))
					}
					require.Equal(t, optest.Transpose(got.Data, s[0], s[1]), append([]byte{}, turned.Data...))
					FP8Quantize(nil, turned.Data, x, steps, b, o.f)
					require.Equal(t, optest.Transpose(got.Data, s[0], s[1]), append([]byte{}, turned.Data...))
					if b == FP8PerTensor(s[0], s[1]) && len(x) > 0 {
						m, nan := FP8TensorAmax(x32)
						require.Equal(t, want[0], float64(m))
						require.Equal(t, wantNaN, nan)
						flat := optest.Guard[byte](len(x))
						FP8TensorQuantize(flat.Data, x32, steps[0], o.f)
						optest.CheckGuards(t, "flat codes", flat)
						require.Equal(t, got.Data, flat.Data)
					}
					values := optest.Guard[float64](len(x))
					FP8Dequantize(values.Data, got.Data, steps, b, o.f)
					optest.CheckGuards(t, "values", values)
					optest.RequireEqual(t, "values", values.Data, oracleBlocks(b).Dequantize(got.Data, steps64, o.format))
				})
			}
		}
	}
}

func TestF02_FP8StepOfOddAmax(t *testing.T) {
	step := float32(1)
	var steps []float32
	for _, amax := range []float64{0, 8, 1e-40, math.Inf(1), math.NaN(), 2} {
		if s, ok := FP8Step(float32(amax), E4M3, 0); ok {
			step = s
		}
		steps = append(steps, step)
	}
	require.Equal(t, []float32{1, 8.0 / 448, 0x1p-126, 0x1p-126, 0x1p-126, 2.0 / 448}, steps)
	four, _ := FP8Step(3, E5M2, 2)
	one, _ := FP8Step(3, E5M2, 0)
	require.Equal(t, 4*one, four, "margin is headroom")
	huge, ok := FP8Step(math.MaxFloat32, E4M3, 100)
	require.True(t, ok && huge == math.MaxFloat32)
}

// fp8Operand is a random matrix on the grid, for the body and for the oracle.
func fp8Operand(name string, b FP8Blocks, f FP8) (FP8Matrix, optest.Quantized) {
	x := optest.Normals(name, b.Rows*b.Cols, 1)
	o := fp8Oracles[f]
	amax := make([]float32, b.Steps())
	FP8Amax(amax, x, b)
	q := optest.Quantized{Blocks: oracleBlocks(b), Format: o.format}
	m := FP8Matrix{FP8Blocks: b, Format: f, Codes: make([]byte, len(x)), Steps: amax}
	for i, a := range amax {
		if s, ok := FP8Step(a, f, i%2); ok {
			amax[i] = s
		}
		q.Steps = append(q.Steps, float64(amax[i]))
	}
	FP8Quantize(m.Codes, nil, x, amax, b, f)
	q.Codes = m.Codes
	return m, q
}

// TestFP8MatMulMatchesOracle runs 200 random shapes, and those of F06, through
// the four layouts, all ways to share steps and mixed formats.
func TestFP8MatMulMatchesOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	worst := 0.0
	for i := range 200 {
		m, n, k := r.IntN(70), r.IntN(70), r.IntN(300)
		if i%20 == 0 {
			k = 0
		}
		transA, transB := i&1 != 0, i&2 != 0
		aRows, aCols, bRows, bCols := m, k, k, n
		if transA {
			aRows, aCols = k, m
		}
		if transB {
			bRows, bCols = n, k
		}
		a, qa := fp8Operand(fmt.Sprint("a", i), fp8Grids(aRows, aCols)[r.IntN(6)], FP8(r.IntN(2)))
		b, qb := fp8Operand(fmt.Sprint("b", i), fp8Grids(bRows, bCols)[r.IntN(6)], FP8(r.IntN(2)))
		var bias []float64
		var bias32 []float32
		if i%3 == 0 {
			bias = optest.Normals(fmt.Sprint("bias", i), n, 1)
			bias32 = optest.Cast[float32](bias)
		}
		want := optest.FP8MatMul(qa, qb, bias, m, n, k, transA, transB)
		name := fmt.Sprintf("%d: %dx%dx%d %+v %+v", i, m, n, k, a.FP8Blocks, b.FP8Blocks)
		var first []float32
		kernelsUpTo(t, amxKernel, func(t *testing.T) {
			c := eachWorkers(t, func() []float32 {
				c := optest.Guard[float32](m * n)
				FP8MatMul(c.Data, a, b, bias32, m, n, k, transA, transB)
				optest.CheckGuards(t, name, c)
				return c.Data
			})
			// A chain of 256 float32 additions and the sums of the cuts; measured at most 6.9.
			worst = max(worst, optest.RequireClose(t, name, c, want, optest.Float32, 12).RMS/float64(optest.Float32))
			if first == nil {
				first = c
			}
			if gemmKernel == amxKernel {
				return // another order of the sum
			}
			requireSameBits(t, first, c) // products are exact: it makes no difference whether they are fused
		})
		c := optest.Guard[float64](m * n)
		FP8MatMul(c.Data, a, b, bias, m, n, k, transA, transB)
		optest.CheckGuards(t, name, c)
		optest.RequireClose(t, name, c.Data, want, optest.Float64, 64)
	}
	t.Logf("worst error of all: %.2f roundoffs", worst)
}

// requireWordsOfCodes holds rows and columns of words, and panels of a transposed
// matrix, to the values of 256 codes.
func requireWordsOfCodes(t *testing.T, codes []byte, f FP8) {
	t.Helper()
	codes = slices.Repeat(codes, 20)
	values := make([]float32, len(codes))
	FP8Decode(values, codes, f)
	requireHalf := func(code int, half uint32) {
		want, got := values[code], math.Float32frombits(half<<16)
		require.Truef(t, math.Float32bits(want) == half<<16 || want != want && got != got, "code %#x: %v, want %v", codes[code], got, want)
	}
	for _, n := range []int{1, 2, 17, 31, 32, 33, 64, 95, 256} {
		words := optest.Guard[float32]((n + 1) / 2)
		from := len(codes) - n
		pairRowCodes(&words.Data[0], &codes[from], n, &fp8WordsOf[f])
		optest.CheckGuards(t, "row", words)
		for i := range n + n%2 {
			half := math.Float32bits(words.Data[i/2])
			if i%2 == 0 {
				half >>= 16
			}
			if i == n {
				require.Zero(t, half&0xFFFF)
				continue
			}
			requireHalf(from+i, half&0xFFFF)
		}
	}
	requirePanel := func(words []float32, k, cols, from, down, across int) {
		for i, word := range words {
			p, j, bits := i/32*2, i%32, math.Float32bits(word)
			for h, half := range []uint32{bits >> 16, bits & 0xFFFF} {
				if p+h >= k || j >= cols {
					require.Zero(t, half)
					continue
				}
				requireHalf(from+(p+h)*down+j*across, half)
			}
		}
	}
	for _, s := range []struct{ rows, cols, ld int }{{1, 1, 1}, {2, 5, 40}, {7, 32, 36}, {8, 31, 31}, {3, 17, 100}} {
		words := optest.Guard[float32]((s.rows + 1) / 2 * 32)
		from := len(codes) - (s.rows-1)*s.ld - s.cols
		pairRowsCodes(&words.Data[0], 128, &codes[from], s.ld, s.rows, s.cols, &fp8WordsOf[f])
		optest.CheckGuards(t, "rows", words)
		requirePanel(words.Data, s.rows, s.cols, from, s.ld, 1)
	}
	for _, s := range []struct{ k, cols, ld int }{{64, 32, 64}, {128, 32, 150}, {128, 31, 130}, {66, 32, 70}, {5, 3, 7}} {
		kc := (s.k+1)/2 + 3 // words of the panel, the last ones of nothing
		panel := optest.Guard[float32](kc * 32)
		from := len(codes) - (s.cols-1)*s.ld - s.k
		source := pairSource{codes: codes[from:], format: f, ld: s.ld, k: s.k}
		source.pack(panel.Data, true, 0, kc, 0, s.cols, 32)
		optest.CheckGuards(t, "panel", panel)
		requirePanel(panel.Data, s.k, s.cols, from, 1, s.ld)
	}
}

// TestF06_FP8MatMulOfAnyAlignment: forward and both gradients of the shapes of
// the case, on rows that the oracle can afford.
func TestF06_FP8MatMulOfAnyAlignment(t *testing.T) {
	for _, s := range []struct{ m, k, n int }{{1, 256, 512}, {7, 712, 896}, {50, 40, 33}, {5743, 768, 768}} {
		m := min(s.m, 61) // every row of a product is the same chain: a few of the 5743 stand for all
		x, qx := fp8Operand("x", FP8PerTensor(m, s.k), E4M3)
		w, qw := fp8Operand("w", FP8PerTensor(s.n, s.k), E4M3)
		g, qg := fp8Operand("g", FP8PerTensor(m, s.n), E5M2)
		y, dx, dw := make([]float32, m*s.n), make([]float32, m*s.k), make([]float32, s.n*s.k)
		FP8MatMul(y, x, w, nil, m, s.n, s.k, false, true)
		FP8MatMul(dx, g, w, nil, m, s.k, s.n, false, false)
		FP8MatMul(dw, g, x, nil, s.n, s.k, m, true, false)
		wantX, wantW, _ := optest.FP8LinearGrad(qg.Values(), qg, qx, qw, m, s.n, s.k)
		name := fmt.Sprint(s)
		// Measured at most 3.4 for k = 896.
		optest.RequireClose(t, name, y, optest.FP8Linear(qx, qw, nil, m, s.n, s.k), optest.Float32, 10)
		optest.RequireClose(t, name+" dx", dx, wantX, optest.Float32, 10)
		optest.RequireClose(t, name+" dw", dw, wantW, optest.Float32, 10)
		if m < s.m { // a row has the same bits alone and in the whole batch
			all := FP8Matrix{FP8Blocks: FP8PerTensor(s.m, s.k), Format: E4M3, Codes: make([]byte, s.m*s.k), Steps: x.Steps}
			copy(all.Codes[(s.m-m)*s.k:], x.Codes)
			whole := make([]float32, s.m*s.n)
			FP8MatMul(whole, all, w, nil, s.m, s.n, s.k, false, true)
			requireSameBits(t, y, whole[(s.m-m)*s.n:])
			// dw sums over all rows: the oracle checks some of its own rows.
			const some = 5
			g, _ := fp8Operand("g", FP8PerTensor(s.m, s.n), E5M2)
			x, qx := fp8Operand("x", FP8PerTensor(s.m, s.k), E4M3)
			FP8MatMul(dw, g, x, nil, s.n, s.k, s.m, true, false)
			part := optest.Quantized{Blocks: optest.PerTensor(s.m, some), Format: optest.E5M2, Steps: []float64{float64(g.Steps[0])}}
			for r := range s.m {
				part.Codes = append(part.Codes, g.Codes[r*s.n:][:some]...)
			}
			want := optest.FP8MatMul(part, qx, nil, some, s.k, s.m, true, false)
			d := optest.RequireClose(t, name+" dw of all rows", dw[:some*s.k], want, optest.Float32, 30) // 23 chains of 256 and their sum
			t.Logf("dw of %d rows: %.2f roundoffs", s.m, d.RMS/float64(optest.Float32))
		}
	}
}

// TestFP8MatMulDoesNotAllocate in a steady state.
func TestFP8MatMulDoesNotAllocate(t *testing.T) {
	const m, n, k = 64, 64, 256
	x := normals[float32](rand.New(rand.NewPCG(1, 1)), m*k)
	for _, b := range fp8Grids(m, k)[:4] {
		a, _ := fp8Operand("a", b, E4M3)
		w, _ := fp8Operand("w", FP8Blocks{n, k, 128, 128}, E4M3)
		c, turned := make([]float32, m*n), make([]byte, m*k)
		amax := make([]float32, b.Steps())
		run := func() {
			FP8Amax(amax, x, b)
			FP8Quantize(a.Codes, turned, x, a.Steps, b, E4M3)
			FP8MatMul(c, a, w, nil, m, n, k, false, true)
			step, _ := FP8TensorAmax(x)
			FP8TensorQuantize(a.Codes, x, step, E5M2)
			FP8TensorMatMul(c, a.Codes, E5M2, step, w.Codes, E4M3, 1, nil, m, n, k, false, true)
		}
		for range 5 {
			run()
		}
		require.Zero(t, testing.AllocsPerRun(20, run))
	}
}

func BenchmarkFP8Linear(b *testing.B) {
	for _, s := range []struct{ m, n, k int }{{1024, 256, 256}, {1024, 1024, 256}, {2048, 1536, 1536}} {
		r := rand.New(rand.NewPCG(1, 2))
		x, w, y := normals[float32](r, s.m*s.k), normals[float32](r, s.n*s.k), make([]float32, s.m*s.n)
		flops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
		report := func(b *testing.B, f func()) { b.ReportMetric(flops/fastest(b, f)/1e9, "GFLOP/s") }
		name := fmt.Sprintf("%dx%dx%d", s.m, s.n, s.k)
		b.Run(name+"/float32", func(b *testing.B) {
			report(b, func() { Linear(y, x, w, nil, s.m, s.n, s.k) })
		})
		b.Run(name+"/fp8", func(b *testing.B) {
			x8, w8 := make([]byte, len(x)), make([]byte, len(w))
			xs, ws := make([]float32, 1), []float32{0.01}
			FP8Quantize(w8, nil, w, ws, FP8PerTensor(s.n, s.k), E4M3)
			report(b, func() {
				bx := FP8PerTensor(s.m, s.k)
				FP8Amax(xs, x, bx)
				xs[0], _ = FP8Step(xs[0], E4M3, 0)
				FP8Quantize(x8, nil, x, xs, bx, E4M3)
				FP8MatMul(y, FP8Matrix{bx, E4M3, x8, xs}, FP8Matrix{FP8PerTensor(s.n, s.k), E4M3, w8, ws}, nil, s.m, s.n, s.k, false, true)
			})
		})
	}
}

// TestFP8WeightLinearIsLinearOnTheWidenedWeight, bit for bit, and so has its
// accuracy; a row has the same bits alone and in a batch.
func TestFP8WeightLinearIsLinearOnTheWidenedWeight(t *testing.T) {
	for _, s := range []struct{ m, n, k int }{{1, 1, 1}, {1, 100, 300}, {3, 33, 257}, {32, 70, 64}, {33, 70, 64}, {50, 129, 513}, {2, 40, 0}, {0, 3, 4},
		{1, 300, 64}, {2, 64, 1600}, {3, 150, 576}, {4, 40, 1088}, {5, 96, 640}, {30, 100, 64}, {40, 96, 192}} {
		for _, grid := range append(fp8Grids(s.n, s.k)[:4], FP8Blocks{s.n, s.k, 16, 128}) {
			for _, f := range []FP8{E4M3, E5M2} {
				w, _ := fp8Operand("w", grid, f)
				x := optest.Cast[float32](optest.Normals("x", s.m*s.k, 1))
				for _, bias := range [][]float32{nil, optest.Cast[float32](optest.Normals("b", s.n, 1))} {
					eachKernel(t, func(t *testing.T) {
						wide, want := make([]float32, s.n*s.k), make([]float32, s.m*s.n)
						FP8Dequantize(wide, w.Codes, w.Steps, w.FP8Blocks, w.Format)
						Linear(want, x, wide, bias, s.m, s.n, s.k)
						requireSameBits(t, want, eachWorkers(t, func() []float32 {
							got := optest.Guard[float32](s.m * s.n)
							FP8WeightLinear(got.Data, x, w, bias, s.m, s.n, s.k)
							optest.CheckGuards(t, "y", got)
							return got.Data
						}))
					})
				}
			}
		}
	}
}

// TestFP8StreamedOddNumbers holds few rows to the bits of the widened weight where
// codes are NaN, where steps are of every kind, and where activations are.
func TestFP8StreamedOddNumbers(t *testing.T) {
	const n, k = 256, 640
	r := rand.New(rand.NewPCG(7, 9))
	for _, grid := range []FP8Blocks{FP8PerTensor(n, k), FP8PerRow(n, k), {n, k, 128, 128}} {
		for _, odd := range []string{"codes", "steps", "x"} {
			for m := 1; m <= gemmFew+2; m++ {
				w := FP8Matrix{grid, E4M3, make([]byte, n*k), make([]float32, grid.Steps())}
				for i := range w.Codes {
					w.Codes[i] = byte(r.Uint32())
					if odd != "codes" && w.Codes[i]&0x7f == 0x7f || i/k%2 == 0 {
						w.Codes[i] &^= 0x38 // finite, and many subnormal ones
					}
				}
				for i := range w.Steps {
					w.Steps[i] = float32(r.NormFloat64()) * 1e-3
					if odd == "steps" && i%3 > 0 {
						w.Steps[i] = math.Float32frombits(r.Uint32())
					}
				}
				x, want, got := normals[float32](r, m*k), make([]float32, m*n), nans[float32](m*n)
				for i := range x {
					if odd == "x" {
						x[i] = math.Float32frombits(r.Uint32())
					}
				}
				wide := make([]float32, n*k)
				FP8Dequantize(wide, w.Codes, w.Steps, w.FP8Blocks, w.Format)
				Linear(want, x, wide, nil, m, n, k)
				FP8WeightLinear(got, x, w, nil, m, n, k)
				finite := 0
				for i, v := range want {
					if v != v { // one NaN is as good as another
						require.True(t, got[i] != got[i], "%d", i)
						want[i], got[i] = 0, 0
					} else {
						finite++
					}
				}
				require.True(t, finite > 0 || odd == "x", "%s %v", odd, grid)
				requireSameBits(t, want, got)
			}
		}
	}
}

// BenchmarkFP8WeightLinear is one decoded token.
func BenchmarkFP8WeightLinear(b *testing.B) {
	const n, k = 4096, 4096
	r := rand.New(rand.NewPCG(1, 2))
	x, w, y := normals[float32](r, k), normals[float32](r, n*k), make([]float32, n)
	b.Run("float32", func(b *testing.B) {
		b.SetBytes(4 * n * k)
		for b.Loop() {
			Linear(y, x, w, nil, 1, n, k)
		}
	})
	b.Run("fp8", func(b *testing.B) {
		q := FP8Matrix{FP8PerRow(n, k), E4M3, make([]byte, n*k), make([]float32, n)}
		for i := range q.Steps {
			q.Steps[i] = 0.01
		}
		FP8Quantize(q.Codes, nil, w, q.Steps, q.FP8Blocks, E4M3)
		b.SetBytes(n * k)
		for b.Loop() {
			FP8WeightLinear(y, x, q, nil, 1, n, k)
		}
	})
}

// Quotients a few units of roundoff from where codes change, and those that leave the
// floats, get the codes of the portable body, which divides. A program that is not
// kept tried every mantissa of a step at every tie: x hi + x lo is never on the other
// side of it than x / step, though five quotients differ by a unit.
func TestFP8QuotientsAtTies(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 500 {
		step := math.Float32frombits(r.Uint32()&(1<<23-1) | uint32(127-66+r.IntN(133))<<23)
		x := []float32{0, float32(math.Copysign(0, -1))}
		for tie := float32(1); tie < 32; tie += 2 {
			at := math.Float32bits(step * tie * float32(math.Ldexp(1, r.IntN(36)-20)))
			for d := range uint32(17) {
				x = append(x, math.Float32frombits(at+d-8|r.Uint32()<<31))
			}
		}
		for _, also := range [][]float32{nil, {math.MaxFloat32, -math.MaxFloat32}, {float32(math.Inf(-1)), float32(math.NaN())}} {
			copy(x[64:], also)
			for f, form := range fp8Formats {
				want, got := make([]byte, len(x)), make([]byte, len(x))
				encode(form, want, x, step)
				fp8Encode(got, x, step, FP8(f))
				require.Equal(t, want, got, "step %v", step)
			}
		}
	}
}

func TestFP8TensorQuantizeCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{0, 1, fp8Unit, 2*fp8Unit + 7} {
		want, codes, copies := make([]byte, n), make([]byte, n), [][]byte{make([]byte, n+1), make([]byte, n+1)}
		x := normals[float32](r, n)
		FP8TensorQuantize(want, x, 0.01, E5M2)
		FP8TensorQuantize(codes, x, 0.01, E5M2, copies...)
		require.Equal(t, want, codes)
		for _, c := range copies {
			require.Equal(t, want, c[:n])
			require.Zero(t, c[n], "nothing beyond")
		}
	}
}

// Linears of one x have the bits of each alone.
func TestFP8RowsAreTheProductAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	test := func(m, k int, widths ...int) {
		x := make([]byte, m*k)
		FP8TensorQuantize(x, normals[float32](r, m*k), 0.01, E4M3)
		rows := TakeFP8Rows[float32](x, E4M3, 0.01, m, k)
		for i, n := range widths {
			w, got, want := make([]byte, n*k), make([]float32, m*n), make([]float32, m*n)
			FP8TensorQuantize(w, normals[float32](r, n*k), 0.02, E4M3)
			var bias []float32
			if i%2 == 1 {
				bias = normals[float32](r, n)
			}
			rows.Linear(got, w, E4M3, 0.02, bias, n)
			FP8TensorMatMul(want, x, E4M3, 0.01, w, E4M3, 0.02, bias, m, n, k, false, true)
			requireSameBits(t, want, got)
		}
		rows.Give()
	}
	test(65, 129, 63, 63, 0, 200)
	test(300, 64, 128, 33)
	test(1, 8, 8, 8)
	test(0, 8, 8)
	test(5, 0, 3, 3)
}
