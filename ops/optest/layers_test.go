package optest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func near(t *testing.T, want, got []float64, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, want[i], got[i], tolerance, "element %d of %v, want %v", i, got, want)
	}
}

func TestEmbedding(t *testing.T) {
	table := []float64{0, 1, 10, 11, 20, 21}
	require.Equal(t, []float64{20, 21, 0, 1, 20, 21}, Embedding(table, []int32{2, 0, 2}, 2))
	require.Empty(t, Embedding(table, nil, 2))
	ids := Ints("ids", 9, 5)
	CheckGradient(t, "embedding",
		func(in [][]float64) [][]float64 { return [][]float64{Embedding(in[0], ids, 3)} },
		func(in, d [][]float64) [][]float64 { return [][]float64{EmbeddingGrad(d[0], ids, 5, 3)} },
		Normals("table", 15, 1))
}

func TestLinear(t *testing.T) {
	x, w := []float64{1, 2, 3, 4, 5, 6}, []float64{1, 0, -1, 2, 2, 2}
	require.Equal(t, []float64{-2 + 10, 12 + 20, -2 + 10, 30 + 20}, Linear(x, w, []float64{10, 20}, 2, 2, 3))
	for _, c := range []struct{ m, n, k int }{{1, 1, 1}, {3, 5, 7}, {0, 2, 3}, {2, 0, 3}, {2, 3, 0}} {
		x, w, b := Normals("x", c.m*c.k, 1), Normals("w", c.n*c.k, 1), Normals("b", c.n, 1)
		require.Len(t, Linear(x, w, b, c.m, c.n, c.k), c.m*c.n)
		CheckGradient(t, "linear",
			func(in [][]float64) [][]float64 { return [][]float64{Linear(in[0], in[1], in[2], c.m, c.n, c.k)} },
			func(in, d [][]float64) [][]float64 {
				dx, dw, db := LinearGrad(d[0], in[0], in[1], c.m, c.n, c.k)
				return [][]float64{dx, dw, db}
			}, x, w, b)
	}
}

func TestMatMul_Layouts(t *testing.T) {
	m, n, k := 2, 3, 4
	a, b := Normals("a", m*k, 1), Normals("b", k*n, 1)
	transpose := func(x []float64, rows, cols int) []float64 {
		var y []float64
		for j := range cols {
			for i := range rows {
				y = append(y, x[i*cols+j])
			}
		}
		return y
	}
	at, bt := transpose(a, m, k), transpose(b, k, n)
	want := MatMul(a, b, m, n, k, false, false)
	require.InDelta(t, a[4]*b[2]+a[5]*b[5]+a[6]*b[8]+a[7]*b[11], want[5], 1e-15)
	require.Equal(t, want, MatMul(at, b, m, n, k, true, false))
	require.Equal(t, want, MatMul(a, bt, m, n, k, false, true))
	require.Equal(t, want, MatMul(at, bt, m, n, k, true, true))
}

func TestRMSNorm(t *testing.T) {
	near(t, []float64{3 / math.Sqrt(12.6), 8 / math.Sqrt(12.6), 0, 0}, RMSNorm([]float64{3, 4, 0, 0}, []float64{1, 2}, 2, 2, 0.1), 1e-15)
	for _, withWeight := range []bool{true, false} {
		CheckGradient(t, "rmsnorm",
			func(in [][]float64) [][]float64 {
				if withWeight {
					return [][]float64{RMSNorm(in[0], in[1], 4, 7, 1e-5)}
				}
				return [][]float64{RMSNorm(in[0], nil, 4, 7, 1e-5)}
			},
			func(in, d [][]float64) [][]float64 {
				w := in[1]
				if !withWeight {
					w = nil
				}
				dx, dw := RMSNormGrad(d[0], in[0], w, 4, 7, 1e-5)
				require.Equal(t, withWeight, dw != nil)
				return [][]float64{dx, dw}
			},
			Normals("x", 28, 1), Normals("w", 7, 1))
	}
}

func TestLayerNorm(t *testing.T) {
	near(t, []float64{1 - 2/math.Sqrt(4.1), 1 + 4/math.Sqrt(4.1)}, LayerNorm([]float64{1, 5}, []float64{1, 2}, []float64{1, 1}, 1, 2, 0.1), 1e-15)
	CheckGradient(t, "layernorm",
		func(in [][]float64) [][]float64 { return [][]float64{LayerNorm(in[0], in[1], in[2], 4, 7, 1e-5)} },
		func(in, d [][]float64) [][]float64 {
			dx, dw, db := LayerNormGrad(d[0], in[0], in[1], 4, 7, 1e-5)
			return [][]float64{dx, dw, db}
		},
		Normals("x", 28, 1), Normals("w", 7, 1), Normals("b", 7, 1))
	CheckGradient(t, "layernorm without weight",
		func(in [][]float64) [][]float64 { return [][]float64{LayerNorm(in[0], nil, nil, 4, 7, 1e-5)} },
		func(in, d [][]float64) [][]float64 {
			dx, dw, _ := LayerNormGrad(d[0], in[0], nil, 4, 7, 1e-5)
			require.Nil(t, dw)
			return [][]float64{dx}
		}, Normals("x", 28, 1))
}

func TestGatedUnits(t *testing.T) {
	// silu(1) = 0.7310585786300049, silu(-2) = -0.2384058440442351.
	near(t, []float64{0.7310585786300049, -0.7152175321327053}, SwiGLU([]float64{1, -2}, []float64{1, 3}), 1e-15)
	// gelu(1) = 0.8413447460685429 (erf), 0.8411919906082768 (tanh).
	require.InDelta(t, 0.8413447460685429, GELU(1, false), 1e-15)
	require.InDelta(t, 0.8411919906082768, GELU(1, true), 1e-15)
	// Far out in the tail, where 1 + erf and 1 + tanh would have cancelled.
	require.InEpsilon(t, -2.8072868906517896e-12, SwiGLU([]float64{-30}, []float64{1})[0], 1e-14)
	require.InEpsilon(t, -4.9767684594174555e-15, GELU(-8, false), 1e-13)
	require.InEpsilon(t, -8.43964670076231e-11, GELU(-6, true), 1e-13)
	dgate, _ := SwiGLUGrad([]float64{1}, []float64{-30}, []float64{1})
	require.InEpsilon(t, -2.7137106609631345e-12, dgate[0], 1e-14)
	gate, up := Normals("gate", 40, 2), Normals("up", 40, 1)
	CheckGradient(t, "swiglu",
		func(in [][]float64) [][]float64 { return [][]float64{SwiGLU(in[0], in[1])} },
		func(in, d [][]float64) [][]float64 {
			dg, du := SwiGLUGrad(d[0], in[0], in[1])
			return [][]float64{dg, du}
		}, gate, up)
	for _, tanh := range []bool{false, true} {
		CheckGradient(t, "geglu",
			func(in [][]float64) [][]float64 { return [][]float64{GeGLU(in[0], in[1], tanh)} },
			func(in, d [][]float64) [][]float64 {
				dg, du := GeGLUGrad(d[0], in[0], in[1], tanh)
				return [][]float64{dg, du}
			}, gate, up)
	}
	CheckGradient(t, "add",
		func(in [][]float64) [][]float64 { return [][]float64{Add(in[0], in[1])} },
		func(in, d [][]float64) [][]float64 {
			da, db := AddGrad(d[0])
			return [][]float64{da, db}
		}, gate, up)
}

func TestCrossEntropy(t *testing.T) {
	logits := Normals("logits", 6*5, 2)
	labels := []int32{0, 4, -100, 2, 2, -100}
	// By products: the loss is -log of the probability of the labels' sequence.
	product := 1.0
	for _, i := range []int{0, 1, 3, 4} {
		sum := 0.0
		for _, z := range logits[i*5 : i*5+5] {
			sum += math.Exp(z)
		}
		product *= math.Exp(logits[i*5+int(labels[i])]) / sum
	}
	r := CrossEntropy(logits, labels, 5, -100, 0)
	require.InDelta(t, -math.Log(product)/4, r.Loss, 1e-14)
	require.Equal(t, 4, r.Count)
	require.Len(t, r.LSE, 6)
	for _, z := range []float64{0, 0.01} {
		CheckGradient(t, "cross entropy",
			func(in [][]float64) [][]float64 {
				return [][]float64{{CrossEntropy(in[0], labels, 5, -100, z).Loss}}
			},
			func(in, d [][]float64) [][]float64 {
				return [][]float64{CrossEntropyGrad(d[0][0], in[0], labels, 5, -100, z)}
			}, logits)
	}
	huge := CrossEntropy([]float64{1e5, -1e5, 0}, []int32{1}, 3, -100, 0)
	require.Equal(t, 2e5, huge.Loss)
}

// Micro-batches of 11 tokens with mean loss 2 and 101 with mean loss 1 weigh by
// their tokens; the gradients of the parts add up to that of the whole.
func TestN01_MicroBatchesWeighByTokens(t *testing.T) {
	// Two classes, logits (0, z): the loss of label 0 is log(1 + e^z).
	part := func(n int, loss float64) ([]float64, []int32) {
		var logits []float64
		for range n {
			logits = append(logits, 0, math.Log(math.Exp(loss)-1))
		}
		return logits, make([]int32, n)
	}
	la, ya := part(11, 2)
	lb, yb := part(101, 1)
	a, b := CrossEntropy(la, ya, 2, -100, 0), CrossEntropy(lb, yb, 2, -100, 0)
	require.InDelta(t, 2, a.Loss, 1e-12)
	require.InDelta(t, 1, b.Loss, 1e-12)
	whole := CrossEntropy(append(la[:len(la):len(la)], lb...), append(ya, yb...), 2, -100, 0)
	require.InDelta(t, 1.098214, whole.Loss, 5e-7)
	require.InDelta(t, whole.Loss, (a.Sum+b.Sum)/float64(a.Count+b.Count), 1e-14)

	g := CrossEntropyGrad(1, append(la[:len(la):len(la)], lb...), make([]int32, 112), 2, -100, 0)
	near(t, g[:22], CrossEntropyGrad(11.0/112, la, ya, 2, -100, 0), 1e-15)
	near(t, g[22:], CrossEntropyGrad(101.0/112, lb, yb[:101], 2, -100, 0), 1e-15)
}

func TestN02_AllLabelsIgnored(t *testing.T) {
	logits := Normals("logits", 6, 1)
	r := CrossEntropy(logits, []int32{-100, -100}, 3, -100, 0.1)
	require.Zero(t, r.Loss)
	require.Zero(t, r.Count)
	require.Equal(t, make([]float64, 6), CrossEntropyGrad(1, logits, []int32{-100, -100}, 3, -100, 0.1))
}
