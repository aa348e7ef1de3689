//go:build amd64 && !purego

package native

import (
	"os"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// This file binds the assembly and decides which of it the CPU can run.

func chooseKernel() int {
	best := portableKernel
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		best = avx2Kernel
		if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL {
			best = avx512Kernel
			if cpu.X86.HasAVX512BF16 && cpu.X86.HasAVX512VBMI {
				best = bf16Kernel
				if cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 && requestTiles() {
					best = amxKernel
				}
			}
		}
	}
	for k, name := range kernelNames {
		if name == os.Getenv("SEAFAN_KERNELS") {
			return min(k, best)
		}
	}
	return best
}

//go:noescape
func tileAVX512(t *tileArgs)

//go:noescape
func tileAVX2(t *tileArgs)

func (t *tileArgs) run() {
	if gemmKernel >= avx512Kernel {
		tileAVX512(t)
		return
	}
	t.runAVX2()
}

// runAVX2 runs the AVX2 tile, which has no masks: a tile of fewer columns is
// computed in a buffer of full width. B must be readable at full width.
func (t *tileArgs) runAVX2() {
	const nr = 16
	if t.cols == nr {
		tileAVX2(t)
		return
	}
	var buf [6 * nr]float32
	full := *t
	full.c, full.ldc = unsafe.Pointer(&buf), nr*4
	if t.s != nil {
		for i := range t.rows {
			copy(buf[i*nr:], unsafe.Slice((*float32)(unsafe.Add(t.s, i*t.lds)), t.cols))
		}
		full.s, full.lds = unsafe.Pointer(&buf), nr*4
	}
	tileAVX2(&full)
	for i := range t.rows {
		copy(unsafe.Slice((*float32)(unsafe.Add(t.c, i*t.ldc)), t.cols), buf[i*nr:])
	}
}

//go:noescape
func transposeAVX512(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int)

//go:noescape
func transposeAVX2(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int)

// transposeBlocks turns rows of src into columns of dst, transposeEdge rows and
// that many columns a block; strides are in bytes.
func transposeBlocks(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int) {
	if gemmKernel >= avx512Kernel {
		transposeAVX512(dst, ldd, src, lds, blocks)
		return
	}
	transposeAVX2(dst, ldd, src, lds, blocks)
}

//go:noescape
func packColumnsAVX512(dst unsafe.Pointer, panel int, src unsafe.Pointer, lds, k, columns int)

// packColumns packs at most gemmMC columns of k rows into panels of 12 columns and
// of what is left.
func packColumns(dst, src unsafe.Pointer, lds, k, columns int) {
	packColumnsAVX512(dst, k*12*4, src, lds, k, columns)
}

//go:noescape
func copyRowsAVX512(dst, src unsafe.Pointer, lds, rows int)

// copyRows packs 32 columns of rows > 0 rows.
func copyRows(dst, src unsafe.Pointer, lds, rows int) { copyRowsAVX512(dst, src, lds, rows) }

//go:noescape
func copyStripsAVX512(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, rows, vectors int)

// copyStrips copies rows of vectors of 16 floats; strides are in bytes.
func copyStrips(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, rows, vectors int) {
	copyStripsAVX512(dst, ldd, src, lds, rows, vectors)
}

//go:noescape
func streamAVX512(t *tileArgs)

// stream runs the tile for few rows on a B stored [n,k].
func (t *tileArgs) stream() { streamAVX512(t) }

//go:noescape
func tileBF16(t *tileArgs)

// tileAMX has a frame, for which the stack may grow and t move.
//
//go:noescape
func tileAMX(t *tileArgs)

// runPairs and runTiles run the tiles on words of two bf16.
func (t *tileArgs) runPairs() { tileBF16(t) }
func (t *tileArgs) runTiles() { tileAMX(t) }

//go:noescape
func pairRowBF16(dst, src *float32, n int)

//go:noescape
func pairRowsBF16(dst *float32, ldd int, src *float32, lds, rows, cols int)

//go:noescape
func pairRowStored(dst *float32, src *uint16, n int)

//go:noescape
func pairRowsStored(dst *float32, ldd int, src *uint16, lds, rows, cols int)

//go:noescape
func splitRow(dst, src *float32, n int) (top uint32)

//go:noescape
func splitRows(dst, src *float32, lds, rows, cols int, tops *float32)
