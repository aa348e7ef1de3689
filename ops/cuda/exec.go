package cuda

import (
	"fmt"

	"github.com/seafan/seafan/graph/dtype"
)

// Options of Compile; the zero value is device 0, bfloat16, with native steps where a kernel is missing.
type Options struct {
	Device  int
	Compute dtype.DType // of activations: BFloat16 (default), Float16 or Float32
	Strict  bool        // a node without a kernel is an error
	Random  bool        // weights that have no memory on the host are made on the device, of normal numbers: to measure speed
}

func (o Options) compute() (DType, error) {
	switch o.Compute {
	case dtype.Invalid, dtype.BFloat16:
		return BF16, nil
	case dtype.Float16:
		return F16, nil
	case dtype.Float32:
		return F32, nil
	}
	return 0, fmt.Errorf("cuda: Compute is bfloat16, float16 or float32, got %s", o.Compute)
}
