package autocast

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// Counts says what quantisation did to the elements of an operand.
type Counts struct {
	Elements  int `json:"elements"`
	Saturated int `json:"saturated"` // nearer to what would follow the largest finite value
	Underflow int `json:"underflow"` // not 0, but 0 when quantised
	NaN       int `json:"nan"`
}

// LayerError is the error of one cast linear.
type LayerError struct {
	Weight string  `json:"weight"`
	Op     string  `json:"op"`
	Error  float64 `json:"error"` // |y - y0| / |y0| against the layer's output in the other graph
	Own    float64 `json:"own"`   // the same against the plain linear of the layer's own input
	X      Counts  `json:"x"`     // of 8-bit operands
	W      Counts  `json:"w"`
}

// Comparison is what a graph and its cast twin differ in.
type Comparison struct {
	Layers []LayerError `json:"layers"` // in the order of the graph
}

// Worst is the layer with the largest error of its own; nil without layers.
func (c *Comparison) Worst() *LayerError {
	var worst *LayerError
	for i := range c.Layers {
		if l := &c.Layers[i]; worst == nil || !(l.Own <= worst.Own) {
			worst = l
		}
	}
	return worst
}

// String is the comparison as a table.
func (c *Comparison) String() string {
	var sb strings.Builder
	w := tabwriter.NewWriter(&sb, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "weight\top\terror\town error\tx saturated\tx underflow\tw saturated\tw underflow")
	share := func(n, of int) string {
		if of == 0 {
			return "-"
		}
		return fmt.Sprintf("%d (%.2g%%)", n, 100*float64(n)/float64(of))
	}
	for _, l := range c.Layers {
		fmt.Fprintf(w, "%s\t%s\t%.4f\t%.4f\t%s\t%s\t%s\t%s\n", l.Weight, l.Op, l.Error, l.Own,
			share(l.X.Saturated, l.X.Elements), share(l.X.Underflow, l.X.Elements),
			share(l.W.Saturated, l.W.Elements), share(l.W.Underflow, l.W.Elements))
	}
	w.Flush() // a Builder does not fail
	return sb.String()
}

// JSON is the comparison as JSON.
func (c *Comparison) JSON() ([]byte, error) { return json.MarshalIndent(c, "", "  ") }

// Compare runs a graph and what a pass made of it on the same inputs, forward,
// and measures every linear that the pass has cast. Errors of earlier layers
// are in Error and not in Own. It moves no state.
func Compare(ctx context.Context, plain, cast *graph.Builder, feeds graph.Feeds) (*Comparison, error) {
	c, err := compare(ctx, plain, cast, feeds)
	if err != nil {
		return nil, fmt.Errorf("autocast: Compare: %w", err)
	}
	return c, nil
}

// watched is a cast linear with the nodes that show it.
type watched struct {
	n, y, kept *graph.Node // kept: of an FP8LinearOp
	plain      *graph.Node
}

func compare(ctx context.Context, plain, cast *graph.Builder, feeds graph.Feeds) (*Comparison, error) {
	for _, b := range []*graph.Builder{plain, cast} {
		if err := b.Err(); err != nil {
			return nil, err
		}
	}
	var layers []watched
	var outs, plainOuts []*graph.Node
	nodes := cast.Nodes()
	users := usersOf(nodes)
	for _, n := range nodes {
		if n.Op() == nil || n.Op().Name() == "linear" || !isLinear(n.Op().Name()) {
			continue
		}
		l := watched{n: n, y: n, plain: plain.Node(n.Name())}
		if l.plain != nil && n.In()[1].Type().DType.IsFloat8() {
			if l.plain.Op() == n.Op() {
				continue // the pass let it be
			}
			return nil, fmt.Errorf("%s: the weight must be whole in both graphs, it is stored as %s", n.Name(), n.In()[1].Type().DType)
		}
		if l.plain == nil || l.plain.Op() == nil || l.plain.Op().Name() != "linear" {
			return nil, fmt.Errorf("%s is no linear in the first graph: it must be the graph that the pass was given", n.Name())
		}
		if n.Op().Name() == "fp8_linear" {
			parts := users[n]
			l.y, l.kept = parts[0], parts[1]
			outs = append(outs, l.kept)
		}
		layers = append(layers, l)
		outs = append(outs, l.y, n.In()[0])
		plainOuts = append(plainOuts, l.plain)
	}
	c := &Comparison{}
	if layers == nil {
		return c, nil
	}
	value, err := runFor(ctx, cast, outs, feeds)
	if err != nil {
		return nil, err
	}
	plainValue, err := runFor(ctx, plain, plainOuts, feeds)
	if err != nil {
		return nil, err
	}
	if err := cast.Store().Hold(); err != nil { // the weights are read
		return nil, err
	}
	defer cast.Store().Release()
	for _, l := range layers {
		x, w := l.n.In()[0], l.n.In()[1]
		e := LayerError{Weight: w.Name(), Op: l.n.Op().Name(), Error: relative(value(l.y), plainValue(l.plain))}
		in, weight := wide(value(x)), wide(w.Param().Tensor())
		rows, n, k := len(in)/w.Dim(1), w.Dim(0), w.Dim(1)
		own := make([]float32, rows*n)
		var bias []float32
		if ins := l.plain.In(); len(ins) == 3 {
			if ins[2].Param() == nil {
				return nil, fmt.Errorf("%s: the bias is no parameter", l.n.Name())
			}
			bias = wide(ins[2].Param().Tensor())
		}
		native.Linear(own, in, weight, bias, rows, n, k)
		e.Own = relativeOf(wide(value(l.y)), own)
		switch op := l.n.Op().(type) {
		case ops.FP8LinearOp:
			stepX, stepW := ops.FP8LinearSteps(value(l.kept))
			e.X, e.W = count(in, stepX, op.Recipe.Format.Forward()), count(weight, stepW, op.Recipe.Format.Forward())
		case ops.FP8WeightLinearOp:
			e.W = countRows(weight, k)
			switch op.Activations {
			case Static:
				e.X = count(in, op.StepX, native.E4M3)
			case PerRow:
				e.X = countRows(in, k)
			}
		}
		c.Layers = append(c.Layers, e)
	}
	return c, nil
}

// runFor runs a graph once for some nodes and gives their values.
func runFor(ctx context.Context, b *graph.Builder, outs []*graph.Node, feeds graph.Feeds) (func(n *graph.Node) graph.Tensor, error) {
	plan, err := b.Plan(outs...)
	if err != nil {
		return nil, err
	}
	run, err := plan.Native()
	if err != nil {
		return nil, err
	}
	needed := graph.Feeds{}
	for _, n := range plan.Inputs() {
		needed[n.Name()] = feeds[n.Name()]
	}
	if err := run.Do(ctx, needed); err != nil {
		return nil, err
	}
	values := map[*graph.Node]graph.Tensor{}
	for _, o := range outs {
		if values[o], err = run.Value(o); err != nil {
			return nil, err
		}
	}
	return func(n *graph.Node) graph.Tensor { return values[n] }, nil
}

func relative(got, want graph.Tensor) float64 { return relativeOf(wide(got), wide(want)) }

// relativeOf is |got - want| / |want|, of 0 the absolute error.
func relativeOf(got, want []float32) float64 {
	var d, w float64
	for i := range want {
		e := float64(got[i]) - float64(want[i])
		d += e * e
		w += float64(want[i]) * float64(want[i])
	}
	if w == 0 {
		return math.Sqrt(d)
	}
	return math.Sqrt(d / w)
}

// wide is a value as float32.
func wide(t graph.Tensor) []float32 {
	switch t.DType {
	case dtype.Float32:
		return graph.Data[float32](t)
	case dtype.BFloat16:
		x := make([]float32, t.Size())
		dtype.ToFloat32(x, graph.Data[dtype.BF16](t))
		return x
	case dtype.Float16:
		x := make([]float32, t.Size())
		dtype.ToFloat32(x, graph.Data[dtype.F16](t))
		return x
	}
	x := make([]float32, t.Size())
	for i, v := range graph.Data[float64](t) {
		x[i] = float32(v)
	}
	return x
}

// count quantises x by one step and counts what is lost.
func count(x []float32, step float32, f native.FP8) Counts {
	c := Counts{Elements: len(x)}
	codes := make([]byte, len(x))
	limit := 464.0 // half a unit above the largest finite value
	if f == native.E5M2 {
		limit = 61440
	}
	native.FP8TensorQuantize(codes, x, step, f)
	for i, v := range x {
		switch {
		case v != v:
			c.NaN++
		case math.Abs(float64(v/step)) > limit:
			c.Saturated++
		case v != 0 && codes[i]&0x7F == 0:
			c.Underflow++
		}
	}
	return c
}

// countRows is count with the step of each row's largest magnitude.
func countRows(x []float32, k int) Counts {
	var c Counts
	for i := 0; i < len(x); i += k {
		row := x[i : i+k]
		amax, _ := native.FP8TensorAmax(row)
		step, ok := native.FP8Step(amax, native.E4M3, 0)
		if !ok {
			step = 1
		}
		r := count(row, step, native.E4M3)
		c.Elements += r.Elements
		c.Saturated += r.Saturated
		c.Underflow += r.Underflow
		c.NaN += r.NaN
	}
	return c
}
