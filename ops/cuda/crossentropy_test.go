//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeviceCrossEntropy(t *testing.T) {
	for _, dt := range allTypes {
		for _, v := range []int{1, 63, 1000, 50257} {
			for _, zloss := range []float64{0, 0.01} {
				each(t, 5, fmt.Sprintf("%v/%d/%g", dt, v, zloss), func(t *testing.T) {
					b := newBench(t)
					r := rand.New(rand.NewPCG(14, uint64(v)))
					const rows = 5
					x := normal(r, dt, rows*v, 4)
					labels := []int{0, v - 1, -100, v / 2, 0}
					c := CrossEntropy{Type: dt, T: rows, V: v, Loss: b.out(F32, rows), LSE: b.out(F32, rows), Mean: b.out(F32, 1), Count: b.out(F32, 1), X: b.put(dt, x), Labels: b.ints(labels...), Ignore: -100, ZLoss: float32(zloss)}
					b.run(c)
					want, lse, sum := make([]float64, rows), make([]float64, rows), 0.
					for i, label := range labels {
						top, exps := math.Inf(-1), 0.
						for _, u := range x[i*v : (i+1)*v] {
							top = math.Max(top, u)
						}
						for _, u := range x[i*v : (i+1)*v] {
							exps += math.Exp(u - top)
						}
						if lse[i] = top + math.Log(exps); label != -100 {
							want[i] = lse[i] - x[i*v+label] + float64(float32(zloss))*lse[i]*lse[i]
							sum += want[i]
						}
					}
					near(t, F32, 2, want, b.get(F32, c.Loss, rows)) // measured 0.6
					near(t, F32, 2, lse, b.get(F32, c.LSE, rows))
					near(t, F32, 2, []float64{sum / 4}, b.get(F32, c.Mean, 1))
					require.Equal(t, []float64{4}, b.get(F32, c.Count, 1))
				})
			}
		}
	}
	b := newBench(t)
	inf := math.Inf(1)
	c := CrossEntropy{Type: F32, T: 4, V: 3, Loss: b.out(F32, 4), LSE: b.out(F32, 4), Mean: b.out(F32, 1), X: b.put(F32, []float64{1, 2, 3, -inf, -inf, -inf, 1, -inf, 2, 1, math.NaN(), 2}), Labels: b.ints(3, 9, 1, 9), Ignore: 9}
	b.run(c)
	loss, lse := b.get(F32, c.Loss, 4), b.get(F32, c.LSE, 4)
	require.True(t, math.IsNaN(loss[0]), "a label behind the vocabulary")
	require.Equal(t, []float64{0, inf, 0}, loss[1:])
	require.Equal(t, -inf, lse[1])
	require.True(t, math.IsNaN(lse[3]))
	c.Labels, c.Count = b.ints(9, 9, 9, 9), b.out(F32, 1)
	b.run(c)
	require.Equal(t, []float64{0}, b.get(F32, c.Mean, 1), "no row counts")
	require.Equal(t, []float64{0}, b.get(F32, c.Count, 1))
}

func TestDeviceAffineAndSoftcap(t *testing.T) {
	for _, dt := range allTypes {
		for _, n := range []int{1, 7, 8, 63, 4096, 10001} {
			b := newBench(t)
			x := normal(rand.New(rand.NewPCG(15, uint64(n))), dt, n+8, 1)
			for _, shift := range []int{0, 1} { // aligned to 16 bytes and not
				p := b.put(dt, x).At(int64(shift * dt.Size()))
				a := Affine{Type: dt, N: int64(n), X: p, Y: b.out(dt, n), Mul: -1.5, Add: 0.25}
				b.run(a)
				want := make([]float64, n)
				for i := range want {
					want[i] = -1.5*x[i+shift] + 0.25
				}
				near(t, dt, 1, want, b.get(dt, a.Y, n))
				s := Softcap{Type: dt, N: int64(n), X: p, Y: b.out(dt, n), Cap: 0.75}
				b.run(s)
				capped := make([]float64, n)
				for i := range capped {
					capped[i] = 0.75 * math.Tanh(x[i+shift]/0.75)
				}
				near(t, dt, 2, capped, b.get(dt, s.Y, n))
				a.Y = a.X
				b.run(a)
				near(t, dt, 1, want, decode(dt, b.raw(p, n*dt.Size()+(8-shift)*dt.Size()))[:n])
			}
		}
	}
}
