package ops

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "fp8_linear",
		Doc:    "linear in 8-bit floats for training, dynamic or delayed steps",
		NoGrad: []int{2, 3, 4},
		Native: floats(fp8Linear[float32], fp8Linear[float64]),
		Together: func(calls []graph.Call) error {
			if calls[0].Out[0].DType == dtype.Float64 {
				return fp8Linears[float64](calls)
			}
			return fp8Linears[float32](calls)
		},
		FLOPs: func(_ graph.Op, in, _ []graph.Type) int64 {
			return 2 * int64(in[0].Size()) * int64(in[1].Shape[0])
		},
		Grad: fp8LinearGrad,
	})
	graph.Register(graph.Def{
		Name:   "fp8_linear_grad_g",
		Native: floats(fp8LinearGradGBody[float32], fp8LinearGradGBody[float64]),
		FLOPs:  func(_ graph.Op, in, _ []graph.Type) int64 { return 2 * int64(in[0].Size()) },
	})
	graph.Register(graph.Def{
		Name:   "fp8_linear_grad_x",
		Native: floats(fp8LinearGradXBody[float32], fp8LinearGradXBody[float64]),
		FLOPs: func(_ graph.Op, in, out []graph.Type) int64 {
			return 2 * int64(out[0].Size()) * int64(in[2].Shape[0])
		},
	})
	graph.Register(graph.Def{
		Name:   "fp8_linear_grad_w",
		Native: floats(fp8LinearGradWBody[float32], fp8LinearGradWBody[float64]),
		FLOPs: func(op graph.Op, _, out []graph.Type) int64 {
			return 2 * int64(out[0].Size()) * int64(op.(fp8LinearGradW).M)
		},
	})
}

// FP8LinearOp is a linear layer whose products are of 8-bit floats:
//
//	y[..., n] = step_x step_w sum_k X[..., k] W[n, k] + b[n]
//	dx = step_g step_w G W,  dw = step_g step_x G^T X,  db = sum of dy over the rows
//
// X, W and G are x, w and the gradient dy quantised, one step each, as the
// Recipe says: X and W in the policy's forward format, and kept so for the
// backward pass, G in its backward format. Rounding counts as the identity in
// the gradient. Products are exact, sums those of a linear of the graph's type.
//
// x is [...,K], w [N,K] (float32, or stored as bfloat16 or float16), b [N]. Each
// operand has a state, named after the weight: q_proj.weight.fp8.x, .w and .g.
// Only the backward pass writes them, so evaluation, recomputation and a forward
// pass alone leave them as they are. The second result holds what the backward
// pass needs: steps and maxima, then the codes of X.
type FP8LinearOp struct{ Recipe FP8Recipe }

// FP8Linear adds an FP8LinearOp named after the weight, as Linear does, and
// declares its states.
func FP8Linear(x, w *graph.Node, r FP8Recipe, bias ...*graph.Node) *graph.Node {
	return FP8LinearAs(linearLabel(w), x, w, r, bias...)
}

// FP8LinearAs is FP8Linear with another label.
func FP8LinearAs(label string, x, w *graph.Node, r FP8Recipe, bias ...*graph.Node) *graph.Node {
	in := []*graph.Node{x, w}
	if r.Check() == nil { // else Infer tells
		b, name := w.Builder(), w.Label()+".fp8"
		for k := 2; b.Node(fp8StateName(w, name, "x")) != nil; k++ { // used twice in one graph
			name = fmt.Sprintf("%s.fp8.%d", w.Label(), k)
		}
		for _, operand := range []string{"x", "w", "g"} {
			if err := r.fits(b.Store().Get(fp8StateName(w, name, operand))); err != nil {
				b.Fail(err)
			}
			in = append(in, b.State(name+"."+operand, dtype.Float32, fp8History+r.History))
		}
	}
	return graph.ApplyAll(label, FP8LinearOp{r}, append(in, bias...)...)[0]
}

// fp8StateName is the full name of a state beside w.
func fp8StateName(w *graph.Node, name, operand string) string {
	return strings.TrimSuffix(w.Name(), w.Label()) + name + "." + operand
}

// Name is "fp8_linear".
func (FP8LinearOp) Name() string { return "fp8_linear" }

// fp8Head is the number of elements before the codes in a value that holds
// both: 64 bytes of float32, so that the codes are aligned.
const fp8Head = 16

// The head of X's value.
const (
	headStepX = iota
	headStepW
	headAmaxX
	headAmaxW
	headNaNX
	headNaNW
	headFresh // 1: the weight was replaced since the last training step
)

// FP8LinearSteps reads the steps of x and w out of the second result of an
// FP8LinearOp.
func FP8LinearSteps(kept graph.Tensor) (x, w float32) {
	if kept.DType == dtype.Float64 {
		d := graph.Data[float64](kept)
		return float32(d[headStepX]), float32(d[headStepW])
	}
	d := graph.Data[float32](kept)
	return d[headStepX], d[headStepW]
}

// packedCodes is the type of a head and n codes, in elements of t.
func packedCodes(t graph.Type, n int) graph.Type {
	size := t.DType.Size()
	return graph.T(t.DType, fp8Head+(n+size-1)/size)
}

// headAndCodes are the parts of such a value.
func headAndCodes[T native.Float](t graph.Tensor, n int) (head []T, codes []byte) {
	var z T
	return graph.Data[T](t)[:fp8Head], t.Bytes()[fp8Head*unsafe.Sizeof(z):][:n]
}

// Infer requires the shapes of a linear, and states of the recipe's length.
func (o FP8LinearOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := o.Recipe.Check(); err != nil {
		return nil, err
	}
	if err := arity(in, 5, "x", "w", "state of x", "state of w", "state of g", "bias"); err != nil {
		return nil, err
	}
	for i, name := range []string{"x", "w", "g"} {
		if want := graph.T(dtype.Float32, fp8History+o.Recipe.History); !in[2+i].Equal(want) {
			return nil, fmt.Errorf("state of %s must be %s, got %s", name, want, in[2+i])
		}
	}
	dense := append([]graph.Type{in[0], in[1]}, in[5:]...)
	if w := in[1].DType; w == dtype.BFloat16 || w == dtype.Float16 {
		dense[1].DType = in[0].DType
	}
	y, err := LinearOp{}.Infer(dense)
	if err != nil {
		return nil, err
	}
	return []graph.Type{y[0], packedCodes(in[0], in[0].Size())}, nil
}

func fp8Linear[T native.Float](c *graph.Call) error {
	x := fp8Operand[T]{x: graph.Data[T](c.In[0])}
	defer x.give()
	return x.linear(c, c.Op.(FP8LinearOp), c.In)
}

// fp8Linears are linears of one x.
func fp8Linears[T native.Float](calls []graph.Call) error {
	first := &calls[0]
	x := fp8Operand[T]{x: graph.Data[T](first.In[0])}
	if first.Kept == nil {
		var behind [][]byte
		for _, c := range calls[1:] {
			_, codes := headAndCodes[T](c.Out[1], len(x.x))
			behind = append(behind, codes)
		}
		first.Kept = behind
	}
	behind, _ := first.Kept.([][]byte)
	defer x.give()
	for i := range calls {
		c := &calls[i]
		x.behind = behind[i:]
		if err := x.linear(c, c.Op.(FP8LinearOp), c.In); err != nil {
			return err
		}
	}
	return nil
}

// fp8Operand is x for the linears that read it: measured once, and quantised and
// made ready for products once for those that follow each other with one step.
type fp8Operand[T native.Float] struct {
	x        []T
	measured bool
	amax     float32
	nan      int

	behind [][]byte // where the linears that are still to come keep their codes
	coded  bool     // they hold those of step and format, of which rows are
	step   float32
	format native.FP8
	rows   native.FP8Rows[T]
}

// quantize makes codes of x[m,k], and rows of them.
func (x *fp8Operand[T]) quantize(codes []byte, step float32, f native.FP8, m, k int) {
	if !x.coded || x.step != step || x.format != f {
		x.give()
		native.FP8TensorQuantize(codes, x.x, step, f, x.behind...)
		x.rows = native.TakeFP8Rows[T](codes, f, step, m, k)
		x.coded, x.step, x.format = true, step, f
	}
}

// give ends the use of rows.
func (x *fp8Operand[T]) give() {
	if x.coded {
		x.rows.Give()
		x.coded = false
	}
}

// linear runs o on the inputs in of a call.
func (x *fp8Operand[T]) linear(c *graph.Call, o FP8LinearOp, in []graph.Tensor) error {
	r, w := o.Recipe, in[1]
	sx, sw := fp8State(graph.Data[float32](in[2])), fp8State(graph.Data[float32](in[3]))
	for i, s := range []fp8State{sx, sw, graph.Data[float32](in[4])} {
		if err := r.check(s, stateName(c, 2+i)); err != nil {
			return err
		}
	}
	m, n, k := rows(in[0].Type), w.Shape[0], w.Shape[1]
	head, codes := headAndCodes[T](c.Out[1], m*k)
	clear(head)
	f := r.Format.Forward()
	copyW, version := fp8WeightOf(c, 1)
	stepW, amaxW, nanW, fresh := copyW.measure(w, c.Param(1), version, r, sw)
	codesW := copyW.acquire(w, version, stepW, f) // while the cache holds what was measured
	defer copyW.release()
	if !x.measured {
		x.amax, x.nan = native.FP8TensorAmax(x.x)
		x.measured = true
	}
	stepX := r.step(sx, x.amax, f, fresh)
	head[headStepX], head[headStepW] = T(stepX), T(stepW)
	head[headAmaxX], head[headAmaxW] = T(x.amax), T(amaxW)
	head[headNaNX], head[headNaNW] = T(x.nan), T(nanW)
	if fresh {
		head[headFresh] = 1
	}
	x.quantize(codes, stepX, f, m, k)
	x.rows.Linear(graph.Data[T](c.Out[0]), codesW, f, stepW, data[T](in, 5), n)
	return nil
}

func stateName(c *graph.Call, i int) string {
	if p := c.Param(i); p != nil {
		return p.Name
	}
	return fmt.Sprintf("in input %d", i)
}

func fp8LinearGrad(g *graph.GradCall) []*graph.Node {
	r := g.Op.(FP8LinearOp).Recipe
	dy, x, w, kept := g.Out(0), g.In[0], g.In[1], g.Results[1]
	g8 := graph.ApplyAs("fp8_linear_grad_g", fp8LinearGradG{r}, dy, kept, g.In[2], g.In[3], g.In[4])
	grads := make([]*graph.Node, len(g.In))
	if x.Type().DType.IsFloat() {
		grads[0] = graph.ApplyAs("fp8_linear_grad_x", fp8LinearGradX{r, x.Shape()}, g8, kept, w)
	}
	if w.Type().DType == dy.Type().DType {
		grads[1] = graph.ApplyAs("fp8_linear_grad_w", fp8LinearGradW{r, dy.Type().Size() / w.Dim(0), w.Dim(0), w.Dim(1)}, g8, kept)
	}
	if len(g.In) == 6 {
		grads[5] = graph.ApplyAs("linear_grad_b", linearGradB{}, dy)
	}
	return grads
}

// fp8LinearGradG quantises dy: step and amax, then the codes of G. It records
// what the training step met of all three operands.
type fp8LinearGradG struct{ Recipe FP8Recipe }

func (fp8LinearGradG) Name() string  { return "fp8_linear_grad_g" }
func (fp8LinearGradG) Writes() []int { return []int{2, 3, 4} }
func (fp8LinearGradG) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{packedCodes(in[0], in[0].Size())}, nil
}

func fp8LinearGradGBody[T native.Float](c *graph.Call) error {
	amax, nan := native.FP8TensorAmax(graph.Data[T](c.In[0]))
	return fp8GradG[T](c, c.Op.(fp8LinearGradG).Recipe, amax, nan)
}

// fp8GradG quantises a dy that was measured.
func fp8GradG[T native.Float](c *graph.Call, r FP8Recipe, amax float32, nan int) error {
	dy := graph.Data[T](c.In[0])
	kept := graph.Data[T](c.In[1])
	sx, sw, sg := fp8State(graph.Data[float32](c.In[2])), fp8State(graph.Data[float32](c.In[3])), fp8State(graph.Data[float32](c.In[4]))
	head, codes := headAndCodes[T](c.Out[0], len(dy))
	clear(head)
	f := r.Format.Backward()
	fresh := kept[headFresh] == 1
	step := r.step(sg, amax, f, fresh)
	head[0] = T(step)
	native.FP8TensorQuantize(codes, dy, step, f)
	r.record(sx, float32(kept[headAmaxX]), float32(kept[headStepX]), int(kept[headNaNX]), fresh)
	r.record(sw, float32(kept[headAmaxW]), float32(kept[headStepW]), int(kept[headNaNW]), fresh)
	r.record(sg, amax, step, nan, fresh)
	return nil
}

// fp8LinearGradX is dx from G and W: the weight in the codes of the forward pass.
type fp8LinearGradX struct {
	Recipe FP8Recipe
	Shape  []int
}

func (fp8LinearGradX) Name() string { return "fp8_linear_grad_x" }
func (o fp8LinearGradX) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, slices.Clone(o.Shape)...)}, nil
}

func fp8LinearGradXBody[T native.Float](c *graph.Call) error {
	p := c.Op.(fp8LinearGradX).Recipe.Format
	w := c.In[2]
	n, k := w.Shape[0], w.Shape[1]
	m := c.Out[0].Size() / k
	head, g := headAndCodes[T](c.In[0], m*n)
	stepW := float32(graph.Data[T](c.In[1])[headStepW])
	copyW, version := fp8WeightOf(c, 2)
	codesW := copyW.acquire(w, version, stepW, p.Forward())
	native.FP8TensorMatMul(graph.Data[T](c.Out[0]), g, p.Backward(), float32(head[0]), codesW, p.Forward(), stepW, nil, m, k, n, false, false)
	copyW.release()
	return nil
}

// fp8LinearGradW is dw [N,K] from G [M,N] and the codes of X [M,K].
type fp8LinearGradW struct {
	Recipe  FP8Recipe
	M, N, K int
}

func (fp8LinearGradW) Name() string { return "fp8_linear_grad_w" }
func (o fp8LinearGradW) Infer(in []graph.Type) ([]graph.Type, error) {
	return []graph.Type{graph.T(in[0].DType, o.N, o.K)}, nil
}

func fp8LinearGradWBody[T native.Float](c *graph.Call) error {
	o := c.Op.(fp8LinearGradW)
	p := o.Recipe.Format
	headG, g := headAndCodes[T](c.In[0], o.M*o.N)
	headX, x := headAndCodes[T](c.In[1], o.M*o.K)
	native.FP8TensorMatMul(graph.Data[T](c.Out[0]), g, p.Backward(), float32(headG[0]), x, p.Forward(), float32(headX[headStepX]), nil, o.N, o.K, o.M, true, false)
	return nil
}
