package cuda

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

func init() {
	Register("cross_entropy", crossEntropyBody)
	Register("nll", nllBody)
}

// CrossEntropy launches loss[t] = lse - x[t, labels[t]] + ZLoss lse^2, lse = log(sum(exp(x[t,:]))), for T rows of V logits,
// f32 out, 0 where the label is Ignore (or, where that is below 0, below 0); and, with Mean, the mean over the other rows and their Count.
type CrossEntropy struct {
	Type            DType
	T, V            int
	Loss, X, Labels Pointer // Loss [T]
	LSE             Pointer // optional, [T]
	Mean, Count     Pointer // optional, one number each
	Stride          int64   // of rows, in elements; zero means V
	Ignore          int32
	ZLoss           float32
}

// Launch queues the kernels.
func (c CrossEntropy) Launch(q Queue) error {
	if c.T < 0 || c.V < 1 || c.Stride != 0 && c.Stride < int64(c.V) {
		return fmt.Errorf("cross-entropy: T >= 0, V >= 1 and a stride of at least V are required, got T %d, V %d, stride %d", c.T, c.V, c.Stride)
	}
	if c.T == 0 {
		return nil
	}
	if c.Stride == 0 {
		c.Stride = int64(c.V)
	}
	overlap := q.Target().Hopper()
	err := q.Launch(Launch{Kernel: "cross_entropy_" + c.Type.String(), Grid: [3]int{c.T, 1, 1}, Block: 512, Overlap: overlap, Args: []Arg{
		{"loss", c.Loss}, {"lse", c.LSE}, {"x", c.X}, {"labels", c.Labels}, {"v", int32(c.V)}, {"stride", c.Stride}, {"ignore", c.Ignore}, {"zloss", c.ZLoss}}})
	if err != nil || c.Mean.IsNil() {
		return err
	}
	return q.Launch(Launch{Kernel: "cross_entropy_mean", Grid: [3]int{1, 1, 1}, Block: 1024, Overlap: overlap, Args: []Arg{
		{"mean", c.Mean}, {"count", c.Count}, {"loss", c.Loss}, {"labels", c.Labels}, {"rows", int32(c.T)}, {"ignore", c.Ignore}}})
}

func crossEntropyBody(c *Call) error {
	const op = "cross_entropy"
	o, t, labels := c.Node.Op().(ops.CrossEntropyOp), c.In[0].Type(), c.In[1]
	if !c.fed(1) {
		return unsupported(op, "labels %s are not fed: the host looks at them before a run", labels.Name())
	}
	e := CrossEntropy{Type: c.p.stored(c.In[0]), T: rowsOf(t), V: lastDim(t), Mean: c.Output(0), Ignore: o.Ignore, ZLoss: float32(o.ZLoss)}
	c.Check([4]any{op, labels, e.V, o.Ignore}, func(f graph.Feeds) error {
		for i, l := range ints(f, labels) {
			if l != o.Ignore && (l < 0 || int(l) >= e.V) {
				return fmt.Errorf("%s: label of row %d is %d, neither in [0,%d) nor the ignored %d", op, i, l, e.V, o.Ignore)
			}
		}
		return nil
	})
	var err error
	if e.X, err = c.InputAs(0, e.Type); err != nil {
		return err
	}
	if e.Labels, err = c.Input(1); err != nil {
		return err
	}
	e.Loss = c.Scratch(int64(4 * e.T))
	if c.Needs(1) {
		e.Count = c.Output(1)
	}
	if c.Needs(2) {
		e.LSE = c.Output(2)
	}
	return e.Launch(c)
}

// nllBody takes ids that the device has computed, or that are fed and looked at.
func nllBody(c *Call) error {
	t := c.In[0].Type()
	e := CrossEntropy{Type: c.p.stored(c.In[0]), T: rowsOf(t), V: lastDim(t), Loss: c.Output(0), Ignore: -1}
	c.checkInts(1, math.MinInt32, e.V-1, "ids")
	var err error
	if e.X, err = c.InputAs(0, e.Type); err != nil {
		return err
	}
	if e.Labels, err = c.Input(1); err != nil {
		return err
	}
	return e.Launch(c)
}
