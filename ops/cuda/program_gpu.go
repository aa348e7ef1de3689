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

	mu sync.Mutex // one run at a time
}

type feedSlot struct {
	name  string
	typ   graph.Type
	to    Pointer
	stage *HostBuffer
}

type outputSlot struct {
	node  *graph.Node
	from  Pointer
	stage *HostBuffer
	as    DType
	isInt bool
	value graph.Tensor
}

// weight is a parameter on a device, shared by all programs of it.
type weight struct {
	param   *graph.Param
	as      DType
	buf     *Buffer
	version uint64
}

type weightKey struct {
	param *graph.Param
	as    DType
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
		p.inputs = append(p.inputs, feedSlot{n.Name(), n.Type(), to, stage})
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
	d := m.p.dev
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	w := d.kept.weights[weightKey{param, as}]
	if w == nil {
		if !param.HasValue() {
			return Pointer{}, fmt.Errorf("parameter %s has no value: initialise it or load a checkpoint", param.Name)
		}
		buf, err := d.Alloc(param.Name, int64(param.Type.Size()*as.Size()))
		if err != nil {
			return Pointer{}, err
		}
		w = &weight{param: param, as: as, buf: buf}
		if err := w.upload(d); err != nil {
			return Pointer{}, err
		}
		d.kept.weights[weightKey{param, as}] = w
	}
	if _, ok := m.p.params[weightKey{param, as}]; !ok {
		m.p.weights = append(m.p.weights, w)
		m.p.params[weightKey{param, as}] = w.buf.Pointer
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
	return k.p.params[weightKey{param, as}], nil
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

// upload sends the value of the parameter in the element type of the device.
func (w *weight) upload(d *Device) error {
	w.version = w.param.Version()
	if w.param.State { // starts as zeros, and is the device's from then on
		return errors.Join(d.Main().Fill(w.buf.Pointer, 0, w.buf.Bytes), d.Main().Wait())
	}
	t := w.param.Tensor()
	same := map[dtype.DType]DType{dtype.Float32: F32, dtype.BFloat16: BF16, dtype.Float16: F16}
	if as, ok := same[t.DType]; ok && as == w.as {
		return d.Upload(w.buf.Pointer, t.Bytes())
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
		return unsupported("parameter", "%s holds %s: float32, bfloat16 and float16 run on CUDA", w.param.Name, t.DType)
	}
	b := make([]byte, len(x)*w.as.Size())
	narrow(b, x, w.as)
	return d.Upload(w.buf.Pointer, b)
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
		if !w.param.State && w.version != w.param.Version() {
			if err := w.upload(p.dev); err != nil {
				return err
			}
		}
	}
	s := p.dev.Main()
	for _, in := range p.inputs {
		n := in.typ.Bytes()
		if x := floatFeed(feeds[in.name]); x != nil {
			n = len(x) * p.comp.options.Type.Size()
			narrow(in.stage.Data, x, p.comp.options.Type)
		} else {
			for i, v := range ints(feeds, in.name) {
				binary.LittleEndian.PutUint32(in.stage.Data[4*i:], uint32(v))
			}
		}
		if err := s.Send(in.to, in.stage, int64(n)); err != nil {
			return err
		}
	}
	for i, step := range p.comp.steps {
		if step.fill == nil {
			continue
		}
		step.fill(feeds, p.stages[i].Data)
		if err := s.Send(step.to, p.stages[i], int64(step.bytes)); err != nil {
			return err
		}
	}
	if err := p.replay.Replay(s); err != nil {
		return err
	}
	for _, o := range p.outputs {
		if err := s.Fetch(o.stage, o.from, int64(len(o.stage.Data))); err != nil {
			return err
		}
	}
	return s.Wait()
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
