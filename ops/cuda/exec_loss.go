package cuda

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

func init() { Register("cross_entropy", crossEntropyBody) }

// crossEntropyBody gives the mean loss and the number of counted tokens. The kernel gives a loss a row; the mean is a product
// with a row that the host makes from the labels: 1/count where a token counts, 0 elsewhere. The count comes from the host.
func crossEntropyBody(c *Call) error {
	const op = "cross_entropy"
	o, t := c.Node.Op().(ops.CrossEntropyOp), c.In[0].Type()
	switch {
	case o.ZLoss != 0:
		return unsupported(op, "z-loss %g", o.ZLoss)
	case c.Needs(2):
		return unsupported(op, "lse is read")
	case !c.fed(1):
		return unsupported(op, "labels %s are not fed", c.In[1].Name())
	case o.Ignore >= 0:
		return unsupported(op, "label %d is ignored: the kernel ignores labels below 0", o.Ignore)
	}
	rows, v, labels := rowsOf(t), lastDim(t), c.In[1]
	padded := (rows + 7) / 8 * 8
	c.Check([3]any{"labels", labels, v}, func(f graph.Feeds) error {
		for i, l := range ints(f, labels) {
			if l != o.Ignore && (l < 0 || int(l) >= v) {
				return fmt.Errorf("%s: label of row %d is %d, neither in [0,%d) nor the ignored %d", op, i, l, v, o.Ignore)
			}
		}
		return nil
	})
	counted := func(f graph.Feeds) (n int) {
		for _, l := range ints(f, labels) {
			if l != o.Ignore {
				n++
			}
		}
		return n
	}
	weights := c.Prepared([3]any{"loss weights", labels, o.Ignore}, "loss_weights", padded, func(dst []int32, f graph.Feeds) {
		clear(dst)
		n := counted(f)
		for i, l := range ints(f, labels) {
			if l != o.Ignore {
				dst[i] = int32(math.Float32bits(1 / float32(n)))
			}
		}
	})
	e := CrossEntropy{Type: c.p.stored(c.In[0]), T: rows, V: v}
	var err error
	if e.X, err = c.InputAs(0, e.Type); err != nil {
		return err
	}
	if e.Labels, err = c.Input(1); err != nil {
		return err
	}
	losses := c.Scratch(int64(4 * padded))
	e.Loss = losses
	if padded > rows {
		if err := c.Fill(losses.At(int64(4*rows)), 0, int64(4*(padded-rows))); err != nil {
			return err
		}
	}
	if err := e.Launch(c); err != nil {
		return err
	}
	if err := (Gemm{Type: F32, M: 1, N: 1, K: padded, Y: c.Output(0), X: losses, W: weights}).Launch(c); err != nil {
		return err
	}
	if !c.Needs(1) {
		return nil
	}
	count := c.Prepared([3]any{"loss count", labels, o.Ignore}, "loss_count", 1, func(dst []int32, f graph.Feeds) { dst[0] = int32(math.Float32bits(float32(counted(f)))) })
	zero := c.Prepared("loss zero", "zero", 1, func(dst []int32, _ graph.Feeds) { dst[0] = 0 })
	return Embedding{Type: F32, T: 1, D: 1, Vocabulary: 1, Scale: 1, Y: c.Output(1), Table: count, IDs: zero}.Launch(c)
}
