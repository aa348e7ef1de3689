package optest

// Tape runs a whole model on the oracles and remembers it, so that its gradient
// is the chain of theirs. Weights are read by name from a map; their gradients
// collect under the same names.
type Tape struct {
	Weights map[string][]float64
	params  map[string]*Value
	back    []func()
}

// Value is a tensor on the tape with the gradient that has reached it.
type Value struct{ Data, Grad []float64 }

// NewTape returns an empty tape over the weights.
func NewTape(weights map[string][]float64) *Tape {
	return &Tape{Weights: weights, params: map[string]*Value{}}
}

// Param returns the weight of a name, nil where there is none.
func (t *Tape) Param(name string) *Value {
	if _, ok := t.Weights[name]; !ok {
		return nil
	}
	if t.params[name] == nil {
		t.params[name] = newValue(t.Weights[name])
	}
	return t.params[name]
}

func newValue(data []float64) *Value { return &Value{data, make([]float64, len(data))} }

// Apply runs an op. An input may be nil, which its functions then see as nil.
func (t *Tape) Apply(forward Forward, backward Backward, in ...*Value) []*Value {
	data := make([][]float64, len(in))
	for i, v := range in {
		if v != nil {
			data[i] = v.Data
		}
	}
	var out []*Value
	for _, y := range forward(data) {
		out = append(out, newValue(y))
	}
	t.back = append(t.back, func() {
		dout := make([][]float64, len(out))
		for i, y := range out {
			dout[i] = y.Grad
		}
		for i, g := range backward(data, dout) {
			if in[i] == nil || g == nil {
				continue
			}
			for j := range g {
				in[i].Grad[j] += g[j]
			}
		}
	})
	return out
}

// Backward returns the gradient of a scalar with respect to every weight that
// was used.
func (t *Tape) Backward(loss *Value) map[string][]float64 {
	loss.Grad[0] = 1
	for i := len(t.back) - 1; i >= 0; i-- {
		t.back[i]()
	}
	grads := map[string][]float64{}
	for name, v := range t.params {
		grads[name] = v.Grad
	}
	return grads
}

// Embed is Embedding of the weight name.
func (t *Tape) Embed(name string, ids []int32, d int) *Value {
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{Embedding(in[0], ids, d)} },
		func(in, g [][]float64) [][]float64 {
			return [][]float64{EmbeddingGrad(g[0], ids, len(in[0])/d, d)}
		}, t.Param(name))[0]
}

// Linear multiplies rows of k numbers by name.weight [n, k] and adds name.bias
// where the model has one.
func (t *Tape) Linear(x *Value, name string, k int) *Value {
	weight := t.Param(name + ".weight")
	m, n := len(x.Data)/k, len(weight.Data)/k
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{Linear(in[0], in[1], in[2], m, n, k)} },
		func(in, g [][]float64) [][]float64 {
			dx, dw, db := LinearGrad(g[0], in[0], in[1], m, n, k)
			return [][]float64{dx, dw, db}
		}, x, weight, t.Param(name+".bias"))[0]
}

// RMSNorm normalises rows of d numbers with the weight name.
func (t *Tape) RMSNorm(x *Value, name string, d int, eps float64) *Value {
	rows := len(x.Data) / d
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{RMSNorm(in[0], in[1], rows, d, eps)} },
		func(in, g [][]float64) [][]float64 {
			dx, dw := RMSNormGrad(g[0], in[0], in[1], rows, d, eps)
			return [][]float64{dx, dw}
		}, x, t.Param(name))[0]
}

// Add is x + y.
func (t *Tape) Add(x, y *Value) *Value {
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{Add(in[0], in[1])} },
		func(in, g [][]float64) [][]float64 {
			da, db := AddGrad(g[0])
			return [][]float64{da, db}
		}, x, y)[0]
}

// SwiGLU is silu(gate) up.
func (t *Tape) SwiGLU(gate, up *Value) *Value {
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{SwiGLU(in[0], in[1])} },
		func(in, g [][]float64) [][]float64 {
			dg, du := SwiGLUGrad(g[0], in[0], in[1])
			return [][]float64{dg, du}
		}, gate, up)[0]
}

// Rotary turns heads of d numbers half-split at positions 0, 1, 2...
func (t *Tape) Rotary(x *Value, frequencies []float64, factor float64, h, d int) *Value {
	n := len(x.Data) / (h * d)
	cos, sin := RotaryTable(frequencies, factor, n)
	pos := make([]int32, n)
	for i := range pos {
		pos[i] = int32(i)
	}
	dr := 2 * len(frequencies)
	return t.Apply(
		func(in [][]float64) [][]float64 { return [][]float64{Rotary(in[0], pos, cos, sin, h, d, dr, Half)} },
		func(in, g [][]float64) [][]float64 {
			return [][]float64{RotaryGrad(g[0], pos, cos, sin, h, d, dr, Half)}
		}, x)[0]
}

// Attention is the dense attention a without its lse.
func (t *Tape) Attention(a Attention, q, k, v *Value) *Value {
	return t.Apply(
		func(in [][]float64) [][]float64 {
			out, _ := a.Forward(in[0], in[1], in[2])
			return [][]float64{out}
		},
		func(in, g [][]float64) [][]float64 {
			dq, dk, dv, _ := a.Backward(in[0], in[1], in[2], g[0], nil)
			return [][]float64{dq, dk, dv}
		}, q, k, v)[0]
}

// NextTokenLoss is the mean cross entropy of logits[t] and ids[t+1].
func (t *Tape) NextTokenLoss(logits *Value, ids []int32, v int) *Value {
	const ignore = -100
	labels := append(append([]int32(nil), ids[1:]...), ignore)
	return t.Apply(
		func(in [][]float64) [][]float64 {
			return [][]float64{{CrossEntropy(in[0], labels, v, ignore, 0).Loss}}
		},
		func(in, g [][]float64) [][]float64 {
			return [][]float64{CrossEntropyGrad(g[0][0], in[0], labels, v, ignore, 0)}
		}, logits)[0]
}
