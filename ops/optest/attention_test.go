package optest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func (a Attention) data(name string) (q, k, v []float64) {
	return Normals(name+" q", a.B*a.Lq*a.Hq*a.D, 1), Normals(name+" k", a.B*a.Lk*a.Hkv*a.D, 1), Normals(name+" v", a.B*a.Lk*a.Hkv*a.Dv, 1)
}

func TestA01_FullyMaskedRow(t *testing.T) {
	padding := []bool{false, true} // key 0 is padding, so causal leaves row 0 nothing
	for name, a := range map[string]Attention{
		"mask":               {B: 1, Lq: 2, Lk: 2, Hq: 1, Hkv: 1, D: 32, Dv: 32, Mask: []bool{false, true, false, false}, MaskShape: []int{1, 2, 2}},
		"causal and padding": {B: 1, Lq: 2, Lk: 2, Hq: 1, Hkv: 1, D: 32, Dv: 32, Causal: true, Mask: padding, MaskShape: []int{1, 2}},
		"with a sink":        {B: 1, Lq: 2, Lk: 2, Hq: 1, Hkv: 1, D: 32, Dv: 32, Causal: true, Mask: padding, MaskShape: []int{1, 2}, Sinks: []float64{3}},
	} {
		t.Run(name, func(t *testing.T) {
			empty := 0
			if name == "mask" {
				empty = 1
			}
			q, k, v := a.data("a01")
			out, lse := a.Forward(q, k, v)
			require.Equal(t, make([]float64, 32), out[empty*32:empty*32+32])
			require.True(t, math.IsInf(lse[empty], -1))
			require.False(t, math.IsInf(lse[1-empty], 0))

			dout := Normals("dout", 64, 1)
			for i := range 32 {
				dout[empty*32+i] = math.NaN() // of a row that contributes nothing
			}
			dlse := []float64{1, 1}
			dlse[empty] = math.NaN()
			dq, dk, dv, ds := a.Backward(q, k, v, dout, dlse)
			require.Equal(t, make([]float64, 32), dq[empty*32:empty*32+32])
			for _, g := range [][]float64{dq, dk, dv, ds} {
				for _, x := range g {
					require.False(t, math.IsNaN(x) || math.IsInf(x, 0))
				}
			}
		})
	}
}

func TestA02_MaskedValuesNeverEnter(t *testing.T) {
	a := Attention{B: 1, Lq: 2, Lk: 2, Hq: 1, Hkv: 1, D: 4, Dv: 4, Mask: []bool{true, false}, MaskShape: []int{1, 2}}
	q, k, v := a.data("a02")
	run := func(x float64) [][]float64 {
		k, v := append([]float64(nil), k...), append([]float64(nil), v...)
		for i := 4; i < 8; i++ {
			k[i], v[i] = x, x
		}
		out, lse := a.Forward(q, k, v)
		dq, dk, dv, _ := a.Backward(q, k, v, out, lse)
		return [][]float64{out, lse, dq, dk, dv}
	}
	require.Equal(t, run(0), run(math.NaN()))
}

func TestA03_CausalIsBottomRight(t *testing.T) {
	out, _ := Attention{B: 1, Lq: 2, Lk: 5, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true}.Forward(make([]float64, 2), make([]float64, 5), []float64{1, 2, 3, 4, 5})
	near(t, []float64{2.5, 3}, out, 1e-15)
	out, lse := Attention{B: 1, Lq: 5, Lk: 2, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true}.Forward(make([]float64, 5), make([]float64, 2), []float64{1, 2})
	near(t, []float64{0, 0, 0, 1, 1.5}, out, 1e-15)
	require.Equal(t, []float64{0, math.Ln2}, lse[3:])
	require.True(t, math.IsInf(lse[2], -1))
}

func TestA04_GroupsAreInterleaved(t *testing.T) {
	a := Attention{B: 1, Lq: 1, Lk: 1, Hq: 4, Hkv: 2, D: 1, Dv: 1}
	out, _ := a.Forward(make([]float64, 4), make([]float64, 2), []float64{10, 20})
	require.Equal(t, []float64{10, 10, 20, 20}, out)
	_, _, dv, _ := a.Backward(make([]float64, 4), make([]float64, 2), []float64{10, 20}, []float64{1, 2, 4, 8}, nil)
	require.Equal(t, []float64{3, 12}, dv) // sums over the group
}

func TestAttention_LowLogitsAreNotMasked(t *testing.T) {
	a := Attention{B: 1, Lq: 1, Lk: 2, Hq: 1, Hkv: 1, D: 1, Dv: 1, Scale: 1}
	out, lse := a.Forward([]float64{-1e5}, []float64{1, 1}, []float64{1, 3})
	require.Equal(t, []float64{2}, out)
	require.InDelta(t, -1e5+math.Ln2, lse[0], 1e-10)
}

func TestAttention_Options(t *testing.T) {
	// Window 2 of a causal row of 4 equal scores: the mean of the last two.
	a := Attention{B: 1, Lq: 4, Lk: 4, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true, Window: 2}
	out, _ := a.Forward(make([]float64, 4), make([]float64, 4), []float64{1, 2, 3, 4})
	near(t, []float64{1, 1.5, 2.5, 3.5}, out, 1e-15)
	// A sink of log 2 beside two keys of score 0 takes half.
	a = Attention{B: 1, Lq: 1, Lk: 2, Hq: 1, Hkv: 1, D: 1, Dv: 1, Sinks: []float64{math.Ln2}}
	out, lse := a.Forward([]float64{0}, []float64{0, 0}, []float64{1, 3})
	near(t, []float64{1}, out, 1e-15)
	near(t, []float64{math.Log(4)}, lse, 1e-15)
	// A cap of 1 brings the scores 0 and 1e9 to 0 and 1.
	a = Attention{B: 1, Lq: 1, Lk: 2, Hq: 1, Hkv: 1, D: 1, Dv: 1, Scale: 1, Softcap: 1}
	out, _ = a.Forward([]float64{1}, []float64{0, 1e9}, []float64{0, 1})
	near(t, []float64{Sigmoid(1)}, out, 1e-15)
	// Causal with lengths ends each sequence at its own length.
	a = Attention{B: 2, Lq: 1, Lk: 3, Hq: 1, Hkv: 1, D: 1, Dv: 1, Causal: true, KVLen: []int32{2, 0}}
	nan := math.NaN()
	out, lse = a.Forward([]float64{0, 0}, []float64{0, 0, nan, nan, nan, nan}, []float64{1, 2, nan, nan, nan, nan})
	near(t, []float64{1.5, 0}, out, 1e-15)
	require.True(t, math.IsInf(lse[1], -1))
}

func TestAttention_MaskShapes(t *testing.T) {
	base := Attention{B: 2, Lq: 3, Lk: 4, Hq: 2, Hkv: 1, D: 3, Dv: 2}
	q, k, v := base.data("masks")
	full := Bools("full", 2*2*3*4, 0.6)
	// Every smaller shape equals its expansion to [B,Hq,Lq,Lk].
	for _, shape := range [][]int{{2, 4}, {2, 3, 4}, {2, 1, 4}, {2, 2, 3, 4}, {2, 1, 3, 4}, {2, 2, 1, 4}, {2, 1, 1, 4}, {1, 1, 3, 4}} {
		strides := map[int][]int{2: {0, 3}, 3: {0, 2, 3}, 4: {0, 1, 2, 3}}[len(shape)]
		n := 1
		for _, s := range shape {
			n *= s
		}
		mask, wide := full[:n], make([]bool, len(full))
		for i := range wide {
			at := []int{i / 24, i / 12 % 2, i / 4 % 3, i % 4}
			offset := 0
			for d, s := range shape {
				offset = offset*s + at[strides[d]]%s
			}
			wide[i] = mask[offset]
		}
		a, b := base, base
		a.Mask, a.MaskShape = mask, shape
		b.Mask, b.MaskShape = wide, []int{2, 2, 3, 4}
		outA, lseA := a.Forward(q, k, v)
		outB, lseB := b.Forward(q, k, v)
		require.Equal(t, outB, outA, "%v", shape)
		require.Equal(t, lseB, lseA, "%v", shape)
	}
}

func TestAttention_Gradients(t *testing.T) {
	for i, a := range []Attention{
		{B: 1, Lq: 1, Lk: 1, Hq: 1, Hkv: 1, D: 1, Dv: 1},
		{B: 2, Lq: 5, Lk: 7, Hq: 6, Hkv: 2, D: 4, Dv: 3},
		{B: 1, Lq: 7, Lk: 5, Hq: 2, Hkv: 2, D: 4, Dv: 4, Causal: true},
		{B: 2, Lq: 6, Lk: 6, Hq: 4, Hkv: 1, D: 3, Dv: 5, Causal: true, Window: 3, Scale: 0.9},
		{B: 1, Lq: 4, Lk: 6, Hq: 2, Hkv: 1, D: 4, Dv: 2, Softcap: 1.5, Sinks: []float64{0.3, -1}},
		{B: 2, Lq: 3, Lk: 6, Hq: 2, Hkv: 1, D: 4, Dv: 2, Causal: true, Sinks: []float64{0.3, 2}, KVLen: []int32{4, 0}},
		{B: 2, Lq: 3, Lk: 4, Hq: 2, Hkv: 2, D: 3, Dv: 3, Mask: Bools("gradient mask", 48, 0.5), MaskShape: []int{2, 2, 3, 4}, Sinks: []float64{1, 1}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			q, k, v := a.data(fmt.Sprint("gradient", i))
			inputs := [][]float64{q, k, v}
			if a.Sinks != nil {
				inputs = append(inputs, a.Sinks)
			}
			with := func(in [][]float64) Attention {
				b := a
				if a.Sinks != nil {
					b.Sinks = in[3]
				}
				return b
			}
			CheckGradient(t, "attention",
				func(in [][]float64) [][]float64 {
					out, lse := with(in).Forward(in[0], in[1], in[2])
					return [][]float64{out, lse}
				},
				func(in, d [][]float64) [][]float64 {
					dq, dk, dv, ds := with(in).Backward(in[0], in[1], in[2], d[0], d[1])
					return [][]float64{dq, dk, dv, ds}[:len(in)]
				}, inputs...)
			CheckGradient(t, "attention without lse",
				func(in [][]float64) [][]float64 {
					out, _ := with(in).Forward(in[0], in[1], in[2])
					return [][]float64{out}
				},
				func(in, d [][]float64) [][]float64 {
					dq, dk, dv, ds := with(in).Backward(in[0], in[1], in[2], d[0], nil)
					return [][]float64{dq, dk, dv, ds}[:len(in)]
				}, inputs...)
		})
	}
}

func TestA08_RaggedWithEmptyRequests(t *testing.T) {
	a := Ragged{Attention{Hq: 9, Hkv: 3, D: 4, Dv: 4, Causal: true}, []int32{0, 0, 1, 1, 2}, []int32{0, 0, 3, 3, 8}}
	q, k, v := Normals("q", 2*9*4, 1), Normals("k", 8*3*4, 1), Normals("v", 8*3*4, 1)
	out, lse := a.Forward(q, k, v)
	require.Len(t, out, 2*9*4)
	alone := Attention{B: 1, Lq: 1, Lk: 5, Hq: 9, Hkv: 3, D: 4, Dv: 4, Causal: true}
	o, l := alone.Forward(q[36:], k[36:], v[36:])
	require.Equal(t, o, out[36:])
	for h := range 9 {
		require.Equal(t, l[h], lse[h*2+1])
	}
	CheckGradient(t, "ragged",
		func(in [][]float64) [][]float64 {
			out, lse := a.Forward(in[0], in[1], in[2])
			return [][]float64{out, lse}
		},
		func(in, d [][]float64) [][]float64 {
			dq, dk, dv, _ := a.Backward(in[0], in[1], in[2], d[0], d[1])
			return [][]float64{dq, dk, dv}
		}, q, k, v)
	a.Sinks = Normals("sinks", 9, 1)
	CheckGradient(t, "ragged with sinks",
		func(in [][]float64) [][]float64 {
			b := a
			b.Sinks = in[1]
			out, lse := b.Forward(in[0], k, v)
			return [][]float64{out, lse}
		},
		func(in, d [][]float64) [][]float64 {
			b := a
			b.Sinks = in[1]
			dq, _, _, ds := b.Backward(in[0], k, v, d[0], d[1])
			return [][]float64{dq, ds}
		}, q, a.Sinks)
}

func TestA10_PagedEqualsContiguous(t *testing.T) {
	table := PageTable{PageSize: 4, Indptr: []int32{0, 4, 4, 5}, Indices: []int32{5, 1, 0, 4, 3}, LastPageLen: []int32{1, 0, 4}}
	require.Equal(t, []int{13, 0, 4}, []int{table.Length(0), table.Length(1), table.Length(2)})
	const hkv, d, dv = 2, 3, 2
	kPages, vPages := Poison(make([]float64, 7*4*hkv*d)), Poison(make([]float64, 7*4*hkv*dv))
	k, v := Normals("k", 17*hkv*d, 1), Normals("v", 17*hkv*dv, 1)
	// Token by token: the table grows as a cache does.
	grow := table
	for _, r := range []int{0, 2} {
		for i := range table.Length(r) {
			grow.Indptr = []int32{0, 4, 4, 5}
			if r == 0 {
				grow.Indptr = []int32{0, int32(i/4 + 1), int32(i/4 + 1), int32(i/4 + 1)}
				grow.LastPageLen = []int32{int32(i%4 + 1), 0, 0}
			} else {
				grow.LastPageLen = []int32{1, 0, int32(i%4 + 1)}
			}
			qo := []int32{0, 1, 1, 1}
			token := i
			if r == 2 {
				qo, token = []int32{0, 0, 0, 1}, 13+i
			}
			kPages = grow.Append(kPages, k[token*hkv*d:(token+1)*hkv*d], qo, hkv*d)
			vPages = grow.Append(vPages, v[token*hkv*dv:(token+1)*hkv*dv], qo, hkv*dv)
		}
	}
	a := Attention{Hq: 4, Hkv: hkv, D: d, Dv: dv, Causal: true}
	q, qo := Normals("q", 4*4*d, 1), []int32{0, 2, 3, 4}
	out, lse := Paged{a, qo, table}.Forward(q, kPages, vPages)
	wantOut, wantLSE := Ragged{a, qo, []int32{0, 13, 13, 17}}.Forward(q, k, v)
	require.Equal(t, wantOut, out)
	require.Equal(t, wantLSE, lse)
	require.Equal(t, make([]float64, 4*dv), out[2*4*dv:3*4*dv]) // A09: the request without a cache
	require.True(t, math.IsInf(lse[2], -1))
	for _, x := range append(out, lse[:2]...) {
		require.False(t, math.IsNaN(x))
	}
}

func TestMergeStates_SplitEqualsWhole(t *testing.T) {
	const h, d, dv, keys = 3, 4, 2, 9
	whole := Attention{B: 1, Lq: 1, Lk: keys, Hq: h, Hkv: 1, D: d, Dv: dv}
	q, k, v := whole.data("merge")
	wantOut, wantLSE := whole.Forward(q, k, v)
	for split := range keys + 1 {
		a, b := whole, whole
		a.Lk, b.Lk = split, keys-split
		oa, la := a.Forward(q, k[:split*d], v[:split*dv])
		ob, lb := b.Forward(q, k[split*d:], v[split*dv:])
		if split == 0 {
			Poison(oa) // a state of no keys holds nothing
		}
		out, lse := MergeStates([][]float64{oa, ob}, [][]float64{la, lb}, dv)
		near(t, wantOut, out, 1e-14)
		near(t, wantLSE, lse, 1e-14)
	}
	none := []float64{math.Inf(-1)}
	out, lse := MergeStates([][]float64{{math.NaN()}, {math.NaN()}}, [][]float64{none, none}, 1)
	require.Equal(t, []float64{0}, out)
	require.Equal(t, none, lse)

	outs := [][]float64{Normals("o1", 8, 1), Normals("o2", 8, 1), Normals("o3", 8, 1)}
	lses := [][]float64{Normals("l1", 4, 1), Normals("l2", 4, 1), {0, math.Inf(-1), 1, 2}}
	CheckGradient(t, "merge",
		func(in [][]float64) [][]float64 {
			out, lse := MergeStates([][]float64{in[0], in[1], outs[2]}, [][]float64{in[2], in[3], lses[2]}, 2)
			return [][]float64{out, lse}
		},
		func(in, g [][]float64) [][]float64 {
			do, dl := MergeStatesGrad([][]float64{in[0], in[1], outs[2]}, [][]float64{in[2], in[3], lses[2]}, 2, g[0], g[1])
			require.Zero(t, dl[2][1])
			return [][]float64{do[0], do[1], dl[0], dl[1]}
		}, outs[0], outs[1], lses[0], lses[1])
}
