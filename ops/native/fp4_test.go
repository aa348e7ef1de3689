package native

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWidenFP4 compares every number with its own lookup, in both layouts, with any
// number of workers.
func TestWidenFP4(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var values FP4Values
	for s := range values {
		for c := range values[s] {
			values[s][c] = uint16(r.Uint32())
		}
	}
	for _, c := range []struct{ rows, k, step int }{{0, 32, 1}, {3, 0, 1}, {1, 32, 1}, {5, 96, 2}, {700, 64, 2}, {3, 8192, 1}} {
		blocks := c.rows * c.step * c.k / 32
		whole := make([]byte, 17*blocks) // scale, 16 bytes of codes
		for i := range whole {
			whole[i] = byte(r.Uint32())
		}
		var codes, scales []byte
		for b := range blocks {
			scales, codes = append(scales, whole[17*b]), append(codes, whole[17*b+1:17*b+17]...)
		}
		for _, halves := range []bool{false, true} {
			want := make([]uint16, c.rows*c.k)
			for i := range want {
				row, col := i/max(c.k, 1), i%max(c.k, 1)
				b, at := (row*c.step*c.k+col)/32, col%32
				at, upper := at/2, at%2
				if halves {
					at, upper = col%32%16, col%32/16
				}
				want[i] = values[scales[b]][codes[16*b+at]>>(4*upper)&15]
			}
			x := FP4Rows{Codes: codes, CodeStep: 16, Scales: scales, ScaleStep: 1, Step: c.step, Halves: halves}
			if halves {
				x.Scales, x.ScaleStep, x.CodeStep = whole, 17, 17
				x.Codes = whole[min(1, len(whole)):]
			}
			for _, workers := range []int{1, 2, 7} {
				SetWorkers(workers)
				got := make([]byte, 2*len(want)+2)
				got[2*len(want)] = 0xa5
				WidenFP4(got[:2*len(want)], x, &values, c.rows, c.k)
				require.Equal(t, bytesOf16(want), append([]byte(nil), got[:2*len(want)]...))
				require.Equal(t, byte(0xa5), got[2*len(want)])
			}
			SetWorkers(0)
		}
	}
}

func BenchmarkWidenFP4(b *testing.B) {
	const rows, k = 2880, 2880
	x := FP4Rows{Codes: make([]byte, rows*k/2), CodeStep: 16, Scales: make([]byte, rows*k/32), ScaleStep: 1, Step: 1}
	y := make([]byte, 2*rows*k)
	values := new(FP4Values)
	for b.Loop() {
		WidenFP4(y, x, values, rows, k)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(rows*k), "ns/number")
}
