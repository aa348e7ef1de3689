// Tensors of a checkpoint that are no part of the model, such as a head of one's own.

package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Extra opens tensors that are no part of the model, by name, as parameters beside
// its own: a head that Save wrote with it, score.weight of a model that classifies.
// A model with a head of that kind may have no lm_head.
func Extra(names ...string) Option {
	return func(s *storage) { s.extra = append(s.extra, names...) }
}

// wanted are the parameters that the checkpoint must hold: those of a model
// without weights, and what Extra names. A model with other heads may lack its own.
func (s *source) wanted(plain *Transformer) ([]*graph.Param, error) {
	for _, name := range s.kept.extra {
		t, ok := s.ck.Lookup(name)
		switch {
		case !ok:
			return nil, fmt.Errorf("Extra names %q, the checkpoint has no tensor of that name", name)
		case plain.params.Get(name) != nil:
			return nil, fmt.Errorf("Extra names %q twice, or a tensor of the model's own", name)
		}
		if _, err := plain.params.Add(name, graph.T(dtype.Float32, t.Shape()...), false); err != nil {
			return nil, err
		}
	}
	params := plain.params.All()
	if _, hasHead := s.lookup(headName); !hasHead && (s.model == "" || len(s.kept.extra) > 0) {
		params = slices.DeleteFunc(slices.Clone(params), func(p *graph.Param) bool { return p.Name == headName })
	}
	return params, nil
}

// foreign says, for an error, how tensors that belong to no model are opened.
func (s *source) foreign(unexpected []string) string {
	unexpected = slices.DeleteFunc(slices.Clone(unexpected), func(name string) bool { return strings.HasPrefix(name, modelScope) })
	if len(unexpected) == 0 || s.gguf != nil || s.model == "" {
		return ""
	}
	return fmt.Sprintf(" (a head of one's own is opened with Extra: %s)", strings.Join(unexpected, ", "))
}
