package optest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShortConv(t *testing.T) {
	// One channel, taps 1, 10, 100: each output is the SiLU of its window.
	y, next := ShortConv([]float64{1, 2, 3}, []float64{1, 10, 100}, []float64{5, 7}, []int32{0, 3}, 1, 3)
	for i, a := range []float64{175, 217, 321} {
		require.InDelta(t, a, y[i], 1e-9)
	}
	require.Equal(t, []float64{2, 3}, next)
	cu := []int32{0, 2, 2, 9}
	CheckGradient(t, "short conv",
		func(in [][]float64) [][]float64 {
			y, next := ShortConv(in[0], in[1], in[2], cu, 3, 4)
			return [][]float64{y, next}
		},
		func(in, d [][]float64) [][]float64 {
			dx, dw, ds := ShortConvGrad(d[0], d[1], in[0], in[1], in[2], cu, 3, 4)
			return [][]float64{dx, dw, ds}
		},
		Normals("x", 27, 1), Normals("w", 12, 1), Normals("state", 27, 1))
}

func TestKDAParts(t *testing.T) {
	for _, bound := range []float64{0, -5} {
		CheckGradient(t, "gate",
			func(in [][]float64) [][]float64 { return [][]float64{KDAGate(in[0], in[1], in[2], 2, 3, bound)} },
			func(in, d [][]float64) [][]float64 {
				dz, da, db := KDAGateGrad(d[0], in[0], in[1], in[2], 2, 3, bound)
				return [][]float64{dz, da, db}
			},
			Normals("z", 24, 1), Normals("A_log", 2, 1), Normals("dt_bias", 6, 1))
	}
	CheckGradient(t, "l2 norm",
		func(in [][]float64) [][]float64 { return [][]float64{L2Norm(in[0], 5, 1e-6)} },
		func(in, d [][]float64) [][]float64 { return [][]float64{L2NormGrad(d[0], in[0], 5, 1e-6)} },
		Normals("x", 15, 1))
	CheckGradient(t, "gated norm",
		func(in [][]float64) [][]float64 { return [][]float64{GatedRMSNorm(in[0], in[1], in[2], 1e-5)} },
		func(in, d [][]float64) [][]float64 {
			dx, dg, dw := GatedRMSNormGrad(d[0], in[0], in[1], in[2], 1e-5)
			return [][]float64{dx, dg, dw}
		},
		Normals("x", 15, 1), Normals("gate", 15, 1), Normals("w", 5, 1))
}

func kdaTestCall(in [][]float64) KDA {
	return KDA{Q: in[0], K: in[1], V: in[2], G: in[3], Beta: in[4], S0: in[5],
		Cu: []int32{0, 3, 3, 10}, H: 2, HV: 4, DK: 3, DV: 2, Scale: .5}
}

func TestKDA(t *testing.T) {
	in := [][]float64{
		Normals("q", 60, 1), Normals("k", 60, .5), Normals("v", 80, 1),
		Uniforms("g", 120, -2, 0), Uniforms("beta", 40, 0, 2), Normals("s0", 72, 1),
	}
	CheckGradient(t, "kda",
		func(in [][]float64) [][]float64 {
			o, st := kdaTestCall(in).Forward()
			return [][]float64{o, st}
		},
		func(in, d [][]float64) [][]float64 {
			g := kdaTestCall(in).Grad(d[0], d[1])
			return [][]float64{g.Q, g.K, g.V, g.G, g.Beta, g.S0}
		}, in...)
	c := kdaTestCall(in)
	_, st := c.Forward()
	require.Equal(t, c.S0[24:48], st[24:48], "an empty sequence keeps its state")

	// The chunked form of the third sequence as one chunk ends in the same state.
	c.Q, c.K, c.V, c.G, c.Beta, c.S0 = c.Q[18:], c.K[18:], c.V[24:], c.G[36:], c.Beta[12:], c.S0[48:]
	for h := range 4 {
		near(t, st[48+6*h:48+6*h+6], c.ChunkForm(h, 7).Next, 1e-12)
	}
}

// K10, from the public reference recurrence.
func TestK10_KDAReferenceRecurrence(t *testing.T) {
	g := make([]float64, 8)
	for i := range g {
		g[i] = -.1
	}
	o, s := KDA{Q: []float64{1, 0, 0, 1, 1, 1, 1, 0}, K: []float64{1, 0, 0, 1, 1, 0, 0, 1}, V: []float64{1, 2, 3, 4}, G: g,
		Beta: []float64{.5, .5, .5, .5}, Cu: []int32{0, 4}, H: 1, HV: 1, DK: 2, DV: 1, Scale: 0.7071067811865476}.Forward()
	near(t, []float64{0.353553, 0.707107, 1.845209, 1.090684}, o, 1e-6)
	near(t, []float64{1.542461, 2.409365}, s, 1e-6)
}
