// Adapters with magnitudes (DoRA).

package models

import (
	"math"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// endMagnitude is what PEFT calls the lengths of a layer's rows, endSum our own
// name of the weight with the adapter in it.
const endMagnitude, endSum = ".lora_magnitude_vector", ".lora_sum.weight"

// addTo adds an adapter to the weight w [N,K] of its layer:
//
//	w + scale b a, and with magnitudes m  m_n (w + scale b a)_n / |(w + scale b a)_n|
//
// for each row n. Source: Liu et al. (arXiv:2402.09353).
func (x *adapter) addTo(w []float32, n, k int) {
	r := x.a.Type.Shape[0]
	native.Gemm(false, false, n, k, r, float32(x.scale), graph.Data[float32](x.b.Tensor()), r, graph.Data[float32](x.a.Tensor()), k, 1, w, k)
	for i, m := range x.magnitudes {
		row, squares := w[i*k:(i+1)*k], 0.0
		for _, v := range row {
			squares += float64(v) * float64(v)
		}
		by := float64(m) / math.Sqrt(squares)
		for j, v := range row {
			row[j] = float32(by * float64(v))
		}
	}
}

// magnify gives a layer its magnitudes, and the weight that it has with them, in
// float32, to read in place of its own: both terms of a row are divided by the
// length of their sum, so that no term is added to a layer that is as it was.
func (ad *Adapted) magnify(module string, magnitudes []float32) error {
	w := ad.params.Get(module + ".weight")
	shape := shapeOf(w)
	sum, err := ad.params.Add(module+endSum, graph.T(dtype.Float32, shape...), false)
	if err != nil {
		return err
	}
	wide := graph.Data[float32](sum.Tensor())
	copy(wide, ad.wide(w))
	x := ad.adapters[module]
	x.magnitudes, x.sum = magnitudes, sum
	x.addTo(wide, shape[0], shape[1])
	sum.Touch()
	ad.adapters[module] = x
	return nil
}

// summed is a linear n on the weight with the adapter in it.
func (x *adapter) summed(n *graph.Node, in []*graph.Node) *graph.Node {
	name := strings.TrimSuffix(n.In()[1].Label(), ".weight") + endSum
	w := in[1].Builder().Param(name, x.sum.Type.Shape...)
	if last := in[len(in)-1]; last.Type().Rank() == 1 {
		return ops.Linear(in[0], w, last)
	}
	return ops.Linear(in[0], w)
}
