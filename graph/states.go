package graph

import "fmt"

// Which op may read and write a state when, and whose memory a value is in.

// checkStates refuses an order in which an op would read a state after another
// op has written it. Who wants the new content must use the writer's result.
// An output must show what the run leaves in its memory, too.
func checkStates(nodes []*Node, outputs ...*Node) error {
	writer := map[*Node]*Node{} // root of a state: the node whose result is its newest content
	for _, n := range nodes {
		for _, in := range n.in {
			root := in.root()
			if w := writer[root]; w != nil && !in.follows(w) {
				if _, ok := w.op.(Writer); ok {
					return fmt.Errorf("graph: %s reads %s after %s has written it: the new content is for the next run", n.name, in.name, w.name)
				}
				return fmt.Errorf("graph: %s reads %s after %s has written it: use the result of %s", n.name, in.name, w.name, w.name)
			}
		}
		if wr, ok := n.op.(Writer); ok {
			for _, i := range wr.Writes() {
				root := n.in[i].root()
				if root.param == nil || !root.param.State {
					return fmt.Errorf("graph: %s: %s writes to %s, which is not a state", n.name, n.op.Name(), root.name)
				}
				writer[root] = n
			}
		}
		if al, ok := n.op.(Aliaser); ok && n.def.Native != nil {
			root := n.in[al.Alias()].root()
			if root.param == nil || !root.param.State {
				return fmt.Errorf("graph: %s: %s writes to %s, which is not a state", n.name, n.op.Name(), root.name)
			}
			writer[root] = n
		}
	}
	for _, o := range outputs {
		if w := writer[o.root()]; w != nil && !o.follows(w) {
			return fmt.Errorf("graph: the output %s shows %s, which %s writes to: ask for the result of %s, or read the state after the run", o.name, o.root().name, w.name, w.name)
		}
	}
	return nil
}

// root is the node whose memory n is in.
func (n *Node) root() *Node {
	for {
		al, ok := n.op.(Aliaser)
		if !ok {
			return n
		}
		n = n.in[al.Alias()]
	}
}

// follows reports whether n is w or a view made from w's result.
func (n *Node) follows(w *Node) bool {
	for n != w {
		al, ok := n.op.(Aliaser)
		if !ok {
			return false
		}
		n = n.in[al.Alias()]
	}
	return true
}
