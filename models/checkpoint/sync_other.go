//go:build !unix

// Syncing to disk by path: files only, folders cannot be synced here.

package checkpoint

import (
	"errors"
	"os"
)

func syncPath(path string) error {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
