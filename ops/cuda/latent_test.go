//go:build gpu

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeviceMoves(t *testing.T) {
	for _, dt := range allTypes {
		for _, n := range [][]int{{1, 1}, {5, 2, 9}, {512, 64}, {16, 8}, {3, 8, 4, 1}} {
			for _, rows := range []int{0, 1, 67} {
				t.Run(fmt.Sprintf("%v/%v/rows%d", dt, n, rows), func(t *testing.T) {
					b := newBench(t)
					r := rand.New(rand.NewPCG(21, uint64(rows)))
					width := 0
					for _, w := range n {
						width += w
					}
					x := normal(r, dt, rows*width, 1)
					from, back := b.put(dt, x), b.out(dt, rows*width)
					split, join := Moves{Type: dt, Rows: rows}, Moves{Type: dt, Rows: rows}
					at := 0
					for _, w := range n {
						part := b.out(dt, rows*w)
						split.Parts = append(split.Parts, MovePart{To: part, ToStride: int64(w), From: from.At(int64(at * dt.Size())), FromStride: int64(width), N: w})
						join.Parts = append(join.Parts, MovePart{To: back.At(int64(at * dt.Size())), ToStride: int64(width), From: part, FromStride: int64(w), N: w})
						at += w
					}
					b.run(split)
					b.run(join)
					require.Equal(t, x, b.get(dt, back, rows*width))
					for i, p := range split.Parts {
						b.get(dt, p.To, rows*n[i]) // the guard behind it
					}
				})
			}
		}
	}
}

func TestDeviceLatentProducts(t *testing.T) {
	for _, dt := range allTypes {
		for _, c := range []LatentProduct{
			{T: 1, H: 1, N: 1, P: 0, V: 1, R: 1}, {T: 3, H: 4, N: 12, P: 8, V: 14, R: 24}, {T: 1, H: 16, N: 128, P: 64, V: 128, R: 512}, {T: 17, H: 4, N: 128, P: 64, V: 128, R: 512},
			{T: 130, H: 2, N: 72, P: 8, V: 40, R: 264},
		} {
			for _, c.Value = range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/value=%v/T%d H%d N%d P%d V%d R%d", dt, c.Value, c.T, c.H, c.N, c.P, c.V, c.R), func(t *testing.T) { testLatentProduct(t, dt, c) })
			}
		}
	}
}

func testLatentProduct(t *testing.T, dt DType, c LatentProduct) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(22, uint64(c.T*c.H)))
	in, out := c.N+c.P, c.R+c.P
	if c.Value {
		in, out = c.R, c.V
	}
	x, w := normal(r, dt, c.T*c.H*in, 1), normal(r, dt, c.H*(c.N+c.V)*c.R, 1)
	c.Type, c.X, c.W, c.Y = dt, b.put(dt, x), b.put(dt, w), b.out(dt, c.T*c.H*out)
	b.run(c)
	want := make([]float64, c.T*c.H*out)
	for th := range c.T * c.H {
		h := th % c.H
		for j := range out {
			y := &want[th*out+j]
			switch {
			case c.Value:
				for i := range c.R {
					*y += w[(h*(c.N+c.V)+c.N+j)*c.R+i] * x[th*in+i]
				}
			case j < c.R:
				for i := range c.N {
					*y += w[(h*(c.N+c.V)+i)*c.R+j] * x[th*in+i]
				}
			default:
				*y = x[th*in+c.N+j-c.R]
			}
		}
	}
	bound := 1. // one rounding
	if dt == F32 {
		bound = 20 // sums over R
	}
	near(t, dt, bound, want, b.get(dt, c.Y, len(want)))
}

func TestDeviceSpeedLatent(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, h := range []int{32, 128} {
		w := b.random(BF16, 8*h*256*512, 0.03)
		for _, T := range []int{1, 16, 64, 2048} {
			x, y := b.random(BF16, T*h*576, 1), b.out(BF16, T*h*576)
			for _, value := range []bool{false, true} {
				l := LatentProduct{Type: BF16, Value: value, T: T, H: h, N: 128, P: 64, V: 128, R: 512, X: x, Y: y}
				us := clock(t, b.d, 16, func(q Queue, i int) error {
					l.W = w.At(int64(i%8) * int64(h) * 256 * 512 * 2)
					return l.Launch(q)
				})
				row(t, fmt.Sprintf("latent product value=%v", value), fmt.Sprintf("H%d T%d", h, T), us, 2*float64(T*h)*128*512, float64(h)*128*512*2+float64(T*h)*2*(512+192))
			}
		}
	}
}
