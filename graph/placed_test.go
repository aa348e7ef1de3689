// Where the states of a plan lie.

package graph_test

import (
	"context"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// TestStatesOfAPlanFollowEachOther: each at the start of a cache line, as zeros, and
// one that has memory already keeps it.
func TestStatesOfAPlanFollowEachOther(t *testing.T) {
	b := graph.New()
	first, old, last := b.State("first", dtype.Float32, 17), b.State("old", dtype.Float32, 3), b.State("last", dtype.Float32, 2)
	kept := graph.Data[float32](old.Param().Tensor())
	kept[1] = 3
	plan, err := b.Plan(graph.Apply(scale{2}, first), graph.Apply(scale{2}, old), graph.Apply(scale{2}, last))
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	require.Same(t, &kept[0], &graph.Data[float32](old.Param().Tensor())[0])
	require.Equal(t, float32(3), kept[1])
	x, y := first.Param().Tensor().Bytes(), last.Param().Tensor().Bytes()
	require.Equal(t, make([]byte, 17*4), x)
	require.Equal(t, make([]byte, 2*4), y)
	require.Equal(t, len(x), cap(x))
	require.Equal(t, len(y), cap(y))
	require.Zero(t, uintptr(unsafe.Pointer(&x[0]))%64)
	require.Equal(t, uintptr(128), uintptr(unsafe.Pointer(&y[0]))-uintptr(unsafe.Pointer(&x[0])))
	require.NoError(t, run.Do(context.Background(), nil))

	again, err := plan.Native()
	require.NoError(t, err)
	require.Same(t, &x[0], &first.Param().Tensor().Bytes()[0])
	require.NoError(t, again.Do(context.Background(), nil))
}
