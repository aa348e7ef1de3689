package models

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Float64 returns the model with its weights widened to float64: its graphs,
// built with graph.Float(dtype.Float64), are the same computation in float64.
func (m *Transformer) Float64() (*Transformer, error) {
	if err := m.hold(); err != nil {
		return nil, err
	}
	defer m.params.Release()
	w, err := New(m.Config)
	if err != nil {
		return nil, err
	}
	for _, p := range m.params.All() {
		if p.State || m.isSteps(p) {
			continue
		}
		q, err := w.params.Add(p.Name, graph.T(dtype.Float64, shapeOf(p)...), p.State)
		if err != nil {
			return nil, err
		}
		dst := graph.Data[float64](q.Tensor())
		for i, v := range m.wide(p) {
			dst[i] = float64(v)
		}
		q.Touch()
	}
	return w, nil
}

// widened is a weight in float32: its own memory, or a copy of one in 16 bits.
func widened(t graph.Tensor) []float32 {
	switch t.DType {
	case dtype.BFloat16:
		wide := make([]float32, t.Size())
		dtype.ToFloat32(wide, graph.Data[dtype.BF16](t))
		return wide
	case dtype.Float16:
		wide := make([]float32, t.Size())
		dtype.ToFloat32(wide, graph.Data[dtype.F16](t))
		return wide
	}
	return graph.Data[float32](t)
}
