package native

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
)

// TestBF16RoundIsThatOfDType walks float32 by its upper 20 bits with low bits
// below, at and above every tie.
func TestBF16RoundIsThatOfDType(t *testing.T) {
	low := []uint32{0, 1, 0x7FF, 0x800, 0x801, 0xFFF}
	x := make([]float32, 1<<20)
	for hi := range x {
		x[hi] = math.Float32frombits(uint32(hi)<<12 | low[hi%len(low)])
	}
	y := optest.Guard[float32](len(x))
	BF16Round(y.Data, x)
	optest.CheckGuards(t, "rounded", y)
	for i, v := range x {
		if want, got := dtype.ToBF16(v).Float32(), y.Data[i]; math.Float32bits(want) != math.Float32bits(got) {
			require.FailNow(t, "wrong rounding", "%v rounds to %v, want %v", v, got, want)
		}
	}
}

func TestBF16LinearDoesNotAllocate(t *testing.T) {
	const m, n, k = 64, 64, 128
	r := rand.New(rand.NewPCG(1, 1))
	x, w, y := normals[float32](r, m*k), normals[float32](r, n*k), make([]float32, m*n)
	run := func() { BF16Linear(y, x, w, nil, m, n, k) }
	for range 3 {
		run()
	}
	require.Zero(t, testing.AllocsPerRun(20, run))
}
