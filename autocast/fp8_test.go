package autocast_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

var tiny = models.Config{Type: "qwen3", Vocab: 96, Hidden: 32, FFN: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8,
	Context: 16, NormEps: 1e-6, RopeTheta: 1e4, QKNorm: true, QKVBias: true, OutputBias: true}

// small makes every linear of the tiny model large enough.
var small = autocast.Filter{MinSize: 1}

func newModel(t testing.TB, c models.Config) *models.Transformer {
	t.Helper()
	m, err := models.New(c)
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	return m
}

// lossGraph is the loss of a batch [2,16] of the model.
func lossGraph(t testing.TB, m *models.Transformer) *graph.Builder {
	t.Helper()
	b := graph.New(graph.Share(m.Params()))
	loss, _ := m.Loss(b, 2, 16, 0, 0)
	b.Output("loss", loss)
	require.NoError(t, b.Err())
	return b
}

func feeds(c models.Config, step int) graph.Feeds {
	return graph.Feeds{
		"tokens": optest.Ints(fmt.Sprint("tokens", step), 2*c.Context, c.Vocab),
		"labels": optest.Ints(fmt.Sprint("labels", step), 2*c.Context, c.Vocab),
	}
}

// descent is plain gradient descent on a graph.
type descent struct {
	run    *graph.Native
	loss   *graph.Node
	grads  []*graph.Node
	params []*graph.Node
}

func newDescent(t testing.TB, b *graph.Builder) *descent {
	t.Helper()
	d := &descent{loss: b.Out("loss"), params: b.Params()}
	var err error
	d.grads, err = b.Grad(d.loss, d.params...)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(b))
	return d.compile(t)
}

// newSharing is newDescent after ops.Share.
func newSharing(t testing.TB, b *graph.Builder) *descent {
	t.Helper()
	d := newDescent(t, b)
	outputs, err := ops.Share(append([]*graph.Node{d.loss}, d.grads...)...)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(outputs[0].Builder()))
	d.loss, d.grads = outputs[0], outputs[1:]
	return d.compile(t)
}

func (d *descent) compile(t testing.TB) *descent {
	t.Helper()
	plan, err := d.loss.Builder().Plan(append([]*graph.Node{d.loss}, d.grads...)...)
	require.NoError(t, err)
	d.run, err = plan.Native(graph.Poison())
	require.NoError(t, err)
	return d
}

func (d *descent) step(t testing.TB, f graph.Feeds) float32 {
	t.Helper()
	require.NoError(t, d.run.Do(context.Background(), f))
	v, err := d.run.Value(d.loss)
	require.NoError(t, err)
	loss := graph.Data[float32](v)[0]
	for i, p := range d.params {
		g, err := d.run.Value(d.grads[i])
		require.NoError(t, err)
		w := graph.Data[float32](p.Param().Tensor())
		for j, x := range graph.Data[float32](g) {
			w[j] -= 0.5 * x
		}
		p.Param().Touch()
	}
	return loss
}

// planStep is a line of a plan without its places and sizes.
type planStep struct{ node, inputs string } // node: name, op and type of the first result

func planSteps(t testing.TB, b *graph.Builder) (lines []planStep) {
	t.Helper()
	p, err := b.Plan(b.Out("loss"))
	require.NoError(t, err)
	columns := regexp.MustCompile(`\s{2,}`)
	for _, l := range strings.Split(strings.TrimSpace(p.String()), "\n")[2:] {
		f := columns.Split(l, -1)
		first, _, _ := strings.Cut(f[3], " ")
		lines = append(lines, planStep{f[1] + " " + f[2] + " " + first, f[len(f)-1]})
	}
	return lines
}

func TestFP8ChangesOnlyTheEligibleLinears(t *testing.T) {
	m := newModel(t, tiny)
	b := lossGraph(t, m)
	before, err := b.Plan(b.Out("loss"))
	require.NoError(t, err)
	text := before.String()
	nb, report, err := autocast.FP8(b, autocast.Options{Filter: small})
	require.NoError(t, err)
	require.NoError(t, graph.Verify(nb))
	require.Len(t, report.Linears, 2*7+1)
	require.Len(t, report.Cast(), 2*7)
	was, is := planSteps(t, b), planSteps(t, nb)
	require.Equal(t, len(was), len(is))
	changed := 0
	for i := range was {
		if was[i] != is[i] {
			require.Equal(t, strings.Replace(was[i].node, " linear ", " fp8_linear ", 1), is[i].node)
			require.Contains(t, is[i].node, " fp8_linear ")
			changed++
		}
	}
	require.Equal(t, 14, changed)
	require.Equal(t, b.Store(), nb.Store(), "the weights are shared")
	p, err := b.Plan(b.Out("loss"))
	require.NoError(t, err)
	require.Equal(t, text, p.String(), "a pass leaves its input alone")
	var names, after []string
	for _, n := range b.Params() {
		names = append(names, n.Name())
	}
	for _, n := range nb.Params() {
		after = append(after, n.Name())
	}
	require.Equal(t, names, after, "parameters keep their order")
}

func TestFP8TwiceChangesNothing(t *testing.T) {
	m := newModel(t, tiny)
	o := autocast.Options{Recipe: autocast.Delayed{History: 4}, Filter: autocast.Filter{Exclude: []string{"*.o_proj.weight"}, MinSize: 1}}
	once, first, err := autocast.FP8(lossGraph(t, m), o)
	require.NoError(t, err)
	params := len(m.Params().All())
	twice, second, err := autocast.FP8(once, o)
	require.NoError(t, err)
	require.NoError(t, graph.Verify(twice))
	p, err := once.Plan(once.Out("loss"))
	require.NoError(t, err)
	q, err := twice.Plan(twice.Out("loss"))
	require.NoError(t, err)
	require.Equal(t, p.String(), q.String())
	require.Equal(t, first.Cast(), second.Cast())
	require.Equal(t, params, len(m.Params().All()), "no new states")
}

// TestWithoutThePassLossesAreThoseOfFloat32, also when FP8 graphs of the same
// model have been built and evaluated beside it.
func TestWithoutThePassLossesAreThoseOfFloat32(t *testing.T) {
	plain, both := newModel(t, tiny), newModel(t, tiny)
	fp8, _, err := autocast.FP8(lossGraph(t, both), autocast.Options{Filter: small})
	require.NoError(t, err)
	plan, err := fp8.Plan(fp8.Out("loss"))
	require.NoError(t, err)
	eval, err := plan.Native()
	require.NoError(t, err)
	a, b := newDescent(t, lossGraph(t, plain)), newDescent(t, lossGraph(t, both))
	for i := range 4 {
		require.NoError(t, eval.Do(context.Background(), feeds(tiny, i)))
		require.Equal(t, a.step(t, feeds(tiny, i)), b.step(t, feeds(tiny, i)))
	}
}

// TestF04_FP8TrainingResumes: six steps equal three, a copy of parameters and
// states, and three.
func TestF04_FP8TrainingResumes(t *testing.T) {
	for _, r := range []autocast.Recipe{autocast.Dynamic{}, autocast.Delayed{History: 4}, autocast.Delayed{History: 3, Algo: autocast.MostRecent, Margin: 1}} {
		start := func(m *models.Transformer) *descent {
			nb, _, err := autocast.FP8(lossGraph(t, m), autocast.Options{Recipe: r, Filter: small})
			require.NoError(t, err)
			return newDescent(t, nb)
		}
		m, n := newModel(t, tiny), newModel(t, tiny)
		a, b := start(m), start(n)
		for i := range 3 {
			a.step(t, feeds(tiny, i))
		}
		for _, p := range m.Params().All() {
			q := n.Params().Get(p.Name)
			copy(q.Tensor().Bytes(), p.Tensor().Bytes())
			q.Touch()
		}
		for i := range 3 {
			require.Equal(t, a.step(t, feeds(tiny, 3+i)), b.step(t, feeds(tiny, 3+i)))
		}
		for _, p := range m.Params().All() {
			require.Equal(t, p.Tensor().Bytes(), n.Params().Get(p.Name).Tensor().Bytes(), p.Name)
		}
	}
}

func TestPatterns(t *testing.T) {
	for name, c := range map[string]struct {
		filter autocast.Filter
		cast   int
		err    string
	}{
		"include":       {autocast.Filter{Include: []string{"model.layers.0.*"}}, 7, ""},
		"include head":  {autocast.Filter{Include: []string{"lm_head.weight"}}, 1, ""},
		"exclude":       {autocast.Filter{Exclude: []string{"*.[qk]_proj.weight"}, MinSize: 1}, 10, ""},
		"threshold":     {autocast.Filter{}, 0, ""},
		"own threshold": {autocast.Filter{MinSize: 32 * 48}, 6, ""},
		"nothing": {autocast.Filter{Include: []string{"*.q_prok.weight"}}, 0,
			`autocast: FP8: the pattern "*.q_prok.weight" matches no weight of a linear; near it: model.layers.0.self_attn.q_proj.weight, model.layers.1.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight`},
		"conflict": {autocast.Filter{Include: []string{"*.mlp.*"}, Exclude: []string{"*.up_proj.*"}}, 0,
			`autocast: FP8: model.layers.0.mlp.up_proj.weight is included by "*.mlp.*" and excluded by "*.up_proj.*"`},
		"malformed": {autocast.Filter{Exclude: []string{"[a"}}, 0,
			`autocast: FP8: the pattern "[a" is malformed: a class must be closed and no escape may end it`},
		"negative": {autocast.Filter{MinSize: -1}, 0, "autocast: FP8: MinSize must be 0 (16384) or more, got -1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, report, err := autocast.FP8(lossGraph(t, newModel(t, tiny)), autocast.Options{Filter: c.filter})
			if c.err != "" {
				require.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Len(t, report.Cast(), c.cast, report.Explain())
		})
	}
}

func TestDefaultExclusions(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 4, 16)
	for _, w := range []string{"attn.q_proj.weight", "mlp.gate.weight", "router.weight", "pre_norm_proj.weight", "output.weight", "wte.weight"} {
		ops.Linear(x, b.Param(w, 16, 16))
	}
	ops.Linear(x, b.Input("made.weight", dtype.Float32, 16, 16))
	ops.SwiGLU(ops.Linear(x, b.Param("unit.gate.weight", 16, 16)), ops.Linear(x, b.Param("unit.up.weight", 16, 16)))
	table := b.Param("tok.table", 16, 16) // found by its use, not by its name
	ops.Linear(ops.Embedding(b.Input("ids", dtype.Int32, 4), table), table)
	logits := ops.Reshape(ops.Linear(x, b.Param("readout.weight", 16, 16)), 2, 2, 16)
	loss, _ := ops.CrossEntropy(logits, b.Input("labels", dtype.Int32, 2, 2))
	b.Output("loss", loss)
	require.NoError(t, b.Err())
	_, report, err := autocast.FP8(b, autocast.Options{Filter: small})
	require.NoError(t, err)
	got := map[string]string{}
	for _, d := range report.Linears {
		got[d.Weight] = d.Reason
	}
	require.Equal(t, map[string]string{
		"attn.q_proj.weight": "eligible", "mlp.gate.weight": "router", "router.weight": "router", "pre_norm_proj.weight": "norm",
		"output.weight": "output head", "wte.weight": "embedding table", "made.weight": "the weight is no parameter",
		"unit.gate.weight": "eligible", "unit.up.weight": "eligible",
		"tok.table": "embedding table", "readout.weight": "output head",
	}, got)
}

func TestExplain(t *testing.T) {
	b := lossGraph(t, newModel(t, tiny))
	_, report, err := autocast.FP8(b, autocast.Options{Recipe: autocast.Delayed{History: 16}, Filter: autocast.Filter{MinSize: 32 * 48}})
	require.NoError(t, err)
	lines := strings.Split(report.Explain(), "\n")
	require.Equal(t, "fp8, delayed (history 16, max), hybrid: 6 of 15 linears, 50.0% of their work", lines[0])
	require.Regexp(t, `^weight +shape +decision +reason$`, lines[1])
	require.Regexp(t, `^model\.layers\.0\.self_attn\.q_proj\.weight +\[32,32\] +as it was +small: 1024 elements, the threshold is 1536$`, lines[2])
	require.Regexp(t, `^model\.layers\.0\.mlp\.gate_proj\.weight +\[48,32\] +fp8 +eligible$`, lines[6])
	require.Regexp(t, `^lm_head\.weight +\[96,32\] +as it was +output head$`, lines[16])
	raw, err := report.JSON()
	require.NoError(t, err)
	var back autocast.Report
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, *report, back)
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]autocast.Options{
		"autocast: FP8: Delayed needs a History of 1 or more, got 0":                {Recipe: autocast.Delayed{}},
		"autocast: FP8: the recipe is missing: a nil *autocast.Delayed":             {Recipe: (*autocast.Delayed)(nil)},
		"autocast: FP8: Delayed needs a History of 1 or more, got -3":               {Recipe: autocast.Delayed{History: -3}},
		"autocast: FP8: the Algo must be Max or MostRecent, got 7":                  {Recipe: autocast.Delayed{History: 1, Algo: 7}},
		"autocast: FP8: the margin must be -64 to 64, got 100":                      {Recipe: autocast.Dynamic{Margin: 100}},
		"autocast: FP8: the history must be 0 (dynamic) to 65536 steps, got 100000": {Recipe: autocast.Delayed{History: 100000}},
		"autocast: FP8: the format must be hybrid, E4M3 or E5M2, got policy 5":      {Format: 5},
	} {
		_, _, err := autocast.FP8(lossGraph(t, newModel(t, tiny)), o)
		require.EqualError(t, err, want)
	}
	m := newModel(t, tiny)
	b := lossGraph(t, m)
	_, err := b.Grad(b.Out("loss"), b.Params()...)
	require.NoError(t, err)
	_, _, err = autocast.FP8(b, autocast.Options{})
	require.EqualError(t, err, "autocast: FP8: the gradient of the graph was taken already: run the pass before Grad, or the backward pass would keep the old precision")
	_, _, err = autocast.FP8(nil, autocast.Options{})
	require.EqualError(t, err, "autocast: FP8: graph: the builder is missing: New makes one")
	_, err = autocast.Compare(context.Background(), lossGraph(t, m), nil, nil)
	require.EqualError(t, err, "autocast: Compare: graph: the builder is missing: New makes one")
	_, err = autocast.NewCalibrator(nil)
	require.EqualError(t, err, "autocast: calibration: graph: the builder is missing: New makes one")
	require.EqualError(t, autocast.StoreFP8(nil, []string{"w"}), "autocast: StoreFP8: the parameters are missing (nil)")

	b = graph.New(graph.Share(m.Params()))
	autocast.Train(m, autocast.Options{Recipe: autocast.Delayed{}}).Loss(b, 1, 4, 0, 0)
	require.EqualError(t, b.Err(), "autocast: FP8: Delayed needs a History of 1 or more, got 0")
	b = graph.New(graph.Share(m.Params()))
	autocast.Train(m, autocast.Options{}).Loss(b, 0, 4, 0, 0)
	require.EqualError(t, b.Err(), "tokens: dimension 0 of [0,4] is 0, every dimension must be at least 1")

	// A run in FP8 that would multiply nothing in FP8 says so.
	for want, f := range map[string]autocast.Filter{
		"small: 1024 elements, the threshold is 16384": {},
		`excluded by "*"`: {Exclude: []string{"*"}},
	} {
		b = graph.New(graph.Share(m.Params()))
		autocast.Train(m, autocast.Options{Filter: f}).Loss(b, 1, 4, 0, 0)
		require.EqualError(t, b.Err(), "autocast: FP8: it takes none of the 15 linears of the model: the first, model.layers.0.self_attn.q_proj.weight [32,32], stays since "+want+"; Filter says which it takes")
	}
}

// TestFrozenWeightsTakePart: the base under adapters multiplies in FP8 and gets
// no gradient.
func TestFrozenWeightsTakePart(t *testing.T) {
	m := newModel(t, tiny)
	p := m.Params().Get("model.layers.0.mlp.up_proj.weight")
	p.Frozen = true
	b, report, err := autocast.FP8(lossGraph(t, m), autocast.Options{Filter: small})
	require.NoError(t, err)
	require.Contains(t, report.Cast(), p.Name)
	before := string(p.Tensor().Bytes())
	d := newDescent(t, b)
	d.step(t, feeds(tiny, 0))
	require.Equal(t, before, string(p.Tensor().Bytes()))
	require.Less(t, strings.Count(d.run.Plan().String(), " fp8_linear_grad_w "), 14)
}

// TestTwoRecipesOnOneModelAreRefused: the states of one cannot serve the other.
func TestTwoRecipesOnOneModelAreRefused(t *testing.T) {
	m := newModel(t, tiny)
	_, _, err := autocast.FP8(lossGraph(t, m), autocast.Options{Recipe: autocast.Delayed{History: 4}, Filter: small})
	require.NoError(t, err)
	_, _, err = autocast.FP8(lossGraph(t, m), autocast.Options{Recipe: autocast.Delayed{History: 8}, Filter: small})
	require.EqualError(t, err, "autocast: FP8: model.layers.0.self_attn: fp8_linear: the state model.layers.0.self_attn.q_proj.weight.fp8.x is of the recipe delayed (history 4, max), hybrid, the graph has delayed (history 8, max), hybrid")
}
