package graph

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"unsafe"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/seafan/seafan/graph/dtype"
)

// adapter makes an Op of ours an Op and SDOp of gorgonia. It is the only place
// that knows gorgonia's traps:
//
//   - nodes merge by a 32-bit hash, so every adapter hashes a number of its own;
//   - Type must build a fresh function type at each call;
//   - the machine forgets registers at every Reset, so the adapter owns its
//     result and returns it again;
//   - a panic in Do ends the process, so Do recovers;
//   - SymDiff is asked for integer inputs too, and a nil gradient for an input
//     that DiffWRT claims is a nil dereference.
type adapter struct {
	n      *Node
	unique int64

	out  gorgonia.Value // owned by the adapter, made at the first Do
	call Call
}

var (
	_ gorgonia.SDOp = (*adapter)(nil)
)

// gorgoniaType is the type of a node in gorgonia. Element types that gorgonia
// lacks stand on its graph as float32: only plans run such a node.
func gorgoniaType(t Type) hm.Type {
	dt := gorgoniaDType(t.DType)
	if t.Rank() == 0 {
		return dt
	}
	return gorgonia.TensorType{Dims: t.Rank(), Of: dt}
}

func gorgoniaDType(d dtype.DType) tensor.Dtype {
	switch d {
	case dtype.Float64:
		return tensor.Float64
	case dtype.Int32:
		return tensor.Int32
	case dtype.Int64:
		return tensor.Int64
	case dtype.Bool:
		return tensor.Bool
	}
	return tensor.Float32
}

// tapeRuns reports whether a TapeMachine can hold the element type.
func tapeRuns(d dtype.DType) bool {
	return d == dtype.Float32 || gorgoniaDType(d) != tensor.Float32
}

// newLeaf adds an input to the gorgonia graph.
func (s *shared) newLeaf(name string, t Type) (gn *gorgonia.Node, err error) {
	defer recoverTo(&err)
	s.unique++
	// Two inputs with one name and shape would merge: names are unique here.
	if t.Rank() == 0 {
		gn = gorgonia.NewScalar(s.g, gorgoniaDType(t.DType), gorgonia.WithName(name))
	} else {
		gn = gorgonia.NewTensor(s.g, gorgoniaDType(t.DType), t.Rank(), gorgonia.WithShape(t.Shape...), gorgonia.WithName(name))
	}
	if s.byID[gn.ID()] != nil {
		return nil, fmt.Errorf("gorgonia merged input %s with %s", name, s.byID[gn.ID()].name)
	}
	return gn, nil
}

// link adds an op's node to the gorgonia graph. Should its hash meet another's
// (32 bits are few), the next number is tried.
func (s *shared) link(n *Node) (err error) {
	defer recoverTo(&err)
	children := make([]*gorgonia.Node, len(n.in))
	for i, in := range n.in {
		children[i] = in.g
	}
	for range 8 {
		s.unique++
		gn, err := gorgonia.ApplyOp(&adapter{n: n, unique: s.unique}, children...)
		if err != nil {
			return err
		}
		if s.byID[gn.ID()] == nil && !s.sharesHash(gn) {
			n.g = gn
			return nil
		}
	}
	return fmt.Errorf("no node number without a hash collision in 8 tries")
}

// sharesHash reports whether another node of ours has the hash of gn.
func (s *shared) sharesHash(gn *gorgonia.Node) bool {
	h := gn.Hashcode()
	if _, taken := s.hashes[h]; taken {
		return true
	}
	s.hashes[h] = struct{}{}
	return false
}

func recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("gorgonia: %v", p)
	}
}

func (a *adapter) Arity() int { return len(a.n.in) }

func (a *adapter) Type() hm.Type {
	ts := make([]hm.Type, 0, len(a.n.in)+1)
	for _, in := range a.n.in {
		ts = append(ts, gorgoniaType(in.typ))
	}
	return hm.NewFnType(append(ts, gorgoniaType(a.n.typ))...)
}

func (a *adapter) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) {
	return tensor.Shape(a.n.typ.Shape).Clone(), nil
}

func (a *adapter) ReturnsPtr() bool     { return true }
func (a *adapter) CallsExtern() bool    { return false }
func (a *adapter) OverwritesInput() int { return -1 }
func (a *adapter) String() string       { return a.n.op.Name() }

func (a *adapter) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "%s %+v ", a.n.op.Name(), a.n.op)
	binary.Write(h, binary.LittleEndian, a.unique) // a hash never fails to write
}

func (a *adapter) Hashcode() uint32 {
	h := fnv.New32a()
	a.WriteHash(h)
	return h.Sum32()
}

func (a *adapter) DiffWRT(int) []bool {
	ws := make([]bool, len(a.n.in))
	for i := range ws {
		ws[i] = a.n.differentiable(i)
	}
	return ws
}

func (a *adapter) SymDiff(_ gorgonia.Nodes, _, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	return a.n.gradient(grad)
}

// Do runs the native body on gorgonia's values: the TapeMachine's way.
func (a *adapter) Do(vs ...gorgonia.Value) (out gorgonia.Value, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: panic: %v", a.n.name, p)
		}
	}()
	n := a.n
	if a.call.Op == nil {
		a.call = Call{Op: n.op, In: make([]Tensor, len(n.in)), node: n, def: n.def}
	}
	for i, v := range vs {
		if a.call.In[i], err = valueTensor(v, n.in[i].typ); err != nil {
			return nil, fmt.Errorf("%s: input %d: %w", n.name, i, err)
		}
	}
	if al, ok := n.op.(Aliaser); ok {
		out, err := tensorValue(n.alias(a.call.In[al.Alias()]))
		if err != nil || n.def.Native == nil {
			return out, err
		}
		a.call.Out = append(a.call.Out[:0], n.alias(a.call.In[al.Alias()]))
		return out, a.call.run()
	}
	if a.out == nil {
		t := NewTensor(n.typ)
		if a.out, err = tensorValue(t); err != nil {
			return nil, err
		}
		a.call.Out = n.split(t)
	}
	return a.out, a.call.run()
}

// valueTensor is the memory of a gorgonia value.
func valueTensor(v gorgonia.Value, want Type) (Tensor, error) {
	var b []byte
	switch x := v.(type) {
	case *gorgonia.F32:
		b = unsafe.Slice((*byte)(unsafe.Pointer(x)), 4)
	case *gorgonia.F64:
		b = unsafe.Slice((*byte)(unsafe.Pointer(x)), 8)
	case tensor.Tensor:
		b, _, _ = bytesOf(x.Data())
	}
	if len(b) != want.Bytes() {
		return Tensor{}, fmt.Errorf("the machine gave %T of %d bytes for %s", v, len(b), want)
	}
	return Tensor{want, b}, nil
}

// tensorValue is a gorgonia value on the memory of t.
func tensorValue(t Tensor) (gorgonia.Value, error) {
	if t.Rank() == 0 {
		switch t.DType {
		case dtype.Float32:
			return (*gorgonia.F32)(unsafe.Pointer(&t.mem[0])), nil
		case dtype.Float64:
			return (*gorgonia.F64)(unsafe.Pointer(&t.mem[0])), nil
		}
		return nil, fmt.Errorf("a scalar of %s cannot run on a TapeMachine", t.DType)
	}
	var back any
	switch t.DType {
	case dtype.Float32:
		back = Data[float32](t)
	case dtype.Float64:
		back = Data[float64](t)
	case dtype.Int32:
		back = Data[int32](t)
	case dtype.Int64:
		back = Data[int64](t)
	case dtype.Bool:
		back = Data[bool](t)
	default:
		return nil, fmt.Errorf("%s cannot run on a TapeMachine", t.DType)
	}
	return tensor.New(tensor.WithShape(t.Shape...), tensor.WithBacking(back)), nil
}
