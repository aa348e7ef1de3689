package models

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

// TestEveryNumberOfMXFP4 compares all of them, which bfloat16 holds exactly, with the
// definition. A folder's scale 255 is no number, that of a GGUF file is 2^128.
func TestEveryNumberOfMXFP4(t *testing.T) {
	for scale := range 256 {
		for code := range 16 {
			magnitude := float64([]int{0, 1, 2, 3, 4, 6, 8, 12}[code%8]) / 2
			x := math.Copysign(math.Ldexp(magnitude, scale-127), 1-float64(code/8*2))
			folder, file := x, x
			if scale == 255 {
				folder = math.Copysign(magnitude*math.Inf(1), x)
			}
			if code == 8 {
				file = 0 // minus zero is zero
			}
			got := dtype.BF16(fp4Values()[scale][code]).Float32()
			if math.IsNaN(folder) {
				require.True(t, math.IsNaN(float64(got)))
			} else {
				require.Equal(t, math.Float32bits(float32(folder)), math.Float32bits(got), "scale %d code %d", scale, code)
			}
			got = dtype.BF16(ggufFP4Values()[scale][code]).Float32()
			require.Equal(t, math.Float32bits(float32(file)), math.Float32bits(got), "scale %d code %d", scale, code)
		}
	}
}
