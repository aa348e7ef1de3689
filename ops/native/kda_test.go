package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

// kdaCase is one shape of the core; cu cuts the tokens.
type kdaCase struct {
	cu            []int32
	h, hv, dk, dv int
	decay         float64 // mean of -g
	beta          float64 // largest write strength: 1, or 2 for negative eigenvalues
	noState       bool
}

func (c kdaCase) String() string {
	return fmt.Sprintf("cu%v_H%d_HV%d_K%d_V%d_g%g_b%g", c.cu, c.h, c.hv, c.dk, c.dv, c.decay, c.beta)
}

func kdaCases() []kdaCase {
	var all []kdaCase
	for _, t := range []int32{1, 15, 16, 17, 63, 64, 65, 129} {
		all = append(all, kdaCase{cu: []int32{0, t}, h: 1, hv: 1, dk: 16, dv: 8, decay: .3, beta: 1})
	}
	for _, k := range []int{16, 40, 96, 128} {
		all = append(all, kdaCase{cu: []int32{0, 65}, h: 1, hv: 1, dk: k, dv: 5, decay: .1, beta: 1})
	}
	for _, g := range []int{1, 2, 4} {
		all = append(all, kdaCase{cu: []int32{0, 40}, h: 2, hv: 2 * g, dk: 16, dv: 35, decay: .3, beta: 2})
	}
	return append(all,
		kdaCase{cu: []int32{0, 0, 5, 5, 40, 41, 110, 110}, h: 2, hv: 4, dk: 7, dv: 9, decay: .2, beta: 1},
		kdaCase{cu: []int32{0, 30, 70}, h: 1, hv: 1, dk: 4, dv: 3, decay: 1, beta: 1, noState: true},
		kdaCase{cu: []int32{0, 70}, h: 1, hv: 1, dk: 16, dv: 16, decay: 12, beta: 1},
		kdaCase{cu: []int32{0, 130}, h: 1, hv: 1, dk: 8, dv: 64, decay: .003, beta: 2},
		kdaCase{cu: []int32{0, 0}, h: 2, hv: 2, dk: 4, dv: 4, decay: 1, beta: 1},
	)
}

// call makes the operands of a case: normalised queries and keys, decays of
// mean c.decay, write strengths up to c.beta.
func kdaCall[T Float](c kdaCase) KDA[T] {
	r := rand.New(rand.NewPCG(11, uint64(c.dk*1000+c.dv)))
	n := int(c.cu[len(c.cu)-1])
	k := KDA[T]{Cu: c.cu, Seqs: len(c.cu) - 1, Tokens: n, H: c.h, HV: c.hv, DK: c.dk, DV: c.dv}
	k.Q, k.K = normalised(normals[T](r, n*c.h*c.dk), c.dk), normalised(normals[T](r, n*c.h*c.dk), c.dk)
	k.V = normals[T](r, n*c.hv*c.dv)
	for range n * c.hv * c.dk {
		k.G = append(k.G, T(-c.decay*r.ExpFloat64()))
	}
	for range n * c.hv {
		k.Beta = append(k.Beta, T(c.beta*r.Float64()))
	}
	if !c.noState {
		k.S0 = normals[T](r, (len(c.cu)-1)*c.hv*c.dk*c.dv)
	}
	return k
}

func oracleOf[T Float](k KDA[T]) optest.KDA {
	return optest.KDA{Q: wide(k.Q), K: wide(k.K), V: wide(k.V), G: wide(k.G), Beta: wide(k.Beta), S0: wide(k.S0),
		Cu: k.Cu, H: k.H, HV: k.HV, DK: k.DK, DV: k.DV, Scale: 1 / math.Sqrt(float64(k.DK))}
}

func flat[T Float](parts ...[]T) []T {
	var all []T
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// float32 by rms, in unit roundoffs: o and states measured at most 7.5,
// gradients 12, dg by chunks 24 (a sum of terms of both signs).
func TestKDAEqualsOracle(t *testing.T) { both(t, testKDAOracle[float32], testKDAOracle[float64]) }

func testKDAOracle[T Float](t *testing.T) {
	for _, c := range kdaCases() {
		k := kdaCall[T](c)
		oracle := oracleOf(k)
		wantO, wantS := oracle.Forward()
		r := rand.New(rand.NewPCG(12, 12))
		do, dst := normals[T](r, len(k.V)), normals[T](r, len(wantS))
		want := oracle.Grad(wide(do), wide(dst))
		for _, form := range kdaForms[T]() {
			t.Run(form.name+"/"+c.String(), func(t *testing.T) {
				k.Chunk = form.chunk
				o, st := nans[T](len(k.V)), nans[T](len(wantS))
				states := nans[T](KDACheckpoints(len(c.cu)-1, k.Tokens, form.chunk) * k.HV * k.DK * k.DV)
				g := kdaGradBuffers(k)
				eachWorkers(t, func() []T {
					unmodified(t, func() {
						form.forward(o, st, states, k)
						form.grad(g, do, dst, states, k)
					}, k.Q, k.K, k.V, k.G, k.Beta, k.S0, do, dst)
					return flat(o, st, g.Q, g.K, g.V, g.G, g.Beta, g.S0)
				})
				requireGuard(t, states)
				near(t, "o", o, wantO, 16)
				near(t, "st", st, wantS, 16)
				near(t, "dq", g.Q, want.Q, 40)
				near(t, "dk", g.K, want.K, 40)
				near(t, "dv", g.V, want.V, 40)
				near(t, "dg", g.G, want.G, 40)
				near(t, "dbeta", g.Beta, want.Beta, 40)
				near(t, "dS0", g.S0, want.S0, 40)
			})
		}
	}
}

// The gradient without a final-state gradient, without dS0, from zeros.
func TestKDAOptionalOperands(t *testing.T) {
	k := kdaCall[float64](kdaCase{cu: []int32{0, 20, 50}, h: 1, hv: 2, dk: 8, dv: 6, decay: .3, beta: 1, noState: true})
	oracle := oracleOf(k)
	wantO, _ := oracle.Forward()
	do := normals[float64](rand.New(rand.NewPCG(13, 13)), len(k.V))
	want := oracle.Grad(do, nil)
	for _, form := range kdaForms[float64]() {
		k.Chunk = form.chunk
		o := nans[float64](len(k.V))
		states := nans[float64](KDACheckpoints(2, 50, form.chunk) * k.HV * k.DK * k.DV)
		form.forward(o, nil, states, k)
		near(t, "o", o, wantO, 0)
		g := kdaGradBuffers(k)
		g.S0 = nil
		form.grad(g, do, nil, states, k)
		near(t, "dq", g.Q, want.Q, 0)
		near(t, "dg", g.G, want.G, 0)
		even := k // equal lengths need no cu
		even.Cu, even.Seqs = nil, 2
		cut := k
		cut.Cu = []int32{0, 25, 50}
		a, b := nans[float64](len(k.V)), nans[float64](len(k.V))
		form.forward(a, nil, nil, even)
		form.forward(b, nil, nil, cut)
		requireSameBits(t, a, b)
	}
}

func TestKDAGradByDifferences(t *testing.T) {
	k := kdaCall[float64](kdaCase{cu: []int32{0, 21, 21, 39}, h: 1, hv: 2, dk: 6, dv: 5, decay: .3, beta: 2})
	for _, form := range kdaForms[float64]() {
		k.Chunk = form.chunk
		projected(t, form.name, func() [][]float64 {
			o, st := nans[float64](len(k.V)), nans[float64](len(k.S0))
			form.forward(o, st, nil, k)
			return [][]float64{o, st}
		}, func(u [][]float64) [][]float64 {
			states := nans[float64](KDACheckpoints(3, 39, form.chunk) * k.HV * k.DK * k.DV)
			form.forward(nans[float64](len(k.V)), nil, states, k)
			g := kdaGradBuffers(k)
			form.grad(g, u[0], u[1], states, k)
			return [][]float64{g.Q, g.K, g.V, g.G, g.Beta, g.S0}
		}, k.Q, k.K, k.V, k.G, k.Beta, k.S0)
	}
}

// V-first states are the transposes of K-first ones, bit for bit.
func TestKDAStateLayout(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 21, 40}, h: 1, hv: 2, dk: 6, dv: 35, decay: .3, beta: 1})
	r := rand.New(rand.NewPCG(14, 14))
	do, dst := normals[float32](r, len(k.V)), normals[float32](r, len(k.S0))
	turn := func(x []float32, rows, cols int) []float32 {
		var y []float32
		for i := 0; i < len(x); i += rows * cols {
			y = append(y, transpose(x[i:i+rows*cols], rows, cols)...)
		}
		return y
	}
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		run := func(k KDA[float32], dst []float32) (out, st, ds []float32) {
			o, st := nans[float32](len(k.V)), nans[float32](len(k.S0))
			states := nans[float32](KDACheckpoints(2, 40, form.chunk) * k.HV * k.DK * k.DV)
			form.forward(o, st, states, k)
			g := kdaGradBuffers(k)
			form.grad(g, do, dst, states, k)
			return flat(o, g.Q, g.K, g.V, g.G, g.Beta), st, g.S0
		}
		out, st, ds := run(k, dst)
		v := k
		v.VFirst, v.S0 = true, turn(k.S0, 6, 35)
		outV, stV, dsV := run(v, turn(dst, 6, 35))
		requireSameBits(t, out, outV)
		requireSameBits(t, turn(st, 6, 35), stV)
		requireSameBits(t, turn(ds, 6, 35), dsV)
	}
}

// tokens returns tokens [lo,hi) of a call with one sequence.
func (k KDA[T]) tokens(lo, hi int) KDA[T] {
	k.Q, k.K = k.Q[lo*k.H*k.DK:hi*k.H*k.DK], k.K[lo*k.H*k.DK:hi*k.H*k.DK]
	k.V, k.G = k.V[lo*k.HV*k.DV:hi*k.HV*k.DV], k.G[lo*k.HV*k.DK:hi*k.HV*k.DK]
	k.Beta, k.Cu, k.Seqs, k.Tokens = k.Beta[lo*k.HV:hi*k.HV], nil, 1, hi-lo
	return k
}

// A prompt in three pieces equals one pass, gradients included: the final
// state of a piece is the initial state of the next, and dS0 flows back.
func TestKDASplitInThree(t *testing.T) {
	k := kdaCall[float64](kdaCase{cu: []int32{0, 129}, h: 1, hv: 2, dk: 8, dv: 6, decay: .2, beta: 1})
	r := rand.New(rand.NewPCG(15, 15))
	do, dst := normals[float64](r, len(k.V)), normals[float64](r, len(k.S0))
	for _, form := range kdaForms[float64]() {
		k.Chunk = form.chunk
		wantO, wantS := nans[float64](len(k.V)), nans[float64](len(k.S0))
		all := nans[float64](KDACheckpoints(1, 129, form.chunk) * k.HV * k.DK * k.DV)
		form.forward(wantO, wantS, all, k)
		want := kdaGradBuffers(k)
		form.grad(want, do, dst, all, k)

		cuts := []int{0, 37, 64, 129}
		s, o := k.S0, nans[float64](len(k.V))
		var pieces []KDA[float64]
		var states [][]float64
		for i := range 3 {
			p := k.tokens(cuts[i], cuts[i+1])
			p.S0 = s
			st := nans[float64](len(s))
			cp := nans[float64](KDACheckpoints(1, p.Tokens, form.chunk) * k.HV * k.DK * k.DV)
			form.forward(o[cuts[i]*k.HV*k.DV:], st, cp, p)
			pieces, states, s = append(pieces, p), append(states, cp), st
		}
		near(t, "o", o, wantO, 0)
		near(t, "st", s, wantS, 0)
		ds := dst
		for i := 2; i >= 0; i-- {
			g := kdaGradBuffers(pieces[i])
			form.grad(g, do[cuts[i]*k.HV*k.DV:], ds, states[i], pieces[i])
			near(t, "dk", g.K, want.K[cuts[i]*k.DK:cuts[i+1]*k.DK], 0)
			near(t, "dg", g.G, want.G[cuts[i]*k.HV*k.DK:cuts[i+1]*k.HV*k.DK], 0)
			ds = g.S0
		}
		near(t, "dS0", ds, want.S0, 0)
	}
}

// Whatever follows a prefix, its outputs keep their bits.
func TestKDAPrefixIsBitStable(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 129}, h: 1, hv: 2, dk: 16, dv: 40, decay: 2, beta: 1})
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		whole := nans[float32](len(k.V))
		form.forward(whole, nil, nil, k)
		for _, n := range []int{1, 7, 16, 40, 64, 65, 100, 128} {
			o := nans[float32](n * k.HV * k.DV)
			form.forward(o, nil, nil, k.tokens(0, n))
			requireSameBits(t, whole[:n*k.HV*k.DV], o)

			other := k
			other.Q, other.K, other.V = append([]float32{}, k.Q...), append([]float32{}, k.K...), append([]float32{}, k.V...)
			other.G, other.Beta = append([]float32{}, k.G...), append([]float32{}, k.Beta...)
			for t := n; t < 129; t++ {
				for h := range k.HV {
					other.Beta[t*k.HV+h] = 1
					for d := range k.DK {
						other.G[(t*k.HV+h)*k.DK+d] = -1000
					}
					for v := range k.DV {
						other.V[(t*k.HV+h)*k.DV+v] = 1e10
					}
				}
				for d := range k.DK {
					other.K[t*k.DK+d], other.Q[t*k.DK+d] = -.5, .5
				}
			}
			full := nans[float32](len(k.V))
			form.forward(full, nil, nil, other)
			requireSameBits(t, whole[:n*k.HV*k.DV], full[:n*k.HV*k.DV])
		}
	}
}

func TestKDADoesNotAllocate(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 70}, h: 1, hv: 2, dk: 16, dv: 16, decay: .2, beta: 1})
	for _, form := range kdaForms[float32]() {
		k.Chunk = form.chunk
		o, st := nans[float32](len(k.V)), nans[float32](len(k.S0))
		states := nans[float32](KDACheckpoints(1, 70, form.chunk) * k.HV * k.DK * k.DV)
		g := kdaGradBuffers(k)
		run := func() {
			form.forward(o, st, states, k)
			form.grad(g, o, st, states, k)
		}
		run()
		require.LessOrEqual(t, testing.AllocsPerRun(50, run), 0.0, form.name)
	}
}

// Every kernel set computes the same within rounding: a short case on each.
func TestKDAOnEveryKernel(t *testing.T) {
	k := kdaCall[float32](kdaCase{cu: []int32{0, 70}, h: 1, hv: 2, dk: 20, dv: 13, decay: .5, beta: 1})
	wantO, wantS := oracleOf(k).Forward()
	do := normals[float32](rand.New(rand.NewPCG(16, 16)), len(k.V))
	want := oracleOf(k).Grad(wide(do), nil)
	eachKernel(t, func(t *testing.T) {
		for _, form := range kdaForms[float32]() {
			o, st, g := runForm(form, k, do, nil)
			near(t, "o", o, wantO, 16)
			near(t, "st", st, wantS, 16)
			near(t, "dk", g.K, want.K, 40)
			near(t, "dg", g.G, want.G, 40)
		}
	})
}
