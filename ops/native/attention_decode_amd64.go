//go:build amd64 && !purego

package native

// This file binds attention_decode_amd64.s.

//go:noescape
func attnScores(p *float32, ldp int, q, k *float32, ldk, ahead, rows, keys, d int, scale float32)

//go:noescape
func attnValues(o *float32, ldo int, p *float32, ldp int, v *float32, ldv, ahead, rows, keys, d int)
