package ops_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// fp8Net is loss = cross entropy of an FP8 linear of x [2,3,K] with bias.
type fp8Net struct {
	params *graph.Params
	recipe ops.FP8Recipe
	b      *graph.Builder
	y      *graph.Node
	loss   *graph.Node
	grads  []*graph.Node
	run    *graph.Native
	labels []int32
}

const fp8NetK, fp8NetN = 24, 40

// newFP8Net builds the training graph, or the evaluation graph, on params.
func newFP8Net(t *testing.T, params *graph.Params, r ops.FP8Recipe, train bool) *fp8Net {
	t.Helper()
	n := &fp8Net{params: params, recipe: r, b: graph.New(graph.Share(params))}
	x := n.b.Input("x", dtype.Float32, 2, 3, fp8NetK)
	labels := n.b.Input("labels", dtype.Int32, 2, 3)
	s := n.b.Scope("layers.%d", 0)
	n.y = ops.FP8Linear(x, s.Param("q_proj.weight", fp8NetN, fp8NetK), r, s.Param("q_proj.bias", fp8NetN))
	n.loss, _ = ops.CrossEntropy(n.y, labels)
	require.NoError(t, n.b.Err())
	outs := []*graph.Node{n.y, n.loss}
	if train {
		var err error
		n.grads, err = n.b.Grad(n.loss, n.b.Params()...)
		require.NoError(t, err)
		outs = append(outs, n.grads...)
	}
	require.NoError(t, graph.Verify(n.b))
	w := params.Get("layers.0.q_proj.weight")
	if !w.HasValue() {
		setWeight(params, 1)
		params.Get("layers.0.q_proj.bias").Touch()
	}
	n.labels = optest.Ints("labels", 6, fp8NetN)
	n.run = native0(t, n.b, outs...)
	return n
}

func native0(t *testing.T, b *graph.Builder, outs ...*graph.Node) *graph.Native {
	t.Helper()
	plan, err := b.Plan(outs...)
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	return run
}

// setWeight fills the weight with normals of the given largest magnitude.
func setWeight(params *graph.Params, amax float64) {
	p := params.Get("layers.0.q_proj.weight")
	w := optest.Normals("w", fp8NetN*fp8NetK, 1)
	top := 0.0
	for _, v := range w {
		top = max(top, math.Abs(v))
	}
	for i := range w {
		graph.Data[float32](p.Tensor())[i] = float32(w[i] / top * amax)
	}
	p.Touch()
}

// batch is normal x of a largest magnitude; an amax of NaN or infinity is that
// in every element.
func batch(amax float64) []float32 {
	x := make([]float32, 6*fp8NetK)
	for i, v := range optest.Normals("x", len(x), 1) {
		x[i] = float32(v)
	}
	top, _ := native.FP8TensorAmax(x)
	for i := range x {
		if amax-amax != 0 {
			x[i] = float32(amax)
		} else {
			x[i] = float32(float64(x[i]) / float64(top) * amax)
		}
	}
	return x
}

// step runs the graph once and returns the loss.
func (n *fp8Net) step(t *testing.T, x []float32) float32 {
	t.Helper()
	require.NoError(t, n.run.Do(context.Background(), graph.Feeds{"x": x, "labels": n.labels}))
	v, err := n.run.Value(n.loss)
	require.NoError(t, err)
	return graph.Data[float32](v)[0]
}

// state is the memory of the state of an operand. The offsets are those of
// fp8_recipe.go.
func (n *fp8Net) state(operand string) []float32 {
	return graph.Data[float32](n.params.Get("layers.0.q_proj.weight.fp8." + operand).Tensor())
}

const (
	stateStep = 2
	filled    = 3
	skipped   = 5
	amaxAt    = 6
	history   = 8
)

func (n *fp8Net) states() (all []float32) {
	for _, o := range []string{"x", "w", "g"} {
		all = append(all, n.state(o)...)
	}
	return all
}

func TestF02_StepsOfOddBatches(t *testing.T) {
	batches := []float64{0, 8, 1e-40, math.Inf(1), math.NaN(), 2, 2}
	least := float32(0x1p-126)
	for _, c := range []struct {
		recipe  ops.FP8Recipe
		steps   []float32
		skipped float32
	}{
		{ops.FP8Recipe{}, []float32{1, 8.0 / 448, least, least, least, 2.0 / 448, 2.0 / 448}, 3},
		// The step of the newest amax before; the zeros of the first batch leave none.
		{ops.FP8Recipe{History: 1, MostRecent: true}, []float32{1, 8.0 / 448, 8.0 / 448, least, least, least, 2.0 / 448}, 3},
		{ops.FP8Recipe{History: 16}, []float32{1, 8.0 / 448, 8.0 / 448, 8.0 / 448, 8.0 / 448, 8.0 / 448, 8.0 / 448}, 3},
		{ops.FP8Recipe{History: 2}, []float32{1, 8.0 / 448, 8.0 / 448, 8.0 / 448, 8.0 / 448, 8.0 / 448, 2.0 / 448}, 3},
	} {
		n := newFP8Net(t, graph.NewParams(), c.recipe, true)
		var got []float32
		for _, amax := range batches {
			n.step(t, batch(amax))
			got = append(got, n.state("x")[stateStep])
			for _, s := range n.states() {
				require.False(t, math.IsNaN(float64(s)) || math.IsInf(float64(s), 0))
			}
		}
		require.Equal(t, c.steps, got, c.recipe.String())
		require.Equal(t, c.skipped, n.state("x")[skipped])
		require.Equal(t, float32(6*fp8NetK), n.state("x")[7], "NaN is reported")
	}
}

// TestF03_LoadedWeightsGiveTheStep: weights that replace others are quantised by
// their own amax, and what the histories of x and g knew is dropped.
func TestF03_LoadedWeightsGiveTheStep(t *testing.T) {
	for _, r := range []ops.FP8Recipe{{}, {History: 16}, {History: 16, MostRecent: true}} {
		n := newFP8Net(t, graph.NewParams(), r, true)
		setWeight(n.params, 3)
		for range 3 {
			n.step(t, batch(5))
		}
		require.Equal(t, float32(3.0/448), n.state("w")[stateStep])
		setWeight(n.params, 0.02)
		n.step(t, batch(1))
		require.Equal(t, float32(float32(0.02)/448), n.state("w")[stateStep], r.String())
		require.Equal(t, float32(1.0/448), n.state("x")[stateStep])
		if r.History > 0 {
			require.Equal(t, float32(1), n.state("w")[filled])
			require.Equal(t, float32(1), n.state("x")[filled])
			require.Equal(t, float32(1), n.state("g")[filled])
		}
		// An evaluation before the first training step sees them too.
		eval := newFP8Net(t, n.params, r, false)
		setWeight(n.params, 7)
		before := n.states()
		requireLinear(t, eval, batch(1), 7.0/448)
		require.Equal(t, before, n.states())
	}
}

// requireLinear compares y of a run with the oracle on the grid of stepW.
func requireLinear(t *testing.T, n *fp8Net, x []float32, stepW float64) {
	t.Helper()
	n.step(t, x)
	v, err := n.run.Value(n.y)
	require.NoError(t, err)
	bx, bw := optest.PerTensor(6, fp8NetK), optest.PerTensor(fp8NetN, fp8NetK)
	x64 := optest.Float64s(x)
	amax, _ := bx.Amax(x64)
	w64 := optest.Float64s(graph.Data[float32](n.params.Get("layers.0.q_proj.weight").Tensor()))
	sx, sw := []float64{optest.QuantStep(amax[0], 1, optest.E4M3, 0)}, []float64{float64(float32(stepW))}
	qx := optest.Quantized{Blocks: bx, Format: optest.E4M3, Codes: bx.Quantize(x64, sx, optest.E4M3), Steps: sx}
	qw := optest.Quantized{Blocks: bw, Format: optest.E4M3, Codes: bw.Quantize(w64, sw, optest.E4M3), Steps: sw}
	optest.RequireClose(t, "y", graph.Data[float32](v), optest.FP8Linear(qx, qw, nil, 6, fp8NetN, fp8NetK), optest.Float32, 4)
}

// TestF04_StatesResumeBitForBit: six steps are three, a copy of every parameter
// and state by name, and three.
func TestF04_StatesResumeBitForBit(t *testing.T) {
	r := ops.FP8Recipe{History: 4}
	data := func(i int) []float32 { return batch(float64(1 + i*i%5)) }
	n := newFP8Net(t, graph.NewParams(), r, true)
	descend := func(n *fp8Net) {
		for i, p := range n.b.Params() {
			g, err := n.run.Value(n.grads[i])
			require.NoError(t, err)
			for j, d := range graph.Data[float32](g) {
				graph.Data[float32](p.Param().Tensor())[j] -= 0.1 * d
			}
			p.Param().Touch()
		}
	}
	for i := range 3 {
		n.step(t, data(i))
		descend(n)
	}
	copied := graph.NewParams()
	m := newFP8Net(t, copied, r, true)
	require.Equal(t, len(n.params.All()), len(copied.All()))
	for _, p := range n.params.All() {
		q := copied.Get(p.Name)
		copy(q.Tensor().Bytes(), p.Tensor().Bytes())
		q.Touch()
	}
	for i := range 3 {
		require.Equal(t, n.step(t, data(3+i)), m.step(t, data(3+i)))
		require.Equal(t, n.states(), m.states())
		descend(n)
		descend(m)
	}
}

func TestF09_EvaluationMovesNoState(t *testing.T) {
	for _, r := range []ops.FP8Recipe{{}, {History: 16}} {
		params := graph.NewParams()
		train, eval := newFP8Net(t, params, r, true), newFP8Net(t, params, r, false)
		alone := newFP8Net(t, graph.NewParams(), r, true)
		for range 3 {
			train.step(t, batch(4))
			alone.step(t, batch(4))
		}
		before := train.states()
		first := eval.step(t, batch(100))
		// A forward pass of the training graph alone is no training step either.
		forward := native0(t, train.b, train.loss)
		require.NoError(t, forward.Do(context.Background(), graph.Feeds{"x": batch(100), "labels": train.labels}))
		// The weight changes between two evaluations: the second sees it.
		w := graph.Data[float32](params.Get("layers.0.q_proj.weight").Tensor())
		kept := slices.Clone(w)
		for i := range w {
			w[i] *= 1.5
		}
		params.Get("layers.0.q_proj.weight").Touch()
		require.NotEqual(t, first, eval.step(t, batch(100)), "the quantised weight is refreshed")
		copy(w, kept)
		params.Get("layers.0.q_proj.weight").Touch()
		require.Equal(t, first, eval.step(t, batch(100)))
		require.Equal(t, before, train.states())
		require.Equal(t, alone.step(t, batch(4)), train.step(t, batch(4)))
		require.Equal(t, alone.states(), train.states())
	}
}

func TestF10_AmaxOfRawValuesIsRecorded(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 16}, true)
	for range 2 {
		n.step(t, batch(10))
		require.Equal(t, float32(10), n.state("x")[amaxAt])
		require.Equal(t, float32(10), n.state("x")[history])
		require.Equal(t, float32(10.0/448), n.state("x")[stateStep])
	}
	require.Equal(t, float32(2), n.state("x")[filled])
}

// TestOneInfinityDoesNotStayInTheHistory: the step of the next steps is that of
// the finite ones.
func TestOneInfinityDoesNotStayInTheHistory(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 4}, true)
	for i, amax := range []float64{3, math.Inf(-1), 3, 2, 2, 2, 2, 2} {
		n.step(t, batch(amax))
		want := float32(3.0 / 448)
		if i == 7 { // the 3s have left the window of four
			want = 2.0 / 448
		}
		require.Equal(t, want, n.state("x")[stateStep], i)
	}
	require.Equal(t, float32(1), n.state("x")[skipped])
}

// TestGradientOfTheWeightAloneRecordsItsAmax: a backward pass for w without one
// for x sees the gradient all the same.
func TestGradientOfTheWeightAloneRecordsItsAmax(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 16}, true)
	n.run = native0(t, n.b, n.loss, n.grads[0])
	require.NotContains(t, n.run.Plan().String(), "fp8_linear_grad_x", "x is an input: nobody asks for its gradient")
	var first []byte
	for i := range 20 {
		n.step(t, batch(3))
		require.Positive(t, n.state("g")[amaxAt])
		v, err := n.run.Value(n.grads[0])
		require.NoError(t, err)
		if i == 0 {
			first = slices.Clone(v.Bytes())
		}
		require.Equal(t, first, v.Bytes(), "the same step gives the same gradient at step %d", i)
	}
	require.Equal(t, float32(0), n.state("g")[skipped])
}

// TestBackwardUsesFP8OutsideAnyContext: the backward pass of a training graph is
// made of FP8 ops, whatever runs it and whatever the shape of the weight.
func TestBackwardUsesFP8OutsideAnyContext(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{}, true)
	text := n.run.Plan().String()
	for _, op := range []string{"fp8_linear", "fp8_linear_grad_g", "fp8_linear_grad_w", "linear_grad_b"} {
		require.Contains(t, text, op)
	}
	tape, err := n.b.Tape(n.run.Plan().Outputs...)
	require.NoError(t, err)
	feeds := graph.Feeds{"x": batch(3), "labels": n.labels}
	for range 2 {
		require.NoError(t, n.run.Do(context.Background(), feeds))
		require.NoError(t, tape.Do(feeds))
		for _, o := range n.run.Plan().Outputs {
			a, err := n.run.Value(o)
			require.NoError(t, err)
			b, err := tape.Value(o)
			require.NoError(t, err)
			require.Equal(t, a.Bytes(), b.Bytes(), o.Name())
		}
	}
	require.NoError(t, tape.Close())
}

func TestTwoModelsShareNoState(t *testing.T) {
	a := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 16}, true)
	b := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 16}, true)
	before := b.states()
	a.step(t, batch(77))
	require.Equal(t, before, b.states())
	b.step(t, batch(1))
	require.Equal(t, float32(1.0/448), b.state("x")[stateStep])
	require.Equal(t, float32(77.0/448), a.state("x")[stateStep])
}

// TestAWeightUsedTwiceHasAStateForEachUse, and the second finds its own after a
// rebuild.
func TestAWeightUsedTwiceHasAStateForEachUse(t *testing.T) {
	params := graph.NewParams()
	for range 2 {
		b := graph.New(graph.Share(params))
		w := b.Param("w.weight", 8, 8)
		y := ops.FP8Linear(ops.FP8Linear(b.Input("x", dtype.Float32, 2, 8), w, ops.FP8Recipe{}), w, ops.FP8Recipe{})
		loss, _ := ops.CrossEntropy(y, b.Input("labels", dtype.Int32, 2))
		_, err := b.Grad(loss, w)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
	}
	var names []string
	for _, p := range params.All() {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"w.weight", "w.weight.fp8.x", "w.weight.fp8.w", "w.weight.fp8.g",
		"w.weight.fp8.2.x", "w.weight.fp8.2.w", "w.weight.fp8.2.g"}, names)
}

func TestStatsReadTheStates(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 2, Margin: 1}, true)
	require.Len(t, ops.FP8Stats(n.params), 3)
	require.False(t, ops.FP8Stats(n.params)[0].Recorded)
	for _, amax := range []float64{3, 4, 0, 5} {
		n.step(t, batch(amax))
	}
	s := ops.FP8Stats(n.params)
	require.Equal(t, ops.FP8Stat{State: "layers.0.q_proj.weight.fp8.x", Recipe: "delayed (history 2, max), margin 1, hybrid",
		Step: 2 * 4.0 / 448, Amax: 5, History: []float32{4, 5}, Skipped: 1, Recorded: true}, s[0])
	require.Equal(t, "layers.0.q_proj.weight.fp8.w", s[1].State)
	require.Equal(t, "layers.0.q_proj.weight.fp8.g", s[2].State)
}

func TestStateOfAnotherRecipeIsRefused(t *testing.T) {
	params := graph.NewParams()
	newFP8Net(t, params, ops.FP8Recipe{History: 16}, true).step(t, batch(1))
	n := newFP8Net(t, params, ops.FP8Recipe{History: 16, MostRecent: true}, true)
	err := n.run.Do(context.Background(), graph.Feeds{"x": batch(1), "labels": n.labels})
	require.EqualError(t, err, "layers.0: fp8_linear: the state layers.0.q_proj.weight.fp8.x is of the recipe delayed (history 16, max), hybrid, the graph has delayed (history 16, most recent), hybrid")
	b := graph.New(graph.Share(params))
	s := b.Scope("layers.0")
	ops.FP8Linear(b.Input("x", dtype.Float32, 2, 3, fp8NetK), s.Param("q_proj.weight", fp8NetN, fp8NetK), ops.FP8Recipe{History: 4})
	require.EqualError(t, b.Err(), "layers.0: fp8_linear: the state layers.0.q_proj.weight.fp8.x is of the recipe delayed (history 16, max), hybrid, the graph has delayed (history 4, max), hybrid")
}

func TestBadStepsAreRefused(t *testing.T) {
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		b := graph.New()
		steps := b.Input("steps", dtype.Float32, 2, 1)
		k := ops.FP8Block{Rows: 1}
		codes := ops.Quantize(b.Input("x", dtype.Float32, 2, 3), steps, native.E4M3, k, false)
		run := native0(t, b, codes)
		err := run.Do(context.Background(), graph.Feeds{"x": make([]float32, 6), "steps": []float32{1, float32(bad)}})
		require.EqualError(t, err, fmt.Sprintf("quantize: steps must be positive and finite, number 1 is %g", bad))
	}
}

// TestFP8MatMulRoundsOnce compares the 16-bit results with the float32 one.
func TestFP8MatMulRoundsOnce(t *testing.T) {
	b := graph.New()
	x, w := b.Input("x", dtype.Float32, 5, 40), b.Input("w", dtype.Float32, 7, 40)
	one := ops.FP8Block{}
	sx, sw := ops.FP8Steps(x, native.E5M2, one, 0), ops.FP8Steps(w, native.E4M3, one, 0)
	x8, w8 := ops.Quantize(x, sx, native.E5M2, one, false), ops.Quantize(w, sw, native.E4M3, one, false)
	var outs []*graph.Node
	for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
		outs = append(outs, ops.FP8MatMul(x8, w8, sx, sw, ops.FP8MatMulOp{TransB: true, Output: dt}))
	}
	require.NoError(t, b.Err())
	run := native0(t, b, outs...)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{
		"x": optest.Cast[float32](optest.Normals("x", 200, 1)), "w": optest.Cast[float32](optest.Normals("w", 280, 1))}))
	var ts []graph.Tensor
	for _, o := range outs {
		v, err := run.Value(o)
		require.NoError(t, err)
		ts = append(ts, v)
	}
	for i, v := range graph.Data[float32](ts[0]) {
		require.Equal(t, dtype.ToBF16(v), graph.Data[dtype.BF16](ts[1])[i])
		require.Equal(t, dtype.ToF16(v), graph.Data[dtype.F16](ts[2])[i])
	}
}

// TestFP8TrainingStepDoesNotAllocate in a steady state.
func TestFP8TrainingStepDoesNotAllocate(t *testing.T) {
	n := newFP8Net(t, graph.NewParams(), ops.FP8Recipe{History: 16}, true)
	feeds := graph.Feeds{"x": batch(3), "labels": n.labels}
	w := n.params.Get("layers.0.q_proj.weight")
	run := func() {
		w.Touch()
		if err := n.run.Do(context.Background(), feeds); err != nil {
			panic(err)
		}
	}
	for range 5 {
		run()
	}
	require.Zero(t, testing.AllocsPerRun(20, run))
}

// TestNarrowWeightsAreQuantisedAsTheyAre: a bf16 or f16 leaf gives the bits of
// its float32 form.
func TestNarrowWeightsAreQuantisedAsTheyAre(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		narrow, wide := graph.NewParams(), graph.NewParams()
		p, err := narrow.Add("w", graph.T(dt, 33, 40), false)
		require.NoError(t, err)
		q, err := wide.Add("w", graph.T(dtype.Float32, 33, 40), false)
		require.NoError(t, err)
		w := optest.Cast[float32](optest.Normals("w", 33*40, 1))
		if dt == dtype.BFloat16 {
			dtype.FromFloat32(graph.Data[dtype.BF16](p.Tensor()), w)
			dtype.ToFloat32(graph.Data[float32](q.Tensor()), graph.Data[dtype.BF16](p.Tensor()))
		} else {
			dtype.FromFloat32(graph.Data[dtype.F16](p.Tensor()), w)
			dtype.ToFloat32(graph.Data[float32](q.Tensor()), graph.Data[dtype.F16](p.Tensor()))
		}
		p.Touch()
		q.Touch()
		var got [2][]byte
		for i, params := range []*graph.Params{narrow, wide} {
			b := graph.New(graph.Share(params))
			y := ops.FP8Linear(b.Input("x", dtype.Float32, 5, 40), b.Param("w", 33, 40), ops.FP8Recipe{})
			run := native0(t, b, y)
			require.NoError(t, run.Do(context.Background(), graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", 200, 1))}))
			v, err := run.Value(y)
			require.NoError(t, err)
			got[i] = slices.Clone(v.Bytes())
		}
		require.Equal(t, got[1], got[0])
	}
}

// A weight whose writer says what it measured has the bits of one that is read
// again, and its codes are there when the next pass asks.
func TestFP8MeasuredWeightsAreAsReadAgain(t *testing.T) {
	for _, r := range []ops.FP8Recipe{{}, {History: 3}, {Format: ops.OnlyE5M2, History: 2, MostRecent: true}} {
		var results [2][]float32
		for way := range results {
			n := newFP8Net(t, graph.NewParams(), r, true)
			w := n.params.Get("layers.0.q_proj.weight")
			for step, amax := range []float64{1, 1.1, 0.9, 5, 0, 2, math.Inf(1), 1} {
				setWeight(n.params, amax)
				if way == 1 {
					w.Measured(native.FP8TensorAmax(graph.Data[float32](w.Tensor())))
				}
				results[way] = append(append(results[way], n.step(t, batch(1+float64(step)))), n.states()...)
				for _, g := range n.grads {
					v, err := n.run.Value(g)
					require.NoError(t, err)
					results[way] = append(results[way], graph.Data[float32](v)...)
				}
			}
		}
		require.Equal(t, len(results[0]), len(results[1]))
		for i, v := range results[0] {
			require.Equal(t, math.Float32bits(v), math.Float32bits(results[1][i]), "%s, number %d", r, i)
		}
	}
}
