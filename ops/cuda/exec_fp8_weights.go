package cuda

import (
	"encoding/binary"
	"math"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// fp8Weights is a weight in codes on the device, or several with their rows one after the other: rows of codes at a stride, then
// their steps.
type fp8Weights struct {
	codes  Pointer
	dt     DType
	stride int64
	steps  FP8Steps
}

type (
	fp8Key struct {
		a, b, c *graph.Param
		paired  bool
		recipe  ops.FP8Recipe
		whole   bool         // one step for the tensor, by the recipe
		state   *graph.Param // of w, for the recipe
	}
	fp8WideKey struct {
		a, b, c *graph.Param
		dt      DType
	}
	scalarKey struct{ bits uint32 }
)

// fp8Source is the weight of one linear as it is stored.
type fp8Source struct {
	w, steps *graph.Param // steps of stored codes
	n, k     int
	block    bool         // steps of 128x128; else one a row, or one
	state    *graph.Param // of an FP8Linear's weight
}

func (p *program) fp8Sources(linears []*graph.Node) (all []fp8Source, from []*graph.Param, err error) {
	const op = "fp8_weight_linear"
	for _, n := range linears {
		w := n.In()[1].Param()
		if w == nil || w.State {
			return nil, nil, unsupported(op, "%s is no weight", n.In()[1].Name())
		}
		s := fp8Source{w: w, n: n.In()[1].Dim(0), k: n.In()[1].Dim(1)}
		from = append(from, w)
		switch {
		case w.Type.DType.IsFloat8():
			if s.steps = n.In()[2].Param(); s.steps == nil || s.steps.State {
				return nil, nil, unsupported(op, "the steps %s are no weight", n.In()[2].Name())
			}
			from = append(from, s.steps)
			t := s.steps.Type
			s.block = !(t.Shape[1] == 1 && (t.Shape[0] == 1 || t.Shape[0] == s.n))
		case !floatWeight(w) || ops.CodingOf(w) != 0:
			return nil, nil, unsupported(op, "weight %s is %s", w.Name, w.Type)
		}
		all = append(all, s)
	}
	return all, from, nil
}

// fp8Weights are the weights of linears of one x. Those that are no codes yet are quantised when they go up: by rows, or as the
// recipe says.
func (p *program) fp8Weights(linears []*graph.Node, paired bool, recipe *ops.FP8Recipe) (w fp8Weights, err error) {
	const op = "fp8_weight_linear"
	all, from, err := p.fp8Sources(linears)
	if err != nil {
		return w, err
	}
	w.dt, w.stride, w.steps = codesOf(all[0].w.Type.DType), up16(all[0].k), FP8Steps{Rows: 1}
	rows, block := 0, all[0].block
	for i, s := range all {
		if s.block != block || codesOf(s.w.Type.DType) != w.dt || block && i+1 < len(all) && s.n%128 != 0 {
			return w, unsupported(op, "weights with different codes or steps as one")
		}
		rows += s.n
	}
	key := fp8Key{a: all[0].w, paired: paired}
	if len(all) > 1 {
		key.b = all[1].w
	}
	if len(all) > 2 {
		key.c = all[2].w
	}
	steps := rows
	if block {
		w.steps = FP8Steps{Rows: 128, Cols: 128}
		steps = ceilDiv(rows, 128) * ceilDiv(all[0].k, 128)
	}
	if recipe != nil {
		key.state = linears[0].In()[3].Param()
		all[0].state, from = key.state, append(from, key.state)
		key.whole, key.recipe, w.steps, steps = true, *recipe, FP8Steps{}, 1
		if recipe.Format.Forward() == native.E5M2 {
			w.dt = E5M2
		}
	}
	at := up256(int64(rows) * w.stride)
	r := region{label: all[0].w.Name + " " + w.dt.String(), bytes: at + 4*int64(steps), key: key, from: from, codes: at}
	if len(all) > 1 {
		r.label = all[0].w.Name + " and on " + w.dt.String()
	}
	stride, bytes := int(w.stride), r.bytes
	r.fill = func() []byte {
		mem := make([]byte, bytes)
		row, step := 0, mem[at:]
		for _, s := range all {
			if !s.w.Allocated() {
				return nil
			}
			codes, of := s.coded(recipe)
			if paired {
				PairCodes(mem[row*stride:], stride, codes, s.n, s.k)
			} else {
				for i := range s.n {
					copy(mem[(row+i)*stride:], codes[i*s.k:][:s.k])
				}
			}
			row += s.n
			for _, v := range of {
				binary.LittleEndian.PutUint32(step, math.Float32bits(v))
				step = step[4:]
			}
		}
		return mem
	}
	q := p.region(r).pointer()
	w.codes, w.steps.At = q, q.At(at)
	return w, nil
}

// coded are the codes of a weight and its steps: by rows, by blocks when they are stored so, or the one of a recipe.
func (s fp8Source) coded(recipe *ops.FP8Recipe) (codes []byte, steps []float32) {
	switch {
	case recipe != nil:
		x := s.wide()
		amax, _ := native.FP8TensorAmax(x)
		step, _ := recipe.WeightStep(graph.Data[float32](s.state.Tensor()), amax)
		codes = make([]byte, len(x))
		native.FP8TensorQuantize(codes, x, step, recipe.Format.Forward())
		return codes, []float32{step}
	case s.steps == nil:
		return ops.FP8Rows(s.w.Tensor())
	}
	codes, steps = s.w.Tensor().Bytes(), graph.Data[float32](s.steps.Tensor())
	if !s.block && len(steps) == 1 {
		all := make([]float32, s.n)
		for i := range all {
			all[i] = steps[0]
		}
		steps = all
	}
	return codes, steps
}

// wide is a weight that is no codes, in float32.
func (s fp8Source) wide() []float32 { return as[float32](weightBytes(s.w, F32)) }

// fp8Wide is the values that fp8Weights would have, in the compute dtype.
func (p *program) fp8Wide(linears []*graph.Node) (Pointer, error) {
	all, from, err := p.fp8Sources(linears)
	if err != nil {
		return Pointer{}, err
	}
	dt := p.compute
	key := fp8WideKey{a: all[0].w, dt: dt}
	if len(all) > 1 {
		key.b = all[1].w
	}
	if len(all) > 2 {
		key.c = all[2].w
	}
	r := region{label: all[0].w.Name + " " + dt.String(), key: key, from: from}
	for _, s := range all {
		r.bytes += int64(s.n * s.k * dt.Size())
	}
	r.fill = func() (mem []byte) {
		for _, s := range all {
			if !s.w.Allocated() {
				return nil
			}
			codes, steps := s.coded(nil)
			blocks, f := native.FP8PerRow(s.n, s.k), native.E4M3
			if s.block {
				blocks.BlockRows, blocks.BlockCols = 128, 128
			}
			if s.w.Type.DType == dtype.Float8E5M2 {
				f = native.E5M2
			}
			x := make([]float32, s.n*s.k)
			native.FP8Dequantize(x, codes, steps, blocks, f)
			out := make([]byte, len(x)*dt.Size())
			narrow(out, floatBytes(x), dt)
			mem = append(mem, out...)
		}
		return mem
	}
	return p.region(r).pointer(), nil
}

// scalar is one float32 on the device.
func (p *program) scalar(v float32) Pointer {
	return p.region(region{label: "step", bytes: 4, key: scalarKey{math.Float32bits(v)}, fill: func() []byte { return floatBytes([]float32{v}) }}).pointer()
}
