//go:build amd64 && !purego

package native

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

// stream runs the tile.
func (t *codedTile) stream(c Coding) {
	if c == CodedBF16 {
		streamBF16(t)
		return
	}
	streamF16(t)
}
