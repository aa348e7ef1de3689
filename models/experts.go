// Mixtures of experts as a part of a layer.

package models

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Experts describes the mixture that stands in a layer for the gated unit.
type Experts struct {
	Router ops.Router
	FFN    int                  // width of one expert
	Shared int                  // width of the expert that every token has; 0: none
	Gated  bool                 // that expert is multiplied by the sigmoid of a gate of its own
	Clamp  ops.ClampedExpertsOp // a Limit above 0: clamped units, and biases of the experts and the router
	Bias   bool                 // the choice adds a bias to the scores, which is not trained
	Dense  []bool               // by layer: the gated unit and no mixture
}

func (e *Experts) check(layers int) error {
	switch {
	case e.FFN < 1 || e.FFN > 1<<30:
		return fmt.Errorf("moe_intermediate_size must be 1 to 2^30, got %d", e.FFN)
	case e.Shared < 0 || e.Shared > 1<<30:
		return fmt.Errorf("the width of the shared experts must be 0 to 2^30, got %d", e.Shared)
	case e.Gated && e.Shared == 0:
		return errors.New("the width of a shared expert with a gate must be 1 or more, got 0")
	case e.Router.Experts > 1<<16:
		return fmt.Errorf("at most 65536 experts are supported, got %d", e.Router.Experts)
	case math.IsNaN(e.Clamp.Alpha+e.Clamp.Limit) || math.IsInf(e.Clamp.Alpha+e.Clamp.Limit, 0) || e.Clamp.Limit < 0:
		return fmt.Errorf("swiglu_alpha must be finite and swiglu_limit 0 (no clamp) or above, got %g and %g", e.Clamp.Alpha, e.Clamp.Limit)
	case len(e.Dense) != layers:
		return fmt.Errorf("Dense has %d entries, num_hidden_layers is %d", len(e.Dense), layers)
	}
	return e.Router.Check()
}

// spelt is e with what zero values of its router stand for.
func (e *Experts) spelt() *Experts {
	if e == nil {
		return nil
	}
	c := *e
	if c.Router.Scale == 0 {
		c.Router.Scale = 1
	}
	if c.Router.Groups < 2 {
		c.Router.Groups, c.Router.KeepGroups = 0, 0
	}
	return &c
}

// feedForward is the gated unit, or the mixture in the layers that have one.
func (l *layer) feedForward(x *graph.Node) *graph.Node {
	s := l.Scope("mlp")
	if e := l.c.Experts; e != nil && !e.Dense[l.index] {
		x = l.mixture(s, e, x)
	} else {
		x = l.gated(s, x, l.c.FFN)
	}
	return l.drop.apply(x, unitName(l.index))
}

// choiceBias is the bias of the choice, by the scope of a mixture.
const choiceBias = "gate.e_score_correction_bias"

func (l *layer) mixture(s *graph.Builder, e *Experts, x *graph.Node) *graph.Node {
	n, d := e.Router.Experts, l.c.Hidden
	router, clamped := "gate", e.Clamp.Limit > 0
	if clamped {
		router = "router"
	}
	logits := linear(s, router, x, n, clamped)
	var bias *graph.Node
	if e.Bias {
		bias = s.Param(choiceBias, n)
		if p := bias.Param(); p != nil && !p.Frozen { // no write where graphs of a model are built side by side
			p.Frozen = true // it steers the load and has no gradient
		}
	}
	ids, weights := ops.Route(logits, bias, e.Router)
	s.Output(routerName(l.index), logits)
	s.Output(choicesName(l.index), ids)
	gate, up, down := weight(s, "experts.gate_proj.weight", n, e.FFN, d), weight(s, "experts.up_proj.weight", n, e.FFN, d), weight(s, "experts.down_proj.weight", n, d, e.FFN)
	if clamped {
		return ops.ClampedExperts(x, weights, ids, gate, up, down,
			s.Param("experts.gate_proj.bias", n, e.FFN), s.Param("experts.up_proj.bias", n, e.FFN), s.Param("experts.down_proj.bias", n, d), e.Clamp)
	}
	y := ops.Experts(x, weights, ids, gate, up, down)
	switch {
	case e.Gated:
		z := l.gated(s.Scope("shared_expert"), x, e.Shared)
		sigmoid := ops.KDABeta(linear(s, "shared_expert_gate", x, 1, false), false)
		y = ops.Add(y, ops.Mul(z, sigmoid))
	case e.Shared > 0:
		y = ops.Add(y, l.gated(s.Scope("shared_experts"), x, e.Shared))
	}
	return y
}

// OnDisk lists the tensors of the model's files that make up a parameter: itself,
// or one for each expert of a stack, along its first dimension.
func (m *Transformer) OnDisk(param string) []string {
	if m.Missing() {
		return []string{param}
	}
	return m.Config.onDisk(param)
}

func (c *Config) onDisk(name string) []string {
	if disk := architectures[c.Type].onDisk; disk != nil {
		return disk(c, name)
	}
	before, kind, ok := strings.Cut(name, ".mlp.experts.")
	if !ok || c.Experts == nil {
		return []string{name}
	}
	names := make([]string, c.Experts.Router.Experts)
	for e := range names {
		names[e] = before + ".mlp.experts." + strconv.Itoa(e) + "." + kind
	}
	return names
}
