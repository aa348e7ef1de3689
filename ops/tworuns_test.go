// Executors of one plan on several goroutines.
package ops_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// TestExecutorsOfOnePlanRunTogether: they share weights, what bodies keep with
// them, and the pool, and give the bits of one alone.
func TestExecutorsOfOnePlanRunTogether(t *testing.T) {
	params := graph.NewParams()
	half, err := params.Add("half", graph.T(dtype.BFloat16, 16, 16), false)
	require.NoError(t, err)
	copy(half.Tensor().Bytes(), slices.Repeat([]byte{0x12, 0x3e, 0x80, 0xbf}, 128))
	half.Touch()
	b := graph.New(graph.Share(params))
	x := b.Input("x", dtype.Float32, 5, 16)
	y := ops.Linear(ops.RMSNorm(x, b.Param("norm", 16), 1e-5), b.Param("half", 16, 16))
	y = ops.FP8WeightLinear(y, b.Param("wide", 16, 16), ops.FP8WeightLinearOp{Activations: ops.StepPerRow})
	y = ops.FP8Linear(y, b.Param("fp8", 16, 16), ops.FP8Recipe{})
	q := ops.Reshape(ops.Linear(y, b.Param("plain", 16, 16)), 1, 5, 2, 8)
	out := ops.Attention(q, q, q, ops.AttentionOptions{Causal: true})
	loss, _ := ops.CrossEntropy(ops.Reshape(out, 5, 16), b.Input("labels", dtype.Int32, 5))
	require.NoError(t, b.Err())
	for _, p := range b.Store().All() {
		if p.Type.DType == dtype.Float32 && !p.State {
			for i, w := 0, graph.Data[float32](p.Tensor()); i < len(w); i++ {
				w[i] = float32((i*7)%11) - 5
			}
			p.Touch()
		}
	}
	plan, err := b.Plan(loss, out)
	require.NoError(t, err)
	feeds := graph.Feeds{"x": make([]float32, 80), "labels": []int32{1, 2, 3, 4, 5}}
	for i, v := 0, feeds["x"].([]float32); i < len(v); i++ {
		v[i] = float32(i%13) - 6
	}
	run := func() []byte {
		r, err := plan.Native(graph.Poison())
		require.NoError(t, err)
		var all []byte
		for range 20 {
			require.NoError(t, r.Do(context.Background(), feeds))
			v, err := r.Value(out)
			require.NoError(t, err)
			all = append(all, v.Bytes()...)
		}
		return all
	}
	got := make([][]byte, 6)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = run() })
	}
	wg.Wait()
	want := run()
	for _, g := range got {
		require.Equal(t, want, g)
	}
}
