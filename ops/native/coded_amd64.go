//go:build amd64 && !purego

package native

import "unsafe"

// This file binds coded_amd64.s.

//go:noescape
func codedBF16(y *float32, x *byte, n int)

//go:noescape
func codedF16(y *float32, x *byte, n int)

//go:noescape
func codedQ8_0(y *float32, x *byte, n int)

//go:noescape
func codedQ4_0(y *float32, x *byte, n int)

//go:noescape
func codedQ4_1(y *float32, x *byte, n int)

//go:noescape
func superQ4_K(y *float32, x *byte, r *superRuns)

//go:noescape
func superQ5_K(y *float32, x *byte, r *superRuns)

//go:noescape
func superQ6_K(y *float32, x *byte, r *superRuns)

// codedSteps is how many numbers a turn of the loop takes, and the loop.
func codedSteps(c Coding) (step int, of func(y *float32, x *byte, n int)) {
	switch c {
	case CodedBF16:
		return 8, codedBF16
	case CodedF16:
		return 8, codedF16
	case CodedQ8_0:
		return codedBlock, codedQ8_0
	case CodedQ4_0:
		return codedBlock, codedQ4_0
	}
	return codedBlock, codedQ4_1
}

//go:noescape
func streamBF16(t *codedTile)

//go:noescape
func streamF16(t *codedTile)

//go:noescape
func streamQ8_0(t *codedTile)

//go:noescape
func streamQ4_0(t *codedTile)

//go:noescape
func streamQ4_1(t *codedTile)

//go:noescape
func streamE4M3(t *fp8Tile)

// stream runs the tile.
func (t *codedTile) stream(c Coding) {
	switch c {
	case CodedBF16:
		streamBF16(t)
	case CodedF16:
		streamF16(t)
	case CodedQ8_0:
		streamQ8_0(t)
	case CodedQ4_0:
		streamQ4_0(t)
	default:
		streamQ4_1(t)
	}
}

//go:noescape
func panelBF16(t *panelTile)

//go:noescape
func panelBF16L2(t *panelTile)

//go:noescape
func panelF16(t *panelTile)

//go:noescape
func panelF16L2(t *panelTile)

func cpuMaker() uint32

func madeByIntel() bool { return cpuMaker() == 'G'|'e'<<8|'n'<<16|'u'<<24 }

//go:noescape
func panelRowsBF16(dst *float32, src *byte, n int)

//go:noescape
func panelRowsF16(dst *float32, src *byte, n int)

// panelRows makes rows of panelCols numbers, two of each of n > 0 rows of words.
func panelRows(c Coding, dst *float32, src *byte, n int) {
	if c == CodedF16 {
		panelRowsF16(dst, src, n)
		return
	}
	panelRowsBF16(dst, src, n)
}

//go:noescape
func fetchLines(p unsafe.Pointer, n int)

// run computes the panel's product.
func (t *panelTile) run(c Coding) {
	switch {
	case c == CodedF16 && panelsThroughL2:
		panelF16L2(t)
	case c == CodedF16:
		panelF16(t)
	case panelsThroughL2:
		panelBF16L2(t)
	default:
		panelBF16(t)
	}
}
