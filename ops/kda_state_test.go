package ops_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
	"github.com/seafan/seafan/ops/optest/cases"
)

// TestSlotsMoveOn compares the pools after the cases' call with the oracle, and
// slots that no request has bit for bit.
func TestSlotsMoveOn(t *testing.T) {
	after := cases.SlotPools()
	require.Len(t, after, 3)
	for _, c := range cases.All() {
		want, ok := after[c.Name+c.Op]
		if !ok || c.Err != "" {
			continue
		}
		var pool graph.Tensor
		var before []float64
		c.Forward(t, dtype.Float64, func(p *graph.Plan, f graph.Feeds) ([]graph.Tensor, error) {
			for _, n := range p.Nodes() {
				if n.Param() != nil && n.Param().State {
					pool = n.Param().Tensor()
					before = append(before, graph.Data[float64](pool)...)
				}
			}
			return cases.Native(p, f)
		})
		got := graph.Data[float64](pool)
		require.InDeltaSlice(t, want, got, 1e-12, c.Name)
		size := pool.Size() / 6
		require.Equal(t, before[2*size:3*size], got[2*size:3*size], "slot 2 belongs to nobody")
	}
}

// TestSlotsRefuseAtRunTime: a slot outside the pool or twice, and borders that
// are none.
func TestSlotsRefuseAtRunTime(t *testing.T) {
	b := graph.New()
	y := ops.ShortConvSlots(b.Input("x", b.Float(), 3, 2), b.Input("w", b.Float(), 2, 4), b.State("pool", b.Float(), 2, 2, 3),
		ops.Slots{QOIndptr: b.Input("qo", dtype.Int32, 3), Slots: b.Input("slots", dtype.Int32, 2), Starts: b.Input("starts", dtype.Int32, 2)})
	require.NoError(t, b.Err())
	p, err := b.Plan(y)
	require.NoError(t, err)
	run, err := p.Native()
	require.NoError(t, err)
	do := func(qo, slots []int32) error {
		return run.Do(context.Background(), graph.Feeds{"x": make([]float32, 6), "w": make([]float32, 8), "qo": qo, "slots": slots, "starts": []int32{0, 0}})
	}
	require.NoError(t, do([]int32{0, 1, 3}, []int32{1, 0}))
	require.NoError(t, do([]int32{0, 1, 1}, []int32{1, -1}))
	require.ErrorContains(t, do([]int32{0, 1, 3}, []int32{1, 2}), "row 1 has slot 2, the pool has 2")
	require.ErrorContains(t, do([]int32{0, 1, 3}, []int32{1, 1}), "rows 0 and 1 share slot 1")
	require.ErrorContains(t, do([]int32{0, 2, 1}, []int32{1, 0}), "qo_indptr")
	require.ErrorContains(t, do([]int32{0, 2, 4}, []int32{1, 0}), "qo_indptr")
}

// TestSlotsDoNotMix: a request gets the same bits alone as beside others.
func TestSlotsDoNotMix(t *testing.T) {
	defer native.SetWorkers(0)
	run := func(qo, slots, starts []int32, tokens int, feeds graph.Feeds, pool []float64) []float64 {
		b := graph.New(graph.Float(dtype.Float64))
		state := b.State("pool", b.Float(), 3, 2, 16, 24)
		copy(graph.Data[float64](state.Param().Tensor()), pool)
		o := ops.KDASlots(b.Input("q", b.Float(), tokens, 2, 16), b.Input("k", b.Float(), tokens, 2, 16), b.Input("v", b.Float(), tokens, 2, 24),
			b.Input("g", b.Float(), tokens, 2, 16), b.Input("beta", b.Float(), tokens, 2), state,
			ops.Slots{QOIndptr: b.Input("qo", dtype.Int32, len(qo)), Slots: b.Input("slots", dtype.Int32, len(slots)), Starts: b.Input("starts", dtype.Int32, len(slots))}, ops.KDASlotsOp{})
		require.NoError(t, b.Err())
		p, err := b.Plan(o)
		require.NoError(t, err)
		exec, err := p.Native(graph.Poison())
		require.NoError(t, err)
		feeds["qo"], feeds["slots"], feeds["starts"] = qo, slots, starts
		require.NoError(t, exec.Do(context.Background(), feeds))
		v, err := exec.Value(o)
		require.NoError(t, err)
		return append([]float64(nil), graph.Data[float64](v)...)
	}
	pool := optest.Normals("pool", 3*2*16*24, 1)
	all := kdaFeeds(72)
	together := run([]int32{0, 70, 71, 72}, []int32{2, 0, 1}, []int32{0, 0, 1}, 72, cut(all, 0, 72), pool)
	require.Equal(t, run([]int32{0, 70}, []int32{2}, []int32{0}, 70, cut(all, 0, 70), pool), together[:70*48])
	require.Equal(t, run([]int32{0, 1}, []int32{0}, []int32{0}, 1, cut(all, 70, 71), pool), together[70*48:71*48])
	require.Equal(t, run([]int32{0, 1}, []int32{1}, []int32{1}, 1, cut(all, 71, 72), pool), together[71*48:])
}

// TestSlotsRefuseADecayThatIsNone: one that is fed is refused with its place, one
// that the graph computes makes its request undefined and no other.
func TestSlotsRefuseADecayThatIsNone(t *testing.T) {
	qo, slots := []int32{0, 1, 2, 40, 60, 61}, []int32{4, 2, 0, 3, 1}
	const tokens, heads, dk, dv = 61, 2, 16, 24
	run := func(computed bool, at int, value float64) (o, pool []float64, err error) {
		b := graph.New(graph.Float(dtype.Float64))
		g := ops.Reshape(b.Input("g", b.Float(), tokens, heads*dk), tokens, heads, dk)
		if computed {
			g = ops.Affine(g, 1, 0)
		}
		state := b.State("pool", b.Float(), 5, heads, dk, dv)
		pool = graph.Data[float64](state.Param().Tensor())
		copy(pool, optest.Normals("pool", len(pool), 1))
		y := ops.KDASlots(b.Input("q", b.Float(), tokens, heads, dk), b.Input("k", b.Float(), tokens, heads, dk), b.Input("v", b.Float(), tokens, heads, dv), g, b.Input("beta", b.Float(), tokens, heads), state,
			ops.Slots{QOIndptr: b.Input("qo", dtype.Int32, 6), Slots: b.Input("slots", dtype.Int32, 5), Starts: b.Input("starts", dtype.Int32, 5)}, ops.KDASlotsOp{})
		p, err := b.Plan(y)
		require.NoError(t, err)
		exec, err := p.Native(graph.Poison())
		require.NoError(t, err)
		feeds := kdaFeeds(tokens)
		feeds["qo"], feeds["slots"], feeds["starts"] = qo, slots, make([]int32, 5)
		if at >= 0 {
			feeds["g"].([]float64)[at*heads*dk+20] = value
		}
		if err = exec.Do(context.Background(), feeds); err != nil {
			return nil, nil, err
		}
		v, err := exec.Value(y)
		return append([]float64(nil), graph.Data[float64](v)...), pool, err
	}
	want, wantPool, err := run(true, -1, 0)
	require.NoError(t, err)
	for _, bad := range []float64{math.NaN(), 0.5, math.Inf(1), math.Inf(-1)} {
		for r, at := range []int{0, 1, 30, 40, 60} {
			_, _, err := run(false, at, bad)
			require.ErrorContains(t, err, "kda: g must be finite and at most 0")
			o, pool, err := run(true, at, bad)
			require.NoError(t, err)
			for i, x := range o {
				if token := int32(i / heads / dv); token >= qo[r] && token < qo[r+1] {
					require.True(t, math.IsNaN(x))
				} else {
					require.Equal(t, want[i], x)
				}
			}
			for i, x := range pool {
				if int32(i/heads/dk/dv) == slots[r] {
					require.True(t, math.IsNaN(x))
				} else {
					require.Equal(t, wantPool[i], x)
				}
			}
		}
	}
}
