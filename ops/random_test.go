// Random graphs of the real ops, three ways.

package ops_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
	"github.com/seafan/seafan/ops/optest/cases"
)

// Random graphs of the real ops, run three ways that must agree to the bit: the
// plan (values share one arena, results take over inputs, views lie in what
// they show), gorgonia's tape, and alone, where every value has memory of its
// own.

// alone runs nodes, inputs before users, each in memory of its own. ran sees
// every call of a body after it.
func alone(nodes []*graph.Node, feeds graph.Feeds, ran func(n *graph.Node, c *graph.Call)) (map[*graph.Node]graph.Tensor, error) {
	values := map[*graph.Node]graph.Tensor{}
	for _, n := range nodes {
		v := graph.NewTensor(n.Type())
		values[n] = v
		switch {
		case n.Param() != nil:
			values[n] = n.Param().Tensor()
			continue
		case n.Op() == nil && feeds[n.Name()] != nil:
			fed(v, feeds[n.Name()])
			continue
		case n.Op() == nil: // a constant: the seed of the gradient
			one(v)
			continue
		}
		def, _ := graph.Lookup(n.Op().Name())
		if def.Symbolic {
			continue
		}
		c := &graph.Call{Op: n.Op()}
		var types []graph.Type
		for _, in := range n.In() {
			c.In = append(c.In, values[in])
			types = append(types, in.Type())
		}
		if al, ok := n.Op().(graph.Aliaser); ok {
			from := c.In[al.Alias()].Bytes()
			if def.Native == nil { // a view: a copy of the part it shows
				at := 0
				if off := reflect.ValueOf(n.Op()).FieldByName("Offset"); off.IsValid() {
					at = int(off.Int()) * n.Type().DType.Size()
				}
				copy(v.Bytes(), from[at:])
				continue
			}
			c.Out = []graph.Tensor{c.In[al.Alias()]}
			if err := def.Native(c); err != nil {
				return nil, err
			}
			copy(v.Bytes(), from)
			continue
		}
		outs, err := n.Op().Infer(types)
		if err != nil {
			return nil, err
		}
		for _, t := range outs {
			o := graph.NewTensor(t)
			for i := range o.Bytes() {
				o.Bytes()[i] = 0xff
			}
			c.Out = append(c.Out, o)
		}
		if err := def.Native(c); err != nil {
			return nil, err
		}
		if ran != nil {
			ran(n, c)
		}
		at := 0
		for _, o := range c.Out {
			copy(v.Bytes()[at:], o.Bytes())
			at += (len(o.Bytes()) + 63) / 64 * 64
		}
	}
	return values, nil
}

func fed(to graph.Tensor, v any) {
	switch v := v.(type) {
	case []float32:
		copy(graph.Data[float32](to), v)
	case []float64:
		copy(graph.Data[float64](to), v)
	case []int32:
		copy(graph.Data[int32](to), v)
	case []int64:
		copy(graph.Data[int64](to), v)
	case []bool:
		copy(graph.Data[bool](to), v)
	}
}

func one(t graph.Tensor) {
	if t.DType == dtype.Float64 {
		graph.Data[float64](t)[0] = 1
		return
	}
	graph.Data[float32](t)[0] = 1
}

// forest makes random graphs over values of [B,L,H,D] and what ops turn them
// into.
type forest struct {
	*rand.Rand
	b     *graph.Builder
	nodes []*graph.Node // float values
	ints  *graph.Node   // ids [B,L] below vocab
	step  *graph.Node
	table *ops.RotaryTable
	names int

	counts []*graph.Node // outputs that no gradient goes through
	slots  *graph.Node
}

const (
	forestB, forestL, forestH, forestD = 1, 3, 2, 4
	forestV                            = 7
)

func (f *forest) name() string { f.names++; return fmt.Sprintf("p%d", f.names) }

// pick is a float value, newer ones more often.
func (f *forest) pick() *graph.Node {
	if f.IntN(3) > 0 {
		return f.nodes[len(f.nodes)-1-f.IntN(min(4, len(f.nodes)))]
	}
	return f.nodes[f.IntN(len(f.nodes))]
}

// like is a value of the type of n.
func (f *forest) like(n *graph.Node) *graph.Node {
	for range 20 {
		if m := f.pick(); m.Type().Equal(n.Type()) {
			return m
		}
	}
	for range 20 {
		if m := f.pick(); m.Type().Size() == n.Type().Size() {
			return ops.Reshape(m, n.Shape()...)
		}
	}
	return n
}

// cube is a value as [B,L,H,D].
func (f *forest) cube() *graph.Node {
	for range 20 {
		if m := f.pick(); m.Type().Size() == forestB*forestL*forestH*forestD {
			return ops.Reshape(m, forestB, forestL, forestH, forestD)
		}
	}
	return f.nodes[0]
}

func (f *forest) grow() {
	var out []*graph.Node
	switch f.IntN(17) {
	case 0, 1:
		x := f.pick()
		out = append(out, ops.Add(x, f.like(x)))
	case 2:
		x := f.pick()
		out = append(out, ops.Add(x, x))
	case 3:
		out = append(out, ops.Affine(f.pick(), 0.5+f.Float64(), f.Float64()-0.5))
	case 4:
		x := f.pick()
		out = append(out, ops.SwiGLU(x, f.like(x)))
	case 5:
		x := f.pick()
		out = append(out, ops.GeGLU(f.like(x), x, f.IntN(2) == 0))
	case 6:
		if x := f.pick(); x.Type().Rank() > 0 {
			out = append(out, ops.RMSNorm(x, f.b.Param(f.name(), x.Dim(-1)), 1e-5))
		}
	case 7:
		if x := f.pick(); x.Type().Rank() > 0 {
			bias := []*graph.Node{f.b.Param(f.name(), x.Dim(-1))}
			out = append(out, ops.LayerNorm(x, f.b.Param(f.name(), x.Dim(-1)), 1e-5, bias[:f.IntN(2)]...))
		}
	case 8, 9:
		if x := f.pick(); x.Type().Rank() > 0 && x.Type().Size() < 200 {
			n := []int{x.Dim(-1), forestD, 1, forestV}[f.IntN(4)]
			bias := []*graph.Node{f.b.Param(f.name(), n)}
			w := f.b.Param(f.name(), n, x.Dim(-1))
			switch f.IntN(8) {
			case 0, 1:
				out = append(out, ops.BF16Linear(x, w, bias[:f.IntN(2)]...))
			case 2: // its states are written by the backward pass
				out = append(out, ops.FP8Linear(x, w, ops.FP8Recipe{History: f.IntN(3)}, bias[:f.IntN(2)]...))
			default:
				out = append(out, ops.Linear(x, w, bias[:f.IntN(2)]...))
			}
		}
	case 10:
		out = append(out, ops.Rotary(f.cube(), nil, f.table, []native.RotaryPairing{ops.Half, ops.Interleaved}[f.IntN(2)]))
	case 11:
		a, lse := ops.AttentionLSE(f.cube(), f.cube(), f.cube(), ops.AttentionOptions{Causal: f.IntN(2) == 0})
		out = append(out, a, lse)
		if f.IntN(2) == 0 {
			c, lse2 := ops.AttentionLSE(f.cube(), f.cube(), f.cube(), ops.AttentionOptions{})
			m, l := ops.MergeStates(a, lse, c, lse2)
			out = append(out, c, lse2, m, l)
		}
	case 12:
		out = append(out, ops.Dropout(f.pick(), f.step, 0.3, f.Uint64()))
	case 13:
		out = append(out, ops.Embedding(f.ints, f.b.Param(f.name(), forestV, forestD*forestH)))
	case 14:
		x := f.pick()
		s := [][]int{{x.Type().Size()}, {1, x.Type().Size(), 1}, {x.Type().Size(), 1}}[f.IntN(3)]
		out = append(out, ops.Reshape(x, s...))
	case 15:
		if x := f.pick(); x.Type().Size()%(forestB*forestL) == 0 {
			z := ops.Reshape(x, forestB, forestL, x.Type().Size()/(forestB*forestL))
			if z.Dim(-1) >= forestV {
				loss, n := ops.CrossEntropy(z, f.ints, ops.CrossEntropyOptions{ZLoss: 0.1})
				out = append(out, loss)
				f.counts = append(f.counts, n)
			}
		}
	case 16: // a pool of pages that is written and then read
		x := ops.Reshape(f.cube(), forestL, forestH, forestD)
		k := f.b.State(f.name(), f.b.Float(), 2, 2, forestH, forestD)
		for range 1 + f.IntN(2) {
			k = ops.AppendPages(k, x, f.slots)
		}
		f.counts = append(f.counts, ops.Reshape(k, 4*forestH*forestD))
	}
	f.nodes = append(f.nodes, out...)
}

// plant makes the graph of a seed, and its gradient where it has one.
func plant(t *testing.T, seed uint64, dt dtype.DType) (f *forest, grads []*graph.Node) {
	f = &forest{Rand: rand.New(rand.NewPCG(seed, 1)), b: graph.New(graph.Float(dt))}
	var err error
	f.table, err = ops.NewRotaryTable(ops.RotaryConfig{Dim: forestD, Base: 100, Positions: forestL})
	require.NoError(t, err)
	f.ints = f.b.Input("ids", dtype.Int32, forestB, forestL)
	f.step = f.b.Input("step", dtype.Int64, 1)
	f.slots = f.b.Input("slots", dtype.Int32, forestL)
	f.nodes = []*graph.Node{
		f.b.Input("x", dt, forestB, forestL, forestH, forestD),
		f.b.Input("y", dt, forestB, forestL, forestH, forestD),
		f.b.Param("w", forestB, forestL, forestH, forestD),
	}
	for range 4 + f.IntN(20) {
		f.grow()
	}
	require.NoError(t, f.b.Err())
	// A scalar of the last values, by cross-entropy over all their elements.
	z := f.nodes[len(f.nodes)-1]
	for i := range 3 {
		if m := f.nodes[f.IntN(len(f.nodes))]; i > 0 && m.Type().Size() == z.Type().Size() {
			z = ops.Add(z, ops.Reshape(m, z.Shape()...))
		}
	}
	label := f.b.Input("label", dtype.Int32, 1)
	loss, _ := ops.CrossEntropy(ops.Reshape(z, 1, z.Type().Size()), label)
	f.nodes = append(f.nodes, loss)
	require.NoError(t, f.b.Err())
	if f.IntN(4) > 0 {
		wrt := []*graph.Node{}
		for _, p := range append(f.b.Params(), f.nodes[0]) {
			if f.IntN(3) > 0 {
				wrt = append(wrt, p)
			}
		}
		reached := map[*graph.Node]bool{}
		reach(loss, reached)
		wrt = slices.DeleteFunc(wrt, func(n *graph.Node) bool { return !reached[n] })
		if len(wrt) > 0 {
			grads, err = f.b.Grad(loss, wrt...)
			require.NoError(t, err)
		}
	}
	require.NoError(t, graph.Verify(f.b))
	return f, grads
}

// reach collects what a gradient goes through to.
func reach(n *graph.Node, seen map[*graph.Node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	if n.Op() == nil {
		return
	}
	def, _ := graph.Lookup(n.Op().Name())
	for i, in := range n.In() {
		if def.Grad != nil && !slices.Contains(def.NoGrad, i) && in.Type().DType.IsFloat() {
			reach(in, seen)
		}
	}
}

func (f *forest) feeds() graph.Feeds {
	fs := graph.Feeds{"step": []int64{int64(f.IntN(5))}, "label": []int32{0}, "slots": []int32{3, -1, 0}}
	ids := make([]int32, forestB*forestL)
	for i := range ids {
		ids[i] = int32(f.IntN(forestV))
	}
	fs["ids"] = ids
	for _, name := range []string{"x", "y"} {
		v := make([]float64, forestB*forestL*forestH*forestD)
		for i := range v {
			v[i] = f.NormFloat64()
		}
		fs[name] = v
		if f.b.Float() == dtype.Float32 {
			fs[name] = optest.Cast[float32](v)
		}
	}
	for _, p := range f.b.Store().All() {
		if p.State {
			continue
		}
		for i := range p.Type.Size() {
			v := f.NormFloat64()
			if p.Type.DType == dtype.Float64 {
				graph.Data[float64](p.Tensor())[i] = v
			} else {
				graph.Data[float32](p.Tensor())[i] = float32(v)
			}
		}
		p.Touch()
	}
	return fs
}

// remember and recall keep the states: every way starts from the same.
func (f *forest) remember() (states [][]byte) {
	for _, p := range f.b.Store().All() {
		if p.State {
			states = append(states, slices.Clone(p.Tensor().Bytes()))
		}
	}
	return states
}

func (f *forest) recall(states [][]byte) {
	for _, p := range f.b.Store().All() {
		if p.State {
			copy(p.Tensor().Bytes(), states[0])
			states = states[1:]
		}
	}
}

// TestRandomGraphsOnPlanTapeAndAlone compares what the plan of some outputs
// gives with the tape, and with every value in memory of its own. The outputs
// are any nodes: leaves, views, parts of results, gradients, one several times.
func TestRandomGraphsOnPlanTapeAndAlone(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	tookOver := 0
	for seed := range seeds {
		dt := dtype.Float32
		if seed%3 == 0 {
			dt = dtype.Float64
		}
		f, grads := plant(t, seed, dt)
		for range 3 {
			outputs := slices.Clone(grads)
			for range 1 + f.IntN(5) {
				outputs = append(outputs, f.nodes[f.IntN(len(f.nodes))])
			}
			if len(f.counts) > 0 {
				outputs = append(outputs, f.counts[f.IntN(len(f.counts))])
			}
			f.Shuffle(len(outputs), func(i, j int) { outputs[i], outputs[j] = outputs[j], outputs[i] })
			outputs = append(outputs, outputs[0])
			plan, err := f.b.Plan(outputs...)
			require.NoError(t, err)
			if plan.Arena < plan.Values {
				tookOver++
			}
			if f.IntN(2) == 0 {
				plan.Spread()
			}
			feeds := f.feeds()
			need := graph.Feeds{}
			for _, in := range plan.Inputs() {
				need[in.Name()] = feeds[in.Name()]
			}
			run, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			tape, err := f.b.Tape(outputs...)
			require.NoError(t, err)
			for i := range 2 {
				if i > 0 {
					fresh := f.feeds()
					for name := range feeds {
						feeds[name] = fresh[name]
					}
					for name := range need {
						need[name] = fresh[name]
					}
				}
				before := f.remember()
				values, err := alone(f.b.Nodes(), feeds, nil)
				require.NoError(t, err)
				want := map[*graph.Node][]byte{}
				for _, o := range outputs {
					want[o] = slices.Clone(values[o].Bytes())
				}
				same := func(way string, value func(*graph.Node) (graph.Tensor, error)) {
					for _, o := range outputs {
						got, err := value(o)
						require.NoError(t, err)
						require.Equal(t, want[o], got.Bytes(), "seed %d: %s of %s\n%s", seed, o.Name(), way, plan)
					}
				}
				f.recall(before)
				require.NoError(t, run.Do(context.Background(), need))
				same("the plan", run.Value)
				f.recall(before)
				require.NoError(t, tape.Do(need))
				same("the tape", tape.Value)
			}
			require.NoError(t, tape.Close())
		}
	}
	require.Greater(t, tookOver, int(seeds), "most plans share memory")
}

// inPlace runs a call again, result k on the memory of input over[k].
func inPlace(t *testing.T, name string, def graph.Def, call *graph.Call, over ...int) {
	again := *call
	again.In, again.Out = slices.Clone(call.In), slices.Clone(call.Out)
	for k, out := range call.Out {
		again.Out[k] = graph.NewTensor(out.Type)
		if k < len(over) {
			again.In[over[k]] = graph.NewTensor(call.In[over[k]].Type)
			copy(again.In[over[k]].Bytes(), call.In[over[k]].Bytes())
			again.Out[k] = again.In[over[k]]
			again.Out[k].Type = out.Type
		}
	}
	require.NoError(t, def.Native(&again))
	for k, out := range call.Out {
		require.Equal(t, out.Bytes(), again.Out[k].Bytes(), "%s %s, result %d, on inputs %v", def.Name, name, k, over)
	}
}

// TestBodiesInPlace runs every body that may take over an input on that input's
// memory, for every case: the bits are those of memory of its own.
func TestBodiesInPlace(t *testing.T) {
	tested := map[string]bool{}
	for _, c := range cases.All() {
		if c.Err != "" {
			continue
		}
		exec := func(p *graph.Plan, feeds graph.Feeds) ([]graph.Tensor, error) {
			values, err := alone(p.Nodes(), feeds, func(n *graph.Node, call *graph.Call) {
				def, _ := graph.Lookup(n.Op().Name())
				if len(call.Out) > 1 && len(def.InPlace) > 0 {
					inPlace(t, c.Name, def, call, def.InPlace...)
					tested[def.Name] = true
					return
				}
				for _, i := range def.InPlace {
					if i < len(call.In) && len(call.In[i].Bytes()) == len(call.Out[0].Bytes()) {
						inPlace(t, c.Name, def, call, i)
						tested[def.Name] = true
					}
				}
			})
			var outs []graph.Tensor
			for _, o := range p.Outputs {
				outs = append(outs, values[o])
			}
			return outs, err
		}
		c.Forward(t, dtype.Float32, exec)
		c.Gradient(t, dtype.Float32, exec)
	}
	// Share alone makes this one.
	def, _ := graph.Lookup("swiglu_grad_measured")
	x := graph.T(dtype.Float32, 1000)
	call := &graph.Call{Out: []graph.Tensor{graph.NewTensor(x), graph.NewTensor(x), graph.NewTensor(graph.T(dtype.Float32, 4))}}
	for i, name := range []string{"dy", "gate", "up"} {
		call.In = append(call.In, graph.NewTensor(x))
		for j, v := range optest.Normals(name, 1000, 2) {
			graph.Data[float32](call.In[i])[j] = float32(v)
		}
	}
	require.NoError(t, def.Native(call))
	inPlace(t, "1000", def, call, def.InPlace...)
	tested[def.Name] = true
	for _, name := range graph.Registered() {
		if def, _ := graph.Lookup(name); len(def.InPlace) > 0 {
			require.True(t, tested[name], "%s has no case that runs in place", name)
		}
	}
}
