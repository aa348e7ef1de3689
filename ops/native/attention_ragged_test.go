package native

import (
	"fmt"
	"math"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

// raggedRun runs packed sequences forward and backward, with extra rows behind
// them that belong to none.
func raggedRun[T Float](t *testing.T, a optest.Attention, qo, kv []int32, extra int, q, k, v, dout, dlse []float64) AttentionGradArgs[T] {
	t.Helper()
	n := len(qo) - 1
	dense := a
	dense.B, dense.Lq, dense.Lk = 1, int(qo[n])+extra, int(kv[n])+extra
	pad := func(x []float64, width int) []float64 {
		return append(append([]float64(nil), x...), optest.Poison(make([]float64, extra*width))...)
	}
	heads := func(x []float64) []float64 { // lse [Hq,T] to [Hq,T+extra]
		var y []float64
		for h := range a.Hq {
			y = append(y, pad(x[h*int(qo[n]):(h+1)*int(qo[n])], 1)...)
		}
		return y
	}
	r := newAttnRun[T](dense, pad(q, a.Hq*a.D), pad(k, a.Hkv*a.D), pad(v, a.Hkv*a.Dv), pad(dout, a.Hq*a.Dv), heads(dlse))
	r.args.B, r.args.QIndptr, r.args.KVIndptr = n, qo, kv
	r.run(t)
	return r.args
}

func TestRaggedAttentionAgainstOracle(t *testing.T) {
	type lengths struct{ q, k []int32 }
	plain := optest.Attention{Hq: 4, Hkv: 2, D: 8, Dv: 5, Causal: true}
	special := plain
	special.Window, special.Softcap, special.Sinks = 50, 4, []float64{0, 1, 2, -1}
	full := plain
	full.Causal = false
	var worst32, worst64 float64
	for name, a := range map[string]optest.Attention{"causal": plain, "special": special, "full": full} {
		for i, l := range []lengths{
			{[]int32{1}, []int32{1}},
			{[]int32{15, 0, 63, 1}, []int32{15, 4, 63, 0}},
			{[]int32{0, 65, 129, 0}, []int32{0, 65, 200, 0}},
			{[]int32{70, 10, 130}, []int32{70, 10, 130}},
			{[]int32{9, 20}, []int32{5, 3}},
		} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				qo, kv := Indptr(l.q), Indptr(l.k)
				n := len(l.q)
				tq, tk := int(qo[n]), int(kv[n])
				q, k := optest.Normals(t.Name()+"q", tq*a.Hq*a.D, 1), optest.Normals(t.Name()+"k", tk*a.Hkv*a.D, 1)
				v, dout := optest.Normals(t.Name()+"v", tk*a.Hkv*a.Dv, 1), optest.Normals(t.Name()+"do", tq*a.Hq*a.Dv, 1)
				dlse := optest.Normals(t.Name()+"dl", tq*a.Hq, 1)
				truth := optest.Ragged{Attention: a, QO: qo, KV: kv}
				out, lse := truth.Forward(q, k, v)
				dq, dk, dv, dsinks := truth.Backward(q, k, v, dout, dlse)
				const extra = 3
				g32 := raggedRun[float32](t, a, qo, kv, extra, q, k, v, dout, dlse)
				g64 := raggedRun[float64](t, a, qo, kv, extra, q, k, v, dout, dlse)
				var lse32, rest []float32
				for h := range a.Hq {
					at := h * (tq + extra)
					lse32 = append(lse32, g32.LSE[at:at+tq]...)
					rest = append(rest, g32.LSE[at+tq:at+tq+extra]...)
				}
				for _, x := range rest {
					require.True(t, math.IsInf(float64(x), -1))
				}
				optest.RequireClose(t, "lse", lse32, lse, optest.Float32, attnBound)
				for _, x := range []struct {
					name  string
					got32 []float32
					got64 []float64
					want  []float64
				}{{"out", g32.Out, g64.Out, out}, {"dq", g32.DQ, g64.DQ, dq}, {"dk", g32.DK, g64.DK, dk}, {"dv", g32.DV, g64.DV, dv}, {"dsinks", g32.DSinks, g64.DSinks, dsinks}} {
					require.Equal(t, make([]float32, len(x.got32)-len(x.want)), append([]float32{}, x.got32[len(x.want):]...), x.name)
					d := optest.RequireClose(t, x.name, x.got32[:len(x.want)], x.want, optest.Float32, attnBound)
					worst32 = max(worst32, d.RMS/float64(optest.Float32))
					d = optest.RequireClose(t, x.name, x.got64[:len(x.want)], x.want, optest.Float64, attnBound)
					worst64 = max(worst64, d.RMS/float64(optest.Float64))
				}
			})
		}
	}
	t.Logf("largest rms error in unit roundoffs: float32 %.2f, float64 %.2f", worst32, worst64)
}

// Packed documents give the bits of the documents apart, empty ones among them.
func TestA08_EmptyRaggedSequences(t *testing.T) {
	a := optest.Attention{Hq: 9, Hkv: 3, D: 8, Dv: 8, Causal: true}
	qo, kv := Indptr([]int32{0, 1, 0, 1}), Indptr([]int32{0, 3, 0, 5})
	q, k, v := optest.Normals("q", 2*9*8, 1), optest.Normals("k", 8*3*8, 1), optest.Normals("v", 8*3*8, 1)
	dout, dlse := optest.Normals("do", 2*9*8, 1), optest.Normals("dl", 2*9, 1)
	all := raggedRun[float32](t, a, qo, kv, 0, q, k, v, dout, dlse)
	for i, r := range []int{1, 3} {
		n := kv[r+1] - kv[r]
		var dl []float64
		for h := range 9 {
			dl = append(dl, dlse[h*2+i])
		}
		kvOf := func(x []float64) []float64 { return x[int(kv[r])*24 : int(kv[r+1])*24] }
		one := raggedRun[float32](t, a, []int32{0, 1}, []int32{0, n}, 0, q[i*72:(i+1)*72], kvOf(k), kvOf(v), dout[i*72:(i+1)*72], dl)
		require.Equal(t, one.Out, all.Out[i*72:(i+1)*72])
		require.Equal(t, one.DQ, all.DQ[i*72:(i+1)*72])
		require.Equal(t, one.DK, all.DK[int(kv[r])*24:int(kv[r+1])*24])
		require.Equal(t, one.DV, all.DV[int(kv[r])*24:int(kv[r+1])*24])
	}
}

func TestMergeStates(t *testing.T) {
	a := optest.Attention{B: 2, Lq: 3, Lk: 20, Hq: 4, Hkv: 2, D: 8, Dv: 5}
	q := optest.Normals("q", a.B*a.Lq*a.Hq*a.D, 1)
	k := optest.Normals("k", a.B*a.Lk*a.Hkv*a.D, 1)
	v := optest.Normals("v", a.B*a.Lk*a.Hkv*a.Dv, 1)
	whole := runAttention(t, a, q, k, v, nil)
	for cut := range a.Lk + 1 { // split in any place, the ends included
		part := func(from, to int) AttentionState[float32] {
			p := a
			p.Mask, p.MaskShape = make([]bool, a.B*a.Lk), []int{a.B, a.Lk}
			for b := range a.B {
				for j := from; j < to; j++ {
					p.Mask[b*a.Lk+j] = true
				}
			}
			r := runAttention(t, p, q, k, v, nil)
			return AttentionState[float32]{r.Out, r.LSE}
		}
		x, y := part(0, cut), part(cut, a.Lk)
		MergeStates(x, x, y, a.B, a.Lq, a.Hq, a.Dv)
		optest.RequireClose(t, "out", x.Out, optest.Float64s(whole.Out), optest.Float32, 4)
		optest.RequireClose(t, "lse", x.LSE, optest.Float64s(whole.LSE), optest.Float32, 4)
		if cut == 0 || cut == a.Lk {
			require.Equal(t, whole.Out, x.Out)
			require.Equal(t, whole.LSE, x.LSE)
		}
	}
}

func TestMergeStatesAgainstOracle(t *testing.T) {
	const rows, dv = 70, 3
	inf := math.Inf(-1)
	outs := [][]float64{optest.Normals("a", rows*dv, 1), optest.Normals("c", rows*dv, 1)}
	lses := [][]float64{optest.Normals("la", rows, 3), optest.Normals("lc", rows, 3)}
	lses[0][1], lses[1][2], lses[0][3], lses[1][3] = inf, inf, inf, inf
	outs[0][1*dv], outs[1][2*dv], outs[0][3*dv] = nan, nan, nan // of states that take no part
	lses[0][4], lses[1][4] = 1000, -1000
	dout, dlse := optest.Normals("do", rows*dv, 1), optest.Normals("dl", rows, 1)
	out, lse := optest.MergeStates(outs, lses, dv)
	douts, dlses := optest.MergeStatesGrad(outs, lses, dv, dout, dlse)

	fresh := func() AttentionState[float64] {
		return AttentionState[float64]{optest.Poison(make([]float64, rows*dv)), optest.Poison(make([]float64, rows))}
	}
	to, da, dc := fresh(), fresh(), fresh()
	a, c := AttentionState[float64]{outs[0], lses[0]}, AttentionState[float64]{outs[1], lses[1]}
	MergeStates(to, a, c, 1, 1, rows, dv)
	MergeStatesGrad(da, dc, to, a, c, dout, dlse, 1, 1, rows, dv)
	optest.RequireClose(t, "out", to.Out, out, optest.Float64, 4)
	optest.RequireClose(t, "lse", to.LSE, lse, optest.Float64, 4)
	for i, d := range []AttentionState[float64]{da, dc} {
		optest.RequireClose(t, "dout", d.Out, douts[i], optest.Float64, 4)
		optest.RequireClose(t, "dlse", d.LSE, dlses[i], optest.Float64, 8)
	}
}

func TestRaggedWorkMap(t *testing.T) {
	indptr := Indptr([]int32{70, 10, 130})
	require.Equal(t, []int32{0, 70, 80, 210}, indptr)
	m := RaggedWorkMap(indptr, 64)
	require.Equal(t, []int32{0, 0, 1, 2, 2, 2}, m.Request)
	require.Equal(t, []int32{0, 1, 0, 0, 1, 2}, m.Index)
	m = RaggedWorkMap([]int32{0, 0, 64, 64, 65}, 64)
	require.Equal(t, []int32{1, 3}, m.Request)
	require.Empty(t, RaggedWorkMap([]int32{0}, 64).Request)
	require.Empty(t, RaggedWorkMap(nil, 64).Request)
}

func TestPlanKVSplits(t *testing.T) {
	for _, c := range []struct {
		name               string
		lengths            []int32
		heads, slots, unit int
		keys               int
		indptr             []int32
	}{
		{"one short request is not cut", []int32{64}, 8, 264, 64, 64, []int32{0, 1}},
		{"one long request fills the machine", []int32{4096}, 8, 264, 64, 128, []int32{0, 32}},
		{"a full machine is not cut", []int32{4096, 4096, 4096, 4096}, 8, 32, 64, 4096, []int32{0, 1, 2, 3, 4}},
		{"more requests than slots", []int32{100, 100, 100}, 8, 8, 64, 128, []int32{0, 1, 2, 3}},
		{"a long one among short ones", []int32{32768, 512, 0}, 1, 34, 64, 1024, []int32{0, 32, 33, 34}},
		{"no keys", []int32{0, 0}, 2, 100, 64, 64, []int32{0, 1, 2}},
		{"no requests", nil, 2, 100, 64, 64, []int32{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := PlanKVSplits(c.lengths, c.heads, c.slots, c.unit)
			require.Equal(t, c.keys, s.Keys)
			require.Equal(t, c.indptr, s.Indptr)
			n := int(s.Indptr[len(c.lengths)]) * c.heads
			require.LessOrEqual(t, n, max(c.slots, len(c.lengths)*c.heads), "the fixed grid holds all splits")
			most := 0
			for r, l := range c.lengths {
				splits := int(s.Indptr[r+1] - s.Indptr[r])
				require.GreaterOrEqual(t, splits*s.Keys, int(l))
				most = max(most, splits)
			}
			require.Equal(t, most, s.Most())
		})
	}
}

// A mask of packed sequences is indexed by the packed query.
func TestRaggedMask(t *testing.T) {
	a := optest.Attention{B: 1, Hq: 2, Hkv: 1, D: 4, Dv: 4}
	lengths := []int32{5, 8}
	indptr := Indptr(lengths)
	const most = 8
	keep := optest.Bools("m", 13*most, 0.6)
	n := func(name string, size int) []float64 { return optest.Normals(name, size, 1) }
	q, k, v := n("q", 13*8), n("k", 13*4), n("v", 13*4)
	all := optest.Attention{B: 1, Lq: 13, Lk: 13, Hq: 2, Hkv: 1, D: 4, Dv: 4}
	r := newAttnRun[float32](all, q, k, v, nil, nil)
	r.args.B, r.args.QIndptr, r.args.KVIndptr = 2, indptr, indptr
	r.args.Mask = AttentionMask{Keep: keep, Q: most, K: 1}
	r.run(t)
	for s, l := range lengths {
		from, to := int(indptr[s]), int(indptr[s+1])
		one := a
		one.Lq, one.Lk, one.MaskShape = int(l), int(l), []int{1, int(l), int(l)}
		for i := from; i < to; i++ {
			one.Mask = append(one.Mask, keep[i*most:i*most+int(l)]...)
		}
		got := runAttention(t, one, q[from*8:to*8], k[from*4:to*4], v[from*4:to*4], nil)
		require.Equal(t, got.Out, r.args.Out[from*8:to*8])
	}
}
