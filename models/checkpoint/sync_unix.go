//go:build unix

// Syncing to disk by path.

package checkpoint

import (
	"errors"
	"os"
)

// syncPath flushes a file, or the entries of a folder, to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
