package graph

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/seafan/seafan/graph/dtype"
)

// Param is a leaf with memory of its own: a weight, or a state that an op
// writes to. Graphs built on one Params share it by pointer.
type Param struct {
	Name  string
	Type  Type
	State bool // written by ops, not trained

	// Frozen weights are not trained: the base under adapters.
	Frozen bool

	// Forget gives the memory of a value that lies in a mapped file back to the
	// system, until it is read again; nil: the value lies elsewhere.
	Forget func()

	memMu   sync.Mutex // executors may be made at the same time
	mem     []byte
	version uint64
	amax    measured

	mu       sync.Mutex
	attached map[string]any
}

var (
	errNoParam  = errors.New("the parameter is missing (nil)")
	errNoParams = errors.New("the parameters are missing (nil)")
)

// Tensor is the value, allocated on first use.
func (p *Param) Tensor() Tensor {
	p.memMu.Lock()
	defer p.memMu.Unlock()
	if p.mem == nil {
		if p.State {
			p.mem = sparseBytes(p.Type.Bytes())
		} else {
			p.mem = alignedBytes(p.Type.Bytes())
		}
	}
	return Tensor{p.Type, p.mem}
}

// placeStates gives states without memory a piece of one in the order in which they
// come: one decoded token reads a part of each, and in pages of 4 KB, which is what
// pieces of less than a large page lie in, it waits for a translation every 4 KB.
func placeStates(states []*Param) {
	end := make([]int, 1, len(states)+1) // in cache lines
	for _, p := range states {
		end = append(end, end[len(end)-1]+(p.Type.Bytes()+63)/64)
	}
	mem := sparseBytes(64 * end[len(states)])
	for i, p := range states {
		at, to := 64*end[i], 64*end[i]+p.Type.Bytes()
		p.memMu.Lock()
		if p.mem == nil {
			p.mem = mem[at:to:to]
		}
		p.memMu.Unlock()
	}
}

// Ready fails unless p has a value, of the type that a graph was built for.
func (p *Param) Ready(built Type) error {
	switch {
	case p == nil:
		return errNoParam
	case !p.HasValue():
		return fmt.Errorf("parameter %s has no value: initialise it (models have Init; else write its Tensor, then Touch), load a checkpoint, or build the graph on the parameters of the model that has it (graph.Share)", p.Name)
	case !p.Type.Equal(built):
		return fmt.Errorf("parameter %s is stored as %s, the graph was built for %s: build it again", p.Name, p.Type, built)
	}
	return nil
}

// allows refuses another use of p: of another shape, or the other kind.
func (p *Param) allows(t Type, state bool) error {
	switch {
	case !slices.Equal(p.Type.Shape, t.Shape):
		return fmt.Errorf("parameter %s has shape %s, the graph asks for %s", p.Name, p.Type.Dims(), t.Dims())
	case p.State != state:
		return fmt.Errorf("parameter %s is used both as a weight and as a state", p.Name)
	case state && p.Type.DType != t.DType:
		return fmt.Errorf("state %s holds %s, the graph asks for %s", p.Name, p.Type.DType, t.DType)
	}
	return nil
}

// HasValue reports whether p has been given a value (or is a state, which
// starts as zeros).
func (p *Param) HasValue() bool { return p.version > 0 || p.State }

// Version counts the changes of the value, so that a packed, quantised or
// uploaded copy knows when it is stale.
func (p *Param) Version() uint64 { return p.version }

// Touch says that the value has changed: call it after writing to Tensor.
func (p *Param) Touch() { p.version++ }

// measured is what is known of the value of a version.
type measured struct {
	version uint64
	amax    float32
	nan     int
}

// Measured says of the value, after Touch, what its writer knows: the largest
// magnitude of its numbers and how many elements are NaN. What is attached to p and
// a Renewer is made anew, while the value is in the caches.
func (p *Param) Measured(amax float32, nan int) {
	p.amax = measured{p.version, amax, nan}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.attached {
		if r, ok := v.(Renewer); ok {
			r.Renew(p)
		}
	}
}

// Renewer is a copy of a value, attached to its parameter, that is wanted for every
// version. Renew may not call Attach.
type Renewer interface{ Renew(p *Param) }

// Amax is what Measured said of the value; ok is false where it said nothing.
func (p *Param) Amax() (amax float32, nan int, ok bool) {
	if p == nil || p.version == 0 || p.amax.version != p.version {
		return 0, 0, false
	}
	return p.amax.amax, p.amax.nan, true
}

// Store changes the element type that the value is stored in and takes a copy
// of its bytes. Graphs that were built for another type must be built again:
// their plans give no executor, and executors that are there go on with the old
// value.
func (p *Param) Store(dt dtype.DType, value []byte) error {
	if p == nil {
		return errNoParam
	}
	t := Type{dt, p.Type.Shape}
	if !dt.Valid() {
		return fmt.Errorf("parameter %s: %s is no element type", p.Name, dt)
	}
	if len(value) != t.Bytes() {
		return fmt.Errorf("parameter %s: %s has %d bytes, got %d", p.Name, t, t.Bytes(), len(value))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memMu.Lock()
	defer p.memMu.Unlock()
	p.Type, p.mem, p.attached = t, alignedBytes(len(value)), nil
	copy(p.mem, value)
	p.version++
	return nil
}

// Adopt makes mem the value without a copy. It must outlive p and may be
// read-only, such as a part of a mapped file: then p must not be written to.
func (p *Param) Adopt(mem []byte) error {
	if p == nil {
		return errNoParam
	}
	if len(mem) != p.Type.Bytes() {
		return fmt.Errorf("parameter %s: %s has %d bytes, got %d", p.Name, p.Type, p.Type.Bytes(), len(mem))
	}
	p.memMu.Lock()
	defer p.memMu.Unlock()
	p.mem = mem
	p.version++
	return nil
}

// Attach returns what a body keeps with p under a key, such as a packed or
// quantised copy; make makes it at the first call. It lives as long as p, is
// shared by all graphs of the model, and is not saved: what depends on the value
// must compare Version.
func (p *Param) Attach(key string, make func() any) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.attached[key]
	if !ok {
		if p.attached == nil {
			p.attached = map[string]any{}
		}
		v = make()
		p.attached[key] = v
	}
	return v
}

// Trainable reports whether p is a weight that is not frozen, in a type that
// gradients have.
func (p *Param) Trainable() bool {
	return !p.State && !p.Frozen && (p.Type.DType == dtype.Float32 || p.Type.DType == dtype.Float64)
}

// Params holds the weights and states of a model by name. The graphs for
// training, evaluation and each length share one Params.
type Params struct {
	mu    sync.Mutex
	names map[string]*Param
	order []*Param

	use    sync.RWMutex // locked for reading by each Hold
	closed bool
}

// Close waits until all that is held is released, and makes every later Hold an
// error: then the files that weights are mapped from can be closed.
func (s *Params) Close() {
	s.use.Lock()
	s.closed = true
	s.use.Unlock()
}

// Hold keeps Close waiting until Release, so that weights may be read meanwhile.
// After Close, and of nil, it is an error, and nothing is to be released. Between
// Hold and Release a goroutine must neither call Hold again, which a waiting Close
// would stop for ever, nor Close.
func (s *Params) Hold() error {
	if s == nil {
		return errNoParams
	}
	s.use.RLock()
	if s.closed {
		s.use.RUnlock()
		return errors.New("the model is closed, and the files of its weights with it")
	}
	return nil
}

// Release ends one successful Hold.
func (s *Params) Release() { s.use.RUnlock() }

// Usable is the error that Hold would give, nil for none.
func (s *Params) Usable() error {
	if err := s.Hold(); err != nil {
		return err
	}
	s.Release()
	return nil
}

// NewParams returns an empty set.
func NewParams() *Params { return &Params{names: map[string]*Param{}} }

// Add declares a parameter. Declaring it again with the same type returns the
// one that is there.
func (s *Params) Add(name string, t Type, state bool) (*Param, error) {
	if s == nil {
		return nil, errNoParams
	}
	if name == "" {
		return nil, fmt.Errorf("a parameter needs a name")
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("parameter %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.names[name]; p != nil {
		if err := p.allows(t, state); err != nil {
			return nil, err
		}
		return p, nil
	}
	p := &Param{Name: name, Type: Type{t.DType, slices.Clone(t.Shape)}, State: state}
	if s.names == nil {
		s.names = map[string]*Param{}
	}
	s.names[name] = p
	s.order = append(s.order, p)
	return p, nil
}

// Get finds a parameter by name; nil when there is none.
func (s *Params) Get(name string) *Param {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// All lists the parameters in the order they were declared.
func (s *Params) All() []*Param {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}
