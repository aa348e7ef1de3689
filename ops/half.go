package ops

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// isHalf reports a weight stored in 16 bits.
func isHalf(t graph.Type) bool {
	return t.DType == dtype.BFloat16 || t.DType == dtype.Float16
}

// halfOf is the memory of a weight stored in 16 bits.
func halfOf(t graph.Tensor) (bits []uint16, kind native.Half, ok bool) {
	if !isHalf(t.Type) {
		return nil, 0, false
	}
	if t.DType == dtype.Float16 {
		kind = native.HalfF16
	}
	return graph.Data[uint16](t), kind, true
}
