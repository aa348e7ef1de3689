package cuda

import (
	"fmt"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// Body turns one node of a plan into launches: it reads the node through c and queues launches on c, which is a Queue. It
// answers ErrUnsupported with the reason when no kernel exists; the node then runs natively. A body is called once, when the
// plan is compiled, on a machine that may have no GPU.
type Body func(c *Call) error

var bodies = struct {
	sync.RWMutex
	table map[string]Body
}{table: map[string]Body{}}

// Register adds the body of an op by its name. It panics when the name is taken: that is a mistake in the program, found
// when it starts.
func Register(op string, b Body) {
	bodies.Lock()
	defer bodies.Unlock()
	if op == "" || b == nil || bodies.table[op] != nil {
		panic(fmt.Sprintf("cuda: Register: the name %q is empty or taken, or there is no body", op))
	}
	bodies.table[op] = b
}

func bodyOf(op string) Body {
	bodies.RLock()
	defer bodies.RUnlock()
	return bodies.table[op]
}

// Supports says whether an op of this name has a body: whether it has a kernel for given sizes, only the body knows.
func Supports(op string) bool { return bodyOf(op) != nil }

// Call is one node on its way to launches. Pointers that it hands out stand for memory that is taken when the plan is bound
// to a device.
type Call struct {
	Node *graph.Node
	In   []*graph.Node

	p      *program
	queued []queued
	note   string // what the plan says of the step beside its kernels
	codes  *coded // where an FP8 product leaves codes in place of its result
	mixed  bool   // what is queued now runs only when a request brings several tokens, a fill only when rows belong to no request
}

// queued is one thing for the stream, as data.
type queued struct {
	launch Launch
	fill   *fillOrder
	mixed  bool
}

type fillOrder struct {
	dst   Pointer
	value byte
	n     int64
}

// Target describes the GPU that the plan is compiled for.
func (c *Call) Target() Target { return c.p.gpu }

// Type is the compute dtype: that of activations.
func (c *Call) Type() DType { return c.p.compute }

// Launch queues a kernel launch.
func (c *Call) Launch(l Launch) error {
	if err := (&Recorder{GPU: c.p.gpu}).Launch(l); err != nil {
		return err
	}
	c.queued = append(c.queued, queued{launch: l, mixed: c.mixed})
	return nil
}

// Fill queues a fill.
func (c *Call) Fill(dst Pointer, value byte, n int64) error {
	c.queued = append(c.queued, queued{fill: &fillOrder{dst, value, n}, mixed: c.mixed})
	return nil
}

// Copy is not possible in a plan: values have their places.
func (c *Call) Copy(dst, src Pointer, n int64) error {
	return fmt.Errorf("cuda: a body queues launches and fills, not copies (%v to %v, %d bytes)", src, dst, n)
}

// Input is input i in the compute dtype, or as it is when it holds integers or bools.
func (c *Call) Input(i int) (Pointer, error) { return c.InputAs(i, c.p.compute) }

// InputAs is input i in a float type of the caller's: a weight is converted when it is uploaded, an activation must have it.
func (c *Call) InputAs(i int, dt DType) (Pointer, error) {
	return c.p.read(c.Node.Op().Name(), c.In[i], dt)
}

// Output is the place of result i.
func (c *Call) Output(i int) Pointer { return c.p.pointer(c.Node).At(int64(c.Node.ResultOffset(i))) }

// OutputType is the element type that result 0 has on the device.
func (c *Call) OutputType() DType { return c.p.stored(c.Node) }

// Needs says whether anything reads result i.
func (c *Call) Needs(i int) bool { return c.p.needs(c.Node, i) }

// Scratch is memory that holds what it is given until the next node's launches.
func (c *Call) Scratch(bytes int64) Pointer {
	c.p.scratch.bytes = max(c.p.scratch.bytes, bytes)
	return c.p.scratch.pointer()
}

// Flags is memory that is zero at the start and that every launch leaves zero.
func (c *Call) Flags(bytes int64) Pointer {
	c.p.flags.bytes = max(c.p.flags.bytes, bytes)
	return c.p.flags.pointer()
}

// Check adds a test of a run's feeds before anything of the run is launched; one test is kept for each key.
func (c *Call) Check(key any, f func(graph.Feeds) error) { c.p.check(key, f) }

// Prepared is an int32 array of n that the host fills from the feeds before each run; one is kept for each key.
func (c *Call) Prepared(key any, label string, n int, fill func(dst []int32, feeds graph.Feeds)) Pointer {
	return c.p.prepare(key, label, n, fill)
}

// Table is a rotary table on the device: cosines and sines.
func (c *Call) Table(t *ops.RotaryTable) (cos, sin Pointer) { return c.p.table(t) }

// fed says that input i is fed with int32 values, so that the host can look at them before a run.
func (c *Call) fed(i int) bool {
	n := c.In[i]
	return n.Op() == nil && n.Param() == nil && n.Const() == nil && n.Type().DType == dtype.Int32
}

func ints(f graph.Feeds, n *graph.Node) []int32 {
	v, _ := f[n.Name()].([]int32) // its type was checked before
	return v
}

// checkInts tests that an int32 input lies in a range, when it is fed.
func (c *Call) checkInts(i, low, high int, what string) {
	if !c.fed(i) {
		return
	}
	n, op := c.In[i], c.Node.Op().Name()
	c.Check([3]any{n, low, high}, func(f graph.Feeds) error {
		for at, v := range ints(f, n) {
			if int(v) < low || int(v) > high {
				return fmt.Errorf("%s: %s must be %d to %d, got %d at index %d of %s", op, what, low, high, v, at, n.Name())
			}
		}
		return nil
	})
}
