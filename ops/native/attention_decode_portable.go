//go:build !amd64 || purego

package native

import "unsafe"

// This file stands in for attention_decode_amd64.s; its caller asks decodes first.

func (t *decodeTile) scores(form kvForm) {}

func (t *decodeTile) values(form kvForm) {}

func attnSoftmax(p *float32, ldp, rows, n int, tops, bases *float32, sums *float64) {}

func attnJoin(x, y, wx, wy *float32, rows, d int) {}

func fetchToWrite(p unsafe.Pointer, n int) {}

func storeBF16(y *uint16, x *float32, n int) {}
