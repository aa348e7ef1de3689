//go:build gpu

package cuda

// KDA's kernels against float64: the step and the fused layer against the oracle, many tokens against native's recurrence in
// float64, which the oracle and the vectors hold.

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	cpu "github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// kdaData are the operands of KDA over packed tokens, with q and k normalised, and decays about -exp(decay).
type kdaData struct {
	KDAHeads
	cu                      []int32
	q, k, v, g, beta, state []float64
}

func newKDAData(dt DType, h KDAHeads, states int, decay, spread float64, lens ...int) kdaData {
	r := rand.New(rand.NewPCG(uint64(h.DK), uint64(h.DV)))
	d := kdaData{KDAHeads: h, cu: []int32{0}}
	for i, n := range lens {
		d.cu = append(d.cu, d.cu[i]+int32(n))
	}
	t := int(d.cu[len(lens)])
	unit := func(n, dim int) []float64 {
		return decode(dt, encode(dt, optest.L2Norm(normal(r, dt, n*dim, 1), dim, 1e-6)))
	}
	d.q, d.k, d.v = unit(t*h.H, h.DK), unit(t*h.H, h.DK), normal(r, dt, t*h.HV*h.DV, 1)
	d.g, d.beta, d.state = normal(r, F32, t*h.HV*h.DK, spread), normal(r, F32, t*h.HV, 1), normal(r, F32, states*h.HV*h.DK*h.DV, 1)
	for i, x := range d.g {
		d.g[i] = float64(float32(-math.Exp(x + decay)))
	}
	for i, x := range d.beta {
		d.beta[i] = float64(float32(optest.Sigmoid(x)))
	}
	return d
}

// reference is native's recurrence in float64: outputs, and the states after it.
func (d kdaData) reference(scale float64, slots []int32, states []float64) (o, st []float64) {
	o, st = make([]float64, len(d.v)), append([]float64(nil), states...)
	cpu.KDARecurrent(o, st, nil, cpu.KDA[float64]{Q: d.q, K: d.k, V: d.v, G: d.g, Beta: d.beta, S0: states, Slots: slots, Cu: d.cu,
		Tokens: int(d.cu[len(d.cu)-1]), H: d.H, HV: d.HV, DK: d.DK, DV: d.DV, Scale: scale})
	return o, st
}

// rmsRatio is rms(got-want)/rms(want), the metric of the contract; NaN is a failure.
func rmsRatio(t testing.TB, want, got []float64) float64 {
	t.Helper()
	require.Equal(t, len(want), len(got))
	var diff, ref float64
	for i := range want {
		require.False(t, math.IsNaN(got[i]), "element %d is NaN, want %g", i, want[i])
		diff += (got[i] - want[i]) * (got[i] - want[i])
		ref += want[i] * want[i]
	}
	if ref == 0 {
		return math.Sqrt(diff)
	}
	return math.Sqrt(diff / ref)
}

// The bounds of the contract: 1e-5 for f32 (measured 1.6e-6), fla's 0.005 for 16 bits (bf16 4.0e-3 of o and 3.5e-3 of the
// state at the slowest decays, f16 5.5e-4; token by token 1.7e-3 and 2.1e-4, which is the rounding of o).
func kdaBound(dt DType) float64 {
	if dt == F32 {
		return 1e-5
	}
	return 5e-3
}

var kdaDims = []KDAHeads{{1, 1, 1, 1}, {2, 4, 16, 24}, {1, 2, 40, 16}, {1, 1, 64, 64}, {1, 2, 128, 128}, {1, 1, 96, 9}, {1, 1, 256, 256}, {1, 1, 130, 100}, {1, 1, 200, 7}}

func TestDeviceKDADecode(t *testing.T) {
	for _, h := range kdaDims {
		for _, dt := range []DType{F32, BF16, F16} {
			// Three rows with states, one of nobody, one that begins, one more at the end that no entry names.
			launches := []func(KDADecode, Queue) error{KDADecode.launchColumns}
			if h.DV%4 == 0 {
				launches = append(launches, KDADecode.launchHeads)
			}
			testKDADecode(t, dt, h, 7, []int{4, 0, 2, 1, -1, 3}, []int{5, 0, -1, 2 | kdaFresh, 3, 6}, launches...)
		}
	}
}

func testKDADecode(t *testing.T, dt DType, h KDAHeads, pool int, rows, slots []int, launches ...func(KDADecode, Queue) error) {
	b := newBench(t)
	n := len(rows)
	lens := make([]int, n)
	for i := range lens {
		lens[i] = 1
	}
	d := newKDAData(dt, h, pool, -2, 1, lens...)
	oracle := optest.KDA{Cu: []int32{0, 1}, H: h.H, HV: h.HV, DK: h.DK, DV: h.DV, Scale: 0.5}
	want, wantState := make([]float64, n*h.HV*h.DV), append([]float64(nil), d.state...)
	one := func(x []float64, r, n int) []float64 { return x[r*n:][:n] }
	size := h.HV * h.DK * h.DV
	logits, written, touched := make([]float64, len(d.beta)), make([]bool, n), make([]bool, pool)
	for i, x := range d.beta {
		logits[i] = float64(float32(math.Log(x / (1 - x))))
	}
	for i, r := range rows {
		if r >= 0 {
			written[r] = true
		}
		if r < 0 || slots[i] < 0 {
			continue
		}
		c, slot := oracle, slots[i]&^kdaFresh
		touched[slot] = true
		c.Q, c.K = optest.L2Norm(one(d.q, r, h.H*h.DK), h.DK, 1e-6), optest.L2Norm(one(d.k, r, h.H*h.DK), h.DK, 1e-6)
		c.V, c.G = one(d.v, r, h.HV*h.DV), one(d.g, r, h.HV*h.DK)
		for _, x := range one(logits, r, h.HV) {
			c.Beta = append(c.Beta, 2*optest.Sigmoid(x))
		}
		if slots[i]&kdaFresh == 0 {
			c.S0 = one(d.state, slot, size)
		}
		o, st := c.Forward()
		copy(want[r*h.HV*h.DV:], o)
		copy(wantState[slot*size:], st)
	}
	x := KDADecode{Type: dt, KDAHeads: h, StepRows: StepRows{N: n, Rows: b.ints(rows...), Slots: b.ints(slots...)}, Scale: 0.5, Factor: 2, Normalize: true, Eps: 1e-6,
		Q: b.put(dt, d.q), K: b.put(dt, d.k), V: b.put(dt, d.v), G: b.put(F32, d.g), Beta: b.put(F32, logits)}
	for _, launch := range launches {
		for _, x.Settled = range []bool{false, true} {
			x.Out, x.State = b.out(dt, n*h.HV*h.DV), b.put(F32, d.state)
			require.NoError(t, launch(x, b.d.Main()))
			require.NoError(t, b.d.Main().Wait())
			got, gotState := b.get(dt, x.Out, n*h.HV*h.DV), b.get(F32, x.State, len(d.state))
			for r, w := range written { // rows that no entry names are as they were
				if !w {
					require.True(t, math.IsNaN(got[r*h.HV*h.DV]))
					clear(one(got, r, h.HV*h.DV))
					clear(one(want, r, h.HV*h.DV))
				}
			}
			near(t, dt, map[DType]float64{F32: 16, BF16: 1, F16: 1}[dt], want, got)
			near(t, F32, 8, wantState, gotState)
			for slot, w := range touched { // so are states
				if !w {
					require.Equal(t, one(d.state, slot, size), one(gotState, slot, size))
				}
			}
		}
	}
}

func TestDeviceKDAFused(t *testing.T) {
	for _, h := range []KDAHeads{{2, 2, 16, 24}, {2, 2, 128, 128}, {1, 1, 40, 20}, {1, 1, 256, 256}} {
		for _, dt := range []DType{F32, BF16, F16} {
			for _, bound := range []float64{0, -5} {
				b := newBench(t)
				const pool, n, width = 5, 4, 4
				rows, slots := []int{1, 0, 2, 3}, []int{4, 1, -1, 2 | kdaFresh}
				r := rand.New(rand.NewPCG(7, uint64(h.DK)))
				hk, hv := h.H*h.DK, h.H*h.DV
				x := map[string][]float64{"q": normal(r, dt, n*hk, 1), "k": normal(r, dt, n*hk, 1), "v": normal(r, dt, n*hv, 1)}
				w := map[string][]float64{"q": normal(r, F32, hk*width, .5), "k": normal(r, F32, hk*width, .5), "v": normal(r, F32, hv*width, .5)}
				past := map[string][]float64{"q": normal(r, F32, pool*hk*(width-1), 1), "k": normal(r, F32, pool*hk*(width-1), 1), "v": normal(r, F32, pool*hv*(width-1), 1)}
				z, gate, logits := normal(r, dt, n*hk, 2), normal(r, dt, n*hv, 1), normal(r, dt, n*h.H, 1)
				alog, dtBias, norm := normal(r, F32, h.H, .5), normal(r, F32, hk, 1), normal(r, F32, h.DV, 1)
				state := normal(r, F32, pool*h.H*h.DK*h.DV, 1)
				want, wantState := make([]float64, n*hv), append([]float64(nil), state...)
				wantPast := map[string][]float64{}
				for name, p := range past {
					wantPast[name] = append([]float64(nil), p...)
				}
				for i, row := range rows {
					if slots[i] < 0 {
						continue
					}
					slot, fresh := slots[i]&^kdaFresh, slots[i]&kdaFresh != 0
					conv := map[string][]float64{}
					for name, p := range past {
						c := len(x[name]) / n
						size := c * (width - 1)
						var before []float64
						if !fresh {
							before = p[slot*size:][:size]
						}
						y, next := optest.ShortConv(x[name][row*c:][:c], w[name], before, []int32{0, 1}, c, width)
						conv[name] = y
						copy(wantPast[name][slot*size:], next)
					}
					k := optest.KDA{Q: optest.L2Norm(conv["q"], h.DK, 1e-6), K: optest.L2Norm(conv["k"], h.DK, 1e-6), V: conv["v"],
						G: optest.KDAGate(z[row*hk:][:hk], alog, dtBias, h.H, h.DK, bound), Cu: []int32{0, 1}, H: h.H, HV: h.H, DK: h.DK, DV: h.DV, Scale: 1 / math.Sqrt(float64(h.DK))}
					for _, l := range logits[row*h.H:][:h.H] {
						k.Beta = append(k.Beta, optest.Sigmoid(l))
					}
					size := h.H * h.DK * h.DV
					if !fresh {
						k.S0 = state[slot*size:][:size]
					}
					o, st := k.Forward()
					copy(wantState[slot*size:], st)
					copy(want[row*hv:], optest.GatedRMSNorm(o, gate[row*hv:][:hv], norm, 1e-5))
				}
				out, pool32 := b.out(dt, n*hv), map[string]Pointer{}
				for name, p := range past {
					pool32[name] = b.put(F32, p)
				}
				st := b.put(F32, state)
				b.run(KDAFused{Type: dt, KDAHeads: h, StepRows: StepRows{N: n, Rows: b.ints(rows...), Slots: b.ints(slots...), Settled: bound < 0}, Width: width, Bound: float32(bound), Factor: 1, Eps: 1e-6, NormEps: 1e-5,
					Out: out, State: st, ConvQ: pool32["q"], ConvK: pool32["k"], ConvV: pool32["v"], XQ: b.put(dt, x["q"]), XK: b.put(dt, x["k"]), XV: b.put(dt, x["v"]),
					WQ: b.put(F32, w["q"]), WK: b.put(F32, w["k"]), WV: b.put(F32, w["v"]), Z: b.put(dt, z), ALog: b.put(F32, alog), DtBias: b.put(F32, dtBias),
					Beta: b.put(dt, logits), Gate: b.put(dt, gate), Norm: b.put(F32, norm)})
				near(t, dt, map[DType]float64{F32: 32, BF16: 1, F16: 1}[dt], want, b.get(dt, out, n*hv))
				near(t, F32, 16, wantState, b.get(F32, st, len(state)))
				for name, p := range wantPast {
					require.Equal(t, p, b.get(F32, pool32[name], len(p)), name)
				}
			}
		}
	}
}

// run puts the operands on the device, runs a kernel over all sequences, and returns outputs and states.
func (d kdaData) run(t *testing.T, dt DType, chunked bool, slots []int32, scale float32) (o, st []float64, raw []byte) {
	b := newBench(t)
	n := len(d.cu) - 1
	var table, chunks []int
	for s := range n {
		lo, hi := int(d.cu[s]), int(d.cu[s+1])
		table = append(table, lo, hi-lo, int(slots[s]), len(chunks)/2)
		for ; lo < hi; lo += KDAChunk {
			chunks = append(chunks, lo, min(KDAChunk, hi-lo))
		}
	}
	chunks = append(chunks, 0, 0) // one that is none
	out, state := b.out(dt, len(d.v)), b.put(F32, d.state)
	x := KDATokens{Type: dt, KDAHeads: d.KDAHeads, KDASequences: KDASequences{n, b.ints(table...)}, Scale: scale, Out: out, Final: state, S0: state,
		Q: b.put(dt, d.q), K: b.put(dt, d.k), V: b.put(dt, d.v), G: b.put(F32, d.g), Beta: b.put(F32, d.beta)}
	if chunked {
		p := KDAPrefill{KDATokens: x, Chunks: len(chunks) / 2, ChunkTable: b.ints(chunks...)}
		p.Scratch = b.alloc(int(p.ScratchBytes(b.d.Target()))).Pointer
		b.run(p)
	} else {
		b.run(KDARecurrent{x})
	}
	raw = b.raw(out, len(d.v)*dt.Size())
	return decode(dt, raw), b.get(F32, state, len(d.state)), raw
}

func TestDeviceKDAPrefill(t *testing.T) {
	lens := []int{5, 0, 64, 1, 130, 65, 0, 200}
	slots := []int32{3, 1, 0, 8, -1, 5 | kdaFresh, 2 | kdaFresh, 7}
	for _, h := range kdaDims {
		for _, gate := range []struct {
			name          string
			decay, spread float64
		}{{"slow", -6, 1}, {"mixed", -2, 2}, {"strong", 1.6, 0.1}, {"extreme", 2, 3}} {
			if h.DK > 128 && gate.name != "mixed" {
				continue // the reference takes its time
			}
			for _, dt := range []DType{F32, BF16, F16} {
				each(t, 13, fmt.Sprintf("%v/%+v/%s", dt, h, gate.name), func(t *testing.T) {
					d := newKDAData(dt, h, 9, gate.decay, gate.spread, lens...)
					states := append([]float64(nil), d.state...)
					plain := make([]int32, len(slots))
					size := h.HV * h.DK * h.DV
					for i, s := range slots {
						if plain[i] = s; s >= 0 && s&kdaFresh != 0 {
							plain[i] = s &^ kdaFresh
							clear(states[int(plain[i])*size:][:size])
						}
					}
					want, wantState := d.reference(0.3, plain, states)
					for _, chunked := range []bool{false, true} {
						if chunked && (dt == F32 || min(h.DK, h.DV) < 16) {
							continue
						}
						o, st, _ := d.run(t, dt, chunked, slots, 0.3)
						eo, es := rmsRatio(t, want, o), rmsRatio(t, wantState, st)
						if chunked && h.DK == 128 {
							fmt.Printf("KDA\t%v\t%+v\t%s\tchunked %v\to %.1e\tstate %.1e\n", dt, h, gate.name, chunked, eo, es)
						}
						require.Less(t, eo, kdaBound(dt), "chunked %v", chunked)
						require.Less(t, es, kdaBound(dt), "chunked %v", chunked)
					}
				})
			}
		}
	}
}

// More chunks than the scratch holds: the state passes from section to section.
func TestDeviceKDASections(t *testing.T) {
	h := KDAHeads{32, 32, 64, 64}
	d := newKDAData(BF16, h, 2, -5, 1, 1100, 300)
	slots := []int32{1, 0}
	want, wantState := d.reference(0.125, slots, d.state)
	o, st, _ := d.run(t, BF16, true, slots, 0.125)
	eo, es := rmsRatio(t, want, o), rmsRatio(t, wantState, st)
	fmt.Printf("KDA\tsections\to %.1e\tstate %.1e\n", eo, es)
	require.Less(t, eo, 5e-3)
	require.Less(t, es, 5e-3)
}

// What comes later changes no bit of what is before, also where it decays beyond what a factor can undo.
func TestDeviceKDAPrefixBits(t *testing.T) {
	h := KDAHeads{1, 1, 128, 128}
	for _, dt := range []DType{BF16, F16} {
		a := newKDAData(dt, h, 1, -3, 1, 200)
		_, _, one := a.run(t, dt, true, []int32{0}, 0.1)
		for _, from := range []int{40, 70, 137} {
			c := a
			c.g = append([]float64(nil), a.g...)
			for i := from * h.DK; i < len(c.g); i++ {
				c.g[i] *= 200
			}
			_, _, two := c.run(t, dt, true, []int32{0}, 0.1)
			n := from * h.DV * dt.Size()
			require.True(t, bytes.Equal(one[:n], two[:n]), "%v: outputs before token %d changed", dt, from)
			require.False(t, bytes.Equal(one, two))
		}
	}
}

// Sixteen and more equal keys at full strength and slow decay: inverses by powers lose everything.
func TestDeviceKDACorrelatedKeys(t *testing.T) {
	h := KDAHeads{1, 1, 128, 64}
	for _, dt := range []DType{F32, BF16, F16} {
		d := newKDAData(dt, h, 1, -7, 0, 192)
		for i := range d.k {
			d.k[i] = d.k[i%h.DK]
		}
		for i := range d.beta {
			d.beta[i] = 1
		}
		want, wantState := d.reference(0.1, []int32{0}, d.state)
		o, st, _ := d.run(t, dt, dt != F32, []int32{0}, 0.1)
		eo, es := rmsRatio(t, want, o), rmsRatio(t, wantState, st)
		fmt.Printf("KDA\tequal keys %v\to %.1e\tstate %.1e\n", dt, eo, es)
		require.Less(t, eo, kdaBound(dt))
		require.Less(t, es, kdaBound(dt))
	}
}

// decays are n log-decays about -0.07.
func (b *bench) decays(n int) Pointer {
	p := b.alloc(4 * n).Pointer
	const block = 1 << 18
	x := normal(rand.New(rand.NewPCG(1, 2)), F32, block, 1)
	for i, v := range x {
		x[i] = -0.1 * math.Log1p(math.Exp(v))
	}
	data := encode(F32, x)
	for at := 0; at < n; at += block {
		require.NoError(b.t, b.d.Upload(p.At(int64(4*at)), data[:4*min(block, n-at)]))
	}
	return p
}

func TestDeviceSpeedKDA(t *testing.T) {
	speed(t)
	for _, n := range []int{1, 8, 64, 256} {
		t.Run(fmt.Sprint("decode_B", n), func(t *testing.T) { speedKDADecode(t, n) })
	}
	for _, n := range []int{1024, 8192, 32768} {
		t.Run(fmt.Sprint("prefill_T", n), func(t *testing.T) { speedKDAPrefill(t, n) })
	}
}

func speedKDADecode(t *testing.T, n int) {
	h, b := KDAHeads{32, 32, 128, 128}, newBench(t)
	size := n * 32 * 128
	bytes, shape := 2*float64(size*128*4), fmt.Sprintf("B%d H32 D128 f32 state", n)
	sets := max(4, min(16, int(3e8/bytes)+1)) // states are settled when three other launches lie between
	var ls []KDADecode
	var fs []KDAFused
	w := b.random(F32, 32*128*4, .5)
	for range sets {
		d := KDADecode{Type: BF16, KDAHeads: h, StepRows: StepRows{N: n}, Normalize: true, Eps: 1e-6, Factor: 1, Out: b.out(BF16, size), State: b.random(F32, size*128, 1),
			Q: b.random(BF16, size, 1), K: b.random(BF16, size, 1), V: b.random(BF16, size, 1), G: b.decays(size), Beta: b.random(F32, n*32, 1)}
		past := func() Pointer { return b.random(F32, size*3, 1) }
		ls = append(ls, d)
		fs = append(fs, KDAFused{Type: BF16, KDAHeads: h, StepRows: StepRows{N: n}, Width: 4, Factor: 1, Eps: 1e-6, NormEps: 1e-5, Out: d.Out, State: d.State, ConvQ: past(), ConvK: past(), ConvV: past(),
			XQ: d.Q, XK: d.K, XV: d.V, WQ: w, WK: w, WV: w, Z: d.Q, ALog: w, DtBias: w, Beta: d.K, Gate: d.V, Norm: w})
	}
	for _, x := range []struct {
		name   string
		launch func(q Queue, i int) error
	}{
		{"kda decode core", func(q Queue, i int) error { return ls[i].Launch(q) }},
		{"kda decode core, settled", func(q Queue, i int) error { d := ls[i]; d.Settled = true; return d.Launch(q) }},
		{"kda decode core, columns", func(q Queue, i int) error { return ls[i].launchColumns(q) }},
		{"kda decode core, heads", func(q Queue, i int) error { return ls[i].launchHeads(q) }},
		{"kda fused layer", func(q Queue, i int) error { return fs[i].Launch(q) }},
		{"kda fused layer, settled", func(q Queue, i int) error { d := fs[i]; d.Settled = true; return d.Launch(q) }},
	} {
		row(t, x.name, shape, clock(t, b.d, 2*sets, func(q Queue, i int) error { return x.launch(q, i%sets) }), 0, bytes)
	}
}

func speedKDAPrefill(t *testing.T, tokens int) {
	h, b := KDAHeads{32, 32, 128, 128}, newBench(t)
	var table []int
	for c := range tokens / KDAChunk {
		table = append(table, c*KDAChunk, KDAChunk)
	}
	const sets = 2
	var ls []KDAPrefill
	size := tokens * 32 * 128
	for range sets {
		p := KDAPrefill{KDATokens: KDATokens{Type: BF16, KDAHeads: h, KDASequences: KDASequences{1, b.ints(0, tokens, kdaFresh, 0)}, Out: b.out(BF16, size), Final: b.out(F32, 32*128*128),
			Q: b.random(BF16, size, .1), K: b.random(BF16, size, .1), V: b.random(BF16, size, 1), G: b.decays(size), Beta: b.random(F32, tokens*32, .5)}, Chunks: len(table) / 2, ChunkTable: b.ints(table...)}
		if p.Scratch = b.alloc(int(p.ScratchBytes(b.d.Target()))).Pointer; len(ls) > 0 {
			p.Scratch = ls[0].Scratch
		}
		ls = append(ls, p)
	}
	shape := fmt.Sprintf("T%d H32 D128 bf16", tokens)
	us := clock(t, b.d, 2*sets, func(q Queue, i int) error { return ls[i%sets].Launch(q) })
	row(t, "kda prefill", shape, us, 180224*float64(tokens)*32, float64(tokens)*32*(128*12+2))
	for _, part := range []string{"chunk", "scan"} {
		us := clock(t, b.d, 2*sets, func(q Queue, i int) error { return ls[i%sets].Launch(onlyKernels{q, part}) })
		row(t, "kda prefill, "+part, shape, us, 0, 0)
	}
}

// onlyKernels lets launches through whose kernel has a part of the name.
type onlyKernels struct {
	Queue
	part string
}

func (q onlyKernels) Launch(l Launch) error {
	if !bytes.Contains([]byte(l.Kernel), []byte(q.part)) {
		return nil
	}
	return q.Queue.Launch(l)
}
