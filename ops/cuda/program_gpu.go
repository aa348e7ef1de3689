//go:build gpu

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"

	"gorgonia.org/cu"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Program is a plan on a device: its launches are one CUDA graph, replayed at every run.
type Program struct {
	dev      *Device
	plan     *graph.Plan
	comp     *compilation
	arena    *Buffer
	own      []*Buffer // scratch of this plan
	inputs   []feedSlot
	stages   []*HostBuffer // of comp.steps, nil where nothing is computed
	outputs  []outputSlot
	weights  []*weight
	params   map[weightKey]Pointer // what the first lowering was given
	tables   map[any]Pointer
	replay   *Graph
	launches int
	run      *task // copies, replay, copies back, wait

	mu sync.Mutex // one run at a time
}

type feedSlot struct {
	name  string
	typ   graph.Type
	to    Pointer
	stage *HostBuffer
	bytes int64 // on the device
}

type outputSlot struct {
	node  *graph.Node
	from  Pointer
	stage *HostBuffer
	as    DType
	isInt bool
	value graph.Tensor
}

// weight is a parameter on a device, or two whose rows follow each other, shared by all programs of it.
type weight struct {
	params   []*graph.Param
	as       DType
	buf      *Buffer
	versions []uint64
}

type weightKey struct {
	param, second *graph.Param
	as            DType
}

// residents are what outlives a program on its device.
type residents struct {
	mu      sync.Mutex
	weights map[weightKey]*weight
	tables  map[any]*Buffer
}

// Compile puts a plan on the device: weights are uploaded once and shared by every plan, the values get one arena, the
// launches are captured. An op without a CUDA body is an error that wraps ErrUnsupported.
func Compile(d *Device, plan *graph.Plan, options Options) (p *Program, err error) {
	p = &Program{dev: d, plan: plan, params: map[weightKey]Pointer{}, tables: map[any]Pointer{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
			p = nil
		}
	}()
	p.comp = newCompilation(plan, options, programMemory{p})
	if p.arena, err = d.Alloc("arena", int64(max(plan.Arena, 64))); err != nil {
		return p, err
	}
	p.comp.arena = p.arena.Pointer
	// First without running anything: kernels load, weights and tables go up. Then captured.
	if err := p.comp.lower(loading{d}); err != nil {
		return p, err
	}
	p.comp.steps = nil
	again := &kept{programMemory{p}, slices.Clone(p.own), 0}
	p.comp.mem, p.comp.scratch, p.comp.flags = again, Pointer{}, Pointer{}
	queued := &counting{}
	if p.replay, err = d.Main().Capture(func(q Queue) error {
		queued.Queue = q
		return p.comp.lower(queued)
	}); err != nil {
		return p, err
	}
	p.launches = queued.n
	p.run = newTask(d, p.device)
	return p, p.stage(options)
}

// loading is a queue that loads what it is given and runs nothing.
type loading struct{ dev *Device }

func (q loading) Target() Target { return q.dev.target }
func (q loading) Launch(l Launch) error {
	if err := errors.Join(l.check(), l.fits(q.dev.target)); err != nil {
		return err
	}
	return q.dev.do(func() error {
		_, err := q.dev.kernel(l.Kernel, l.Shared)
		return err
	})
}
func (q loading) Fill(Pointer, byte, int64) error    { return nil }
func (q loading) Copy(Pointer, Pointer, int64) error { return nil }

type counting struct {
	Queue
	n int
}

func (q *counting) Launch(l Launch) error { q.n++; return q.Queue.Launch(l) }

// stage makes the pinned buffers of feeds and outputs.
func (p *Program) stage(options Options) (err error) {
	for _, n := range p.plan.Inputs() {
		to, err := p.comp.pointer(n)
		if err != nil {
			return err
		}
		stage, err := p.dev.Pinned("feeds", int64(n.Type().Bytes()))
		if err != nil {
			return err
		}
		bytes := int64(n.Type().Bytes())
		if n.Type().DType == dtype.Float32 {
			bytes = int64(n.Type().Size() * options.Type.Size())
		}
		p.inputs = append(p.inputs, feedSlot{n.Name(), n.Type(), to, stage, bytes})
	}
	for _, s := range p.comp.steps {
		var h *HostBuffer
		if s.bytes > 0 {
			if h, err = p.dev.Pinned("work maps", int64(s.bytes)); err != nil {
				return err
			}
		}
		p.stages = append(p.stages, h)
	}
	for _, n := range p.plan.Outputs {
		from, err := p.comp.pointer(n)
		if err != nil {
			return err
		}
		o := outputSlot{node: n, from: from, as: options.Type, isInt: n.Type().DType == dtype.Int32}
		if p.comp.isWide(n) || o.isInt {
			o.as = F32
		}
		if o.stage, err = p.dev.Pinned("outputs", int64(n.Type().Size()*o.as.Size())); err != nil {
			return err
		}
		o.value = graph.NewTensor(n.Type())
		p.outputs = append(p.outputs, o)
	}
	return nil
}

// programMemory gives a compilation device memory.
type programMemory struct{ p *Program }

func (m programMemory) param(param *graph.Param, as DType) (Pointer, error) {
	return m.weight(weightKey{param, nil, as})
}

func (m programMemory) pair(p, q *graph.Param, as DType) (Pointer, error) {
	return m.weight(weightKey{p, q, as})
}

func (m programMemory) weight(key weightKey) (Pointer, error) {
	d := m.p.dev
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	w := d.kept.weights[key]
	if w == nil {
		w = &weight{params: []*graph.Param{key.param}, as: key.as}
		label := key.param.Name
		if key.second != nil {
			w.params, label = append(w.params, key.second), label+" and "+key.second.Name
		}
		size := 0
		for _, p := range w.params {
			if !p.HasValue() {
				return Pointer{}, fmt.Errorf("parameter %s has no value: initialise it or load a checkpoint", p.Name)
			}
			size += p.Type.Size()
		}
		var err error
		if w.buf, err = d.Alloc(label, int64(size*key.as.Size())); err != nil {
			return Pointer{}, err
		}
		w.versions = make([]uint64, len(w.params))
		if err := w.upload(d); err != nil {
			return Pointer{}, errors.Join(err, w.buf.Free())
		}
		d.kept.weights[key] = w
	}
	if _, ok := m.p.params[key]; !ok {
		m.p.weights = append(m.p.weights, w)
		m.p.params[key] = w.buf.Pointer
	}
	return w.buf.Pointer, nil
}

func (m programMemory) table(key any, label string, bytes func() []byte) (Pointer, error) {
	d := m.p.dev
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	if b := d.kept.tables[key]; b != nil {
		m.p.tables[key] = b.Pointer
		return b.Pointer, nil
	}
	data := bytes()
	b, err := d.Alloc(label, int64(len(data)))
	if err != nil {
		return Pointer{}, err
	}
	if err := d.Upload(b.Pointer, data); err != nil {
		return Pointer{}, err
	}
	d.kept.tables[key] = b
	m.p.tables[key] = b.Pointer
	return b.Pointer, nil
}

func (m programMemory) zeroed(label string, bytes int64) (Pointer, error) {
	b, err := m.p.dev.Alloc(label, bytes)
	if err != nil {
		return Pointer{}, err
	}
	m.p.own = append(m.p.own, b)
	return b.Pointer, errors.Join(m.p.dev.Main().Fill(b.Pointer, 0, bytes), m.p.dev.Main().Wait())
}

// kept hands out in the second lowering what the first one was given: a capture may neither allocate nor wait for another
// goroutine.
type kept struct {
	programMemory
	own  []*Buffer
	next int
}

func (k *kept) param(param *graph.Param, as DType) (Pointer, error) {
	return k.p.params[weightKey{param, nil, as}], nil
}

func (k *kept) pair(p, q *graph.Param, as DType) (Pointer, error) {
	return k.p.params[weightKey{p, q, as}], nil
}

func (k *kept) table(key any, _ string, _ func() []byte) (Pointer, error) {
	return k.p.tables[key], nil
}

func (k *kept) zeroed(label string, bytes int64) (Pointer, error) {
	if k.next >= len(k.own) || k.own[k.next].Bytes != bytes {
		return Pointer{}, fmt.Errorf("%s: the second lowering differs from the first", label)
	}
	k.next++
	return k.own[k.next-1].Pointer, nil
}

// stale says whether a value changed since it went up.
func (w *weight) stale() bool {
	for i, p := range w.params {
		if !p.State && w.versions[i] != p.Version() {
			return true
		}
	}
	return false
}

// upload sends the values in the element type of the device.
func (w *weight) upload(d *Device) error {
	at := w.buf.Pointer
	for i, p := range w.params {
		w.versions[i] = p.Version()
		bytes := int64(p.Type.Size() * w.as.Size())
		if p.State { // starts as zeros, and is the device's from then on
			if err := errors.Join(d.Main().Fill(at, 0, bytes), d.Main().Wait()); err != nil {
				return err
			}
			continue
		}
		data, err := deviceBytes(p, w.as)
		if err != nil {
			return err
		}
		if err := d.Upload(at, data); err != nil {
			return err
		}
		at = at.At(bytes)
	}
	return nil
}

// deviceBytes is the value of a parameter in the element type of the device.
func deviceBytes(p *graph.Param, as DType) ([]byte, error) {
	t := p.Tensor()
	same := map[dtype.DType]DType{dtype.Float32: F32, dtype.BFloat16: BF16, dtype.Float16: F16}
	if stored, ok := same[t.DType]; ok && stored == as {
		return t.Bytes(), nil
	}
	var x []float32
	switch t.DType {
	case dtype.Float32:
		x = graph.Data[float32](t)
	case dtype.BFloat16, dtype.Float16:
		x = make([]float32, t.Size())
		for i, u := range graph.Data[uint16](t) {
			if t.DType == dtype.BFloat16 {
				x[i] = dtype.BF16(u).Float32()
			} else {
				x[i] = dtype.F16(u).Float32()
			}
		}
	default:
		return nil, unsupported("parameter", "%s holds %s: float32, bfloat16 and float16 run on CUDA", p.Name, t.DType)
	}
	b := make([]byte, len(x)*as.Size())
	narrow(b, x, as)
	return b, nil
}

// narrow writes floats in the element type of the device.
func narrow(to []byte, x []float32, as DType) {
	for i, v := range x {
		switch as {
		case F32:
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		case BF16:
			binary.LittleEndian.PutUint16(to[2*i:], uint16(dtype.ToBF16(v)))
		case F16:
			binary.LittleEndian.PutUint16(to[2*i:], uint16(dtype.ToF16(v)))
		}
	}
}

// Do runs the plan once. Feeds are checked before any work, weights that changed since the last run are uploaded again.
func (p *Program) Do(ctx context.Context, feeds graph.Feeds) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.checkFeeds(feeds); err != nil {
		return err
	}
	for _, w := range p.weights {
		if w.stale() {
			if err := w.upload(p.dev); err != nil {
				return err
			}
		}
	}
	for _, in := range p.inputs {
		if x := floatFeed(feeds[in.name]); x != nil {
			narrow(in.stage.Data, x, p.comp.options.Type)
			continue
		}
		for i, v := range ints(feeds, in.name) {
			binary.LittleEndian.PutUint32(in.stage.Data[4*i:], uint32(v))
		}
	}
	for i, step := range p.comp.steps {
		if step.fill != nil {
			step.fill(feeds, p.stages[i].Data)
		}
	}
	if err := p.dev.usable(); err != nil {
		return err
	}
	return p.run.do()
}

// device is the device's part of a run, in one visit to the executor goroutine.
func (p *Program) device() error {
	s := p.dev.main.stream
	for i := range p.inputs {
		in := &p.inputs[i]
		if err := cu.MemcpyHtoDAsync(cu.DevicePtr(in.to.Addr), in.stage.pointer, in.bytes, s); err != nil {
			return wrap(err, "send input "+in.name)
		}
	}
	for i := range p.comp.steps {
		if step := &p.comp.steps[i]; step.fill != nil {
			if err := cu.MemcpyHtoDAsync(cu.DevicePtr(step.to.Addr), p.stages[i].pointer, int64(step.bytes), s); err != nil {
				return wrap(err, "send a work map")
			}
		}
	}
	if err := p.replay.exec.launch(s); err != nil {
		return err
	}
	for i := range p.outputs {
		o := &p.outputs[i]
		if err := cu.MemcpyDtoHAsync(o.stage.pointer, cu.DevicePtr(o.from.Addr), int64(len(o.stage.Data)), s); err != nil {
			return wrap(err, "fetch output "+o.node.Name())
		}
	}
	if err := s.Synchronize(); err != nil {
		return wrap(err, fmt.Sprintf("run of a plan of %d launches", p.launches))
	}
	return nil
}

func floatFeed(v any) []float32 {
	switch v := v.(type) {
	case []float32:
		return v
	case graph.Tensor:
		if v.DType == dtype.Float32 {
			return graph.Data[float32](v)
		}
	}
	return nil
}

func (p *Program) checkFeeds(feeds graph.Feeds) error {
	for _, in := range p.inputs {
		v, ok := feeds[in.name]
		if !ok {
			return fmt.Errorf("cuda: Do: input %s (%s) was not fed", in.name, in.typ)
		}
		n := len(floatFeed(v))
		if in.typ.DType == dtype.Int32 {
			n = len(ints(feeds, in.name))
		}
		if n != in.typ.Size() {
			return fmt.Errorf("cuda: Do: input %s must be %d elements of %s, got %d (%T)", in.name, in.typ.Size(), in.typ.DType, n, v)
		}
	}
	if len(feeds) != len(p.inputs) {
		var unknown []string
		for name := range feeds {
			if !slices.ContainsFunc(p.inputs, func(in feedSlot) bool { return in.name == name }) {
				unknown = append(unknown, name)
			}
		}
		sort.Strings(unknown)
		return fmt.Errorf("cuda: Do: the plan has no input %s", strings.Join(unknown, ", "))
	}
	for _, s := range p.comp.steps {
		if s.check == nil {
			continue
		}
		if err := s.check(feeds); err != nil {
			return fmt.Errorf("cuda: Do: %w", err)
		}
	}
	return nil
}

// Value is the value of one of the plan's outputs after a run, in the type of the graph. Its memory is the program's: the
// next run writes to it.
func (p *Program) Value(n *graph.Node) (graph.Tensor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outputs {
		if o.node != n {
			continue
		}
		if o.isInt {
			copy(o.value.Bytes(), o.stage.Data)
			return o.value, nil
		}
		x := graph.Data[float32](o.value)
		for i := range x {
			switch o.as {
			case F32:
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(o.stage.Data[4*i:]))
			case BF16:
				x[i] = dtype.BF16(binary.LittleEndian.Uint16(o.stage.Data[2*i:])).Float32()
			case F16:
				x[i] = dtype.F16(binary.LittleEndian.Uint16(o.stage.Data[2*i:])).Float32()
			}
		}
		return o.value, nil
	}
	return graph.Tensor{}, fmt.Errorf("cuda: Value: %s is not an output of the plan", n.Name())
}

// Launches is the number of kernels of one run.
func (p *Program) Launches() int { return p.launches }

// Close frees what belongs to the program alone; weights stay on the device for other programs.
func (p *Program) Close() error {
	var errs []error
	if p.replay != nil {
		errs = append(errs, p.replay.Close())
	}
	for _, b := range append(p.own, p.arena) {
		if b != nil {
			errs = append(errs, b.Free())
		}
	}
	for _, in := range p.inputs {
		errs = append(errs, in.stage.Free())
	}
	for _, h := range p.stages {
		if h != nil {
			errs = append(errs, h.Free())
		}
	}
	for _, o := range p.outputs {
		errs = append(errs, o.stage.Free())
	}
	return errors.Join(errs...)
}
