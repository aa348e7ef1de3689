//go:build gpu

package cuda

// Products that make E4M3 codes of their x on the way.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
)

// A product that makes codes of x on its way has the bits of the quantisation by rows and the product of its codes.
func TestDeviceFP8CodingHasTheBitsOfQuantize(t *testing.T) {
	if !newBench(t).d.Target().Hopper() {
		t.Skip("the kernels are Hopper's")
	}
	row := FP8Steps{Rows: 1}
	for _, c := range []fp8Case{
		{m: 1, n: 300, k: 200}, {m: 1, n: 4096, k: 14336, residual: true}, {m: 1, n: 512, k: 16384}, {m: 2, n: 264, k: 8192, bias: true}, {m: 3, n: 1000, k: 1040, bias: true, residual: true, out: F32}, {m: 4, n: 512, k: 4096},
		{m: 5, n: 256, k: 2048, swiglu: true}, {m: 7, n: 896, k: 712, out: E4M3}, {m: 8, n: 4096, k: 2048, residual: true}, {m: 8, n: 40, k: 8}, {m: 3, n: 26000, k: 272}, {m: 2, n: 13000, k: 264, swiglu: true}, {m: 1, n: 4096, k: 5120}, {m: 1, n: 3584, k: 6144}, {m: 1, n: 2048, k: 5120, swiglu: true}, // the last fill shared memory
	} {
		for _, dt := range []DType{BF16, F16} {
			c := c
			if c.out == BF16 {
				c.out = dt
			}
			for _, ws := range []FP8Steps{row, {}} {
				each(t, 3, fmt.Sprintf("%v/%+v/%d", dt, c, ws.Rows), func(t *testing.T) {
					b := newBench(t)
					r := rand.New(rand.NewPCG(8, uint64(c.m*c.n)))
					x := normal(r, dt, c.m*c.k, 3)
					if c.m > 2 {
						x[c.k+3], x[2*c.k+5], x[2*c.k+6] = math.NaN(), math.Inf(1), math.Copysign(0, -1)
						clear(x[:c.k])
					}
					rows := c.n
					if c.swiglu {
						rows *= 2
					}
					g := FP8Gemm{M: c.m, N: c.n, K: c.k, X: b.put(dt, x), XType: dt, WType: E4M3, WSteps: ws, Out: c.out, SwiGLU: c.swiglu, Coding: true}
					g.W, g.WSteps.At, g.WStride, _ = b.operand(r, E4M3, ws, rows, c.k, false)
					if c.bias {
						g.Bias = b.put(F32, normal(r, F32, c.n, 1))
					}
					if c.residual {
						g.Residual = b.put(c.out, normal(r, c.out, c.m*c.n, 1))
					}
					if c.out == E4M3 {
						g.OutStep = b.put(F32, []float64{0.37})
					}
					product := func(g FP8Gemm) []byte {
						g.Y = b.out(c.out, c.m*c.n)
						b.run(g)
						return b.raw(g.Y, c.m*c.n*c.out.Size())
					}
					stride := up16(c.k)
					codes, made := b.out(E4M3, c.m*int(stride)), FP8Steps{At: b.out(F32, c.m), Rows: 1}
					h := g // of codes
					h.X, h.XType, h.XStride, h.XSteps, h.Coding = codes, E4M3, stride, made, false
					b.run(Quantize{Type: dt, Format: E4M3, Rows: c.m, Cols: c.k, X: g.X, Codes: codes, CodesStride: stride, Steps: made, Dynamic: true})
					want := product(h)
					require.Equal(t, want, product(g))
					require.Equal(t, want, product(g), "again")
				})
			}
		}
	}
}

// The kernels have the static shared memory that TestCodedRowsFitBesideTheRing counts with.
func TestDeviceCodingStatic(t *testing.T) {
	d := device(t)
	if !d.Target().Hopper() {
		t.Skip("the kernels are Hopper's")
	}
	for _, dt := range []DType{BF16, F16} {
		for _, form := range []string{"", "_swiglu", "_alone", "_alone_swiglu"} {
			var bytes int
			require.NoError(t, d.do(func() error {
				k, err := d.kernel(fmt.Sprintf("fp8_stream_coding_%v_16%s", dt, form), 0)
				if err == nil {
					bytes, err = k.Attribute(cu.SharedSizeBytes)
				}
				return err
			}))
			require.LessOrEqual(t, bytes, codingStatic, "%v%s", dt, form)
		}
	}
}

func TestDeviceSpeedFP8Coding(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, s := range [][3]int{{1, 4096, 14336}, {1, 4096, 4096}, {1, 6144, 4096}, {4, 4096, 4096}, {1, 2048, 8192}} {
		m, n, k := s[0], s[1], s[2]
		sets := max(2, int(2e8)/(n*k))
		w, x, y, codes := b.codes(sets*n*k), b.random(BF16, m*k, 1), b.random(BF16, m*n, 1), b.out(E4M3, m*k)
		g := FP8Gemm{M: m, N: n, K: k, WType: E4M3, WSteps: FP8Steps{At: b.put(F32, make([]float64, n)), Rows: 1}, Out: BF16, Y: y, Residual: y}
		at := FP8Steps{At: b.out(F32, m), Rows: 1}
		norm := RMSNorm{Type: BF16, Rows: m, D: k, Eps: 1e-5, X: x, W: b.random(BF16, k, 1), Codes: codes, CodesStride: int64(k), Made: at.At}
		for _, kind := range []string{"codes alone", "quantised", "coded on the way", "normed"} {
			us := clock(t, b.d, 20, func(q Queue, i int) error {
				g := g
				g.W, g.X, g.XType = w.At(int64(i%sets)*int64(n*k)), x, BF16
				switch kind {
				case "coded on the way":
					g.Coding = true
					return g.Launch(q)
				case "normed":
					if err := norm.Launch(q); err != nil {
						return err
					}
				case "quantised":
					if err := (Quantize{Type: BF16, Format: E4M3, Rows: m, Cols: k, X: x, Codes: codes, Steps: at, Dynamic: true}).Launch(q); err != nil {
						return err
					}
				}
				g.X, g.XType, g.XSteps = codes, E4M3, at
				return g.Launch(q)
			})
			row(t, "fp8 product, x "+kind, fmt.Sprintf("M%d N%d K%d", m, n, k), us, 0, float64(n*k))
		}
	}
}
