package ops_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// TestBlockCodedWeights runs a table and a projection in the block codings: the
// results have the bits of the same model with the weights widened.
func TestBlockCodedWeights(t *testing.T) {
	const v, d, n = 11, 512, 70
	for _, c := range []ops.Coding{ops.Q8_0, ops.Q4_0, ops.Q4_1, ops.Q4_K, ops.Q5_K, ops.Q6_K} {
		r := rand.New(rand.NewPCG(1, 2))
		rows := map[string][]byte{"table": make([]byte, v*c.Bytes(d)), "w": make([]byte, n*c.Bytes(d))}
		for _, b := range rows {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			for at := 0; at < len(b); at += c.Bytes(c.Block()) {
				step := at + 1
				if c == ops.Q6_K {
					step = at + 209
				}
				b[step] = b[step]&3 | 0x28 // the scale is about 1/32
				if c != ops.Q8_0 && c != ops.Q4_0 && c != ops.Q6_K {
					b[at+3] = b[at+3]&0x83 | 0x30
				}
			}
		}
		run := func(wide bool) (out [][]byte) {
			ps := graph.NewParams()
			for name, shape := range map[string][]int{"table": {v, d}, "w": {n, d}} {
				typ := graph.T(dtype.UInt8, shape[0], c.Bytes(d))
				if wide {
					typ = graph.T(dtype.Float32, shape...)
				}
				p, err := ps.Add(name, typ, false)
				require.NoError(t, err)
				if wide {
					c.Widen(graph.Data[float32](p.Tensor()), rows[name], 0, shape[0], shape[1])
				} else {
					require.NoError(t, p.Adopt(rows[name]))
					ops.SetCoding(p, c)
				}
				p.Touch()
			}
			b := graph.New(graph.Share(ps))
			x := ops.Embedding(b.Input("ids", dtype.Int32, 3), b.Param("table", ps.Get("table").Type.Shape...))
			y := ops.Linear(x, b.Param("w", ps.Get("w").Type.Shape...))
			require.NoError(t, b.Err())
			require.Equal(t, []int{3, n}, y.Shape())
			require.NoError(t, graph.Verify(b))
			plan, err := b.Plan(x, y)
			require.NoError(t, err)
			exec, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			require.NoError(t, exec.Do(context.Background(), graph.Feeds{"ids": []int32{10, 0, 5}}))
			for _, o := range plan.Outputs {
				value, err := exec.Value(o)
				require.NoError(t, err)
				out = append(out, append([]byte(nil), value.Bytes()...))
			}
			return out
		}
		require.Equal(t, run(true), run(false), "%s", c)
	}
	b := graph.New()
	w := b.Input("w", dtype.UInt8, 4, 33)
	graph.Apply(ops.LinearOp{Coding: ops.Q8_0}, b.Input("x", dtype.Float32, 2, 32), w)
	require.EqualError(t, b.Err(), "linear: rows of Q8_0 must be uint8 [...,N, a multiple of 34], got uint8[4,33]")
	b = graph.New()
	stack := b.Input("stack", dtype.UInt8, 2, 4, 34)
	graph.Apply(ops.ExpertsOp{Codings: [3]ops.Coding{ops.Q8_0, ops.Q4_0, ops.Q8_0}}, b.Input("x", dtype.Float32, 2, 32), b.Input("weights", dtype.Float32, 2, 1), b.Input("ids", dtype.Int32, 2, 1), stack, stack, stack)
	require.EqualError(t, b.Err(), "experts: up: rows of Q4_0 must be uint8 [...,N, a multiple of 18], got uint8[2,4,34]")
}
