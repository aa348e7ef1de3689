package native

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// vectors reads testdata/kda.json: numbers of an independent float64
// implementation, tensors as {shape, data}.
type vectors map[string]json.RawMessage

func kdaVectors(t *testing.T) vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/kda.json")
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(raw, &v))
	return v
}

func (v vectors) group(t *testing.T, key string) vectors {
	t.Helper()
	var g vectors
	require.Contains(t, v, key)
	require.NoError(t, json.Unmarshal(v[key], &g))
	return g
}

func (v vectors) data(t *testing.T, key string) []float64 {
	t.Helper()
	var x struct {
		Shape []int
		Data  []float64
	}
	require.Contains(t, v, key)
	require.NoError(t, json.Unmarshal(v[key], &x))
	n := 1
	for _, d := range x.Shape {
		n *= d
	}
	require.Len(t, x.Data, n, key)
	return x.Data
}

func (v vectors) number(t *testing.T, key string) float64 {
	t.Helper()
	var x float64
	require.NoError(t, json.Unmarshal(v[key], &x))
	return x
}

func (v vectors) cu(t *testing.T, key string) []int32 {
	t.Helper()
	var x []int32
	require.NoError(t, json.Unmarshal(v[key], &x))
	return x
}

// as converts float64 data to the element type of a body.
func as[T Float](x []float64) []T {
	if x == nil {
		return nil
	}
	y := make([]T, len(x))
	for i, v := range x {
		y[i] = T(v)
	}
	return y
}

// near compares with float64 truth: float64 to 1e-12 of the largest value (and
// never less than 1e-12), float32 by rms to c unit roundoffs, with no NaN and
// with the guard behind got untouched.
func near[T Float](t *testing.T, name string, got []T, want []float64, c float64) {
	t.Helper()
	require.Len(t, got, len(want), name)
	requireGuard(t, got)
	top := 1.0
	for i, w := range want {
		require.Falsef(t, math.IsNaN(float64(got[i])), "%s: NaN at %d", name, i)
		top = max(top, math.Abs(w))
	}
	var z T
	if _, ok := any(z).(float64); ok {
		for i, w := range want {
			require.InDeltaf(t, w, float64(got[i]), 1e-12*top, "%s at %d", name, i)
		}
		return
	}
	size := 0.0
	for _, w := range want {
		size += w * w
	}
	if math.Sqrt(size/float64(max(len(want), 1))) < 1e-12 { // 0 but for the rounding of the oracle
		for i := range got {
			require.LessOrEqualf(t, math.Abs(float64(got[i])), 1e-6, "%s at %d", name, i)
		}
		return
	}
	e := rms(got, want) / 0x1p-24
	t.Logf("%s: %.2f unit roundoffs", name, e)
	require.LessOrEqualf(t, e, c, "%s: rms error in unit roundoffs", name)
}

// both runs a test for float32 and float64.
func both(t *testing.T, f32, f64 func(t *testing.T)) {
	t.Run("float32", f32)
	t.Run("float64", f64)
}

// tailColumns drops the first of w columns.
func tailColumns(x []float64, w int) []float64 {
	var y []float64
	for i := 0; i < len(x); i += w {
		y = append(y, x[i+1:i+w]...)
	}
	return y
}

func TestKDAVectorsConv(t *testing.T) { both(t, testVectorsConv[float32], testVectorsConv[float64]) }

func testVectorsConv[T Float](t *testing.T) {
	v := kdaVectors(t).group(t, "conv")
	s := ShortConvShape{Seqs: 1, Tokens: 6, Channels: 5, Width: 4}
	x, w, state := as[T](v.data(t, "x")), as[T](v.data(t, "w")), as[T](tailColumns(v.data(t, "state0"), 4))
	y, next := nans[T](30), nans[T](15)
	ShortConv(y, next, x, w, state, s)
	near(t, "y", y, v.data(t, "y"), 2)
	near(t, "state", next, tailColumns(v.data(t, "state"), 4), 0)

	dx, dw, dstate := nans[T](30), nans[T](20), nans[T](15)
	ShortConvGrad(dx, dw, dstate, as[T](v.data(t, "dy")), nil, x, w, state, s)
	near(t, "dx", dx, v.data(t, "dx"), 4)
	near(t, "dw", dw, v.data(t, "dw"), 4)
	near(t, "dstate", dstate, tailColumns(v.data(t, "dstate0"), 4), 4)
}

func TestKDAVectorsGate(t *testing.T) { both(t, testVectorsGate[float32], testVectorsGate[float64]) }

func testVectorsGate[T Float](t *testing.T) {
	all := kdaVectors(t)
	v := all.group(t, "gate")
	z, aLog, dt, dg := as[T](v.data(t, "z")), as[T](v.data(t, "A_log")), as[T](v.data(t, "dt_bias")), as[T](v.data(t, "dg"))
	for form, bound := range map[string]float64{"softplus": 0, "lower_bound_-5": -5} {
		want := v.group(t, form)
		g := nans[T](24)
		KDAGate(g, z, aLog, dt, 4, 2, 3, bound)
		near(t, form+" g", g, want.data(t, "g"), 4)
		dz, da, ddt := nans[T](24), nans[T](2), nans[T](6)
		KDAGateGrad(dz, da, ddt, dg, z, aLog, dt, 4, 2, 3, bound)
		near(t, form+" dz", dz, want.data(t, "dz"), 4)
		near(t, form+" dA_log", da, want.data(t, "dA_log"), 4)
		near(t, form+" ddt_bias", ddt, want.data(t, "ddt_bias"), 4)
	}
	v = all.group(t, "gate_extremes")
	x := as[T](v.data(t, "x"))
	for key, bound := range map[string]float64{"softplus_A1": 0, "lower_bound_-5_A1": -5} {
		g := nans[T](len(x))
		KDAGate(g, x, nil, nil, len(x), 1, 1, bound)
		want := v.data(t, key)
		near(t, key, g, want, 2)
		for i, w := range want { // the tails keep their digits, where the type has them
			require.InDeltaf(t, w, float64(g[i]), 2.4e-7*math.Abs(w)+0x1p-126, "%s at x = %v", key, x[i])
			require.LessOrEqual(t, float64(g[i]), 0.0)
		}
	}
}

func TestKDAVectorsNorms(t *testing.T) { both(t, testVectorsNorms[float32], testVectorsNorms[float64]) }

func testVectorsNorms[T Float](t *testing.T) {
	all := kdaVectors(t)
	v := all.group(t, "l2norm")
	x := as[T](v.data(t, "x"))
	y, dx := nans[T](16), nans[T](16)
	L2Norm(y, x, 4, 4, v.number(t, "eps"))
	near(t, "l2 y", y, v.data(t, "y"), 1)
	for i, r := range v.data(t, "rstd") {
		require.InDeltaf(t, r*float64(x[4*i]), float64(y[4*i]), 1e-7, "row %d", i)
	}
	L2NormGrad(dx, as[T](v.data(t, "dy")), x, 4, 4, 1e-6)
	near(t, "l2 dx", dx, v.data(t, "dx"), 2)

	v = all.group(t, "o_norm")
	x = as[T](v.data(t, "x"))
	gate, w := as[T](v.data(t, "gate")), as[T](v.data(t, "w"))
	y, dx = nans[T](12), nans[T](12)
	dgate, dw := nans[T](12), nans[T](4)
	GatedRMSNorm(y, x, gate, w, 3, 4, v.number(t, "eps"))
	near(t, "o y", y, v.data(t, "y"), 2)
	GatedRMSNormGrad(dx, dgate, dw, as[T](v.data(t, "dy")), x, gate, w, 3, 4, 1e-5)
	near(t, "o dx", dx, v.data(t, "dx"), 4)
	near(t, "o dgate", dgate, v.data(t, "dgate"), 4)
	near(t, "o dw", dw, v.data(t, "dw"), 4)
}

// kdaForm is one of the two forms of the core.
type kdaForm[T Float] struct {
	name    string
	forward func(o, st, checkpoints []T, k KDA[T])
	grad    func(g KDAGrads[T], do, dst, checkpoints []T, k KDA[T])
	chunk   int
}

func kdaForms[T Float]() []kdaForm[T] {
	return []kdaForm[T]{
		{"recurrent", KDARecurrent[T], KDARecurrentGrad[T], 16},
		{"chunked", KDAChunked[T], KDAChunkedGrad[T], 64},
		{"chunked by 32", KDAChunked[T], KDAChunkedGrad[T], 32},
		{"chunked by 16", KDAChunked[T], KDAChunkedGrad[T], 16},
	}
}

// vectorCall reads the operands of a group; q and k are normalised here where
// the vector says so.
func vectorCall[T Float](t *testing.T, v vectors, h, hv, dk, dv int) KDA[T] {
	t.Helper()
	k := KDA[T]{
		Q: as[T](v.data(t, "q")), K: as[T](v.data(t, "k")), V: as[T](v.data(t, "v")), G: as[T](v.data(t, "g")),
		Beta: as[T](v.data(t, "beta")), S0: as[T](v.data(t, "h0")),
		Seqs: 1, H: h, HV: hv, DK: dk, DV: dv, Scale: v.number(t, "scale"),
	}
	k.Tokens = len(k.Beta) / hv
	if v["cu_seqlens"] != nil {
		k.Cu = v.cu(t, "cu_seqlens")
		k.Seqs = len(k.Cu) - 1
	}
	k.Q, k.K = normalised(k.Q, dk), normalised(k.K, dk)
	return k
}

func normalised[T Float](x []T, d int) []T {
	y := make([]T, len(x))
	L2Norm(y, x, len(x)/d, d, 1e-6)
	return y
}

// Acceptance for the core: float32 within 1e-5 (o, states) and 1e-4
// (gradients), in unit roundoffs. Measured: at most 5, and 67 for the sums over
// tokens of both signs (dA_log, ddt_bias), 25 for the others.
const (
	outBound  = 1e-5 / 0x1p-24
	gradBound = 1e-4 / 0x1p-24
)

func TestKDAVectorsCore(t *testing.T) { both(t, testVectorsCore[float32], testVectorsCore[float64]) }

func testVectorsCore[T Float](t *testing.T) {
	all := kdaVectors(t)
	for _, form := range kdaForms[T]() {
		for _, c := range []struct {
			key              string
			h, hv, dk, dv, n int
		}{{"seq70", 2, 2, 4, 3, 1}, {"varlen2", 2, 2, 4, 3, 2}, {"strong_decay", 1, 1, 4, 2, 1}} {
			t.Run(form.name+"/"+c.key, func(t *testing.T) {
				v := all.group(t, c.key)
				k := vectorCall[T](t, v, c.h, c.hv, c.dk, c.dv)
				k.Chunk = form.chunk
				o, st := nans[T](len(k.V)), nans[T](len(k.S0))
				form.forward(o, st, nil, k)
				near(t, "o", o, v.data(t, "o"), outBound)
				near(t, "ht", st, v.data(t, "ht"), outBound)
			})
		}
		t.Run(form.name+"/varlen3_empty", func(t *testing.T) {
			v2, v3 := all.group(t, "varlen2"), all.group(t, "varlen3_empty")
			k := vectorCall[T](t, v2, 2, 2, 4, 3)
			k.Chunk = form.chunk
			k.Cu = v3.cu(t, "cu_seqlens")
			empty := as[T](v3.data(t, "h0_empty"))
			k.S0 = append(append(append([]T{}, k.S0[:24]...), empty...), k.S0[24:]...)
			o, st := nans[T](len(k.V)), nans[T](len(k.S0))
			form.forward(o, st, nil, k)
			near(t, "o", o, v2.data(t, "o"), outBound)
			near(t, "ht", st, v3.data(t, "ht"), outBound)
			requireSameBits(t, empty, st[24:48])
		})
		t.Run(form.name+"/correlated_keys", func(t *testing.T) {
			v := all.group(t, "correlated_keys")
			k := KDA[T]{Q: as[T](v.data(t, "q")), V: as[T](v.data(t, "v")), Seqs: 1, Tokens: 64, H: 1, HV: 1, DK: 4, DV: 2,
				Scale: v.number(t, "scale"), Chunk: form.chunk}
			for range 64 {
				k.K = append(k.K, .5, .5, -.5, .5)
				k.G = append(k.G, -1./1024, -1./1024, -1./1024, -1./1024)
				k.Beta = append(k.Beta, 1)
			}
			o, st := nans[T](128), nans[T](8)
			form.forward(o, st, nil, k)
			near(t, "o", o, v.data(t, "o"), outBound)
			near(t, "ht", st, v.data(t, "ht"), outBound)
		})
		for gate, bound := range map[string]float64{"softplus": 0, "lower_bound_-5": -5} {
			t.Run(form.name+"/grads/"+gate, func(t *testing.T) { testVectorsGrads(t, all.group(t, "grads"), gate, bound, form) })
		}
	}
}

// testVectorsGrads runs the pieces of a layer from raw inputs and back.
func testVectorsGrads[T Float](t *testing.T, v vectors, gate string, bound float64, form kdaForm[T]) {
	const T21, H, K, V = 21, 2, 4, 3
	want := v.group(t, gate)
	raw := func(key string) []T { return as[T](v.data(t, key)) }
	z, aLog, dt, logit := raw("z"), raw("A_log"), raw("dt_bias"), raw("beta_logit")
	k := KDA[T]{V: raw("v"), S0: raw("h0"), Seqs: 1, Tokens: T21, H: H, HV: H, DK: K, DV: V, Scale: v.number(t, "scale"), Chunk: form.chunk}
	q, kk, qn, kn := raw("q"), raw("k"), nans[T](T21*H*K), nans[T](T21*H*K)
	L2Norm(qn, q, T21*H, K, 1e-6)
	L2Norm(kn, kk, T21*H, K, 1e-6)
	k.Q, k.K = qn, kn
	k.G, k.Beta = nans[T](T21*H*K), nans[T](T21*H)
	KDAGate(k.G, z, aLog, dt, T21, H, K, bound)
	KDABeta(k.Beta, logit, T21*H, 1)
	o, st := nans[T](T21*H*V), nans[T](H*K*V)
	states := nans[T](KDACheckpoints(1, T21, form.chunk) * H * K * V)
	form.forward(o, st, states, k)
	near(t, "o", o, want.data(t, "o"), outBound)
	near(t, "ht", st, want.data(t, "ht"), outBound)

	g := kdaGradBuffers(k)
	form.grad(g, raw("do"), raw("dht"), states, k)
	near(t, "core_dqn", g.Q, want.data(t, "core_dqn"), gradBound)
	near(t, "core_dkn", g.K, want.data(t, "core_dkn"), gradBound)
	near(t, "dv", g.V, want.data(t, "dv"), gradBound)
	near(t, "core_dg", g.G, want.data(t, "core_dg"), gradBound)
	near(t, "core_dbeta", g.Beta, want.data(t, "core_dbeta"), gradBound)
	near(t, "dh0", g.S0, want.data(t, "dh0"), gradBound)

	dq, dk := nans[T](T21*H*K), nans[T](T21*H*K)
	L2NormGrad(dq, g.Q, q, T21*H, K, 1e-6)
	L2NormGrad(dk, g.K, kk, T21*H, K, 1e-6)
	near(t, "dq", dq, want.data(t, "dq"), gradBound)
	near(t, "dk", dk, want.data(t, "dk"), gradBound)
	dz, da, ddt := nans[T](T21*H*K), nans[T](H), nans[T](H*K)
	KDAGateGrad(dz, da, ddt, g.G, z, aLog, dt, T21, H, K, bound)
	near(t, "dz", dz, want.data(t, "dz"), gradBound)
	near(t, "dA_log", da, want.data(t, "dA_log"), gradBound)
	near(t, "ddt_bias", ddt, want.data(t, "ddt_bias"), gradBound)
	db := nans[T](T21 * H)
	KDABetaGrad(db, g.Beta, logit, T21*H, 1)
	near(t, "dbeta_logit", db, want.data(t, "dbeta_logit"), gradBound)
}

func kdaGradBuffers[T Float](k KDA[T]) KDAGrads[T] {
	return KDAGrads[T]{Q: nans[T](len(k.Q)), K: nans[T](len(k.K)), V: nans[T](len(k.V)), G: nans[T](len(k.G)),
		Beta: nans[T](len(k.Beta)), S0: nans[T](k.seg().n * k.HV * k.DK * k.DV)}
}

// The oracle itself is held to the published chunk matrices.
func TestKDAVectorsChunkMatrices(t *testing.T) {
	all := kdaVectors(t)
	v, want := all.group(t, "seq70"), all.group(t, "seq70_chunk0_head0_C16")
	k := vectorCall[float64](t, v, 2, 2, 4, 3)
	got := optest.KDA{Q: k.Q, K: k.K, V: k.V, G: k.G, Beta: k.Beta, S0: k.S0, H: 2, HV: 2, DK: 4, DV: 3, Scale: .5}.ChunkForm(0, 16)
	for key, x := range map[string][]float64{"G": got.G, "m": got.M, "P": got.P, "T": got.T, "U": got.U, "W": got.W, "Vn": got.Vn, "S_next": got.Next} {
		for i, w := range want.data(t, key) {
			require.InDeltaf(t, w, x[i], 1e-13, "%s at %d", key, i)
		}
	}
}
