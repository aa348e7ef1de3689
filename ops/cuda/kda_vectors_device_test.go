//go:build gpu

package cuda

// The vectors of the contract in f32: an independent float64 computation, kept with native's tests.

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type kdaVectors struct {
	t   testing.TB
	all map[string]json.RawMessage
}

func readKDAVectors(t testing.TB) kdaVectors {
	raw, err := os.ReadFile("../native/testdata/kda.json")
	if err != nil {
		t.Skip(err) // the tests run without the tree
	}
	v := kdaVectors{t, map[string]json.RawMessage{}}
	require.NoError(t, json.Unmarshal(raw, &v.all))
	return v
}

// at is the value at a path of keys.
func (v kdaVectors) at(to any, path ...string) {
	v.t.Helper()
	raw := v.all[path[0]]
	for _, key := range path[1:] {
		var m map[string]json.RawMessage
		require.NoError(v.t, json.Unmarshal(raw, &m), path)
		raw = m[key]
	}
	require.NoError(v.t, json.Unmarshal(raw, to), path)
}

func (v kdaVectors) data(path ...string) []float64 {
	var x struct{ Data []float64 }
	v.at(&x, path...)
	require.NotEmpty(v.t, x.Data, path)
	return x.Data
}

func TestDeviceKDAVectors(t *testing.T) {
	device(t)
	v := readKDAVectors(t)
	const bound = 1e-5 // the contract's, for f32
	check := func(what string, want, got []float64) {
		t.Helper()
		ratio := rmsRatio(t, want, got)
		fmt.Printf("KDA vector\t%s\t%.1e\n", what, ratio)
		require.Less(t, ratio, bound, what)
	}

	b := newBench(t)
	unit := func(x []float64, d int) []float64 {
		y := b.out(F32, len(x))
		b.run(L2Norm{Type: F32, Rows: len(x) / d, D: d, Eps: 1e-6, Y: y, X: b.put(F32, x)})
		return b.get(F32, y, len(x))
	}
	check("l2norm", v.data("l2norm", "y"), unit(v.data("l2norm", "x"), 4))

	y := b.out(F32, 12)
	b.run(GatedRMSNorm{Type: F32, Rows: 3, D: 4, Eps: 1e-5, Y: y, X: b.put(F32, v.data("o_norm", "x")), Gate: b.put(F32, v.data("o_norm", "gate")), W: b.put(F32, v.data("o_norm", "w"))})
	check("o_norm", v.data("o_norm", "y"), b.get(F32, y, 12))

	for form, bound := range map[string]float32{"softplus": 0, "lower_bound_-5": -5} {
		g := b.out(F32, 24)
		b.run(KDAGate{Type: F32, T: 4, H: 2, DK: 3, Bound: bound, G: g, Z: b.put(F32, v.data("gate", "z")), ALog: b.put(F32, v.data("gate", "A_log")), DtBias: b.put(F32, v.data("gate", "dt_bias"))})
		check("gate "+form, v.data("gate", form, "g"), b.get(F32, g, 24))
		x, out := v.data("gate_extremes", "x"), b.out(F32, 17)
		b.run(KDAGate{Type: F32, T: 17, H: 1, DK: 1, Bound: bound, G: out, Z: b.put(F32, x), ALog: b.put(F32, []float64{0}), DtBias: b.put(F32, []float64{0})})
		check("gate extremes "+form, v.data("gate_extremes", form+"_A1"), b.get(F32, out, 17))
	}

	// A state of W columns has a dead one in front.
	state, next, owner := make([]float64, 0, 15), b.out(F32, 15), b.ints(0, 0, 0, 0, 0, 0)
	for c, s := range slices.Collect(slices.Chunk(v.data("conv", "state0"), 4)) {
		require.Less(t, c, 5)
		state = append(state, s[1:]...)
	}
	y = b.out(F32, 30)
	b.run(ShortConv{Type: F32, T: 6, C: 5, Width: 4, KDASequences: KDASequences{1, b.ints(0, 6, 0, 0)}, Y: y, X: b.put(F32, v.data("conv", "x")), W: b.put(F32, v.data("conv", "w")),
		State: b.put(F32, state), Next: next, Owner: owner})
	check("conv", v.data("conv", "y"), b.get(F32, y, 30))
	var last []float64
	for s := range slices.Chunk(v.data("conv", "state"), 4) {
		last = append(last, s[1:]...)
	}
	require.Equal(t, last, b.get(F32, next, 15))

	core := func(name string, d kdaData, scale float64, s0, o, ht []float64) {
		t.Helper()
		d.state = s0
		slots := make([]int32, len(d.cu)-1)
		for i := range slots {
			slots[i] = int32(i)
		}
		got, st, _ := d.run(t, F32, false, slots, float32(scale))
		check(name+" o", o, got)
		check(name+" state", ht, st)
	}
	read := func(name string, h KDAHeads, cu ...int32) kdaData {
		d := kdaData{KDAHeads: h, cu: cu, q: v.data(name, "q"), v: v.data(name, "v")}
		if name != "correlated_keys" {
			d.q, d.k, d.g, d.beta = unit(d.q, h.DK), unit(v.data(name, "k"), h.DK), v.data(name, "g"), v.data(name, "beta")
		}
		return d
	}
	core("seq70", read("seq70", KDAHeads{2, 2, 4, 3}, 0, 70), .5, v.data("seq70", "h0"), v.data("seq70", "o"), v.data("seq70", "ht"))
	core("strong decay", read("strong_decay", KDAHeads{1, 1, 4, 2}, 0, 40), .5, v.data("strong_decay", "h0"), v.data("strong_decay", "o"), v.data("strong_decay", "ht"))
	two := read("varlen2", KDAHeads{2, 2, 4, 3}, 0, 5, 24)
	core("varlen2", two, .5, v.data("varlen2", "h0"), v.data("varlen2", "o"), v.data("varlen2", "ht"))
	three := two
	three.cu = []int32{0, 5, 5, 24}
	h0, empty := v.data("varlen2", "h0"), v.data("varlen3_empty", "h0_empty")
	core("varlen3, one empty", three, .5, slices.Concat(h0[:24], empty, h0[24:]), v.data("varlen2", "o"), v.data("varlen3_empty", "ht"))
	same := read("correlated_keys", KDAHeads{1, 1, 4, 2}, 0, 64)
	for range 64 {
		same.k, same.beta = append(same.k, .5, .5, -.5, .5), append(same.beta, 1)
		same.g = append(same.g, -1./1024, -1./1024, -1./1024, -1./1024)
	}
	core("correlated keys", same, .5, make([]float64, 8), v.data("correlated_keys", "o"), v.data("correlated_keys", "ht"))
}
