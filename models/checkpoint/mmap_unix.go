//go:build unix

// Mapping of files on systems with mmap.

package checkpoint

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int64) ([]byte, error) {
	if size <= 0 || int64(int(size)) != size {
		return nil, errors.New("size cannot be mapped")
	}
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
}

func unmapFile(mem []byte) error { return unix.Munmap(mem) }

// forget lets the whole pages of n bytes at off go from memory; reading them again
// brings them back.
func forget(mem []byte, off, n int64) {
	page := int64(os.Getpagesize())
	from, to := (off+page-1)/page*page, (off+n)/page*page
	if 0 <= from && from < to && to <= int64(len(mem)) {
		_ = unix.Madvise(mem[from:to], unix.MADV_DONTNEED) // a hint
	}
}
