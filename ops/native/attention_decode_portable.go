//go:build !amd64 || purego

package native

// This file stands in for attention_decode_amd64.s; its caller asks decodes first.

func attnScores(p *float32, ldp int, q, k *float32, ldk, ahead, rows, keys, d int, scale float32) {}

func attnValues(o *float32, ldo int, p *float32, ldp int, v *float32, ldv, ahead, rows, keys, d int) {
}
