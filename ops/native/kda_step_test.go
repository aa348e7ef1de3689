package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// decodeTokens runs tokens [lo,hi) of a call with one sequence through
// KDADecode, one at a time, and returns their outputs. state is updated.
func decodeTokens[T Float](k KDA[T], state []T, lo, hi int) []T {
	var all []T
	for t := lo; t < hi; t++ {
		p := k.tokens(t, t+1)
		o := nans[T](k.HV * k.DV)
		KDADecode(o, KDAStep[T]{Q: p.Q, K: p.K, V: p.V, G: p.G, Beta: p.Beta, State: state,
			Rows: 1, H: k.H, HV: k.HV, DK: k.DK, DV: k.DV, Scale: k.Scale, VFirst: k.VFirst})
		all = append(all, o...)
	}
	return all
}

// Prefill by chunks, then decode, equals one pass, with K != V and both
// layouts: a swap of the layout in one of the two cannot hide.
func TestKDAPrefillThenDecode(t *testing.T) {
	both(t, testPrefillDecode[float32], testPrefillDecode[float64])
}

func testPrefillDecode[T Float](t *testing.T) {
	for _, vFirst := range []bool{false, true} {
		for _, c := range []kdaCase{
			{cu: []int32{0, 80}, h: 1, hv: 2, dk: 16, dv: 70, decay: .2, beta: 1},
			{cu: []int32{0, 40}, h: 2, hv: 2, dk: 40, dv: 3, decay: 2, beta: 2},
		} {
			k := kdaCall[T](c)
			want, wantS := oracleOf(k).Forward()
			n := k.Tokens
			if vFirst {
				k.VFirst = true
				k.S0 = turnStates(k.S0, k.DK, k.DV)
				wantS = turnStates(wantS, k.DK, k.DV)
			}
			prefill := k.tokens(0, n-13)
			o, st := nans[T]((n-13)*k.HV*k.DV), nans[T](len(k.S0))
			KDAChunked(o, st, nil, prefill)
			tail := decodeTokens(k, st, n-13, n)
			all := nans[T](len(k.V))
			copy(all, o)
			copy(all[len(o):], tail)
			near(t, "o", all, want, 16)
			near(t, "state", st, wantS, 16)
		}
	}
}

// turnStates transposes every [rows,cols] state of x.
func turnStates[T Float](x []T, rows, cols int) []T {
	y := nans[T](len(x))
	for i := 0; i < len(x); i += rows * cols {
		copy(y[i:], transpose(x[i:i+rows*cols], rows, cols))
	}
	return y
}

// Rows find their slots in any order, a negative slot touches nothing and
// gives zeros, and slot 0 and the last slot stay as they are unless named.
func TestKDADecodeSlots(t *testing.T) {
	const h, hv, dk, dv, slots = 1, 2, 6, 5, 5
	for _, vFirst := range []bool{false, true} {
		r := rand.New(rand.NewPCG(21, 21))
		pool := normals[float32](r, slots*hv*dk*dv)
		s := KDAStep[float32]{Rows: 4, H: h, HV: hv, DK: dk, DV: dv, VFirst: vFirst, Slots: []int32{3, -1, 1, -7},
			Q: normals[float32](r, 4*h*dk), K: normals[float32](r, 4*h*dk), V: normals[float32](r, 4*hv*dv), Beta: normals[float32](r, 4*hv)}
		for range 4 * hv * dk {
			s.G = append(s.G, -r.Float32())
		}
		require.NoError(t, CheckKDASlots(s.Slots, slots))
		var got []float32
		eachWorkers(t, func() []float32 {
			s.State = append([]float32(nil), pool...)
			o := nans[float32](4 * hv * dv)
			unmodified(t, func() { KDADecode(o, s) }, s.Q, s.K, s.V, s.G, s.Beta)
			requireGuard(t, o)
			got = o
			return append(flat(o), s.State...)
		})
		size := hv * dk * dv
		for _, slot := range []int{0, 2, 4} {
			requireSameBits(t, pool[slot*size:(slot+1)*size], s.State[slot*size:(slot+1)*size])
		}
		for row, slot := range s.Slots {
			o := got[row*hv*dv : (row+1)*hv*dv]
			if slot < 0 {
				require.Equal(t, make([]float32, hv*dv), o)
				continue
			}
			one := append([]float32(nil), pool[int(slot)*size:(int(slot)+1)*size]...)
			alone := nans[float32](hv * dv)
			KDADecode(alone, KDAStep[float32]{Rows: 1, H: h, HV: hv, DK: dk, DV: dv, VFirst: vFirst, State: one,
				Q: s.Q[row*h*dk:][:h*dk], K: s.K[row*h*dk:][:h*dk], V: s.V[row*hv*dv:][:hv*dv], G: s.G[row*hv*dk:][:hv*dk], Beta: s.Beta[row*hv:][:hv]})
			requireSameBits(t, alone, o)
			requireSameBits(t, one, s.State[int(slot)*size:(int(slot)+1)*size])
		}
		require.Zero(t, testing.AllocsPerRun(50, func() { KDADecode(got, s) }))
	}
}

// 100,000 tokens leave the state finite and equal to the chunked form's.
func TestKDADecodes100000Tokens(t *testing.T) {
	const n = 100_000
	k := kdaCall[float32](kdaCase{cu: []int32{0, n}, h: 1, hv: 1, dk: 4, dv: 4, decay: .01, beta: 1})
	state := append([]float32(nil), k.S0...)
	o := decodeTokens(k, state, 0, n)
	all, st := nans[float32](len(k.V)), nans[float32](len(k.S0))
	KDAChunked(all, st, nil, k)
	require.Less(t, rms(o, wide(all)), 2e-6) // measured 4e-7
	require.Less(t, rms(state, wide(st)), 2e-6)
}

func TestKDAFusedDecodeVectors(t *testing.T) {
	both(t, testFusedVectors[float32], testFusedVectors[float64])
}

func testFusedVectors[T Float](t *testing.T) {
	all := kdaVectors(t)
	v := all.group(t, "seed_decode")
	c := KDAFusedConfig{Heads: 2, HeadDim: 4, ConvKernel: 4}
	x, w, gate, beta := as[T](v.data(t, "x_qkv")), as[T](v.data(t, "conv_w")), as[T](v.data(t, "gate")), as[T](v.data(t, "beta_logit"))
	conv, rec := as[T](v.data(t, "conv0")), as[T](v.data(t, "rec0"))
	conv2, rec2 := as[T](v.data(t, "conv0")), as[T](v.data(t, "rec0"))
	y, out, states := nans[T](72), nans[T](24), nans[T](96)
	for i := range 3 {
		KDAFusedConv(y[24*i:24*i+24], conv, x[24*i:24*i+24], w, c)
		KDAFusedRecurrent(out[8*i:8*i+8], rec, y[24*i:24*i+24], gate[8*i:8*i+8], beta[2*i:2*i+2], c)
		copy(states[32*i:], rec)
		whole := make([]T, 8)
		KDAFusedDecode(whole, conv2, rec2, x[24*i:24*i+24], w, gate[8*i:8*i+8], beta[2*i:2*i+2], c)
		requireSameBits(t, out[8*i:8*i+8], whole)
	}
	near(t, "conv_y", y, v.data(t, "conv_y"), 4)
	near(t, "out", out, v.data(t, "out"), outBound)
	near(t, "rec_after", states, v.data(t, "rec_after"), outBound)
	require.Equal(t, as[T](v.data(t, "conv_final")), conv)
	requireSameBits(t, conv, conv2)
	requireSameBits(t, rec, rec2)

	k := all.group(t, "seed_twin_constants")
	c = KDAFusedConfig{Heads: 8, HeadDim: 32, ConvKernel: 4}
	fill := func(n int, x float64) []T {
		y := make([]T, n)
		for i := range y {
			y[i] = T(x)
		}
		return y
	}
	out, conv, rec = nans[T](256), make([]T, c.ConvElems()), make([]T, c.RecurrentElems())
	KDAFusedDecode(out, conv, rec, fill(768, k.number(t, "x")), fill(3072, k.number(t, "w")), fill(256, k.number(t, "gate")), fill(8, k.number(t, "beta_logit")), c)
	for _, o := range out {
		require.InDelta(t, k.number(t, "out_each"), float64(o), 1e-9)
	}
	for _, s := range rec {
		require.InDelta(t, k.number(t, "state_each"), float64(s), 1e-9)
	}
}

// The fused decode is the composition of the pieces.
func TestKDAFusedDecodeIsTheComposition(t *testing.T) {
	const h, d, w, tokens = 3, 16, 4, 5
	c := KDAFusedConfig{Heads: h, HeadDim: d, ConvKernel: w}
	r := rand.New(rand.NewPCG(22, 22))
	n := h * d
	x, cw, logit := normals[float64](r, tokens*3*n), normals[float64](r, 3*n*w), normals[float64](r, tokens*h)
	var g []float64
	for range tokens * n {
		g = append(g, -r.Float64())
	}
	rec0 := normals[float64](r, h*d*d)

	conv, rec, out := make([]float64, 3*n*w), append([]float64(nil), rec0...), nans[float64](tokens*n)
	for t := range tokens {
		KDAFusedDecode(out[t*n:(t+1)*n], conv, rec, x[t*3*n:(t+1)*3*n], cw, g[t*n:(t+1)*n], logit[t*h:(t+1)*h], c)
	}

	y, beta := nans[float64](tokens*3*n), nans[float64](tokens*h)
	ShortConv(y, nil, x, cw, nil, ShortConvShape{Seqs: 1, Tokens: tokens, Channels: 3 * n, Width: w})
	KDABeta(beta, logit, tokens*h, 1)
	k := KDA[float64]{G: g, Beta: beta, S0: rec0, Seqs: 1, Tokens: tokens, H: h, HV: h, DK: d, DV: d}
	for t := range tokens {
		k.Q, k.K = append(k.Q, y[t*3*n:][:n]...), append(k.K, y[t*3*n+n:][:n]...)
		k.V = append(k.V, y[t*3*n+2*n:][:n]...)
	}
	k.Q, k.K = normalised(k.Q, d), normalised(k.K, d)
	want, st := nans[float64](tokens*n), nans[float64](h*d*d)
	KDAChunked(want, st, nil, k)
	near(t, "out", out, want, 0)
	for i := range st {
		require.InDelta(t, st[i], rec[i], 1e-12)
	}
}

// The window of the convolution after four tokens, a logit of 0 that writes,
// and inputs that must not be ignored.
func TestKDAFusedDecodeBehaviour(t *testing.T) {
	c := KDAFusedConfig{Heads: 1, HeadDim: 2, ConvKernel: 4}
	fill := func(n int, x float32) []float32 {
		y := make([]float32, n)
		for i := range y {
			y[i] = x
		}
		return y
	}
	run := func(w, beta float32) (out, conv, rec []float32) {
		out, conv, rec = nans[float32](2), make([]float32, 24), make([]float32, 4)
		for i := range 4 {
			KDAFusedDecode(out, conv, rec, fill(6, float32(i+1)), fill(24, w), fill(2, -.5), fill(1, beta), c)
		}
		return out, conv, rec
	}
	out, conv, rec := run(.2, 0)
	require.Equal(t, []float32{1, 2, 3, 4}, conv[:4])
	require.NotZero(t, rec[0])
	zero, _, _ := run(0, 0)
	require.Equal(t, []float32{0, 0}, zero)
	other, _, _ := run(.2, 3)
	require.Greater(t, math.Abs(float64(other[0]-out[0])), 1e-3, "beta is a logit")
}

func TestKDAFusedDecodeChecks(t *testing.T) {
	c := KDAFusedConfig{Heads: 4, HeadDim: 4, ConvKernel: 2}
	good := func() KDAFusedLengths {
		return KDAFusedLengths{XQKV: 48, ConvW: 96, Gate: 16, Beta: 4, Host: &KDAStateElems{96, 64}}
	}
	require.NoError(t, c.Check(good()))
	for _, x := range []struct {
		change func(n *KDAFusedLengths, c *KDAFusedConfig)
		want   string
	}{
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.XQKV, n.ConvW = 3, 3 }, "k3 kda: x_qkv 3 != conv_dim 48"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.ConvW, n.Gate = 3, 3 }, "k3 kda: conv_w 3 != 96"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.Gate, n.Host = 3, &KDAStateElems{} }, "k3 kda: gate/beta rank: gate 3, want 16, and beta 4, want 4"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.Beta = 5 }, "k3 kda: gate/beta rank: gate 16, want 16, and beta 5, want 4"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.Host = &KDAStateElems{96, 63} }, "k3 kda: state rank: conv 96, want 96, and recurrent 63, want 64"},
		{func(n *KDAFusedLengths, c *KDAFusedConfig) {
			*c = KDAFusedConfig{Heads: 4, HeadDim: 0, ConvKernel: 2}
			*n = KDAFusedLengths{Beta: 4, Host: &KDAStateElems{}}
		}, "k3 kda: D and conv_kernel must be > 0: D 0, conv_kernel 2"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.Resident = &KDAStateElems{96, 1} }, "k3 kda: resident state rank: conv 96, want 96, and recurrent 1, want 64"},
		{func(n *KDAFusedLengths, c *KDAFusedConfig) {
			n.Resident, n.ResidentOf = &KDAStateElems{96, 64}, KDAFusedConfig{Heads: 1, HeadDim: 8, ConvKernel: 4}
		}, "k3 kda: resident state rank: made for 1 heads of 8 with conv_kernel 4, used with 4 heads of 4 with conv_kernel 2"},
		{func(n *KDAFusedLengths, _ *KDAFusedConfig) { n.Host = nil }, "k3 kda: host or device state"},
	} {
		n, c := good(), c
		x.change(&n, &c)
		require.EqualError(t, c.Check(n), x.want)
	}
	twin := KDAFusedConfig{Heads: 8, HeadDim: 32, ConvKernel: 4}
	require.Equal(t, []int{256, 768, 3072, 8192}, []int{twin.QKVDim(), twin.ConvDim(), twin.ConvElems(), twin.RecurrentElems()})
}

// BenchmarkKDADecode is one token of one request at the heads of Kimi Linear;
// the floor is one read and one write of the state.
func BenchmarkKDADecode(b *testing.B) {
	for _, vFirst := range []bool{false, true} {
		b.Run(fmt.Sprintf("HV32_K128_V128_vfirst=%v", vFirst), func(b *testing.B) {
			k := kdaCall[float32](kdaCase{cu: []int32{0, 1}, h: 32, hv: 32, dk: 128, dv: 128, decay: .1, beta: 1})
			o := make([]float32, len(k.V))
			s := KDAStep[float32]{Q: k.Q, K: k.K, V: k.V, G: k.G, Beta: k.Beta, State: k.S0, Rows: 1, H: 32, HV: 32, DK: 128, DV: 128, VFirst: vFirst}
			b.SetBytes(int64(2 * 4 * len(k.S0)))
			for b.Loop() {
				KDADecode(o, s)
			}
		})
	}
}

// Prefill on a pool: sequences find their states by slot, in place, and those
// without one get zeros; nothing else in the pool changes.
func TestKDAPoolOfStates(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 20, 33, 33, 70}, h: 1, hv: 2, dk: 6, dv: 70, decay: .3, beta: 1})
	size := 2 * 6 * 70
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		want, wantS := nans[float32](len(k.V)), nans[float32](len(k.S0))
		form.forward(want, wantS, nil, k)
		pool := normals[float32](rand.New(rand.NewPCG(23, 23)), 6*size)
		p := k
		p.Slots = []int32{4, -1, 0, 2}
		for s, slot := range p.Slots {
			if slot >= 0 {
				copy(pool[int(slot)*size:], k.S0[s*size:(s+1)*size])
			}
		}
		p.S0 = pool
		before := append([]float32(nil), pool...)
		o := nans[float32](len(k.V))
		form.forward(o, pool, nil, p)
		requireSameBits(t, want[:20*140], o[:20*140])
		require.Equal(t, make([]float32, 13*140), o[20*140:33*140])
		requireSameBits(t, want[33*140:], o[33*140:])
		for slot := range 6 {
			got := pool[slot*size : (slot+1)*size]
			switch slot {
			case 4:
				requireSameBits(t, wantS[:size], got)
			case 2:
				requireSameBits(t, wantS[3*size:], got)
			default:
				requireSameBits(t, before[slot*size:(slot+1)*size], got)
			}
		}
	}
}

func TestShortConvPoolOfStates(t *testing.T) {
	const c, w = 5, 4
	r := rand.New(rand.NewPCG(24, 24))
	s := ShortConvShape{Cu: []int32{0, 2, 3, 3, 40}, Tokens: 40, Channels: c, Width: w}
	x, k, state := normals[float32](r, 40*c), normals[float32](r, c*w), normals[float32](r, 4*c*(w-1))
	want, wantNext := nans[float32](40*c), nans[float32](len(state))
	ShortConv(want, wantNext, x, k, state, s)
	size := c * (w - 1)
	pool := normals[float32](r, 6*size)
	s.Slots = []int32{5, -1, 0, 3}
	for i, slot := range s.Slots {
		if slot >= 0 {
			copy(pool[int(slot)*size:], state[i*size:(i+1)*size])
		}
	}
	before := append([]float32(nil), pool...)
	y := nans[float32](40 * c)
	ShortConv(y, pool, x, k, pool, s)
	requireSameBits(t, want[:2*c], y[:2*c])
	require.Equal(t, make([]float32, c), y[2*c:3*c])
	requireSameBits(t, want[3*c:], y[3*c:])
	for i, slot := range s.Slots {
		if slot >= 0 {
			requireSameBits(t, wantNext[i*size:(i+1)*size], pool[int(slot)*size:(int(slot)+1)*size])
		}
	}
	for _, slot := range []int{1, 2, 4} {
		requireSameBits(t, before[slot*size:(slot+1)*size], pool[slot*size:(slot+1)*size])
	}
}
