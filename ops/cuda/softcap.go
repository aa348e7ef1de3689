package cuda

import (
	"fmt"

	"github.com/seafan/seafan/ops"
)

func init() { Register("softcap", softcapBody) }

// Softcap launches y = Cap tanh(x / Cap) over N elements; Y may be X.
type Softcap struct {
	Type DType
	N    int64
	Y, X Pointer
	Cap  float32
}

// Launch queues the kernel.
func (s Softcap) Launch(q Queue) error {
	if s.N < 0 || !(s.Cap > 0) {
		return fmt.Errorf("softcap: N >= 0 and a cap above 0 are required, got N %d, cap %g", s.N, s.Cap)
	}
	if s.N == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: "softcap_" + s.Type.String(), Grid: [3]int{elementBlocks(s.Type, s.N, s.X, s.Y), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", s.Y}, {"x", s.X}, {"n", s.N}, {"cap", s.Cap}}})
}

func softcapBody(c *Call) error {
	s := Softcap{Type: c.OutputType(), N: int64(c.Node.Type().Size()), Y: c.Output(0), Cap: float32(c.Node.Op().(ops.SoftcapOp).Cap)}
	var err error
	if s.X, err = c.InputAs(0, s.Type); err != nil {
		return err
	}
	return s.Launch(c)
}
