// AdamW: the moments of the parameters and their update.

package train

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops/native"
)

// adamW holds the float32 moments m and v of each parameter that
// native.AdamW updates, with weight decay for matrices and stacks of them only
// unless DecayAll is set.
type adamW struct {
	o      Options
	params []*graph.Param
	m, v   [][]float32
	sum    [][]float32 // of weighted gradients, with more than one micro-batch
}

func newAdamW(o Options, params []*graph.Param) *adamW {
	a := &adamW{o: o, params: params}
	for _, p := range params {
		n := p.Type.Size()
		a.m = append(a.m, make([]float32, n))
		a.v = append(a.v, make([]float32, n))
		if o.Accumulate > 1 {
			a.sum = append(a.sum, make([]float32, n))
		}
	}
	return a
}

// accumulate adds weight times the gradients to the sum, which first clears.
func (a *adamW) accumulate(grads [][]float32, weight float64, first bool) {
	for i, g := range grads {
		if first {
			clear(a.sum[i])
		}
		native.Accumulate(a.sum[i], g, len(g), weight)
	}
}

// norm is the Euclidean norm of all gradients together.
func (a *adamW) norm(grads [][]float32) float64 {
	var s float64
	for _, g := range grads {
		s += native.SumSquares(g, len(g))
	}
	return math.Sqrt(s)
}

// update changes the parameters by scale times the gradients; t counts the
// updates from 1.
func (a *adamW) update(grads [][]float32, scale, lr float64, t int) {
	step := native.AdamWStep{LR: lr, Beta1: a.o.Beta1, Beta2: a.o.Beta2, Eps: a.o.Eps, Step: t, GradScale: scale}
	for i, p := range a.params {
		step.Decay = a.o.Decay
		if r := p.Type.Rank(); r != 2 && r != 3 && !a.o.DecayAll {
			step.Decay = 0
		}
		amax, nan := native.AdamW(graph.Data[float32](p.Tensor()), a.m[i], a.v[i], grads[i], p.Type.Size(), step)
		p.Touch()
		p.Measured(amax, nan)
	}
}

// clear forgets the moments.
func (a *adamW) clear() {
	for i := range a.m {
		clear(a.m[i])
		clear(a.v[i])
	}
}

// slots are the moments, named after their parameters.
func (a *adamW) slots() []slot {
	var s []slot
	for i, p := range a.params {
		typ := graph.T(dtype.Float32, p.Type.Shape...)
		s = append(s,
			slot{p.Name + ".m", typ, func(t *checkpoint.Tensor) error { return readMoment(t, a.m[i], math.Inf(-1)) }, false},
			slot{p.Name + ".v", typ, func(t *checkpoint.Tensor) error { return readMoment(t, a.v[i], 0) }, false})
	}
	return s
}

// readMoment reads finite numbers of at least low.
func readMoment(t *checkpoint.Tensor, dst []float32, low float64) error {
	if err := checkpoint.Read(t, dst); err != nil {
		return err
	}
	for i, x := range dst {
		if x := float64(x); !finite(x) || x < low {
			need := "finite"
			if low == 0 {
				need = "finite and 0 or more"
			}
			return fmt.Errorf("%s: %s must be %s, element %d is %g", t.File(), t.Name(), need, i, x)
		}
	}
	return nil
}

func (a *adamW) entries() []checkpoint.Entry {
	var es []checkpoint.Entry
	for i, p := range a.params {
		es = append(es, checkpoint.Values(p.Name+".m", a.m[i], p.Type.Shape...), checkpoint.Values(p.Name+".v", a.v[i], p.Type.Shape...))
	}
	return es
}
