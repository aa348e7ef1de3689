// AdamW: the moments of the parameters and their update.

package train

import (
	"math"

	"github.com/seafan/seafan/graph"
)

// adamW holds the float32 moments m and v of each parameter p. An update with
// gradient g, rate lr and number t (from 1) is
//
//	m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
//	p = p (1 - lr decay) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
//
// with decay for matrices only unless DecayAll is set (Loshchilov and Hutter
// 2019).
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
	w := float32(weight)
	for i, g := range grads {
		sum := a.sum[i]
		if first {
			clear(sum)
		}
		for j, x := range g {
			sum[j] += w * x
		}
	}
}

// norm is the Euclidean norm of all gradients together.
func (a *adamW) norm(grads [][]float32) float64 {
	var s float64
	for _, g := range grads {
		for _, x := range g {
			s += float64(x) * float64(x)
		}
	}
	return math.Sqrt(s)
}

// update changes the parameters by scale times the gradients.
func (a *adamW) update(grads [][]float32, scale, lr float64, t int) {
	bias1 := 1 - math.Pow(a.o.Beta1, float64(t))
	bias2 := 1 - math.Pow(a.o.Beta2, float64(t))
	for i, p := range a.params {
		decay := a.o.Decay
		if p.Type.Rank() != 2 && !a.o.DecayAll {
			decay = 0
		}
		w := graph.Data[float32](p.Tensor())
		m, v, g := a.m[i], a.v[i], grads[i]
		for j := range w {
			x := scale * float64(g[j])
			m[j] = float32(a.o.Beta1*float64(m[j]) + (1-a.o.Beta1)*x)
			v[j] = float32(a.o.Beta2*float64(v[j]) + (1-a.o.Beta2)*x*x)
			w[j] = float32(float64(w[j])*(1-lr*decay) - lr*float64(m[j])/bias1/(math.Sqrt(float64(v[j])/bias2)+a.o.Eps))
		}
		p.Touch()
	}
}
