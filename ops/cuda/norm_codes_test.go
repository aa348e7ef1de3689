//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A norm that leaves codes gives what the norm and then the quantisation give: the same bits in 16-bit types, in f32 but for
// codes that the last bits of a row's sum decide.
func TestDeviceNormCodes(t *testing.T) {
	for _, dt := range allTypes {
		for _, s := range [][2]int{{1, 8}, {3, 136}, {7, 576}, {600, 1024}, {513, 4096}, {4, 4096}, {5, 8192}, {1200, 8192}, {2, 16384}, {513, 16384}} {
			for _, given := range []bool{false, true} {
				each(t, 3, fmt.Sprintf("%v/%v/%v", dt, s, given), func(t *testing.T) {
					b := newBench(t)
					rows, d := s[0], s[1]
					r := rand.New(rand.NewPCG(uint64(rows), uint64(d)))
					x := normal(r, dt, rows*d, 3)
					if rows > 2 {
						x[d+3], x[2*d+5], x[2*d+6] = math.NaN(), math.Inf(1), math.Copysign(0, -1)
					}
					n := RMSNorm{Type: dt, Rows: rows, D: d, Eps: 1e-5, Unit: 1, X: b.put(dt, x), W: b.put(dt, normal(r, dt, d, 1)), Y: b.out(dt, rows*d)}
					b.run(n)
					stride := int(up16(d))
					z := Quantize{Type: dt, Format: E4M3, Rows: rows, Cols: d, X: n.Y, Codes: b.out(E4M3, rows*stride), CodesStride: int64(stride), Steps: FP8Steps{At: b.out(F32, rows), Rows: 1}, Dynamic: true}
					steps := rows
					if given {
						z.Steps, z.Dynamic, steps = FP8Steps{At: b.put(F32, []float64{0.0123})}, false, 1
						n.Given = z.Steps.At
					} else {
						n.Made = b.out(F32, rows)
					}
					b.run(z)
					n.Y, n.Codes, n.CodesStride = Pointer{}, b.out(E4M3, rows*stride), int64(stride)
					b.run(n)
					made := n.Made
					if given {
						made = n.Given
					}
					want, got := b.get(F32, z.Steps.At, steps), b.get(F32, made, steps)
					codes, mine := b.raw(z.Codes, rows*stride), b.raw(n.Codes, rows*stride)
					off := 0
					for i := range rows {
						if dt == F32 {
							require.InEpsilon(t, want[i%steps], got[i%steps], 1e-6)
						} else {
							require.Equal(t, want[i%steps], got[i%steps], "step %d", i)
						}
						for j := range d {
							if a, c := codes[i*stride+j], mine[i*stride+j]; a != c {
								off++
								if dt != F32 || a != c+1 && a != c-1 {
									t.Fatalf("row %d element %d: code %#x, want %#x", i, j, c, a)
								}
							}
						}
					}
					require.LessOrEqual(t, off, 1+rows*d/10000)
				})
			}
		}
	}
}

func TestDeviceSpeedNormCodes(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, rows := range []int{1, 16, 2048, 8192} {
		const d = 4096
		sets := max(1, min(8, 64<<20/(rows*d)))
		x, w, y, codes, steps := b.random(BF16, sets*rows*d, 1), b.random(BF16, d, 1), b.out(BF16, rows*d), b.out(E4M3, sets*rows*d), b.out(F32, rows)
		for _, fused := range []bool{false, true} {
			us := clock(t, b.d, 10, func(q Queue, i int) error {
				n := RMSNorm{Type: BF16, Rows: rows, D: d, Eps: 1e-5, X: x.At(int64(i%sets) * int64(rows) * d * 2), W: w, Y: y}
				to := codes.At(int64(i%sets) * int64(rows) * d)
				if fused {
					n.Y, n.Codes, n.CodesStride, n.Made = Pointer{}, to, d, steps
					return n.Launch(q)
				}
				if err := n.Launch(q); err != nil {
					return err
				}
				return Quantize{Type: BF16, Format: E4M3, Rows: rows, Cols: d, X: y, Codes: to, Steps: FP8Steps{At: steps, Rows: 1}, Dynamic: true}.Launch(q)
			})
			row(t, "norm to codes", fmt.Sprintf("T%d d%d fused %v", rows, d, fused), us, 0, float64(3*rows*d))
		}
	}
}
