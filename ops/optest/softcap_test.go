package optest

import "testing"

func TestSoftcapGradient(t *testing.T) {
	CheckGradient(t, "softcap",
		func(in [][]float64) [][]float64 { return [][]float64{Softcap(in[0], 1.5)} },
		func(in, d [][]float64) [][]float64 { return [][]float64{SoftcapGrad(d[0], in[0], 1.5)} },
		[]float64{-4, -0.3, 0, 0.7, 2.5})
}
