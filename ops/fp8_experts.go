package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "fp8_experts",
		Doc:    "experts on 8-bit weights, activations as they are or 8-bit",
		Native: floats(fp8Experts[float32], fp8Experts[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return expertFLOPs(in) },
	})
}

// FP8ExpertsOp is an ExpertsOp for inference whose weights are in E4M3 with a
// step for each 128 x 128 block of an expert's matrix. Tokens and what the gate
// gives stay as they are (Exact), or are E4M3 too, each 128 of a row by their
// own largest magnitude (StepPerBlock), so that rows do not see each other.
//
// gate and up [E,F,D] and down [E,D,F] are wide, and quantised when they are
// first used; or all three are codes, with their float32 steps
// [E,ceil(rows/128),ceil(columns/128)] behind them.
type FP8ExpertsOp struct{ Activations FP8Activations }

// FP8Experts adds an FP8ExpertsOp. The steps of codes are the parameters of the
// weights' names with "_scale" or "_scale_inv".
func FP8Experts(x, weights, ids, gate, up, down *graph.Node, o FP8ExpertsOp) *graph.Node {
	in := []*graph.Node{x, weights, ids, gate, up, down}
	for _, w := range in[3:6] {
		if w.Type().DType.IsFloat8() {
			if steps := fp8StepsOf(w); steps != nil {
				in = append(in, steps)
			}
		}
	}
	return graph.Apply(o, in...)
}

// Name is "fp8_experts".
func (FP8ExpertsOp) Name() string { return "fp8_experts" }

// Infer requires the shapes of experts and steps that fit the stacks.
func (o FP8ExpertsOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if o.Activations != Exact && o.Activations != StepPerBlock {
		return nil, fmt.Errorf("the activations must be exact or quantised by block, got %s", o.Activations)
	}
	if len(in) < 6 {
		return nil, arity(in, 6, "x", "weights", "ids", "gate", "up", "down")
	}
	dense, steps := append([]graph.Type{}, in[:6]...), in[6:]
	coded := in[3].DType.IsFloat8()
	for _, w := range in[3:6] {
		if w.DType.IsFloat8() != coded || w.DType == dtype.Float8E5M2 {
			return nil, fmt.Errorf("gate, up and down must all be wide or all float8_e4m3, got %s, %s, %s", in[3], in[4], in[5])
		}
	}
	for i, name := range []string{"gate", "up", "down"} {
		w := in[3+i]
		if coded && (len(steps) != 3 || !steps[i].Equal(FP8StackSteps(w))) {
			return nil, fmt.Errorf("%s %s needs its steps %s, a parameter of its name with _scale or _scale_inv", name, w, FP8StackSteps(w))
		}
		if coded || isHalf(w) {
			dense[3+i].DType = in[0].DType
		}
	}
	if !coded && len(steps) > 0 {
		return nil, arity(in, 6, "x", "weights", "ids", "gate", "up", "down")
	}
	return ExpertsOp{}.Infer(dense)
}

// FP8StackSteps is the type of the steps of a stack [E,N,K], float32
// [E,ceil(N/128),ceil(K/128)]; of anything else it has no dimensions.
func FP8StackSteps(w graph.Type) graph.Type {
	if w.Rank() != 3 {
		return graph.T(dtype.Float32)
	}
	return graph.T(dtype.Float32, w.Shape[0], (w.Shape[1]+127)/128, (w.Shape[2]+127)/128)
}

func fp8Experts[T native.Float](c *graph.Call) error {
	x, ids := expertShape(c.In), graph.Data[int32](c.In[2])
	if err := native.CheckExpertIDs(ids, x.E); err != nil {
		return err
	}
	var stacks [3]native.FP8Stack
	var held [3]*fp8Kept
	for i := range stacks {
		w := c.In[3+i]
		s := native.FP8Stack{N: w.Shape[1], K: w.Shape[2]}
		if w.DType.IsFloat8() {
			s.Codes, s.Steps = w.Bytes(), graph.Data[float32](c.In[6+i])
		} else {
			held[i] = fp8StackOf(c, 3+i, w)
			s.Codes, s.Steps = held[i].codes, held[i].steps
		}
		stacks[i] = s
	}
	native.FP8ExpertsForward(graph.Data[T](c.Out[0]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), ids, stacks[0], stacks[1], stacks[2], x, c.Op.(FP8ExpertsOp).Activations == StepPerBlock)
	for _, kept := range held {
		if kept != nil {
			kept.mu.RUnlock()
		}
	}
	return nil
}

// fp8StackOf is a stack by blocks.
func fp8StackOf(c *graph.Call, i int, w graph.Tensor) *fp8Kept {
	return fp8KeptOf(c, i, "fp8.stack", func() ([]byte, []float32) { return FP8Stack(w) })
}

// FP8Stack quantises a float stack [E,N,K] to E4M3 with a step for each 128 x 128
// block of a matrix: codes [E,N,K] and steps [E,ceil(N/128),ceil(K/128)].
func FP8Stack(w graph.Tensor) (codes []byte, steps []float32) {
	codes, steps = make([]byte, w.Size()), make([]float32, FP8StackSteps(w.Type).Size())
	switch w.DType {
	case dtype.Float64:
		fp8StackFrom(codes, steps, graph.Data[float64](w), w.Shape)
	case dtype.Float32:
		fp8StackFrom(codes, steps, graph.Data[float32](w), w.Shape)
	default:
		fp8StackFrom(codes, steps, widened(w), w.Shape)
	}
	return codes, steps
}

func fp8StackFrom[T native.Float](codes []byte, steps []float32, w []T, shape []int) {
	b := native.FP8StackBlocks(shape[1], shape[2])
	n := shape[1] * shape[2]
	for e := range shape[0] {
		native.FP8Fit(codes[e*n:][:n], steps[e*b.Steps():][:b.Steps()], w[e*n:][:n], b)
	}
}
