//go:build unix

// Mapping of files on systems with mmap.

package train

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int64) ([]byte, error) {
	if size <= 0 || int64(int(size)) != size {
		return nil, errors.New("size cannot be mapped")
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err == nil {
		// Windows are short and lie anywhere: reading ahead costs more than it
		// brings. It is advice, and no error where it is not taken.
		_ = unix.Madvise(mem, unix.MADV_RANDOM)
	}
	return mem, err
}

func unmapFile(mem []byte) error { return unix.Munmap(mem) }
