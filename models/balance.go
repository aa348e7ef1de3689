// An even load of experts: the choices of a step, and the bias that steers them.

package models

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

func routerName(layer int) string  { return fmt.Sprintf("router.%d", layer) }
func choicesName(layer int) string { return fmt.Sprintf("choices.%d", layer) }

// BalanceLoss adds to a graph of the model, built by Logits or Loss, the mean
// over the layers with experts of ops.BalanceLoss: 1 for an even load. A loss
// that takes a small multiple of it keeps the load even without a bias.
func (m *Transformer) BalanceLoss(b *graph.Builder) *graph.Node {
	if err := m.usable(); err != nil {
		return b.Fail(err)
	}
	var sum *graph.Node
	n := 0
	for l, ids := range m.Choices(b) {
		if ids == nil {
			continue
		}
		term := ops.BalanceLoss(b.Out(routerName(l)), ids, m.Config.Experts.Router)
		if n++; sum == nil {
			sum = term
		} else {
			sum = ops.Add(sum, term)
		}
	}
	if sum == nil {
		return b.Fail(errors.New("models: BalanceLoss: the graph has no experts"))
	}
	return ops.Affine(sum, 1/float64(n), 0)
}

// Choices lists, by layer, the outputs of a graph of the model that hold the
// experts each token chose, int32 [...,TopK]; nil for a layer without experts.
func (m *Transformer) Choices(b *graph.Builder) []*graph.Node {
	if m.Missing() {
		b.Fail(m.usable())
		return nil
	}
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
	if err := m.usable(); err != nil {
		return err
	}
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
