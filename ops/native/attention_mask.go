// The boolean mask of attention.

package native

import "fmt"

// AttentionMask says which scores stay. The entry of batch b, query head h,
// query i and key j is Keep[b*B + h*H + i*Q + j*K], true = keep; a stride of 0
// broadcasts. Keep nil means no mask. Of ragged sequences i counts the packed
// queries (B is not used) and j the keys of the query's own sequence.
type AttentionMask struct {
	Keep       []bool
	B, H, Q, K int
}

// NewAttentionMask reads a mask of shape [B,Lk], [B,Lq,Lk] or [B,H,Lq,Lk], in
// which B, H and Lq may be 1 for all. strides, in elements, are those of the
// tensor; nil means row-major. Anything else is an error.
func NewAttentionMask(keep []bool, shape, strides []int, b, h, lq, lk int) (AttentionMask, error) {
	m := AttentionMask{Keep: keep}
	var want []int
	var to []*int
	switch len(shape) {
	case 2:
		want, to = []int{b, lk}, []*int{&m.B, &m.K}
	case 3:
		want, to = []int{b, lq, lk}, []*int{&m.B, &m.Q, &m.K}
	case 4:
		want, to = []int{b, h, lq, lk}, []*int{&m.B, &m.H, &m.Q, &m.K}
	default:
		return AttentionMask{}, fmt.Errorf("attention: mask must have 2, 3 or 4 dimensions, got shape %v", shape)
	}
	if strides != nil && len(strides) != len(shape) {
		return AttentionMask{}, fmt.Errorf("attention: mask of shape %v has %d strides, got %v", shape, len(shape), strides)
	}
	last := len(shape) - 1
	row, end := 1, 1
	for d := last; d >= 0; d-- {
		if shape[d] != want[d] && (d == last || shape[d] != 1) {
			return AttentionMask{}, fmt.Errorf("attention: mask must have shape %v (1 broadcasts in all but the last), got %v", want, shape)
		}
		stride := row
		if strides != nil {
			stride = strides[d]
		}
		if stride < 0 {
			return AttentionMask{}, fmt.Errorf("attention: strides of a mask must not be negative, got %v", strides)
		}
		if shape[d] != 1 || d == last {
			*to[d] = stride
		}
		row *= shape[d]
		end += max(shape[d]-1, 0) * stride
	}
	if row > 0 && end > len(keep) {
		return AttentionMask{}, fmt.Errorf("attention: mask of shape %v and strides %v needs %d elements, got %d", shape, strides, end, len(keep))
	}
	if m.Keep == nil {
		m.Keep = []bool{}
	}
	return m, nil
}
