//go:build !amd64 || purego

package native

import "unsafe"

// This file stands in for attention_decode_amd64.s; its caller asks decodes first.

func attnScores(form kvForm, p *float32, ldp int, q *float32, k unsafe.Pointer, ldk int, ahead uintptr, rows, keys, d int, scale float32) {
}

func attnValues(form kvForm, o *float32, ldo int, p *float32, ldp int, v unsafe.Pointer, ldv int, ahead uintptr, rows, keys, d int) {
}
