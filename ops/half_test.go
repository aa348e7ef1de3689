package ops_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// store gives a parameter its value in its own type.
func store(p *graph.Param, wide []float32) {
	switch w := p.Tensor(); w.DType {
	case dtype.BFloat16:
		dtype.FromFloat32(graph.Data[dtype.BF16](w), wide)
	case dtype.Float16:
		dtype.FromFloat32(graph.Data[dtype.F16](w), wide)
	default:
		copy(graph.Data[float32](w), wide)
	}
	p.Touch()
}

// TestHalfWeights runs a table and a projection with weights stored in 16 bits:
// the results, and the gradient that goes on, have the bits of the same model
// with the weights widened.
func TestHalfWeights(t *testing.T) {
	const v, d, n = 11, 40, 70
	ids := []int32{3, 0, 10, 3}
	labels := []int32{1, 69, 0, 5}
	params := func(stored dtype.DType) *graph.Params {
		ps := graph.NewParams()
		for name, shape := range map[string][]int{"table": {v, d}, "w": {n, d}} {
			wide := optest.Cast[float32](optest.Normals(name, shape[0]*shape[1], 1))
			bf := make([]dtype.BF16, len(wide))
			fp := make([]dtype.F16, len(wide))
			p, err := ps.Add(name, graph.T(stored, shape...), false)
			require.NoError(t, err)
			// Numbers that both 16-bit types hold: 8 bits of bf16, the exponents of f16.
			dtype.FromFloat32(bf, wide)
			dtype.ToFloat32(wide, bf)
			dtype.FromFloat32(fp, wide)
			dtype.ToFloat32(wide, fp)
			store(p, wide)
		}
		return ps
	}
	run := func(stored dtype.DType) (out [][]byte) {
		ps := params(stored)
		b := graph.New(graph.Share(ps))
		scale := b.Param("norm", d)
		x := ops.Embedding(b.Input("ids", dtype.Int32, 2, 2), b.Param("table", v, d))
		h := ops.RMSNorm(x, scale, 1e-5)
		logits := ops.Linear(h, b.Param("w", n, d))
		loss, _ := ops.CrossEntropy(logits, b.Input("labels", dtype.Int32, 2, 2))
		require.NoError(t, b.Err())
		for i, w := range graph.Data[float32](scale.Param().Tensor()) {
			graph.Data[float32](scale.Param().Tensor())[i] = w + 1
		}
		scale.Param().Touch()
		grads, err := b.Grad(loss, scale)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
		if stored != dtype.Float32 {
			require.Equal(t, []*graph.Node{scale}, b.Params(), "a weight in 16 bits is not trained")
		}
		plan, err := b.Plan(append(grads, logits, loss)...)
		require.NoError(t, err)
		r, err := plan.Native(graph.Poison())
		require.NoError(t, err)
		require.NoError(t, r.Do(context.Background(), graph.Feeds{"ids": ids, "labels": labels}))
		for _, o := range plan.Outputs {
			value, err := r.Value(o)
			require.NoError(t, err)
			out = append(out, append([]byte(nil), value.Bytes()...))
		}
		return out
	}
	want := run(dtype.Float32)
	require.Equal(t, want, run(dtype.Float16))
	require.Equal(t, want, run(dtype.BFloat16))
}

// TestHalfExperts: stacks in 16 bits give the results of the same numbers in
// float32, and the gradient that goes on.
func TestHalfExperts(t *testing.T) {
	const tokens, topK, e, f, d = 9, 2, 4, 24, 40
	ids := []int32{0, 1, 3, 2, 1, 0, 0, 2, 3, 1, 2, 1, 0, 3, 2, 3, 1, 2}
	run := func(stored dtype.DType) [][]float32 {
		ps := graph.NewParams()
		for _, name := range []string{"gate", "up", "down"} {
			shape := []int{e, f, d}
			if name == "down" {
				shape = []int{e, d, f}
			}
			wide := optest.Cast[float32](optest.Normals(name, e*f*d, 0.5))
			bf := make([]dtype.BF16, len(wide))
			dtype.FromFloat32(bf, wide)
			dtype.ToFloat32(wide, bf)
			p, err := ps.Add(name, graph.T(stored, shape...), false)
			require.NoError(t, err)
			store(p, wide)
		}
		b := graph.New(graph.Share(ps))
		norm := b.Param("norm", d)
		copy(graph.Data[float32](norm.Param().Tensor()), optest.Cast[float32](optest.Normals("norm", d, 1)))
		norm.Param().Touch()
		x := ops.RMSNorm(b.Input("x", dtype.Float32, tokens, d), norm, 1e-5)
		y := ops.Experts(x, b.Input("weights", dtype.Float32, tokens, topK), b.Input("ids", dtype.Int32, tokens, topK),
			b.Param("gate", e, f, d), b.Param("up", e, f, d), b.Param("down", e, d, f))
		loss, _ := ops.CrossEntropy(y, b.Input("labels", dtype.Int32, tokens))
		require.NoError(t, b.Err())
		grads, err := b.Grad(loss, norm)
		require.NoError(t, err)
		require.NoError(t, graph.Verify(b))
		plan, err := b.Plan(y, grads[0])
		require.NoError(t, err)
		exec, err := plan.Native(graph.Poison())
		require.NoError(t, err)
		require.NoError(t, exec.Do(context.Background(), graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", tokens*d, 1)),
			"weights": optest.Cast[float32](optest.Normals("weights", tokens*topK, 1)), "ids": ids, "labels": []int32{1, 2, 3, 0, 32, 5, 6, 7, 8}}))
		var out [][]float32
		for _, node := range []*graph.Node{y, grads[0]} {
			v, err := exec.Value(node)
			require.NoError(t, err)
			out = append(out, append([]float32(nil), graph.Data[float32](v)...))
		}
		return out
	}
	want := run(dtype.Float32)
	for _, stored := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for i, got := range run(stored) {
			wide := make([]float64, len(got))
			for j, w := range want[i] {
				wide[j] = float64(w)
			}
			bound := map[dtype.DType]optest.Precision{dtype.BFloat16: optest.Float32, dtype.Float16: optest.Float16}[stored] // f16 rounds small weights
			optest.RequireClose(t, stored.String(), got, wide, bound, 4)
		}
	}
	b := graph.New()
	ops.Experts(b.Input("x", dtype.Float32, 3, 4), b.Input("weights", dtype.Float32, 3, 2), b.Input("ids", dtype.Int32, 3, 2),
		b.Input("gate", dtype.BFloat16, 5, 6, 4), b.Input("up", dtype.Float32, 5, 6, 4), b.Input("down", dtype.BFloat16, 5, 4, 6))
	require.EqualError(t, b.Err(), "experts: gate must be float32 as the first input, got bfloat16[5,6,4]")
}

// TestBF16LinearOnStoredWeights: result and the gradient of x are those of the
// widened weight, which alone has a gradient of its own.
func TestBF16LinearOnStoredWeights(t *testing.T) {
	const m, n, k = 5, 33, 70
	wide := optest.Cast[float32](optest.Normals("w", n*k, 1))
	codes := make([]dtype.BF16, len(wide))
	dtype.FromFloat32(codes, wide)
	dtype.ToFloat32(wide, codes)
	run := func(stored dtype.DType) [][]float32 {
		ps := graph.NewParams()
		w, err := ps.Add("w", graph.T(stored, n, k), false)
		require.NoError(t, err)
		if stored == dtype.BFloat16 {
			copy(graph.Data[dtype.BF16](w.Tensor()), codes)
		} else {
			copy(graph.Data[float32](w.Tensor()), wide)
		}
		w.Touch()
		b := graph.New(graph.Share(ps))
		scale := b.Param("norm", k)
		copy(graph.Data[float32](scale.Param().Tensor()), optest.Cast[float32](optest.Normals("norm", k, 1)))
		scale.Param().Touch()
		y := ops.BF16Linear(ops.RMSNorm(b.Input("x", dtype.Float32, m, k), scale, 1e-5), b.Param("w", n, k))
		loss, _ := ops.CrossEntropy(y, b.Input("labels", dtype.Int32, m))
		require.NoError(t, b.Err())
		grads, err := b.Grad(loss, scale)
		require.NoError(t, err)
		plan, err := b.Plan(y, grads[0])
		require.NoError(t, err)
		exec, err := plan.Native()
		require.NoError(t, err)
		require.NoError(t, exec.Do(context.Background(), graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", m*k, 1)), "labels": []int32{1, 2, 3, 0, 32}}))
		var out [][]float32
		for _, node := range []*graph.Node{y, grads[0]} {
			v, err := exec.Value(node)
			require.NoError(t, err)
			out = append(out, append([]float32(nil), graph.Data[float32](v)...))
		}
		return out
	}
	require.Equal(t, run(dtype.Float32), run(dtype.BFloat16))
}

// The products of absorbed latent attention give the bits of the widened weight.
func TestLatentProductsOnStoredWeights(t *testing.T) {
	const tokens, h, n, shared, v, r = 70, 3, 12, 8, 10, 24
	wide := optest.Cast[float32](optest.Normals("w", h*(n+v)*r, 1))
	for i := range wide {
		wide[i] = float32(int(wide[i]*16)) / 16 // both 16-bit types hold it
	}
	var want [][]float32
	for _, stored := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
		ps := graph.NewParams()
		p, err := ps.Add("w", graph.T(stored, h*(n+v), r), false)
		require.NoError(t, err)
		store(p, wide)
		b := graph.New(graph.Share(ps))
		w := b.Param("w", h*(n+v), r)
		q := ops.LatentQuery(b.Input("q", dtype.Float32, tokens, h, n+shared), w, n, v)
		o := ops.LatentValue(b.Input("o", dtype.Float32, tokens, h, r), w, n, v)
		require.NoError(t, b.Err())
		plan, err := b.Plan(q, o)
		require.NoError(t, err)
		e, err := plan.Native()
		require.NoError(t, err)
		require.NoError(t, e.Do(context.Background(), graph.Feeds{
			"q": optest.Cast[float32](optest.Normals("q", tokens*h*(n+shared), 1)), "o": optest.Cast[float32](optest.Normals("o", tokens*h*r, 1))}))
		var got [][]float32
		for _, x := range []*graph.Node{q, o} {
			y, err := e.Value(x)
			require.NoError(t, err)
			got = append(got, append([]float32(nil), graph.Data[float32](y)...))
		}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got, "%s", stored)
	}
}

// TestPanelsFollowTheirWeight: a plan whose weights have panels gives the same
// bits, and those of the new value when a weight changes. The memory of a weight
// in a file is given back once it has panels.
func TestPanelsFollowTheirWeight(t *testing.T) {
	const n, k, m = 96, 96, 53
	fits := native.CodedBF16.Panels(n, k) > 0
	for _, stored := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		ps := graph.NewParams()
		weight := func(name string) *graph.Param {
			p, err := ps.Add(name, graph.T(stored, n, k), false)
			require.NoError(t, err)
			return p
		}
		set := func(p *graph.Param, seed string) { store(p, optest.Cast[float32](optest.Normals(seed, n*k, 1))) }
		a, c := weight("a"), weight("c")
		set(a, "a")
		set(c, "c")
		x := optest.Cast[float32](optest.Normals("x", m*k, 1))
		forgot := 0
		a.Forget = func() { forgot++ }
		run := func(panels bool) (out [][]byte) {
			b := graph.New(graph.Share(ps))
			in, few := b.Input("x", dtype.Float32, m, k), b.Input("few", dtype.Float32, 2, k)
			outs := []*graph.Node{ops.Linear(in, b.Param("a", n, k)), ops.Linear(in, b.Param("c", n, k)), ops.Linear(few, b.Param("c", n, k))}
			if stored == dtype.BFloat16 {
				outs = append(outs, ops.BF16Linear(in, b.Param("a", n, k)), ops.BF16Linear(few, b.Param("a", n, k)), ops.BF16Linear(few, b.Param("c", n, k)))
			}
			plan, err := b.Plan(outs...)
			require.NoError(t, err)
			if panels {
				ops.FillPanels(plan, 0.5)
			}
			r, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			require.NoError(t, r.Do(context.Background(), graph.Feeds{"x": x, "few": x[:2*k]}))
			for _, o := range plan.Outputs {
				value, err := r.Value(o)
				require.NoError(t, err)
				out = append(out, append([]byte(nil), value.Bytes()...))
			}
			return out
		}
		want := run(false)
		ops.FillPanels(nil, 0.5)
		require.Equal(t, want, run(true))
		require.Equal(t, fits, forgot == 1)
		set(c, "another")
		stale := run(false)
		require.Equal(t, want[0], stale[0])
		require.NotEqual(t, want[1], stale[1], "panels of the old value are not used")
		require.Equal(t, stale, run(true))

		set(a, "another")
		b := graph.New(graph.Share(ps))
		plan, err := b.Plan(ops.Linear(b.Input("x", dtype.Float32, m, k), b.Param("a", n, k)))
		require.NoError(t, err)
		ps.Close()
		before := forgot
		ops.FillPanels(plan, 0.5)
		require.Equal(t, before, forgot, "weights of a closed model are not read")
	}
}

// TestFP8LinearsOfOneX: linears on stored codes that run together, and one among
// them that does not, have the bits of each alone.
func TestFP8LinearsOfOneX(t *testing.T) {
	const k = 256
	ps := graph.NewParams()
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "c", "d", "e", "f"}
	for i, name := range names {
		n := 48 + 40*i
		w, err := ps.Add(name, graph.T(dtype.Float8E4M3, n, k), false)
		require.NoError(t, err)
		for j := range w.Tensor().Bytes() {
			w.Tensor().Bytes()[j] = byte(r.IntN(0x70) | r.IntN(2)<<7)
		}
		w.Touch()
		steps, err := ps.Add(name+"_scale_inv", graph.T(dtype.Float32, (n+127)/128, k/128), false)
		require.NoError(t, err)
		for j := range graph.Data[float32](steps.Tensor()) {
			graph.Data[float32](steps.Tensor())[j] = r.Float32()
		}
		steps.Touch()
	}
	for _, m := range []int{1, 6, 40} {
		x := optest.Cast[float32](optest.Normals("x", m*k, 1))
		run := func(names ...string) (out [][]float32) {
			b := graph.New(graph.Share(ps))
			in := b.Input("x", dtype.Float32, m, k)
			var ys []*graph.Node
			for _, name := range names {
				o := ops.FP8WeightLinearOp{}
				if name == "c" {
					o.Activations = ops.StepPerRow
				}
				p := ps.Get(name)
				ys = append(ys, ops.FP8WeightLinear(in, b.Param(name, p.Type.Shape...), o))
			}
			plan, err := b.Plan(ys...)
			require.NoError(t, err)
			e, err := plan.Native(graph.Poison())
			require.NoError(t, err)
			require.NoError(t, e.Do(context.Background(), graph.Feeds{"x": x}))
			for _, y := range ys {
				v, err := e.Value(y)
				require.NoError(t, err)
				out = append(out, append([]float32(nil), graph.Data[float32](v)...))
			}
			return out
		}
		all := run(names...)
		for i, name := range names {
			require.Equal(t, run(name)[0], all[i], "%s, %d rows", name, m)
		}
	}
}

// TestQuantizedCopiesAreOfTheValueThatIsRead: the codes that two executors keep with a
// weight are each of the value that it reads, whichever runs first.
func TestQuantizedCopiesAreOfTheValueThatIsRead(t *testing.T) {
	const m, k, n = 3, 64, 48
	x := optest.Cast[float32](optest.Normals("x", m*k, 1))
	for _, o := range []ops.FP8WeightLinearOp{{}, {Activations: ops.StepPerRow}} {
		run := func(b *graph.Builder) func() []float32 {
			plan, err := b.Plan(ops.FP8WeightLinear(b.Input("x", dtype.Float32, m, k), b.Param("w", n, k), o))
			require.NoError(t, err)
			r, err := plan.Native()
			require.NoError(t, err)
			return func() []float32 {
				require.NoError(t, r.Do(context.Background(), graph.Feeds{"x": x}))
				v, err := r.Value(plan.Outputs[0])
				require.NoError(t, err)
				return append([]float32(nil), graph.Data[float32](v)...)
			}
		}
		var wants [2][]float32
		for i, seed := range []string{"old", "new"} { // each alone
			ps := graph.NewParams()
			p, err := ps.Add("w", graph.T(dtype.Float32, n, k), false)
			require.NoError(t, err)
			store(p, optest.Cast[float32](optest.Normals(seed, n*k, 1)))
			wants[i] = run(graph.New(graph.Share(ps)))()
		}
		ps := graph.NewParams()
		p, err := ps.Add("w", graph.T(dtype.Float32, n, k), false)
		require.NoError(t, err)
		store(p, optest.Cast[float32](optest.Normals("old", n*k, 1)))
		before := run(graph.New(graph.Share(ps)))
		value := graph.NewTensor(p.Type)
		copy(graph.Data[float32](value), optest.Cast[float32](optest.Normals("new", n*k, 1)))
		require.NoError(t, p.Store(dtype.Float32, value.Bytes()))
		after := run(graph.New(graph.Share(ps)))
		for range 2 {
			require.Equal(t, wants[0], before(), "%+v", o)
			require.Equal(t, wants[1], after(), "%+v", o)
		}
	}
}
