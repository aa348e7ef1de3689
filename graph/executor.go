// What an executor outside this package needs of a plan and its nodes.

package graph

import (
	"context"
	"fmt"
	"reflect"
)

// Executor runs a plan: Native here, or that of a device. Value is the value of
// one of the plan's outputs after a run; its memory is the executor's.
type Executor interface {
	Do(ctx context.Context, feeds Feeds) error
	Value(n *Node) (Tensor, error)
}

// Missing reports that v is nil, or an interface that holds a nil pointer, or
// that v says so itself: what wraps a nil pointer is none.
func Missing(v any) bool {
	if r := reflect.ValueOf(v); !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil() {
		return true
	}
	w, ok := v.(interface{ Missing() bool })
	return ok && w.Missing()
}

// Results lists the types of an op's results; nil for a leaf.
func (n *Node) Results() []Type { return n.some().outs }

// ResultOffset is where result i starts in the value of n, in bytes; 0 for a leaf.
func (n *Node) ResultOffset(i int) int {
	if n = n.some(); n.outs == nil {
		return 0
	}
	return partOffset(n.outs, i) * n.typ.DType.Size()
}

// Const is the memory of a constant, nil for other nodes.
func (n *Node) Const() []byte { return n.some().value }

// Fed is the memory of what a run feeds to input n, or what is wrong with it.
func (n *Node) Fed(feeds Feeds) ([]byte, error) {
	n = n.some()
	v, ok := feeds[n.name]
	if !ok {
		return nil, fmt.Errorf("graph: Do: input %s (%s) was not fed", n.name, n.typ)
	}
	b, dt, ok := bytesOf(v)
	if !ok || dt != n.typ.DType || len(b) != n.typ.Bytes() {
		return nil, fmt.Errorf("graph: Do: input %s must be %d elements of %s, got %s", n.name, n.typ.Size(), n.typ.DType, feedText(v))
	}
	return b, nil
}

// TensorOf is a value in the caller's memory.
func TensorOf(t Type, mem []byte) (Tensor, error) {
	if len(mem) != t.Bytes() {
		return Tensor{}, fmt.Errorf("graph: TensorOf: %s has %d bytes, got %d", t, t.Bytes(), len(mem))
	}
	return Tensor{t, mem}, nil
}

// Allocated reports whether p has memory on the host: a state that only a
// device holds has none.
func (p *Param) Allocated() bool {
	p.memMu.Lock()
	defer p.memMu.Unlock()
	return p.mem != nil
}
