package ops

import (
	"fmt"
	"math"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{Name: "amax", Doc: "largest magnitude of each block", Native: floatInput(amax[float32], amax[float64])})
	graph.Register(graph.Def{
		Name:     "fp8_weight_linear",
		Doc:      "linear on an 8-bit weight, activations as they are or 8-bit",
		Native:   fp8WeightBody,
		Together: fp8WeightTogether,
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(in[1].Shape[0])
		},
	})
}

// AmaxOp is the largest magnitude of every block of the raw x [...,C], 0 where a
// block has no numbers; NaN takes no part. The result is float32
// [ceil(rows/Rows), ceil(C/Cols)].
type AmaxOp struct{ Block FP8Block }

// Amax adds an AmaxOp.
func Amax(x *graph.Node, k FP8Block) *graph.Node { return graph.Apply(AmaxOp{k}, x) }

// Name is "amax".
func (AmaxOp) Name() string { return "amax" }

// Infer takes any float x.
func (o AmaxOp) Infer(in []graph.Type) ([]graph.Type, error) {
	return FP8StepsOp{Block: o.Block}.Infer(in)
}

func amax[T native.Float](c *graph.Call) error {
	native.FP8Amax(graph.Data[float32](c.Out[0]), graph.Data[T](c.In[0]), c.Op.(AmaxOp).Block.of(c.In[0].Type))
	return nil
}

// FP8Activations says what becomes of the activations of an FP8WeightLinearOp or
// an FP8ExpertsOp.
type FP8Activations uint8

const (
	Exact        FP8Activations = iota // they stay as they are
	StepPerRow                         // E4M3, each row by its own largest magnitude
	StaticSteps                        // E4M3, all by the step StepX
	StepPerBlock                       // E4M3, each 128 of a row by their own largest magnitude: of experts
)

func (a FP8Activations) String() string {
	switch a {
	case Exact:
		return "exact activations"
	case StepPerRow:
		return "a step for each row"
	case StaticSteps:
		return "static steps"
	case StepPerBlock:
		return "a step for each 128 of a row"
	}
	return fmt.Sprintf("activations %d", uint8(a))
}

// FP8WeightLinearOp is a linear for inference whose weight is in 8 bits:
//
//	y[..., n] = sum_k x[..., k] W[n, k] step[n, k] + b[n]
//
// x [...,K] as it is, or quantised too (W8A8), with rows that do not see each
// other, so that a token's result does not depend on what shares its batch.
// w [N,K] is codes with float32 steps [1,1], [N,1] or [ceil(N/128),
// ceil(K/128)], as checkpoints store them; or a wide weight, quantised to E4M3
// with a step for each row when it is first used. b is [N].
type FP8WeightLinearOp struct {
	Activations FP8Activations
	StepX       float32 // of StaticSteps
}

// FP8WeightLinear adds an FP8WeightLinearOp named after the weight. The steps of
// codes are the parameter of the weight's name with "_scale" or "_scale_inv".
func FP8WeightLinear(x, w *graph.Node, o FP8WeightLinearOp, bias ...*graph.Node) *graph.Node {
	return FP8WeightLinearAs(linearLabel(w), x, w, o, bias...)
}

// FP8WeightLinearAs is FP8WeightLinear with another label.
func FP8WeightLinearAs(label string, x, w *graph.Node, o FP8WeightLinearOp, bias ...*graph.Node) *graph.Node {
	in := []*graph.Node{x, w}
	if w.Type().DType.IsFloat8() {
		if steps := fp8StepsOf(w); steps != nil {
			in = append(in, steps)
		}
	}
	return graph.ApplyAs(label, o, append(in, bias...)...)
}

// fp8StepsOf finds the parameter that holds the steps of stored codes.
func fp8StepsOf(w *graph.Node) *graph.Node {
	b := w.Builder()
	for _, suffix := range []string{"_scale", "_scale_inv"} {
		if p := b.Store().Get(w.Name() + suffix); p != nil {
			return b.Param(w.Label()+suffix, p.Type.Shape...)
		}
	}
	return nil
}

// Name is "fp8_weight_linear".
func (FP8WeightLinearOp) Name() string { return "fp8_weight_linear" }

// Infer requires the shapes of a linear and steps that fit the weight.
func (o FP8WeightLinearOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if o.Activations > StaticSteps {
		return nil, fmt.Errorf("the activations must be exact, quantised by row or by static steps, got %s", o.Activations)
	}
	if s := float64(o.StepX); o.Activations == StaticSteps && (!(s > 0) || math.IsInf(s, 0)) {
		return nil, fmt.Errorf("a static step must be positive and finite, got %g", s)
	}
	if len(in) < 2 {
		return nil, arity(in, 2, "x", "w", "bias")
	}
	dense := append([]graph.Type{}, in...)
	w := in[1]
	if w.DType.IsFloat8() {
		if len(in) < 3 || in[2].Rank() != 2 {
			return nil, fmt.Errorf("w %s needs its steps, a parameter of its name with _scale or _scale_inv", w)
		}
		if _, err := storedBlocks(w, in[2]); err != nil {
			return nil, err
		}
		dense = append(dense[:2:2], in[3:]...)
		dense[1].DType = in[0].DType
	} else if w.DType == dtype.BFloat16 || w.DType == dtype.Float16 {
		dense[1].DType = in[0].DType
	}
	return LinearOp{}.Infer(dense)
}

// storedBlocks finds the blocks of stored codes from the shape of their steps.
func storedBlocks(w, steps graph.Type) (native.FP8Blocks, error) {
	if w.Rank() == 2 {
		for _, k := range []FP8Block{{}, {Rows: 1}, {Rows: 128, Cols: 128}} {
			if steps.Equal(k.steps(w)) {
				return k.of(w), nil
			}
		}
	}
	return native.FP8Blocks{}, fmt.Errorf("steps of w %s must be float32 [1,1], [N,1] or [ceil(N/128),ceil(K/128)], got %s", w, steps)
}

// storedMatrix is the weight of a call that is stored as codes.
func storedMatrix(c *graph.Call) (native.FP8Matrix, error) {
	w, steps := c.In[1], c.In[2]
	blocks, err := storedBlocks(w.Type, steps.Type)
	return native.FP8Matrix{FP8Blocks: blocks, Format: fp8FormatOf(w.DType), Codes: w.Bytes(), Steps: graph.Data[float32](steps)}, err
}

// exactFP8Linear is a linear of stored codes and exact activations.
func exactFP8Linear(c *graph.Call) (l native.FP8LinearOf, ok bool) {
	if c.In[0].DType != dtype.Float32 || !c.In[1].DType.IsFloat8() || c.Op.(FP8WeightLinearOp).Activations != Exact {
		return l, false
	}
	w, err := storedMatrix(c)
	return native.FP8LinearOf{Y: graph.Data[float32](c.Out[0]), W: w, B: data[float32](c.In, 3)}, err == nil // else the body says what is wrong
}

// fp8WeightTogether runs linears of one x, those of stored codes and exact
// activations up to four at a time.
func fp8WeightTogether(calls []graph.Call) error {
	var exact [4]native.FP8LinearOf
	x := calls[0].In[0]
	for len(calls) > 0 {
		n := front(exact[:], calls, exactFP8Linear)
		if n > 0 {
			native.FP8WeightLinears(graph.Data[float32](x), rows(x.Type), last(x.Type), exact[:n])
		} else if err := fp8WeightBody(&calls[0]); err != nil {
			return err
		}
		calls = calls[max(1, n):]
	}
	return nil
}

var fp8WeightBody = floats(fp8WeightLinear[float32], fp8WeightLinear[float64])

func fp8WeightLinear[T native.Float](c *graph.Call) error {
	o := c.Op.(FP8WeightLinearOp)
	x, w := c.In[0], c.In[1]
	m, n, k := rows(x.Type), w.Shape[0], w.Shape[1]
	var q native.FP8Matrix
	bias := 2
	if w.DType.IsFloat8() {
		var err error
		if q, err = storedMatrix(c); err != nil {
			return err
		}
		bias = 3
	} else {
		kept := fp8RowsOf(c, 1, w)
		defer kept.mu.RUnlock()
		q = native.FP8Matrix{FP8Blocks: native.FP8PerRow(n, k), Codes: kept.codes, Steps: kept.steps}
	}
	if o.Activations == Exact {
		native.FP8WeightLinear(graph.Data[T](c.Out[0]), graph.Data[T](x), q, data[T](c.In, bias), m, n, k)
		return nil
	}
	buf := fp8Buffers.take(m*k, m)
	a := native.FP8Matrix{FP8Blocks: native.FP8PerTensor(m, k), Codes: buf.codes, Steps: buf.steps[:1]}
	buf.steps[0] = o.StepX
	if o.Activations == StepPerRow {
		a.FP8Blocks, a.Steps = native.FP8PerRow(m, k), buf.steps
		native.FP8Fit(a.Codes, a.Steps, graph.Data[T](x), a.FP8Blocks)
	} else {
		native.FP8Quantize(a.Codes, nil, graph.Data[T](x), a.Steps, a.FP8Blocks, a.Format)
	}
	native.FP8MatMul(graph.Data[T](c.Out[0]), a, q, data[T](c.In, bias), m, n, k, false, true)
	fp8Buffers.give(buf)
	return nil
}

// fp8Kept is a wide weight in E4M3, kept with the parameter by version.
type fp8Kept struct {
	mu      sync.RWMutex
	coded   bool
	version uint64
	codes   []byte
	steps   []float32
}

func newFP8Kept() any { return &fp8Kept{} }

// fp8KeptOf returns the copy of input i under a key with its lock held for
// reading.
func fp8KeptOf(c *graph.Call, i int, key string, code func() ([]byte, []float32)) *fp8Kept {
	q, version := &fp8Kept{}, uint64(0)
	if p := c.Param(i); p != nil {
		q, version = p.Attach(key, newFP8Kept).(*fp8Kept), p.Version()
	}
	for {
		q.mu.RLock()
		if q.coded && q.version == version {
			return q
		}
		q.mu.RUnlock()
		q.mu.Lock()
		q.codes, q.steps = code()
		q.coded, q.version = true, version
		q.mu.Unlock()
	}
}

// fp8RowsOf is input i with a step for each row.
func fp8RowsOf(c *graph.Call, i int, w graph.Tensor) *fp8Kept {
	return fp8KeptOf(c, i, "fp8.rows", func() ([]byte, []float32) { return FP8Rows(w) })
}

// FP8Rows quantises a float weight [N,K] to E4M3 with a step for each row: codes
// [N,K] and steps [N].
func FP8Rows(w graph.Tensor) (codes []byte, steps []float32) {
	b := native.FP8PerRow(rows(w.Type), last(w.Type))
	codes, steps = make([]byte, w.Size()), make([]float32, b.Rows)
	switch w.DType {
	case dtype.Float64:
		native.FP8Fit(codes, steps, graph.Data[float64](w), b)
	case dtype.Float32:
		native.FP8Fit(codes, steps, graph.Data[float32](w), b)
	default:
		native.FP8Fit(codes, steps, widened(w), b)
	}
	return codes, steps
}

// fp8Buffers keeps the codes of activations between calls.
var fp8Buffers fp8BufferList

type fp8BufferList struct {
	mu   sync.Mutex
	free []*fp8Buffer
}

type fp8Buffer struct {
	codes []byte
	steps []float32
}

func (l *fp8BufferList) take(codes, steps int) *fp8Buffer {
	l.mu.Lock()
	var b *fp8Buffer
	if n := len(l.free); n > 0 {
		b, l.free = l.free[n-1], l.free[:n-1]
	}
	l.mu.Unlock()
	if b == nil {
		b = &fp8Buffer{}
	}
	if cap(b.codes) < codes {
		b.codes = make([]byte, codes)
	}
	if cap(b.steps) < steps {
		b.steps = make([]float32, steps)
	}
	b.codes, b.steps = b.codes[:codes], b.steps[:steps]
	return b
}

func (l *fp8BufferList) give(b *fp8Buffer) {
	l.mu.Lock()
	l.free = append(l.free, b)
	l.mu.Unlock()
}
