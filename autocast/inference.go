package autocast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// Activations says what FP8Inference does with activations.
type Activations = ops.FP8Activations

// The activations: as they are (weights alone are in 8 bits), or E4M3 too, with
// a step for each row or with the static steps of a Calibration.
const (
	Exact  = ops.Exact
	PerRow = ops.StepPerRow
	Static = ops.StaticSteps
)

// InferenceOptions of FP8Inference.
type InferenceOptions struct {
	Activations Activations
	Calibration *Calibration // of Static
	Margin      int          // of Static: headroom above the calibrated maxima, in powers of 2
	Filter
}

// FP8Inference returns the graph with its eligible linears on E4M3 weights, a
// step for each output row (see ops.FP8WeightLinearOp), and its experts on E4M3
// stacks, a step for each 128 x 128 block (see ops.FP8ExpertsOp): with PerRow
// what goes into these gets a step for each 128 of a row, and with Static steps,
// which nothing calibrates for experts, they stay. Such a graph has no
// gradient. A weight is quantised when it is first used and again when it
// changes; StoreFP8 keeps nothing but the codes. Linears on stored codes take
// part, to get other activations.
func FP8Inference(b *graph.Builder, o InferenceOptions) (*graph.Builder, *Report, error) {
	nb, report, err := fp8Inference(b, o)
	if err != nil {
		return nil, nil, fmt.Errorf("autocast: FP8Inference: %w", err)
	}
	return nb, report, nil
}

func fp8Inference(b *graph.Builder, o InferenceOptions) (*graph.Builder, *Report, error) {
	if o.Activations > Static {
		return nil, nil, fmt.Errorf("the activations must be Exact, PerRow or Static, got %d", o.Activations)
	}
	if o.Activations == Static && o.Calibration == nil {
		return nil, nil, fmt.Errorf("static steps need a Calibration")
	}
	var missing []string
	op := func(n *graph.Node) ops.FP8WeightLinearOp {
		a := ops.FP8WeightLinearOp{Activations: o.Activations}
		if o.Activations == Static {
			step, ok := native.FP8Step(o.Calibration.Amax[n.In()[1].Name()], native.E4M3, o.Margin)
			if !ok {
				missing = append(missing, n.In()[1].Name())
				step = 1
			}
			a.StepX = step
		}
		return a
	}
	experts := ops.FP8ExpertsOp{}
	if o.Activations == PerRow {
		experts.Activations = ops.StepPerBlock
	}
	isExperts := func(n *graph.Node) bool { return !isLinear(n.Op().Name()) }
	p := pass{
		name: "fp8 weights", mode: o.Activations.String(), done: []string{"fp8_weight_linear", "fp8_experts"}, minSize: DefaultMinSize, experts: o.Activations != Static,
		keeps: []role{head, embedding, router, norm}, narrow: func(t dtype.DType) bool { return t != dtype.UInt8 }, // blocks stay
		again: func(n *graph.Node) bool {
			if isExperts(n) {
				return n.Op() != experts
			}
			return n.Op() != op(n)
		},
		build: func(n *graph.Node, in []*graph.Node) *graph.Node {
			if isExperts(n) {
				return ops.FP8Experts(in[0], in[1], in[2], in[3], in[4], in[5], experts)
			}
			rest := in[2:]
			if in[1].Type().DType.IsFloat8() {
				rest = in[3:] // the steps are found again
			}
			return ops.FP8WeightLinearAs(n.Label(), in[0], in[1], op(n), rest...)
		},
	}
	nb, report, err := p.run(b, o.Filter, nil)
	if err == nil && missing != nil {
		sort.Strings(missing)
		err = fmt.Errorf("the calibration has no maximum of what goes into %s", strings.Join(slices.Compact(missing), ", "))
	}
	return nb, report, err
}

// Calibration holds the largest magnitude that went into each linear, by the
// name of its weight. It is plain JSON.
type Calibration struct {
	Runs int                `json:"runs"`
	Amax map[string]float32 `json:"amax"`
}

// Calibrator measures a Calibration.
type Calibrator struct {
	result Calibration
	run    *graph.Native
	of     map[*graph.Node]string
}

// NewCalibrator prepares to run the graph and to watch what goes into its
// linears on parameters.
func NewCalibrator(b *graph.Builder) (*Calibrator, error) {
	c := &Calibrator{result: Calibration{Amax: map[string]float32{}}, of: map[*graph.Node]string{}}
	var outs []*graph.Node
	_, err := graph.Rewrite(b, func(n *graph.Node, in []*graph.Node) []*graph.Node {
		if isLinear(n.Op().Name()) && n.In()[1].Param() != nil {
			out := ops.Amax(in[0], ops.FP8Block{})
			c.of[out] = n.In()[1].Name()
			outs = append(outs, out)
		}
		return nil
	})
	if err == nil && outs == nil {
		err = fmt.Errorf("the graph has no linears on parameters")
	}
	if err == nil {
		var plan *graph.Plan
		if plan, err = outs[0].Builder().Plan(outs...); err == nil {
			c.run, err = plan.Native()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("autocast: calibration: %w", err)
	}
	return c, nil
}

// isLinear names the ops that are linears, of any pass.
func isLinear(op string) bool {
	return slices.Contains([]string{"linear", "fp8_linear", "fp8_weight_linear", "bf16_linear"}, op)
}

// Run feeds the graph once.
func (c *Calibrator) Run(ctx context.Context, feeds graph.Feeds) error {
	if c == nil || c.run == nil {
		return errors.New("autocast: calibration: the calibrator is missing: NewCalibrator makes one")
	}
	needed := graph.Feeds{}
	for _, n := range c.run.Plan().Inputs() { // the graph may ask for more, such as labels
		needed[n.Name()] = feeds[n.Name()]
	}
	if err := c.run.Do(ctx, needed); err != nil {
		return fmt.Errorf("autocast: calibration: %w", err)
	}
	for _, out := range c.run.Plan().Outputs {
		v, err := c.run.Value(out)
		if err != nil {
			return fmt.Errorf("autocast: calibration: %w", err)
		}
		name := c.of[out]
		if a := graph.Data[float32](v)[0]; !math.IsInf(float64(a), 0) {
			c.result.Amax[name] = max(c.result.Amax[name], a)
		}
	}
	c.result.Runs++
	return nil
}

// Calibration is what the runs so far have met.
func (c *Calibrator) Calibration() *Calibration {
	r := Calibration{Runs: c.result.Runs, Amax: map[string]float32{}}
	for k, v := range c.result.Amax {
		r.Amax[k] = v
	}
	return &r
}

// ParseCalibration reads the JSON of a Calibration.
func ParseCalibration(raw []byte) (*Calibration, error) {
	var c Calibration
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("autocast: calibration: %w", err)
	}
	for name, a := range c.Amax {
		if !(a >= 0) {
			return nil, fmt.Errorf("autocast: calibration: the maximum of %s must be 0 or more, got %g", name, a)
		}
	}
	return &c, nil
}

// StoreFP8 quantises weights and keeps nothing but codes and steps: the
// parameter of a name becomes float8_e4m3 and its steps, [N,1], or those of the
// blocks of a stack of experts, a parameter of that name with "_scale". It takes a quarter of the memory, and so does a
// checkpoint of it. Graphs are to be built again: ops.Linear then reads the
// codes. names are usually Report.Cast of FP8Inference; a table that is the head too,
// which Include may have named, is refused: ops.Embedding reads no codes.
func StoreFP8(params *graph.Params, names []string) error {
	type stored struct {
		p     *graph.Param
		codes []byte
		steps []float32
		shape []int // of the steps
	}
	if err := params.Hold(); err != nil {
		return fmt.Errorf("autocast: StoreFP8: %w", err)
	}
	defer params.Release()
	var all []stored
	for _, name := range names {
		p := params.Get(name)
		switch {
		case p == nil:
			return fmt.Errorf("autocast: StoreFP8: there is no parameter %s", name)
		case p.Type.DType == dtype.Float8E4M3:
			continue
		case p.State || p.Type.Rank() != 2 && p.Type.Rank() != 3 || !p.Type.DType.IsFloat() || p.Type.DType.IsFloat8() || !p.HasValue():
			return fmt.Errorf("autocast: StoreFP8: %s must be a float weight [N,K] or stack [E,N,K] with a value, it is %s", name, p.Type)
		case ops.IsTable(p):
			return fmt.Errorf("autocast: StoreFP8: %s is a table, tied to a head or not, and ops.Embedding reads no 8-bit codes: leave it out of the names", name)
		case p.Type.Rank() == 3:
			codes, steps := ops.FP8Stack(p.Tensor())
			all = append(all, stored{p, codes, steps, ops.FP8StackSteps(p.Type).Shape})
			continue
		}
		codes, steps := ops.FP8Rows(p.Tensor())
		all = append(all, stored{p, codes, steps, []int{len(steps), 1}})
	}
	for _, s := range all {
		scale, err := params.Add(s.p.Name+"_scale", graph.T(dtype.Float32, s.shape...), false)
		if err != nil {
			return fmt.Errorf("autocast: StoreFP8: %w", err)
		}
		copy(graph.Data[float32](scale.Tensor()), s.steps)
		scale.Frozen = true
		scale.Touch()
		if err := s.p.Store(dtype.Float8E4M3, s.codes); err != nil {
			return fmt.Errorf("autocast: StoreFP8: %w", err)
		}
	}
	return nil
}
