package native

import (
	"fmt"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

// A mask that is a transposed or broadcast view is read through its strides.
func TestMaskStrides(t *testing.T) {
	a := optest.Attention{B: 2, Lq: 5, Lk: 150, Hq: 2, Hkv: 1, D: 4, Dv: 4}
	q, k := optest.Normals("q", 2*5*2*4, 1), optest.Normals("k", 2*150*4, 1)
	v, dout := optest.Normals("v", 2*150*4, 1), optest.Normals("do", 2*5*2*4, 1)
	a.Mask, a.MaskShape = optest.Bools("m", 2*5*150, 0.5), []int{2, 5, 150}
	want := runAttention(t, a, q, k, v, dout)

	view := make([]bool, len(a.Mask)) // [B,Lk,Lq] in memory
	for b := range 2 {
		for i := range 5 {
			for j := range 150 {
				view[(b*150+j)*5+i] = a.Mask[(b*5+i)*150+j]
			}
		}
	}
	r := newAttnRun[float32](a, q, k, v, dout, nil)
	var err error
	r.args.Mask, err = NewAttentionMask(view, []int{2, 5, 150}, []int{750, 1, 5}, a.B, a.Hq, a.Lq, a.Lk)
	require.NoError(t, err)
	r.run(t)
	require.Equal(t, want.Out, r.args.Out)
	require.Equal(t, want.DQ, r.args.DQ)
	require.Equal(t, want.DK, r.args.DK)
	require.Equal(t, want.DV, r.args.DV)
}

func TestMaskErrors(t *testing.T) {
	keep := make([]bool, 2*3*4*5)
	for _, c := range []struct {
		shape, strides []int
		want           string
	}{
		{[]int{5}, nil, "attention: mask must have 2, 3 or 4 dimensions, got shape [5]"},
		{[]int{2, 4}, nil, "attention: mask must have shape [2 5] (1 broadcasts in all but the last), got [2 4]"},
		{[]int{2, 1}, nil, "attention: mask must have shape [2 5] (1 broadcasts in all but the last), got [2 1]"},
		{[]int{2, 3, 5}, nil, "attention: mask must have shape [2 4 5] (1 broadcasts in all but the last), got [2 3 5]"},
		{[]int{2, 2, 4, 5}, nil, "attention: mask must have shape [2 3 4 5] (1 broadcasts in all but the last), got [2 2 4 5]"},
		{[]int{2, 5}, []int{1}, "attention: mask of shape [2 5] has 2 strides, got [1]"},
		{[]int{2, 5}, []int{-5, 1}, "attention: strides of a mask must not be negative, got [-5 1]"},
		{[]int{2, 5}, []int{116, 1}, "attention: mask of shape [2 5] and strides [116 1] needs 121 elements, got 120"},
	} {
		_, err := NewAttentionMask(keep, c.shape, c.strides, 2, 3, 4, 5)
		require.EqualError(t, err, c.want)
	}
	for _, shape := range [][]int{{2, 5}, {1, 5}, {2, 4, 5}, {1, 1, 5}, {2, 3, 4, 5}, {1, 3, 1, 5}, {2, 1, 4, 5}} {
		_, err := NewAttentionMask(keep, shape, nil, 2, 3, 4, 5)
		require.NoError(t, err)
	}
}

// FuzzMask: a mask that is accepted is safe to follow.
func FuzzMask(f *testing.F) {
	f.Add([]byte{1, 0, 1, 1, 0, 1}, []byte{2, 3}, []byte{3, 1}, uint8(2), uint8(1), uint8(4), uint8(3))
	f.Add([]byte{1, 0, 1, 1, 0, 1}, []byte{1, 2, 1, 3}, []byte{}, uint8(2), uint8(2), uint8(4), uint8(3))
	f.Add([]byte{1, 0, 1}, []byte{1, 0}, []byte{200, 1}, uint8(1), uint8(2), uint8(0), uint8(0))
	f.Add([]byte{}, []byte{1, 3, 9}, []byte{0, 0, 0}, uint8(1), uint8(2), uint8(3), uint8(9))
	f.Fuzz(func(t *testing.T, keep, shape, strides []byte, b, h, lq, lk uint8) {
		a := optest.Attention{B: int(b % 4), Hq: int(h%4) + 1, Hkv: 1, Lq: int(lq % 9), Lk: int(lk % 9), D: 2, Dv: 2}
		bools := make([]bool, len(keep))
		for i, v := range keep {
			bools[i] = v&1 != 0
		}
		ints := func(x []byte) []int {
			y := make([]int, len(x))
			for i, v := range x {
				y[i] = int(int8(v))
			}
			return y
		}
		s := ints(strides)
		if len(s) == 0 {
			s = nil
		}
		m, err := NewAttentionMask(bools, ints(shape), s, a.B, a.Hq, a.Lq, a.Lk)
		if err != nil {
			return
		}
		zeros := func(n int) []float64 { return make([]float64, n) }
		r := newAttnRun[float32](a, zeros(a.B*a.Lq*a.Hq*2), zeros(a.B*a.Lk*2), zeros(a.B*a.Lk*2), zeros(a.B*a.Lq*a.Hq*2), nil)
		r.args.Mask = m
		r.run(t)
		for i, x := range [][]float32{r.args.Out, r.args.DQ, r.args.DK, r.args.DV} {
			require.True(t, finite(x), fmt.Sprint(i))
		}
	})
}
