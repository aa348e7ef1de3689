package cuda

import (
	"fmt"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

func init() { Register("affine", affineBody) }

// Affine launches y = Mul x + Add over N elements; Y may be X.
type Affine struct {
	Type     DType
	N        int64
	Y, X     Pointer
	Mul, Add float32
}

// Launch queues the kernel.
func (a Affine) Launch(q Queue) error {
	if a.N < 0 {
		return fmt.Errorf("affine: %d elements", a.N)
	}
	if a.N == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: "affine_" + a.Type.String(), Grid: [3]int{elementBlocks(a.Type, a.N, a.X, a.Y), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", a.Y}, {"x", a.X}, {"n", a.N}, {"mul", a.Mul}, {"add", a.Add}}})
}

// elementBlocks is the number of blocks of 256 threads for n elements: one a thread, or a pack of 16 bytes where all are
// aligned to them.
func elementBlocks(t DType, n int64, at ...Pointer) int {
	each, pack := int64(256), int64(16/t.Size())
	aligned := n >= pack
	for _, p := range at {
		aligned = aligned && p.Addr%16 == 0
	}
	if aligned {
		each *= pack
	}
	return int((n + each - 1) / each)
}

func affineBody(c *Call) error {
	t := c.Node.Type()
	if t.DType != dtype.Float32 {
		return unsupported("affine", "%s", t)
	}
	o := c.Node.Op().(ops.AffineOp)
	a := Affine{Type: c.Type(), N: int64(t.Size()), Y: c.Output(0), Mul: float32(o.Mul), Add: float32(o.Add)}
	if err := c.inputs(0, &a.X); err != nil {
		return err
	}
	return a.Launch(c)
}
