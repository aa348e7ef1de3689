package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// program is a plan as launches and native steps, with every address still symbolic: region i starts at (i+1)<<40. It is
// made without a device; an Executor takes the memory and moves the addresses.
type program struct {
	plan    *graph.Plan
	gpu     Target
	compute DType
	strict  bool

	regions []*region
	byKey   map[any]*region
	arena   *region
	fed     *region // feeds and what the host prepares from them, sent together
	scratch *region
	flags   *region
	joined  *region         // the result of a product of several weights, until the next one
	longer  map[int]*region // by length, rows of x with zeros behind them up to a multiple of 8

	steps    []*step
	consts   []*hostStep // nodes that depend on weights alone: run when a weight changes
	inputs   []*input
	prepared []*prepared
	places   map[any]Pointer // of prepared arrays
	checks   []func(graph.Feeds) error
	checked  map[any]bool
	mixed    []func(graph.Feeds) bool

	consumers map[*graph.Node][]*graph.Node // by root, the steps that read it
	constant  map[*graph.Node]bool
	wide      map[*graph.Node]bool // stored in f32 whatever the compute dtype is
	wideState map[*graph.Param]bool
	hostState map[*graph.Param]bool
	host      map[*graph.Node]graph.Tensor // by root, the value on the host
	outputs   []*output
	coded     map[*graph.Node]coded // by root, values in FP8 codes
	noCodes   map[*graph.Node]bool  // not in codes, for a native reader's sake
}

// region is one stretch of device memory.
type region struct {
	index int
	label string
	bytes int64
	key   any            // shared among the plans of a device; nil: the plan's own
	fill  func() []byte  // its first content; nil: zeros
	from  []*graph.Param // filled again when the version of one changes
	state bool           // of a param that ops write to
	node  *graph.Node    // constant node behind it
	codes int64          // bytes of FP8 codes in front of their steps; 0: none
	used  bool
}

const regionShift = 40

func (r *region) pointer() Pointer {
	return Pointer{Addr: uint64(r.index+1) << regionShift, Label: r.label}
}

// step is what one node, or several as one kernel, became.
type step struct {
	nodes  []*graph.Node
	queued []queued
	host   *hostStep
	why    string // why it is native, or is not what was asked for
}

type input struct {
	node   *graph.Node
	float  bool // sent in the compute dtype
	offset int64
	toHost bool
	onGPU  bool
}

type prepared struct {
	offset int64
	n      int
	fill   func([]int32, graph.Feeds)
}

// output is where the value of one of the plan's outputs comes from.
type output struct {
	node   *graph.Node
	typ    graph.Type
	onHost bool    // in the host's memory already
	lazy   bool    // a state or weight: fetched when asked for
	at     Pointer // else on the device
	dt     DType
	offset int64 // in the memory that a run fetches into
}

// lower makes a program. homes are states that an earlier plan of the same device keeps on the host (true) or the device.
func lower(plan *graph.Plan, gpu Target, compute DType, strict bool, homes map[*graph.Param]bool) (*program, error) {
	if plan.IsSpread() {
		return nil, errors.New("cuda: the results of an op must lie packed, the plan was Spread: make another")
	}
	host := map[*graph.Param]bool{}
	for p, onHost := range homes {
		if onHost {
			host[p] = true
		}
	}
	noCodes := map[*graph.Node]bool{}
	for {
		p, err := lowerOnce(plan, gpu, compute, strict, host, noCodes)
		if err != nil {
			return nil, err
		}
		missed := p.missedCodes()
		for _, n := range missed {
			noCodes[n] = true
		}
		// A state lives in one place: if one of its users is native, all are.
		again := len(missed) > 0
		for _, s := range p.steps {
			for _, n := range s.nodes {
				for _, in := range n.In() {
					if param := rootOf(in).Param(); s.host != nil && param != nil && param.State && !host[param] {
						if onHost, known := homes[param]; known && !onHost {
							return nil, fmt.Errorf("cuda: %s: %s; state %s is on the device for an earlier plan: compile the plans for another type, or natively", n.Name(), s.why, param.Name)
						}
						host[param], again = true, true
					}
				}
			}
		}
		if !again {
			return p, p.finish()
		}
	}
}

func lowerOnce(plan *graph.Plan, gpu Target, compute DType, strict bool, hostState map[*graph.Param]bool, noCodes map[*graph.Node]bool) (*program, error) {
	p := &program{plan: plan, gpu: gpu, compute: compute, strict: strict, byKey: map[any]*region{}, longer: map[int]*region{}, places: map[any]Pointer{}, checked: map[any]bool{}, consumers: map[*graph.Node][]*graph.Node{},
		constant: map[*graph.Node]bool{}, wide: map[*graph.Node]bool{}, wideState: map[*graph.Param]bool{}, hostState: hostState, host: map[*graph.Node]graph.Tensor{}, coded: map[*graph.Node]coded{}, noCodes: noCodes}
	p.arena = p.region(region{label: "arena", bytes: int64(plan.Arena)})
	p.fed = p.region(region{label: "feeds"})
	p.scratch = p.region(region{label: "scratch"})
	p.flags = p.region(region{label: "flags"})
	p.joined = p.region(region{label: "joined"})
	if err := p.survey(); err != nil {
		return nil, err
	}
	for i := 0; i < len(plan.Steps); i++ {
		n := plan.Steps[i].Node
		if p.constant[n] {
			continue
		}
		s, count, err := p.fuse(i)
		if err != nil {
			return nil, err
		}
		if s != nil {
			p.steps = append(p.steps, s)
			i += count - 1
			continue
		}
		c := &Call{Node: n, In: n.In(), p: p}
		if err = unsupported(n.Op().Name(), "none is registered"); bodyOf(n.Op().Name()) != nil {
			err = bodyOf(n.Op().Name())(c)
		}
		switch {
		case err == nil:
			p.steps = append(p.steps, &step{nodes: []*graph.Node{n}, queued: c.queued, why: c.note})
		case !errors.Is(err, ErrUnsupported):
			return nil, fmt.Errorf("cuda: %s: %w", n.Name(), err)
		case strict:
			return nil, fmt.Errorf("cuda: %s: %w (strict: no native fallback)", n.Name(), err)
		default:
			p.steps = append(p.steps, &step{nodes: []*graph.Node{n}, host: &hostStep{node: n}, why: err.Error()})
		}
	}
	return p, nil
}

// survey finds who reads what, which nodes are constant, and which results stay in f32, and places the feeds.
func (p *program) survey() error {
	for _, n := range p.plan.Nodes() {
		if n.Type().DType == dtype.Float64 {
			return fmt.Errorf("cuda: %s is %s: float64 plans run natively", n.Name(), n.Type())
		}
		if param := n.Param(); param != nil {
			if err := param.Ready(n.Type()); err != nil {
				return fmt.Errorf("cuda: %w", err)
			}
			p.constant[n] = !param.State
			continue
		}
		if n.Op() == nil {
			if p.constant[n] = n.Const() != nil; !p.constant[n] {
				p.inputs = append(p.inputs, &input{node: n, float: n.Type().DType == dtype.Float32, offset: p.reserve(int64(n.Type().Bytes()))})
			}
			continue
		}
		p.constant[n] = !slices.ContainsFunc(n.In(), func(in *graph.Node) bool { return !p.constant[in] })
	}
	for _, s := range p.plan.Steps {
		if p.constant[s.Node] {
			p.consts = append(p.consts, &hostStep{node: s.Node})
			continue
		}
		for _, in := range s.Node.In() {
			root := rootOf(in)
			p.consumers[root] = append(p.consumers[root], s.Node)
		}
	}
	for _, in := range p.inputs {
		if in.float && p.routed(in.node) {
			p.wide[in.node], in.float = true, false
		}
	}
	// Logits that are read as a result, by the loss, by the draw or by a router keep the precision of the product.
	out := map[*graph.Node]bool{}
	for _, o := range p.plan.Outputs {
		out[rootOf(o)] = true
	}
	precise := func(c *graph.Node) bool { // it reads f32
		name := c.Op().Name()
		return name == "cross_entropy" || name == "nll" || name == "sampling" || name == "softcap" && p.wide[c]
	}
	for _, s := range slices.Backward(p.plan.Steps) {
		n := s.Node
		switch n.Op().Name() {
		case "cross_entropy", "nll", "route_weights":
			p.wide[n] = true
		case "linear", "bf16_linear", "softcap":
			others := slices.ContainsFunc(p.consumers[n], func(c *graph.Node) bool { return !precise(c) })
			p.wide[n] = p.routed(n) || !others && (out[n] || len(p.consumers[n]) > 0)
		}
		if wideResult(n.Op()) {
			p.wide[n] = true
		}
		for _, i := range wideInputs(n.Op()) {
			if root := rootOf(n.In()[i]); root.Param() != nil && root.Param().State {
				p.wideState[root.Param()] = true
			} else if root.Op() == nil && !p.constant[root] {
				p.wide[root] = true
			}
		}
	}
	// A cap that is given less than f32 gives no more.
	for _, s := range p.plan.Steps {
		if n := s.Node; n.Op().Name() == "softcap" {
			p.wide[n] = p.wide[n] && p.wide[rootOf(n.In()[0])]
		}
	}
	return nil
}

// rootOf is the node whose memory n's value is in.
func rootOf(n *graph.Node) *graph.Node {
	for {
		a, ok := n.Op().(graph.Aliaser)
		if !ok {
			return n
		}
		n = n.In()[a.Alias()]
	}
}

// offset is where the value of n starts in its root's memory, in bytes.
func (p *program) offset(n *graph.Node) int64 {
	root := rootOf(n)
	a, _ := p.plan.Place(n)
	b, _ := p.plan.Place(root)
	return int64(a.Offset - b.Offset)
}

// stored is the float type that the value of n has on the device.
func (p *program) stored(n *graph.Node) DType {
	root := rootOf(n)
	if p.wide[root] {
		return F32
	}
	// The first result of an op is an activation; those behind it are sums and factors.
	if root != n && root.Op() != nil && len(root.Results()) > 1 && p.offset(n) > 0 && !severalActivations(root.Op().Name()) {
		return F32
	}
	return p.compute
}

func (p *program) region(r region) *region {
	if r.key != nil {
		if found := p.byKey[r.key]; found != nil {
			return found
		}
	}
	r.index = len(p.regions)
	p.regions = append(p.regions, &r)
	if r.key != nil {
		p.byKey[r.key] = &r
	}
	return &r
}

// reserve takes bytes of the memory that feeds are sent to.
func (p *program) reserve(bytes int64) int64 {
	at := p.fed.bytes
	p.fed.bytes = (at + bytes + 255) &^ 255
	return at
}

// pointer is the place of a value that is no weight.
func (p *program) pointer(n *graph.Node) Pointer {
	root := rootOf(n)
	if root.Op() == nil {
		for _, in := range p.inputs {
			if in.node == root {
				q := p.fed.pointer().At(in.offset + p.offset(n))
				q.Label = root.Name()
				return q
			}
		}
		return p.state(root.Param()).pointer().At(p.offset(n))
	}
	place, _ := p.plan.Place(n)
	q := p.arena.pointer().At(int64(place.Offset))
	q.Label = n.Name()
	return q
}

type (
	joinedKey struct {
		a, b, c *graph.Param
		dt      DType
		row     int
	}
	weightKey struct {
		param *graph.Param
		dt    DType
	}
	stateKey struct {
		param *graph.Param
		dt    DType
	}
	tableKey struct {
		table *ops.RotaryTable
		sin   bool
	}
	constKey struct {
		node *graph.Node
		dt   DType
	}
)

// read is an input of a body.
func (p *program) read(op string, n *graph.Node, dt DType) (Pointer, error) {
	t := n.Type().DType
	float := t == dtype.Float32 || t == dtype.BFloat16 || t == dtype.Float16
	root := rootOf(n)
	if p.constant[n] {
		if !float && (n.Param() == nil || !floatWeight(n.Param())) {
			return Pointer{}, unsupported(op, "input %s is a constant of %s", n.Name(), t)
		}
		return p.weight(n, dt), nil
	}
	if param := root.Param(); param != nil { // a state
		if p.hostState[param] {
			return Pointer{}, unsupported(op, "state %s is kept on the host, where another node needs it", param.Name)
		}
		if have, ok := p.stateType(param); !ok || have != dt {
			return Pointer{}, unsupported(op, "state %s holds %s, %v is required", param.Name, t, dt)
		}
		return p.pointer(n), nil
	}
	switch {
	case t == dtype.Float32:
		if have := p.stored(n); have != dt {
			return Pointer{}, unsupported(op, "input %s is %v on the device, %v is required", n.Name(), have, dt)
		}
	case float:
		return Pointer{}, unsupported(op, "input %s is an activation of %s", n.Name(), t)
	}
	for _, in := range p.inputs {
		if in.node == root {
			in.onGPU = true
		}
	}
	return p.pointer(n), nil
}

// stateType is the type that a state has on the device: float32 becomes the compute dtype unless an op keeps it, others stay.
func (p *program) stateType(param *graph.Param) (DType, bool) {
	switch param.Type.DType {
	case dtype.Float32:
		if p.wideState[param] {
			return F32, true
		}
		return p.compute, true
	case dtype.BFloat16:
		return BF16, true
	case dtype.Float16:
		return F16, true
	case dtype.Float8E4M3:
		return E4M3, true
	}
	return 0, false
}

func (p *program) state(param *graph.Param) *region {
	dt, _ := p.stateType(param)
	return p.region(region{label: param.Name, bytes: int64(param.Type.Size() * dt.Size()), key: stateKey{param, dt}, from: []*graph.Param{param}, state: true,
		fill: func() []byte {
			if !param.Allocated() {
				return nil
			}
			return converted(param.Tensor(), dt)
		}})
}

// weight is a weight, or a node that depends on weights alone, in the given type.
func (p *program) weight(n *graph.Node, dt DType) Pointer {
	r := region{label: n.Name(), bytes: int64(n.Type().Size() * dt.Size())}
	root := rootOf(n)
	switch {
	case root.Param() != nil:
		param := root.Param()
		r.key, r.from, r.label = weightKey{param, dt}, []*graph.Param{param}, param.Name
		r.fill = func() []byte {
			if !param.Allocated() {
				return nil // it was never written
			}
			return weightBytes(param, dt)
		}
		r.bytes = int64(weightSize(param) * dt.Size())
	default:
		r.key, r.node = constKey{n, dt}, n
		r.fill = func() []byte { return converted(p.tensor(n), dt) }
	}
	if dt != p.compute {
		r.label += " " + dt.String()
	}
	return p.region(r).pointer()
}

// join is up to three weights one after the other; with a row above 0 their rows have zeros behind them, up to that length.
func (p *program) join(dt DType, row int, nodes ...*graph.Node) (Pointer, error) {
	r := region{label: nodes[0].Name() + " and on"}
	for _, n := range nodes {
		param := n.Param()
		if param == nil || param.State || !floatWeight(param) {
			return Pointer{}, unsupported("linear", "%s is no weight that can be joined with others", n.Name())
		}
		r.from = append(r.from, param)
		n := weightSize(param)
		if row > 0 {
			n = param.Type.Shape[0] * row
		}
		r.bytes += int64(n * dt.Size())
	}
	key := joinedKey{a: r.from[0], dt: dt, row: row}
	if len(r.from) > 1 {
		key.b = r.from[1]
	}
	if len(r.from) > 2 {
		key.c = r.from[2]
	}
	from := r.from
	r.key, r.fill = key, func() []byte {
		var all []byte
		for _, param := range from {
			if !param.Allocated() {
				return nil
			}
			mem := weightBytes(param, dt)
			if row > 0 {
				mem = withZeros(mem, param.Type.Shape[0], row*dt.Size())
			}
			all = append(all, mem...)
		}
		return all
	}
	return p.region(r).pointer(), nil
}

func (p *program) table(t *ops.RotaryTable) (cos, sin Pointer) {
	one := func(label string, x []float32, isSin bool) Pointer {
		return p.region(region{label: label, bytes: int64(4 * len(x)), key: tableKey{t, isSin}, fill: func() []byte { return floatBytes(x) }}).pointer()
	}
	return one("cos", t.Cos, false), one("sin", t.Sin, true)
}

func (p *program) needs(n *graph.Node, i int) bool {
	outs := n.Results()
	if len(outs) == 1 {
		return true
	}
	at := int64(n.ResultOffset(i))
	for _, m := range p.plan.Nodes() {
		if m.Op() != nil && m.Op().Name() == "result" && m.In()[0] == n && p.offset(m) == p.offset(n)+at && (len(p.readers(m)) > 0 || slices.Contains(p.plan.Outputs, m)) {
			return true
		}
	}
	return false
}

// readers lists the nodes of the plan that have n as an input.
func (p *program) readers(n *graph.Node) []*graph.Node {
	var list []*graph.Node
	for _, m := range p.plan.Nodes() {
		if slices.Contains(m.In(), n) {
			list = append(list, m)
		}
	}
	return list
}

func (p *program) check(key any, f func(graph.Feeds) error) {
	if !p.checked[key] {
		p.checked[key] = true
		p.checks = append(p.checks, f)
	}
}

func (p *program) prepare(key any, label string, n int, fill func([]int32, graph.Feeds)) Pointer {
	q, done := p.places[key]
	if !done {
		offset := p.reserve(int64(4 * n))
		p.prepared = append(p.prepared, &prepared{offset, n, fill})
		q = p.fed.pointer().At(offset)
		q.Label = label
		p.places[key] = q
	}
	return q
}
