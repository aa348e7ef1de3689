package main

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// TestSoftCap compares value and gradient with the definition in float64. The
// loss is the cross entropy of the capped row, so the gradient arrives from an
// op of the module.
func TestSoftCap(t *testing.T) {
	x := []float32{-30, -2, -0.5, 0, 0.25, 1, 7, 100}
	b := graph.New()
	in := b.Input("x", dtype.Float32, 1, len(x))
	y := SoftCap(in, 5)
	loss, _ := ops.CrossEntropy(y, b.Input("label", dtype.Int32, 1))
	grads, err := b.Grad(loss, in)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(b))
	plan, err := b.Plan(y, grads[0])
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": x, "label": []int32{2}}))
	value, err := run.Value(y)
	require.NoError(t, err)
	grad, err := run.Value(grads[0])
	require.NoError(t, err)

	sum := 0.0
	for _, v := range x {
		sum += math.Exp(5 * math.Tanh(float64(v)/5))
	}
	for i, v := range x {
		want := 5 * math.Tanh(float64(v)/5)
		require.InDelta(t, want, graph.Data[float32](value)[i], 1e-6)
		p := math.Exp(want) / sum
		if i == 2 {
			p--
		}
		slope := 1 / math.Pow(math.Cosh(float64(v)/5), 2)
		require.InDelta(t, p*slope, graph.Data[float32](grad)[i], 1e-6)
	}
	SoftCap(in, -1)
	require.EqualError(t, b.Err(), "soft_cap: takes one float32 and a cap above 0, got [float32[1,8]] and -1")
}
