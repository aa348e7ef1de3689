//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

// Locking of the folder of a run by flock.

package train

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFolder holds dir until the file is closed, by the end of a killed process
// too; errLocked: another holds it. A file system that has no locks does not stop
// a run.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return nil, errors.Join(errLocked, f.Close())
	}
	return f, nil
}

// unlockFolder lets go of the folder after last, so that what last removes is
// nobody else's yet.
func unlockFolder(f *os.File, last func()) error {
	last()
	return f.Close()
}
