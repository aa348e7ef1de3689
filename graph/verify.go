package graph

import (
	"fmt"
	"strings"

	"gorgonia.org/gorgonia"
)

// Verify holds a graph to its rules: no two gorgonia nodes with one hash, no op
// but ours and gorgonia's sum of gradients, unique names, inputs before users,
// shapes as Infer says, and states read before they are written or after, as
// the graph says. Tests call it after every pass.
func Verify(b *Builder) error {
	if err := b.Err(); err != nil {
		return err
	}
	byHash := map[uint32]*gorgonia.Node{}
	for _, gn := range b.g.AllNodes() {
		if other := byHash[gn.Hashcode()]; other != nil {
			return fmt.Errorf("graph: Verify: %v and %v have one hash", gn, other)
		}
		byHash[gn.Hashcode()] = gn
		if op := gn.Op(); op != nil {
			if _, ours := op.(*adapter); !ours && !strings.HasPrefix(op.String(), "+") {
				return fmt.Errorf("graph: Verify: %v uses gorgonia's op %v; only its sum of gradients is allowed", gn, op)
			}
		}
	}
	names := map[string]bool{}
	seen := map[*Node]bool{}
	for _, n := range b.nodes {
		if names[n.name] {
			return fmt.Errorf("graph: Verify: two nodes are named %q", n.name)
		}
		names[n.name] = true
		seen[n] = true
		if n.op == nil {
			continue
		}
		types := make([]Type, len(n.in))
		for i, in := range n.in {
			if !seen[in] {
				return fmt.Errorf("graph: Verify: %s stands before its input %s", n.name, in.name)
			}
			types[i] = in.typ
		}
		outs, err := infer(n.op, types)
		if err != nil {
			return fmt.Errorf("graph: Verify: %w", located(n.name, n.op.Name(), err))
		}
		if !packed(outs).Equal(n.typ) {
			return fmt.Errorf("graph: Verify: %s: %s: the node is %s, Infer says %s", n.name, n.op.Name(), n.typ, packed(outs))
		}
	}
	return checkStates(b.nodes)
}
