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

// forget lets the pages of the first n bytes go from memory; reading them again
// brings them back.
func forget(mem []byte, n int64) {
	if whole := int(n) / os.Getpagesize() * os.Getpagesize(); whole > 0 && whole <= len(mem) {
		_ = unix.Madvise(mem[:whole], unix.MADV_DONTNEED) // a hint
	}
}
