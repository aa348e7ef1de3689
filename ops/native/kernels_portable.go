//go:build !amd64 || purego

package native

import "unsafe"

// This file stands in for the assembly where there is none. Nothing calls what
// is empty here: the callers ask inAssembly or gemmKernel first.

func chooseKernel() int { return portableKernel }

func (t *tileArgs) run() {}

func packColumns(dst, src unsafe.Pointer, lds, k, columns int) {}

func copyStrips(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, rows, vectors int) {}

func copyRows(dst, src unsafe.Pointer, lds, rows int) {}

func transposeBlocks(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int) {}

func vecExp(y, x *float32, n int) {}

func vecExpSubSum(l *lanes, y, x *float32, m float32, n int) float64 { return 0 }

func vecDot(l *lanes, x, y *float32, n int) float64 { return 0 }

func vecDot3(l *lanes, x, y, z *float32, n int) float64 { return 0 }

func vecScaleMul(y, x, w *float32, s float32, n int) {}

func vecAddScaleMul(y, x, w *float32, s float32, n int) {}

func vecScaleMulAdd(y, x, w, z *float32, s, t float32, n int) {}

func vecScale(y *float32, s float32, n int) {}

func vecAddScaled(y, a, b *float32, s float32, n int) {}

func vecSwiGLU(y, gate, up *float32, n int) {}

func vecSwiGLUGrad(dgate, dup, dy, gate, up *float32, n int) {}

func vecAdamW(p, m, v, grad *float32, c *adamWFactors[float32], n int, tops *[16]uint32) {}

func vecTurn(y, x *float32, heads, stride, half int, cos, sin *float32, sign float32, n int) {}

func vecMax(x *float32, n int) float32 { return *x }

func vecWeights(y *float64, x *float32, n int, top, rate float64) {}

func (t *tileArgs) stream() {}

func (t *tileArgs) runPairs() {}

func (t *tileArgs) runTiles() {}

func pairRowBF16(dst, src *float32, n int) {}

func pairRowsBF16(dst *float32, ldd int, src *float32, lds, rows, cols int) {}

func pairRowStored(dst *float32, src *uint16, n int) {}

func pairRowsStored(dst *float32, ldd int, src *uint16, lds, rows, cols int) {}

func splitRow(dst, src *float32, n int) (top uint32) { return 0 }

func splitRows(dst, src *float32, lds, rows, cols int, tops *float32) {}

func largestScores(largest, s *float32, rows, stride, blocks int) {}

func expPairsBF16(words, s *float32, rows, stride, blocks int, base *float32, sum *float64) {}

func softmaxGradBF16(rows *softmaxGradRows) {}

func expSplit(words *float32, ld int, s *float32, rows, stride, blocks int, scale float32, base *float32, sum *float64) {
}

func softmaxGradSplit(rows *splitGradStep) {}

func splitBoth(rows *float32, ld int, panels, src *float32, lds, blocks int, tops *[splitRun]float32) {
}

func fetchRows(p unsafe.Pointer, stride, rows, n int) {}

func pairBothBF16(cols *float32, ldc int, rows *float32, ldr int, src *float32, lds, n, width int) (top uint16) {
	return 0
}

func roundRowBF16(y, x *float32, n int) {}
