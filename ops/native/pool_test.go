package native

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type addArgs struct {
	sum *atomic.Int64
}

var addKernel = newKernel(func(a *addArgs, i int) { a.sum.Add(int64(i)) })

var nestKernel = newKernel(func(a *addArgs, i int) { addKernel.launch(50, *a) })

func TestLaunchRunsEveryUnitOnce(t *testing.T) {
	for _, w := range []int{1, 2, 7} {
		SetWorkers(w)
		for range 200 {
			var sum atomic.Int64
			addKernel.launch(100, addArgs{sum: &sum})
			require.EqualValues(t, 4950, sum.Load())
		}
		var sum atomic.Int64
		nestKernel.launch(64, addArgs{sum: &sum})
		require.EqualValues(t, 64*1225, sum.Load())
	}
	SetWorkers(0)
}

func TestLaunchDoesNotAllocate(t *testing.T) {
	var sum atomic.Int64
	addKernel.launch(8, addArgs{sum: &sum})
	require.Zero(t, testing.AllocsPerRun(1000, func() { addKernel.launch(8, addArgs{sum: &sum}) }))
}

// TestHelpersDoNotAllocate: AllocsPerRun runs on one processor, where launches have
// no helpers unless they are asked for.
func TestHelpersDoNotAllocate(t *testing.T) {
	defer SetWorkers(0)
	for _, w := range []int{2, 70} { // with helpers that have no box
		SetWorkers(w)
		var sum atomic.Int64
		run := func() {
			addKernel.launch(w, addArgs{sum: &sum})
			runtime.Gosched() // to the helpers
		}
		require.Zero(t, allocs(run))
	}
}

var panicKernel = newKernel(func(a *addArgs, i int) {
	if i == 3 {
		panic("unit 3")
	}
})

func TestLaunchPanicReachesTheCaller(t *testing.T) {
	require.PanicsWithValue(t, "unit 3", func() { panicKernel.launch(8, addArgs{}) })
	require.PanicsWithValue(t, "unit 3", func() { panicKernel.launch(8, addArgs{}) })
}

// TestLaunchFromSeveralCallers: callers and nested launches share the helpers,
// who fall asleep now and then.
func TestLaunchFromSeveralCallers(t *testing.T) {
	defer SetWorkers(0)
	for _, w := range []int{2, 3, 70} {
		SetWorkers(w)
		var wg sync.WaitGroup
		var wrong atomic.Int64
		for range 4 {
			wg.Go(func() {
				for i := range 300 {
					var sum atomic.Int64
					nestKernel.launch(5, addArgs{sum: &sum})
					if sum.Load() != 5*1225 {
						wrong.Add(1)
					}
					if i%50 == 0 {
						time.Sleep(2 * spinFor)
					}
				}
			})
		}
		wg.Wait()
		require.Zero(t, wrong.Load())
	}
}

type seatArgs struct {
	taken []atomic.Int64 // [seats]
	wrong *atomic.Int64
}

var seatKernel = newSeatKernel(func(a *seatArgs, seat, i int) {
	if a.taken[seat].Add(1) != 1 {
		a.wrong.Add(1)
	}
	if i%7 == 0 {
		time.Sleep(10 * time.Microsecond) // others take what is left
	}
	a.taken[seat].Add(-1)
})

// TestLaunchSeats: no two units have one seat at a time, whatever helper has come.
func TestLaunchSeats(t *testing.T) {
	defer SetWorkers(0)
	for _, w := range []int{7, 2, 3, 1} { // after seven there are helpers of higher numbers than seats
		SetWorkers(w)
		for n := range 40 {
			var wrong atomic.Int64
			seatKernel.launchSeats(n, min(w, 3), seatArgs{make([]atomic.Int64, 3), &wrong})
			require.Zero(t, wrong.Load())
		}
	}
}
