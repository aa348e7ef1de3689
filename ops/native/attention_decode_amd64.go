//go:build amd64 && !purego

package native

import "unsafe"

// This file binds attention_decode_amd64.s.

//go:noescape
func attnScoresF32(t *decodeTile)

//go:noescape
func attnValuesF32(t *decodeTile)

//go:noescape
func attnScoresBF16(t *decodeTile)

//go:noescape
func attnValuesBF16(t *decodeTile)

//go:noescape
func attnScoresF16(t *decodeTile)

//go:noescape
func attnValuesF16(t *decodeTile)

//go:noescape
func attnSoftmax(p *float32, ldp, rows, n int, tops, bases *float32, sums *float64)

//go:noescape
func attnJoin(x, y, wx, wy *float32, rows, d int)

//go:noescape
func fetchToWrite(p unsafe.Pointer, n int)

//go:noescape
func storeBF16(y *uint16, x *float32, n int)

// scores runs the product with keys that lie in form.
func (t *decodeTile) scores(form kvForm) {
	switch form {
	case kvBF16:
		attnScoresBF16(t)
	case kvF16:
		attnScoresF16(t)
	default:
		attnScoresF32(t)
	}
}

// values runs the product with values that lie in form.
func (t *decodeTile) values(form kvForm) {
	switch form {
	case kvBF16:
		attnValuesBF16(t)
	case kvF16:
		attnValuesF16(t)
	default:
		attnValuesF32(t)
	}
}
