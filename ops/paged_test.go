package ops_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// TestNarrowPages appends to pools of bf16, f16 and E4M3 and attends to them: the
// result is that of the oracle on the rounded keys and values.
func TestNarrowPages(t *testing.T) {
	const tokens, hq, hkv, d, size = 9, 4, 2, 16, 4
	steps := []float32{0.01, 0.02}
	q, k, v := optest.Normals("q", tokens*hq*d, 1), optest.Normals("k", tokens*hkv*d, 1), optest.Normals("v", tokens*hkv*d, 1)
	for _, store := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float8E4M3} {
		t.Run(store.String(), func(t *testing.T) {
			b := graph.New()
			f32 := func(name string, h int) *graph.Node { return b.Input(name, dtype.Float32, tokens, h, d) }
			i32 := func(name string, n int) *graph.Node { return b.Input(name, dtype.Int32, n) }
			qn, kn, vn, slots := f32("q", hq), f32("k", hkv), f32("v", hkv), i32("slots", tokens)
			pages := ops.Pages{QOIndptr: i32("qo", 2), Indptr: i32("indptr", 2), Indices: i32("indices", 3), LastPageLen: i32("last", 1)}
			feeds := graph.Feeds{"q": optest.Cast[float32](q), "k": optest.Cast[float32](k), "v": optest.Cast[float32](v),
				"slots": []int32{8, 9, 10, 11, 0, 1, 2, 3, 4}, "qo": []int32{0, tokens}, "indptr": []int32{0, 3}, "indices": []int32{2, 0, 1}, "last": []int32{1}}
			var extra []*graph.Node
			if store == dtype.Float8E4M3 {
				s := b.Input("steps", dtype.Float32, hkv)
				feeds["steps"] = steps
				extra, pages.KSteps, pages.VSteps = []*graph.Node{s}, s, s
			}
			kp := ops.AppendPages(b.State("kp", store, 3, size, hkv, d), kn, slots, extra...)
			vp := ops.AppendPages(b.State("vp", store, 3, size, hkv, d), vn, slots, extra...)
			out := ops.PagedAttention(qn, kp, vp, pages, ops.PagedAttentionOp{Causal: true})
			require.NoError(t, b.Err())
			plan, err := b.Plan(out)
			require.NoError(t, err)
			run, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			require.NoError(t, run.Do(context.Background(), feeds))
			got, err := run.Value(out)
			require.NoError(t, err)

			stored := func(x []float64) []float64 {
				y := make([]float64, len(x))
				for i, f := range x {
					switch s := float64(steps[i/d%hkv]); store {
					case dtype.BFloat16:
						y[i] = optest.BF16.Decode(optest.BF16.EncodeIEEE(f))
					case dtype.Float16:
						y[i] = optest.F16.Decode(optest.F16.Encode(f))
					case dtype.Float8E4M3:
						// The code of the float32 quotient, as the pool computes it.
						y[i] = s * optest.E4M3.Decode(optest.E4M3.Encode(float64(float32(f)/float32(s))))
					default:
						y[i] = f
					}
				}
				return y
			}
			want, _ := optest.Attention{B: 1, Lq: tokens, Lk: tokens, Hq: hq, Hkv: hkv, D: d, Dv: d, Causal: true}.Forward(q, stored(k), stored(v))
			diff := optest.RequireClose(t, store.String(), graph.Data[float32](got), want, optest.Float32, 8) // measured below 3
			t.Logf("%.1f roundoffs", diff.RMS/float64(optest.Float32))
		})
	}
	b := graph.New()
	ops.AppendPages(b.State("p", dtype.Float8E4M3, 1, 4, 2, 8), b.Input("x", dtype.Float32, 1, 2, 8), b.Input("slots", dtype.Int32, 1))
	require.EqualError(t, b.Err(), "append_pages: a pool takes steps when it holds float8_e4m3 and only then, pages is float8_e4m3[1,4,2,8]")
	b = graph.New()
	ops.AppendPages(b.State("p", dtype.Float8E5M2, 1, 4, 2, 8), b.Input("x", dtype.Float32, 1, 2, 8), b.Input("slots", dtype.Int32, 1))
	require.EqualError(t, b.Err(), "append_pages: pages must hold float32, bfloat16, float16 or float8_e4m3, got float8_e5m2[1,4,2,8]")
}
