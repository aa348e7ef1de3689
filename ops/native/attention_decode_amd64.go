//go:build amd64 && !purego

package native

import "unsafe"

// This file binds attention_decode_amd64.s.

//go:noescape
func attnScoresF32(p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32)

//go:noescape
func attnValuesF32(o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int)

//go:noescape
func attnScoresBF16(p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32)

//go:noescape
func attnValuesBF16(o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int)

//go:noescape
func attnScoresF16(p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32)

//go:noescape
func attnValuesF16(o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int)

// attnScores runs the product with keys that lie in form.
func attnScores(form kvForm, p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32) {
	switch form {
	case kvBF16:
		attnScoresBF16(p, ldp, q, k, ldk, ahead, rows, keys, d, scale)
	case kvF16:
		attnScoresF16(p, ldp, q, k, ldk, ahead, rows, keys, d, scale)
	default:
		attnScoresF32(p, ldp, q, k, ldk, ahead, rows, keys, d, scale)
	}
}

// attnValues runs the product with values that lie in form.
func attnValues(form kvForm, o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int) {
	switch form {
	case kvBF16:
		attnValuesBF16(o, ldo, p, ldp, v, ldv, ahead, rows, keys, d)
	case kvF16:
		attnValuesF16(o, ldo, p, ldp, v, ldv, ahead, rows, keys, d)
	default:
		attnValuesF32(o, ldo, p, ldp, v, ldv, ahead, rows, keys, d)
	}
}
