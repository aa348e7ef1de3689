// Tests of FP8 weights and their steps.

package checkpoint

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

func saved(t *testing.T, entries ...Entry) *Checkpoint {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, save(path, SaveOptions{}, entries...))
	c, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestFP8Steps dequantises with each kind of steps and compares element by
// element with the definition.
func TestFP8Steps(t *testing.T) {
	const n, k = 130, 259
	codes := make([]dtype.E4M3, n*k)
	for i := range codes {
		codes[i] = dtype.E4M3(i * 7 % 0x7F)
	}
	step := func(i int) float32 { return float32(i+1) * 0.01 }
	steps := func(n int) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = step(i)
		}
		return s
	}
	for _, c := range []struct {
		name  string
		entry Entry
		at    func(row, col int) int
	}{
		{"scalar", Values("w_scale", steps(1)), func(_, _ int) int { return 0 }},
		{"one", Values("w_scale", steps(1), 1), func(_, _ int) int { return 0 }},
		{"one by one", Values("w_scale_inv", steps(1), 1, 1), func(_, _ int) int { return 0 }},
		{"rows", Values("w_scale", steps(n), n), func(row, _ int) int { return row }},
		{"rows by one", Values("w_scale", steps(n), n, 1), func(row, _ int) int { return row }},
		{"blocks", Values("w_scale_inv", steps(6), 2, 3), func(row, col int) int { return row/128*3 + col/128 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := saved(t, Values("w", codes, n, k), c.entry)
			w, err := f.FP8("w")
			require.NoError(t, err)
			require.Equal(t, c.entry.Name, w.StepsName)
			got := nans(n * k)
			require.NoError(t, w.Float32(got))
			for row := range n {
				for col := range k {
					want := codes[row*k+col].Float32() * step(c.at(row, col))
					require.Equal(t, want, got[row*k+col])
					require.Equal(t, step(c.at(row, col)), w.Step(row, col))
				}
			}
			same := make([]dtype.E4M3, n*k)
			require.NoError(t, Read(w.Codes, same))
			require.Equal(t, codes, same)
		})
	}
}

func TestFP8SmallAndEmpty(t *testing.T) {
	c := saved(t, Values("w", []dtype.E5M2{0x3C, 0xBC}, 2, 1), Rounded("w_scale", dtype.BFloat16, []float32{2, 4}, 2, 1),
		Values("none", []dtype.E4M3{}, 0, 5), Values("none_scale", []float32{1}))
	w, err := c.FP8("w")
	require.NoError(t, err)
	got := nans(2)
	require.NoError(t, w.Float32(got))
	require.Equal(t, []float32{2, -4}, got)
	w, err = c.FP8("none")
	require.NoError(t, err)
	require.NoError(t, w.Float32(nil))
}

func TestFP8Errors(t *testing.T) {
	codes := func(name string, shape ...int) Entry {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return Values(name, make([]dtype.E4M3, n), shape...)
	}
	one := func(name string, v float32) Entry { return Values(name, []float32{v}) }
	c := saved(t,
		codes("bare", 2, 2), codes("flat", 4), codes("both", 2, 2), one("both_scale", 1), one("both_scale_inv", 1),
		Values("wide", []float32{1}, 1, 1), codes("shape", 200, 300), Values("shape_scale", make([]float32, 4), 2, 2),
		codes("int", 2, 2), Values("int_scale", []int32{1}),
		codes("zero", 2, 2), one("zero_scale", 0), codes("neg", 2, 2), one("neg_scale", -1),
		codes("nan", 2, 2), one("nan_scale", float32(math.NaN())), codes("inf", 2, 2), Values("inf_scale", []float32{1, float32(math.Inf(1))}, 2))
	for name, want := range map[string]string{
		"absent": `no tensor "absent"`,
		"bare":   `tensor "bare" (F8_E4M3 [2 2]): no steps: neither "bare_scale" nor "bare_scale_inv" is there`,
		"flat":   `tensor "flat" (F8_E4M3 [4]): an FP8 weight is F8_E4M3 or F8_E5M2 with 2 dimensions`,
		"wide":   `tensor "wide" (F32 [1 1]): an FP8 weight is F8_E4M3 or F8_E5M2 with 2 dimensions`,
		"both":   `tensor "both" (F8_E4M3 [2 2]): steps are given twice, as "both_scale" and "both_scale_inv"`,
		"shape":  `tensor "shape_scale" (F32 [2 2]): steps of "shape" [200 300] are [1], [200,1] or [2,3] (blocks of 128)`,
		"int":    `tensor "int_scale" (I32 []): steps of "int" must be F32, F64, F16 or BF16`,
		"zero":   `tensor "zero_scale" (F32 []): a step is positive and finite, number 0 is 0`,
		"neg":    `tensor "neg_scale" (F32 []): a step is positive and finite, number 0 is -1`,
		"nan":    `tensor "nan_scale" (F32 []): a step is positive and finite, number 0 is NaN`,
		"inf":    `tensor "inf_scale" (F32 [2]): a step is positive and finite, number 1 is +Inf`,
	} {
		_, err := c.FP8(name)
		require.EqualError(t, err, c.Path()+": "+want)
	}
}
