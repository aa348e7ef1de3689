//go:build amd64 && !purego

package native

import "unsafe"

// This file binds attention_bf16x6_amd64.s.

//go:noescape
func expSplit(words *float32, ld int, s *float32, rows, stride, blocks int, scale float32, base *float32, sum *float64)

//go:noescape
func softmaxGradSplit(step *splitGradStep)

//go:noescape
func splitBoth(rows *float32, ld int, panels, src *float32, lds, blocks int, tops *[splitRun]float32)

//go:noescape
func fetchRows(p unsafe.Pointer, stride, rows, n int)
