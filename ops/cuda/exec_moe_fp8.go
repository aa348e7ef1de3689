package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// Experts on stacks in 8 bits.
func init() { Register("fp8_experts", func(c *Call) error { return fp8ExpertsBody(c, nil) }) }

// fp8ExpertsBody queues them; with a residual as expertsBody does. Where there are no kernels for the codes, their values go up in
// the compute dtype.
func fp8ExpertsBody(c *Call, add *Call) error {
	e, err := choicesOf(c)
	if err != nil {
		return err
	}
	if err := e.onto(add, c.Node); err != nil {
		return err
	}
	exact := c.Node.Op().(ops.FP8ExpertsOp).Activations == ops.Exact
	x := ExpertsFP8{Type: e.Type, Exact: exact, T: e.T, TopK: e.TopK, E: e.E, D: e.D, F: e.F, Y: e.Y, X: e.X, Weights: e.Weights, WeightsF32: e.WeightsF32, IDs: e.IDs, Residual: e.Residual}
	if lacks := x.lacks(c.Target()); lacks != nil {
		if c.p.strict && c.Type() != F32 {
			return lacks
		}
		c.note = fmt.Sprintf("stacks widened to %v, activations as they are: %v", c.Type(), lacks)
		if !exact && c.Type() == F32 {
			return lacks // natively, with the steps that were asked for
		}
		for i, to := range []*Pointer{&e.Gate, &e.Up, &e.Down} {
			s, err := c.stack(i)
			if err != nil {
				return err
			}
			*to = c.p.wideStack(s)
		}
		e.Scratch = c.Scratch(e.ScratchBytes(c.Target()))
		return e.Launch(c)
	}
	for i, to := range []*[2]*Pointer{{&x.Gate, &x.GateSteps}, {&x.Up, &x.UpSteps}, {&x.Down, &x.DownSteps}} {
		s, err := c.stack(i)
		if err != nil {
			return err
		}
		*to[0], *to[1] = c.p.codedStack(s)
	}
	x.Scratch = c.Scratch(x.ScratchBytes(c.Target()))
	return x.Launch(c)
}

// fp8Stack is a stack as it is stored: as codes, or wide.
type fp8Stack struct {
	w, steps *graph.Param // steps of stored codes
	shape    []int
}

type (
	fp8StackKey     struct{ w *graph.Param }
	fp8WideStackKey struct {
		w  *graph.Param
		dt DType
	}
)

// stack is number i of the node's three.
func (c *Call) stack(i int) (s fp8Stack, err error) {
	const op = "fp8_experts"
	n := c.In[3+i]
	s = fp8Stack{w: n.Param(), shape: n.Shape()}
	if s.w == nil || s.w.State {
		return s, unsupported(op, "%s is no weight", n.Name())
	}
	if len(c.In) > 6 {
		if s.steps = c.In[6+i].Param(); s.steps == nil || s.steps.State {
			return s, unsupported(op, "the steps %s are no weight", c.In[6+i].Name())
		}
	} else if !floatWeight(s.w) {
		return s, unsupported(op, "weight %s is %s", s.w.Name, s.w.Type)
	}
	return s, nil
}

func (s fp8Stack) from() []*graph.Param {
	if s.steps != nil {
		return []*graph.Param{s.w, s.steps}
	}
	return []*graph.Param{s.w}
}

// coded are the codes and steps.
func (s fp8Stack) coded() ([]byte, []float32) {
	if s.steps != nil {
		return s.w.Tensor().Bytes(), graph.Data[float32](s.steps.Tensor())
	}
	return ops.FP8Stack(s.w.Tensor())
}

func (s fp8Stack) size() int64 { return int64(s.shape[0]) * int64(s.shape[1]) * int64(s.shape[2]) }

// codedStack is a stack's codes on the device and its steps behind them.
func (p *program) codedStack(s fp8Stack) (codes, steps Pointer) {
	at := up256(s.size())
	bytes := at + 4*int64(ops.FP8StackSteps(s.w.Type).Size())
	q := p.region(region{label: s.w.Name + " " + E4M3.String(), bytes: bytes, key: fp8StackKey{s.w}, from: s.from(), codes: at, fill: func() []byte {
		if !s.w.Allocated() {
			return nil
		}
		mem := make([]byte, bytes)
		codes, steps := s.coded()
		copy(mem, codes)
		for i, v := range steps {
			binary.LittleEndian.PutUint32(mem[int(at)+4*i:], math.Float32bits(v))
		}
		return mem
	}}).pointer()
	return q, q.At(at)
}

// wideStack is the values that codedStack would have, in the compute dtype.
func (p *program) wideStack(s fp8Stack) Pointer {
	dt := p.compute
	return p.region(region{label: s.w.Name + " " + dt.String(), bytes: s.size() * int64(dt.Size()), key: fp8WideStackKey{s.w, dt}, from: s.from(), fill: func() []byte {
		if !s.w.Allocated() {
			return nil
		}
		codes, steps := s.coded()
		b := native.FP8StackBlocks(s.shape[1], s.shape[2])
		n, x := b.Rows*b.Cols, make([]float32, len(codes))
		for e := range s.shape[0] {
			native.FP8Dequantize(x[e*n:][:n], codes[e*n:][:n], steps[e*b.Steps():][:b.Steps()], b, native.E4M3)
		}
		out := make([]byte, len(x)*dt.Size())
		narrow(out, floatBytes(x), dt)
		return out
	}}).pointer()
}
