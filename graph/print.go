package graph

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// String shows the plan as a table: the totals, then a line for each step with
// its op, result, place in the arena, bytes and work.
func (p *Plan) String() string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "plan: %d steps, arena %s (values %s), parameters %s, %s\n",
		len(p.Steps), sizeText(p.Arena), sizeText(p.Values), sizeText(p.ParamBytes()), flopsText(p.FLOPs()))
	w := tabwriter.NewWriter(&sb, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tnode\top\tresult\tat\tbytes\twork\tinputs")
	for i, s := range p.Steps {
		n := s.Node
		types := make([]string, len(n.outs))
		for j, t := range n.outs {
			types[j] = t.String()
		}
		ins := make([]string, len(n.in))
		for j, in := range n.in {
			ins[j] = in.shown()
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i, n.name, n.op.Name(),
			strings.Join(types, " "), p.places[n], sizeText(n.typ.Bytes()), flopsText(s.FLOPs), strings.Join(ins, " "))
	}
	w.Flush() // a Builder does not fail
	return strings.TrimRight(sb.String(), "\n") + "\n"
}

// shown is the name by which a plan lists an input: the first result of an op goes
// by the op's own name, so that a pass that adds results changes no other line.
func (n *Node) shown() string {
	if r, ok := n.op.(result); ok && r.Index == 0 {
		return n.in[0].name
	}
	return n.name
}

func (pl Place) String() string {
	if pl.Leaf != nil {
		return pl.Leaf.name
	}
	return fmt.Sprint(pl.Offset)
}

// DOT is the plan as a graph for graphviz: leaves as boxes, steps as ellipses.
func (p *Plan) DOT() string {
	var sb strings.Builder
	sb.WriteString("digraph plan {\n  rankdir=TB;\n")
	for _, n := range p.nodes {
		shape, head := "ellipse", n.name
		if n.op == nil {
			shape = "box"
		} else {
			head = n.op.Name() + "\\n" + n.name
		}
		work := ""
		if n.op != nil && !n.isView() {
			work = ", " + flopsText(p.flopsOf(n))
		}
		fmt.Fprintf(&sb, "  %q [shape=%s, label=\"%s\\n%s, %s%s\"];\n", n.name, shape, escapeDOT(head), n.typ, sizeText(n.typ.Bytes()), work)
		for _, in := range n.in {
			fmt.Fprintf(&sb, "  %q -> %q;\n", in.name, n.name)
		}
	}
	sb.WriteString("}\n")
	return sb.String()
}

func escapeDOT(s string) string { return strings.ReplaceAll(s, `"`, `\"`) }

func (p *Plan) flopsOf(n *Node) int64 {
	for _, s := range p.Steps {
		if s.Node == n {
			return s.FLOPs
		}
	}
	return 0
}

func sizeText(n int) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2fGiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.2fMiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1fKiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%dB", n)
}

func flopsText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2fGFLOP", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2fMFLOP", float64(n)/1e6)
	}
	return fmt.Sprintf("%dFLOP", n)
}
