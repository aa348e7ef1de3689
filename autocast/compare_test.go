package autocast_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

func TestBF16KeepsTheGraph(t *testing.T) {
	m := newModel(t, tiny)
	b := lossGraph(t, m)
	nb, report, err := autocast.BF16(b, autocast.Filter{})
	require.NoError(t, err)
	require.NoError(t, graph.Verify(nb))
	require.Len(t, report.Cast(), 15, "the head too, and no threshold")
	p, err := b.Plan(b.Out("loss"))
	require.NoError(t, err)
	q, err := nb.Plan(nb.Out("loss"))
	require.NoError(t, err)
	was, is := strings.Split(p.String(), "\n"), strings.Split(q.String(), "\n")
	require.Equal(t, len(was), len(is))
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") } // columns move
	for i := range was {
		require.Equal(t, words(strings.Replace(was[i], " linear ", " bf16_linear ", 1)), words(is[i]))
	}
	attention := func(b *graph.Builder) (all, narrow int) {
		for _, n := range b.Nodes() {
			if o, ok := n.Op().(ops.AttentionOp); ok {
				all++
				if o.BF16 {
					narrow++
				}
			}
		}
		return all, narrow
	}
	all, narrow := attention(nb)
	require.Equal(t, all, narrow)
	require.NotZero(t, all)
	some, _, err := autocast.BF16(b, autocast.Filter{Include: []string{"*.mlp.*"}})
	require.NoError(t, err)
	_, narrow = attention(some)
	require.Zero(t, narrow)
	twice, _, err := autocast.BF16(nb, autocast.Filter{})
	require.NoError(t, err)
	r, err := twice.Plan(twice.Out("loss"))
	require.NoError(t, err)
	require.Equal(t, q.String(), r.String())

	// It trains, close to float32, and leaves FP8 linears to FP8.
	plain, cast := newDescent(t, lossGraph(t, newModel(t, tiny))), newDescent(t, nb)
	for i := range 3 {
		x, y := plain.step(t, feeds(tiny, i)), cast.step(t, feeds(tiny, i))
		require.InEpsilon(t, x, y, 1e-3) // measured 1e-4
		require.NotEqual(t, x, y)
	}
	fp8, _, err := autocast.FP8(lossGraph(t, newModel(t, tiny)), autocast.Options{Filter: autocast.Filter{Include: []string{"*.mlp.*"}}})
	require.NoError(t, err)
	both, _, err := autocast.BF16(fp8, autocast.Filter{})
	require.NoError(t, err)
	require.NoError(t, graph.Verify(both))
	count := map[string]int{}
	for _, n := range both.Nodes() {
		if n.Op() != nil {
			count[n.Op().Name()]++
		}
	}
	require.Equal(t, 6, count["fp8_linear"])
	require.Equal(t, 9, count["bf16_linear"])
	require.Zero(t, count["linear"])
	_, _, err = autocast.BF16(nil, autocast.Filter{})
	require.EqualError(t, err, "autocast: BF16: graph: the builder is missing: New makes one")
}

// TestBF16OfPages: attention on pages multiplies in bf16, and not by BF16x6.
func TestBF16OfPages(t *testing.T) {
	b := graph.New()
	i32 := func(name string, n int) *graph.Node { return b.Input(name, dtype.Int32, n) }
	pool := b.State("pool", dtype.BFloat16, 3, 4, 2, 8)
	ops.PagedAttention(b.Input("q", dtype.Float32, 5, 4, 8), pool, pool,
		ops.Pages{QOIndptr: i32("qo", 2), Indptr: i32("indptr", 2), Indices: i32("indices", 3), LastPageLen: i32("last", 1)}, ops.PagedAttentionOp{Causal: true})
	require.NoError(t, b.Err())
	for i, cast := range []func(*graph.Builder, autocast.Filter) (*graph.Builder, *autocast.Report, error){autocast.BF16, autocast.BF16x6} {
		nb, _, err := cast(b, autocast.Filter{})
		require.NoError(t, err)
		require.NoError(t, graph.Verify(nb))
		paged := 0
		for _, n := range nb.Nodes() {
			if o, ok := n.Op().(ops.PagedAttentionOp); ok {
				require.Equal(t, i == 0, o.BF16)
				paged++
			}
		}
		require.Equal(t, 1, paged)
	}
}

func TestBF16x6KeepsTheGraph(t *testing.T) {
	fp8, _, err := autocast.FP8(lossGraph(t, newModel(t, tiny)), autocast.Options{Filter: autocast.Filter{Include: []string{"*.mlp.*"}}})
	require.NoError(t, err)
	nb, report, err := autocast.BF16x6(fp8, autocast.Filter{})
	require.NoError(t, err)
	require.Len(t, report.Cast(), 15, "6 of them in FP8 before")
	twice, _, err := autocast.BF16x6(nb, autocast.Filter{})
	require.NoError(t, err)
	for _, b := range []*graph.Builder{nb, twice} {
		require.NoError(t, graph.Verify(b))
		linears, attentions := 0, 0
		for _, n := range b.Nodes() {
			switch o := n.Op().(type) {
			case ops.LinearOp:
				require.True(t, o.BF16x6, n.Name())
				linears++
			case ops.AttentionOp:
				require.True(t, o.BF16x6, n.Name())
				attentions++
			}
		}
		require.Equal(t, []int{9, 2}, []int{linears, attentions})
	}
	whole, _, err := autocast.BF16x6(lossGraph(t, newModel(t, tiny)), autocast.Filter{})
	require.NoError(t, err)
	plain, cast := newDescent(t, lossGraph(t, newModel(t, tiny))), newDescent(t, whole)
	for i := range 3 {
		require.InEpsilon(t, plain.step(t, feeds(tiny, i)), cast.step(t, feeds(tiny, i)), 1e-5)
	}
	_, _, err = autocast.BF16x6(nil, autocast.Filter{})
	require.EqualError(t, err, "autocast: BF16x6: graph: the builder is missing: New makes one")
}

func TestCompareShowsEveryLayer(t *testing.T) {
	m := newModel(t, tiny)
	plain := lossGraph(t, m)
	f := feeds(tiny, 0)
	for name, pass := range map[string]func() (*graph.Builder, *autocast.Report, error){
		"fp8": func() (*graph.Builder, *autocast.Report, error) {
			return autocast.FP8(plain, autocast.Options{Filter: small})
		},
		"bf16": func() (*graph.Builder, *autocast.Report, error) { return autocast.BF16(plain, autocast.Filter{}) },
		"rows": func() (*graph.Builder, *autocast.Report, error) {
			return autocast.FP8Inference(plain, autocast.InferenceOptions{Activations: autocast.PerRow, Filter: small})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cast, report, err := pass()
			require.NoError(t, err)
			states := map[string]string{}
			for _, p := range m.Params().All() {
				states[p.Name] = string(p.Tensor().Bytes())
			}
			c, err := autocast.Compare(context.Background(), plain, cast, f)
			require.NoError(t, err)
			for _, p := range m.Params().All() {
				require.Equal(t, states[p.Name], string(p.Tensor().Bytes()), "no state moves")
			}
			require.Len(t, c.Layers, len(report.Cast()))
			for i, l := range c.Layers {
				require.Equal(t, report.Cast()[i], l.Weight)
				require.Positive(t, l.Own)
				if name == "bf16" {
					require.Less(t, l.Own, 0.005) // measured at most 0.003
					continue
				}
				require.Less(t, l.Own, 0.05) // measured at most 0.04
				require.Equal(t, 32*plain.Node(strings.TrimSuffix(l.Weight, ".weight")).In()[0].Dim(-1), l.X.Elements)
				require.Zero(t, l.X.Saturated+l.W.Saturated+l.X.NaN)
			}
			require.InDelta(t, c.Layers[0].Own, c.Layers[0].Error, 0.01, "nothing stands before the first layer")
			require.Contains(t, c.String(), c.Worst().Weight)
			raw, err := c.JSON()
			require.NoError(t, err)
			var back autocast.Comparison
			require.NoError(t, json.Unmarshal(raw, &back))
			require.Equal(t, *c, back)
		})
	}
}

// TestCompareLetsStoredCodesBe: a linear that reads codes in both graphs was not cast.
func TestCompareLetsStoredCodesBe(t *testing.T) {
	m := newModel(t, tiny)
	_, report, err := autocast.FP8Inference(lossGraph(t, m), autocast.InferenceOptions{Filter: autocast.Filter{Include: []string{"*.up_proj.weight"}}})
	require.NoError(t, err)
	require.NoError(t, autocast.StoreFP8(m.Params(), report.Cast()))
	plain := lossGraph(t, m)
	cast, now, err := autocast.FP8(plain, autocast.Options{Filter: small})
	require.NoError(t, err)
	c, err := autocast.Compare(context.Background(), plain, cast, feeds(tiny, 0))
	require.NoError(t, err)
	require.Len(t, c.Layers, len(now.Cast()))
	require.Less(t, c.Worst().Own, 0.1)
	cast, _, err = autocast.FP8Inference(plain, autocast.InferenceOptions{Activations: autocast.PerRow, Filter: small})
	require.NoError(t, err)
	_, err = autocast.Compare(context.Background(), plain, cast, feeds(tiny, 0))
	require.EqualError(t, err, "autocast: Compare: model.layers.0.mlp.up_proj: the weight must be whole in both graphs, it is stored as float8_e4m3")
}

// TestCompareCounts holds the counts to inputs that are known: a history of
// small values makes large ones saturate, and one large value makes small ones
// vanish.
func TestCompareCounts(t *testing.T) {
	params := graph.NewParams()
	build := func() *graph.Builder {
		b := graph.New(graph.Share(params))
		y := ops.Linear(b.Input("x", dtype.Float32, 4, 128), b.Param("w.weight", 128, 128))
		loss, _ := ops.CrossEntropy(y, b.Input("labels", dtype.Int32, 4))
		b.Output("loss", loss)
		require.NoError(t, b.Err())
		return b
	}
	o := autocast.Options{Recipe: autocast.Delayed{History: 4}, Filter: autocast.Filter{Include: []string{"w.weight"}}}
	train, _, err := autocast.FP8(build(), o)
	require.NoError(t, err)
	w := params.Get("w.weight")
	for i := range graph.Data[float32](w.Tensor()) {
		graph.Data[float32](w.Tensor())[i] = float32(i%7) - 3
	}
	w.Touch()
	x := make([]float32, 4*128)
	for i := range x {
		x[i] = 1
	}
	newDescent(t, train).step(t, graph.Feeds{"x": x, "labels": make([]int32, 4)}) // the history holds 1
	cast, _, err := autocast.FP8(build(), o)
	require.NoError(t, err)
	x[0], x[1], x[2] = 100, -2, 1e-9
	c, err := autocast.Compare(context.Background(), build(), cast, graph.Feeds{"x": x})
	require.NoError(t, err)
	require.Equal(t, autocast.Counts{Elements: 512, Saturated: 2, Underflow: 1}, c.Layers[0].X)
	_, err = autocast.Compare(context.Background(), cast, cast, graph.Feeds{"x": x})
	require.EqualError(t, err, "autocast: Compare: w is no linear in the first graph: it must be the graph that the pass was given")
	none, err := autocast.Compare(context.Background(), build(), build(), nil)
	require.NoError(t, err)
	require.Nil(t, none.Worst())
}

// TestShareHasTheSameBits: what ops.Share finds out once gives the training that
// finds it out for every product.
func TestShareHasTheSameBits(t *testing.T) {
	fp8 := func(r autocast.Recipe) func(b *graph.Builder) (*graph.Builder, error) {
		return func(b *graph.Builder) (*graph.Builder, error) {
			b, _, err := autocast.FP8(b, autocast.Options{Recipe: r, Filter: small})
			return b, err
		}
	}
	bf16 := func(b *graph.Builder) (*graph.Builder, error) {
		b, _, err := autocast.BF16(b, autocast.Filter{})
		return b, err
	}
	for name, passes := range map[string][]func(b *graph.Builder) (*graph.Builder, error){
		"float32": nil, "bf16": {bf16}, "fp8": {fp8(nil)}, "delayed fp8 and bf16": {fp8(autocast.Delayed{History: 2}), bf16},
	} {
		t.Run(name, func(t *testing.T) {
			var losses [2][]float32
			var ops [2]map[string]int
			for i, compile := range []func(t testing.TB, b *graph.Builder) *descent{newDescent, newSharing} {
				b := lossGraph(t, newModel(t, tiny))
				for _, pass := range passes {
					var err error
					b, err = pass(b)
					require.NoError(t, err)
				}
				d := compile(t, b)
				for k := range 4 {
					losses[i] = append(losses[i], d.step(t, feeds(tiny, k)))
				}
				ops[i] = map[string]int{}
				for _, n := range d.run.Plan().Nodes() {
					if n.Op() != nil {
						ops[i][n.Op().Name()]++
					}
				}
			}
			require.Equal(t, losses[0], losses[1])
			switch {
			case len(passes) == 0:
				require.Equal(t, ops[0], ops[1])
			case name == "fp8":
				require.NotZero(t, ops[1]["swiglu_measured"])
				require.NotZero(t, ops[1]["swiglu_grad_measured"])
			}
		})
	}
}
