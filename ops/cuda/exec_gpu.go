//go:build gpu

package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"gorgonia.org/cu"

	"github.com/seafan/seafan/graph"
)

// Executor runs a plan on a device: launches that were made once are captured in CUDA graphs, a run sends the feeds,
// replays them, and fetches the outputs. It may be called from several goroutines; runs come one after the other.
type Executor struct {
	unit *unit
	prog *program

	mu     sync.Mutex
	failed error
	closed bool

	base     []uint64 // address of each region
	own      []*Buffer
	held     []heldRegion
	homes    []*graph.Param
	versions []version
	in, out  *HostBuffer
	segments []*segment
	values   map[*graph.Node]graph.Tensor

	// Of the run that is on its way, for task.
	ctx     context.Context
	variant int
	broken  bool // the error is of the device
	task    *task
}

type heldRegion struct {
	region *region
	*resident
}

type version struct {
	param *graph.Param
	seen  uint64
}

// segment is a native step, or launches between two of them.
type segment struct {
	host   *hostStep
	queued []queued
	mixed  bool      // some launches belong to the mixed variant alone
	graphs [2]*Graph // without and with those
}

// Compile lowers a plan for a device, shares the weights that other plans have there, and takes memory for the rest. The
// device stays open for the life of the program. States start with what the host has of them and are the device's from then
// on, shared by the plans of one graph.Params.
func Compile(plan *graph.Plan, o Options) (*Executor, error) {
	if err := plan.Hold(); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	defer plan.Release()
	compute, err := o.compute()
	if err != nil {
		return nil, err
	}
	u, err := unitOf(o.Device)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p, err := lower(plan, u.dev.Target(), compute, o.Strict, u.known())
	if err != nil {
		return nil, err
	}
	e := &Executor{unit: u, prog: p, base: make([]uint64, len(p.regions)), values: map[*graph.Node]graph.Tensor{}}
	e.task = newTask(u.dev, e.run)
	if err := e.take(o.Random); err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

// take runs the constant nodes, takes the memory and lays out the segments. The unit is locked.
func (e *Executor) take(random bool) error {
	p, d := e.prog, e.unit.dev
	for _, n := range p.plan.Nodes() {
		if param := n.Param(); param != nil && !param.State {
			e.versions = append(e.versions, version{param, param.Version()})
		}
	}
	for param, onHost := range p.homes() {
		e.unit.keep(param, onHost)
		e.homes = append(e.homes, param)
	}
	for _, h := range p.consts {
		if err := h.run(); err != nil {
			return err
		}
	}
	for i, r := range p.regions {
		if !r.used || r.bytes == 0 {
			continue
		}
		if _, own := r.key.(constKey); r.key == nil || own {
			b, err := d.Alloc(r.label, r.bytes)
			if err != nil {
				return err
			}
			e.own = append(e.own, b)
			e.base[i] = b.Addr
			if err := load(d, b, r); err != nil {
				return err
			}
			continue
		}
		res, err := e.unit.hold(r, random)
		if err != nil {
			return err
		}
		e.held = append(e.held, heldRegion{r, res})
		e.base[i] = res.buf.Addr
	}
	var err error
	if e.in, err = d.Pinned("feeds", max(256, p.fed.bytes)); err != nil {
		return err
	}
	out := int64(256)
	for _, o := range p.outputs {
		if !o.onHost && !o.lazy {
			out = max(out, o.offset+int64(o.node.Type().Bytes()))
		}
		e.values[o.node] = graph.NewTensor(o.node.Type())
	}
	if e.out, err = d.Pinned("outputs", out); err != nil {
		return err
	}
	for _, s := range p.steps {
		if s.host != nil {
			for _, m := range [][]move{s.host.down, s.host.up} {
				for i := range m {
					m[i].at = e.moved(m[i].at)
				}
			}
			e.segments = append(e.segments, &segment{host: s.host})
			continue
		}
		if n := len(e.segments); n == 0 || e.segments[n-1].host != nil {
			e.segments = append(e.segments, &segment{})
		}
		seg := e.segments[len(e.segments)-1]
		for _, q := range s.queued {
			seg.queued = append(seg.queued, q.moved(e.base))
			seg.mixed = seg.mixed || q.mixed
		}
	}
	for _, o := range p.outputs {
		o.at = e.moved(o.at)
	}
	return nil
}

func (e *Executor) moved(q Pointer) Pointer {
	if i := int(q.Addr>>regionShift) - 1; i >= 0 {
		q.Addr = e.base[i] + q.Addr&(1<<regionShift-1)
	}
	return q
}

var errNoExecutor = errors.New("cuda: the executor is missing: Compile makes one")

// missing reports that Compile did not make e.
func (e *Executor) missing() bool { return e == nil || e.prog == nil }

// Do runs the plan. What is wrong with the feeds is found before anything runs, and the context is looked at between the
// native steps. After a failure of the device the executor refuses further use.
func (e *Executor) Do(ctx context.Context, feeds graph.Feeds) error {
	switch {
	case e.missing():
		return errNoExecutor
	case ctx == nil:
		return errors.New("cuda: Do: the context is missing (nil)")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.prog.plan.Hold(); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	defer e.prog.plan.Release()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.prog.stage(feeds, e.in.Data); err != nil {
		return err
	}
	if err := e.refresh(); err != nil {
		return err
	}
	e.ctx, e.variant, e.broken = ctx, 0, false
	if e.prog.needsMixed(feeds) {
		e.variant = 1
	}
	err := e.unit.dev.usable()
	if err == nil {
		err = e.task.do()
	}
	if err != nil && (e.broken || ctx.Err() == nil && errors.As(err, new(*Error))) {
		e.failed = err
	}
	return err
}

func (e *Executor) usable() error {
	switch {
	case e.closed:
		return errors.New("cuda: the executor is closed")
	case e.failed != nil:
		return fmt.Errorf("cuda: the executor is not usable after a failed run: %w", e.failed)
	}
	return nil
}

// run is one run, on the device's goroutine.
func (e *Executor) run() error {
	s := e.unit.dev.main
	err := e.sequence(s)
	if err == nil {
		for _, o := range e.prog.outputs {
			if o.onHost || o.lazy {
				continue
			}
			if err = wrap(cu.MemcpyDtoHAsync(pinnedAt(e.out, o.offset), cu.DevicePtr(o.at.Addr), o.bytes(), s.stream), "fetch an output"); err != nil {
				break
			}
		}
		e.broken = err != nil
	}
	// The feeds' memory is free again only when the device has read it.
	if waited := wrap(s.stream.Synchronize(), "run of the plan"); waited != nil {
		e.broken = true
		return errors.Join(err, waited)
	}
	return err
}

func (e *Executor) sequence(s *Stream) error {
	if n := e.prog.fed.bytes; n > 0 && e.prog.fed.used {
		if err := wrap(cu.MemcpyHtoDAsync(cu.DevicePtr(e.base[e.prog.fed.index]), e.in.pointer, n, s.stream), "send the feeds"); err != nil {
			e.broken = true
			return err
		}
	}
	for _, seg := range e.segments {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		if seg.host != nil {
			if err := e.native(s, seg.host); err != nil {
				return err
			}
			continue
		}
		if err := e.device(s, seg); err != nil {
			e.broken = true
			return err
		}
	}
	return nil
}

// device runs a segment: launch by launch the first time, which loads the kernels, from then on as a graph.
func (e *Executor) device(s *Stream, seg *segment) error {
	v := e.variant
	if !seg.mixed {
		v = 0
	}
	if g := seg.graphs[v]; g != nil {
		return g.exec.launch(s.stream)
	}
	q := s.direct()
	send := func() error {
		for _, x := range seg.queued {
			if x.mixed && v == 0 {
				continue
			}
			if err := x.send(q); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return err
	}
	if err := beginCapture(s.stream); err != nil {
		return err
	}
	failed := send()
	exec, err := endCapture(s.stream, failed == nil)
	if failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	seg.graphs[v] = &Graph{dev: s.dev, exec: exec}
	s.dev.graphs[seg.graphs[v]] = struct{}{}
	return nil
}

// native runs a step on the host, with the copies around it.
func (e *Executor) native(s *Stream, h *hostStep) error {
	for _, m := range h.down {
		raw := m.host
		if !m.raw && m.dt != F32 {
			raw = make([]byte, m.bytes())
		}
		if len(raw) == 0 {
			continue
		}
		err := errors.Join(wrap(cu.MemcpyDtoHAsync(firstByte(raw), cu.DevicePtr(m.at.Addr), int64(len(raw)), s.stream), "copy "+m.node.Name()+" to the host"),
			wrap(s.stream.Synchronize(), "copy "+m.node.Name()+" to the host"))
		if err != nil {
			e.broken = true
			return err
		}
		if !m.raw && m.dt != F32 {
			widen(m.host, raw, m.dt)
		}
	}
	if err := h.run(); err != nil {
		return err
	}
	for _, m := range h.up {
		raw := m.host
		if !m.raw && m.dt != F32 {
			raw = make([]byte, m.bytes())
			narrow(raw, m.host, m.dt)
		}
		if len(raw) == 0 {
			continue
		}
		err := errors.Join(wrap(cu.MemcpyHtoDAsync(cu.DevicePtr(m.at.Addr), firstByte(raw), int64(len(raw)), s.stream), "copy "+m.node.Name()+" to the device"),
			wrap(s.stream.Synchronize(), "copy "+m.node.Name()+" to the device"))
		if err != nil {
			e.broken = true
			return err
		}
	}
	return nil
}

// refresh uploads the weights that have changed since they were uploaded.
func (e *Executor) refresh() error {
	stale := false
	for i := range e.versions {
		v := &e.versions[i]
		if now := v.param.Version(); now != v.seen {
			v.seen, stale = now, true
		}
	}
	if !stale {
		return nil
	}
	for _, h := range e.prog.consts {
		if err := h.run(); err != nil {
			return err
		}
	}
	for _, b := range e.own {
		for _, r := range e.prog.regions {
			if _, constant := r.key.(constKey); constant && e.base[r.index] == b.Addr {
				if err := load(e.unit.dev, b, r); err != nil {
					return err
				}
			}
		}
	}
	e.unit.mu.Lock()
	defer e.unit.mu.Unlock()
	for _, h := range e.held {
		if err := h.renew(e.unit.dev, h.region); err != nil {
			return err
		}
	}
	return nil
}

// Value is the value of one of the plan's outputs after a run, in float32 or, for other types, as it is. The memory is the
// executor's: it holds until the next run or Close.
func (e *Executor) Value(n *graph.Node) (graph.Tensor, error) {
	if e.missing() {
		return graph.Tensor{}, errNoExecutor
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return graph.Tensor{}, err
	}
	for _, o := range e.prog.outputs {
		if o.node != n {
			continue
		}
		if o.onHost {
			return e.prog.tensor(n), nil
		}
		to, raw := e.values[n], []byte(nil)
		if o.lazy {
			raw = make([]byte, o.bytes())
			if err := e.unit.dev.Download(raw, o.at); err != nil {
				return graph.Tensor{}, err
			}
		} else {
			raw = e.out.Data[o.offset : o.offset+o.bytes()]
		}
		if o.plain() {
			return graph.TensorOf(o.typ, raw)
		}
		widen(to.Bytes(), raw, o.dt)
		return to, nil
	}
	return graph.Tensor{}, fmt.Errorf("cuda: Value: %s is not an output of the plan", n.Name())
}

// Stats says what the memory of the executor's device holds.
func (e *Executor) Stats() Stats {
	if e.missing() {
		return Stats{}
	}
	return e.unit.dev.Stats()
}

// String lists the steps: which node runs where, by which kernels or why not, and what is copied for it.
func (e *Executor) String() string {
	if e.missing() {
		return errNoExecutor.Error() + "\n"
	}
	return e.prog.String()
}

// Close frees what the executor holds, and the weights and states that no other executor shares. Closing twice does nothing.
func (e *Executor) Close() error {
	if e.missing() {
		return errNoExecutor
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.unit.mu.Lock()
	defer e.unit.mu.Unlock()
	e.closed = true
	return e.release()
}

func (e *Executor) release() error {
	var errs []error
	for _, seg := range e.segments {
		for _, g := range seg.graphs {
			if g != nil {
				errs = append(errs, g.Close())
			}
		}
	}
	for _, b := range e.own {
		errs = append(errs, b.Free())
	}
	for _, h := range []*HostBuffer{e.in, e.out} {
		if h != nil {
			errs = append(errs, h.Free())
		}
	}
	for _, h := range e.held {
		errs = append(errs, e.unit.drop(h.region.key))
	}
	for _, param := range e.homes {
		e.unit.leave(param)
	}
	e.segments, e.own, e.held, e.homes, e.in, e.out = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// run calls the native body; a panic of it is an error.
func (h *hostStep) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cuda: %s: panic: %v", h.node.Name(), r)
		}
	}()
	if err := h.native(&h.call); err != nil {
		return fmt.Errorf("%s: %s: %w", h.node.Name(), h.node.Op().Name(), err)
	}
	return nil
}

// moved is a launch with every address taken from its region's place on the device.
func (q queued) moved(base []uint64) queued {
	at := func(v Pointer) Pointer {
		if i := int(v.Addr>>regionShift) - 1; i >= 0 {
			v.Addr = base[i] + v.Addr&(1<<regionShift-1)
		}
		return v
	}
	if q.fill != nil {
		return queued{fill: &fillOrder{at(q.fill.dst), q.fill.value, q.fill.n}, mixed: q.mixed}
	}
	q.launch.Args = slices.Clone(q.launch.Args)
	for i, a := range q.launch.Args {
		switch v := a.Value.(type) {
		case Pointer:
			q.launch.Args[i].Value = at(v)
		case TensorMap:
			v.Base = at(v.Base)
			q.launch.Args[i].Value = v
		}
	}
	return q
}
