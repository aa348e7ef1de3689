// Package ops defines the operations of language models on graph nodes: for
// each op a noun struct of attributes with its shape rule, its gradient rule,
// its native body, and the constructor that model code calls.
//
// An op is one file here, with the same stem in native (the body on slices),
// optest (the float64 oracle), optest/cases (its cases) and cuda (the kernel).
// README.md shows how to add one.
package ops

import (
	"fmt"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// arity checks the number of inputs. names lists them for the message; those
// after least may be left out.
func arity(in []graph.Type, least int, names ...string) error {
	if len(in) < least || len(in) > len(names) {
		return fmt.Errorf("takes %s, got %d inputs", strings.Join(names, ", "), len(in))
	}
	return nil
}

// activation checks that a type can be computed with.
func activation(name string, t graph.Type) error {
	if t.DType != dtype.Float32 && t.DType != dtype.Float64 {
		return fmt.Errorf("%s must be float32 or float64, got %s", name, t)
	}
	return nil
}

// alike checks the element type of further inputs against the first.
func alike(t graph.Type, names []string, others ...graph.Type) error {
	for i, o := range others {
		if o.DType != t.DType {
			return fmt.Errorf("%s must be %s as the first input, got %s", names[i], t.DType, o)
		}
	}
	return nil
}

// twins checks two inputs of one type, which the result has too.
func twins(in []graph.Type, x, y string) ([]graph.Type, error) {
	if err := arity(in, 2, x, y); err != nil {
		return nil, err
	}
	if err := activation(x, in[0]); err != nil {
		return nil, err
	}
	if !in[0].Equal(in[1]) {
		return nil, fmt.Errorf("%s and %s must have one type, got %[1]s %[3]s, %[2]s %[4]s", x, y, in[0], in[1])
	}
	return in[:1], nil
}

// finite refuses NaN and infinity as an attribute.
func finite(x float64) bool { return x-x == 0 }

// last is the innermost dimension, 1 for a scalar.
func last(t graph.Type) int {
	if t.Rank() == 0 {
		return 1
	}
	return t.Shape[t.Rank()-1]
}

// rows is the number of rows: everything but the innermost dimension.
func rows(t graph.Type) int { return t.Size() / last(t) }

// withLast is t with another innermost dimension.
func withLast(t graph.Type, d int) graph.Type {
	shape := append([]int(nil), t.Shape...)
	shape[len(shape)-1] = d
	return graph.T(t.DType, shape...)
}

// floats makes one body of a generic one's two forms.
func floats(f32, f64 func(c *graph.Call) error) func(c *graph.Call) error {
	return func(c *graph.Call) error {
		if c.Out[0].DType == dtype.Float64 {
			return f64(c)
		}
		return f32(c)
	}
}

// data is graph.Data; a missing optional input is nil.
func data[T native.Float](ts []graph.Tensor, i int) []T {
	if i >= len(ts) {
		return nil
	}
	return graph.Data[T](ts[i])
}
