//go:build gpu

package cuda

// What roundings do to mixtures of experts: a choice that they decide makes what follows another computation. Given the same
// choices logits are near, and there are no more other choices than transformers has.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// routing is what a mixture computes of a sequence: logits, and the choices of each router, [T,TopK], in rising order.
type routing struct {
	logits  []float32
	choices [][]int32
}

// routings runs sequences of one length; given choices stand for those of the routers.
func routings(t *testing.T, m *models.Transformer, length int, given bool, compile func(*graph.Plan) (graph.Executor, error)) func(ids []int32, choices [][]int32) routing {
	t.Helper()
	b := graph.New(graph.Share(m.Params()))
	run := routed(t, b, m.Logits(b, b.Input("tokens", dtype.Int32, 1, length), models.Dropout{}), given, compile)
	return func(ids []int32, choices [][]int32) routing { return run(graph.Feeds{"tokens": ids}, choices) }
}

// routed compiles a graph for its logits and the choices of its routers; given choices stand for those.
func routed(t *testing.T, b *graph.Builder, logits *graph.Node, given bool, compile func(*graph.Plan) (graph.Executor, error)) func(feeds graph.Feeds, choices [][]int32) routing {
	t.Helper()
	b.Output("all", logits)
	require.NoError(t, b.Err())
	var names []string
	b, err := graph.Rewrite(b, func(n *graph.Node, in []*graph.Node) []*graph.Node {
		if _, ok := n.Op().(ops.RouteOp); !ok {
			return nil
		}
		to, ids := in[0].Builder(), graph.ApplyAll(n.Label(), n.Op(), in...)
		if given {
			ids = []*graph.Node{to.Input("given", dtype.Int32, n.Type().Shape...)}
		}
		to.Output(ids[0].Name(), ids[0])
		names = append(names, ids[0].Name())
		return ids
	})
	require.NoError(t, err)
	outs := []*graph.Node{b.Out("all")}
	for _, name := range names {
		outs = append(outs, b.Out(name))
	}
	plan, err := b.Plan(outs...)
	require.NoError(t, err)
	run, err := compile(plan)
	require.NoError(t, err)
	if e, ok := run.(*Executor); ok {
		t.Cleanup(func() { require.NoError(t, e.Close()) })
	}
	return func(feeds graph.Feeds, choices [][]int32) (r routing) {
		feeds = maps.Clone(feeds)
		for i, c := range choices {
			feeds[names[i]] = c
		}
		require.NoError(t, run.Do(context.Background(), feeds))
		for i, n := range outs {
			v, err := run.Value(n)
			require.NoError(t, err)
			if i == 0 {
				r.logits = slices.Clone(graph.Data[float32](v))
				continue
			}
			c, k := slices.Clone(graph.Data[int32](v)), n.Dim(-1)
			for at := 0; at < len(c); at += k {
				slices.Sort(c[at : at+k])
			}
			r.choices = append(r.choices, c)
		}
		return r
	}
}

// others counts the choices of a that are not b's.
func (a routing) others(b routing, length int) (n int) {
	for i, c := range a.choices {
		for k, at := len(c)/length, 0; at < len(c); at += k {
			if !slices.Equal(c[at:at+k], b.choices[i][at:at+k]) {
				n++
			}
		}
	}
	return n
}

// TestDeviceExecutorChoices holds 160 prompts of 70 tokens to what transformers has of them (models/testdata/choices.py: choices
// that differ from those in float32).
func TestDeviceExecutorChoices(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the kernels are those of the other tests")
	}
	device(t)
	const prompts, length = 160, 70
	type bound struct {
		others int     // of transformers
		given  float64 // the cosine given the same choices, over all prompts: measured 0.99958 and above in bf16, 0.999993 in f16
	}
	for name, peer := range map[string]map[dtype.DType]bound{
		"kimi_linear": {dtype.BFloat16: {1507, 0.999}, dtype.Float16: {231, 0.99998}},
		"deepseek_v3": {dtype.BFloat16: {795, 0.999}, dtype.Float16: {86, 0.99998}},
		"qwen3_moe":   {dtype.BFloat16: {665, 0.999}, dtype.Float16: {91, 0.99998}},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := models.Load("../../models/testdata/golden/" + name)
			require.NoError(t, err)
			native, follow := routings(t, m, length, false, natively), routings(t, m, length, true, natively)
			for dt, most := range peer {
				run := routings(t, m, length, false, onCUDA(Options{Compute: dt}))
				others, choices := 0, 0
				var got, want, same []float32
				for i := range prompts {
					ids, x := make([]int32, length), uint32(i)
					for at := range ids {
						x = x*1664525 + 1013904223
						ids[at] = int32(x>>16) % int32(m.Config.Vocab)
					}
					r, n := run(ids, nil), native(ids, nil)
					others += r.others(n, length)
					choices += len(r.choices) * length
					got, want, same = append(got, r.logits...), append(want, n.logits...), append(same, follow(ids, r.choices).logits...)
				}
				fmt.Printf("CHOICES\t%s\t%s\t%d of %d differ (transformers %d)\tcosine of logits %.6f, given the same choices %.6f\n", name, dt, others, choices, most.others, cosine(want, got), cosine(same, got))
				require.LessOrEqual(t, others, most.others)
				require.Greater(t, cosine(same, got), most.given)
			}
		})
	}
}
