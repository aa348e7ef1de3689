package optest

import "testing"

func TestMSEAndMulOracles(t *testing.T) {
	near(t, []float64{(9.0 + 0 + 4) / 3}, []float64{MSE([]float64{1, 2, 3}, []float64{4, 2, 1})}, 1e-15)
	near(t, []float64{0}, []float64{MSE(nil, nil)}, 0)
	x, y := Normals("x", 37, 1), Normals("y", 37, 1)
	CheckGradient(t, "mse",
		func(in [][]float64) [][]float64 { return [][]float64{{MSE(in[0], in[1])}} },
		func(in, d [][]float64) [][]float64 {
			dx, dy := MSEGrad(d[0][0], in[0], in[1])
			return [][]float64{dx, dy}
		}, x, y)
	near(t, []float64{-2, 12}, Mul([]float64{1, 3}, []float64{-2, 4}), 0)
	CheckGradient(t, "mul",
		func(in [][]float64) [][]float64 { return [][]float64{Mul(in[0], in[1])} },
		func(in, d [][]float64) [][]float64 { return [][]float64{Mul(d[0], in[1]), Mul(d[0], in[0])} }, x, y)
	near(t, []float64{-2, -6, 4, 20}, MulRows([]float64{1, 3, 1, 5}, []float64{-2, 4}), 0)
	CheckGradient(t, "mul",
		func(in [][]float64) [][]float64 { return [][]float64{MulRows(in[0], in[1])} },
		func(in, d [][]float64) [][]float64 {
			return [][]float64{MulRows(d[0], in[1]), MulRowsGrad(d[0], in[0], len(in[1]))}
		}, Normals("x", 21, 1), Normals("y", 3, 1))
}
