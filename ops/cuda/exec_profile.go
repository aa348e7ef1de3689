package cuda

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// KernelTime is what the launches of one kernel for one role cost in a run.
type KernelTime struct {
	Role     string  `json:"role"` // the nodes that they are for, whatever the layer
	Kernel   string  `json:"kernel"`
	Launches int     `json:"launches"`
	Micros   float64 `json:"us"`       // of all of them
	Bytes    float64 `json:"bytes"`    // that they must at least move: weights, states, inputs and results
	FLOPs    float64 `json:"flops"`    // that they must do
	Floor    float64 `json:"floor_us"` // the time of that at the device's highest rates
}

// Profile is where the time of a run goes.
type Profile struct {
	Kernels   []KernelTime `json:"kernels"` // the longest first
	Micros    float64      `json:"us"`      // of the launches of a run, one after the other as a run replays them
	Bandwidth float64      `json:"bytes_per_s"`
	Rate      float64      `json:"flop_per_s"` // of products in the compute dtype
}

// launchGroup are the launches of one kernel for one role.
type launchGroup struct {
	KernelTime
	index []int // in the order of the program's device launches
}

var layerNumber = regexp.MustCompile(`\.\d+(\.|$)`)

// role names what a step is for: the scope, and the labels in it.
func role(nodes []*graph.Node) string {
	var scope string
	var labels []string
	for i, n := range nodes {
		name := layerNumber.ReplaceAllString(strings.Split(n.Name(), "#")[0], ".*$1")
		at := strings.LastIndex(name, ".") + 1
		if i == 0 {
			scope = name[:at]
		}
		if label := name[at:]; !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return scope + strings.Join(labels, " ")
}

// groups are the launches that a run with these feeds makes.
func (p *program) groups(feeds graph.Feeds) []*launchGroup {
	type key struct {
		role, kernel string
		at           int
	}
	flops := map[*graph.Node]float64{}
	for _, s := range p.plan.Steps {
		flops[s.Node] = float64(s.FLOPs)
	}
	var list []*launchGroup
	found, mixed, index := map[key]*launchGroup{}, p.needsMixed(feeds), 0
	for _, s := range p.steps {
		if s.host != nil {
			continue
		}
		name := role(s.nodes)
		for i, q := range s.queued {
			k := key{name, "fill", i}
			if q.fill == nil {
				k.kernel = q.launch.Kernel
			}
			index++
			if q.mixed && !mixed {
				continue
			}
			g := found[k]
			if g == nil {
				g = &launchGroup{KernelTime: KernelTime{Role: k.role, Kernel: k.kernel}}
				found[k] = g
				list = append(list, g)
			}
			g.index = append(g.index, index-1)
			g.Launches++
			first := !slices.ContainsFunc(s.queued[:i], func(q queued) bool { return q.fill == nil })
			b, f := p.work(s, q, first, feeds, flops)
			g.Bytes += b
			g.FLOPs += f
		}
	}
	return list
}

// work is what a launch must move and do. Products go with the launch that names their weight, and what is done to their
// results counts for nothing; a step without products counts with its first launch.
func (p *program) work(s *step, q queued, first bool, feeds graph.Feeds, flops map[*graph.Node]float64) (bytes, done float64) {
	if q.fill != nil {
		return float64(q.fill.n), 0
	}
	values := map[uint64]int64{}
	for _, n := range s.nodes {
		for _, v := range append(slices.Clone(n.In()), n) {
			if root := rootOf(v); p.constant[v] || root.Param() != nil {
				continue
			}
			size := int64(v.Type().Bytes())
			if v.Type().DType == dtype.Float32 {
				size = int64(v.Type().Size() * p.stored(v).Size())
			}
			at := p.pointer(v).Addr
			values[at] = max(values[at], size)
		}
	}
	counted, product := map[*region]bool{}, false
	for _, a := range q.launch.Args {
		ptr, ok := a.Value.(Pointer)
		if m, is := a.Value.(TensorMap); is {
			ptr, ok = m.Base, true
		}
		i := int(ptr.Addr>>regionShift) - 1
		if !ok || i < 0 {
			continue
		}
		r := p.regions[i]
		if n, known := values[ptr.Addr]; known {
			bytes += float64(n)
			delete(values, ptr.Addr)
		}
		if counted[r] {
			continue
		}
		counted[r] = true
		_, constant := r.key.(constKey)
		switch {
		case r.state && !pages(s): // recurrent: read and written
			bytes += 2 * float64(r.bytes)
		case r.from != nil && !r.state && !readsRows(s):
			for _, param := range r.from {
				product = product || param.Type.Rank() > 1
			}
			bytes += float64(r.bytes) * used(s, r)
		case constant:
			bytes += float64(r.bytes)
		}
		if r == p.joined {
			bytes += float64(r.bytes)
		}
	}
	for _, n := range s.nodes {
		switch o := n.Op().(type) {
		case ops.PagedAttentionOp:
			if first {
				b, f := p.pagedWork(o, n, feeds)
				bytes, done = bytes+b, done+f
			}
		default:
			if isProduct(n) && product || first && !slices.ContainsFunc(s.nodes, isProduct) {
				done += flops[n]
			}
		}
	}
	return bytes, done
}

func isProduct(n *graph.Node) bool {
	name := n.Op().Name()
	return strings.Contains(name, "linear") || strings.HasPrefix(name, "latent_") || strings.HasSuffix(name, "experts")
}

// pages says that a step works on pages, of which pagedWork counts those that requests have.
func pages(s *step) bool {
	return slices.ContainsFunc(s.nodes, func(n *graph.Node) bool {
		return strings.Contains(n.Op().Name(), "page") || n.Op().Name() == "append_rotary"
	})
}

// used is the part of a stack of experts that tokens can go to, 1 for any other weight.
func used(s *step, r *region) float64 {
	for _, n := range s.nodes {
		if strings.HasSuffix(n.Op().Name(), "experts") && r.from[0].Type.Rank() == 3 {
			choices := n.In()[2].Type().Size()
			return min(1, float64(choices)/float64(r.from[0].Type.Shape[0]))
		}
	}
	return 1
}

// readsRows: of a table, or writes them to a pool, whose other rows nobody touches.
func readsRows(s *step) bool {
	return slices.ContainsFunc(s.nodes, func(n *graph.Node) bool { return n.Op().Name() == "embedding" })
}

// pagedWork counts the keys and values that the requests have, and the pairs that the queries see.
func (p *program) pagedWork(o ops.PagedAttentionOp, n *graph.Node, feeds graph.Feeds) (bytes, done float64) {
	in := n.In()
	qo, indptr, last := ints(feeds, in[3]), ints(feeds, in[4]), ints(feeds, in[6])
	row := in[1].Dim(-2) * (in[1].Dim(-1) + in[2].Dim(-1))
	size := p.compute.Size()
	if dt, ok := p.stateType(rootOf(in[1]).Param()); ok {
		size = dt.Size()
	}
	for b := range last {
		length := max(0, int(indptr[b+1]-indptr[b])-1)*in[1].Dim(1) + int(last[b])
		brings := int(qo[b+1] - qo[b])
		if brings == 0 {
			continue
		}
		from, pairs := 0, 0
		for i := range brings {
			sees := length
			if o.Causal {
				sees = length - brings + i + 1
			}
			if o.Window > 0 {
				sees = min(sees, o.Window)
			}
			if i == 0 && o.Causal {
				from = length - brings + 1 - sees
			}
			pairs += sees
		}
		bytes += float64((length - from) * row * size)
		done += 2 * float64(pairs) * float64(in[0].Dim(1)*(in[1].Dim(-1)+in[2].Dim(-1)))
	}
	return bytes, done
}

func longestFirst(a, b KernelTime) int { return cmp.Compare(b.Micros, a.Micros) }

// String is a table, by role and then by kernel.
func (p Profile) String() string {
	var sb strings.Builder
	var total float64
	for _, k := range p.Kernels {
		total += k.Micros
	}
	line := func(role, kernel string, k KernelTime) {
		fmt.Fprintf(&sb, "| %s | %s | %d | %.2f | %.1f | %.1f%% | %.0f | %.1f | %.2f |\n", role, kernel, k.Launches, k.Micros/float64(k.Launches), k.Micros, 100*k.Micros/total,
			k.Bytes/k.Micros/1e3, k.FLOPs/k.Micros/1e6, k.Floor/k.Micros)
	}
	fmt.Fprintf(&sb, "| for | kernel | launches | us each | us | share | GB/s | TFLOP/s | of the floor |\n|---|---|---|---|---|---|---|---|---|\n")
	var kernels []KernelTime
	for _, k := range p.Kernels {
		line(k.Role, k.Kernel, k)
		i := slices.IndexFunc(kernels, func(x KernelTime) bool { return x.Kernel == k.Kernel })
		if i < 0 {
			kernels = append(kernels, KernelTime{Kernel: k.Kernel})
			i = len(kernels) - 1
		}
		x := &kernels[i]
		x.Launches, x.Micros, x.Bytes, x.FLOPs, x.Floor = x.Launches+k.Launches, x.Micros+k.Micros, x.Bytes+k.Bytes, x.FLOPs+k.FLOPs, x.Floor+k.Floor
	}
	slices.SortStableFunc(kernels, longestFirst)
	for _, k := range kernels {
		line("all", k.Kernel, k)
	}
	fmt.Fprintf(&sb, "kernel by kernel %.1f us, a replayed run %.1f us; floor: %.0f GB/s and %.0f TFLOP/s\n", total, p.Micros, p.Bandwidth/1e9, p.Rate/1e12)
	return sb.String()
}
