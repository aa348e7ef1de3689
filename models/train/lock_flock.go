//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

// Locking of the folder of a run.

package train

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile fails where another process has f locked. The lock goes with the
// process, killed or not. A file system that has no locks does not stop a run.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("it is locked")
	}
	return nil
}
