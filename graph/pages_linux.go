package graph

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is what a page of the largest useful size holds. Where there is
// another size the kernel takes the advice for what it has.
const hugePage = 2 << 20

// adviseHugePages asks for b, which nobody has written to, in large pages: an
// arena is walked from end to end in a step, and with pages of 4 KB most of its
// lines miss the translation buffers. It is a hint.
func adviseHugePages(b []byte) {
	if len(b) < 2*hugePage {
		return
	}
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (hugePage - 1)
	whole := (len(b) - skip) &^ (hugePage - 1)
	_ = unix.Madvise(b[skip:skip+whole], unix.MADV_HUGEPAGE)
}
