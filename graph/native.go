package graph

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"
)

// Feeds are the inputs of a run by name: []float32, []float64, []int32,
// []int64 or []bool of the input's size.
type Feeds map[string]any

// Native runs a plan with the bodies in Go. It owns its arena and allocates
// nothing once it is built. It is not for two goroutines at a time: make one
// each; they share the parameters.
type Native struct {
	plan   *Plan
	arena  []byte
	calls  []Call
	group  []int    // by step: how many run together from it on; 0: it runs with one before it
	fused  []*fused // by step: what runs in one go from it on where it can, or nil
	inputs []feedSlot
	poison bool
	timing []time.Duration
	busy   atomic.Bool
}

type feedSlot struct {
	name string
	to   Tensor
}

// NativeOption changes a Native.
type NativeOption func(*Native)

// Poison fills the arena with NaN before each run, so that a body which reads
// what nobody wrote shows.
func Poison() NativeOption { return func(r *Native) { r.poison = true } }

// Timing makes the runs measure their steps, for Profile.
func Timing() NativeOption {
	return func(r *Native) { r.timing = make([]time.Duration, len(r.plan.Steps)) }
}

// Native binds the plan to an arena. Every step must have a body, and every
// parameter a value.
func (p *Plan) Native(opts ...NativeOption) (r *Native, err error) {
	if err := p.Hold(); err != nil {
		return nil, fmt.Errorf("graph: Native: %w", err)
	}
	defer p.Release()
	r = &Native{plan: p}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("graph: Native: option %d is missing (nil)", i)
		}
		o(r)
	}
	defer func() { // of sizes that no address space has
		if e := recover(); e != nil {
			r, err = nil, fmt.Errorf("graph: Native: an arena of %s and parameters of %s cannot be had: %v", sizeText(p.Arena), sizeText(p.ParamBytes()), e)
		}
	}()
	var states []*Param // without memory
	for _, n := range p.nodes {
		if n.param != nil {
			if err := n.param.Ready(n.typ); err != nil {
				return nil, fmt.Errorf("graph: Native: %w", err)
			}
			if n.param.State { // pages of a cache: little of them may ever be written to, but each state must fit
				if err := CheckMemory("a state ("+n.param.Name+")", n.typ.Bytes()); err != nil {
					return nil, fmt.Errorf("graph: Native: %w", err)
				}
				if !n.param.Allocated() {
					states = append(states, n.param)
				}
			}
		}
	}
	for _, s := range p.Steps {
		if s.Node.def.Native == nil {
			return nil, fmt.Errorf("graph: Native: %s", located(s.Node.name, s.Node.op.Name(), errors.New("no native body is registered")))
		}
	}
	if err := CheckMemory("an arena", p.Arena); err != nil {
		return nil, fmt.Errorf("graph: Native: %w", err)
	}
	placeStates(states)
	r.arena = alignedBytes(p.Arena)
	r.fillPoison()
	for _, n := range p.nodes {
		if n.feed() {
			r.inputs = append(r.inputs, feedSlot{n.name, r.tensor(n)})
		}
	}
	// What the calls are made of lies in the order of the steps: between two
	// decoded tokens the weights drive it out of the caches.
	var tensors []Tensor
	var shapes []int
	row := func(ts ...Tensor) []Tensor {
		first := len(tensors)
		for _, t := range ts {
			at := len(shapes)
			shapes = append(shapes, t.Shape...)
			t.Shape = slices.Clip(shapes[at:])
			tensors = append(tensors, t)
		}
		return slices.Clip(tensors[first:])
	}
	r.calls = make([]Call, len(p.Steps))
	for i, s := range p.Steps {
		n := s.Node
		var in []Tensor
		for _, x := range n.in {
			in = append(in, r.tensor(x))
		}
		var out []Tensor
		_, alias := n.op.(Aliaser)
		switch parts := p.spread[n]; {
		case parts != nil:
			for j, t := range n.outs {
				from, end := parts[j].offset, parts[j].offset+t.Bytes()
				out = append(out, Tensor{t, r.arena[from:end:end]})
			}
		case alias:
			out = []Tensor{r.tensor(n)}
		default:
			out = n.split(r.tensor(n))
		}
		r.calls[i] = CallOf(n)
		r.calls[i].In, r.calls[i].Out = row(in...), row(out...)
	}
	r.gather()
	return r, nil
}

// tensor is the memory of a node's value.
func (r *Native) tensor(n *Node) Tensor {
	pl := r.plan.places[n]
	mem := r.arena
	if pl.Leaf != nil {
		if mem = pl.Leaf.value; pl.Leaf.param != nil {
			mem = pl.Leaf.param.Tensor().mem
		}
	}
	end := pl.Offset + n.typ.Bytes()
	return Tensor{n.typ, mem[pl.Offset:end:end]}
}

var errNoExecutor = errors.New("the executor is missing: Plan.Native makes one")

// Do runs the plan. It checks the feeds before any work, and the context
// between steps. A call during another's is an error.
func (r *Native) Do(ctx context.Context, feeds Feeds) error {
	if r == nil || r.plan == nil {
		return fmt.Errorf("graph: Do: %w", errNoExecutor)
	}
	if ctx == nil {
		return errors.New("graph: Do: the context is missing (nil)")
	}
	if !r.busy.CompareAndSwap(false, true) {
		return errors.New("graph: Do: the executor is in a run already: make one for each goroutine")
	}
	defer r.busy.Store(false)
	if err := r.plan.Hold(); err != nil {
		return fmt.Errorf("graph: Do: %w", err)
	}
	defer r.plan.Release()
	if err := r.checkFeeds(feeds); err != nil {
		return err
	}
	// A weight in a mapped file that somebody shortens is an error of the run.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if r.poison {
		r.fillPoison()
	}
	for _, in := range r.inputs {
		b, _, _ := bytesOf(feeds[in.name])
		copy(in.to.mem, b)
	}
	for i := 0; i < len(r.calls); {
		if err := ctx.Err(); err != nil {
			return err
		}
		var t time.Time
		if r.timing != nil {
			t = time.Now()
		}
		at, n, err := r.step(i)
		if err != nil {
			return err
		}
		if r.timing != nil {
			r.timing[at] += time.Since(t)
		}
		i += n
	}
	return nil
}

// step runs what begins with step i: so many steps, whose time is that of step at.
func (r *Native) step(i int) (at, n int, err error) {
	if f := r.fused[i]; f != nil {
		if done, err := f.run(); done || err != nil {
			return f.at, f.steps, err
		}
	}
	n = r.group[i]
	return i, n, r.calls[i].run(r.calls[i : i+n]...)
}

// run calls the body for c, or for all of those that run together with it; the
// error, or panic, comes back with the name of c's node.
func (c *Call) run(together ...Call) (err error) {
	defer c.rescue(&err)
	switch {
	case c.def.Native == nil:
		return located(c.node.name, c.Op.Name(), errors.New("no native body is registered"))
	case len(together) > 1:
		err = c.def.Together(together)
	default:
		err = c.def.Native(c)
	}
	if err != nil {
		return located(c.node.scope, c.Op.Name(), err)
	}
	return nil
}

// rescue, deferred, makes an error with the name of c's node of a panic.
func (c *Call) rescue(err *error) {
	p := recover()
	if fault, ok := p.(interface{ Addr() uintptr }); ok {
		*err = located(c.node.name, c.Op.Name(), fmt.Errorf("the memory at %#x cannot be read: was the file of a mapped weight shortened?", fault.Addr()))
	} else if p != nil {
		*err = located(c.node.name, c.Op.Name(), fmt.Errorf("panic: %v", p))
	}
}

func (r *Native) checkFeeds(feeds Feeds) error {
	for _, in := range r.inputs {
		v, ok := feeds[in.name]
		if !ok {
			return fmt.Errorf("graph: Do: input %s (%s) was not fed", in.name, in.to.Type)
		}
		b, dt, ok := bytesOf(v)
		if !ok || dt != in.to.DType || len(b) != len(in.to.mem) {
			return fmt.Errorf("graph: Do: input %s must be %d elements of %s, got %s", in.name, in.to.Size(), in.to.DType, feedText(v))
		}
		if overlap(b, r.arena) {
			return fmt.Errorf("graph: Do: input %s must not be a value of this executor, whose memory the run writes to: feed a copy", in.name)
		}
	}
	if len(feeds) == len(r.inputs) {
		return nil
	}
	var unknown []string
	for name := range feeds {
		if !slices.ContainsFunc(r.inputs, func(in feedSlot) bool { return in.name == name }) {
			unknown = append(unknown, name)
		}
	}
	sort.Strings(unknown)
	return fmt.Errorf("graph: Do: the plan has no input %s", strings.Join(unknown, ", "))
}

func feedText(v any) string {
	b, dt, ok := bytesOf(v)
	if !ok {
		return fmt.Sprintf("%T", v)
	}
	return fmt.Sprintf("%d of %s", len(b)/dt.Size(), dt)
}

// Value is the value of one of the plan's outputs after a run. Its memory is
// the executor's: the next run writes to it.
func (r *Native) Value(n *Node) (Tensor, error) {
	if r == nil || r.plan == nil {
		return Tensor{}, fmt.Errorf("graph: Value: %w", errNoExecutor)
	}
	if !slices.Contains(r.plan.Outputs, n) {
		return Tensor{}, fmt.Errorf("graph: Value: %s is not an output of the plan", n.text())
	}
	return r.tensor(n), nil
}

// Plan is the plan that r runs.
func (r *Native) Plan() *Plan { return r.plan }

func (r *Native) fillPoison() {
	for i := range r.arena {
		r.arena[i] = 0xff // NaN in every float type, -1 in every integer
	}
}

// Profile lists the time spent by op since the executor was made with Timing,
// the longest first.
func (r *Native) Profile() string {
	if r.timing == nil {
		return "graph: Profile: made without Timing\n"
	}
	type row struct {
		op    string
		t     time.Duration
		calls int
		flops int64
	}
	rows := map[string]*row{}
	var list []*row
	for i, s := range r.plan.Steps {
		name := s.Node.op.Name()
		if rows[name] == nil {
			rows[name] = &row{op: name}
			list = append(list, rows[name])
		}
		rows[name].t += r.timing[i]
		rows[name].calls++
		rows[name].flops += s.FLOPs
	}
	slices.SortStableFunc(list, func(a, b *row) int { return int(b.t - a.t) })
	var sb strings.Builder
	for _, x := range list {
		fmt.Fprintf(&sb, "%-24s %4d steps %12v %s a run\n", x.op, x.calls, x.t, flopsText(x.flops))
	}
	return sb.String()
}
