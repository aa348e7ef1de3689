package models

import (
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Float64 returns the model with its weights widened to float64: its graphs,
// built with graph.Float(dtype.Float64), are the same computation in float64.
func (m *Transformer) Float64() (*Transformer, error) {
	w, err := New(m.Config)
	if err != nil {
		return nil, err
	}
	for _, p := range m.params.All() {
		q, err := w.params.Add(p.Name, graph.T(dtype.Float64, p.Type.Shape...), p.State)
		if err != nil {
			return nil, err
		}
		dst := graph.Data[float64](q.Tensor())
		for i, v := range graph.Data[float32](p.Tensor()) {
			dst[i] = float64(v)
		}
		q.Touch()
	}
	return w, nil
}
