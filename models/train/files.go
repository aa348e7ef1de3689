// Files that are replaced as a whole.

package train

import (
	"errors"
	"io"
	"os"
)

// replaceFile writes path through a temporary beside it: a reader, or a run
// after a crash, finds the old file or the new one.
func replaceFile(path string, write func(w io.Writer) error) error {
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
