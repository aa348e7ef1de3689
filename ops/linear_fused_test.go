package ops_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// fusedLayer is a layer without its mixer: norms, gates and sums stand around linears
// on weights of a type, with or without biases. With all, everything is an output, so
// that nothing can be fused.
func fusedLayer(t *testing.T, ps *graph.Params, m, d, n int, stored dtype.DType, biased, all bool) *graph.Native {
	b := graph.New(graph.Share(ps))
	weight := func(name string, rows, cols int) *graph.Node {
		if stored == dtype.UInt8 {
			cols = ops.Q8_0.Bytes(cols)
		}
		p, err := ps.Add(name, graph.T(stored, rows, cols), false)
		require.NoError(t, err)
		if !p.HasValue() {
			ops.SetCoding(p, ops.Q8_0)
			change(p, name)
		}
		return b.Param(name, rows, cols)
	}
	vector := func(name string, n int) *graph.Node {
		p, err := ps.Add(name, graph.T(dtype.Float32, n), false)
		require.NoError(t, err)
		if !p.HasValue() {
			store(p, optest.Cast[float32](optest.Normals(name, n, 1)))
		}
		return b.Param(name, n)
	}
	var outs []*graph.Node
	out := func(x *graph.Node) *graph.Node {
		outs = append(outs, x)
		return x
	}
	linear := func(x *graph.Node, name string, rows, cols int) *graph.Node {
		if biased {
			return out(ops.Linear(x, weight(name, rows, cols), vector(name+".bias", rows)))
		}
		return out(ops.Linear(x, weight(name, rows, cols)))
	}
	x := ops.Add(b.Input("x", dtype.Float32, m, d), b.Input("x2", dtype.Float32, m, d))
	h := out(ops.RMSNorm(x, vector("norm", d), 1e-5))
	q, k, v := linear(h, "q", d, d), linear(h, "k", n, d), linear(h, "v", n, d)
	x = out(ops.Add(x, linear(q, "o", d, d)))
	h = out(ops.RMSNorm(x, vector("norm2", d), 1e-5))
	gate, up := linear(h, "gate", n, d), linear(h, "up", n, d)
	down := linear(out(ops.SwiGLU(gate, up)), "down", d, n)
	last := out(ops.Add(down, x))
	outputs := []*graph.Node{last, k, v}
	if all {
		outputs = append(outputs, outs...)
	}
	plan, err := b.Plan(outputs...)
	require.NoError(t, err)
	r, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	return r
}

// change gives a weight other numbers.
func change(p *graph.Param, seed string) {
	numbers := optest.Cast[float32](optest.Normals(seed, p.Type.Size(), 1))
	if p.Type.DType != dtype.UInt8 {
		store(p, numbers)
		return
	}
	w := p.Tensor().Bytes()
	for i := range w {
		w[i] = byte(int(40 * numbers[i]))
		if i%34 == 1 { // the upper half of a step: 2^-5 to 2^-4
			w[i] = 0x28
		}
	}
	p.Touch()
}

// fusedLayerWant is the layer's last result, with biases, in float64.
func fusedLayerWant(ps *graph.Params, feeds graph.Feeds, m, d, n int) []float64 {
	value := func(name string) []float64 {
		p := ps.Get(name)
		wide := make([]float32, p.Type.Size())
		switch w := p.Tensor(); w.DType {
		case dtype.BFloat16:
			dtype.ToFloat32(wide, graph.Data[dtype.BF16](w))
		case dtype.Float16:
			dtype.ToFloat32(wide, graph.Data[dtype.F16](w))
		default:
			copy(wide, graph.Data[float32](w))
		}
		return widened(wide)
	}
	linear := func(x []float64, name string, rows, cols int) []float64 {
		return optest.Linear(x, value(name), value(name+".bias"), m, rows, cols)
	}
	x := optest.Add(widened(feeds["x"].([]float32)), widened(feeds["x2"].([]float32)))
	h := optest.RMSNorm(x, value("norm"), m, d, 1e-5)
	x = optest.Add(x, linear(linear(h, "q", d, d), "o", d, d))
	h = optest.RMSNorm(x, value("norm2"), m, d, 1e-5)
	return optest.Add(x, linear(optest.SwiGLU(linear(h, "gate", n, d), linear(h, "up", n, d)), "down", d, n))
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// TestFusedLinearsHaveTheBitsOfEachStep: norms, gates and sums that run inside the
// launches of linears change no bit, whatever the rows, the workers, and the weights'
// type, with panels and without, and after a weight has changed.
func TestFusedLinearsHaveTheBitsOfEachStep(t *testing.T) {
	defer native.SetWorkers(0)
	for _, c := range []struct {
		d, n   int
		stored dtype.DType
	}{
		{64, 96, dtype.BFloat16}, {288, 544, dtype.BFloat16}, {64, 96, dtype.Float16}, {64, 50, dtype.BFloat16}, // panels, but for columns that are left
		{64, 96, dtype.UInt8},                             // blocks, read where they lie
		{40, 33, dtype.BFloat16}, {64, 96, dtype.Float32}, // no tiles
	} {
		for _, biased := range []bool{false, true} {
			ps := graph.NewParams()
			for _, m := range []int{1, 2, 3, 4, 5, 33} {
				name := fmt.Sprintf("%d rows, %dx%d %s, bias %t", m, c.d, c.n, c.stored, biased)
				feeds := graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", m*c.d, 1)), "x2": optest.Cast[float32](optest.Normals("x2", m*c.d, 1))}
				native.SetWorkers(1)
				each := fusedLayer(t, ps, m, c.d, c.n, c.stored, biased, true)
				fused := fusedLayer(t, ps, m, c.d, c.n, c.stored, biased, false)
				run := func(r *graph.Native) (out [][]float32) {
					require.NoError(t, r.Do(context.Background(), feeds), name)
					for _, o := range r.Plan().Outputs[:3] {
						v, err := r.Value(o)
						require.NoError(t, err)
						out = append(out, append([]float32(nil), graph.Data[float32](v)...))
					}
					return out
				}
				want := run(each)
				if biased && c.stored != dtype.UInt8 {
					optest.RequireClose(t, name, want[0], fusedLayerWant(ps, feeds, m, c.d, c.n), optest.Float32, 24) // measured up to 12.1
				}
				for _, panels := range []bool{false, true} {
					if panels {
						ops.FillPanels(fused.Plan(), 0.5)
					}
					for _, workers := range []int{1, 2, 7} {
						native.SetWorkers(workers)
						require.Equal(t, want, run(fused), "%s, %d workers, panels %t", name, workers, panels)
					}
				}
				native.SetWorkers(1)
				ctx := context.Background()
				require.Zero(t, testing.AllocsPerRun(3, func() { _ = fused.Do(ctx, feeds) }), "%s: a launch is made once", name)
				p := ps.Get("o")
				change(p, name)
				changed := run(fused)
				require.NotEqual(t, want[0], changed[0], "panels of the old value are not used")
				require.Equal(t, run(each), changed, name)
			}
		}
	}
}

// TestExecutorsGoOnWithTheOldValue: panels of a weight's new value are not for an
// executor that was made before Store or Adopt.
func TestExecutorsGoOnWithTheOldValue(t *testing.T) {
	const m, d, n = 2, 64, 96
	feeds := graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", m*d, 1)), "x2": optest.Cast[float32](optest.Normals("x2", m*d, 1))}
	run := func(r *graph.Native) []float32 {
		require.NoError(t, r.Do(context.Background(), feeds))
		v, err := r.Value(r.Plan().Outputs[0])
		require.NoError(t, err)
		return append([]float32(nil), graph.Data[float32](v)...)
	}
	for _, give := range []func(p *graph.Param, value []byte) error{
		func(p *graph.Param, value []byte) error { return p.Store(dtype.BFloat16, value) },
		(*graph.Param).Adopt,
	} {
		ps := graph.NewParams()
		ran := fusedLayer(t, ps, m, d, n, dtype.BFloat16, false, false)
		ops.FillPanels(ran.Plan(), 0.5)
		want := run(ran)
		fresh, err := ran.Plan().Native()
		require.NoError(t, err)
		for _, name := range []string{"q", "o"} { // the first of several linears, and one alone
			p := ps.Get(name)
			value := append([]byte(nil), p.Tensor().Bytes()...)
			slices.Reverse(value[2:])
			require.NoError(t, give(p, value))
		}
		later := fusedLayer(t, ps, m, d, n, dtype.BFloat16, false, false)
		ops.FillPanels(later.Plan(), 0.5)
		require.NotEqual(t, want, run(later))
		require.Equal(t, want, run(ran))
		require.Equal(t, want, run(fresh))
	}
}
