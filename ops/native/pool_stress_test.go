package native

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// This file launches from many goroutines at once, while the number of workers
// changes, so that calls are reused while late helpers still look at them.
// -count=100 with -race and -cpu=1,2,4,16 is the long form.

// stressArgs are those of one launch: a unit that sees those of another finds no
// place of its own.
type stressArgs struct {
	ran   []atomic.Int32 // [n] times that a unit ran
	seats []atomic.Int32 // [seats] units that run in a seat
	fail  int            // the unit that panics, -1: none
	depth int            // launches below
	wrong *atomic.Int64
}

// stressKernel is set by init: its units launch it.
var stressKernel *kernel[stressArgs]

func init() { stressKernel = newSeatKernel(stressUnit) }

func stressUnit(a *stressArgs, seat, i int) {
	if a.seats[seat].Add(1) != 1 {
		a.wrong.Add(1)
	}
	defer a.seats[seat].Add(-1)
	a.ran[i].Add(1)
	if a.depth > 0 && i%3 == 0 {
		stressLaunch(a.wrong, 1+i, 4, -1, a.depth-1)
	}
	if i == a.fail {
		panic(fmt.Sprint("unit ", i))
	}
}

// stressLaunch counts what is wrong about a launch of n units in so many seats.
func stressLaunch(wrong *atomic.Int64, n, seats, fail, depth int) {
	a := stressArgs{make([]atomic.Int32, n), make([]atomic.Int32, seats), fail, depth, wrong}
	defer func() {
		got, want := recover(), any(nil)
		if fail >= 0 {
			want = fmt.Sprint("unit ", fail)
		}
		if got != want {
			wrong.Add(1)
		}
		for i := range a.ran {
			if a.ran[i].Load() != 1 {
				wrong.Add(1)
			}
		}
	}()
	stressKernel.launchSeats(n, seats, a)
}

// underLoad runs f in so many goroutines, each rounds times, while the number of
// workers changes.
func underLoad(goroutines, rounds int, f func(r *rand.Rand)) {
	defer SetWorkers(0)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range rounds {
				if r.IntN(8) == 0 {
					SetWorkers([]int{1, 2, 7, 70}[r.IntN(4)])
				}
				f(r)
			}
		})
	}
	wg.Wait()
}

func TestLaunchWhileWorkersChange(t *testing.T) {
	var wrong atomic.Int64
	underLoad(64, 20, func(r *rand.Rand) {
		n, fail := 1+r.IntN(40), -1
		if r.IntN(4) == 0 {
			fail = r.IntN(n)
		}
		stressLaunch(&wrong, n, 1+r.IntN(8), fail, r.IntN(3))
	})
	require.Zero(t, wrong.Load())
}

// TestDecodeWhileWorkersChange: a decoded token has the same bits whoever computes
// its parts and joins them.
func TestDecodeWhileWorkersChange(t *testing.T) {
	var calls []PagedArgs[float32]
	for i, lengths := range [][]int32{{700}, {65, 1300}, {3, 128, 2100}} {
		ones := make([]int32, len(lengths))
		for b := range ones {
			ones[b] = 1
		}
		c := newPagedCase(fmt.Sprint(t.Name(), i), optest.Attention{Hq: 4, Hkv: 2, D: 16, Dv: 64, Causal: true}, 16, ones, lengths)
		a := pagedArgsOf[float32](c)
		PagedAttention(a)
		calls = append(calls, a)
	}
	var wrong atomic.Int64
	underLoad(16, 30, func(r *rand.Rand) {
		a := calls[r.IntN(len(calls))]
		want := a.Out
		a.Out, a.LSE = optest.Poison(make([]float32, len(a.Out))), optest.Poison(make([]float32, len(a.LSE)))
		PagedAttention(a)
		for i, x := range want {
			if a.Out[i] != x {
				wrong.Add(1)
			}
		}
	})
	require.Zero(t, wrong.Load())
}
