//go:build gpu

package cuda

// Pools of other types than the compute dtype: what is written to them, and attention to it.

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// narrowPlan appends turned keys, and values, to pools and attends to them: a prefill, and a decode of a longer request.
func narrowPlan(t testing.TB, store dtype.DType, d, hq, hkv, size int) (*graph.Plan, graph.Feeds) {
	t.Helper()
	const requests, old = 2, 70
	queries := []int{9, 1}
	tokens := 10
	b := graph.New()
	in := func(name string, h int) *graph.Node { return b.Input(name, dtype.Float32, tokens, h, d) }
	i32 := func(name string, n int) *graph.Node { return b.Input(name, dtype.Int32, n) }
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: d, Base: 1e4, Positions: 128})
	require.NoError(t, err)
	lengths := []int{9, old + 1}
	var indptr, last, slots, positions, qo []int32
	var indices []int32
	indptr, qo = append(indptr, 0), append(qo, 0)
	for r, n := range lengths {
		pages := ceilDiv(n, size)
		for range pages {
			indices = append(indices, int32(2*len(indices)+1))
		}
		indptr = append(indptr, int32(len(indices)))
		last = append(last, int32((n-1)%size+1))
		for i := n - queries[r]; i < n; i++ {
			slots = append(slots, indices[int(indptr[r])+i/size]*int32(size)+int32(i%size))
			positions = append(positions, int32(i))
		}
		qo = append(qo, qo[r]+int32(queries[r]))
	}
	pool := 2*len(indices) + 1
	pages := ops.Pages{QOIndptr: i32("qo", requests+1), Indptr: i32("indptr", requests+1), Indices: i32("indices", len(indices)), LastPageLen: i32("last", requests)}
	var kSteps, vSteps []*graph.Node
	if store == dtype.Float8E4M3 {
		k, v := b.Param("k_steps", hkv), b.Param("v_steps", hkv)
		for i := range hkv {
			graph.Data[float32](k.Param().Tensor())[i] = 0.008 + 0.003*float32(i)
			graph.Data[float32](v.Param().Tensor())[i] = 0.006 + 0.005*float32(i)
		}
		k.Param().Touch()
		v.Param().Touch()
		kSteps, vSteps, pages.KSteps, pages.VSteps = []*graph.Node{k}, []*graph.Node{v}, k, v
	}
	pos, slot := i32("positions", tokens), i32("slots", tokens)
	kp, vp := b.State("kp", store, pool, size, hkv, d), b.State("vp", store, pool, size, hkv, d)
	for i, p := range []*graph.Node{kp, vp} { // what the second request has in its pages already
		if mem := p.Param().Tensor(); store == dtype.Float8E4M3 {
			codes := mem.Bytes()
			for j := range codes {
				codes[j] = byte((j*7+i*13)%112) | byte(j%2)<<7
			}
		} else {
			x := optest.Cast[float32](optest.Normals(fmt.Sprint("pool", i), mem.Size(), 1))
			if store == dtype.Float32 {
				copy(graph.Data[float32](mem), x)
			} else {
				dtype.FromFloat32(as[dtype.BF16](mem.Bytes()), x)
			}
		}
		p.Param().Touch()
	}
	q, k := ops.Rotary(in("q", hq), pos, table, ops.Half), ops.Rotary(in("k", hkv), pos, table, ops.Half)
	kp = ops.AppendPages(kp, k, slot, kSteps...)
	vp = ops.AppendPages(vp, in("v", hkv), slot, vSteps...)
	out := ops.PagedAttention(q, kp, vp, pages, ops.PagedAttentionOp{Causal: true})
	require.NoError(t, b.Err())
	plan, err := b.Plan(out, kp, vp)
	require.NoError(t, err)
	normals := func(name string, h int) []float32 { return optest.Cast[float32](optest.Normals(name, tokens*h*d, 1)) }
	return plan, graph.Feeds{"q": normals("q", hq), "k": normals("k", hkv), "v": normals("v", hkv), "positions": positions, "slots": slots, "qo": qo, "indptr": indptr, "indices": indices, "last": last}
}

func TestDeviceExecutorNarrowPages(t *testing.T) {
	device(t)
	measured := map[dtype.DType]map[dtype.DType]float64{ // errors, at most
		dtype.Float32:    {dtype.Float32: 1.7e-7, dtype.Float16: 4.1e-4, dtype.BFloat16: 3.6e-3},
		dtype.BFloat16:   {dtype.Float32: 2.2e-7, dtype.Float16: 2.4e-3, dtype.BFloat16: 2.7e-3},
		dtype.Float8E4M3: {dtype.Float32: 1.9e-7, dtype.Float16: 1.1e-2, dtype.BFloat16: 1.5e-2},
	}
	for _, store := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float8E4M3} {
		for _, s := range [][4]int{{16, 4, 2, 4}, {64, 8, 2, 16}, {128, 8, 2, 16}, {128, 4, 4, 1}, {40, 6, 2, 256}, {256, 4, 2, 16}, {32, 16, 1, 32}}[:shorter(7, 2)] {
			d, hq, hkv, size := s[0], s[1], s[2], s[3]
			plan, feeds := narrowPlan(t, store, d, hq, hkv, size)
			run, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			require.NoError(t, run.Do(context.Background(), feeds))
			var want [3][]byte
			for i, o := range plan.Outputs {
				v, err := run.Value(o)
				require.NoError(t, err)
				want[i] = append([]byte(nil), v.Bytes()...)
			}
			for _, dt := range computes {
				plan, feeds := narrowPlan(t, store, d, hq, hkv, size)
				e, err := Compile(plan, Options{Compute: dt, Strict: true})
				require.NoError(t, err)
				require.NoError(t, e.Do(context.Background(), feeds))
				var got [3]graph.Tensor
				for i, o := range plan.Outputs {
					v, err := e.Value(o)
					require.NoError(t, err)
					got[i] = graph.NewTensor(v.Type)
					copy(got[i].Bytes(), v.Bytes())
				}
				require.NoError(t, e.Close())
				var diff, ref float64
				for i, w := range as[float32](want[0]) {
					g := graph.Data[float32](got[0])[i]
					diff += float64(g-w) * float64(g-w)
					ref += float64(w) * float64(w)
				}
				off := math.Sqrt(diff / ref)
				fmt.Printf("PAGES\t%s\t%s\tD%d Hq%d Hk%d page %d\terror %.2e\n", store, dt, d, hq, hkv, size, off)
				require.Less(t, off, 2*measured[store][dt])
				if dt == dtype.Float32 { // of keys the rotation may round to the other side
					require.Equal(t, want[2], got[2].Bytes(), "the values in the pool")
				}
			}
		}
	}
}
