// An even load of experts: the choices of a step, and the bias that steers them.

package models

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func choicesName(layer int) string { return fmt.Sprintf("choices.%d", layer) }

// Choices lists, by layer, the outputs of a graph of the model that hold the
// experts each token chose, int32 [...,TopK]; nil for a layer without experts.
func (m *Transformer) Choices(b *graph.Builder) []*graph.Node {
	ids := make([]*graph.Node, m.Config.Layers)
	for l := range ids {
		ids[l] = b.Out(choicesName(l))
	}
	return ids
}

// BalanceExperts moves the biases of the routers by u towards an even load, from
// the choices of a batch by layer (nil: no change): up for an expert chosen less
// often than the mean, down for one chosen more often. A training loop calls it
// after a step. Source: Wang et al. (arXiv:2408.15664).
func (m *Transformer) BalanceExperts(choices [][]int32, u float64) error {
	e := m.Config.Experts
	if e == nil || !e.Bias {
		return fmt.Errorf("models: BalanceExperts: the model has no routers with a bias")
	}
	if len(choices) != m.Config.Layers {
		return fmt.Errorf("models: BalanceExperts: takes the choices of %d layers, got %d", m.Config.Layers, len(choices))
	}
	for l, ids := range choices {
		if ids == nil {
			continue
		}
		p := m.params.Get(fmt.Sprintf("model.layers.%d.mlp.gate.e_score_correction_bias", l))
		if p == nil {
			return fmt.Errorf("models: BalanceExperts: layer %d has no experts, or the model no weights", l)
		}
		if err := native.CheckExpertIDs(ids, e.Router.Experts); err != nil {
			return fmt.Errorf("models: BalanceExperts: layer %d: %w", l, err)
		}
		w := graph.Data[float32](p.Tensor())
		native.BalanceBias(w, w, ids, e.Router, u)
		p.Touch()
	}
	return nil
}
