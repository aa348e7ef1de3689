package native

import (
	"encoding/binary"
	"unsafe"
)

// This file is the panels of a weight stored in 16 bits: a copy in the order in
// which the product of few rows reads it, which is one stream of memory. The
// bits are those of linearCodedUnit.
//
// A panel is 32 rows of w, columns of y. Its words of 32 bits are two neighbours
// along k, the smaller k above, those of all rows for a k before those of the
// next: [K/2, 32], as gemm_bf16.go packs it.

// panelCols is the rows of w, columns of y, of a panel.
const panelCols = 32

// panelsThroughL2 says that lines of panels are fetched into the second level cache,
// and not past it. Tests change it.
var panelsThroughL2 = madeByIntel()

// panelTile are the arguments of a panel's product with 1 to gemmFew rows of x;
// strides are in bytes. The offsets are known to the assembly.
type panelTile struct {
	rows, blocks int            // 0, 8: blocks are of 32 k
	x            unsafe.Pointer // 16
	ldx          int            // 24
	w            unsafe.Pointer // 32
	s            unsafe.Pointer // 40: added to all rows, or nil
	y            unsafe.Pointer // 48
	ldy          int            // 56
	add          unsafe.Pointer // 64: added to the results, rows ldy apart, or nil
}

// Panels is the bytes of the panels of w[N,K], 0 where this CPU or the coding
// has no use for them. What N is more than a multiple of 32 is not in them.
func (c Coding) Panels(n, k int) int {
	if gemmKernel < avx512Kernel || c != CodedBF16 && c != CodedF16 || k%32 != 0 {
		return 0
	}
	return n / panelCols * panelCols * c.Bytes(k)
}

// FillPanels writes the panels of w[N,K], which is stored in 16 bits.
func FillPanels(panels, w []byte, n, k int) {
	fillPanels.launch(n/panelCols, panelArgs{panels, w, k})
}

type panelArgs struct {
	panels, w []byte
	k         int
}

var fillPanels = newKernel(fillPanelsUnit)

// fillPanelsUnit writes a panel.
func fillPanelsUnit(a *panelArgs, unit int) {
	const edge = 16 // of a block of words
	bytes := panelCols * a.k * 2
	dst, src := a.panels[unit*bytes:][:bytes], a.w[unit*bytes:][:bytes]
	for at := 0; at < bytes; at += panelCols * 4 * edge { // 16 words of k
		for col := 0; col < panelCols; col += edge {
			transposeBlocks(unsafe.Pointer(&dst[at+col*4]), panelCols*4, unsafe.Pointer(&src[col*a.k*2+at/panelCols]), a.k*2, 1)
		}
		for block := dst[at:][:panelCols*4*edge]; len(block) > 0; block = block[8:] {
			u := binary.LittleEndian.Uint64(block)
			binary.LittleEndian.PutUint64(block, u&0x0000ffff0000ffff<<16|u>>16&0x0000ffff0000ffff)
		}
	}
}

// panel computes panelCols columns of y.
func (a *codedArgs) panel(unit int, x []float32) {
	j := unit * panelCols
	for i := 0; i < a.m; i += gemmFew {
		var t panelTile
		t.rows, t.blocks = min(gemmFew, a.m-i), a.k/32
		t.x, t.ldx = unsafe.Pointer(&x[i*a.k]), a.k*4
		t.w = unsafe.Pointer(&a.panels[j*a.k*2])
		if a.bias != nil {
			t.s = unsafe.Pointer(&a.bias[j])
		}
		t.y, t.ldy = unsafe.Pointer(&a.y[i*a.n+j]), a.n*4
		if a.add != nil {
			t.add = unsafe.Pointer(&a.add[i*a.n+j])
		}
		t.run(a.coding)
	}
}
