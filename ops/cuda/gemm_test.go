//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

type gemmCase struct {
	m, n, k                int
	bias, residual, swiglu bool
	f32                    bool
}

var gemmCases = []gemmCase{
	{m: 1, n: 8, k: 8}, {m: 1, n: 300, k: 200, bias: true}, {m: 3, n: 65, k: 1000, residual: true}, {m: 8, n: 512, k: 512, f32: true}, {m: 9, n: 1000, k: 136},
	{m: 17, n: 640, k: 256, swiglu: true}, {m: 33, n: 257, k: 1024, bias: true, residual: true}, {m: 64, n: 1536, k: 320}, {m: 64, n: 200, k: 64, swiglu: true},
	{m: 3, n: 26000, k: 72}, {m: 33, n: 13000, k: 64, swiglu: true}, {m: 64, n: 34000, k: 136}, {m: 33, n: 13003, k: 136, bias: true, residual: true}, {m: 1, n: 16000, k: 72, f32: true}, // rows of a block's own, several tiles
	{m: 65, n: 63, k: 72}, {m: 130, n: 300, k: 512, bias: true}, {m: 257, n: 520, k: 192, residual: true}, {m: 200, n: 333, k: 256, swiglu: true}, {m: 128, n: 256, k: 64, f32: true},
	{m: 300, n: 2000, k: 128}, {m: 520, n: 1100, k: 128, swiglu: true}, {m: 1100, n: 2056, k: 72, bias: true, residual: true}, {m: 1100, n: 1032, k: 64, swiglu: true},
	{m: 130, n: 328, k: 136, bias: true, residual: true}, {m: 200, n: 328, k: 136, swiglu: true}, {m: 1100, n: 2050, k: 72, bias: true, residual: true},
}

func TestDeviceGemm(t *testing.T) {
	for _, dt := range allTypes {
		for _, c := range gemmCases {
			each(t, 17, fmt.Sprintf("%v/%+v", dt, c), func(t *testing.T) { testGemm(t, dt, c) })
		}
	}
}

// productOracle is x[M,K] w[N,K]^T in float64, or SwiGLU of it with w [2N,K], plus
// bias[N] and residual[M,N] where they are not nil.
func productOracle(x, w, bias, residual []float64, m, n, k int, swiglu bool) []float64 {
	want := make([]float64, m*n)
	dot := func(i, j int) (s float64) {
		for l := range k {
			s += x[i*k+l] * w[j*k+l]
		}
		return s
	}
	for i := range m {
		for j := range n {
			s := dot(i, j)
			if swiglu {
				s = s / (1 + math.Exp(-s)) * dot(i, n+j)
			}
			if bias != nil {
				s += bias[j]
			}
			if residual != nil {
				s += residual[i*n+j]
			}
			want[i*n+j] = s
		}
	}
	return want
}

func testGemm(t *testing.T, dt DType, c gemmCase) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(6, uint64(c.m*c.n)))
	rows := c.n
	if c.swiglu {
		rows *= 2
	}
	x, w := normal(r, dt, c.m*c.k, 1), normal(r, dt, rows*c.k, 1/math.Sqrt(float64(c.k)))
	bias, res := normal(r, dt, c.n, 1), normal(r, dt, c.m*c.n, 1)
	out := dt
	if c.f32 {
		out = F32
	}
	g := Gemm{Type: dt, M: c.m, N: c.n, K: c.k, Y: b.out(out, c.m*c.n), X: b.put(dt, x), W: b.put(dt, w), SwiGLU: c.swiglu, F32Out: c.f32}
	if c.bias {
		g.Bias = b.put(dt, bias)
	} else {
		bias = nil
	}
	if c.residual {
		g.Residual = b.put(dt, res)
	} else {
		res = nil
	}
	b.run(g)
	want := productOracle(x, w, bias, res, c.m, c.n, c.k, c.swiglu)
	bound := 1. // one rounding, measured 0.45
	if out == F32 {
		bound = 40 // f32 sums over k; the tensor cores truncate
	}
	got := b.get(out, g.Y, c.m*c.n)
	near(t, out, bound, want, got)
	b.run(g) // the result has the same bits
	require.Equal(t, got, b.get(out, g.Y, c.m*c.n))
}

// Products of which a block has several tiles. Rows of x and of w that repeat keep the oracle small.
func TestDeviceGemmOfSeveralTilesABlock(t *testing.T) {
	const rows, columns = 97, 101
	for i, c := range []gemmCase{
		{m: 513, n: 6000, k: 200, residual: true}, {m: 1000, n: 8440, k: 1032, bias: true, residual: true}, {m: 1000, n: 4224, k: 1032, swiglu: true}, {m: 1000, n: 8448, k: 264, bias: true},
		{m: 1024, n: 14336, k: 328, bias: true, residual: true},                             // of 224 columns
		{m: 1000, n: 7912, k: 328, bias: true, residual: true}, {m: 1000, n: 7912, k: 1032}, // of 240
	} {
		if testing.Short() && i > 0 {
			break
		}
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			b := newBench(t)
			r := rand.New(rand.NewPCG(9, uint64(c.n)))
			halves := 1
			if c.swiglu {
				halves = 2
			}
			x, w := normal(r, BF16, rows*c.k, 1), normal(r, BF16, halves*columns*c.k, 1/math.Sqrt(float64(c.k)))
			few := productOracle(x, w, nil, nil, rows, columns, c.k, c.swiglu)
			var xs, ws []float64
			for i := range c.m {
				xs = append(xs, x[i%rows*c.k:][:c.k]...)
			}
			for h := range halves {
				for j := range c.n {
					ws = append(ws, w[(h*columns+j%columns)*c.k:][:c.k]...)
				}
			}
			bias, res, want := normal(r, BF16, c.n, 1), normal(r, BF16, c.m*c.n, 1), make([]float64, c.m*c.n)
			g := Gemm{Type: BF16, M: c.m, N: c.n, K: c.k, Y: b.out(BF16, c.m*c.n), X: b.put(BF16, xs), W: b.put(BF16, ws), SwiGLU: c.swiglu}
			for i := range want {
				want[i] = few[i/c.n%rows*columns+i%c.n%columns]
				if c.bias {
					want[i] += bias[i%c.n]
				}
				if c.residual {
					want[i] += res[i]
				}
			}
			if c.bias {
				g.Bias = b.put(BF16, bias)
			}
			if c.residual {
				g.Residual = b.put(BF16, res)
			}
			b.run(g)
			near(t, BF16, 1, want, b.get(BF16, g.Y, c.m*c.n))
		})
	}
}

// A token's row must not depend on how many rows share the launch, within the streaming kernel.
func TestDeviceGemmRowAloneEqualsRowInBatch(t *testing.T) {
	b := newBench(t)
	if !b.d.Target().Hopper() {
		t.Skip("the streaming kernel is Hopper's")
	}
	r := rand.New(rand.NewPCG(7, 7))
	const k = 1088
	for _, n := range []int{1800, 13000} { // by two blocks and by one
		x, w := b.put(BF16, normal(r, BF16, 64*k, 1)), b.put(BF16, normal(r, BF16, n*k, 1))
		b.rowsAlone(n, func(m int, y Pointer) interface{ Launch(Queue) error } {
			return Gemm{Type: BF16, M: m, N: n, K: k, Y: y, F32Out: true, X: x, W: w}
		})
	}
}

// rowsAlone wants the first rows of f's y[m,n] in f32, where 16 bits would hide the order of a sum, to have the same bits for every m.
func (b *bench) rowsAlone(n int, f func(m int, y Pointer) interface{ Launch(Queue) error }) {
	var want []float64
	for _, m := range []int{64, 33, 32, 16, 8, 5, 1} {
		y := b.out(F32, m*n)
		b.run(f(m, y))
		got := b.get(F32, y, m*n)
		if want == nil {
			want = got
		}
		require.Equal(b.t, want[:m*n], got, "M %d", m)
	}
}

// Launches that follow each other overlap, and blocks of one pass sums among them while those of the next load their weights.
func TestDeviceGemmChain(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(8, 8))
	const k = 512
	for _, c := range []gemmCase{{m: 1, n: 512}, {m: 3, n: 26000}, {m: 64, n: 34000}, {m: 16, n: 13000, swiglu: true}}[:shorter(4, 2)] {
		x, w := b.put(BF16, normal(r, BF16, c.m*k, 1)), b.random(BF16, 34000*k, 0.05)
		ys := make([]Pointer, shorter(8, 2))
		for i := range ys {
			ys[i] = b.out(BF16, c.m*c.n)
		}
		g := Gemm{Type: BF16, M: c.m, N: c.n, K: k, X: x, W: w, SwiGLU: c.swiglu, Y: ys[0]}
		b.run(g)
		want := b.get(BF16, ys[0], c.m*c.n)
		graph, err := b.d.Main().Capture(func(q Queue) error {
			for _, y := range ys {
				g.Y = y
				if err := g.Launch(q); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, graph.Replay(b.d.Main()))
		require.NoError(t, b.d.Main().Wait())
		require.NoError(t, graph.Close())
		for i, y := range ys {
			require.Equal(t, want, b.get(BF16, y, c.m*c.n), "launch %d of M %d N %d", i, c.m, c.n)
		}
	}
}

func TestDeviceSpeedGemm(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, c := range []struct{ m, n, k int }{{8192, 8192, 8192}, {2048, 14336, 4096}, {2048, 4096, 14336}, {2048, 6144, 4096}, {256, 14336, 4096}, {64, 14336, 4096}, {32, 14336, 4096}, {16, 14336, 4096}, {1, 14336, 4096}, {16, 4096, 4096}, {1, 4096, 4096}, {1, 4096, 14336}, {1, 6144, 4096}, {1, 128256, 4096}} {
		sets := max(1, min(8, int(4e8)/(2*c.n*c.k)+1))
		x, w, y := b.random(BF16, c.m*c.k, 1), b.random(BF16, sets*c.n*c.k, 0.02), b.out(BF16, c.m*c.n)
		g := Gemm{Type: BF16, M: c.m, N: c.n, K: c.k, X: x, Y: y}
		us := clock(t, b.d, 10, func(q Queue, i int) error {
			g.W = w.At(int64(i%sets) * int64(c.n) * int64(c.k) * 2)
			return g.Launch(q)
		})
		row(t, "bf16 gemm", fmt.Sprintf("M%d N%d K%d", c.m, c.n, c.k), us, 2*float64(c.m)*float64(c.n)*float64(c.k), 2*float64(c.n*c.k+c.m*c.k+c.m*c.n))
	}
	for _, c := range []struct{ m, n, k int }{{2048, 14336, 4096}, {1, 14336, 4096}, {16, 14336, 4096}, {64, 14336, 4096}} {
		x, w, y := b.random(BF16, c.m*c.k, 1), b.random(BF16, 4*c.n*c.k, 0.02), b.out(BF16, c.m*c.n)
		g := Gemm{Type: BF16, M: c.m, N: c.n, K: c.k, X: x, Y: y, SwiGLU: true}
		us := clock(t, b.d, 10, func(q Queue, i int) error {
			g.W = w.At(int64(i%2) * int64(c.n) * int64(c.k) * 4)
			return g.Launch(q)
		})
		row(t, "bf16 gemm swiglu", fmt.Sprintf("M%d N2x%d K%d", c.m, c.n, c.k), us, 4*float64(c.m)*float64(c.n)*float64(c.k), 2*float64(2*c.n*c.k+c.m*c.k+c.m*c.n))
	}
}
