package native

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// What users of other implementations reported, by the id of the case or with
// the report in a comment.

// requireFinite refuses NaN and Inf.
func requireFinite[T Float](t *testing.T, parts ...[]T) {
	t.Helper()
	for i, p := range parts {
		for j, v := range p {
			require.Falsef(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0), "part %d, element %d is %v", i, j, v)
		}
	}
}

// runForm returns o, the final states and the gradients for given do and dst.
func runForm[T Float](form kdaForm[T], k KDA[T], do, dst []T) (o, st []T, g KDAGrads[T]) {
	n := k.seg().n
	k.Chunk = form.chunk
	o, st, g = nans[T](len(k.V)), nans[T](n*k.HV*k.DK*k.DV), kdaGradBuffers(k)
	states := nans[T](KDACheckpoints(n, k.Tokens, k.Chunk) * k.HV * k.DK * k.DV)
	form.forward(o, st, states, k)
	form.grad(g, do, dst, states, k)
	return o, st, g
}

func TestK01_DecayOf1e12IsFiniteInChunks(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 64}, h: 1, hv: 1, dk: 32, dv: 32, decay: 1, beta: 1})
	for i := range k.G {
		k.G[i] = float32(math.Log(1e-12))
	}
	wantO, wantS := oracleOf(k).Forward()
	do := normals[float32](rand.New(rand.NewPCG(1, 1)), len(k.V))
	want := oracleOf(k).Grad(wide(do), wide(do[:len(wantS)]))
	for _, form := range kdaForms[float32]() {
		o, st, g := runForm(form, k, do, do[:len(wantS)])
		near(t, form.name+" o", o, wantO, 8)
		near(t, form.name+" st", st, wantS, 8)
		near(t, form.name+" dk", g.K, want.K, 16)
		near(t, form.name+" dv", g.V, want.V, 16)
		requireFinite(t, g.G)
	}
}

func TestK02_ValueHeadsReadTheQueryHeadOfTheirGroup(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 70}, h: 2, hv: 4, dk: 32, dv: 8, decay: .2, beta: 1})
	// The same call with q and k repeated, each head twice in a row.
	full := k
	full.H, full.Q, full.K = 4, nil, nil
	for i := 0; i < len(k.Q); i += 32 {
		full.Q = append(append(full.Q, k.Q[i:i+32]...), k.Q[i:i+32]...)
		full.K = append(append(full.K, k.K[i:i+32]...), k.K[i:i+32]...)
	}
	do := normals[float32](rand.New(rand.NewPCG(2, 2)), len(k.V))
	for _, form := range kdaForms[float32]() {
		o, st, g := runForm(form, k, do, nil)
		o2, st2, g2 := runForm(form, full, do, nil)
		requireFinite(t, o, st, g.Q, g.K)
		requireSameBits(t, o2, o)
		requireSameBits(t, st2, st)
		requireSameBits(t, g2.G, g.G) // each head with the gate of its own
		for i := range g.Q {
			a := i/32*64 + i%32
			require.InDelta(t, g2.Q[a]+g2.Q[a+32], g.Q[i], 2.5e-7) // measured 6e-8, one rounding
			require.InDelta(t, g2.K[a]+g2.K[a+32], g.K[i], 2.5e-7)
		}
	}
}

func TestK04_OddLengthsAndHeadDims(t *testing.T) {
	for _, n := range []int32{1, 15, 16, 63, 64, 65, 129} {
		for _, dk := range []int{40, 96} {
			k := kdaCall[float32](kdaCase{cu: []int32{0, n}, h: 1, hv: 1, dk: dk, dv: 4, decay: .1, beta: 1})
			wantO, wantS := oracleOf(k).Forward()
			for _, chunk := range []int{16, 32, 64} {
				k.Chunk = chunk
				for _, cut := range []int{int(n), int(n) / 2} {
					o, st := nans[float32](len(k.V)), nans[float32](len(k.S0))
					KDAChunked(o[:cut*4], st, nil, k.tokens(0, cut))
					copy(o[cut*4:], decodeTokens(k, st, cut, int(n)))
					near(t, "o", o, wantO, 16)
					near(t, "st", st, wantS, 16)
				}
			}
		}
	}
}

func TestK06_PositiveDecayIsRefused(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 64}, h: 1, hv: 2, dk: 8, dv: 4, decay: 1, beta: 1})
	require.NoError(t, k.Check())
	for _, bad := range []float64{5, 1e-30, math.NaN(), math.Inf(1), math.Inf(-1)} {
		g := append([]float32(nil), k.G...)
		k.G = append([]float32(nil), g...)
		k.G[(7*2+1)*8+3] = float32(bad)
		k.G[(9*2+1)*8+3] = float32(bad)
		err := k.Check()
		var typed *KDADecayError
		require.ErrorAs(t, err, &typed)
		require.Equal(t, []int{7, 1, 3}, []int{typed.Token, typed.Head, typed.Channel})
		k.G = g
	}
	for i := range k.G {
		k.G[i] = 5
	}
	require.EqualError(t, k.Check(), "kda: g must be finite and at most 0 (it is the logarithm of a decay): g[0,0,0] is 5")
}

func TestK10_ReferenceRecurrence(t *testing.T) {
	k := KDA[float32]{Q: []float32{1, 0, 0, 1, 1, 1, 1, 0}, K: []float32{1, 0, 0, 1, 1, 0, 0, 1}, V: []float32{1, 2, 3, 4},
		Beta: []float32{.5, .5, .5, .5}, Seqs: 1, Tokens: 4, H: 1, HV: 1, DK: 2, DV: 1, Scale: math.Sqrt(.5)}
	for range 8 {
		k.G = append(k.G, -.1)
	}
	for _, form := range kdaForms[float32]() {
		o, st := nans[float32](4), nans[float32](2)
		form.forward(o, st, nil, k)
		for i, w := range []float64{0.353553, 0.707107, 1.845209, 1.090684} {
			require.InDelta(t, w, float64(o[i]), 1e-6)
		}
		require.InDelta(t, 1.542461, float64(st[0]), 1e-6)
		require.InDelta(t, 2.409365, float64(st[1]), 1e-6)
	}
}

// 64 equal keys that barely decay with write strengths near 1 (the inverse by
// powers loses everything), and near 2.
func TestKDAEqualKeys(t *testing.T) {
	for _, c := range []struct {
		beta      float32
		out, grad float64 // bounds in unit roundoffs; measured 24 and 22, with eigenvalue -0.9 91 and 121
	}{{1, 40, 60}, {.999, 40, 60}, {1.9, outBound, 300}} {
		k := kdaCall[float32](kdaCase{cu: []int32{0, 64}, h: 1, hv: 1, dk: 16, dv: 8, decay: 1, beta: 1})
		for i := range k.G {
			k.G[i] = -1e-4
		}
		for i := range k.Beta {
			k.Beta[i] = c.beta
			copy(k.K[i*16:(i+1)*16], k.K[:16])
		}
		wantO, wantS := oracleOf(k).Forward()
		do := normals[float32](rand.New(rand.NewPCG(3, 3)), len(k.V))
		want := oracleOf(k).Grad(wide(do), nil)
		for _, form := range kdaForms[float32]() {
			o, st, g := runForm(form, k, do, nil)
			near(t, form.name+" o", o, wantO, c.out)
			near(t, form.name+" st", st, wantS, c.out)
			near(t, form.name+" dk", g.K, want.K, c.grad)
			near(t, form.name+" dv", g.V, want.V, c.grad)
			near(t, form.name+" dbeta", g.Beta, want.Beta, c.grad)
			near(t, form.name+" dg", g.G, want.G, c.grad)
		}
	}
}

// Resets (-1000), steep and flat channels side by side: nothing overflows, a
// channel that does not decay keeps every bit of its memory, gradients are finite.
func TestKDAStrongDecay(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 100}, h: 1, hv: 1, dk: 8, dv: 6, decay: 1, beta: 1})
	for i := range k.G {
		switch i % 8 {
		case 0:
			k.G[i] = -1000
		case 1:
			k.G[i] = 0
		case 2:
			k.G[i] = -5
		case 3:
			k.G[i] = -88
		case 4:
			if i/8%7 == 3 {
				k.G[i] = -1000
			}
		case 5:
			k.G[i] = float32(-1e-6)
		}
	}
	wantO, wantS := oracleOf(k).Forward()
	do := normals[float32](rand.New(rand.NewPCG(4, 4)), len(k.V))
	want := oracleOf(k).Grad(wide(do), wide(do[:48]))
	for _, form := range kdaForms[float32]() {
		o, st, g := runForm(form, k, do, do[:48])
		near(t, form.name+" o", o, wantO, 16)
		near(t, form.name+" st", st, wantS, 16)
		near(t, form.name+" dq", g.Q, want.Q, 40)
		near(t, form.name+" dk", g.K, want.K, 40)
		near(t, form.name+" dv", g.V, want.V, 40)
		near(t, form.name+" dg", g.G, want.G, 200)
		near(t, form.name+" dbeta", g.Beta, want.Beta, 40)
		near(t, form.name+" dS0", g.S0, want.S0, 40)
	}
}

// A long input (vLLM #51039): finite, and equal in both forms.
func TestKDALongPrefill(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 20000}, h: 1, hv: 1, dk: 16, dv: 8, decay: .01, beta: 1})
	a, b := nans[float32](len(k.V)), nans[float32](len(k.V))
	KDAChunked(a, nil, nil, k)
	KDARecurrent(b, nil, nil, k)
	requireFinite(t, a)
	require.Less(t, rms(a, wide(b)), 2e-6) // measured 3e-7
}

// Slow channels over 2048 tokens: decays and states keep float32 (bf16 decays
// are off by 4e-2, bf16 states by 2e-2).
func TestKDASlowDecayKeepsPrecision(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 2048}, h: 1, hv: 1, dk: 12, dv: 8, decay: 2.8e-3, beta: 1})
	want, wantS := oracleOf(k).Forward()
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		o, st := nans[float32](len(k.V)), nans[float32](len(k.S0))
		form.forward(o, st, nil, k)
		near(t, form.name, o, want, 24)
		near(t, form.name, st, wantS, 24)
	}
}

// The gradient of the bounded gate stays finite at both ends (fla-npu #448).
func TestKDAGateGradAtTheBound(t *testing.T) {
	z := []float32{-1000, -100, -20, 0, 20, 100, 1000}
	dg := []float32{1, 1, 1, 1, 1, 1, 1}
	for _, bound := range []float64{0, -5} {
		for _, aLog := range []float32{-10, 0, 10} {
			dz, da, dd, g := nans[float32](7), nans[float32](1), nans[float32](1), nans[float32](7)
			KDAGate(g, z, []float32{aLog}, []float32{.5}, 7, 1, 1, bound)
			KDAGateGrad(dz, da, dd, dg, z, []float32{aLog}, []float32{.5}, 7, 1, 1, bound)
			requireFinite(t, g, dz, da, dd)
			require.NoError(t, CheckKDADecay(g, 1, 1))
		}
	}
}

// Empty sequences read no token and no neighbour (flashinfer #4001), a fresh
// one ends in zeros whatever its slot held (attention-gym #419), and a batch of
// only empty ones is legal (FlashKDA #32).
func TestKDAEmptySequences(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 0, 20, 20}, h: 1, hv: 2, dk: 8, dv: 6, decay: .2, beta: 1, noState: true})
	size := 2 * 8 * 6
	for _, form := range kdaForms[float32]() {
		_, st, g := runForm(form, k, k.V, nil)
		require.Equal(t, make([]float32, size), st[:size])
		require.Equal(t, make([]float32, size), st[2*size:])
		requireFinite(t, st, g.S0)
		none := k.tokens(0, 0)
		none.Cu = []int32{0, 0, 0}
		none.S0 = normals[float32](rand.New(rand.NewPCG(5, 5)), 2*size)
		require.NoError(t, none.Check())
		dst := normals[float32](rand.New(rand.NewPCG(6, 6)), 2*size)
		_, st, g = runForm(form, none, nil, dst)
		requireSameBits(t, none.S0, st)
		requireSameBits(t, dst, g.S0)
	}
}

// A NaN spreads as the definition says: to later outputs of its columns, never
// to earlier tokens or other sequences, whatever the form.
func TestKDANaNGoesForwardOnly(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 30, 60}, h: 1, hv: 1, dk: 8, dv: 6, decay: .2, beta: 1})
	clean := nans[float32](len(k.V))
	KDAChunked(clean, nil, nil, k)
	k.V[12*6+2] = float32(math.NaN())
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		o := nans[float32](len(k.V))
		form.forward(o, nil, nil, k)
		for i, v := range o {
			tok, col := i/6, i%6
			if tok >= 12 && tok < 30 && col == 2 {
				require.True(t, math.IsNaN(float64(v)))
			} else {
				require.InDeltaf(t, clean[i], v, 2.5e-7, "token %d, column %d", tok, col) // measured 6e-8, one rounding
			}
		}
	}
}

// The same for a NaN in any other operand: tokens before it and other sequences
// keep their values.
func TestKDANaNInAnyOperand(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 30, 60}, h: 1, hv: 1, dk: 8, dv: 6, decay: .2, beta: 1})
	clean := nans[float32](len(k.V))
	KDAChunked(clean, nil, nil, k)
	nan := float32(math.NaN())
	for name, spoil := range map[string]func(k *KDA[float32]){
		"q":    func(k *KDA[float32]) { k.Q = append([]float32(nil), k.Q...); k.Q[12*8+3] = nan },
		"k":    func(k *KDA[float32]) { k.K = append([]float32(nil), k.K...); k.K[12*8+3] = nan },
		"g":    func(k *KDA[float32]) { k.G = append([]float32(nil), k.G...); k.G[12*8+3] = nan },
		"beta": func(k *KDA[float32]) { k.Beta = append([]float32(nil), k.Beta...); k.Beta[12] = nan },
	} {
		bad := k
		spoil(&bad)
		for _, form := range kdaForms[float32]() {
			bad.Chunk = form.chunk
			o := nans[float32](len(k.V))
			form.forward(o, nil, nil, bad)
			for i, v := range o {
				if tok := i / 6; tok < 12 || tok >= 30 {
					require.InDeltaf(t, clean[i], v, 2.5e-7, "%s %s: token %d", form.name, name, tok) // measured 6e-8
				} else if tok == 12 {
					require.Truef(t, math.IsNaN(float64(v)), "%s %s: token %d", form.name, name, tok)
				}
			}
		}
	}
}

// Extreme write strengths: 0 writes nothing, bit for bit what decay alone does.
func TestKDAZeroBetaOnlyDecays(t *testing.T) {
	k := kdaCall[float64](kdaCase{cu: []int32{0, 40}, h: 1, hv: 1, dk: 4, dv: 4, decay: .1, beta: 0})
	for _, form := range kdaForms[float64]() {
		st := nans[float64](16)
		form.forward(nans[float64](len(k.V)), st, nil, k)
		for d := range 4 {
			sum := 0.0
			for t := range 40 {
				sum += k.G[t*4+d]
			}
			for v := range 4 {
				require.InDelta(t, k.S0[d*4+v]*math.Exp(sum), st[d*4+v], 1e-14)
			}
		}
	}
}

func TestKDAChecks(t *testing.T) {
	good := func() KDA[float32] {
		return kdaCall[float32](kdaCase{cu: []int32{0, 2, 5}, h: 2, hv: 4, dk: 3, dv: 2, decay: 1, beta: 1})
	}
	k := good()
	require.NoError(t, k.Check())
	for _, c := range []struct {
		change func(k *KDA[float32])
		want   string
	}{
		{func(k *KDA[float32]) { k.H = 3 }, "kda: value heads must be a multiple of the query heads, got HV 4 and H 3"},
		{func(k *KDA[float32]) { k.DK = 0 }, "kda: want K and V above 0 and no negative size, got K 0, V 2, 5 tokens"},
		{func(k *KDA[float32]) { k.Chunk = 20 }, "kda: the chunk must be a multiple of 16 up to 1024 (0: 64), got 20"},
		{func(k *KDA[float32]) { k.Cu = []int32{} }, "kda: cu_seqlens: want at least one number, got none"},
		{func(k *KDA[float32]) { k.Cu = []int32{1, 2, 5} }, "kda: cu_seqlens: must start at 0, cu_seqlens[0] is 1"},
		{func(k *KDA[float32]) { k.Cu = []int32{0, 4, 2, 5} }, "kda: cu_seqlens: must not decrease, cu_seqlens[2] is 2 after 4"},
		{func(k *KDA[float32]) { k.Cu = []int32{0, 2, 4} }, "kda: cu_seqlens: must end at the number of tokens 5, ends at 4"},
		{func(k *KDA[float32]) { k.Cu, k.Seqs = nil, 2 }, "kda: 5 tokens do not make 2 sequences of equal length"},
		{func(k *KDA[float32]) { k.Q = k.Q[1:] }, "kda: q has 29 elements, want [5,2,3] = 30"},
		{func(k *KDA[float32]) { k.Beta = k.Beta[:10] }, "kda: beta has 10 elements, want [5,4] = 20"},
		{func(k *KDA[float32]) { k.S0 = k.S0[:24] }, "kda: the initial state has 24 elements, want [2,4,3,2] = 48 (one state for each of 2 sequences)"},
		{func(k *KDA[float32]) { k.S0, k.VFirst = k.S0[:24], true }, "kda: the initial state has 24 elements, want [2,4,2,3] = 48 (one state for each of 2 sequences)"},
		{func(k *KDA[float32]) { k.Slots = []int32{0} }, "kda: 1 slots for 2 sequences"},
		{func(k *KDA[float32]) { k.Slots = []int32{0, 2} }, "kda: row 1 has slot 2, the pool has 2"},
		{func(k *KDA[float32]) { k.Slots, k.S0 = []int32{0, 1}, k.S0[1:] }, "kda: the pool of states has 47 elements, want a multiple of the 24 of one state"},
	} {
		k := good()
		c.change(&k)
		require.EqualError(t, k.Check(), c.want)
	}
	require.EqualError(t, CheckCuSeqlens([]int64{0, 3}, 4), "cu_seqlens: must end at the number of tokens 4, ends at 3")

	require.NoError(t, CheckKDAGate(8, 256, 8, 32, -5))
	require.NoError(t, CheckKDAGate(-1, -1, 8, 32, 0))
	require.EqualError(t, CheckKDAGate(4, 256, 8, 32, 0), "kda gate: A_log has 4 values, want one for each of 8 heads")
	require.EqualError(t, CheckKDAGate(8, 8, 8, 32, 0), "kda gate: dt_bias has 8 values, want one for each channel: 8 heads x 32 = 256")
	require.EqualError(t, CheckKDAGate(8, 256, 8, 32, 5), "kda gate: the lower bound must be negative, or 0 for the softplus form, got 5")
	require.Error(t, CheckKDAGate(8, 256, 8, 32, math.NaN()))

	a := KDAStateShape{HV: 4, DK: 8, DV: 8, Channels: 96, Width: 4}
	require.NoError(t, a.Check(a))
	b := a
	b.VFirst = true
	require.EqualError(t, a.Check(b), "kda: the state is [4,8,8] (heads, V, K) with a convolution of 96 channels, width 4, want [4,8,8] (heads, K, V) with a convolution of 96 channels, width 4")

	require.NoError(t, CheckKDASlots([]int32{2, -1, 0, -1}, 3))
	require.EqualError(t, CheckKDASlots([]int32{2, 3}, 3), "kda: row 1 has slot 3, the pool has 3")
	require.EqualError(t, CheckKDASlots([]int32{2, -1, 2}, 3), "kda: rows 0 and 2 share slot 2")
}

// Any boundaries that pass the check run without touching what is not theirs.
func FuzzKDACuSeqlens(f *testing.F) {
	f.Add([]byte{0, 0, 5, 20})
	f.Add([]byte{0, 33})
	f.Add([]byte{})
	f.Add([]byte{7, 3, 255})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 40 {
			return
		}
		cu := make([]int32, len(raw))
		tokens := 0
		for i, b := range raw {
			cu[i] = int32(int8(b))
			tokens = int(cu[i])
		}
		if CheckCuSeqlens(cu, tokens) != nil {
			return
		}
		k := kdaCall[float64](kdaCase{cu: []int32{0, int32(tokens)}, h: 1, hv: 2, dk: 3, dv: 2, decay: .3, beta: 1, noState: true})
		k.Cu = cu
		require.NoError(t, k.Check())
		want, wantS := optest.KDA{Q: k.Q, K: k.K, V: k.V, G: k.G, Beta: k.Beta, Cu: cu, H: 1, HV: 2, DK: 3, DV: 2, Scale: 1 / math.Sqrt(3)}.Forward()
		for _, form := range kdaForms[float64]() {
			o, st, g := runForm(form, k, k.V, nil)
			near(t, "o", o, want, 0)
			near(t, "st", st, wantS, 0)
			requireFinite(t, g.Q, g.K, g.V, g.G, g.Beta, g.S0)
		}
	})
}
