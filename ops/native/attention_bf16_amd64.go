//go:build amd64 && !purego

package native

// This file binds attention_bf16_amd64.s.

//go:noescape
func largestScores(largest, s *float32, rows, stride, blocks int)

//go:noescape
func expPairsBF16(words, s *float32, rows, stride, blocks int, base *float32, sum *float64)

//go:noescape
func softmaxGradBF16(rows *softmaxGradRows)

//go:noescape
func pairBothBF16(cols *float32, ldc int, rows *float32, ldr int, src *float32, lds, n, width int) (top uint16)

//go:noescape
func roundRowBF16(y, x *float32, n int)
