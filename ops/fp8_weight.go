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
	recipe  FP8Recipe // of the linear that asked last, and its state
	state   fp8State
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

// measure is the step of the weight w, which p holds if it is not nil, for a linear
// of such a recipe and state, with amax and number of NaN. fresh says that it was
// replaced.
func (q *fp8Weight) measure(w graph.Tensor, p *graph.Param, version uint64, r FP8Recipe, s fp8State) (step, amax float32, nan int, fresh bool) {
	q.mu.RLock()
	ready := q.known && q.version == version && q.recipe == r && &q.state[0] == &s[0]
	amax, nan = q.amax, q.nan
	q.mu.RUnlock()
	if !ready {
		q.mu.Lock()
		q.recipe, q.state = r, s
		if amax, nan, ok := p.Amax(); ok && !(q.known && q.version == version) {
			q.know(version, amax, nan)
		}
		q.remeasure(w, version)
		amax, nan = q.amax, q.nan
		q.mu.Unlock()
	}
	step, fresh = r.WeightStep(s, amax)
	return step, amax, nan, fresh
}

// know keeps what was measured of a version.
func (q *fp8Weight) know(version uint64, amax float32, nan int) {
	q.amax, q.nan = amax, nan
	q.known, q.version, q.coded = true, version, false
}

// Renew makes the codes that the next training step will ask for.
func (q *fp8Weight) Renew(p *graph.Param) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if amax, nan, ok := p.Amax(); ok && q.state != nil {
		q.know(p.Version(), amax, nan)
		step, _ := q.recipe.WeightStep(q.state, amax)
		q.quantize(p.Tensor(), step, q.recipe.Format.Forward())
	}
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
	q.know(version, q.amax, q.nan)
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
		q.quantize(w, step, f)
		q.mu.Unlock()
	}
}

// quantize makes the codes of the version that is known.
func (q *fp8Weight) quantize(w graph.Tensor, step float32, f native.FP8) {
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
