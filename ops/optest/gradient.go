package optest

import (
	"fmt"
	"math"
)

// Forward maps inputs to outputs and keeps nothing between calls.
type Forward func(in [][]float64) [][]float64

// Backward maps inputs and the gradients of the outputs to the gradients of the
// inputs; nil for an input that has none (it is not checked).
type Backward func(in, dout [][]float64) [][]float64

// gradientBound is the largest accepted relative error of a projected gradient.
const gradientBound = 1e-6

// CheckGradient fails the test unless backward is the gradient of forward.
//
// The outputs are contracted with one random vector u, so phi(x) = sum u f(x),
// and for each input in turn phi is differentiated along one random direction v
// and compared with the scalar product of the gradient and v. v is scaled
// element by element with max(|x|, rms(x)) (1 where the input is all zero), the
// difference is the fourth-order central one, and it is taken output by output
// before contracting, so nothing cancels that need not.
// The error is relative to |grad * v| (element-wise product, its length): 1e-6.
// An infinite output must stay what it is (the lse of an empty row).
func CheckGradient(t TestingT, name string, forward Forward, backward Backward, inputs ...[]float64) {
	t.Helper()
	r := NewRand("gradient of " + name)
	dout := make([][]float64, 0)
	for _, y := range forward(inputs) {
		dout = append(dout, make([]float64, len(y)))
		for i := range y {
			dout[len(dout)-1][i] = r.Normal()
		}
	}
	grads := backward(inputs, dout)
	if len(grads) != len(inputs) {
		t.Errorf("%s: %d gradients for %d inputs", name, len(grads), len(inputs))
		t.FailNow()
		return
	}
	checked := 0
	for k, g := range grads {
		if g == nil {
			continue
		}
		checked++
		if err := checkInput(forward, dout, inputs, k, g, r); err != nil {
			t.Errorf("%s: input %d: %v", name, k, err)
			t.FailNow()
			return
		}
	}
	if checked == 0 {
		t.Errorf("%s: no gradient to check", name)
		t.FailNow()
	}
}

func checkInput(forward Forward, dout, inputs [][]float64, k int, g []float64, r *Rand) error {
	x := inputs[k]
	if len(g) != len(x) {
		return fmt.Errorf("gradient has %d elements, the input %d", len(g), len(x))
	}
	size := norm(x) / math.Sqrt(float64(max(len(x), 1)))
	v := make([]float64, len(x))
	analytic := 0.0
	parts := make([]float64, len(x))
	for i := range x {
		scale := max(math.Abs(x[i]), size)
		if scale == 0 {
			scale = 1
		}
		v[i] = scale * r.Normal()
		parts[i] = g[i] * v[i]
		analytic += parts[i]
		if math.IsNaN(g[i]) || math.IsInf(g[i], 0) {
			return fmt.Errorf("gradient element %d is %v", i, g[i])
		}
	}
	const h = 0x1p-10
	numeric := (4*slope(forward, dout, inputs, k, v, h) - slope(forward, dout, inputs, k, v, 2*h)) / 3
	unit := norm(parts)
	if unit == 0 {
		unit = 1
	}
	if e := math.Abs(numeric-analytic) / unit; !(e <= gradientBound) {
		return fmt.Errorf("gradient along a random direction is %.9g, central differences give %.9g (relative error %.3g, bound %.0e)",
			analytic, numeric, e, gradientBound)
	}
	return nil
}

// slope returns the contraction of dout with (f(x + h v) - f(x - h v)) / 2h.
func slope(forward Forward, dout, inputs [][]float64, k int, v []float64, h float64) float64 {
	at := func(step float64) [][]float64 {
		moved := append([][]float64(nil), inputs...)
		moved[k] = make([]float64, len(v))
		for i := range v {
			moved[k][i] = inputs[k][i] + step*v[i]
		}
		return forward(moved)
	}
	up, down := at(h), at(-h)
	sum := 0.0
	for o := range up {
		for i := range up[o] {
			if up[o][i] == down[o][i] {
				continue
			}
			sum += dout[o][i] * (up[o][i] - down[o][i])
		}
	}
	return sum / (2 * h)
}
