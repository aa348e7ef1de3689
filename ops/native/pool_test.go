package native

import (
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
