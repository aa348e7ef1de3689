package cuda

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// hostStep is a node that runs natively inside a plan, with what is copied for it.
type hostStep struct {
	node     *graph.Node
	call     graph.Call
	native   func(*graph.Call) error
	down, up []move
}

// move copies a value between the device and the host, where it is float32 or, when raw, as on the device.
type move struct {
	node *graph.Node
	at   Pointer
	dt   DType
	raw  bool
	host []byte
}

func (m move) bytes() int64 {
	if m.raw {
		return int64(len(m.host))
	}
	return int64(len(m.host) / 4 * m.dt.Size())
}

// bind gives a native step its tensors on the host.
func (p *program) bind(h *hostStep) error {
	def, _ := graph.Lookup(h.node.Op().Name())
	if def.Native == nil {
		return fmt.Errorf("cuda: %s: %s has neither a kernel nor a native body", h.node.Name(), h.node.Op().Name())
	}
	h.native, h.call = def.Native, graph.CallOf(h.node)
	for _, in := range h.node.In() {
		h.call.In = append(h.call.In, p.tensor(in))
	}
	if _, ok := h.node.Op().(graph.Aliaser); ok {
		h.call.Out = []graph.Tensor{p.tensor(h.node)}
		return nil
	}
	for i := range h.node.Results() {
		h.call.Out = append(h.call.Out, p.result(h.node, i))
	}
	return nil
}

// memory is the host's memory of a root node.
func (p *program) memory(root *graph.Node) []byte {
	switch {
	case root.Param() != nil:
		return root.Param().Tensor().Bytes()
	case root.Const() != nil:
		return root.Const()
	}
	if _, ok := p.host[root]; !ok {
		p.host[root] = graph.NewTensor(root.Type())
	}
	return p.host[root].Bytes()
}

// tensor is the value of n on the host.
func (p *program) tensor(n *graph.Node) graph.Tensor {
	return part(p.memory(rootOf(n)), int(p.offset(n)), n.Type())
}

func (p *program) result(n *graph.Node, i int) graph.Tensor {
	return part(p.memory(n), n.ResultOffset(i), n.Results()[i])
}

func part(mem []byte, at int, t graph.Type) graph.Tensor {
	v, err := graph.TensorOf(t, mem[at:at+t.Bytes()])
	if err != nil {
		panic(err) // the slice has the type's length
	}
	return v
}

func (p *program) moveOf(n *graph.Node, at Pointer, dt DType, host graph.Tensor) move {
	return move{node: n, at: at, dt: dt, raw: host.DType != dtype.Float32, host: host.Bytes()}
}

// finish decides what is copied where, drops memory that nothing uses, and binds the native steps.
func (p *program) finish() error {
	for _, h := range p.consts {
		if err := p.bind(h); err != nil {
			return err
		}
	}
	type spot struct {
		root   *graph.Node
		offset int64
	}
	read, onDevice, onHost := map[*graph.Node]bool{}, map[*graph.Node]bool{}, map[spot]bool{}
	for _, s := range p.steps {
		for _, n := range s.nodes {
			for _, in := range n.In() {
				read[rootOf(in)] = read[rootOf(in)] || s.host == nil
			}
		}
	}
	for _, s := range p.steps {
		if s.host == nil {
			for _, n := range s.nodes {
				onDevice[rootOf(n)] = true
			}
			continue
		}
		if err := p.bind(s.host); err != nil {
			return err
		}
		n := s.host.node
		for i, in := range n.In() {
			root, at := rootOf(in), spot{rootOf(in), p.offset(in)}
			if in := p.inputOf(root); in != nil {
				in.toHost = true
			}
			if root.Op() != nil && onDevice[root] && !onHost[at] {
				onHost[at] = true
				s.host.down = append(s.host.down, p.moveOf(in, p.pointer(in), p.stored(in), s.host.call.In[i]))
			}
		}
		if root := rootOf(n); root == n && read[root] {
			for i := range n.Results() {
				if !p.needs(n, i) {
					continue
				}
				dt := p.stored(n)
				if i > 0 && !severalActivations(n.Op().Name()) {
					dt = F32
				}
				s.host.up = append(s.host.up, p.moveOf(n, p.pointer(n).At(int64(n.ResultOffset(i))), dt, s.host.call.Out[i]))
			}
		}
	}
	p.markUsed()
	at := int64(0)
	for _, n := range p.plan.Outputs {
		root := rootOf(n)
		o := &output{node: n, typ: n.Type()}
		p.outputs = append(p.outputs, o)
		if in := p.inputOf(root); in != nil {
			in.toHost = true
		}
		if root.Param() != nil && root.Param().State && p.onGPU(root.Param()) {
			o.lazy, o.at = true, p.pointer(n)
			o.dt, _ = p.stateType(root.Param())
			continue
		}
		if o.onHost = !onDevice[root]; o.onHost {
			continue
		}
		o.at, o.dt, o.offset = p.pointer(n), p.stored(n), at
		at += (int64(n.Type().Bytes()) + 63) &^ 63
	}
	return nil
}

func (p *program) inputOf(root *graph.Node) *input {
	for _, in := range p.inputs {
		if in.node == root {
			return in
		}
	}
	return nil
}

// onGPU says whether launches of the program use the state.
func (p *program) onGPU(param *graph.Param) bool {
	dt, ok := p.stateType(param)
	r := p.byKey[stateKey{param, dt}]
	return ok && r != nil && r.used
}

// homes says for each state of the plan whether it is kept on the host.
func (p *program) homes() map[*graph.Param]bool {
	h := map[*graph.Param]bool{}
	for _, n := range p.plan.Nodes() {
		if param := n.Param(); param != nil && param.State {
			h[param] = !p.onGPU(param)
		}
	}
	return h
}

// markUsed marks the regions that launches name.
func (p *program) markUsed() {
	mark := func(q Pointer) {
		if i := int(q.Addr>>regionShift) - 1; i >= 0 {
			p.regions[i].used = true
		}
	}
	for _, s := range p.steps {
		for _, q := range s.queued {
			if q.fill != nil {
				mark(q.fill.dst)
			}
			for _, a := range q.launch.Args {
				switch v := a.Value.(type) {
				case Pointer:
					mark(v)
				case TensorMap:
					mark(v.Base)
				}
			}
		}
	}
}

func (q queued) send(to Queue) error {
	if q.fill != nil {
		return to.Fill(q.fill.dst, q.fill.value, q.fill.n)
	}
	return to.Launch(q.launch)
}

// String lists the steps: which node runs where, by which kernels or why not, and what is copied for it.
func (p *program) String() string {
	var sb strings.Builder
	device, launches := 0, 0
	for _, s := range p.steps {
		if s.host == nil {
			device++
		}
		launches += len(s.queued)
	}
	fmt.Fprintf(&sb, "cuda: %s, compute %v: %d of %d steps on the device, %d launches, %d steps on weights alone\n", p.gpu.Name, p.compute, device, len(p.steps), launches, len(p.consts))
	w := tabwriter.NewWriter(&sb, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tnodes\tops\truns\tby")
	for i, s := range p.steps {
		var names, kinds, by []string
		for _, n := range s.nodes {
			names, kinds = append(names, n.Name()), append(kinds, n.Op().Name())
		}
		runs := "cuda"
		for _, q := range s.queued {
			switch {
			case q.fill != nil && q.mixed:
				by = append(by, "[fill]")
			case q.fill != nil:
				by = append(by, "fill")
			case q.mixed:
				by = append(by, "["+q.launch.Kernel+"]")
			default:
				by = append(by, q.launch.Kernel)
			}
		}
		if s.host == nil && s.why != "" {
			by = append(by, s.why)
		}
		if s.host != nil {
			runs, by = "native", []string{s.why}
			for _, m := range s.host.down {
				by = append(by, fmt.Sprintf("copy %s to the host, %d bytes", m.node.Name(), m.bytes()))
			}
			for _, m := range s.host.up {
				by = append(by, fmt.Sprintf("copy %s to the device, %d bytes", m.node.Name(), m.bytes()))
			}
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i, strings.Join(names, " "), strings.Join(kinds, " "), runs, strings.Join(by, "; "))
	}
	w.Flush() // a Builder does not fail
	return sb.String()
}

// launchText is every launch with its arguments, for goldens.
func (p *program) launchText() string {
	r := &Recorder{GPU: p.gpu}
	for i, s := range p.steps {
		r.Lines = append(r.Lines, fmt.Sprintf("step %d: %s", i, s.nodes[len(s.nodes)-1].Name()))
		if s.host != nil {
			r.Lines = append(r.Lines, "native: "+s.why)
		}
		for _, q := range s.queued {
			if err := q.send(r); err != nil {
				r.Lines = append(r.Lines, err.Error())
			}
			switch {
			case q.mixed && q.fill != nil:
				r.Lines[len(r.Lines)-1] += " (only when rows belong to no request)"
			case q.mixed:
				r.Lines[len(r.Lines)-1] += " (only when a request brings several tokens)"
			}
		}
	}
	return r.String()
}

// stage checks the feeds and lays them out in dst, which is sent to the device, and where native steps read them.
func (p *program) stage(feeds graph.Feeds, dst []byte) error {
	for _, in := range p.inputs {
		if _, err := in.node.Fed(feeds); err != nil {
			return err
		}
	}
	if len(feeds) != len(p.inputs) {
		return p.unknown(feeds)
	}
	for _, f := range p.checks {
		if err := f(feeds); err != nil {
			return fmt.Errorf("cuda: %w", err)
		}
	}
	for _, in := range p.inputs {
		b, _ := in.node.Fed(feeds)
		if in.toHost {
			copy(p.memory(in.node), b)
		}
		if !in.onGPU {
			continue
		}
		if to := dst[in.offset:]; in.float {
			narrow(to, b, p.stored(in.node))
		} else {
			copy(to, b)
		}
	}
	for _, x := range p.prepared {
		x.fill(as[int32](dst[x.offset:][:4*x.n]), feeds)
	}
	return nil
}

func (p *program) unknown(feeds graph.Feeds) error {
	var names []string
	for name := range feeds {
		if !slices.ContainsFunc(p.inputs, func(in *input) bool { return in.node.Name() == name }) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return fmt.Errorf("cuda: the plan has no input %s", strings.Join(names, ", "))
}

// needsMixed says whether a run needs what is queued as mixed.
func (p *program) needsMixed(feeds graph.Feeds) bool {
	return slices.ContainsFunc(p.mixed, func(f func(graph.Feeds) bool) bool { return f(feeds) })
}
