// Package cases holds the case tables of the ops and the loop that runs them:
// each case goes through the op's constructor, a graph, a plan and an executor,
// forward and gradient, and is compared with its float64 oracle. One table
// serves the native executor and, on a machine with a device, CUDA.
package cases

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
)

// Input is one input of a case: its type and its values. Float values come
// from F in float64, rounded to the precision of the run.
type Input struct {
	Name  string
	Shape []int
	F     []float64 // a float input
	I     []int32   // an int32 input
	Step  []int64   // an int64 input
	Keep  []bool    // a bool input
	State bool      // a float input that the op writes to
}

// Normal is a float input of normal numbers, a function of its name and shape.
func Normal(name string, shape ...int) Input {
	return Input{Name: name, Shape: shape, F: optest.Normals(fmt.Sprint(name, shape), size(shape), 1)}
}

// Ints is an int32 input with values below n.
func Ints(name string, n int, shape ...int) Input {
	return Input{Name: name, Shape: shape, I: optest.Ints(fmt.Sprint(name, shape), size(shape), n)}
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Case is one use of an op.
type Case struct {
	Op   string
	Name string
	In   []Input

	// Build applies the op to the inputs and returns its results; a nil result
	// is not compared.
	Build func(in []*graph.Node) []*graph.Node

	// Oracle gives the results from the inputs in float64; Grad the gradient of
	// each float input (nil for the others) from those of the results.
	Oracle func(in []Input) [][]float64
	Grad   func(in []Input, dout [][]float64) [][]float64

	// C and CGrad bound the error in unit roundoffs of the stored output; in
	// float64, where the oracle rounds too, by oracleRoundoff times as much.
	C, CGrad float64

	// Err, when set, is the exact error of building the case.
	Err string
}

// Executor runs a plan once: it is native's, or that of a device.
type Executor func(p *graph.Plan, feeds graph.Feeds) ([]graph.Tensor, error)

// Native runs a plan with the bodies in Go on an arena full of NaN.
func Native(p *graph.Plan, feeds graph.Feeds) ([]graph.Tensor, error) {
	run, err := p.Native(graph.Poison())
	if err != nil {
		return nil, err
	}
	if err := run.Do(context.Background(), feeds); err != nil {
		return nil, err
	}
	var ts []graph.Tensor
	for _, o := range p.Outputs {
		t, err := run.Value(o)
		if err != nil {
			return nil, err
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// leaf declares an input on the graph and adds its values to the feeds.
func (in Input) leaf(b *graph.Builder, feeds graph.Feeds) *graph.Node {
	switch {
	case in.I != nil:
		feeds[in.Name] = in.I
		return b.Input(in.Name, dtype.Int32, in.Shape...)
	case in.Step != nil:
		feeds[in.Name] = in.Step
		return b.Input(in.Name, dtype.Int64, in.Shape...)
	case in.Keep != nil:
		feeds[in.Name] = in.Keep
		return b.Input(in.Name, dtype.Bool, in.Shape...)
	}
	if in.State {
		n := b.State(in.Name, b.Float(), in.Shape...)
		store(n.Param().Tensor(), in.F)
		return n
	}
	feeds[in.Name] = cast(b.Float(), in.F)
	return b.Input(in.Name, b.Float(), in.Shape...)
}

func cast(dt dtype.DType, f []float64) any {
	if dt == dtype.Float64 {
		return f
	}
	return optest.Cast[float32](f)
}

// rounded is the case's inputs as the run sees them.
func rounded(dt dtype.DType, in []Input) []Input {
	out := append([]Input(nil), in...)
	if dt == dtype.Float32 {
		for i := range out {
			if out[i].F != nil {
				out[i].F = optest.Float64s(optest.Cast[float32](out[i].F))
			}
		}
	}
	return out
}

// oracleRoundoff: an oracle sums a row in one chain, and in float64 that costs
// as much as the body's own rounding or a few times more (measured up to 6).
const oracleRoundoff = 8

func unit(dt dtype.DType) optest.Precision {
	if dt == dtype.Float64 {
		return oracleRoundoff * optest.Float64
	}
	return optest.Float32
}

// Forward builds the case, runs it and compares every result.
func (c Case) Forward(t optest.TestingT, dt dtype.DType, exec Executor) {
	t.Helper()
	b, feeds := graph.New(graph.Float(dt)), graph.Feeds{}
	results := c.results(b, feeds)
	if c.Err != "" {
		if b.Err() == nil || b.Err().Error() != c.Err {
			t.Errorf("%s %s: error %v, want %s", c.Op, c.Name, b.Err(), c.Err)
		}
		return
	}
	got, ok := c.run(t, b, feeds, exec, results)
	if !ok {
		return
	}
	for i, want := range c.Oracle(rounded(dt, c.In)) {
		if results[i] == nil {
			continue
		}
		d := optest.RequireClose(t, fmt.Sprintf("%s %s: result %d", c.Op, c.Name, i), floats(got[0]), want, unit(dt), c.C, results[i].Shape()...)
		report(t, c, dt, fmt.Sprint("result ", i), d.RMS/float64(unit(dt)))
		got = got[1:]
	}
}

// Gradient builds the case with a loss that weighs every result with random
// numbers, and compares the gradient of every float input with the oracle's.
func (c Case) Gradient(t optest.TestingT, dt dtype.DType, exec Executor) {
	t.Helper()
	if c.Grad == nil {
		return
	}
	b, feeds := graph.New(graph.Float(dt)), graph.Feeds{}
	results := c.results(b, feeds)
	in := rounded(dt, c.In)
	var dout [][]float64
	var loss *graph.Node
	for i, want := range c.Oracle(in) {
		w := Normal(fmt.Sprint("weights of result ", i), len(want))
		if results[i] == nil {
			dout = append(dout, make([]float64, len(want)))
			continue
		}
		for j, y := range want {
			if math.IsInf(y, 0) { // the lse of an empty row has no gradient
				w.F[j] = 0
			}
		}
		w = rounded(dt, []Input{w})[0]
		dout = append(dout, w.F)
		flat := graph.Apply(graph.Reshape{Shape: []int{len(want)}}, results[i])
		term := graph.Apply(weigh{}, flat, w.leaf(b, feeds))
		if loss == nil {
			loss = term
		} else {
			loss = graph.Apply(graph.Add{}, loss, term)
		}
	}
	var wrt []*graph.Node
	var of []int
	for i, x := range in {
		if x.F != nil && !x.State {
			wrt = append(wrt, b.Node(x.Name))
			of = append(of, i)
		}
	}
	grads, err := b.Grad(loss, wrt...)
	if err == nil {
		err = graph.Verify(b)
	}
	if err != nil {
		t.Errorf("%s %s: %v", c.Op, c.Name, err)
		return
	}
	got, ok := c.run(t, b, feeds, exec, grads)
	if !ok {
		return
	}
	want := c.Grad(in, dout)
	for k, i := range of {
		d := optest.RequireClose(t, fmt.Sprintf("%s %s: gradient of %s", c.Op, c.Name, in[i].Name), floats(got[k]), want[i], unit(dt), c.CGrad, in[i].Shape...)
		report(t, c, dt, "gradient of "+in[i].Name, d.RMS/float64(unit(dt)))
	}
}

func (c Case) results(b *graph.Builder, feeds graph.Feeds) []*graph.Node {
	var in []*graph.Node
	for _, x := range c.In {
		in = append(in, x.leaf(b, feeds))
	}
	return c.Build(in)
}

// Plan is the plan of the case's results, with what it is fed.
func (c Case) Plan(dt dtype.DType) (*graph.Plan, graph.Feeds, error) {
	b, feeds := graph.New(graph.Float(dt)), graph.Feeds{}
	p, err := planOf(b, c.results(b, feeds))
	if err != nil {
		return nil, nil, err
	}
	return p, needed(p, feeds), nil
}

func planOf(b *graph.Builder, nodes []*graph.Node) (*graph.Plan, error) {
	return b.Plan(slices.DeleteFunc(slices.Clone(nodes), func(n *graph.Node) bool { return n == nil })...)
}

func (c Case) run(t optest.TestingT, b *graph.Builder, feeds graph.Feeds, exec Executor, nodes []*graph.Node) ([]graph.Tensor, bool) {
	t.Helper()
	var got []graph.Tensor
	p, err := planOf(b, nodes)
	if err == nil {
		got, err = exec(p, needed(p, feeds))
	}
	if err != nil {
		t.Errorf("%s %s: %v", c.Op, c.Name, err)
		return nil, false
	}
	return got, true
}

// needed keeps the feeds that the plan asks for: a gradient may not depend on
// every input.
func needed(p *graph.Plan, feeds graph.Feeds) graph.Feeds {
	f := graph.Feeds{}
	for _, n := range p.Inputs() {
		f[n.Name()] = feeds[n.Name()]
	}
	return f
}

// report logs the measured error beside its bound where the test can log.
func report(t optest.TestingT, c Case, dt dtype.DType, what string, units float64) {
	if l, ok := t.(interface{ Logf(string, ...any) }); ok {
		l.Logf("%s %s in %s: %s: %.2f roundoffs (bounds %g, %g)", c.Op, c.Name, dt, what, units, c.C, c.CGrad)
	}
}

// floats reads a result; whole numbers are exact.
func floats(t graph.Tensor) []float64 {
	switch t.DType {
	case dtype.Float64:
		return graph.Data[float64](t)
	case dtype.Int32:
		var f []float64
		for _, v := range graph.Data[int32](t) {
			f = append(f, float64(v))
		}
		return f
	}
	return optest.Float64s(graph.Data[float32](t))
}

// All lists every case.
func All() []Case {
	var all []Case
	for _, table := range tables {
		all = append(all, table()...)
	}
	return all
}

var tables []func() []Case
