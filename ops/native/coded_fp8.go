package native

import (
	"math"
	"unsafe"
)

// This file is the products with a weight of 8-bit floats and their steps in
// terms of coded.go: the tile of few rows that reads the codes where they lie, and
// the pieces that are widened for many.

// codedFP8 is the coding of a weight that is an FP8Matrix.
const codedFP8 Coding = 0xff

// fp8Tile are the arguments of a tile on E4M3.
type fp8Tile struct {
	codedTile
	steps  unsafe.Pointer // 120: of the tile's first 128 of k
	along  int            // 128: -4 where each 128 of k have steps of their own, 0: all have the first ones
	second int            // 136: bytes to the steps of 256 of k later
	apart  int            // 144: what is fetched during a block is 512 bytes here and 512 so far behind
	lanes  int            // 152: a bit for each step, of the first row or of all 16
	nan    uint64         // 160: is set where a code is a NaN
}

// streams says that the tile knows how the weight shares its steps.
func (w *FP8Matrix) streams() bool {
	if w.BlockRows == 1 {
		return w.BlockCols >= w.Cols
	}
	return (w.BlockCols == 128 || w.BlockCols >= w.Cols) && (w.BlockRows%codedTileCols == 0 || w.BlockRows >= w.Rows)
}

// fp8Stream computes columns j..j+codedTileCols of y, and reports whether it has:
// not with a NaN among the codes, or a step above 128, which the tile could not
// multiply.
func (a *codedArgs) fp8Stream(t *fp8Tile, j int) bool {
	w := &a.fp8
	across := w.across()
	first := w.Steps[j/w.BlockRows*across:]
	steps := across
	t.lanes, t.along, t.second = 1, 0, 0
	switch {
	case w.BlockRows == 1:
		t.lanes, steps = 1<<codedTileCols-1, codedTileCols
	case across > 1:
		t.along, t.second = -4, 8
	}
	for _, s := range first[:steps] {
		if !(math.Abs(float64(s)) <= 128) {
			return false
		}
	}
	t.steps = unsafe.Pointer(&first[0])
	t.step, t.apart = 2*t.ldw, t.ldw
	t.ahead = t.next
	switch {
	case codedTileCols*t.ldw <= streamLinear:
		t.step, t.apart = 1<<10, 1<<9
	case a.k > 512:
		t.ahead = unsafe.Add(t.w, 512)
	}
	streamE4M3(t)
	return t.nan == 0
}

// widen fills y with numbers of a row from column j on.
func (w *FP8Matrix) widen(y []float32, row, j int) {
	steps := w.Steps[row/w.BlockRows*w.across():]
	for codes := w.Codes[row*w.Cols+j:]; len(y) > 0; {
		n := min(len(y), w.BlockCols-j%w.BlockCols)
		fp8DecodeTimes(y[:n], codes[:n], steps[j/w.BlockCols], w.Format)
		y, codes, j = y[n:], codes[n:], j+n
	}
}
