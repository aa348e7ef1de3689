package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:    "rotary",
		Doc:     "rotary position embedding, both pairings, partial width",
		InPlace: []int{0},
		Native:  floats(rotary[float32], rotary[float64]),
		FLOPs:   func(_ graph.Op, in, _ []graph.Type) int64 { return 3 * int64(in[0].Size()) },
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := g.Op.(RotaryOp)
			o.Back = !o.Back
			in := slices.Clone(g.In)
			in[0] = g.Out(0)
			grads := make([]*graph.Node, len(in))
			grads[0] = graph.ApplyAs("rotary_grad", o, in...)
			return grads
		},
	})
}

// The pairings: which two elements of a head are turned together.
const (
	Half        = native.RotaryHalf        // (x[i], x[i+Dr/2]): checkpoints in the Hugging Face form
	Interleaved = native.RotaryInterleaved // (x[2i], x[2i+1])
)

// RotaryConfig says how a table is built: width, base, positions and scaling.
type RotaryConfig = native.RotaryConfig

// RotaryTable holds the cosines and sines of every position, computed in
// float64 and stored in float32. It does not change once it is made.
type RotaryTable struct {
	Cos, Sin  []float32 // [Positions, Width/2]
	Positions int
	Width     int // elements of a head that are turned
}

// NewRotaryTable computes a table.
func NewRotaryTable(c RotaryConfig) (*RotaryTable, error) {
	if c.Positions > maxRotaryPositions || c.Dim > maxRotaryWidth {
		return nil, fmt.Errorf("rotary: a table has up to %d positions and a width up to %d, got %d and %d", maxRotaryPositions, maxRotaryWidth, c.Positions, c.Dim)
	}
	cos, sin, err := native.RotaryTable(c)
	if err != nil {
		return nil, err
	}
	return &RotaryTable{Cos: cos, Sin: sin, Positions: c.Positions, Width: c.Dim}, nil
}

// Bounds of a table, so that a wrong number in a config is an error and not a
// process without memory.
const (
	maxRotaryPositions = 1 << 24
	maxRotaryWidth     = 1 << 16
)

// RotaryOp turns pairs of elements of each head by the angles of its token's
// position: (a, b) becomes (a cos - b sin, b cos + a sin). x is [B,T,H,D] or
// [T,H,D]; the positions are int32 [T] or [B,T], or left out for 0..T-1. The
// first Table.Width elements of a head are turned, the rest stays. Back turns
// the other way, which is the gradient. Source: Su et al., RoFormer
// (arXiv:2104.09864).
type RotaryOp struct {
	Table   *RotaryTable
	Pairing native.RotaryPairing
	Back    bool
}

// Rotary adds a RotaryOp. A nil pos means positions 0..T-1.
func Rotary(x, pos *graph.Node, table *RotaryTable, pairing native.RotaryPairing) *graph.Node {
	in := []*graph.Node{x}
	if pos != nil {
		in = append(in, pos)
	}
	return graph.Apply(RotaryOp{Table: table, Pairing: pairing}, in...)
}

// Name is "rotary".
func (RotaryOp) Name() string { return "rotary" }

// Infer checks x and the positions against each other and the table.
func (o RotaryOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x", "positions"); err != nil {
		return nil, err
	}
	x := in[0]
	if err := activation("x", x); err != nil {
		return nil, err
	}
	if x.Rank() != 3 && x.Rank() != 4 {
		return nil, fmt.Errorf("x must be [B,T,H,D] or [T,H,D], got %s", x.Dims())
	}
	tokens := x.Shape[:x.Rank()-2]
	length := tokens[len(tokens)-1]
	switch {
	case o.Table == nil:
		return nil, fmt.Errorf("there is no table")
	case o.Table.Width < 0 || o.Table.Width%2 != 0 || len(o.Table.Cos) != o.Table.Positions*o.Table.Width/2 || len(o.Table.Sin) != len(o.Table.Cos):
		return nil, fmt.Errorf("the table must hold [%d,%d] cosines and sines, got %d and %d", o.Table.Positions, o.Table.Width/2, len(o.Table.Cos), len(o.Table.Sin))
	case o.Pairing != Half && o.Pairing != Interleaved:
		return nil, fmt.Errorf("the pairing must be Half or Interleaved, got %d", o.Pairing)
	case o.Table.Width > last(x):
		return nil, fmt.Errorf("the table turns %d elements of a head, x %s has %d", o.Table.Width, x.Dims(), last(x))
	case len(in) == 1 && length > o.Table.Positions:
		return nil, fmt.Errorf("x %s has %d tokens, the table holds %d positions", x.Dims(), length, o.Table.Positions)
	case len(in) == 2 && (in[1].DType != dtype.Int32 || !slices.Equal(in[1].Shape, tokens) && !slices.Equal(in[1].Shape, []int{length})):
		return nil, fmt.Errorf("positions must be int32 %s or [%d] for x %s, got %s", graph.Dims(tokens), length, x.Dims(), in[1])
	}
	return in[:1], nil
}

func rotary[T native.Float](c *graph.Call) error {
	o, x := c.Op.(RotaryOp), c.In[0]
	r := x.Rank()
	h, d, length := x.Shape[r-2], x.Shape[r-1], x.Shape[r-3]
	a := native.RotaryArgs[T]{
		Y: graph.Data[T](c.Out[0]), X: graph.Data[T](x), Cos: o.Table.Cos, Sin: o.Table.Sin,
		T: x.Size() / (h * d), H: h, D: d, Dr: o.Table.Width, L: length, Pairing: o.Pairing, Back: o.Back,
	}
	if len(c.In) == 1 {
		native.Rotary(a)
		return nil
	}
	pos := graph.Data[int32](c.In[1])
	if err := native.CheckPositions(pos, o.Table.Positions); err != nil {
		return err
	}
	if len(pos) == a.T {
		a.Pos = pos
		native.Rotary(a)
		return nil
	}
	// One row of positions for every sequence of the batch.
	for n := length * h * d; len(a.X) > 0; a.X, a.Y = a.X[n:], a.Y[n:] {
		one := a
		one.T, one.Pos = length, pos
		native.Rotary(one)
	}
	return nil
}
