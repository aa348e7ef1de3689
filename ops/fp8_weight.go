package ops

import (
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// fp8Weight is the quantised copy of a weight: its amax and its codes, each made
// anew when the weight's version, the step or the format is another. It is kept
// with the parameter, so the graphs of a model share it.
type fp8Weight struct {
	mu      sync.RWMutex
	known   bool
	version uint64
	amax    float32
	nan     int
	coded   bool // codes are of this version
	step    float32
	format  native.FP8
	codes   []byte
}

func newFP8Weight() any { return &fp8Weight{} }

// fp8WeightOf finds the copy of input i. A weight that is no parameter gets one
// for this call.
func fp8WeightOf(c *graph.Call, i int) (*fp8Weight, uint64) {
	if p := c.Param(i); p != nil {
		return p.Attach("fp8", newFP8Weight).(*fp8Weight), p.Version()
	}
	return &fp8Weight{}, 0
}

// measure is amax and number of NaN of the weight w, which p holds if it is not
// nil.
func (q *fp8Weight) measure(w graph.Tensor, p *graph.Param, version uint64) (amax float32, nan int) {
	q.mu.RLock()
	if q.known && q.version == version {
		defer q.mu.RUnlock()
		return q.amax, q.nan
	}
	q.mu.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if amax, nan, ok := p.Amax(); ok {
		q.amax, q.nan = amax, nan
		q.known, q.version, q.coded = true, version, false
	}
	q.remeasure(w, version)
	return q.amax, q.nan
}

func (q *fp8Weight) remeasure(w graph.Tensor, version uint64) {
	if q.known && q.version == version {
		return
	}
	switch w.DType {
	case dtype.Float64:
		q.amax, q.nan = native.FP8TensorAmax(graph.Data[float64](w))
	case dtype.Float32:
		q.amax, q.nan = native.FP8TensorAmax(graph.Data[float32](w))
	default:
		q.amax, q.nan = native.FP8TensorAmax(widened(w))
	}
	q.known, q.version, q.coded = true, version, false
}

// acquire returns the codes for a step and keeps them from changing until
// release.
func (q *fp8Weight) acquire(w graph.Tensor, version uint64, step float32, f native.FP8) []byte {
	for {
		q.mu.RLock()
		if q.coded && q.version == version && q.step == step && q.format == f {
			return q.codes
		}
		q.mu.RUnlock()
		q.mu.Lock()
		q.remeasure(w, version)
		if q.codes == nil {
			q.codes = make([]byte, w.Size())
		}
		switch w.DType {
		case dtype.Float64:
			native.FP8TensorQuantize(q.codes, graph.Data[float64](w), step, f)
		case dtype.Float32:
			native.FP8TensorQuantize(q.codes, graph.Data[float32](w), step, f)
		default:
			native.FP8TensorQuantize(q.codes, widened(w), step, f)
		}
		q.coded, q.step, q.format = true, step, f
		q.mu.Unlock()
	}
}

func (q *fp8Weight) release() { q.mu.RUnlock() }

// widened is a weight stored in 16 bits as float32.
func widened(w graph.Tensor) []float32 {
	wide := make([]float32, w.Size())
	if w.DType == dtype.BFloat16 {
		dtype.ToFloat32(wide, graph.Data[dtype.BF16](w))
	} else {
		dtype.ToFloat32(wide, graph.Data[dtype.F16](w))
	}
	return wide
}
