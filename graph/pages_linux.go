package graph

import (
	"os"
	"strconv"
	"strings"
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

// dropPages gives the pages of b back, which holds zeros and reads as zeros after
// it: a new slice may lie where another was, and then it was written to.
func dropPages(b []byte) {
	page := os.Getpagesize()
	if len(b) < 2*page {
		return
	}
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (page - 1)
	whole := (len(b) - skip) &^ (page - 1)
	_ = unix.Madvise(b[skip:skip+whole], unix.MADV_DONTNEED)
}

// machineMemory is the memory of the machine, or what the process may have of
// it; 0: not known.
func machineMemory() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	all := int(info.Totalram+info.Totalswap) * int(info.Unit)
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && n > 0 {
			all = min(all, n)
		}
	}
	return all
}
