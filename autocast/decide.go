package autocast

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// This file finds the linears of a graph and says what becomes of each.

// role is what a linear is for.
type role string

const (
	head      role = "output head"
	embedding role = "embedding table"
	router    role = "router"
	norm      role = "norm"
)

// decide looks at every linear of the graph, in order, and at the stacks of
// experts where the pass takes them.
func (p pass) decide(b *graph.Builder, f Filter) (*Report, map[*graph.Node]bool, error) {
	if f.MinSize < 0 {
		return nil, nil, fmt.Errorf("MinSize must be 0 (%d) or more, got %d", p.minSize, f.MinSize)
	}
	if f.MinSize == 0 {
		f.MinSize = p.minSize
	}
	report := &Report{Pass: p.name, Mode: p.mode}
	chosen := map[*graph.Node]bool{}
	nodes := b.Nodes()
	users := usersOf(nodes)
	for _, n := range nodes {
		weights, flops := p.weights(n)
		first, stays := len(report.Linears), false
		for _, w := range weights {
			d := Decision{Weight: w.Name(), Node: n.Name(), Shape: slices.Clone(w.Shape()), FLOPs: flops}
			taken, err := p.judge(&d, n, w, b.Float(), f, users)
			if err != nil {
				return nil, nil, err
			}
			report.Linears = append(report.Linears, d)
			chosen[n] = chosen[n] || taken
			stays = stays || !d.Cast
		}
		if stays && chosen[n] { // one stack of several
			delete(chosen, n)
			for i := range report.Linears[first:] {
				if d := &report.Linears[first+i]; d.Cast {
					d.Cast, d.Reason = false, "another stack of the experts stays"
				}
			}
		}
	}
	for _, pattern := range slices.Concat(f.Include, f.Exclude) {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, nil, fmt.Errorf("the pattern %q is malformed: a class must be closed and no escape may end it", pattern)
		}
		if !slices.ContainsFunc(report.Linears, func(d Decision) bool { return match([]string{pattern}, d.Weight) != "" }) {
			return nil, nil, fmt.Errorf("the pattern %q matches no weight of a linear%s", pattern, near(pattern, report.Linears))
		}
	}
	return report, chosen, nil
}

// weights are those of a linear, or of experts where the pass takes them, and
// the work that each of them is for.
func (p pass) weights(n *graph.Node) (weights []*graph.Node, flops int64) {
	switch op := n.Op(); {
	case op == nil:
	case op.Name() == "linear" || isLinear(op.Name()) && slices.Contains(p.done, op.Name()):
		x, w := n.In()[0], n.In()[1]
		return n.In()[1:2], 2 * int64(x.Type().Size()) * int64(w.Dim(0))
	case p.experts && (op.Name() == "experts" || slices.Contains(p.done, op.Name())):
		ids, w := n.In()[2], n.In()[3]
		return n.In()[3:6], 2 * int64(ids.Type().Size()) * int64(w.Dim(1)) * int64(w.Dim(2))
	}
	return nil, 0
}

// judge fills in what becomes of weight w of node n, and says whether the pass is
// to build n anew.
func (p pass) judge(d *Decision, n, w *graph.Node, float dtype.DType, f Filter, users map[*graph.Node][]*graph.Node) (taken bool, err error) {
	before := slices.Contains(p.done, n.Op().Name())
	included, excluded := match(f.Include, d.Weight), match(f.Exclude, d.Weight)
	switch {
	case included != "" && excluded != "":
		return false, fmt.Errorf("%s is included by %q and excluded by %q", d.Weight, included, excluded)
	case before && (p.again == nil || !p.again(n) || excluded != "" || len(f.Include) > 0 && included == ""):
		d.Cast, d.Reason = true, "done before"
		return false, nil
	case before:
		d.Cast, d.Reason = true, "with other activations"
	case w.Param() == nil:
		d.Reason = "the weight is no parameter"
	case w.Param().State || w.Type().DType != float && (p.narrow == nil || !p.narrow(w.Type().DType)):
		d.Reason = fmt.Sprintf("the weight is stored as %s", w.Type().DType)
	case excluded != "":
		d.Reason = fmt.Sprintf("excluded by %q", excluded)
	case included != "":
		d.Cast, d.Reason = true, fmt.Sprintf("included by %q", included)
	case len(f.Include) > 0:
		d.Reason = "no include pattern matches"
	default:
		d.Cast, d.Reason = p.byDefault(n, w, users, f.MinSize)
	}
	return d.Cast, nil
}

// byDefault applies the default exclusions.
func (p pass) byDefault(n, w *graph.Node, users map[*graph.Node][]*graph.Node, minSize int) (bool, string) {
	if r := roleOf(n, w, users); slices.Contains(p.keeps, r) {
		return false, string(r)
	}
	if size := w.Type().Size(); size < minSize {
		return false, fmt.Sprintf("small: %d elements, the threshold is %d", size, minSize)
	}
	return true, "eligible"
}

// match is the first pattern that matches a name.
func match(patterns []string, name string) string {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return p
		}
	}
	return ""
}

func usersOf(nodes []*graph.Node) map[*graph.Node][]*graph.Node {
	users := map[*graph.Node][]*graph.Node{}
	for _, n := range nodes {
		for _, in := range n.In() {
			users[in] = append(users[in], n)
		}
	}
	return users
}

// roleOf tells what a linear n on the weight w is for: by its use where the graph
// shows it (a table that is looked up in, logits that go to a loss, half of a
// gated unit), else by the usual names.
func roleOf(n, w *graph.Node, users map[*graph.Node][]*graph.Node) role {
	for _, u := range users[w] {
		if u.Op().Name() == "embedding" {
			return embedding
		}
	}
	if feeds(n, users, "cross_entropy") {
		return head
	}
	if feeds(n, users, "swiglu", "geglu") {
		return "" // of a gated unit, which may call its gate what others call a router
	}
	parts := strings.Split(strings.ToLower(w.Name()), ".")
	for i, s := range parts {
		switch {
		case s == "lm_head" || s == "head" || s == "output":
			return head
		case strings.Contains(s, "embed") || s == "wte" || s == "wpe":
			return embedding
		case strings.Contains(s, "router"), s == "gate" && i == len(parts)-2:
			return router
		case strings.Contains(s, "norm"):
			return norm
		}
	}
	return ""
}

// feeds reports whether one of the ops reads the result of n, views of it
// included.
func feeds(n *graph.Node, users map[*graph.Node][]*graph.Node, names ...string) bool {
	for _, u := range users[n] {
		op := u.Op().Name()
		if slices.Contains(names, op) || (op == "reshape" || op == "result") && feeds(u, users, names...) {
			return true
		}
	}
	return false
}

// near lists the names that a pattern may have meant.
func near(pattern string, linears []Decision) string {
	if len(linears) == 0 {
		return ": the graph has none"
	}
	plain := strings.Trim(pattern, "*")
	type candidate struct {
		name string
		far  int
	}
	var cs []candidate
	for _, d := range linears {
		// The pattern may mean a part of the name: compare with its best window.
		far := distance(plain, d.Weight)
		for i := 0; i+len(plain) <= len(d.Weight); i++ {
			far = min(far, distance(plain, d.Weight[i:i+len(plain)]))
		}
		if !slices.ContainsFunc(cs, func(c candidate) bool { return c.name == d.Weight }) {
			cs = append(cs, candidate{d.Weight, far})
		}
	}
	slices.SortStableFunc(cs, func(a, b candidate) int { return a.far - b.far })
	var names []string
	for _, c := range cs[:min(3, len(cs))] {
		names = append(names, c.name)
	}
	return "; near it: " + strings.Join(names, ", ")
}

// distance is the number of characters to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := left
			if a[i] != b[j] {
				cost++
			}
			left = row[j+1]
			row[j+1] = min(cost, left+1, row[j]+1)
		}
	}
	return row[len(b)]
}
